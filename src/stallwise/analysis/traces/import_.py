"""Device traces written as a run, which every command reads like a recorded one.

Steps are those the profiler marked, in the phase *as is*. What a profile measures by ablation is derived from what the
device did (`traced_steps`) and written as the phases of that name; each says so in `differs`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

import msgspec
import numpy as np

from stallwise.analysis.traces._model import TracedModel, traced_model
from stallwise.analysis.traces._ranks import RankView, TracedJob, traced_job
from stallwise.analysis.traces._steps import TracedStep, path_of, rank_splits, traced_steps
from stallwise.errors import InputError
from stallwise.model.step.timeline import Arrivals, arrivals
from stallwise.run import phases
from stallwise.run.join import join
from stallwise.run.manifest import (
    NO_PREDICTION,
    JobRecord,
    Manifest,
    NodeRecord,
    PhaseRecord,
    WorldRecord,
    new_manifest,
)
from stallwise.run.schema import BatchRow, EventRow, GradientRow, SpanRow, StepRow
from stallwise.run.traces.device_trace import NO_STEP, DeviceTrace, WorkKind
from stallwise.run.traces.inputs import MOST_RANKS, shown
from stallwise.run.writer import RankWriter, start_run
from stallwise.sentences import Sentence

LAUNCHER = "trace"
"""The manifest's launcher of a run that was a trace."""
SPLIT, ARRIVALS, CLOCK, PATH = "trace split", "trace arrivals", "trace clock", "critical path"
TRACKS = {
    WorkKind.COMPUTE: "kernel",
    WorkKind.COMMUNICATION: "collective",
    WorkKind.MEMORY: "copy",
    WorkKind.OTHER: "kernel",
}
SYNC = "device wait"

WORKED_OUT = "worked out from the trace, nothing was taken away: "
FACTS = "trace "
"""Prefix of the event kinds that hold figures for programs."""
_DIFFERS = {
    phases.AS_IS: "nothing; as traced",
    phases.HOST: WORKED_OUT + "the step less the time in which the device was idle while the loop waited for its batch",
    phases.DEVICE: WORKED_OUT + "the same less copies to the device that nothing hides",
    phases.ALONE: WORKED_OUT + "the same less collectives that no compute hides",
}
_USUAL_GPUS = 8
# Of a rank's step: sums over steps and ranks stay within 63 bits.
_MOST_SAMPLES = 10**12
_UNNAMED_GPU = "GPU (not named in the trace)"
_OWN_LOADING = "_SingleProcessDataLoaderIter"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHints:
    """Facts that a trace does not hold and the user may add."""

    name: str | None = None
    samples: int | None = None
    """Samples of one rank's step."""
    gpus_per_node: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        for field in ("samples", "gpus_per_node", "world_size"):
            value = getattr(self, field)
            most = _MOST_SAMPLES if field == "samples" else MOST_RANKS
            if value is not None and not 1 <= value <= most:
                raise InputError(
                    f"{field} must be a whole number from 1 to {most:,}, not {shown(value)}.", fields=(field,)
                )


def write_run(traces: Sequence[DeviceTrace], folder: Path, hints: TraceHints | None = None) -> Manifest:
    """Write the run of these ranks into a new folder."""
    hints = hints or TraceHints()
    job = traced_job(traces, hints.world_size)
    steps = {view.rank: traced_steps(job, view) for view in job.ranks}
    model = traced_model(job)
    phases = _phases(job, steps)
    start_run(folder, _manifest(job, folder, hints, model, phases))
    shared_arrivals = arrivals(job.meetings)
    splits = {split.rank: split for split in rank_splits([(view.rank, view.trace) for view in job.ranks])}
    path = path_of(job)
    for view in job.ranks:
        # All ranks stand on one clock already, so no reader may shift them apart by node again.
        with RankWriter.open(
            folder, view.rank, node=0, backend=view.trace.backend, clock_zero_s=0.0, flush_rows=1 << 20
        ) as writer:
            _write_steps(writer, job, steps[view.rank], phases, hints.samples)
            _write_batches(writer, job, view, hints.samples)
            _write_spans(writer, job, view)
            for segment in path:
                if segment.rank == view.rank:
                    start_s = (segment.start_ns - job.zero_ns) / 1e9
                    name = f"{segment.on}: {segment.name}" if segment.name else str(segment.on)
                    length_s = (segment.end_ns - segment.start_ns) / 1e9
                    writer.append("spans", SpanRow(view.rank, None, PATH, name, start_s, length_s))
            if view.rank in splits:
                writer.append("events", _fact(view.rank, SPLIT, asdict(splits[view.rank])))
            _write_shared(writer, job, view.rank, shared_arrivals)
            if view is job.ranks[0]:
                _write_model(writer, model)
    return join(folder)


