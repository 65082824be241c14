"""What card and page say alike about a profile: the parts of a step, the rates, words for what is absent."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from stallwise.model.stalls import Share
from stallwise.record.bucket import BucketUse
from stallwise.record.profile import Happening, LayerTime, Profile, Rate
from stallwise.report.text import show_bounds, show_memory, show_number, show_percent, show_seconds
from stallwise.run.manifest import NodeRecord

MEANINGS = {
    "compute": "forward, backward and update, with nothing to wait for",
    "copy": "batches going from host to device",
    "interconnect": "ranks of one machine exchanging gradients",
    "network": "machines exchanging gradients",
    "prep": "loader workers preparing batches",
    "fetch": "loader workers waiting for storage",
}
"""The parts of a step, in the order in which they are shown."""

NOT_MEASURED = "not measured"

_HAPPENINGS = {"first_batch": "first batch", "worker_startup": "worker start-up", "epoch_boundary": "epoch boundary"}


@dataclass(frozen=True, slots=True)
class Part:
    """One row of the split. `words` stands in the place of a bar where there is none worth drawing."""

    name: str
    start_s: float
    share: Share | None
    words: str | None


def parts_of(profile: Profile) -> tuple[Part, ...]:
    """Every part in order, each starting where the one before ended."""
    parts, start_s = [], 0.0
    for name in MEANINGS:
        share: Share | None = getattr(profile.split, name)
        parts.append(Part(name, start_s, share, _words(profile, name, share)))
        start_s += share.s if share is not None else 0.0
    return tuple(parts)


def end_s(part: Part) -> float:
    """Where the part ends at most: the upper end of its interval."""
    share = part.share
    if share is None:
        return part.start_s
    return part.start_s + (share.high_s if math.isfinite(share.high_s) else share.s)


def lumped(profile: Profile) -> bool:
    """Whether compute holds something that was there but not measured."""
    return any(part.words == NOT_MEASURED for part in parts_of(profile))


def _words(profile: Profile, name: str, share: Share | None) -> str | None:
    if share is None:
        return _absence(profile, name)
    if name == "compute" or share.distinguishable:
        return None
    bound = f"at most {show_seconds(share.high_s)}" if math.isfinite(share.high_s) else "too few blocks for a bound"
    return f"not distinguishable from zero ({bound})"


def _absence(profile: Profile, name: str) -> str:
    world, split = profile.world, profile.split
    absent = {
        "copy": (bool(profile.nodes) and not any(node.gpus for node in profile.nodes), "absent: no GPU"),
        "interconnect": (
            world.world_size == world.nnodes,
            "absent: one process" if world.world_size == 1 else "absent: one rank per node",
        ),
        "network": (world.nnodes == 1, "absent: one node"),
    }
    told = {
        "interconnect": (split.network is not None, "not separated from network"),
        "fetch": (split.prep is not None, "not separated from prep"),
    }
    for case in (absent.get(name), told.get(name)):
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
    traceless = NOT_MEASURED if rates.P is None else "no trace: too fast, or not measured"
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


def title(profile: Profile) -> str:
    """The script without its folders."""
    return PurePath(profile.script).name or profile.script


def setting(profile: Profile) -> str:
    """2 ranks on 1 node · 714 steps measured."""
    world = profile.world
    ranks = f"{_plural(world.world_size, 'rank')} on {_plural(world.nnodes, 'node')}"
    return f"{ranks} · {_plural(profile.steps, 'step')} measured"


def speeds(profile: Profile) -> str:
    """Samples and tokens per second, as far as known."""
    known = [(profile.samples_per_s, "samples/s"), (profile.tokens_per_s, "tokens/s")]
    said = [f"{show_number(value)} {unit}" for value, unit in known if value is not None]
    return " · ".join(said) or "samples/s unknown"


def step_bounds(profile: Profile) -> str:
    """The interval of the step."""
    return show_bounds(profile.step_low_s, profile.step_high_s)


def facts(profile: Profile) -> Iterator[tuple[str, str]]:
    """What else was measured: (name, sentence)."""
    if profile.skew is not None:
        longer = show_seconds(profile.skew.s)
        yield "skew", f"rank {profile.skew.rank} is slowest: computes {longer} longer than the mean rank"
    elif profile.world.world_size > 1:
        yield "skew", NOT_MEASURED
    cold = profile.cold_step_s
    yield "cold step", NOT_MEASURED if cold is None else f"{show_seconds(cold)} with data files out of the page cache"
    memory = profile.peak_memory_bytes
    peak = "unknown" if memory is None else f"{show_memory(memory)} on the fullest rank"
    yield "peak memory", f"{peak} · MFU {'unknown' if profile.mfu is None else show_percent(profile.mfu)}"
    if profile.layers:
        yield "slowest layer", _slowest_layer(profile.layers)
    if profile.bucket is not None:
        yield "bucket", _bucket(profile.bucket)
    if profile.happenings:
        yield "beside steps", ", ".join(_happening(happening) for happening in profile.happenings)


def _bucket(use: BucketUse) -> str:
    total = use.total
    again = f" ({total.retries:,} again)" if total.retries else ""
    cached = "" if not total.hit_share else f", {show_percent(total.hit_share)} of samples from the node's cache"
    cost = f", {use.usd:.2g} dollars" if use.usd else ""
    waits = ((total.network, "the store"), (total.cache, "the cache"), (total.decode, "decoding"))
    said = ", ".join(f"{show_seconds(wait.mean_s)} for {what}" for wait, what in waits if wait.mean_s > 0)
    return f"{total.requests:,} requests{again}{cached}{cost}; a batch waits {said or 'for nothing'}"


def layer_s(layer: LayerTime) -> float:
    """Forward and backward, as far as known."""
    return layer.forward_s + (layer.backward_s or 0.0)


def _slowest_layer(layers: tuple[LayerTime, ...]) -> str:
    first, all_s = layers[0], sum(layer_s(layer) for layer in layers)
    share = f", {show_percent(layer_s(first) / all_s)} of {_plural(len(layers), 'layer')}" if all_s > 0 else ""
    return f"{first.name} ({first.kind}): {show_seconds(layer_s(first))} forward and backward{share}"


def happening_name(happening: Happening) -> str:
    """`worker_startup` as people say it."""
    return _HAPPENINGS.get(happening.kind, happening.kind.replace("_", " "))


def _happening(happening: Happening) -> str:
    return f"{happening_name(happening)} {happening.count} × {show_seconds(happening.mean_s)}"


def predicted(profile: Profile) -> str | None:
    """What the next step should bring."""
    verdict = profile.verdict
    if verdict.predicted_step_s is None:
        return None
    gain = "" if verdict.predicted_gain is None else f", {show_percent(verdict.predicted_gain)} less"
    return f"{show_seconds(verdict.predicted_step_s)} a step{gain}"


def machine(node: NodeRecord) -> str:
    """2 cores (AMD EPYC), 23.5 GiB memory, no GPU."""
    cores = "cores unknown" if node.cores is None else _plural(node.cores, "core")
    memory = "memory unknown" if node.memory_bytes is None else f"{show_memory(node.memory_bytes)} memory"
    gpus = " + ".join(f"{node.gpus.count(name)} × {name}" for name in dict.fromkeys(node.gpus)) or "no GPU"
    return f"{cores} ({node.cpu_model or 'model unknown'}), {memory}, {gpus}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
