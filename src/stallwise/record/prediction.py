"""A run's job on another GPU: compute taken there, then the graph, the memory it needs, and the whole job.

Compute is scaled by `compute_transfer` from what the run measured on its own GPU. A run on processors has measured
nothing about GPUs: then only what it counted (FLOPs, bytes, kernels) is used, and the interval says so.
"""

import math
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.fitted import Fitted, known, load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute import Device
from stallwise.model.compute_transfer import StepWork, parts, reach, transferred_s
from stallwise.model.conformal import Spread, choose
from stallwise.model.epoch import Plan, Step, Whole, whole
from stallwise.model.memory import STATE_BYTES, Footprint, Need, fewest_shards, largest_batch, need, usable_bytes
from stallwise.model.stalls import Share
from stallwise.model.whatif import Change, Job
from stallwise.record.devices import device_of
from stallwise.record.job import job_of
from stallwise.record.outlook import Outlook, outlook_of
from stallwise.record.profile import profile_of
from stallwise.record.setup import Asked
from stallwise.run.manifest import Manifest, ModelRecord
from stallwise.run.reader import Run

# Operators of a layer, forward, backward and update; a rough count where the run has none.
_KERNELS_PER_LAYER = 10.0
_HALVES = ("fp16", "bf16")
_AGAIN = "Profile the job again without --light."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks for."""

    gpu: Gpu
    asked: Asked
    batch: float = 1.0
    """Of each GPU, as a factor of the measured one."""
    optimizer: str = "adam"
    samples: float | None = None
    """Of an epoch."""
    epochs: float = 1.0
    startup_s: float = 0.0
    evaluation_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_every_s: float | None = None
    usd_per_h: float | None = None
    """Of one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The job on the other GPU."""

    source: str | None
    """The GPU of the run; None: it ran on processors."""
    target: Gpu
    precision: str
    compute: Share
    """Predicted seconds of compute in a step, with its 80 % interval."""
    measured_compute_s: float
    outlook: Outlook
    memory: Need
    room_bytes: float
    batch_fits: float | None
    """The largest batch, as a factor of the measured one; None: not even the weights fit."""
    shards: int | None
    """Ranks that FSDP must shard over to fit; None: no number of them helps."""
    sharded_over: int
    whole: Whole | None
    machines: int
    usd: tuple[float, float, float] | None
    assumptions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether it fits as asked."""
        return self.memory.whole <= self.room_bytes


