"""Goodput of measured applications (Qiao et al., Pollux, OSDI 2021): training progress per second on any placement.

goodput = gain / step, with the step of a batch on a placement from measured tables (`tables.App`) and

    gain = (var + sqr) / (var / scale + sqr),   scale = batch / smallest batch,

the progress of one update over that of one at the smallest batch; var and sqr are the measured gradient statistics of
the epoch. A job may have its batch fixed, or run each epoch at the batch of the largest goodput: one of 50 between the
smallest and the largest measured, at even ratios.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.speed._tables import App, Apps, packed
from stallwise.cluster.speed.base import Speed
from stallwise.errors import InputError

Floats = npt.NDArray[np.float64]
Parts = tuple[int, ...]

_BATCHES = 50
SINGLE_GPU = {"ncf": 32768}
"""Applications that stay on one GPU, and the batch they run there (as in Pollux' artifact)."""


@dataclass(slots=True, eq=False)
class AppGoodput:
    """Goodput of one application on one kind of GPU, cached."""

    app: App
    _times: dict[tuple[Parts, int], tuple[float, float]] = field(default_factory=dict)
    _speeds: dict[tuple[Parts, int, int | None], float] = field(default_factory=dict)
    _steps: dict[Parts, tuple[Floats, Floats]] = field(default_factory=dict)

    @property
    def least_batch(self) -> int:
        """The batch its progress is counted in."""
        return min(self.app.progress)

    @property
    def most_gpus(self) -> int:
        """GPUs beyond which the largest batch gives each less than was measured."""
        return max(1, max(self.app.progress) // int(self.app.points[:, 2].min()))

    @property
    def most_machines(self) -> int:
        """The most machines it was measured on."""
        return int(self.app.points[:, 0].max())

    def until(self, epoch: int) -> float:
        """Return the progress at the end of an epoch."""
        return min(rows[epoch]["progress"] for rows in self.app.progress.values())

    def updates(self, batch: int, epoch: int) -> float:
        """Return the updates at a batch until the end of an epoch, as measured."""
        sizes = list(self.app.progress)
        return float(np.interp(batch, sizes, [self.app.progress[size][epoch]["iteration"] for size in sizes]))

    def step_s(self, parts: Parts, per_gpu: int, extra: int) -> float:
        """Return the seconds of one update: the last pass exchanges, `extra` passes before it only compute."""
        if (parts, per_gpu) not in self._times:
            times = self.app.times(parts, [per_gpu])
            self._times[parts, per_gpu] = float(times[0][0]), float(times[1][0])
        step, sync = self._times[parts, per_gpu]
        return step + extra * (step - sync)

    def goodput(self, parts: Parts, epoch: int, batch: int | None = None) -> float:
        """Return the progress per second in an epoch; without a batch, at the best one."""
        key = (parts, epoch, batch)
        if key not in self._speeds:
            if batch is None:
                sizes, steps = self._choices(parts)
                self._speeds[key] = float((self._gain(sizes, epoch) / steps).max())
            else:
                split = self.app.batches(sum(parts), batch)
                whole = np.array([float(split.size(sum(parts)))])
                step = self.step_s(parts, split.per_gpu, split.extra_passes)
                self._speeds[key] = float(self._gain(whole, epoch)[0]) / step
        return self._speeds[key]

    def _gain(self, batch: Floats, epoch: int) -> Floats:
        sizes = list(self.app.progress)
        rows = [self.app.progress[size][epoch] for size in sizes]
        square, variance = (np.interp(batch, sizes, [row[k] for row in rows]) for k in ("grad_sqr", "grad_var"))
        return np.asarray((variance + square) / (variance * self.least_batch / batch + square))

    def _choices(self, parts: Parts) -> tuple[Floats, Floats]:
        """Return the batches that can be run on a placement, and their steps in seconds."""
        if parts not in self._steps:
            gpus, least = sum(parts), int(self.app.points[:, 2].min())
            low, high = max(self.least_batch, least * gpus), max(self.app.progress)
            splits = [
                self.app.batches(gpus, math.ceil(size - 1e-8)) for size in np.geomspace(min(low, high), high, _BATCHES)
            ]
            splits = [split for split in splits if split.per_gpu >= 1 and split.size(gpus) >= self.least_batch]
            steps = [self.step_s(parts, split.per_gpu, split.extra_passes) for split in splits]
            self._steps[parts] = np.array([float(split.size(gpus)) for split in splits]), np.array(steps)
        return self._steps[parts]


def goodput_tables(
    jobs: Sequence[Job], speed: Speed, kinds: tuple[str, ...], policy: str
) -> list[Mapping[str, AppGoodput]]:
    """Return, for every kind of GPU, the goodput of every application of the jobs."""
    if not isinstance(speed, Apps):
        raise InputError(
            f"{policy} decides how many GPUs a job gets, and needs its measured step times on any number of them and "
            "its training progress. This trace carries none; the workloads of Pollux and Sia do."
        )
    names = sorted({job.model for job in jobs if job.model is not None})
    tables = [speed if kind == "" else speed.of_kind(kind) for kind in kinds]
    for table, kind in zip(tables, kinds, strict=True):
        for name in names:
            if name not in table.apps:
                raise InputError(f"The application {name!r} was not measured on {kind or 'this kind of GPU'}.")
    return [{name: app_goodput(table.apps[name]) for name in names} for table in tables]


@lru_cache(maxsize=64)
def app_goodput(app: App) -> AppGoodput:
    """Return the goodput of an application; what one simulation computed serves the next."""
    return AppGoodput(app)


def packed_parts(gpus: int, machine: int) -> Parts:
    """A gang on as few machines as hold it."""
    return packed(gpus, machine)
