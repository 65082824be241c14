"""A profile: the terminal's card, its JSON document, the Stash view, and the sentences that card and page share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

from stallwise.analysis.bottleneck import Bottleneck
from stallwise.analysis.object_store import BucketUse
from stallwise.analysis.observed import ObservedCause
from stallwise.analysis.profile import GradientNoise, GroupWait, LayerTime, OverheadEvent, Profile, Rate
from stallwise.model.statistics.stalls import Share, StashStall, StashStalls, StashTimes, stash_stalls, times_of_parts
from stallwise.report.format import (
    plural,
    show_bounds,
    show_memory,
    show_number,
    show_percent,
    show_probability,
    show_seconds,
    show_usd,
)
from stallwise.report.json import plain, schema
from stallwise.report.terminal import WIDTH
from stallwise.report.view import (
    Bar,
    BarPiece,
    Cell,
    Line,
    Notes,
    PartColumn,
    Row,
    Span,
    TablePart,
    View,
    facts,
    number,
    table,
    view,
)
from stallwise.run.manifest import NodeRecord
from stallwise.sentences import Sentence

MEANINGS = {
    "compute": "forward, backward and update, with nothing to wait for",
    "host": "the device idle because the host is late: launches, synchronisation, Python",
    "copy": "batches going from host to device",
    "interconnect": "ranks of one machine exchanging gradients",
    "network": "machines exchanging gradients",
    "prep": "loader workers preparing batches",
    "fetch": "loader workers waiting for storage",
}
"""The parts of a step, in the order in which they are shown."""
UNASSIGNED = "stalls that are not told from noise"

NOT_MEASURED = "not measured"
_SHOWN_CAUSES = 3

_OVERHEAD_NAMES = {
    "first_batch": "first batch",
    "worker_startup": "worker start-up",
    "epoch_boundary": "epoch boundary",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the split. `words` replaces the bar where there is none to draw."""

    name: str
    start_s: float
    share: Share | None
    words: str | None


def parts_of(profile: Profile) -> tuple[Part, ...]:
    """Every part in order, each starting where the one before ended."""
    parts, start_s = [], 0.0
    for name in MEANINGS:
        share: Share | None = getattr(profile.split, name)
        words = _part_words(profile, name, share)
        parts.append(Part(name, start_s, share, words))
        start_s += share.s if share is not None and words is None else 0.0
    unassigned_s = profile.split.unassigned_s
    if unassigned_s > 0:
        high_s = sum(part.share.high_s for part in parts if part.share is not None and part.words is not None)
        parts.append(Part("unassigned", start_s, Share(unassigned_s, 0.0, high_s), None))
    return tuple(parts)


def part_end_s(part: Part) -> float:
    """Where the part ends at most: the upper end of its interval."""
    share = part.share
    if share is None:
        return part.start_s
    return part.start_s + (share.high_s if math.isfinite(share.high_s) else share.s)


def compute_includes_unmeasured(profile: Profile) -> bool:
    """Whether compute includes a part that exists but was not measured."""
    return any(part.words == NOT_MEASURED for part in parts_of(profile))


def _part_words(profile: Profile, name: str, share: Share | None) -> str | None:
    if share is None:
        return _absence(profile, name)
    if name == "compute" or share.distinguishable:
        return None
    if share.observed and share.high_s == 0:
        return "none was observed"
    bound = f"at most {show_seconds(share.high_s)}" if math.isfinite(share.high_s) else "too few blocks for a bound"
    return f"not distinguishable from zero ({bound})"


def _absence(profile: Profile, name: str) -> str:
    world, split = profile.world, profile.split
    no_gpu = bool(profile.nodes) and not any(node.gpus for node in profile.nodes)
    absent = {
        "host": (no_gpu, "absent: no GPU"),
        "copy": (no_gpu, "absent: no GPU"),
        "interconnect": (
            world.world_size == world.nnodes,
            "absent: one process" if world.world_size == 1 else "absent: one rank per node",
        ),
        "network": (world.nnodes == 1, "absent: one node"),
    }
    lumped = {
        "interconnect": (split.network is not None, "not separated from network"),
        "fetch": (split.prep is not None, "not separated from prep"),
    }
    for case in (absent.get(name), lumped.get(name)):
        if case is not None and case[0]:
            return case[1]
    return NOT_MEASURED