def predict_run(run: Run, wanted: Wanted, catalog: Catalog) -> Prediction:
    """The answer; an `InputError` where the run lacks what it is made from."""
    job, manifest = job_of(run), run.manifest
    model = manifest.model
    if model is None or not model.flops_per_step:
        raise InputError(
            f"The run at {run.path} counted no FLOPs, which compute on another GPU is predicted from. "
            + ("Record the trace with record_shapes=True." if manifest.job.launcher == "trace" else _AGAIN)
        )
    measured_s = profile_of(run).split.compute.s
    source = _source(manifest, catalog)
    precision = _precision(model, wanted.gpu)
    compute, sentence = _compute(measured_s, model, source, wanted, load_fitted("transfer"))
    # How much the processors' own compute varied says nothing about a GPU.
    known = job if source is not None else replace(job, compute_factors=None)
    outlook = _outlook(known, compute, measured_s, wanted)
    shards = (outlook.answer.gpus or 1) if model.sharded else 1
    footprint = footprint_of(model, wanted.optimizer)
    machines = -(-(outlook.answer.gpus or 1) // (outlook.gpus_per_node or 1))
    job_whole = _whole(job, outlook, wanted)
    return Prediction(
        source=None if source is None else source.name,
        target=wanted.gpu,
        precision=precision,
        compute=compute,
        measured_compute_s=measured_s,
        outlook=outlook,
        memory=need(footprint, batch=wanted.batch, shards=shards),
        room_bytes=usable_bytes(wanted.gpu.memory_bytes),
        batch_fits=largest_batch(footprint, wanted.gpu.memory_bytes, shards=shards),
        shards=fewest_shards(footprint, wanted.gpu.memory_bytes, batch=wanted.batch),
        sharded_over=shards,
        whole=job_whole,
        machines=machines,
        usd=job_whole.usd(wanted.usd_per_h, machines) if job_whole and wanted.usd_per_h else None,
        assumptions=(sentence, *_said(model, wanted), *outlook.assumptions),
    )


def _source(manifest: Manifest, catalog: Catalog) -> Gpu | None:
    names = {name for node in manifest.nodes for name in node.gpus}
    if not names:
        return None
    if len(names) > 1:
        raise InputError(f"The run used several kinds of GPU ({', '.join(sorted(names))}); none can stand for all.")
    name = names.pop()
    found = catalog.gpu_of_driver_name(name)
    if found is None:
        raise InputError(f"The run's own GPU, {name}, is not in the catalog. Add it to your own gpus.csv.")
    return found


def _precision(model: ModelRecord, gpu: Gpu) -> str:
    """What multiplies there: TF32 and bf16 only where the GPU has them."""
    chosen = model.precision or "fp32"
    if chosen == "tf32" and gpu.tf32_flop_per_s is None:
        return "fp32"
    return "fp16" if chosen == "bf16" and gpu.bf16_flop_per_s is None else chosen


def _compute(
    measured_s: float, model: ModelRecord, source: Gpu | None, wanted: Wanted, fitted: Fitted
) -> tuple[Share, str]:
    """Seconds of compute in a step at the measured batch, and a sentence on how they came about."""
    work = StepWork(
        flop=model.flops_per_step or 0.0,
        activation_bytes=float(model.activation_bytes or 0) * (model.micro_batches or 1),
        parameters=model.parameters,
        kernels=_KERNELS_PER_LAYER * model.layers * (model.micro_batches or 1),
    )
    target = device_of(wanted.gpu, _kind(_precision(model, wanted.gpu)))
    if source is None:
        seconds = parts(work, target, fitted.constants).whole_s
        spread = Spread(*fitted.spreads["features"])
        said = "The run has seen no GPU: compute is that of its FLOPs, bytes and kernels alone, and much less certain."
    elif source.name == wanted.gpu.name:
        seconds, spread, said = measured_s, Spread(0.0, 0.0), "Compute is as measured: the GPU is the run's own."
    else:
        here = device_of(source, _kind(_precision(model, source)))
        seconds = transferred_s(measured_s, work, here, target, fitted.constants)
        spread = _spread(here, target, fitted)
        said = f"Compute is scaled from {source.name} by arithmetic, memory and starting of kernels, each by its limit."
    low, high = spread.around(seconds)
    return Share(seconds, low, high), said


def _spread(source: Device, target: Device, fitted: Fitted) -> Spread:
    """How well a step is taken from one GPU to the other: both measured by others or not, alike or not."""
    seen = {source.name, target.name} <= known(fitted, "gpu")
    case = f"measured|{'known' if seen else 'new'} gpu"
    spreads = {key: Spread(*found) for key, found in fitted.spreads.items()}
    return choose(spreads, f"{case}|{reach(source, target)}", case, "measured", "")


def _kind(precision: str) -> str:
    """FP32 that may not use TF32 stays FP32."""
    return "ieee" if precision in ("fp32", "fp64") else precision


def _outlook(job: Job, compute: Share, measured_s: float, wanted: Wanted) -> Outlook:
    """The graph with compute at its new speed and the interval of both, measuring and scaling."""
    own = job.compute_factors or (1.0, 1.0)
    factors = (own[0] * compute.low_s / compute.s, own[1] * compute.high_s / compute.s)
    asked = wanted.asked
    if asked.link_bytes_per_s is None and asked.instance is None and asked.machine is None:
        asked = replace(asked, link_bytes_per_s=link_of_gpu(wanted.gpu))
    change = Change(compute_speed=measured_s / compute.s, batch=wanted.batch)
    return outlook_of(replace(job, compute_factors=factors), change, asked, curve=False)


def link_of_gpu(gpu: Gpu) -> float | None:
    """Between the GPUs of one machine of which nothing else is known: NVLink, else PCIe."""
    if gpu.nvlink_bytes_per_s and gpu.nvlink_bridge_gpus is None:
        return gpu.nvlink_bytes_per_s
    return gpu.host_link.bytes_per_s if gpu.host_link else None


def footprint_of(model: ModelRecord, optimizer: str) -> Footprint:
    """What a GPU has to hold for the model of a run; activations that were not counted are taken as none."""
    element = 2.0 if model.gradient_bytes and model.gradient_bytes < 3 * model.trained_parameters else 4.0
    return Footprint(
        parameters=model.parameters,
        trained_parameters=model.trained_parameters,
        weight_bytes=element,
        gradient_bytes=element,
        state_bytes=STATE_BYTES[optimizer],
        activation_bytes=float(model.activation_bytes or 0),
        copies=element == 4.0 and model.precision in _HALVES,
    )


def _whole(job: Job, outlook: Outlook, wanted: Wanted) -> Whole | None:
    if wanted.samples is None or job.samples is None:
        return None
    answer = outlook.answer
    batch = job.samples * wanted.batch * (answer.gpus or 1)
    plan = Plan(
        samples=wanted.samples,
        batch=batch,
        epochs=wanted.epochs,
        startup_s=wanted.startup_s,
        evaluation_s=wanted.evaluation_s,
        checkpoint_s=wanted.checkpoint_s,
        checkpoint_every_s=wanted.checkpoint_every_s,
    )
    return whole(Step(s=answer.step_s, low_s=answer.low_s, high_s=answer.high_s, cold_s=_cold_s(job, outlook)), plan)


def _cold_s(job: Job, outlook: Outlook) -> float | None:
    """A step whose samples all come from storage, where a cold phase was measured."""
    if job.work is None or job.cold_blocked_s is None:
        return None
    workers = max(1, job.work.workers)
    read_s = (job.work.prepare_s + job.cold_blocked_s) / workers
    return max(outlook.answer.step_s, read_s) if math.isfinite(read_s) else None


def _said(model: ModelRecord, wanted: Wanted) -> tuple[str, ...]:
    said = [f"Memory: {wanted.optimizer}'s state, activations as counted in the run, 8 % lost to fragmentation."]
    if model.activation_bytes is None:
        said.append("The run counted no activations, so the largest batch is not bounded by them.")
    if model.compiled:
        said.append("The model is compiled: it keeps fewer activations than counted layers say.")
    return tuple(said)
