"""Times that a plan needs: those in a run record, and estimates of the others from published measurements.

Saving a checkpoint, getting a machine and starting a worker on it are fitted on CM-DARE's published measurements and
judged by leaving out one whole model at a time: the repeats of one model are alike, and a random split over repeats
measures memory, not prediction. The published best model (a support-vector machine with a width of 1 MB) is the worst
one for a size it has not seen; a straight line is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

import numpy as np

from stallwise.errors import InputError
from stallwise.model.statistics.intervals import Interval
from stallwise.run.reader import Run
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes import published
from stallwise.units import MB

# Weights and the two moments of Adam, four bytes each: what is saved when nothing is known of the optimizer.
_BYTES_PER_PARAMETER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job as recorded in a run; None for what the record does not hold."""

    name: str
    source: str
    step: Interval
    samples_per_s: float | None
    machines: int
    gpus: tuple[str, ...]
    checkpoint_s: float | None
    checkpoints: int
    checkpoint_bytes: int | None


def recorded_job(run: Run, step: Interval, samples_per_s: float | None) -> RecordedJob:
    """Collect what a plan needs from a run; the step and its rate are those the caller summarised."""
    manifest = run.manifest
    durations_s = _checkpoints_s(run)
    return RecordedJob(
        name=PurePath(manifest.job.script).name or manifest.job.script,
        source=str(run.path),
        step=step,
        samples_per_s=samples_per_s,
        machines=max(1, manifest.world.nnodes),
        gpus=tuple(dict.fromkeys(gpu for node in manifest.nodes for gpu in node.gpus)),
        checkpoint_s=sum(durations_s) / len(durations_s) if durations_s else None,
        checkpoints=len(durations_s),
        checkpoint_bytes=manifest.model.parameters * _BYTES_PER_PARAMETER if manifest.model else None,
    )


def _checkpoints_s(run: Run) -> list[float]:
    """Durations of checkpoints: the longest of the ranks' in each step, because the job waits for all of them."""
    events = run.table("events")
    events = events.filter(events["kind"].equals("checkpoint") & ~events["duration_s"].null)
    longest: dict[object, float] = {}
    for step, duration_s in events.select("step", "duration_s").rows():
        longest[step] = max(longest.get(step, 0.0), duration_s)
    return list(longest.values())


def work_s(
    job: RecordedJob, speedup: float, *, steps: int | None, samples: float | None, given_s: float | None = None
) -> float:
    """Seconds of work on machines that together do `speedup` times the samples per second of the recorded ones.

    Steps are those of the recorded job: with more machines, each with its batch, the same samples take fewer steps.
    `given_s` where the caller knows the seconds.
    """
    if sum(one is not None for one in (steps, samples, given_s)) != 1:
        raise InputError(
            "The length of the job needs exactly one of: steps of the job as recorded, samples, or a time.",
            fields=("steps", "samples", "work"),
        )
    if given_s is not None:
        if given_s <= 0:
            raise InputError("The time of the job must be above 0.", fields=("work",))
        return given_s
    if samples is not None:
        if job.samples_per_s is None:
            raise InputError(
                f"The run {job.source} does not say how many samples a step has. Give its steps instead.",
                fields=("steps",),
            )
        seconds = samples / job.samples_per_s
    else:
        seconds = (steps or 0) * job.step.value
    if seconds <= 0:
        raise InputError("A job needs at least one step.", fields=("steps", "samples"))
    return seconds / speedup


@dataclass(frozen=True, slots=True)
class RegressionLine:
    """y = intercept + slope x, with the errors (predicted / measured - 1) of points that were left out."""

    intercept: float
    slope: float
    held_out: tuple[float, ...]
    largest_x: float

    def __call__(self, x: float) -> float:
        return self.intercept + self.slope * x

    @property
    def mape(self) -> float:
        """Mean of the absolute held-out errors."""
        return float(np.mean(np.abs(self.held_out)))

    def bounds(self, x: float) -> tuple[float, float]:
        """The line divided by the 10 % and 90 % quantiles of measured over predicted among held-out points."""
        ratios = 1.0 / (1.0 + np.array(self.held_out))
        low, high = np.quantile(ratios, [0.1, 0.9])
        return self(x) * float(low), self(x) * float(high)


def fit_line(x: Sequence[float], y: Sequence[float], groups: Sequence[object] | None = None) -> RegressionLine:
    """Fit by least squares; held-out errors by leaving out one group at a time (by default each point)."""
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    labels = list(groups) if groups is not None else list(range(len(xs)))
    errors = np.empty(len(xs))
    for label in dict.fromkeys(labels):
        out = np.array([other == label for other in labels])
        slope, intercept = np.polyfit(xs[~out], ys[~out], 1)
        errors[out] = (intercept + slope * xs[out]) / ys[out] - 1.0
    slope, intercept = np.polyfit(xs, ys, 1)
    return RegressionLine(float(intercept), float(slope), tuple(errors.tolist()), float(xs.max()))


@cache
def checkpoint_line() -> RegressionLine:
    """Seconds over MB: 20 models' checkpoints to Google's object storage, 6 to 204 MB."""
    sizes, seconds = zip(*published.checkpoints(), strict=True)
    return fit_line(sizes, seconds)


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """An estimated time with bounds and a note on where it comes from."""

    s: float
    low_s: float
    high_s: float
    note: Sentence


def checkpoint_time(size_bytes: float) -> TimeEstimate:
    """Estimate the time to save a checkpoint of `size_bytes`."""
    line, size_mb = checkpoint_line(), size_bytes / MB
    low_s, high_s = line.bounds(size_mb)
    beyond = f"; far beyond the {line.largest_x:.0f} MB it was fitted on" if size_mb > 2 * line.largest_x else ""
    note = Sentence(
        "checkpoint.by-size",
        f"Saving {size_mb:,.0f} MB takes {line(size_mb):.3g} s by a line through 20 published checkpoints to object "
        f"storage, 2019 (held-out error {line.mape:.0%}){beyond}.",
    )
    return TimeEstimate(line(size_mb), low_s, high_s, note)


def machine_start(gpu: str | None = None, market: str = "spot") -> TimeEstimate:
    """Estimate the time until a machine can be logged into: the mean for that GPU and market, else for the market."""
    of_market = [start for start in published.start_ups() if start.market == market]
    chosen = [start for start in of_market if gpu and start.gpu.lower() == gpu.lower()] or of_market
    means = [start.machine_s for start in chosen]
    weights = [start.samples for start in chosen]
    mean_s = float(np.average(means, weights=weights))
    note = Sentence(
        "machines.provision",
        f"A replacement is there {mean_s:.0f} s after it is asked for, as on Google's {market} GPUs of 2019.",
        mean_s=mean_s,
    )
    return TimeEstimate(mean_s, min(means), max(means), note)


def worker_start(*, warm: bool = False) -> TimeEstimate:
    """Estimate the time until a worker trains on a machine that is there."""
    times = [pair[1 if warm else 0] for pair in published.worker_restarts().values()]
    mean_s = float(np.mean(times))
    note = Sentence(
        "machines.restart",
        f"Training goes on {mean_s:.0f} s after the machines are there, the mean of four models with "
        f"{'everything in place' if warm else 'nothing in place'}.",
        mean_s=mean_s,
    )
    return TimeEstimate(mean_s, min(times), max(times), note)
