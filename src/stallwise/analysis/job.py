"""From a run, or from another tool's layer file, to the job that predictions are made from.

`job_of` gives the job as `model/` takes it: trace, loader's work, bounds. `JobModel` adds what its step on another
set-up depends on: the GPU it was measured on, the work that was counted, its memory. A run without layers (a light
profile, or one cut short) has a model too: its whole step counts as compute, scaled by the rates of the two GPUs alone,
with a wider interval.
"""

import math
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from stallwise.analysis.compare import PhaseSummary
from stallwise.analysis.observed import LAUNCH
from stallwise.analysis.profile import Profile
from stallwise.analysis.split import DataPath, StepMeasurement
from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.coefficients import load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute.host import device_alone_s, launching_s
from stallwise.model.compute.memory import STATE_BYTES, Footprint
from stallwise.model.compute.transfer import StepWork
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.statistics.conformal import ErrorSpread, joined
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.job import MeasuredJob
from stallwise.model.step.prediction import Factors
from stallwise.run.manifest import NO_PREDICTION, Manifest, ModelRecord
from stallwise.run.reader import Run
from stallwise.sentences import Sentence
from stallwise.workload.layers import Layer, LayerTrace

if TYPE_CHECKING:
    from stallwise.run.table import Table

_REST = "(rest of backward)"
_NOTHING_S = 1e-12  # what sums of times leave by rounding

# Of a step whose passes are not known (compiled models): backward does twice the work of forward.
_FORWARD_FRACTION = 1 / 3


