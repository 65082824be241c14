"""A layer file as a run, and a run as a layer file: the step graph of one is that of the other."""

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallwise.analysis.analysis import open_run
from stallwise.errors import InputError
from stallwise.run import phases
from stallwise.run.join import join
from stallwise.run.manifest import (
    JobRecord,
    Manifest,
    ModelRecord,
    NodeRecord,
    PhaseRecord,
    WorldRecord,
    new_manifest,
)
from stallwise.run.reader import Run
from stallwise.run.schema import BatchRow, GradientRow, LayerRow, StepRow
from stallwise.run.traces.inputs import shown
from stallwise.run.traces.layer_document import FORMAT, VERSION, LayerDocument, LayerEntry, OverlapEntry
from stallwise.run.writer import RankWriter, start_run
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.analysis.traces.import_ import TraceHints
    from stallwise.model.step.job import MeasuredJob

LAUNCHER = "layer file"
# Intervals need blocks; these are all alike, because a layer file holds one step.
_BLOCKS = 3
_SHARDED, _BUCKETS = "zero3", "ddp"
_HINTS = {"samples": "samples", "world_size": "gpus", "gpus_per_node": "gpus_per_node"}
"""Hints of the user, and the file's key for each."""


def layers_of(run: Run) -> LayerDocument:
    """The layer file of a run."""
    job, model, manifest = open_run(run).job, run.manifest.model, run.manifest
    gpus = {name for node in manifest.nodes for name in node.gpus}
    work = job.work
    return LayerDocument(
        format=FORMAT,  # type: ignore[arg-type]
        version=VERSION,
        source=f"run {manifest.run_id}, Stallwise {manifest.stallwise_version}",
        model=manifest.job.script,
        times=job.trace.times,
        iterations=_iterations(manifest),
        gpu=gpus.pop() if len(gpus) == 1 else None,
        gpus=job.gpus,
        gpus_per_node=job.gpus_per_node,
        backend=job.backend,
        precision=model.precision if model else None,
        element_bytes=job.element_bytes,
        flops_per_step=model.flops_per_step if model else None,
        samples=job.samples,
        step_s=job.step.s if job.step else None,
        prepare_s=work.prepare_s if work else None,
        blocked_s=work.blocked_s if work else None,
        workers=work.workers if work else None,
        copy_s=job.trace.copy_s,
        update_s=job.trace.update_s,
        inside_s=job.inside.s if job.inside else None,
        between_s=job.between.s if job.between else None,
        overlap=_overlap(job),
        layers=[
            LayerEntry(
                id=number,
                name=layer.name,
                forward_s=layer.forward_s,
                backward_s=layer.backward_s,
                comm_s=layer.exchange_s,
                gradient_bytes=layer.gradient_bytes,
            )
            for number, layer in enumerate(job.trace.layers)
        ],
    )


def _iterations(manifest: Manifest) -> int | None:
    """Number of steps whose medians the times of layers are."""
    counts = {phase.name: phase.steps for phase in manifest.phases}
    return counts.get(phases.LAYERS) or counts.get(phases.AS_IS)


def _overlap(job: "MeasuredJob") -> OverlapEntry:
    return OverlapEntry(
        scheme=job.overlap.scheme,
        bucket_bytes=job.overlap.bucket_bytes,
        first_bucket_bytes=job.overlap.first_bucket_bytes,
        accumulate=job.overlap.accumulate,
    )


