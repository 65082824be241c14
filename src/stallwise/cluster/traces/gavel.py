"""Traces of Gavel (OSDI 2020) and Shockwave (NSDI 2023): steps of a named job type; no durations but Shockwave's.

Native traces are tab-separated without a header. Their command column is text to us and is never run. Durations
are steps over measured throughput on one worker type (`cluster/tables.py`).
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.cluster.job import Job
from stallwise.cluster.traces.measured import Measured, needed
from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    Table,
    Trace,
    collect,
    duration,
    known_model,
    seconds,
    whole,
)
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.cluster.tables import Gavel

GAVEL = frozenset({"job_type", "total_steps", "num_gpus", "arrival_time_s"})
SHOCKWAVE = GAVEL | {"mode", "duration_s"}
# Of the native trace, in its order; the second to fifth tell how the job is started.
NATIVE = (
    "job_type", "command", "working_directory", "steps_argument", "needs_data_dir", "total_steps", "num_gpus",
    "priority_weight", "slo", "arrival_time_s",
)  # fmt: skip
_TABLE = ("simulation_throughputs.json", "gavel/simulation_throughputs.json")


def read_native(table: Table, path: Path, measured: Measured) -> Trace:
    """A `.trace` file."""
    return read_gavel(replace(table, columns=NATIVE), path, measured)


def read_gavel(table: Table, path: Path, measured: Measured) -> Trace:
    """Rows have no id, so the line is the id."""
    rates = _rates(path, measured)
    kind, steps, gpus, at = (table.at(name) for name in ("job_type", "total_steps", "num_gpus", "arrival_time_s"))
    known = _types(rates)

    def parse(line: int, fields: Fields) -> Job:
        model, gang = known_model(fields[kind], known, "job_type"), whole(fields[gpus], "num_gpus")
        count, arrival_s = whole(fields[steps], "total_steps"), seconds(fields[at], "arrival_time_s")
        try:
            return rates.job(str(line), arrival_s, model, gang, count, line=line)
        except InputError as error:
            raise BadRowError("no measured throughput for its GPUs", str(error)) from None

    said = f"Run times: steps over the throughput measured on {measured.gpu}."
    return replace(collect(table, "Gavel", parse, (said,)), speed=rates)


def read_shockwave(table: Table, path: Path, measured: Measured) -> Trace:
    """`duration_s` is what the job takes alone with its batch size adapted; static runs would take steps/throughput."""
    rates = _rates(path, measured)
    kind, gpus, at = table.at("job_type"), table.at("num_gpus"), table.at("arrival_time_s")
    lasts = table.at("duration_s")
    known = _types(rates)

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=str(line),
            arrival_s=seconds(fields[at], "arrival_time_s"),
            gpus=whole(fields[gpus], "num_gpus"),
            work_s=duration(fields[lasts], "duration_s"),
            model=known_model(fields[kind], known, "job_type"),
            line=line,
        )

    said = "Run times as the trace gives them; batch sizes that change on the way are in them."
    return replace(collect(table, "Shockwave", parse, (said,)), speed=rates)


def _types(rates: "Gavel") -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kind, _ in rates.packed))


def _rates(path: Path, measured: Measured) -> "Gavel":
    from stallwise.cluster.tables import Gavel

    return Gavel.read(needed(path, measured, *_TABLE, why="counts steps"), gpu=measured.gpu)
