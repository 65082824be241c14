"""Job speed from measured tables: Pollux' and Sia's step times per placement, Gavel's packed and spread throughput."""

import ast
import csv
import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.speed.base import Shape, Speed, even_parts
from stallwise.errors import InputError, UnknownNameError
from stallwise.inputs import bounded_rows, read_text

POLLUX_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs a job of each application trains for (the artifact of Pollux, OSDI 2021)."""
POLLUX_LOCAL_BATCH = {"yolov3": 8}
"""Largest batch per GPU where it is less than the largest measured."""
POLLUX_MACHINE = 4
"""GPUs per machine of that cluster: full speed is a gang on as few of these as hold it."""
_ROUNDING = 1e-8

Rows = list[dict[str, float]]
Floats = npt.NDArray[np.float64]

_UNREADABLE = (
    OSError, LookupError, ValueError, ArithmeticError, SyntaxError, TypeError, AttributeError, RecursionError,
    MemoryError,
)  # fmt: skip
"""What a table of throughputs that is none makes its decoders raise."""


@dataclass(frozen=True, slots=True)
class Batches:
    """How a batch is split: per GPU and pass, and passes beyond the first before an update."""

    per_gpu: int
    extra_passes: int

    def size(self, gpus: int) -> int:
        """Samples of one update."""
        return gpus * self.per_gpu * (self.extra_passes + 1)


@dataclass(frozen=True, eq=False)
class App:
    """One application of Pollux: step and exchange times per placement, and its progress per batch size."""

    name: str
    placements: Mapping[str, Rows]
    """By GPUs per machine as digits, `44`: rows of `local_bsz`, `step_time`, `sync_time`."""
    points: npt.NDArray[np.float64]
    """Rows (machines, GPUs, batch per GPU, step, sync) of every measurement."""
    progress: Mapping[int, Rows]
    """By batch size: one row per epoch, `progress`, `grad_sqr`, `grad_var`."""
    epochs: int
    largest_local: int

    @classmethod
    def read(cls, folder: Path, *, placements: str = "placements.csv", progress: Path | None = None) -> Self:
        """Read a folder of tables as the artifact has them; `progress` names another folder for training progress."""
        by_placement: dict[str, Rows] = {}
        for row in _rows(folder / placements):
            by_placement.setdefault(str(int(row["placement"])), []).append(row)
        measured: list[tuple[float, ...]] = [
            (len(text), sum(map(int, text)), row["local_bsz"], row["step_time"], row["sync_time"])
            for text, rows in by_placement.items()
            for row in rows
        ]
        points = _averaged(measured)
        if (folder / "scalability.csv").is_file() and placements == "placements.csv":
            names = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
            points += [tuple(row[name] for name in names) for row in _rows(folder / "scalability.csv")]
        tables = {
            int(path.stem.rpartition("-")[2]): _rows(path)
            for path in sorted((progress or folder).glob("validation-*.csv"))
        }
        largest = max(int(row[2]) for row in points)
        shortest = min((len(rows) for rows in tables.values()), default=0)
        return cls(
            name=folder.name,
            placements={text: sorted(rows, key=lambda row: row["local_bsz"]) for text, rows in by_placement.items()},
            points=np.array(points),
            progress=dict(sorted(tables.items())),
            epochs=POLLUX_EPOCHS.get(folder.name, shortest),
            largest_local=POLLUX_LOCAL_BATCH.get(folder.name, largest),
        )

    def batches(self, gpus: int, batch_size: int) -> Batches:
        """Split a batch over GPUs, in several passes where a GPU cannot hold its part."""
        local = math.ceil(batch_size / gpus - _ROUNDING)
        extra = math.ceil(local / self.largest_local - _ROUNDING) - 1
        if gpus == 1 and batch_size > min(self.progress):
            extra = max(1, extra)
        per_gpu = math.ceil(local / (extra + 1) - _ROUNDING)
        return Batches(min(per_gpu, max(self.progress) // (gpus * (extra + 1))), extra)

    def step_s(self, parts: Sequence[int], batch_size: int) -> float:
        """Return the seconds of one update on a placement: the last pass exchanges, the others only compute."""
        split = self.batches(sum(parts), batch_size)
        step, sync = (float(times[0]) for times in self.times(tuple(parts), [split.per_gpu]))
        return step + split.extra_passes * (step - sync)

    def times(self, parts: tuple[int, ...], per_gpu: Sequence[int]) -> tuple[Floats, Floats]:
        """Return step and exchange time on a placement, for every batch per GPU.

        Interpolated between the batches measured there; else between machines, GPUs and batches; outside of what was
        measured, the nearest point.
        """
        rotated = min(parts[i:] + parts[:i] for i in range(len(parts)))
        # The tables write a placement as digits: from ten GPUs on a machine they would mean another one.
        rows = self.placements.get("".join(map(str, rotated))) if max(rotated) < 10 else None
        batches = np.array(per_gpu, dtype=np.float64)
        out = np.full((len(batches), 2), np.nan)
        if rows is not None:
            at = [row["local_bsz"] for row in rows]
            for column, name in enumerate(("step_time", "sync_time")):
                out[:, column] = np.interp(batches, at, [row[name] for row in rows], left=np.nan, right=np.nan)
        if (outside := np.isnan(out).any(axis=1)).any():
            where = np.column_stack(
                [np.full_like(batches, min(len(parts), 16)), np.full_like(batches, sum(parts)), batches]
            )
            # One by one: in a batch the search for a point starts where the one before ended, and on the border of
            # two simplices that decides which of them answers, so the last bit would depend on the company.
            for point in np.flatnonzero(outside):
                out[point] = self._linear(where[point : point + 1])[0]
        if (outside := np.isnan(out).any(axis=1)).any():
            out[outside] = self._nearest(where[outside])
        return out[:, 0], out[:, 1]

    @cached_property
    def _linear(self) -> Any:
        from scipy.interpolate import LinearNDInterpolator  # type: ignore[import-untyped]

        return LinearNDInterpolator(self.points[:, :3], self.points[:, 3:])

    @cached_property
    def _nearest(self) -> Any:
        from scipy.interpolate import NearestNDInterpolator

        return NearestNDInterpolator(self.points[:, :3], self.points[:, 3:], rescale=True)

    def updates(self, gpus: int, batch_size: int) -> float:
        """Return the updates to the end of training: the progress of each epoch over the gain per update at this batch.

        gain = (var + sqr) / (var / scale + sqr), scale = batch / smallest batch (Pollux' statistical efficiency).
        """
        if not self.progress:
            raise InputError(
                f"Application {self.name!r} has no validation tables, so the length of its jobs is unknown."
            )
        whole = self.batches(gpus, batch_size).size(gpus)
        scale, done, total = whole / min(self.progress), 0.0, 0.0
        for epoch in range(self.epochs):
            until = min(rows[epoch]["progress"] for rows in self.progress.values())
            square, variance = self._statistics(whole, epoch)
            total += (until - done) / ((variance + square) / (variance / scale + square))
            done = until
        return total

    def _statistics(self, batch_size: int, epoch: int) -> tuple[float, float]:
        sizes = list(self.progress)
        rows = [self.progress[size][epoch] for size in sizes]
        square, variance = (
            float(np.interp(batch_size, sizes, [row[k] for row in rows])) for k in ("grad_sqr", "grad_var")
        )
        return square, variance


@dataclass(frozen=True, slots=True, eq=False)
class Apps(Speed):
    """Speed of Pollux' and Sia's applications; full speed is the gang packed on as few machines as hold it."""

    apps: Mapping[str, App]
    machine: int = POLLUX_MACHINE
    by_parts: ClassVar[bool] = True
    """Placements of equal width but other parts (4+4, 7+1) were measured apart."""
    packed_s: dict[tuple[str, int, int], float] = field(default_factory=dict)
    kinds: Mapping[str, Mapping[str, App]] = field(default_factory=dict)
    """The same on every other kind of GPU that was measured."""
    reference: Mapping[str, App] | None = None
    """Whose packed gangs are full speed, where that is not `apps`."""

    def of_kind(self, kind: str) -> Self:
        """Return the speeds on another kind of GPU. Full speed stays that of the reference kind."""
        if kind not in self.kinds:
            raise UnknownNameError("kind of GPU with measured placements", kind, sorted(self.kinds))
        return replace(self, apps=self.kinds[kind], reference=self.reference or self.apps)

    @classmethod
    def read(cls, folder: Path, *, progress: Path | None = None, machine: int = POLLUX_MACHINE) -> Self:
        """Read every application in a folder; Sia's `placements-<kind>.csv` are the same on other kinds of GPUs."""
        applications = _applications(folder, "placements.csv", progress)
        if not applications:
            raise InputError(f"{folder} holds no application with a placements.csv.")
        names = sorted({path.name for path in folder.glob("*/placements-*.csv")})
        kinds = {Path(name).stem.partition("-")[2]: _applications(folder, name, progress) for name in names}
        return cls(applications, machine, kinds=kinds)

    def job(
        self, name: str, time_s: float, application: str, gpus: int, batch_size: int, line: int | None = None
    ) -> Job:
        """Turn a row of a workload into a job: its work is its updates at full speed."""
        if application not in self.apps:
            raise UnknownNameError("application", application, self.apps)
        work = self.apps[application].updates(gpus, batch_size) * self._packed(application, gpus, batch_size)
        return Job(
            id=name, arrival_s=time_s, gpus=gpus, work_s=work, model=application, batch_size=batch_size, line=line
        )

    def _packed(self, application: str, gpus: int, batch_size: int) -> float:
        key = (application, gpus, batch_size)
        if key not in self.packed_s:
            app = (self.reference or self.apps)[application]
            self.packed_s[key] = app.step_s(packed(gpus, self.machine), batch_size)
        return self.packed_s[key]

    def kind(self, job: Job) -> Hashable:
        return job.model, job.batch_size

    def rate(self, job: Job, shape: Shape) -> float:
        """Return the packed step over the step on the placement; above 1 where a spread placement was measured faster.

        A shape without parts is taken as even over the domains of its tightest level.
        """
        if job.model is None or job.batch_size is None:
            return 1.0
        parts = shape.parts or even_parts(shape.gpus, max(shape.spans[:1] or (1,)))
        if job.model not in self.apps:
            raise InputError(f"The application {job.model!r} was not measured on this kind of GPU. Take another kind.")
        step_s = self.apps[job.model].step_s(parts, job.batch_size)
        return self._packed(job.model, shape.gpus, job.batch_size) / step_s


@dataclass(frozen=True, slots=True, eq=False)
class GavelThroughputs(Speed):
    """Speed from Gavel's throughputs: packed is full speed, spread over more machines than needed is slower."""

    packed: Mapping[tuple[str, int], float]
    """Steps per second by job type and GPUs."""
    spread: Mapping[tuple[str, int], float]
    machine: int = 8
    by_parts: ClassVar[bool] = True
    """It wants to know on how many machines a gang lies, not how many racks it touches."""
    compares_kinds: ClassVar[bool] = True
    kinds: Mapping[str, Mapping[tuple[str, int], float]] = field(default_factory=dict)
    """Packed throughputs on every kind of GPU that was measured."""
    gpu: str | None = None
    """The kind jobs run on, where that is not the one of full speed."""

    def of_kind(self, kind: str) -> Self:
        """Return the speeds on another kind of GPU. Full speed stays that of the reference kind."""
        if kind not in self.kinds:
            raise UnknownNameError("kind of GPU with measured throughputs", kind, self.kinds)
        return replace(self, gpu=kind)

    @classmethod
    def read(cls, path: Path, gpu: str = "v100", machine: int = 8) -> Self:
        """Read `simulation_throughputs.json`; full speed is that of one kind of GPU."""
        try:
            tables = json.loads(read_text(path))
            packed, spread = (_alone(tables[name]) for name in (gpu, f"{gpu}_unconsolidated"))
            kinds = {name: _alone(table) for name, table in tables.items() if not name.endswith("_unconsolidated")}
        except _UNREADABLE as error:
            raise InputError(f"{path} has no Gavel throughputs of {gpu!r}: {error}.") from error
        return cls(packed, spread, machine, kinds=kinds)

    def on_kind(self, job: Job, kind: str) -> float:
        """Return the throughput on a kind of GPU over full speed; 0 where it was not measured (it does not fit)."""
        if kind not in self.kinds:
            raise UnknownNameError("kind of GPU with measured throughputs", kind, self.kinds)
        key = (job.model or "", job.gpus)
        return self.kinds[kind].get(key, 0.0) / self.packed[key] if key in self.packed else 0.0

    def job(self, name: str, time_s: float, job_type: str, gpus: int, steps: float, line: int | None = None) -> Job:
        """Turn a row of a trace into a job: steps at the packed throughput."""
        if (job_type, gpus) not in self.packed:
            raise UnknownNameError(
                "job type of that many GPUs", f"{job_type} x{gpus}", (f"{t} x{n}" for t, n in self.packed)
            )
        work = steps / self.packed[job_type, gpus]
        return Job(id=name, arrival_s=time_s, gpus=gpus, work_s=work, model=job_type, line=line)

    def kind(self, job: Job) -> Hashable:
        return job.model

    def rate(self, job: Job, shape: Shape) -> float:
        """Return 1 when packed, else spread over packed throughput; times the relative speed of the GPU kind."""
        key = (job.model or "", shape.gpus)
        kind = self._worth(key)
        machines = len(shape.parts) or max(shape.spans[:1] or (1,))
        if machines <= math.ceil(shape.gpus / self.machine) or key not in self.packed or key not in self.spread:
            return kind
        return kind * min(1.0, max(self.spread[key] / self.packed[key], 1e-6))

    def _worth(self, key: tuple[str, int]) -> float:
        if self.gpu is None or key not in self.packed:
            return 1.0
        if key not in self.kinds[self.gpu]:
            raise InputError(
                f"Jobs of type {key[0]!r} on {key[1]} GPUs were not measured on {self.gpu}, where they do not fit. "
                "Take another kind of GPU or leave them out."
            )
        return self.kinds[self.gpu][key] / self.packed[key]


def _applications(folder: Path, placements: str, progress: Path | None) -> dict[str, App]:
    """Read the applications in a folder that have the table of placements."""
    return {
        path.name: App.read(path, placements=placements, progress=progress / path.name if progress else None)
        for path in sorted(folder.iterdir())
        if (path / placements).is_file()
    }


def packed(gpus: int, machine: int) -> tuple[int, ...]:
    """Return the GPUs per machine of a gang on as few machines as hold it, most first."""
    whole, rest = divmod(gpus, machine)
    return (machine,) * whole + ((rest,) if rest else ())


def _alone(table: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], float]:
    """Return the throughputs of jobs that share their GPUs with no other."""
    keys = {ast.literal_eval(text): values["null"] for text, values in table.items()}
    return {(str(kind), int(gpus)): float(value) for (kind, gpus), value in keys.items() if float(value) > 0}


