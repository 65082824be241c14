"""Settings that were tried and kept, and the gradient bucket plan of a job: terminal and JSON."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import msgspec

from stallwise.buckets.plan import GradientBucket
from stallwise.buckets.search import BestBuckets
from stallwise.report.format import (
    plural,
    show_bounds,
    show_bytes,
    show_factor,
    show_number,
    show_percent,
    show_percent_bounds,
    show_probability,
    show_seconds,
)
from stallwise.report.json import plain, schema
from stallwise.report.view import (
    Code,
    Line,
    Notes,
    PartColumn,
    Span,
    TablePart,
    View,
    facts,
    number,
    table,
    view,
)
from stallwise.sentences import sentence_document
from stallwise.tune.knobs import LoaderFacts
from stallwise.tune.proposals import Proposal
from stallwise.tune.search import TuneResult
from stallwise.tune.trials import ArmTimes, Attempt

_ARGUMENTS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


def draw(result: TuneResult) -> View:
    """What binds, what was tried and kept, lines to paste, advice and notes."""
    kept = bool(result.kept.as_dict())
    return view(
        f"{PurePath(result.profile.script).name}: {_title(result)}",
        facts(_summary(result)),
        _attempts(result) if result.proposals else None,
        facts(_outcome(result)) if kept else None,
        Code("to paste", patch(result)) if kept else None,
        facts(_advice(result)),
        Notes("notes", tuple(result.notes)),
        aside=f"{show_seconds(result.seconds)} in all",
    )


def _title(result: TuneResult) -> str:
    if result.dry_run:
        return "settings predicted, none tried"
    return "settings tried" if result.attempts else "no setting tried"


def _summary(result: TuneResult) -> Iterator[tuple[str, Line]]:
    profile = result.profile
    speed = "" if profile.samples_per_s is None else f", {show_number(profile.samples_per_s)} samples/s"
    yield "as it is", f"{show_seconds(profile.step_s)} a step{speed}; measured"
    yield "binds", f"{profile.verdict.binds} · {profile.verdict.sentence}"
    yield "answer", Span(show_answer(result), "strong")


def show_answer(result: TuneResult) -> str:
    """The answer in one sentence."""
    verdict = result.verdict
    if verdict == "nothing proposed" and result.profile.verdict.binds == "inconclusive":
        return (
            "Inconclusive: the profile cannot tell what limits the step, and no setting is predicted to help. "
            "Profile it longer."
        )
    if verdict == "nothing proposed":
        return "No setting is predicted to take 5 % off the step. Nothing was tried; change nothing."
    if verdict == "predicted":
        best = result.proposals[0]
        return f"{best.knobs.shown()} is predicted to take {show_percent(best.gain)} off the step; not tried."
    if verdict == "not tried":
        return "Nothing could be tried; the notes below say why."
    if verdict == "inconclusive":
        return _undecided(result)
    if verdict == "nothing helps":
        return "What was tried does not help: none of it saves 3 % of the step. Change nothing."
    ranks = " per rank" if result.profile.world.world_size > 1 and result.kept.num_workers is not None else ""
    return f"{result.kept.shown()}{ranks}: {show_factor(1 / (1 - (result.gain or 0.0)))} as fast, measured."


def _undecided(result: TuneResult) -> str:
    """What is not decided, how probable it is, and what would decide it."""
    best = result.best_undecided
    if best is None:
        return "Inconclusive: time was up before the most promising settings were tried. Allow more time."
    judged = best.posterior
    return (
        f"Inconclusive: {best.proposal.knobs.shown()} helps with {show_probability(judged.probability)} probability "
        f"({show_percent(judged.gain)} of the step, {show_percent_bounds(judged.low, judged.high)}). "
        "Allow more time, or try it by hand."
    )


def _attempts(result: TuneResult) -> TablePart:
    tried = {one.proposal: one for one in result.attempts}
    rows = []
    for proposal in result.proposals:
        attempt = tried.get(proposal)
        rows.append(
            (
                proposal.knobs.shown(),
                show_percent(proposal.gain),
                show_percent_bounds(proposal.low, proposal.high),
                "not tried" if attempt is None else show_percent(attempt.gain),
                "" if attempt is None else show_percent_bounds(attempt.posterior.low, attempt.posterior.high),
                "" if attempt is None else _judged(attempt),
            )
        )
    columns = (
        PartColumn("setting", wrap=True),
        number("predicted"),
        PartColumn("interval", priority=2),
        number("measured"),
        PartColumn("interval", priority=1),
        PartColumn("helps"),
    )
    return table(columns, rows, "fraction of the step that goes away")


def _judged(attempt: Attempt) -> Span:
    """The probability that a setting helps, and what became of it."""
    shown = show_probability(attempt.posterior.probability)
    if attempt.kept:
        return Span(f"{shown}, kept", "best")
    return Span(f"{shown}, inconclusive", "warn") if attempt.outcome == "inconclusive" else Span(shown)


def _outcome(result: TuneResult) -> Iterator[tuple[str, Line]]:
    if result.before is not None and result.after is not None:
        yield "before", _speed(result, result.before)
        yield "after", Span(_speed(result, result.after), "strong")
    if result.gain is not None and result.predicted_gain is not None:
        predicted, measured = show_percent(result.predicted_gain), show_percent(result.gain)
        yield "gain", f"{predicted} of the step predicted, {measured} measured"


def _speed(result: TuneResult, one: ArmTimes) -> str:
    profile = result.profile
    spread = f"{plural(len(one.rounds), 'round')}, {show_bounds(min(one.rounds), max(one.rounds))}"
    samples = ""
    if profile.samples_per_s is not None:
        samples = f"   {show_number(profile.samples_per_s * profile.step_s / one.step_s)} samples/s"
    return f"{show_seconds(one.step_s)} a step{samples}   ({spread})"


def patch(result: TuneResult) -> tuple[str, ...]:
    """Lines for the script: where, and what."""
    kept, loader = result.kept, result.loader
    lines: list[str] = []
    arguments = [f"{name}={value}" for name, value in kept.as_dict().items() if name in _ARGUMENTS]
    if kept.lookahead:
        lines.append(f"from stallwise.data import Lookahead{', NodeCache' if kept.cache_bytes else ''}")
        arguments.append(_ahead(loader))
    if arguments and loader is not None and loader.trainer:
        lines.append(f"TrainingArguments(…, {', '.join(f'dataloader_{one}' for one in arguments)})")
    elif arguments:
        shuffled = kept.lookahead and loader is not None and loader.sampler == "RandomSampler"
        where = f"{_where(loader)}{', instead of shuffle=True' if shuffled else ''}"
        lines += [f"# {where}", f"DataLoader(…, {', '.join(arguments)})"]
    if kept.cache_bytes:
        lines.append(f'BucketDataset(…, cache=NodeCache("/a/local/disk/cache", {kept.cache_bytes}))')
    if kept.bucket_cap_mb is not None:
        lines.append(f"DistributedDataParallel(…, bucket_cap_mb={kept.bucket_cap_mb:g})")
    if kept.fused_optimizer:
        lines.append(f"{result.optimizer or 'AdamW'}(…, fused=True)")
    if kept.compile:
        lines.append("model = torch.compile(model)")
    return tuple(lines)


def _ahead(loader: LoaderFacts | None) -> str:
    if loader is not None and loader.sampler == "RandomSampler":
        return "sampler=Lookahead(RandomSampler(dataset))"
    if loader is not None and loader.sampler == "SequentialSampler":
        return "sampler=Lookahead(SequentialSampler(dataset))"
    return "sampler=Lookahead(sampler)"


def _where(loader: LoaderFacts | None) -> str:
    """The line of the script that makes the loader; not a line inside a framework."""
    if loader is None or any(part in loader.site for part in ("site-packages", "dist-packages")):
        return "where the script makes its loader"
    file, _, line = loader.site.split(" ")[0].rpartition(":")
    return f"{PurePath(file).name}, line {line}"


def _advice(result: TuneResult) -> Iterator[tuple[str, Line]]:
    for one in result.advice:
        gain = f"predicted {show_percent(one.gain)} of the step ({show_percent_bounds(one.low, one.high)})"
        changes = "; changes the training" if one.alters else ""
        yield "with code", f"{one.text.rstrip('.')}: {gain}, not tried{changes}."


def document(result: TuneResult) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    profile = result.profile
    return {
        **schema("tune"),
        "script": profile.script,
        "run": str(profile.run),
        "binds": profile.verdict.binds,
        "verdict": result.verdict,
        "step_s": plain(profile.step_s),
        "samples_per_s": plain(profile.samples_per_s),
        "loader": plain(result.loader),
        "proposals": [_proposal(one) for one in result.proposals],
        "attempts": [_attempt(one) for one in result.attempts],
        "kept": result.kept.as_dict(),
        "before": _tried(result.before),
        "after": _tried(result.after),
        "gain": plain(result.gain),
        "predicted_gain": plain(result.predicted_gain),
        "patch": list(patch(result)),
        "advice": _advice_records(result),
        "dry_run": result.dry_run,
        "interrupted": result.interrupted,
        "notes": list(result.notes),
        "seconds": result.seconds,
    }


def _advice_records(result: TuneResult) -> list[dict[str, Any]]:
    return [
        {
            **sentence_document(one.text),
            "gain": plain(one.gain),
            "low": plain(one.low),
            "high": plain(one.high),
            "alters": one.alters,
        }
        for one in result.advice
    ]


def _proposal(one: Proposal) -> dict[str, Any]:
    return {
        "settings": one.knobs.as_dict(),
        "gain": plain(one.gain),
        "low": plain(one.low),
        "high": plain(one.high),
        "because": one.because,
    }


def _attempt(one: Attempt) -> dict[str, Any]:
    return {
        "settings": one.proposal.knobs.as_dict(),
        "predicted_gain": plain(one.proposal.gain),
        "gain": plain(one.gain),
        "gains": plain(one.gains),
        "low": plain(one.posterior.low),
        "high": plain(one.posterior.high),
        "probability": plain(one.posterior.probability),
        "outcome": one.outcome,
        "before": _tried(one.before),
        "after": _tried(one.after),
        "kept": one.kept,
    }


def _tried(one: ArmTimes | None) -> dict[str, Any] | None:
    return None if one is None else {"step_s": one.step_s, "rounds_s": list(one.rounds), "start_s": one.start_s}


_MAX_BUCKETS = 20


def draw_bucket_plan(best: BestBuckets) -> View:
    """What the plan saves, then its buckets in the order they are sent."""
    rows = (
        (f"{place + 1}", show_bytes(bucket.bytes), f"{len(bucket.parameters):,}", _parameter_span(bucket))
        for place, bucket in enumerate(best.plan.buckets[:_MAX_BUCKETS])
    )
    columns = (number("bucket"), number("bytes"), number("parameters", 1), PartColumn("from … to", wrap=True))
    hidden = len(best.plan.buckets) - _MAX_BUCKETS
    note = f"… {hidden} more in the file" if hidden > 0 else ""
    return view("", facts(_bucket_facts(best)), table(columns, rows, note=note))


def _bucket_facts(best: BestBuckets) -> Iterator[tuple[str, Line]]:
    yield "best buckets", Span(_bucket_headline(best), "strong")
    if not best.worthwhile:
        unchanged = "No other buckets save 1 % of a step: the plan is what the job has now."
        yield "best buckets", Span(unchanged, "dim")
    yield from (("best buckets", Span(sentence, "dim")) for sentence in _traced(best))


def _bucket_headline(best: BestBuckets) -> str:
    planned, own = best.planned.step_s, best.own.step_s
    now = f"{best.own_buckets} as they are: {show_seconds(own)}"
    return (
        f"{len(best.plan.buckets)} buckets: {show_seconds(planned)}; {now}; {show_percent(best.gain)} of a step saved"
    )


def _traced(best: BestBuckets) -> list[str]:
    """What a plan from a trace lacks."""
    if best.plan.named:
        return []
    sentences = ["A trace has no names of parameters: torch 2.13 or newer carries the plan out by its bytes."]
    if best.whole_buckets:
        sentences.append("It has no shapes either (record_shapes=True): buckets could be joined, not cut.")
    return sentences


def _parameter_span(bucket: GradientBucket) -> str:
    first, last = bucket.parameters[0], bucket.parameters[-1]
    return first if first == last else f"{first} … {last}"


def bucket_plan_document(best: BestBuckets) -> dict[str, Any]:
    """Plain values; `plan` is what the file holds."""
    return {
        **schema("bucket-plan"),
        "planned_s": best.planned.step_s,
        "own_s": best.own.step_s,
        "own_buckets": best.own_buckets,
        "gain": best.gain,
        "worthwhile": best.worthwhile,
        "plan": msgspec.to_builtins(best.plan),
    }
