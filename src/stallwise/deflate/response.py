"""How a recorded job responds to fewer resources: its demand from the run, and the outlook that is shown."""

import math
from dataclasses import dataclass, replace

from stallwise.analysis.analysis import Analysis
from stallwise.analysis.split import StepMeasurement
from stallwise.analysis.target import own_fabric
from stallwise.errors import InputError
from stallwise.model.deflation import (
    RESOURCES,
    DeflationChoice,
    DeflationCurve,
    DeflationPoint,
    DeflationResponse,
    NodeMemory,
    Pressure,
    Resource,
    ResourceFractions,
    deflate_or_lose,
)
from stallwise.run import phases
from stallwise.run.reader import Run
from stallwise.sentences import Sentence

_SPINS = 0.95
"""A process that is busy for at least this fraction of its step may spin."""
LEVELS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What deflating a job would do. `point` and what follows are for the request `asked`, where there is one."""

    name: str
    source: str
    ranks: int
    cores: float
    measured_s: float | None
    step_s: float
    curves: tuple[DeflationCurve, ...]
    unknown: tuple[Resource, ...]
    asked: ResourceFractions | None
    point: DeflationPoint | None
    speed: float | None
    cooperative: DeflationPoint | None
    cooperative_speed: float | None
    parts: tuple[float, ...]
    pressure: Pressure | None
    choice: DeflationChoice | None
    assumptions: tuple[Sentence, ...]


def response_of(analysis: Analysis, dataset_bytes: float | None = None) -> DeflationResponse:
    """Return the response of the rank that its loader serves worst, as measured."""
    run = analysis.run
    job, measured, manifest = analysis.job, analysis.measured, run.manifest
    fabric = None if job.gpus in (None, 1) else own_fabric(job, analysis.links)
    per_node = max(1, min(job.gpus or 1, job.gpus_per_node))
    if job.cores_per_node is None:
        raise InputError(f"The run at {run.path} does not say the number of cores of its machine. Profile it again.")
    cpu_s = measured.data.cpu_s_per_sample * job.samples if measured.data is not None and job.samples else 0.0
    memory = None
    sizes = [node.memory_bytes for node in manifest.nodes if node.memory_bytes]
    if dataset_bytes is not None:
        if not sizes:
            raise InputError(f"The run at {run.path} does not say how much memory its machine has. Profile it again.")
        peak = max((rank.peak_memory_bytes or 0 for rank in manifest.ranks), default=0)
        memory = NodeMemory(bytes=min(sizes), used_bytes=peak * per_node, dataset_bytes=dataset_bytes)
    response = DeflationResponse(
        job=job,
        fabric=fabric,
        cores=job.cores_per_node / per_node,
        cpu_s=cpu_s,
        process_s=_process_s(run, 0.0 if job.work is None or job.work.workers else cpu_s),
        memory=memory,
        on_gpu=any(node.gpus for node in manifest.nodes),
    )
    return replace(response, handing_s=_handing_s(response, measured))


def _handing_s(response: DeflationResponse, measured: StepMeasurement) -> float:
    """Return the measured data stall of a loader that keeps up: the step's time beyond the modelled one."""
    work, whole = response.job.work, response.at(ResourceFractions())
    if response.job.step is None or work is None or not work.workers or whole.binds != "consume":
        return 0.0
    stalls = (measured.split.prep, measured.split.fetch)
    stall_s = sum(stall.s for stall in stalls if stall is not None)
    return max(0.0, min(stall_s, response.job.step.s - whole.step_s))


def _process_s(run: Run, loads_s: float) -> float:
    """Return core-seconds of a rank's own process per step as is, less what it spends on loading by itself.

    Also beside a GPU, where launching kernels is most of it. A process that spins there while it waits looks busier
    than it need be; at worst the predicted knee is a core too high.
    """
    steps = run.table("steps")
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.AS_IS))
    busiest_s: float | None = kept.group_by("rank").mean("cpu_s").max()
    return 0.0 if busiest_s is None else max(0.0, busiest_s - loads_s)


def outlook_of(response: DeflationResponse, fractions: ResourceFractions | None, pressure: Pressure | None) -> Outlook:
    """Return every curve that the run determines, and the job's step with the requested fractions."""
    known = response.resources
    for resource in RESOURCES:
        if fractions is not None and getattr(fractions, resource) < 1 and resource not in known:
            response.curve(resource, ())  # raises with the reason
    whole_s = response.at(ResourceFractions()).step_s
    point = None if fractions is None else response.at(fractions)
    together, parts = (None, ()) if fractions is None or response.ranks == 1 else response.cooperative(fractions)
    speed = None if point is None else whole_s / point.step_s
    cooperative_speed = None if together is None else whole_s / together.step_s
    best = max((one for one in (speed, cooperative_speed) if one is not None), default=None)
    return Outlook(
        name=response.job.name,
        source=response.job.trace.source,
        ranks=response.ranks,
        cores=response.cores,
        measured_s=response.job.step.s if response.job.step else None,
        step_s=whole_s,
        curves=tuple(response.curve(resource, LEVELS) for resource in known),
        unknown=tuple(one for one in RESOURCES if one not in known and (one != "gpu" or response.on_gpu)),
        asked=fractions,
        point=point,
        speed=speed,
        cooperative=together,
        cooperative_speed=cooperative_speed,
        parts=parts,
        pressure=pressure,
        choice=None if pressure is None or best is None else deflate_or_lose(best, response.ranks, pressure),
        assumptions=_assumptions(response),
    )


def _assumptions(response: DeflationResponse) -> tuple[Sentence, ...]:
    notes = [
        Sentence(
            "deflate.one-rank",
            "One rank is deflated; the others wait for it, or take over a part of its batch (cooperative).",
        ),
    ]
    if response.process_s == 0:
        notes.append(
            Sentence(
                "deflate.loader-cores",
                "The loader's work on cores is known; what the training process itself needs there comes on top.",
            )
        )
    elif response.process_s >= _SPINS * response.at(ResourceFractions()).step_s:
        notes.append(
            Sentence(
                "deflate.busy-core",
                "The training process keeps a core busy all the time. Where it only spins, one more can go.",
            )
        )
    if response.job.work is not None:
        notes.append(
            Sentence(
                "deflate.link", "All time the loader was blocked for is taken to come over the link that is throttled."
            )
        )
    if response.memory is not None and math.isfinite(response.memory.bytes):
        notes.append(
            Sentence(
                "deflate.file-cache",
                "Memory that processes do not hold is taken to cache files, evicted at random (model.cache).",
            )
        )
    return (*notes, *response.job.assumptions)
