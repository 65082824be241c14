"""The job that is to be placed: what a run says of it, as far as a fleet's speed and price depend on it.

A run without layers (`--light`, or one cut short) is placed too: its whole step counts as compute, scaled by the
rates of the two GPUs alone, with a wider interval that says so.
"""

from dataclasses import dataclass, replace
from pathlib import PurePath

from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.fitted import load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute_transfer import StepWork
from stallwise.model.conformal import Spread, joined
from stallwise.model.memory import STATE_BYTES, Footprint
from stallwise.model.overlap import Overlap
from stallwise.model.stalls import Share
from stallwise.model.whatif import Job
from stallwise.record.job import job_of
from stallwise.record.prediction import footprint_of
from stallwise.record.profile import profile_of
from stallwise.record.split import measure
from stallwise.record.summary import summarise
from stallwise.run.manifest import Manifest, ModelRecord
from stallwise.run.reader import Run
from stallwise.workload.layers import Layer, LayerTrace

# Operators of a layer, forward, backward and update; a rough count where the run has none.
_KERNELS_PER_LAYER = 10.0
# A step of which nothing was counted: a network of as much arithmetic per byte as ResNet-50 has in FP32.
_FLOP_PER_BYTE = 25.0
_LAYERS = 20
UNKNOWN_SPREAD = Spread(-0.7, 0.7)
"""Of compute on another GPU when the run counted nothing: arithmetic and bandwidth of two GPUs may differ by a factor
of two in what they say (the ratios of peak rates and of bandwidths in the catalog do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A job as a recommendation takes it."""

    job: Job
    measured_compute_s: float
    """Of a step, on `source`."""
    source: Gpu | None
    """The run's own GPU; None: it ran on processors."""
    precision: str
    work: StepWork
    spread: Spread | None
    """Of compute on another GPU than the run's; None: what is known of taking a step from the one to the other."""
    samples: float
    """Per GPU and step."""
    gpus: int
    footprint: Footprint | None
    sharded: bool
    bytes_per_sample: float | None
    """Read from storage."""
    least_gpu_bytes: float = 0.0
    """GPUs with less memory are left out, and larger batches too: what activations take was not counted."""
    checkpoint_bytes: float | None = None
    exchanges: bool = True
    """Whether the size of its gradients is known, so that several GPUs can be judged."""
    said: tuple[str, ...] = ()

    @property
    def batch(self) -> float:
        """Of all GPUs together."""
        return self.samples * self.gpus


def subject_of(run: Run, catalog: Catalog, *, optimizer: str = "adam", parameters: float | None = None) -> Subject:
    """The job in a run. `parameters` helps a run that did not count them."""
    model = run.manifest.model
    layered = model is not None and bool(model.flops_per_step) and run.table("gradients").height > 0
    if layered and model is not None:
        return _layered(run, model, catalog, optimizer)
    return _bare(run, model, catalog, optimizer, parameters)


def source_of(manifest: Manifest, catalog: Catalog) -> Gpu | None:
    """The GPU the run was measured on; None: processors. An `InputError` where it is not one kind, or not listed."""
    names = {name for node in manifest.nodes for name in node.gpus}
    if not names:
        return None
    if len(names) > 1:
        raise InputError(f"The run used several kinds of GPU ({', '.join(sorted(names))}); none can stand for all.")
    found = catalog.gpu_of_driver_name(next(iter(names)))
    if found is None:
        raise InputError(f"The run's own GPU, {names.pop()}, is not in the catalog. Add it to your own gpus.csv.")
    return found


def _layered(run: Run, model: ModelRecord, catalog: Catalog, optimizer: str) -> Subject:
    job, found = job_of(run), measure(run)
    source = source_of(run.manifest, catalog)
    passes = model.micro_batches or 1
    spreads = load_fitted("transfer").spreads
    said = list(job.assumptions)
    if source is None:
        # How much the processors' own compute varied says nothing about a GPU.
        job = replace(job, compute_factors=None)
        said.append(
            "The run has seen no GPU: compute is that of its FLOPs, bytes and kernels alone, and much less certain."
        )
    if source is not None and model.activation_bytes is None:
        said.append("The run counted no activations (checkpointing): only GPUs with its own memory or more are judged.")
    return Subject(
        job=job,
        measured_compute_s=profile_of(run).split.compute.s,
        source=source,
        precision=model.precision or "fp32",
        work=StepWork(
            flop=model.flops_per_step or 0.0,
            activation_bytes=float(model.activation_bytes or 0) * passes,
            parameters=model.parameters,
            kernels=_KERNELS_PER_LAYER * model.layers * passes,
        ),
        spread=Spread(*spreads["features"]) if source is None else None,
        samples=_samples(run, job.samples),
        gpus=job.gpus or 1,
        footprint=footprint_of(model, optimizer),
        sharded=model.sharded,
        bytes_per_sample=found.data.read_bytes_per_sample if found.data else None,
        least_gpu_bytes=float(source.memory_bytes) if source is not None and model.activation_bytes is None else 0.0,
        checkpoint_bytes=12.0 * model.parameters,
        said=tuple(said),
    )