@dataclass(frozen=True, slots=True)
class RateRow:
    """One rate with its name, what it is, and words where it is unknown."""

    name: str
    meaning: str
    rate: Rate | None
    words: str


def rate_rows(profile: Profile) -> tuple[RateRow, ...]:
    """G, P, P per core, F and C."""
    rates = profile.rates
    # Where preparation was seen, so was the loader: storage that left nothing was most likely too fast.
    traceless = NOT_MEASURED if rates.P is None else "too fast to leave a trace, or not measured"
    return (
        RateRow("G", "device with exchange", rates.G, NOT_MEASURED),
        RateRow("P", "all loader workers", rates.P, NOT_MEASURED),
        RateRow("P/core", "one core", rates.P_per_core, NOT_MEASURED),
        RateRow("F", "storage", rates.F, traceless),
        RateRow("C", "page cache", rates.C, NOT_MEASURED if profile.cold_step_s is None else traceless),
    )


def show_rate_bounds(rate: Rate) -> str:
    """269 to 282, or that the bounds are unknown."""
    if not (math.isfinite(rate.low) and math.isfinite(rate.high)):
        return "interval unknown"
    return f"{show_number(rate.low)} to {show_number(rate.high)}"


def script_name(profile: Profile) -> str:
    """The script without its folders."""
    return PurePath(profile.script).name or profile.script


def show_world(profile: Profile) -> str:
    """2 ranks on 1 node · 714 steps measured."""
    world = profile.world
    ranks = f"{plural(world.world_size, 'rank')} on {plural(world.nnodes, 'node')}"
    return f"{ranks} · {plural(profile.steps, 'step')} measured"


def show_speeds(profile: Profile) -> str:
    """Samples and tokens per second, as far as known."""
    rates = [(profile.samples_per_s, "samples/s"), (profile.tokens_per_s, "tokens/s")]
    shown = [f"{show_number(value)} {unit}" for value, unit in rates if value is not None]
    return " · ".join(shown) or "samples/s unknown"


def show_step_bounds(profile: Profile) -> str:
    """The interval of the step."""
    return show_bounds(profile.step_low_s, profile.step_high_s)


def profile_facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """What else was measured: (name, sentence)."""
    if profile.skew is not None:
        longer = show_seconds(profile.skew.s)
        yield "skew", f"rank {profile.skew.rank} is slowest: computes {longer} longer than the mean rank"
    elif profile.world.world_size > 1:
        yield "skew", NOT_MEASURED
    if profile.groups:
        yield "groups", ", ".join(_show_group(group, profile.step_s) for group in profile.groups[:_SHOWN_CAUSES])
    yield "cold step", _cold_step(profile)
    memory = profile.peak_memory_bytes
    peak = "unknown" if memory is None else f"{show_memory(memory)} on the fullest rank"
    yield "peak memory", f"{peak} · MFU {'unknown' if profile.mfu is None else show_percent(profile.mfu)}"
    if profile.observed:
        yield "waits for", ", ".join(_show_cause(cause) for cause in profile.observed[:_SHOWN_CAUSES])
    if profile.noise is not None:
        yield "noise scale", _noise_scale(profile.noise)
    if profile.layers:
        yield "slowest layer", _slowest_layer(profile.layers)
    if profile.bucket is not None:
        yield "bucket", _bucket(profile.bucket)
    if profile.happenings:
        yield "beside steps", ", ".join(_show_overhead(happening) for happening in profile.happenings)


def _show_group(group: GroupWait, step_s: float) -> str:
    """What a group of ranks waits for: `pipeline of ranks 0-1 waits 30 ms (20 %)`."""
    what = "pipeline" if group.kind == "pipeline" else " and ".join(group.calls)
    return f"{what} of ranks {group.ranks} waits {show_seconds(group.s)} ({show_percent(group.s / step_s)})"


def _noise_scale(noise: GradientNoise) -> str:
    """The noise scale, and what twice the batch saves at least: steps fall as 1 + noise/batch."""
    scale = f"{show_number(noise.samples)} samples ({show_number(noise.low)} to {show_number(noise.high)})"
    if not math.isfinite(noise.high):
        scale = f"at least {show_number(noise.low)} samples"
    saved = 0.5 * noise.low / (noise.batch + noise.low)
    return f"{scale}; a batch of {show_number(2 * noise.batch)}: {show_percent(saved)} fewer steps"


