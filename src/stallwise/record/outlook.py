"""A question about a job, answered: as it is, under the change, and over numbers of GPUs."""

from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.model.calibrate import OwnLinks, own_links
from stallwise.model.fabric import Fabric, KnownLink
from stallwise.model.overlap import Overlap
from stallwise.model.schedule import Schedule, schedule
from stallwise.model.stalls import Share
from stallwise.model.whatif import (
    POWERS_OF_TWO,
    Answer,
    Change,
    Job,
    assumptions,
    prediction,
    scaling,
    speedup,
    what_if,
)
from stallwise.record.setup import Asked, Setup, own_fabric, setup_of
from stallwise.units import BITS_PER_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One thing that is different; `before` is None where it was not known."""

    name: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLink:
    """A link that the predicted exchange crosses."""

    tier: str
    link: KnownLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What would happen."""

    name: str
    source: str
    measured: Share | None
    """The step as measured."""
    measured_samples_per_s: float | None
    baseline: Answer | None
    """The model's own answer for the job as it is; None where its links are not known."""
    changed: tuple[Changed, ...]
    links: tuple[UsedLink, ...]
    gpus_per_node: int | None
    answer: Answer
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    curve: tuple[Answer, ...]
    curve_ends: str | None
    """Why the curve does not go up to 1,024 GPUs."""
    assumptions: tuple[str, ...]
    schedule: Schedule
    """When each part of the predicted step runs."""

    @property
    def model_error(self) -> float | None:
        """How far the model is off for the job as it is: predicted over measured, less 1."""
        if self.baseline is None or self.measured is None:
            return None
        return self.baseline.step_s / self.measured.s - 1


def outlook_of(
    job: Job, change: Change, asked: Asked, *, curve: bool | None = None, own: OwnLinks | None = None
) -> Outlook:
    """The answer; `curve` None draws it as far as links are known, True insists on all of it.

    `own`: the job's own links, where they have been told before (they are most of the work).
    """
    own = own_links(job, asked.latency_s or 0.0) if own is None else own
    setup = setup_of(job, asked, own)
    baseline = _baseline(job, own)
    answer = what_if(job, change, setup.fabric, setup.gpus)
    points, ends = ((), None) if curve is False else _curve(job, change, setup, own)
    if curve and ends:
        raise InputError(f"The curve cannot be drawn up to {POWERS_OF_TWO[-1]:,} GPUs. {ends}")
    ratios = (None, None, None) if baseline is None else _ratios(answer, baseline)
    return Outlook(
        name=job.name,
        source=job.trace.source,
        measured=job.step,
        measured_samples_per_s=_samples_per_s(job),
        baseline=baseline,
        changed=changes(job, change, setup, own),
        links=_links(setup),
        gpus_per_node=setup.fabric.gpus_per_node if setup.fabric else None,
        answer=answer,
        speedup=ratios[0],
        speedup_low=ratios[1],
        speedup_high=ratios[2],
        curve=points,
        curve_ends=ends,
        assumptions=(*assumptions(job, change, setup.gpus), *setup.said, *_other_gpu(job, change, asked)),
        schedule=schedule(prediction(job, change, setup.fabric, setup.gpus).graph),
    )


def _baseline(job: Job, own: OwnLinks) -> Answer | None:
    if job.gpus != 1 and job.gpus is not None and own == OwnLinks():
        return None
    return what_if(job, Change(), own_fabric(job, own), job.gpus)


def _ratios(answer: Answer, baseline: Answer) -> tuple[float, float, float]:
    middle = speedup(answer, baseline)
    return middle, middle * answer.step_s / answer.high_s, middle * answer.step_s / answer.low_s


def _samples_per_s(job: Job) -> float | None:
    if job.samples is None or job.step is None or job.gpus is None:
        return None
    return job.samples * job.gpus / job.step.s


def _curve(job: Job, change: Change, setup: Setup, own: OwnLinks) -> tuple[tuple[Answer, ...], str | None]:
    """As many points as links are known for, and the sentence that says why there are no more."""
    fabric, gpus = setup.fabric, setup.gpus
    if fabric is None or gpus is None:
        return (), "Exchange times without sizes of gradients say nothing about other numbers of GPUs."
    known, ends = _known_counts(fabric, sorted({*POWERS_OF_TWO, gpus}), own)
    return (scaling(job, change, fabric, known), ends) if len(known) > 1 else ((), ends)


