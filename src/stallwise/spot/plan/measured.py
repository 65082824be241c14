"""What a run record says that a plan needs: the step, samples in it, how long a checkpoint took, how large one is."""

from dataclasses import dataclass
from pathlib import PurePath

from stallwise.errors import InputError
from stallwise.model.intervals import Interval
from stallwise.run.reader import Run

# Weights and the two moments of Adam, four bytes each: what is saved when nothing is known of the optimizer.
_BYTES_PER_PARAMETER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A job as recorded; None for what the record does not hold."""

    name: str
    source: str
    step: Interval
    samples_per_s: float | None
    machines: int
    gpus: tuple[str, ...]
    checkpoint_s: float | None
    checkpoints: int
    checkpoint_bytes: int | None


def measured_of(run: Run, step: Interval, samples_per_s: float | None) -> Measured:
    """The record, with its step as the caller summarised it."""
    known = run.manifest
    durations_s = _checkpoints_s(run)
    return Measured(
        name=PurePath(known.job.script).name or known.job.script,
        source=str(run.path),
        step=step,
        samples_per_s=samples_per_s,
        machines=max(1, known.world.nnodes),
        gpus=tuple(dict.fromkeys(gpu for node in known.nodes for gpu in node.gpus)),
        checkpoint_s=sum(durations_s) / len(durations_s) if durations_s else None,
        checkpoints=len(durations_s),
        checkpoint_bytes=known.model.parameters * _BYTES_PER_PARAMETER if known.model else None,
    )


def _checkpoints_s(run: Run) -> list[float]:
    """The longest of the ranks' saves in each step in which one was made: the job waits for all of them."""
    events = run.table("events").filter(kind="checkpoint").drop_nulls("duration_s")
    longest: dict[object, float] = {}
    for step, duration_s in events.select("step", "duration_s").iter_rows():
        longest[step] = max(longest.get(step, 0.0), duration_s)
    return list(longest.values())


def work_s(
    measured: Measured, machines: int, *, steps: int | None, samples: float | None, given_s: float | None = None
) -> tuple[float, list[str]]:
    """Seconds of work on so many machines, and what had to be assumed; `given_s` where the caller knows them.

    Steps are those of the recorded job: with more machines, each with its batch, the same samples take fewer steps.
    """
    if sum(one is not None for one in (steps, samples, given_s)) != 1:
        raise InputError("Say how long the job is: either --steps, of the job as recorded, or --samples, or --work.")
    if given_s is not None:
        if given_s <= 0:
            raise InputError("--work takes a time above 0.")
        return given_s, []
    said = []
    if samples is not None:
        if measured.samples_per_s is None:
            raise InputError(
                f"The run {measured.source} does not say how many samples a step has. Give --steps instead."
            )
        seconds = samples / measured.samples_per_s
    else:
        seconds = (steps or 0) * measured.step.value
    if seconds <= 0:
        raise InputError("A job needs at least one step. Give --steps or --samples above 0.")
    if machines != measured.machines:
        said.append(
            f"{machines} machines do {machines / measured.machines:.3g} times the samples per second of the recorded "
            f"{measured.machines}; stallwise whatif says how far that holds."
        )
    return seconds * measured.machines / machines, said