def _cold_step(profile: Profile) -> str:
    """The step with cold data files; a cold step that is shorter than the others is noise, not a finding."""
    if profile.cold_step_s is None:
        return NOT_MEASURED
    if profile.cold_step_s <= profile.step_s:
        return f"no longer with data files out of the page cache ({show_seconds(profile.cold_step_s)})"
    return f"{show_seconds(profile.cold_step_s)} with data files out of the page cache"


def _show_cause(cause: ObservedCause) -> str:
    calls = f" ({show_number(cause.calls)} ×)" if cause.calls >= 1 else ""
    return f"{cause.cause} {show_seconds(cause.s)}{calls}" + (f" at {cause.where}" if cause.where else "")


def _bucket(use: BucketUse) -> str:
    total = use.total
    again = f" ({total.retries:,} again)" if total.retries else ""
    cached = "" if not total.hit_share else f", {show_percent(total.hit_share)} of samples from the node's cache"
    cost = f", {show_usd(use.usd)}" if use.usd else ""
    waits = ((total.network, "the store"), (total.cache, "the cache"), (total.decode, "decoding"))
    waited = ", ".join(f"{show_seconds(wait.mean_s)} for {what}" for wait, what in waits if wait.mean_s > 0)
    return f"{total.requests:,} requests{again}{cached}{cost}; a batch waits {waited or 'for nothing'}"


def layer_s(layer: LayerTime) -> float:
    """Forward and backward, as far as known."""
    return layer.forward_s + (layer.backward_s or 0.0)


def _slowest_layer(layers: tuple[LayerTime, ...]) -> str:
    first, all_s = layers[0], sum(layer_s(layer) for layer in layers)
    share = f", {show_percent(layer_s(first) / all_s)} of {plural(len(layers), 'layer')}" if all_s > 0 else ""
    return f"{first.name} ({first.kind}): {show_seconds(layer_s(first))} forward and backward{share}"


def overhead_name(happening: OverheadEvent) -> str:
    """The kind of an overhead event in words: `worker start-up`."""
    return _OVERHEAD_NAMES.get(happening.kind, happening.kind.replace("_", " "))


def _show_overhead(happening: OverheadEvent) -> str:
    return f"{overhead_name(happening)} {happening.count} × {show_seconds(happening.mean_s)}"


def show_predicted_step(profile: Profile) -> str | None:
    """The predicted step with the advice applied."""
    verdict = profile.verdict
    if verdict.predicted_step_s is None:
        return None
    gain = "" if verdict.predicted_gain is None else f", {show_percent(verdict.predicted_gain)} less"
    bounds = show_predicted_bounds(verdict)
    return f"{show_seconds(verdict.predicted_step_s)} a step{f' ({bounds})' if bounds else ''}{gain}"


def show_predicted_bounds(verdict: Bottleneck) -> str | None:
    """The interval of the predicted step; None where it has none."""
    low_s, high_s = verdict.predicted_low_s, verdict.predicted_high_s
    return None if low_s is None or high_s is None else show_bounds(low_s, high_s)


def show_confidence(verdict: Bottleneck) -> str | None:
    """How certain the verdict is, in words."""
    if verdict.confidence is None:
        return None
    chance = show_probability(verdict.confidence)
    if verdict.binds == "inconclusive":
        return f"{chance} for the most probable"
    return f"{chance} certain"


def show_node(node: NodeRecord) -> str:
    """2 cores (AMD EPYC), 23.5 GiB memory, no GPU."""
    cores = "cores unknown" if node.cores is None else plural(node.cores, "core")
    memory = "memory unknown" if node.memory_bytes is None else f"{show_memory(node.memory_bytes)} memory"
    gpus = " + ".join(f"{node.gpus.count(name)} × {name}" for name in dict.fromkeys(node.gpus)) or "no GPU"
    return f"{cores} ({node.cpu_model or 'model unknown'}), {memory}, {gpus}"


