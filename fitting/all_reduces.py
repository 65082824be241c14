"""All-reduce times published in issue threads of NCCL, by link class (`all_reduces.csv`).

Figures are bus bandwidths of nccl-tests for large messages: 2 (n - 1)/n of the message over the time, so the rate at
which a ring's narrowest hop was passed. Where NVLink SHARP adds up in the switch the figure is not the rate of a link,
and such rows are left out.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fitting.ridge import Vector
from stallwise.model.exchange.attained import LINK_CLASSES, SHARED_CLASSES, attained_fraction

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceTime:
    """One published all-reduce."""

    link: str
    gpu: str
    gpus: int
    listed_bytes_per_s: float
    message_bytes: float
    bus_bytes_per_s: float
    source: str

    @property
    def attained(self) -> float:
        """Part of the listed rate."""
        return self.bus_bytes_per_s / self.listed_bytes_per_s


@cache
def all_reduces() -> tuple[AllReduceTime, ...]:
    """Every published all-reduce."""
    with (Path(__file__).parent / "all_reduces.csv").open(newline="") as lines:
        return tuple(
            AllReduceTime(
                link=row["link"],
                gpu=row["gpu"],
                gpus=int(row["gpus"]),
                listed_bytes_per_s=float(row["listed_gb_per_s"]) * _GB,
                message_bytes=float(row["message_bytes"]),
                bus_bytes_per_s=float(row["bus_gb_per_s"]) * _GB,
                source=row["source"],
            )
            for row in csv.DictReader(lines)
        )


def fit_links(times: Sequence[AllReduceTime]) -> dict[str, float]:
    """Fit what each class attains, and how it falls with the number of GPUs; medians over sources, each one machine.

    A class without measurements gets the median over all sources of the others.
    """
    crowding = {link: _crowding(times, link) for link in SHARED_CLASSES}
    seen = [value for value in crowding.values() if value is not None]
    slopes = {link: float(np.mean(seen or [0.0])) if value is None else value for link, value in crowding.items()}
    sources = {link: _attained(times, link, slopes.get(link, 0.0)) for link in LINK_CLASSES}
    every = [value for values in sources.values() for value in values]
    attained = {f"attained:{link}": float(np.exp(np.median(values or every))) for link, values in sources.items()}
    return {name: min(1.0, value) for name, value in attained.items()} | {
        f"crowding:{link}": value for link, value in slopes.items()
    }


def _crowding(times: Sequence[AllReduceTime], link: str) -> float | None:
    """Median slope, within sources that measured several numbers of GPUs; None where there is none."""
    slopes = []
    for one in _by_source(times, link):
        doublings = np.log([time.gpus for time in one])
        if np.ptp(doublings) > 0:
            slopes.append(-np.polyfit(doublings, np.log([time.attained for time in one]), 1)[0])
    return max(0.0, float(np.median(slopes))) if slopes else None


def _attained(times: Sequence[AllReduceTime], link: str, crowding: float) -> list[float]:
    """Logarithms of what two GPUs attain, by source."""
    return [
        float(np.mean([np.log(time.attained) + crowding * np.log(time.gpus / 2) for time in one]))
        for one in _by_source(times, link)
    ]


def _by_source(times: Sequence[AllReduceTime], link: str) -> list[list[AllReduceTime]]:
    mine = [time for time in times if time.link == link]
    return [[time for time in mine if time.source == source] for source in dict.fromkeys(t.source for t in mine)]


def held_out_links(times: Sequence[AllReduceTime], groups: Sequence[str]) -> Vector:
    """Logarithms of measured over predicted seconds, each by a fit without its group."""
    errors = []
    for time, group in zip(times, groups, strict=True):
        fitted = fit_links([other for other, its in zip(times, groups, strict=True) if its != group])
        errors.append(np.log(attained_fraction(time.link, time.gpus, fitted) / time.attained))
    return np.array(errors)
