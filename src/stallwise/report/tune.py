"""A tuning on one screen: what binds, what was predicted and measured, and the lines to paste."""

from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_number, show_percent, show_seconds
from stallwise.tune.knobs import Loader
from stallwise.tune.result import Tuning
from stallwise.tune.trial import Tried

_ARGUMENTS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


def draw(found: Tuning) -> RenderableType:
    """All of it."""
    sections: list[RenderableType] = [_heading(found), _found(found)]
    if found.proposals:
        sections += [Text(), _attempts(found)]
    if found.kept.given():
        sections += [Text(), _outcome(found), Text(), _patch(found)]
    if found.advice:
        sections += [Text(), _advice(found)]
    if found.notes:
        rows = labelled()
        for number, note in enumerate(found.notes):
            rows.add_row("notes" if number == 0 else "", Text(note, style="dim"))
        sections += [Text(), rows]
    return Constrain(Group(*sections), WIDTH)


def _heading(found: Tuning) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    name = PurePath(found.profile.script).name
    line.add_row(
        Text(f"{name}: {_title(found)}", style="bold"),
        Text(f"{show_seconds(found.seconds)} in all", style="dim"),
    )
    return Group(line, Rule(style="dim"))


def _title(found: Tuning) -> str:
    if found.dry_run:
        return "settings predicted, none tried"
    return "settings tried" if found.attempts else "no setting tried"


def _found(found: Tuning) -> Table:
    profile, rows = found.profile, labelled()
    speed = "" if profile.samples_per_s is None else f", {show_number(profile.samples_per_s)} samples/s"
    rows.add_row("as it is", Text(f"{show_seconds(profile.step_s)} a step{speed}; measured"))
    rows.add_row("binds", Text(f"{profile.verdict.binds} · {profile.verdict.sentence}"))
    rows.add_row("answer", Text(show_answer(found), style="bold"))
    return rows


def show_answer(found: Tuning) -> str:
    """One sentence."""
    if not found.proposals:
        return "No setting is predicted to take 5 % off the step. Nothing was tried; change nothing."
    if found.dry_run:
        best = found.proposals[0]
        return f"{best.knobs.shown()} is predicted to take {show_percent(best.gain)} off the step; not tried."
    if not found.attempts:
        return "Nothing could be tried; the notes below say why."
    if not found.kept.given():
        return "Nothing that was tried helped beyond noise. Change nothing."
    ranks = " per rank" if found.profile.world.world_size > 1 and found.kept.num_workers is not None else ""
    return f"{found.kept.shown()}{ranks}: {1 / (1 - (found.gain or 0.0)):.3g} × as fast, measured."


def _attempts(found: Tuning) -> Table:
    rows = table("setting", ("predicted", "right"), "interval", ("measured", "right"), "rounds", "", title=None)
    tried = {one.proposal: one for one in found.attempts}
    for proposal in found.proposals:
        attempt = tried.get(proposal)
        rows.add_row(
            proposal.knobs.shown(),
            show_percent(proposal.gain),
            f"{show_percent(proposal.low)} to {show_percent(proposal.high)}",
            "not tried" if attempt is None else show_percent(attempt.gain),
            "" if attempt is None else f"{show_percent(min(attempt.gains))} to {show_percent(max(attempt.gains))}",
            Text("kept", style="bold green") if attempt is not None and attempt.kept else "",
        )
    rows.title = "part of the step that goes away"
    rows.title_style = "dim"
    return rows


def _outcome(found: Tuning) -> Table:
    rows = labelled()
    if found.before is not None and found.after is not None:
        rows.add_row("before", Text(_speed(found, found.before)))
        rows.add_row("after", Text(_speed(found, found.after), style="bold"))
    if found.gain is not None and found.predicted_gain is not None:
        said = f"{show_percent(found.predicted_gain)} of the step predicted, {show_percent(found.gain)} measured"
        rows.add_row("gain", Text(said))
    return rows


def _speed(found: Tuning, one: Tried) -> str:
    profile = found.profile
    spread = f"{len(one.rounds)} rounds, {show_seconds(min(one.rounds))} to {show_seconds(max(one.rounds))}"
    samples = ""
    if profile.samples_per_s is not None:
        samples = f"   {show_number(profile.samples_per_s * profile.step_s / one.step_s)} samples/s"
    return f"{show_seconds(one.step_s)} a step{samples}   ({spread})"


def _patch(found: Tuning) -> Table:
    rows = labelled()
    for number, line in enumerate(patch(found)):
        rows.add_row("to paste" if number == 0 else "", Text(line))
    return rows


def patch(found: Tuning) -> tuple[str, ...]:
    """Lines for the script: where, and what."""
    kept, loader = found.kept, found.loader
    lines: list[str] = []
    arguments = [f"{name}={value}" for name, value in kept.given().items() if name in _ARGUMENTS]
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
    return tuple(lines)


def _ahead(loader: Loader | None) -> str:
    if loader is not None and loader.sampler == "RandomSampler":
        return "sampler=Lookahead(RandomSampler(dataset))"
    if loader is not None and loader.sampler == "SequentialSampler":
        return "sampler=Lookahead(SequentialSampler(dataset))"
    return "sampler=Lookahead(sampler)"


def _where(loader: Loader | None) -> str:
    """The line of the script; a framework's own line would help nobody."""
    if loader is None or any(part in loader.site for part in ("site-packages", "dist-packages")):
        return "where the script makes its loader"
    file, _, line = loader.site.split(" ")[0].rpartition(":")
    return f"{PurePath(file).name}, line {line}"


def _advice(found: Tuning) -> Group:
    rows = labelled()
    for number, one in enumerate(found.advice):
        gain = f"predicted {show_percent(one.gain)} of the step ({show_percent(one.low)} to {show_percent(one.high)})"
        changes = "; changes the training" if one.alters else ""
        rows.add_row("with code" if number == 0 else "", Text(f"{one.text} {gain}, not tried{changes}."))
    return Group(rows)