def draw(profile: Profile) -> View:
    """The card of a profile."""
    state = Span(profile.state, "good" if profile.state == "complete" else "alarm")
    included = compute_includes_unmeasured(profile)
    return view(
        script_name(profile),
        facts([("step", _headline(profile))]),
        split_table(profile, profile.step_s),
        facts([("", Span("compute includes what was not measured", "dim"))]) if included else None,
        _rates(rate_rows(profile)),
        facts((*profile_facts(profile), *_verdict(profile))),
        Notes("notes", tuple(profile.notes)),
        aside=(Span(f"{show_world(profile)} · ", "dim"), state),
        warning=f"PARTIAL RUN: {profile.partial_reason}" if profile.partial_reason else "",
    )


def _headline(profile: Profile) -> Line:
    return (
        Span(show_seconds(profile.step_s), "strong"),
        Span(f"  ({show_step_bounds(profile)})", "dim"),
        Span(f"   {show_speeds(profile)}", "strong"),
    )


def split_table(profile: Profile, reach_s: float) -> TablePart:
    """The split as stairs over `reach_s`: each bar begins where the one above ends; together they are the step."""
    parts = parts_of(profile)
    observed = any(part.share is not None and part.share.observed and part.words is None for part in parts)
    columns = (
        PartColumn("part"),
        PartColumn("", bar=WIDTH),
        number("time"),
        number("of the step"),
        PartColumn("95 % interval", kind="n dim"),
        *((PartColumn(""),) if observed else ()),
    )
    limit = Cell(bar=Bar(limit=profile.step_s / reach_s))
    whole = (show_seconds(profile.step_s), "100 %", show_step_bounds(profile))
    return table(
        columns,
        (_split_row(part, profile.step_s, reach_s, len(columns) - 1) for part in parts),
        "Each part begins where the one above ends; together they are the step. Lines with ends are 95 % intervals.",
        foot=Row(("step", limit, *whole, *(("",) if observed else ())), only="page"),
        headless=True,
    )


def _split_row(part: Part, step_s: float, reach_s: float, span: int) -> Row:
    name = Cell(part.name, note=MEANINGS.get(part.name, UNASSIGNED), swatch=part.name)
    share = part.share
    if share is None or part.words is not None:
        return Row((name, Cell(Span(part.words or "", "dim"), span=span)))
    start = part.start_s / reach_s
    whisker = (start + share.low_s / reach_s, start + share.high_s / reach_s) if math.isfinite(share.high_s) else None
    return Row(
        (
            name,
            Cell(bar=Bar((BarPiece(start, share.s / reach_s, part.name),), whisker=whisker)),
            Span(show_seconds(share.s), "strong"),
            show_percent(share.s / step_s),
            Span(show_bounds(share.low_s, share.high_s), "dim"),
            *((Span("observed", "dim"),) if span > 4 and share.observed else ("",) if span > 4 else ()),
        )
    )


def _rates(rows: tuple[RateRow, ...]) -> TablePart:
    """One line per rate; the numbers of all rates under each other."""
    columns = (PartColumn("rates"), PartColumn("what each stage could do alone, in samples/s"), number(""), "")
    shown = (
        (row.name, Span(row.meaning, "dim"), Cell(Span(row.words, "dim"), span=2))
        if row.rate is None
        else (
            row.name,
            Span(row.meaning, "dim"),
            Span(show_number(row.rate.samples_per_s), "strong"),
            Span(show_rate_bounds(row.rate), "dim"),
        )
        for row in rows
    )
    return table(columns, shown)


def _verdict(profile: Profile) -> Iterator[tuple[str, Line]]:
    verdict = profile.verdict
    confidence = show_confidence(verdict)
    tone = f"strong {verdict.binds if verdict.binds in MEANINGS else 'warn'}"
    yield "binds", (Span(verdict.binds, tone), f" · {verdict.sentence}", f" ({confidence})" if confidence else "")
    yield "next", Span(verdict.next_step, "strong")
    gain = show_predicted_step(profile)
    if gain is not None:
        yield "predicted", gain


def document(profile: Profile) -> dict[str, Any]:
    """The profile as plain values: None for what is unknown, absent or without bound."""
    return schema("profile") | {field.name: plain(getattr(profile, field.name)) for field in fields(Profile)}


_RUNS = {
    "t0": "one rank alone, data in host memory",
    "t1": "all ranks of one machine, data in host memory",
    "tn": "the same over all machines",
    "t3": "the job as it is, page cache warm",
    "t2": "page cache cold",
}
_SHOWN = {name: name for name in _RUNS} | {"tn": "tN"}
_NAMES = {"interconnect": "interconnect", "network": "network", "prep": "CPU (prep)", "fetch": "disk (fetch)"}