def job_of(run: Run, profile: Profile, measured: StepMeasurement) -> MeasuredJob:
    """The job in a run; an `InputError` where the run lacks what a prediction needs."""
    model = run.manifest.model
    gradients = run.table("gradients")
    if model is None or not gradients.height:
        why = next((note for note in run.manifest.notes if note.startswith(NO_PREDICTION)), None)
        if why is not None:
            raise InputError(f"Nothing can be predicted from the run at {run.path}: {why.removeprefix(NO_PREDICTION)}")
        raise InputError(
            f"The run at {run.path} says nothing about layers and gradients, which predictions are made from. "
            + _remedy(run.manifest)
        )
    passes = model.micro_batches or 1
    world = run.manifest.world
    per_node = max(1, world.world_size // world.nnodes)
    # Ranks that left no record left no samples either.
    recorded_ranks = max(1, run.table("steps")["rank"].n_unique())
    samples = profile.samples_per_s * profile.step_s / recorded_ranks if profile.samples_per_s else None
    return MeasuredJob(
        name=PurePath(profile.script).name or profile.script,
        trace=_trace(run, profile, model, passes),
        overlap=_overlap(model, passes),
        gpus=world.world_size,
        gpus_per_node=per_node,
        step=Share(profile.step_s, profile.step_low_s, profile.step_high_s),
        samples=samples,
        compute_factors=_factors(profile.split.not_ablated),
        inside=profile.split.interconnect,
        between=profile.split.network,
        backend=world.backend or ("nccl" if any(node.gpus for node in run.manifest.nodes) else "gloo"),
        element_bytes=_element_bytes(gradients),
        work=measured.data.work if measured.data else None,
        cold_blocked_s=measured.cold.work.blocked_s if measured.cold else None,
        data_factors=_data_factors(profile, measured.data),
        cores_per_node=min((node.cores for node in run.manifest.nodes if node.cores), default=None),
        assumptions=_assumptions(run.manifest, model, profile),
    )


def _remedy(manifest: Manifest) -> str:
    if manifest.job.launcher == "trace":
        return "Import its trace again."
    return "Profile the job again in full (not a light profile), long enough for one round of all phases."


def job_of_layers(trace: LayerTrace) -> MeasuredJob:
    """The job in a layer file: one GPU's trace without intervals; with its exchange times where sizes are not known."""
    closed = any(layer.exchange_s and not layer.gradient_bytes for layer in trace.layers)
    work = LoaderWork(prepare_s=trace.read_s, blocked_s=0.0, workers=1) if trace.read_s else None
    return MeasuredJob(
        name=PurePath(trace.source).name,
        trace=replace(trace, read_s=0.0),
        overlap=Overlap(scheme="wfbp" if closed else "ddp"),
        gpus=None if closed else 1,
        samples=trace.samples,
        work=work,
        assumptions=_layer_assumptions(trace, closed=closed),
    )


def _layer_assumptions(trace: LayerTrace, *, closed: bool) -> tuple[Sentence, ...]:
    notes = [
        Sentence(
            "compute.no-interval", "The file gives no interval for compute; intervals are those of the rest alone."
        )
    ]
    if trace.times != "measured":
        notes.append(Sentence("file.times", f"Times in the file: {trace.times}."))
    if closed:
        notes.append(
            Sentence(
                "exchange.as-in-file",
                "Exchange times are those in the file, of one message per layer, on as many GPUs as it was made with.",
            )
        )
    else:
        notes.append(
            Sentence(
                "exchange.default-buckets",
                "The file holds one GPU's step; on several, DDP with torch's buckets is assumed.",
            )
        )
    if trace.read_s:
        notes.append(
            Sentence(
                "loader.work-beside-training",
                "The time to get a batch is taken as the work of one loader worker beside the training loop.",
            )
        )
    return tuple(notes)


def _element_bytes(gradients: "Table") -> float | None:
    elements: int = gradients["elements"].sum()
    return gradients["bytes"].sum() / elements if elements else None


def _of_lowest_rank(table: "Table") -> "Table":
    return table.filter(table["rank"].equals(table["rank"].min())) if table.height else table


def _trace(run: Run, profile: Profile, model: ModelRecord, passes: int) -> LayerTrace:
    """Layers by gradient, in forward order, stretched so that a step's compute is what the profile found.

    Hooks cost a little and a step does more than its passes (zeroing gradients, logging): where the passes are shorter
    than compute, the rest is counted with the update; where they are longer, all are shrunk alike.
    """
    compute_s = profile.split.not_ablated.s
    layers = _timed_layers(run, model, passes) if model.backward_s else _assumed_layers(run, compute_s / passes)
    spent_s = passes * sum(layer.forward_s + layer.backward_s for layer in layers)
    shrink = min(1.0, compute_s / (spent_s + (model.update_s or 0.0))) if spent_s else 1.0
    layers = [
        replace(layer, forward_s=layer.forward_s * shrink, backward_s=layer.backward_s * shrink) for layer in layers
    ]
    return LayerTrace(
        layers=tuple(layers),
        source=str(run.path),
        samples=None,
        copy_s=profile.split.copy.s / passes if profile.split.copy else 0.0,
        update_s=max(0.0, compute_s - spent_s * shrink),
        times="measured" if model.backward_s else "assumed: spread over backward by bytes",
    )


def _timed_layers(run: Run, model: ModelRecord, passes: int) -> list[Layer]:
    gradients = _of_lowest_rank(run.table("gradients")).sort("order")
    forward_s = (model.forward_s or 0.0) / passes
    forward = _forward_by_name(run, gradients["name"].to_list()) or _forward_by_module(run, forward_s)
    backward_s = (model.backward_s or 0.0) / passes
    layers, before_s = [], 0.0
    for name, size, ready_s in gradients.select("name", "bytes", "ready_s").rows():
        module = name.rpartition(".")[0]
        now_s = min(max(ready_s or 0.0, before_s), backward_s)
        layers.append(
            Layer(
                name=name,
                forward_s=forward.pop(name if name in forward else module, 0.0),
                backward_s=now_s - before_s,
                gradient_bytes=size,
            )
        )
        before_s = now_s
    # Forward of modules whose gradients were not seen, or of a model that computes without modules.
    left_s = max(0.0, forward_s - sum(layer.forward_s for layer in layers))
    rest = Layer(name=_REST, forward_s=left_s, backward_s=backward_s - before_s, gradient_bytes=0)
    return [*([rest] if max(rest.forward_s, rest.backward_s) > _NOTHING_S else []), *reversed(layers)]


def _forward_by_name(run: Run, gradients: list[str]) -> dict[str, float]:
    """Forward times of an imported layer file, whose layers are called as its gradients; empty for any other run."""
    times: dict[str, float] = dict(run.table("layers").select("name", "forward_s").rows())
    return times if times.keys() == set(gradients) else {}


def _forward_by_module(run: Run, forward_s: float) -> dict[str, float]:
    """Forward time by the module that owns parameters, what lies between two of them counted to the earlier."""
    layers = _of_lowest_rank(run.table("layers")).sort("layer")
    layers = layers.filter(layers["parameter_bytes"].values > 0)
    names, starts = layers["name"].to_list(), layers["forward_start_s"].to_list()
    ends = [*starts[1:], *(max(forward_s, last) for last in starts[-1:])]
    spans = {name: max(0.0, end - start) for name, start, end in zip(names, starts, ends, strict=True)}
    total = sum(spans.values())
    # Accumulated steps call a layer several times; their starts span one pass only as long as nothing is shared.
    return {name: span * forward_s / total for name, span in spans.items()} if total else {}


def _assumed_layers(run: Run, compute_s: float) -> list[Layer]:
    """Without times: forward a third and backward two thirds of compute, shared by bytes."""
    gradients = _of_lowest_rank(run.table("gradients")).sort("order")
    total = max(1, gradients["bytes"].sum())
    return [
        Layer(
            name=name,
            forward_s=compute_s * _FORWARD_FRACTION * size / total,
            backward_s=compute_s * (1 - _FORWARD_FRACTION) * size / total,
            gradient_bytes=size,
        )
        for name, size in reversed(list(gradients.select("name", "bytes").rows()))
    ]


def _overlap(model: ModelRecord, passes: int) -> Overlap:
    if model.sharded:
        return Overlap(scheme="zero3", accumulate=passes)
    cap = model.bucket_cap_bytes or DDP_BUCKET_BYTES
    # torch gives up its small first bucket once a script chooses a size.
    first = model.first_bucket_bytes or (DDP_FIRST_BYTES if cap == DDP_BUCKET_BYTES else cap)
    return Overlap(scheme="ddp", bucket_bytes=cap, first_bucket_bytes=first, accumulate=passes)


def _assumptions(manifest: Manifest, model: ModelRecord, profile: Profile) -> tuple[Sentence, ...]:
    notes = []
    if not math.isfinite(profile.split.compute.high_s):
        notes.append(
            Sentence(
                "compute.one-block",
                "Compute was measured in one block, whose spread is not known: intervals leave it out.",
            )
        )
    if manifest.world.world_size == 1:
        notes.append(
            Sentence(
                "exchange.default-buckets",
                "The run had one process; on several, DDP with torch's default buckets is assumed.",
            )
        )
    if model.compiled:
        notes.append(
            Sentence(
                "model.compiled-gradients",
                "The model is compiled: gradients are taken to become ready evenly over backward, by size.",
            )
        )
    if model.sharded:
        notes.append(
            Sentence(
                "exchange.sharding-units", "Sharding is modelled in units of 25 MiB, not by the script's own wrapping."
            )
        )
    if not any(node.gpus for node in manifest.nodes):
        notes.append(
            Sentence(
                "compute.shared-cores",
                "The job ran on CPUs: processes that share cores slow each other down, which is not modelled.",
            )
        )
    return tuple(notes)


def _factors(share: Share) -> Factors | None:
    """The bounds as factors; None where there are none (one block says nothing of its spread)."""
    if not (math.isfinite(share.low_s) and math.isfinite(share.high_s)):
        return None
    return (share.low_s / share.s, share.high_s / share.s) if share.s > 0 else (1.0, 1.0)


def _data_factors(profile: Profile, data: DataPath | None) -> Factors:
    """Bounds of the loader's time: those of the rate at which it prepares, turned round."""
    rate = profile.rates.P
    if data is None or rate is None or not rate.low > 0 or rate.high == float("inf"):
        return 1.0, 1.0
    return rate.samples_per_s / rate.high, rate.samples_per_s / rate.low


# Operators of a layer, forward, backward and update; a rough count where the run has none.
_KERNELS_PER_LAYER = 10.0
# A step of which nothing was counted: a network of as much arithmetic per byte as ResNet-50 has in FP32.
_FLOP_PER_BYTE = 25.0
_LAYERS = 20
_HALVES = ("fp16", "bf16")
UNKNOWN_SPREAD = ErrorSpread(-0.7, 0.7)
"""Of compute on another GPU when the run counted nothing: arithmetic and bandwidth of two GPUs may differ by a factor
of two in what they say (the ratios of peak rates and of bandwidths in the catalog do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobModel:
    """A job, the GPU it was measured on, and what of it changes on another one."""

    job: MeasuredJob
    measured_compute_s: float
    """Of a step, on `source`."""
    source: Gpu | None = None
    """The run's own GPU; None: it ran on CPUs, or the file does not say."""
    precision: str = "fp32"
    work: StepWork | None = None
    """What was counted of a step; None: nothing, so that no other GPU can be predicted (`no_transfer` says why)."""
    no_transfer: str = ""
    spread: ErrorSpread | None = None
    """Of compute on another GPU than the run's; None: what is known of taking a step from the one to the other."""
    footprint: Footprint | None = None
    """What a GPU has to hold; None: not known, and memory is not judged."""
    sharded: bool = False
    bytes_per_sample: float | None = None
    """Read from storage."""
    node_memory_bytes: float | None = None
    least_gpu_bytes: float = 0.0
    """GPUs with less memory do not fit, nor do larger batches: what activations take was not counted."""
    checkpoint_bytes: float | None = None
    exchanges: bool = True
    """Whether the size of its gradients is known, so that several GPUs can be judged."""
    compiled: bool = False
    launching_s: float = 0.0
    """Seconds of launching a step on the run's host; what of `measured_compute_s` does not depend on the GPU."""
    host_waits_s: float = 0.0
    """Of `measured_compute_s`, what the host takes while the device has nothing to do, whatever the GPU."""
    cpu_model: str | None = None
    notes: tuple[Sentence, ...] = ()

    @property
    def device_s(self) -> float:
        """Seconds of a step in which the device works: measured compute without the host's part."""
        return device_alone_s(self.measured_compute_s - self.host_waits_s, self.launching_s)

    @property
    def gpus(self) -> int:
        """GPUs of the run."""
        return self.job.gpus or 1

    @property
    def samples(self) -> float:
        """Per GPU and step; an `InputError` where the run does not say."""
        if not self.job.samples:
            raise InputError(
                f"The run at {self.job.trace.source} does not say how many samples a step has, so no job can be "
                "counted in samples. Profile the job again; batches of tensors, lists or dicts are counted by "
                "themselves."
            )
        return self.job.samples

    @property
    def global_batch(self) -> float:
        """Samples of a step of the run, of all its GPUs together."""
        return self.samples * self.gpus


def layered_model(
    run: Run, job: MeasuredJob, measured: StepMeasurement, source: Gpu | None, optimizer: str, no_transfer: str = ""
) -> JobModel:
    """The model of a run whose layers and gradients are known; `no_transfer` where its own GPU is not."""
    record = run.manifest.model
    if record is None:
        raise InputError(f"The run at {run.path} says nothing about its model.")
    work = _counted_work(record)
    if work is None and not no_transfer:
        remedy = (
            "Record the trace with record_shapes=True."
            if run.manifest.job.launcher == "trace"
            else "Profile the job again in full (not a light profile)."
        )
        no_transfer = (
            f"The run at {run.path} counted no FLOPs, which compute on another GPU is predicted from. {remedy}"
        )
    uncounted = source is not None and record.activation_bytes is None
    notes = (
        [
            Sentence(
                "memory.checkpointed",
                "The run counted no activations (checkpointing): only GPUs with its own memory or more are judged.",
            )
        ]
        if uncounted
        else []
    )
    launching_s, waits_s = _host(measured, work)
    if launching_s > 0 and work is not None:
        work = replace(work, kernels=0.0)  # the host's, and measured
    return JobModel(
        job=job,
        measured_compute_s=measured.split.not_ablated.s,
        source=source,
        launching_s=launching_s,
        host_waits_s=waits_s,
        cpu_model=next((node.cpu_model for node in run.manifest.nodes if node.cpu_model), None),
        precision=record.precision or "fp32",
        work=None if no_transfer else work,
        no_transfer=no_transfer,
        spread=ErrorSpread(*load_fitted("transfer").spreads["features"]) if source is None else None,
        footprint=footprint_of(record, optimizer),
        sharded=record.sharded,
        bytes_per_sample=measured.data.read_bytes_per_sample if measured.data else None,
        node_memory_bytes=min(
            (float(node.memory_bytes) for node in run.manifest.nodes if node.memory_bytes), default=None
        ),
        least_gpu_bytes=float(source.memory_bytes) if source is not None and uncounted else 0.0,
        checkpoint_bytes=12.0 * record.parameters,
        compiled=record.compiled,
        notes=tuple(notes),
    )


_KERNEL_S = 1e-5  # of the host, for a kernel of a step that the device was never seen to wait for


def _host(measured: StepMeasurement, work: StepWork | None) -> tuple[float, float]:
    """Seconds of launching a step, and of other things that a device waits for its host for; 0 where none was observed.

    Where the device hardly waits, launching is hidden behind its work: then it takes what its kernels usually take, and
    at most half of the step.
    """
    split = measured.split
    if split.host is None or split.host.s == 0 or not measured.on_device:
        return 0.0, 0.0
    waits = sum(cause.s for cause in measured.observed if cause.part == "host" and cause.cause != LAUNCH)
    waits_s = min(waits, split.host.s)
    step_s = split.not_ablated.s - waits_s
    hidden_s = min(0.5 * step_s, _KERNEL_S * work.kernels if work is not None else 0.0)
    return max(hidden_s, launching_s(step_s, step_s - (split.host.s - waits_s))), waits_s


def bare_model(
    run: Run, phase: PhaseSummary | None, source: Gpu | None, optimizer: str, parameters: float | None
) -> JobModel:
    """The model of a run that knows its step and little more; `parameters` helps where it did not count them."""
    if phase is None or phase.step_s is None:
        raise InputError(f"The run at {run.path} has no steps that were kept. Profile the job again, for longer.")
    if source is None:
        raise InputError(
            f"The run at {run.path} says nothing about layers, gradients and FLOPs, which predictions are made from. "
            "Profile the job again in full (not a light profile), long enough for one round of all phases."
        )
    record, world, step = run.manifest.model, run.manifest.world, phase.step_s
    count = float(record.parameters) if record is not None else parameters
    samples = phase.samples_per_s.value * step.value / world.world_size if phase.samples_per_s else None
    spread = joined(ErrorSpread(*load_fitted("transfer").spreads["features"]), UNKNOWN_SPREAD)
    footprint = None
    if count is not None:
        footprint = Footprint(parameters=count, trained_parameters=count, state_bytes=STATE_BYTES[optimizer])
    return JobModel(
        job=_bare_job(run, Share(step.value, step.low, step.high), samples, 4.0 * (count or 0.0)),
        measured_compute_s=step.value,
        source=source,
        precision=(record.precision if record else None) or "fp32",
        work=_guessed_work(step.value, source, count or 0.0),
        spread=spread,
        footprint=footprint,
        checkpoint_bytes=None if count is None else 12.0 * count,
        exchanges=count is not None,
        notes=_bare_notes(count),
    )


def model_of_job(job: MeasuredJob) -> JobModel:
    """The model of a job that is known by its layers alone (a layer file): it stays on the GPU it was measured on."""
    return JobModel(
        job=job,
        measured_compute_s=job.passes_s + job.trace.update_s,
        no_transfer=f"{job.trace.source} holds times of layers alone: compute on another GPU cannot be predicted.",
    )


def source_gpu(manifest: Manifest, catalog: Catalog) -> Gpu | None:
    """The GPU of a run; None: CPUs. An `InputError` where there are several kinds, or the catalog lacks it."""
    names = {name for node in manifest.nodes for name in node.gpus}
    if not names:
        return None
    if len(names) > 1:
        raise InputError(f"The run used several kinds of GPU ({', '.join(sorted(names))}); none can stand for all.")
    name = names.pop()
    gpu = catalog.gpu_of_driver_name(name)
    if gpu is None:
        raise InputError(f"The run's own GPU, {name}, is not in the catalog. Add it to your own gpus.csv.")
    return gpu


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


def _counted_work(record: ModelRecord) -> StepWork | None:
    if not record.flops_per_step:
        return None
    passes = record.micro_batches or 1
    return StepWork(
        flop=record.flops_per_step,
        activation_bytes=float(record.activation_bytes or 0) * passes,
        parameters=record.parameters,
        kernels=_KERNELS_PER_LAYER * record.layers * passes,
    )


def _bare_job(run: Run, step: Share, samples: float | None, gradient_bytes: float) -> MeasuredJob:
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
    return MeasuredJob(
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


def _bare_notes(parameters: float | None) -> tuple[Sentence, ...]:
    notes = [
        Sentence(
            "model.no-layers",
            "The run holds no layers: its whole step counts as compute of an ordinary network, stalls included, and "
            "the interval is wider. A full profile gives a narrower one.",
        )
    ]
    if parameters is None:
        notes.append(
            Sentence(
                "memory.no-gradients",
                "The size of its gradients is not known, so only single GPUs are judged, and memory is not. The number "
                "of parameters would give both.",
            )
        )
    return tuple(notes)