def _manifest(
    job: TracedJob, folder: Path, hints: TraceHints, model: TracedModel, phases: tuple[PhaseRecord, ...]
) -> Manifest:
    first = job.ranks[0].trace
    per_node, stated = _per_node(job, hints)
    nodes = -(-job.world_size // per_node)
    names = first.gpus[:per_node] or (() if first.on_processor else (_UNNAMED_GPU,) * per_node)
    return new_manifest(
        JobRecord(script=hints.name or _name(job), launcher=LAUNCHER),
        world=WorldRecord(world_size=job.world_size, nnodes=nodes, backend=first.backend),
        nodes=tuple(NodeRecord(node=node, gpus=names) for node in range(min(nodes, 1024))),
        phases=phases,
        notes=tuple(_notes(job, model, stated=stated, per_node=per_node)),
    )


def _name(job: TracedJob) -> str:
    return PurePath(job.ranks[0].trace.source).name


def _per_node(job: TracedJob, hints: TraceHints) -> tuple[int, bool]:
    """Ranks of one machine, and whether the user or the list of GPUs in the trace says so."""
    listed = len(job.ranks[0].trace.gpus)
    if hints.gpus_per_node or listed:
        return min(hints.gpus_per_node or listed, job.world_size), True
    return min(_USUAL_GPUS, job.world_size), job.world_size == 1


def _notes(job: TracedJob, model: TracedModel, *, stated: bool, per_node: int) -> list[Sentence]:
    notes = [
        Sentence(
            "trace.imported", "Imported from a trace: stalls are derived from one set-up, not measured by ablation."
        )
    ]
    notes += _step_notes(job, model)
    if not stated:
        notes.append(
            Sentence("trace.gpus-assumed", f"How many GPUs a machine had is not in the trace; {per_node} is assumed.")
        )
    if model.why_not:
        notes.append(Sentence("trace.no-prediction", f"{NO_PREDICTION}{model.why_not}."))
    elif not model.record or model.record.flops_per_step is None:
        notes.append(
            Sentence(
                "trace.no-shapes",
                "FLOPs cannot be counted without shapes (record_shapes=True), so no other GPU can be predicted.",
            )
        )
    if model.strange_buckets:
        notes.append(
            Sentence(
                "trace.other-buckets",
                "Gradients travel in other pieces than DDP makes of them with one limit (a plan, a hook that "
                "compresses, or parameters that are not used): torch's buckets of 25 MiB are assumed.",
            )
        )
    return notes + _rank_notes(job)


def _step_notes(job: TracedJob, model: TracedModel) -> list[Sentence]:
    notes: list[Sentence] = []
    if job.joined > 1:
        notes.append(
            Sentence(
                "trace.accumulated-steps",
                f"{job.joined} of the profiler's steps make one: the optimizer updates after every {job.joined} "
                "batches.",
            )
        )
    elif model.record is not None and (model.record.micro_batches or 1) > 1:
        notes.append(
            Sentence("trace.accumulated", f"A step accumulates the gradients of {model.record.micro_batches} batches.")
        )
    if job.marked and len(job.numbers) > 1:
        notes.append(
            Sentence(
                "trace.first-step-dropped",
                f"The first of {len(job.numbers)} traced steps is not kept: the profiler starts in it.",
            )
        )
    elif job.marked:
        notes.append(
            Sentence(
                "trace.one-step",
                "The trace holds one step only, so the one in which the profiler starts could not be dropped.",
            )
        )
    else:
        notes.append(_unmarked(job))
    return notes


def _rank_notes(job: TracedJob) -> list[Sentence]:
    notes = []
    if any(view.trace.on_processor for view in job.ranks):
        notes.append(Sentence("trace.no-device", "No device is in the trace: operators of the CPU count as compute."))
    if len(job.ranks) == 1 and job.world_size > 1:
        notes.append(
            Sentence(
                "trace.one-rank", "One rank was traced: its collectives hold the waiting for ranks that came later."
            )
        )
    if any(_OWN_LOADING in mark.name for view in job.ranks for mark in view.trace.loader):
        notes.append(
            Sentence(
                "trace.own-loading", "The training process loads its own batches; reading is not told from preparing."
            )
        )
    notes += [note for view in job.ranks for note in view.trace.notes]
    if any(not view.one_group and len(view.groups) < view.collectives for view in job.ranks):
        notes.append(
            Sentence(
                "trace.unknown-groups",
                "The job has several process groups and the trace does not say in which a collective ran: such "
                "collectives are left unmatched.",
            )
        )
    loose = [shift.rank for shift in job.shifts[1:] if not shift.collectives]
    if loose:
        notes.append(
            Sentence(
                "trace.own-clock", f"Rank {loose[0]} shares no collective with the others; its clock is as recorded."
            )
        )
    return notes


def _unmarked(job: TracedJob) -> Sentence:
    bare = [view.rank for view in job.ranks if not view.trace.steps]
    if len(bare) == len(job.ranks):
        return Sentence(
            "trace.no-steps", "The trace marks no steps (profiler.step() was not called): all of it counts as one."
        )
    return Sentence(
        "trace.unmarked-rank",
        f"The trace of rank {bare[0]} marks no steps (profiler.step() was not called there): all of every rank's trace "
        "counts as one.",
    )


def _phases(job: TracedJob, steps: dict[int, tuple[TracedStep, ...]]) -> tuple[PhaseRecord, ...]:
    every = [step for rank_steps in steps.values() for step in rank_steps if step.number in job.kept]
    present = {
        phases.AS_IS: True,
        phases.HOST: any(step.data_wait_s is not None for step in every),
        phases.DEVICE: any(step.copy_stall_s for step in every),
        phases.ALONE: job.world_size > 1 and any(step.exchange_stall_s for step in every),
    }
    return tuple(PhaseRecord(name=name, differs=_DIFFERS[name]) for name in present if present[name])


def _write_steps(
    writer: RankWriter,
    job: TracedJob,
    steps: tuple[TracedStep, ...],
    records: tuple[PhaseRecord, ...],
    samples: int | None,
) -> None:
    """Every kept step is a block of its own; derived phases exist for kept steps only."""
    for step in steps:
        kept = step.number in job.kept
        durations = {
            phases.AS_IS: step.duration_s,
            phases.HOST: step.without_data_s,
            phases.DEVICE: step.without_copy_s,
            phases.ALONE: step.alone_s,
        }
        for phase in records:
            if kept or phase.name == phases.AS_IS:
                row = StepRow(
                    rank=writer.rank,
                    step=step.number,
                    phase=phase.name,
                    block=job.kept.index(step.number) if kept else 0,
                    start_s=step.start_s,
                    duration_s=durations[phase.name],
                    data_wait_s=step.data_wait_s if phase.name == phases.AS_IS else 0.0,
                    samples=samples,
                    kept=kept,
                )
                writer.append("steps", row)


def _write_batches(writer: RankWriter, job: TracedJob, view: RankView, samples: int | None) -> None:
    """Batches that the training process loaded itself (num_workers=0): their time is work, not waiting for others.

    A trace cannot tell reading from preparing, so all of it counts as preparing. Without samples it would be of no use.
    """
    if samples is None:
        return
    owners = [
        next((step.number for step in reversed(view.steps) if step.start_ns <= mark.start_ns), NO_STEP)
        for mark in view.trace.loader
    ]
    for number, (mark, step) in enumerate(zip(view.trace.loader, owners, strict=True)):
        if _OWN_LOADING not in mark.name or step not in job.kept:
            continue
        wall_s = (mark.end_ns - mark.start_ns) / 1e9
        row = BatchRow(view.rank, None, number, wall_s, job.seconds(view, mark.start_ns), wall_s, None, 0.0)
        row = row._replace(
            samples=max(1, samples // owners.count(step)), phase=phases.AS_IS, block=job.kept.index(step)
        )
        writer.append("batches", row)


def _write_spans(writer: RankWriter, job: TracedJob, view: RankView) -> None:
    work, names, sizes = view.trace.work, view.trace.names, view.sizes.tolist()
    tracks = [SYNC if sync else TRACKS[WorkKind(kind)] for sync, kind in zip(work.sync, work.kind, strict=True)]
    starts = ((work.start_ns + (view.shift_ns - job.zero_ns)) / 1e9).tolist()
    lengths = (np.maximum(work.end_ns - work.start_ns, 0) / 1e9).tolist()
    rows = zip(view.step.tolist(), tracks, work.name.tolist(), starts, lengths, sizes, strict=True)
    for step, track, name, start_s, length_s, size in rows:
        number = None if step == NO_STEP else step
        row = SpanRow(view.rank, number, track, names[name], start_s, length_s, None if size < 0 else size)
        writer.append("spans", row)


def _write_shared(writer: RankWriter, job: TracedJob, rank: int, shared_arrivals: tuple[Arrivals, ...]) -> None:
    for row in shared_arrivals:
        if row.rank == rank:
            late = [meeting for meeting in job.meetings if rank in meeting.waited_ns]
            moved = sum(meeting.transfer_ns for meeting in late)
            writer.append("events", _fact(rank, ARRIVALS, asdict(row) | {"transfer_ns": moved}))
    shift = next(shift for shift in job.shifts if shift.rank == rank)
    writer.append("events", _fact(rank, CLOCK, asdict(shift)))


def _write_model(writer: RankWriter, model: TracedModel) -> None:
    if model.record is not None:
        writer.model(model.record)
        for row in model.gradients:
            writer.append("gradients", GradientRow(*row))


def _fact(rank: int, kind: str, facts: dict[str, object]) -> EventRow:
    return EventRow(rank=rank, kind=kind, start_s=0.0, detail=msgspec.json.encode(facts).decode())