def write_layer_run(document: LayerDocument, path: Path, folder: Path, hints: "TraceHints | None" = None) -> Manifest:
    """Write the run of a layer file; an `InputError` where it holds what no run can."""
    if hints is not None:
        document = _completed(document, path, hints)
    _check(document, path)
    world = document.gpus or 1
    per_node = min(document.gpus_per_node or world, world)
    nodes = -(-world // per_node)
    times = _ladder(document, nodes)
    start_run(
        folder,
        new_manifest(
            JobRecord(script=document.model or path.name, launcher=LAUNCHER),
            world=WorldRecord(world_size=world, nnodes=nodes, backend=document.backend),
            nodes=tuple(
                NodeRecord(node=node, gpus=(document.gpu,) * per_node if document.gpu else ())
                for node in range(min(nodes, 1024))
            ),
            phases=tuple(PhaseRecord(name=phase, differs=f"as in {path.name}") for phase in times),
            notes=(
                Sentence(
                    "trace.layer-file",
                    f"Imported from a layer file ({document.source}): one step, so intervals say nothing about noise.",
                ),
                Sentence("file.times", f"Times of layers: {document.times}."),
            ),
        ),
    )
    with RankWriter.open(folder, 0, backend=document.backend, clock_zero_s=0.0) as writer:
        _write(writer, document, times)
    return join(folder)


def _completed(document: LayerDocument, path: Path, hints: "TraceHints") -> LayerDocument:
    """Add the user's hints where the file says nothing: its times are those of the set-up it names."""
    facts: dict[str, object] = {"model": hints.name or document.model}
    for option, key in _HINTS.items():
        hint, stated = getattr(hints, option), getattr(document, key)
        if hint is not None and stated is not None and hint != stated:
            raise InputError(
                f"{path} says {key} is {shown(stated)}, and its times are of that. Leave {option} out.",
                fields=(option,),
            )
        facts[key] = stated if hint is None else hint
    return msgspec.structs.replace(document, **facts)


def _check(document: LayerDocument, path: Path) -> None:
    if any(entry.comm_s for entry in document.layers):
        raise InputError(
            f"{path} holds an exchange time for each layer, which no run has. Give it to stallwise whatif as it is."
        )
    names = [entry.name for entry in document.layers]
    doubled = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if doubled is not None:
        raise InputError(f"{path} has two layers called {doubled!r}. Give each its own name.")
    if document.overlap.scheme not in (_BUCKETS, _SHARDED):
        raise InputError(f"{path}: a run is exchanged as ddp or zero3, not {document.overlap.scheme!r}.")


def _ladder(document: LayerDocument, nodes: int) -> dict[str, float]:
    """Times of the phases whose differences are the parts of the step in the file."""
    passes = document.overlap.accumulate
    compute_s = passes * sum(entry.forward_s + entry.backward_s for entry in document.layers) + document.update_s
    if compute_s <= 0:
        raise InputError("The layers in the file take no time at all, so there is no step to predict from.")
    inside, between = document.inside_s, document.between_s
    rungs = [(phases.ALONE, compute_s)] if inside is not None or between is not None else []
    if nodes > 1 and inside is not None and between is not None:
        rungs.append((phases.NODE, compute_s + inside))
    at_s = compute_s + (inside or 0.0) + (between or 0.0)
    if document.copy_s or document.workers is not None:
        rungs.append((phases.DEVICE, at_s))
        at_s += document.copy_s * passes
        rungs.append((phases.HOST, at_s))
    rungs.append((phases.AS_IS, max(at_s, document.step_s or 0.0)))
    return dict(reversed(rungs))


def _write(writer: RankWriter, document: LayerDocument, times: dict[str, float]) -> None:
    passes, samples = document.overlap.accumulate, document.samples
    whole = None if samples is None else round(samples)
    count, at_s = 0, 0.0
    for block in range(_BLOCKS):
        for phase, seconds in times.items():
            wait_s = max(0.0, seconds - times.get(phases.HOST, seconds)) if phase == phases.AS_IS else 0.0
            writer.append("steps", StepRow(0, count, phase, block, at_s, seconds, wait_s, whole))
            if phase == phases.AS_IS and document.workers is not None and whole:
                _write_batches(writer, document, at_s, block)
            count, at_s = count + 1, at_s + seconds
    forwards = list(accumulate((entry.forward_s for entry in document.layers), initial=0.0))
    for entry, start_s in zip(document.layers, forwards, strict=False):
        row = LayerRow(0, entry.id, entry.name, "layer", 1, start_s, entry.forward_s, None, entry.backward_s)
        writer.append("layers", row._replace(parameter_bytes=entry.gradient_bytes))
    ready_s = 0.0
    for order, entry in enumerate(reversed(document.layers)):
        ready_s += entry.backward_s
        elements = round(entry.gradient_bytes / (document.element_bytes or 4.0))
        writer.append("gradients", GradientRow(0, order, entry.name, elements, entry.gradient_bytes, ready_s))
    writer.model(_model(document, forwards[-1] * passes, ready_s * passes))


def _write_batches(writer: RankWriter, document: LayerDocument, at_s: float, block: int) -> None:
    """Write one batch per worker, so that the run shows their number."""
    prepare_s, blocked_s = document.prepare_s or 0.0, document.blocked_s or 0.0
    for worker in range(max(1, document.workers or 0)):
        row = BatchRow(
            rank=0,
            worker=worker if document.workers else None,
            batch=block,
            wall_s=prepare_s + blocked_s,
            start_s=at_s,
            cpu_s=prepare_s,
            runqueue_wait_s=0.0,
            blocked_s=blocked_s,
            read_bytes=0,
            samples=round(document.samples or 0),
            phase=phases.AS_IS,
            block=block,
        )
        writer.append("batches", row)


def _model(document: LayerDocument, forward_s: float, backward_s: float) -> ModelRecord:
    size = sum(entry.gradient_bytes for entry in document.layers)
    elements = round(size / (document.element_bytes or 4.0))
    return ModelRecord(
        parameters=elements,
        trained_parameters=elements,
        gradient_tensors=sum(entry.gradient_bytes > 0 for entry in document.layers),
        gradient_bytes=size,
        layers=len(document.layers),
        precision=document.precision,
        flops_per_step=document.flops_per_step,
        micro_batches=document.overlap.accumulate,
        step_s=document.step_s,
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=document.update_s,
        bucket_cap_bytes=document.overlap.bucket_bytes,
        first_bucket_bytes=document.overlap.first_bucket_bytes,
        sharded=document.overlap.scheme == _SHARDED,
    )