def _samples(run: Run, samples: float | None) -> float:
    if not samples:
        raise InputError(
            f"The run at {run.path} does not say how many samples a step has, so no job can be counted in samples. "
            "Profile the job again; batches of tensors, lists or dicts are counted by themselves."
        )
    return samples


def _bare(run: Run, model: ModelRecord | None, catalog: Catalog, optimizer: str, parameters: float | None) -> Subject:
    """A run that knows its step and little more."""
    phases = [phase for phase in summarise(run).phases if phase.step_s is not None]
    chosen = next((phase for phase in phases if phase.name == "as is"), phases[0] if phases else None)
    if chosen is None or chosen.step_s is None:
        raise InputError(f"The run at {run.path} has no steps that were kept. Profile the job again, for longer.")
    source = source_of(run.manifest, catalog)
    if source is None:
        raise InputError(
            f"The run at {run.path} ran on processors and counted no FLOPs, so nothing can be said about GPUs. Profile "
            "the job again without --light."
        )
    step, world = chosen.step_s, run.manifest.world
    count = float(model.parameters) if model is not None else parameters
    rate = chosen.samples_per_s.value if chosen.samples_per_s else None
    per_gpu = _samples(run, rate * step.value / world.world_size if rate else None)
    spread = joined(Spread(*load_fitted("transfer").spreads["features"]), UNKNOWN_SPREAD)
    return Subject(
        job=_bare_job(run, Share(step.value, step.low, step.high), per_gpu, 4.0 * (count or 0.0)),
        measured_compute_s=step.value,
        source=source,
        precision=(model.precision if model else None) or "fp32",
        work=_guessed_work(step.value, source, count or 0.0),
        spread=spread,
        samples=per_gpu,
        gpus=world.world_size,
        footprint=None if count is None else Footprint(
            parameters=count, trained_parameters=count, state_bytes=STATE_BYTES[optimizer]
        ),
        sharded=False,
        bytes_per_sample=None,
        checkpoint_bytes=None if count is None else 12.0 * count,
        exchanges=count is not None,
        said=_bare_said(count),
    )  # fmt: skip


def _bare_job(run: Run, step: Share, samples: float, gradient_bytes: float) -> Job:
    world = run.manifest.world
    layers = tuple(
        Layer(
            name=f"part {i + 1}",
            forward_s=step.s / 3 / _LAYERS,
            backward_s=step.s * 2 / 3 / _LAYERS,
            gradient_bytes=round(gradient_bytes / _LAYERS),
        )
        for i in range(_LAYERS)
    )
    return Job(
        name=PurePath(run.manifest.job.script).name or run.manifest.job.script,
        trace=LayerTrace(source=str(run.path), layers=layers),
        overlap=Overlap(),
        gpus=world.world_size,
        gpus_per_node=max(1, world.world_size // world.nnodes),
        step=step,
        samples=samples,
        compute_factors=(step.low_s / step.s, step.high_s / step.s) if step.low_s > 0 else None,
        backend=world.backend,
        cores_per_node=min((node.cores for node in run.manifest.nodes if node.cores), default=None),
    )


def _guessed_work(step_s: float, source: Gpu, parameters: float) -> StepWork:
    """Arithmetic and bytes in the proportion of an ordinary network, as much as the step has time for."""
    rate = source.fp32_flop_per_s or 1e13
    flop = 0.3 * rate * step_s
    moved_bytes = flop / _FLOP_PER_BYTE
    return StepWork(flop=flop, activation_bytes=moved_bytes / 3, parameters=parameters, kernels=1.0)


def _bare_said(parameters: float | None) -> tuple[str, ...]:
    said = [
        "The run holds no layers: its whole step counts as compute of an ordinary network, stalls included, and the "
        "interval is wider. Profile without --light for a narrower one."
    ]
    if parameters is None:
        said.append(
            "The size of its gradients is not known, so only single GPUs are judged, and memory is not. Give "
            "--parameters."
        )
    return tuple(said)