def _averaged(points: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Average measurements at the same point."""
    groups: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
    for point in points:
        groups.setdefault(point[:3], []).append(point[3:])
    return [(*where, *np.mean(values, axis=0)) for where, values in groups.items()]


def _rows(path: Path) -> Rows:
    try:
        with path.open(newline="") as file:
            rows = bounded_rows(csv.DictReader(file), path)
            return [{name: float(value) for name, value in row.items()} for row in rows]
    except (OSError, ValueError, TypeError, ArithmeticError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table of numbers: {error}.") from error


@dataclass(frozen=True, slots=True)
class Scaling(Speed):
    """Steps per second of every model and batch on numbers of GPUs, wherever they are; jobs may have any of them."""

    rates: Mapping[tuple[str, int], Mapping[int, float]]

    @classmethod
    def of(cls, measured: Iterable[tuple[str, int, int, float]]) -> Self:
        """Collect (model, batch, GPUs, steps per second); of several, the fastest, for counts of steps are cut."""
        rates: dict[tuple[str, int], dict[int, float]] = {}
        for model, batch, gpus, rate in measured:
            by_gpus = rates.setdefault((model, batch), {})
            by_gpus[gpus] = max(rate, by_gpus.get(gpus, 0.0))
        return cls({key: dict(sorted(by_gpus.items())) for key, by_gpus in sorted(rates.items())})

    def kind(self, job: Job) -> Hashable:
        """All alike: a gang is as fast anywhere."""

    def rate(self, job: Job, shape: Shape) -> float:
        """Return 1: jobs run at full speed wherever their GPUs are."""
        return 1.0

    def by_gpus(self, job: Job) -> list[tuple[int, float]]:
        """Return every measured number of GPUs, rising, with its speed over that of the job's gang."""
        rates = self.rates[job.model or "", job.batch_size or 0]
        return [(gpus, rate / rates[job.gpus]) for gpus, rate in rates.items()]