@dataclass(frozen=True, slots=True)
class _Stash:
    times: StashTimes
    stalls: StashStalls
    notes: tuple[Sentence, ...]


def stash_document(profile: Profile) -> dict[str, Any]:
    """Keys: `run_id`, `times`, `stalls` (each `{s, percent, of, of_s}` or null) and `notes`."""
    stash = _stash(profile)
    return {
        **schema("stash"),
        "run_id": profile.run_id,
        "times": {f"{name}_s": plain(stash.times.of(name)) for name in _RUNS},
        "stalls": {name: _record(getattr(stash.stalls, name)) for name in _NAMES},
        "notes": plain(stash.notes),
    }


def draw_stash(profile: Profile) -> View:
    """The stalls, the times they come from, and what they are not."""
    stash = _stash(profile)
    absent = {part.name: part.words or NOT_MEASURED for part in parts_of(profile) if part.share is None}
    percents: list[Row] = []
    for name, shown in _NAMES.items():
        stall: StashStall | None = getattr(stash.stalls, name)
        if stall is None:
            percents.append(Row((shown, "", "", Span(absent.get(name, NOT_MEASURED), "dim"))))
        else:
            formula = f"({_SHOWN[stall.more]} − {_SHOWN[stall.less]}) / {_SHOWN[stall.of]}"
            percents.append(Row((shown, show_percent(stall.percent / 100), show_seconds(stall.s), formula)))
    runs: list[Row] = []
    for name, meaning in _RUNS.items():
        time_s = stash.times.of(name)
        step: Line = Span(NOT_MEASURED, "dim") if time_s is None else show_seconds(time_s)
        runs.append(Row((_SHOWN[name], step, meaning)))
    columns = ("stall", number("per cent"), number("time"), PartColumn("formula", wrap=True))
    return view(
        script_name(profile),
        table(columns, percents, "With the Stash paper's denominators"),
        table(("run", number("step"), PartColumn("what it is", wrap=True)), runs),
        Notes("notes", stash.notes),
        aside=f"{show_world(profile)} · {profile.state}",
        rule=False,
        warning=f"PARTIAL RUN: {profile.partial_reason}" if profile.partial_reason else "",
    )


def _record(stall: StashStall | None) -> dict[str, Any] | None:
    if stall is None:
        return None
    return {"s": stall.s, "percent": stall.percent, "of": stall.of, "of_s": stall.of_s}


def _stash(profile: Profile) -> _Stash:
    seconds = {f"{name}_s": share.s for name, share in profile.split.stalls().items()}
    times = times_of_parts(
        compute_s=profile.split.compute.s + seconds.get("host_s", 0.0),
        copy_s=seconds.get("copy_s"),
        interconnect_s=seconds.get("interconnect_s"),
        network_s=seconds.get("network_s"),
        prep_s=seconds.get("prep_s"),
        fetch_s=seconds.get("fetch_s"),
        cold_step_s=profile.cold_step_s,
        world_size=profile.world.world_size,
        nodes=profile.world.nnodes,
    )
    stalls = stash_stalls(times)
    return _Stash(times, stalls, tuple(_notes(profile, stalls)))


def _notes(profile: Profile, stalls: StashStalls) -> list[Sentence]:
    notes = [
        Sentence(
            "stash.own-wholes", "Each has another run as its whole: they are not parts of one step and do not add up."
        ),
        Sentence(
            "stash.one-launch",
            "Stash launches the job once per run; here all times come from the phases of one launch.",
        ),
    ]
    if stalls.network is not None:
        notes.append(
            Sentence("stash.network", "The network stall is relative to one machine's time and may exceed 100 %.")
        )
    if stalls.fetch is not None and stalls.fetch.s < 0:
        notes.append(
            Sentence(
                "stash.negative-disk",
                "The disk stall is negative because cold steps were no slower than warm ones; Stash has no floor here.",
            )
        )
    fetch = profile.split.fetch
    if fetch is not None and fetch.distinguishable:
        notes.append(
            Sentence(
                "stash.warm-fetch",
                f"With warm files the job still waits {show_seconds(fetch.s)} for storage; Stash counts that as CPU "
                "stall.",
                fetch_s=fetch.s,
            )
        )
    return notes