def _known_counts(fabric: Fabric, counts: list[int], own: OwnLinks) -> tuple[list[int], str | None]:
    known: list[int] = []
    for count in counts:
        try:
            used = fabric.used(count)
        except InputError as error:
            return known, str(error)
        if own.vague and any(link.origin == "fitted" for link in used):
            return known, own.vague
        known.append(count)
    return known, None


def changes(job: Job, change: Change, setup: Setup, own: OwnLinks) -> tuple[Changed, ...]:
    """What is different, in words."""
    found = []
    if setup.gpus is not None and setup.fabric is not None:
        before, after = _fleet(job.gpus, job.gpus_per_node), _fleet(setup.gpus, setup.fabric.gpus_per_node)
        if before != after:
            found.append(Changed(name="GPUs", before=before, after=after or ""))
        found += _link_changes(setup.fabric, setup.fabric.used(setup.gpus), own)
    if change.overlap is not None:
        found += _overlap_changes(job.overlap, change.overlap)
    for name, factor in (("batch", change.batch), ("compute", change.compute_speed), ("storage", change.storage_speed)):
        if factor != 1.0:
            found.append(Changed(name=name, before="as measured", after=f"{factor:g} ×"))
    if change.workers is not None:
        before = None if job.work is None else str(job.work.workers)
        found.append(Changed(name="workers", before=before, after=str(change.workers)))
    if change.cached is not None:
        found.append(Changed(name="cache", before="as measured", after=f"{100 * change.cached:g} % of the data"))
    return tuple(found)


def _link_changes(fabric: Fabric, used: tuple[KnownLink, ...], own: OwnLinks) -> list[Changed]:
    tiers = (("link", own.inside, fabric.inside), ("network", own.between, fabric.between))
    return [
        Changed(name=name, before=_rate(before), after=_rate(after))
        for name, before, after in tiers
        if before is not None and after is not None and before != after and after in used
    ]


def _rate(link: KnownLink) -> str:
    rate = link.bytes_per_s
    return "any rate" if rate is None else f"{rate * BITS_PER_BYTE / 1e9:.3g} Gb/s"


def _fleet(gpus: int | None, per_node: int) -> str | None:
    if gpus is None:
        return None
    nodes = -(-gpus // per_node)
    return f"{gpus:,} on {nodes:,} node{'s' if nodes > 1 else ''}"


def _overlap_changes(before: Overlap, after: Overlap) -> list[Changed]:
    shown = (
        ("overlap", before.scheme, after.scheme),
        ("buckets", f"{before.bucket_bytes / 2**20:g} MiB", f"{after.bucket_bytes / 2**20:.4g} MiB"),
        ("fusion", f"{before.fusion_bytes / 2**20:g} MiB", f"{after.fusion_bytes / 2**20:.4g} MiB"),
        ("cycle", f"{before.cycle_s * 1e3:g} ms", f"{after.cycle_s * 1e3:g} ms"),
        ("slices", _slices(before), _slices(after)),
        ("through", before.through, after.through),
        ("bytes sent", f"{100 * before.compression:g} %", f"{100 * after.compression:g} %"),
        ("gradients", _gradients(before), _gradients(after)),
        ("accumulate", str(before.accumulate), str(after.accumulate)),
    )
    return [Changed(name=name, before=old, after=new) for name, old, new in shown if old != new]


def _slices(overlap: Overlap) -> str:
    return "as published" if overlap.slice_bytes is None else f"{overlap.slice_bytes / 2**20:.4g} MiB"


def _gradients(overlap: Overlap) -> str:
    return "whole" if overlap.sparse is None else f"{overlap.sparse.kind}, {100 * overlap.sparse.density:g} %"


def _links(setup: Setup) -> tuple[UsedLink, ...]:
    if setup.fabric is None or setup.gpus is None:
        return ()
    used = setup.fabric.used(setup.gpus)
    named = (("inside a node", setup.fabric.inside), ("between nodes", setup.fabric.between))
    return tuple(UsedLink(tier=tier, link=link) for tier, link in named if link is not None and link in used)


def _other_gpu(job: Job, change: Change, asked: Asked) -> tuple[str, ...]:
    if asked.instance is None or change.compute_speed != 1.0:
        return ()
    gpu = asked.instance.gpu.name
    return (f"Compute stays as measured: what another GPU ({gpu}) would make of it is for --compute to say.",)
