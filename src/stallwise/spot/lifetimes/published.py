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
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import LifetimeLog, MachineLife
from stallwise.spot.lifetimes.models import TabulatedLifetime
from stallwise.units import SECONDS_PER_HOUR

_FOLDER = Path(__file__).parent / "published_data"
LIMIT_S = 24.0 * SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLifetimes:
    """Servers of one GPU in one region over 24 h, losses by hour: (hours, losses since the entry before)."""

    gpu: str
    region: str
    machines: int
    lost_within_h: tuple[tuple[int, int], ...]
    source: str

    @property
    def lost(self) -> int:
        """Number lost before 24 h."""
        return sum(lost for _, lost in self.lost_within_h)

    def fraction_lost(self, hours: float) -> float:
        """Fraction lost within `hours`."""
        return sum(lost for within, lost in self.lost_within_h if within <= hours) / self.machines

    def life(self) -> TabulatedLifetime:
        """As a distribution: losses spread evenly over their hour, all that are left lost at the 24 h limit."""
        at_s, fractions = [0.0], [0.0]
        for within, lost in self.lost_within_h:
            start_s = (within - 1) * float(SECONDS_PER_HOUR)
            if start_s > at_s[-1]:
                at_s.append(start_s)
                fractions.append(fractions[-1])
            at_s.append(within * float(SECONDS_PER_HOUR))
            fractions.append(fractions[-1] + lost / self.machines)
        if at_s[-1] < LIMIT_S:
            at_s.append(LIMIT_S)
            fractions.append(fractions[-1])
        return TabulatedLifetime(np.array(at_s), np.minimum(np.array(fractions), 1.0), cap_s=LIMIT_S)

    def log(self) -> LifetimeLog:
        """As lives: each loss in the middle of its hour, the rest censored at 24 h."""
        lost = [
            MachineLife(lived_s=(within - 0.5) * SECONDS_PER_HOUR, lost=True, gpu=self.gpu, region=self.region)
            for within, count in self.lost_within_h
            for _ in range(count)
        ]
        left = [MachineLife(lived_s=LIMIT_S, lost=False, gpu=self.gpu, region=self.region)] * (
            self.machines - self.lost
        )
        note = Sentence(
            "lifetimes.by-hour",
            "Published by the hour: a loss is put in the middle of its hour; the 24 h limit is not counted as one.",
        )
        return LifetimeLog(source=f"published {self.gpu} in {self.region}", lives=(*lost, *left), notes=(note,))


@cache
def published_lifetimes() -> tuple[PublishedLifetimes, ...]:
    """Read every published table, by GPU and region."""
    tables: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _rows("lifetimes"):
        tables.setdefault((row["gpu"], row["region"]), []).append(row)
    return tuple(
        PublishedLifetimes(
            gpu=gpu,
            region=region,
            machines=int(rows[0]["machines"]),
            lost_within_h=tuple((int(row["within_h"]), int(row["lost"])) for row in rows),
            source=rows[0]["source"],
        )
        for (gpu, region), rows in tables.items()
    )


def published_lifetimes_in(gpu: str, region: str) -> PublishedLifetimes:
    """Return the table of one GPU in one region; the error names the nearest where there is none."""
    of_gpu = [table for table in published_lifetimes() if table.gpu.lower() == gpu.lower()]
    if not of_gpu:
        raise UnknownNameError("GPU with published lifetimes", gpu, {table.gpu for table in published_lifetimes()})
    for table in of_gpu:
        if table.region.lower() == region.lower():
            return table
    regions = {table.region for table in of_gpu}
    listing = f"There are {', '.join(sorted(regions))}."
    raise UnknownNameError(f"region with published {of_gpu[0].gpu} lifetimes", region, regions, listing=listing)


@cache
def losses_by_hour_of_day() -> dict[str, tuple[int, ...]]:
    """Losses by local hour of day, by GPU."""
    losses: dict[str, list[int]] = {}
    for row in _rows("hours"):
        losses.setdefault(row["gpu"], []).append(int(row["lost"]))
    return {gpu: tuple(lost) for gpu, lost in losses.items()}


@dataclass(frozen=True, slots=True)
class StartUpTime:
    """Mean time from asking for a machine to logging in: provisioning, staging, booting."""

    gpu: str
    region: str
    market: str
    samples: int
    machine_s: float


@cache
def start_ups() -> tuple[StartUpTime, ...]:
    """Read mean start-up times by GPU, region and market."""
    return tuple(
        StartUpTime(row["gpu"], row["region"], row["market"], int(row["samples"]), float(row["machine_s"]))
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
