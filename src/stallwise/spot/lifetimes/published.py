"""Published lifetimes, start-up, restart and checkpoint times, shipped as facts; `sources.csv` beside them says whose.

They are of Google's 2019 GPUs (K80, P100, V100) with their 24 h limit. For any other GPU or cloud give your own log.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from stallwise.errors import UnknownNameError
from stallwise.spot.lifetimes.log import Life, Log
from stallwise.spot.lifetimes.models import Bathtub, Table
from stallwise.units import SECONDS_PER_HOUR

_FOLDER = Path(__file__).parent / "published_data"
LIMIT_S = 24.0 * SECONDS_PER_HOUR

PUBLISHED_BATHTUB = Bathtub(
    0.4137, 0.9 * SECONDS_PER_HOUR, 0.76 * SECONDS_PER_HOUR, 24.0 * SECONDS_PER_HOUR, cap_s=LIMIT_S
)
"""Parameters in the code of Kadupitiya, Jadhao & Sharma, HPDC 2020, who fitted losses alone, without stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Servers of one GPU in one region, watched for 24 h: (hours, losses up to then since the entry before)."""

    gpu: str
    region: str
    machines: int
    lost_within_h: tuple[tuple[int, int], ...]
    source: str

    @property
    def lost(self) -> int:
        """How many were gone before 24 h."""
        return sum(lost for _, lost in self.lost_within_h)

    def gone(self, hours: float) -> float:
        """The part that was gone within so many hours."""
        return sum(lost for within, lost in self.lost_within_h if within <= hours) / self.machines

    def life(self) -> Table:
        """As a distribution: losses spread evenly over their hour, all that are left gone at the 24 h limit."""
        at_s, gone = [0.0], [0.0]
        for within, lost in self.lost_within_h:
            start_s = (within - 1) * float(SECONDS_PER_HOUR)
            if start_s > at_s[-1]:
                at_s.append(start_s)
                gone.append(gone[-1])
            at_s.append(within * float(SECONDS_PER_HOUR))
            gone.append(gone[-1] + lost / self.machines)
        if at_s[-1] < LIMIT_S:
            at_s.append(LIMIT_S)
            gone.append(gone[-1])
        return Table(np.array(at_s), np.minimum(np.array(gone), 1.0), cap_s=LIMIT_S)

    def log(self) -> Log:
        """As lives: each loss in the middle of its hour, the rest censored at 24 h."""
        lost = [
            Life(lived_s=(within - 0.5) * SECONDS_PER_HOUR, lost=True, gpu=self.gpu, region=self.region)
            for within, count in self.lost_within_h
            for _ in range(count)
        ]
        left = [Life(lived_s=LIMIT_S, lost=False, gpu=self.gpu, region=self.region)] * (self.machines - self.lost)
        note = "Published by the hour: a loss is put in the middle of its hour; the 24 h limit is not counted as one."
        return Log(source=f"published {self.gpu} in {self.region}", lives=(*lost, *left), notes=(note,))


@cache
def watched() -> tuple[Watched, ...]:
    """Every published table."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _rows("lifetimes"):
        found.setdefault((row["gpu"], row["region"]), []).append(row)
    return tuple(
        Watched(
            gpu=gpu,
            region=region,
            machines=int(rows[0]["machines"]),
            lost_within_h=tuple((int(row["within_h"]), int(row["lost"])) for row in rows),
            source=rows[0]["source"],
        )
        for (gpu, region), rows in found.items()
    )


def watched_in(gpu: str, region: str) -> Watched:
    """The table of one GPU in one region; the nearest names where there is none."""
    of_gpu = [table for table in watched() if table.gpu.lower() == gpu.lower()]
    if not of_gpu:
        raise UnknownNameError("GPU with published lifetimes", gpu, {table.gpu for table in watched()})
    for table in of_gpu:
        if table.region.lower() == region.lower():
            return table
    regions = {table.region for table in of_gpu}
    error = UnknownNameError(f"region with published {of_gpu[0].gpu} lifetimes", region, regions)
    error.args = (f"{error.args[0]} There are {', '.join(sorted(regions))}.",)
    raise error


@cache
def losses_by_hour_of_day() -> dict[str, tuple[int, ...]]:
    """Losses by local hour of day, by GPU."""
    found: dict[str, list[int]] = {}
    for row in _rows("hours"):
        found.setdefault(row["gpu"], []).append(int(row["lost"]))
    return {gpu: tuple(lost) for gpu, lost in found.items()}


@dataclass(frozen=True, slots=True)
class StartUp:
    """Mean time from asking for a machine to logging in: provisioning, staging, booting."""

    gpu: str
    region: str
    market: str
    samples: int
    machine_s: float


@cache
def start_ups() -> tuple[StartUp, ...]:
    """By GPU, region and market."""
    return tuple(
        StartUp(row["gpu"], row["region"], row["market"], int(row["samples"]), float(row["machine_s"]))
        for row in _rows("startup")
    )


@cache
def worker_restarts() -> dict[str, tuple[float, float]]:
    """Seconds until a worker trains, on a new machine and on one that has everything, by model."""
    return {row["model"]: (float(row["cold_s"]), float(row["warm_s"])) for row in _rows("restart")}


@cache
def checkpoints() -> tuple[tuple[float, float], ...]:
    """(MB, seconds) of 20 models' checkpoints to object storage."""
    return tuple((float(row["size_mb"]), float(row["duration_s"])) for row in _rows("checkpoints"))


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
