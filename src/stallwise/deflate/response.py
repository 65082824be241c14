"""From a run to the job's response to less: its demand as the record has it, and the outlook that is shown."""

import math
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.calibrate import own_links
from stallwise.model.deflation import (
    RESOURCES,
    Choice,
    Curve,
    Kept,
    Memory,
    Point,
    Pressure,
    Resource,
    Response,
    choose,
)
from stallwise.record import plan
from stallwise.record.job import job_of
from stallwise.record.setup import own_fabric
from stallwise.record.split import Measured, measure
from stallwise.run.reader import Run

_SPINS = 0.95
"""A process that is busy for this part of its step, or more, may spin."""
LEVELS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What deflating a job would do. `point` and what follows are for what was asked, where something was."""

    name: str
    source: str
    ranks: int
    cores: float
    measured_s: float | None
    step_s: float
    curves: tuple[Curve, ...]
    unknown: tuple[Resource, ...]
    asked: Kept | None
    point: Point | None
    speed: float | None
    cooperative: Point | None
    cooperative_speed: float | None
    parts: tuple[float, ...]
    pressure: Pressure | None
    choice: Choice | None
    assumptions: tuple[str, ...]


def response_of(run: Run, dataset_bytes: float | None = None) -> Response:
    """The rank that its loader serves worst, as measured."""
    job, found, manifest = job_of(run), measure(run), run.manifest
    fabric = None if job.gpus in (None, 1) else own_fabric(job, own_links(job))
    per_node = max(1, min(job.gpus or 1, job.gpus_per_node))
    if job.cores_per_node is None:
        raise InputError(f"The run at {run.path} does not say how many cores its machine has. Profile it again.")
    cpu_s = found.data.cpu_s_per_sample * job.samples if found.data is not None and job.samples else 0.0
    memory = None
    sizes = [node.memory_bytes for node in manifest.nodes if node.memory_bytes]
    if dataset_bytes is not None:
        if not sizes:
            raise InputError(f"The run at {run.path} does not say how much memory its machine has. Profile it again.")
        peak = max((rank.peak_memory_bytes or 0 for rank in manifest.ranks), default=0)
        memory = Memory(bytes=min(sizes), used_bytes=peak * per_node, dataset_bytes=dataset_bytes)
    made = Response(
        job=job,
        fabric=fabric,
        cores=job.cores_per_node / per_node,
        cpu_s=cpu_s,
        process_s=_process_s(run, 0.0 if job.work is None or job.work.workers else cpu_s),
        memory=memory,
    )
    return replace(made, handing_s=_handing_s(made, found))


def _handing_s(made: Response, found: Measured) -> float:
    """The measured data stall of a loader that keeps up: what the step takes beyond what it should."""
    work, whole = made.job.work, made.at(Kept())
    if made.job.step is None or work is None or not work.workers or whole.binds != "consume":
        return 0.0
    stalls = (found.split.prep, found.split.fetch)
    stall_s = sum(stall.s for stall in stalls if stall is not None)
    return max(0.0, min(stall_s, made.job.step.s - whole.step_s))


def _process_s(run: Run, loads_s: float) -> float:
    """Core-seconds of a rank's own process per step as is, less what it spends on loading by itself.

    Also beside a GPU, where launching kernels is most of it. A process that spins there while it waits looks busier
    than it need be; at worst the knee is said to be higher by a core.
    """
    import polars as pl

    steps = run.table("steps").filter((pl.col("phase") == plan.AS_IS) & pl.col("kept") & pl.col("cpu_s").is_not_null())
    if not steps.height:
        return 0.0
    return max(0.0, float(steps.group_by("rank").agg(pl.col("cpu_s").mean()).get_column("cpu_s").max()) - loads_s)  # type: ignore[arg-type]


def outlook_of(response: Response, asked: Kept | None, pressure: Pressure | None) -> Outlook:
    """Every curve that the run can tell, and what becomes of the job with what is asked for."""
    known = response.known
    for resource in RESOURCES:
        if asked is not None and getattr(asked, resource) < 1 and resource not in known:
            response.curve(resource, ())  # says why not
    whole_s = response.at(Kept()).step_s
    point = None if asked is None else response.at(asked)
    together, parts = (None, ()) if asked is None or response.ranks == 1 else response.cooperative(asked)
    kept = None if point is None else whole_s / point.step_s
    helped = None if together is None else whole_s / together.step_s
    best = max((speed for speed in (kept, helped) if speed is not None), default=None)
    return Outlook(
        name=response.job.name,
        source=response.job.trace.source,
        ranks=response.ranks,
        cores=response.cores,
        measured_s=response.job.step.s if response.job.step else None,
        step_s=whole_s,
        curves=tuple(response.curve(resource, LEVELS) for resource in known),
        unknown=tuple(resource for resource in RESOURCES if resource not in known),
        asked=asked,
        point=point,
        speed=kept,
        cooperative=together,
        cooperative_speed=helped,
        parts=parts,
        pressure=pressure,
        choice=None if pressure is None or best is None else choose(best, response.ranks, pressure),
        assumptions=_assumptions(response),
    )


def _assumptions(response: Response) -> tuple[str, ...]:
    said = [
        "One rank is deflated; the others wait for it, or take over a part of its batch (cooperative).",
    ]
    if response.process_s == 0:
        said.append("The loader's work on cores is known; what the training process itself needs there comes on top.")
    elif response.process_s >= _SPINS * response.at(Kept()).step_s:
        said.append("The training process keeps a core busy all the time. Where it only spins, one more can go.")
    if response.job.work is not None:
        said.append("All time the loader was blocked for is taken to come over the link that is throttled.")
    if response.memory is not None and math.isfinite(response.memory.bytes):
        said.append("Memory that processes do not hold is taken to cache files, evicted at random (model.cache).")
    return (*said, *response.job.assumptions)
