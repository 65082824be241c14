"""Arrivals at the rhythm of a real cluster: Helios Venus, jobs per 10 minutes over half a year (HeliosData, CC BY 4.0).

The file has no jobs, so it is no trace; it gives the arrivals of the jobs of another trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import BadRowError, TraceTable, parse_date, parse_time, read_table
from stallwise.errors import InputError

COUNTS = frozenset({"time", "submit_gpu_job", "submit_gpu_num"})


@dataclass(frozen=True, slots=True, eq=False)
class Rhythm:
    """Cumulative number of submissions over time."""

    source: str
    at_s: npt.NDArray[np.float64]
    total: npt.NDArray[np.float64]

    def arrivals(self, count: int, span_s: float, seed: int) -> npt.NDArray[np.float64]:
        """Draw `count` arrivals within `span_s`: an inhomogeneous Poisson process, given its number of arrivals.

        Sorted uniform draws go through the inverse of the counted submissions.
        """
        end = float(np.interp(span_s, self.at_s, self.total))
        if end <= 0:
            raise InputError(f"{self.source} has no submission in its first {span_s / 3600:,.1f} h. Take another.")
        drawn = np.sort(np.random.default_rng(seed).uniform(0.0, end, count))
        return np.asarray(np.interp(drawn, self.total, self.at_s))


def read_rhythm(path: Path) -> Rhythm:
    """Read the GPU jobs of `cluster_throughput_10min.csv`."""
    table = read_table(path)
    if not set(table.columns) >= COUNTS:
        raise InputError(
            f"{path} has no columns time and submit_gpu_job, so it gives no arrivals. They are given, batch, poisson, "
            "or a table of submissions per interval.",
            fields=("arrivals",),
        )
    return _rhythm(table)


def _rhythm(table: TraceTable) -> Rhythm:
    at, count = table.at("time"), table.at("submit_gpu_job")
    times, counts = [], []
    for line, fields in table.rows:
        try:
            times.append(parse_date(fields[at], "time"))
            counts.append(parse_time(fields[count], "submit_gpu_job"))
        except (BadRowError, IndexError) as bad:
            raise InputError(f"{table.source}, line {line}: {bad}. Correct the line.") from None
    if len(times) < 2 or any(later <= earlier for earlier, later in pairwise(times)):
        raise InputError(f"{table.source} needs at least two rows in order of time. Check the file.")
    edges = np.array([*times, 2 * times[-1] - times[-2]]) - times[0]
    # A little everywhere keeps the inverse single-valued through hours without any submission.
    total = np.concatenate([[0.0], np.cumsum(np.maximum(counts, 1e-9))])
    return Rhythm(table.source, edges, total)


def with_rhythm(jobs: Sequence[Job], rhythm: Rhythm, *, span_s: float, seed: int) -> list[Job]:
    """Return the same jobs in the same order, arriving at this rhythm within `span_s`."""
    ordered = sorted(jobs, key=lambda job: job.arrival_s)
    if span_s > rhythm.at_s[-1]:
        raise InputError(
            f"The trace spans {span_s / 86400:,.0f} days and {rhythm.source} only {rhythm.at_s[-1] / 86400:,.0f}. "
            "Take a shorter trace or a higher load."
        )
    moments = rhythm.arrivals(len(ordered), span_s, seed)
    return [replace(job, arrival_s=float(moment)) for job, moment in zip(ordered, moments, strict=True)]
