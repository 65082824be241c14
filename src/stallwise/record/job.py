"""From a run, or from another tool's layer file, to the job that a model takes: trace, loader's work, bounds."""

import math
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from stallwise.errors import InputError
from stallwise.model.datapath import LoaderWork
from stallwise.model.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES
from stallwise.model.overlap import Overlap
from stallwise.model.stalls import Share
from stallwise.model.step import Factors
from stallwise.model.whatif import Job
from stallwise.record.profile import Profile, profile_of
from stallwise.record.split import DataPath, measure
from stallwise.record.trace_model import NOTHING
from stallwise.run.manifest import Manifest, ModelRecord
from stallwise.run.reader import Run
from stallwise.workload.layers import Layer, LayerTrace

if TYPE_CHECKING:
    import polars

_REST = "(rest of backward)"
_NOTHING_S = 1e-12  # what sums of times leave by rounding

# Of a step whose passes are not known (compiled models): backward does twice the work of forward.
_FORWARD_PART = 1 / 3


def job_of(run: Run) -> Job:
    """The job in a run; an `InputError` where the run lacks what a prediction needs."""
    profile, found = profile_of(run), measure(run)
    model = run.manifest.model
    gradients = run.table("gradients")
    if model is None or not gradients.height:
        why = next((note for note in run.manifest.notes if note.startswith(NOTHING)), None)
        if why is not None:
            raise InputError(f"Nothing can be predicted from the run at {run.path}: {why.removeprefix(NOTHING)}")
        raise InputError(
            f"The run at {run.path} says nothing about layers and gradients, which predictions are made from. "
            + _remedy(run.manifest)
        )
    passes = model.micro_batches or 1
    world = run.manifest.world
    per_node = max(1, world.world_size // world.nnodes)
    # Ranks that left no record left no samples either.
    seen = max(1, run.table("steps").get_column("rank").n_unique())
    samples = profile.samples_per_s * profile.step_s / seen if profile.samples_per_s else None
    return Job(
        name=PurePath(profile.script).name or profile.script,
        trace=_trace(run, profile, model, passes),
        overlap=_overlap(model, passes),
        gpus=world.world_size,
        gpus_per_node=per_node,
        step=Share(profile.step_s, profile.step_low_s, profile.step_high_s),
        samples=samples,
        compute_factors=_factors(profile.split.compute.low_s, profile.split.compute.s, profile.split.compute.high_s),
        inside=profile.split.interconnect,
        between=profile.split.network,
        backend=world.backend or ("nccl" if any(node.gpus for node in run.manifest.nodes) else "gloo"),
        element_bytes=_element_bytes(gradients),
        work=found.data.work if found.data else None,
        cold_blocked_s=found.cold.work.blocked_s if found.cold else None,
        data_factors=_data_factors(profile, found.data),
        cores_per_node=min((node.cores for node in run.manifest.nodes if node.cores), default=None),
        assumptions=_assumptions(run.manifest, model, profile),
    )


def _remedy(manifest: Manifest) -> str:
    if manifest.job.launcher == "trace":
        return "Import its trace again."
    return "Profile the job again without --light, long enough for one round of all phases."


def job_of_layers(trace: LayerTrace) -> Job:
    """The job in a layer file: one GPU's trace without intervals; with its exchange times where sizes are not known."""
    closed = any(layer.exchange_s and not layer.gradient_bytes for layer in trace.layers)
    work = LoaderWork(prepare_s=trace.read_s, blocked_s=0.0, workers=1) if trace.read_s else None
    return Job(
        name=PurePath(trace.source).name,
        trace=replace(trace, read_s=0.0),
        overlap=Overlap(scheme="wfbp" if closed else "ddp"),
        gpus=None if closed else 1,
        samples=trace.samples,
        work=work,
        assumptions=_layer_assumptions(trace, closed=closed),
    )


def _layer_assumptions(trace: LayerTrace, *, closed: bool) -> tuple[str, ...]:
    said = ["The file gives no interval for compute; intervals are those of the rest alone."]
    if trace.times != "measured":
        said.append(f"Times in the file: {trace.times}.")
    if closed:
        said.append(
            "Exchange times are those in the file, of one message per layer, on as many GPUs as it was made with."
        )
    else:
        said.append("The file holds one GPU's step; on several, DDP with torch's buckets is assumed.")
    if trace.read_s:
        said.append("The time to get a batch is taken as the work of one loader worker beside the training loop.")
    return tuple(said)


def _element_bytes(gradients: "polars.DataFrame") -> float | None:
    elements = int(gradients.get_column("elements").sum())
    return int(gradients.get_column("bytes").sum()) / elements if elements else None


def _trace(run: Run, profile: Profile, model: ModelRecord, passes: int) -> LayerTrace:
    """Layers by gradient, in forward order, stretched so that a step's compute is what the profile found.

    Hooks cost a little and a step does more than its passes (zeroing gradients, logging): where the passes are shorter
    than compute, the rest is counted with the update; where they are longer, all are shrunk alike.
    """
    compute_s = profile.split.compute.s
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
    import polars as pl

    gradients = run.table("gradients").filter(pl.col("rank") == pl.col("rank").min()).sort("order")
    forward_s = (model.forward_s or 0.0) / passes
    forward = _forward_by_name(run, gradients.get_column("name").to_list()) or _forward_by_module(run, forward_s)
    backward_s = (model.backward_s or 0.0) / passes
    found, before_s = [], 0.0
    for name, size, ready_s in gradients.select("name", "bytes", "ready_s").iter_rows():
        module = name.rpartition(".")[0]
        now_s = min(max(ready_s or 0.0, before_s), backward_s)
        found.append(
            Layer(
                name=name,
                forward_s=forward.pop(name if name in forward else module, 0.0),
                backward_s=now_s - before_s,
                gradient_bytes=size,
            )
        )
        before_s = now_s
    # Forward of modules whose gradients were not seen, or of a model that computes without modules.
    left_s = max(0.0, forward_s - sum(layer.forward_s for layer in found))
    rest = Layer(name=_REST, forward_s=left_s, backward_s=backward_s - before_s, gradient_bytes=0)
    return [*([rest] if max(rest.forward_s, rest.backward_s) > _NOTHING_S else []), *reversed(found)]


def _forward_by_name(run: Run, gradients: list[str]) -> dict[str, float]:
    """Forward times of an imported layer file, whose layers are called as its gradients; empty for any other run."""
    layers = run.table("layers")
    times = dict(layers.select("name", "forward_s").iter_rows())
    return times if times.keys() == set(gradients) else {}


def _forward_by_module(run: Run, forward_s: float) -> dict[str, float]:
    """Forward time by the module that owns parameters, what lies between two of them counted to the earlier."""
    import polars as pl

    lowest = pl.col("rank") == pl.col("rank").min()
    layers = run.table("layers").filter(lowest & (pl.col("parameter_bytes") > 0)).sort("layer")
    names, starts = layers.get_column("name").to_list(), layers.get_column("forward_start_s").to_list()
    ends = [*starts[1:], *(max(forward_s, last) for last in starts[-1:])]
    spans = {name: max(0.0, end - start) for name, start, end in zip(names, starts, ends, strict=True)}
    total = sum(spans.values())
    # Accumulated steps call a layer several times; their starts span one pass only as long as nothing is shared.
    return {name: span * forward_s / total for name, span in spans.items()} if total else {}


def _assumed_layers(run: Run, compute_s: float) -> list[Layer]:
    """Without times: forward a third and backward two thirds of compute, shared by bytes."""
    import polars as pl

    lowest = pl.col("rank") == pl.col("rank").min()
    gradients: polars.DataFrame = run.table("gradients").filter(lowest).sort("order")
    total = max(1, gradients.get_column("bytes").sum())
    return [
        Layer(
            name=name,
            forward_s=compute_s * _FORWARD_PART * size / total,
            backward_s=compute_s * (1 - _FORWARD_PART) * size / total,
            gradient_bytes=size,
        )
        for name, size in reversed(list(gradients.select("name", "bytes").iter_rows()))
    ]


def _overlap(model: ModelRecord, passes: int) -> Overlap:
    if model.sharded:
        return Overlap(scheme="zero3", accumulate=passes)
    cap = model.bucket_cap_bytes or DDP_BUCKET_BYTES
    # torch gives up its small first bucket once a script chooses a size.
    first = model.first_bucket_bytes or (DDP_FIRST_BYTES if cap == DDP_BUCKET_BYTES else cap)
    return Overlap(scheme="ddp", bucket_bytes=cap, first_bucket_bytes=first, accumulate=passes)


def _assumptions(manifest: Manifest, model: ModelRecord, profile: Profile) -> tuple[str, ...]:
    said = []
    if not math.isfinite(profile.split.compute.high_s):
        said.append("Compute was measured in one block, whose spread is not known: intervals leave it out.")
    if manifest.world.world_size == 1:
        said.append("The run had one process; on several, DDP with torch's default buckets is assumed.")
    if model.compiled:
        said.append("The model is compiled: gradients are taken to become ready evenly over backward, by size.")
    if model.sharded:
        said.append("Sharding is modelled in units of 25 MiB, not by the script's own wrapping.")
    if not any(node.gpus for node in manifest.nodes):
        said.append(
            "The job ran on processors: processes that share cores slow each other down, which is not modelled."
        )
    return tuple(said)


def _factors(low: float, value: float, high: float) -> Factors | None:
    """The bounds as factors; None where there are none (one block says nothing of its spread)."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return (low / value, high / value) if value > 0 else (1.0, 1.0)


def _data_factors(profile: Profile, data: DataPath | None) -> Factors:
    """Bounds of the loader's time: those of the rate at which it prepares, turned round."""
    rate = profile.rates.P
    if data is None or rate is None or not rate.low > 0 or rate.high == float("inf"):
        return 1.0, 1.0
    return rate.samples_per_s / rate.high, rate.samples_per_s / rate.low
