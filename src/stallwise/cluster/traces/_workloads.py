"""Traces without durations: steps or samples of a named job type, whose time follows from measured speeds.

Gavel (OSDI 2020) and Shockwave (NSDI 2023) give steps of a job type; durations are steps over measured throughput on
one worker type. Native traces are tab-separated without a header; their command column is never run.

ElasticFlow (ASPLOS 2023) gives steps, batch size and deadline with a duration on the gang: together they say how fast
each model is on every number of GPUs.

Pollux (OSDI 2021) and Sia (SOSP 2023) give an application, its GPUs and batch size; durations follow from measured step
times and the steps that the batch size needs (`cluster.speed._tables`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    SkippedRow,
    Trace,
    TraceTable,
    collect,
    known_model,
    parse_count,
    parse_duration,
    parse_name,
    parse_time,
    read_table,
)
from stallwise.cluster.traces.speeds import MeasuredSpeeds, require_profiles
from stallwise.errors import InputError
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.cluster.speed._tables import GavelThroughputs

GAVEL = frozenset({"job_type", "total_steps", "num_gpus", "arrival_time_s"})
SHOCKWAVE = GAVEL | {"mode", "duration_s"}
# Columns of the native trace, in its order; the second to fifth say how the job is started.
NATIVE = (
    "job_type", "command", "working_directory", "steps_argument", "needs_data_dir", "total_steps", "num_gpus",
    "priority_weight", "slo", "arrival_time_s",
)  # fmt: skip
ELASTICFLOW = frozenset(
    {"job_id", "submission_time", "num_iteration", "model_name", "deadline", "batch_size", "num_gpu", "duration"}
)
_TABLE = ("simulation_throughputs.json", "gavel/simulation_throughputs.json")


def read_native(table: TraceTable, path: Path, measured: MeasuredSpeeds) -> Trace:
    """Read a `.trace` file of Gavel, which has no header."""
    return read_gavel(replace(table, columns=NATIVE), path, measured)


def read_gavel(table: TraceTable, path: Path, measured: MeasuredSpeeds) -> Trace:
    """Read a Gavel table; rows have no id, so the line is the id."""
    rates = _rates(path, measured)
    kind, steps, gpus, at = (table.at(name) for name in ("job_type", "total_steps", "num_gpus", "arrival_time_s"))
    types = _types(rates)

    def parse(line: int, fields: Fields) -> Job:
        model, gang = known_model(fields[kind], types, "job_type"), parse_count(fields[gpus], "num_gpus")
        count, arrival_s = parse_count(fields[steps], "total_steps"), parse_time(fields[at], "arrival_time_s")
        try:
            return rates.job(str(line), arrival_s, model, gang, count, line=line)
        except InputError as error:
            raise BadRowError("no measured throughput for its GPUs", str(error)) from None

    note = Sentence("trace.throughput", f"Run times: steps over the throughput measured on {measured.gpu}.")
    return replace(collect(table, "Gavel", parse, (note,)), speed=rates)


def read_shockwave(table: TraceTable, path: Path, measured: MeasuredSpeeds) -> Trace:
    """Read a Shockwave table. `duration_s` is for the job alone with its batch size adapted."""
    rates = _rates(path, measured)
    kind, gpus, at = table.at("job_type"), table.at("num_gpus"), table.at("arrival_time_s")
    lasts = table.at("duration_s")
    types = _types(rates)

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=str(line),
            arrival_s=parse_time(fields[at], "arrival_time_s"),
            gpus=parse_count(fields[gpus], "num_gpus"),
            work_s=parse_duration(fields[lasts], "duration_s"),
            model=known_model(fields[kind], types, "job_type"),
            line=line,
        )

    note = Sentence(
        "trace.run-times", "Run times as the trace gives them; batch sizes that change on the way are in them."
    )
    return replace(collect(table, "Shockwave", parse, (note,)), speed=rates)


def _types(rates: "GavelThroughputs") -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kind, _ in rates.packed))


def _rates(path: Path, measured: MeasuredSpeeds) -> "GavelThroughputs":
    from stallwise.cluster.speed._tables import GavelThroughputs

    return GavelThroughputs.read(require_profiles(path, measured, *_TABLE, why="counts steps"), gpu=measured.gpu)


WORKLOAD = frozenset({"name", "time", "application", "num_replicas", "batch_size"})


def read_workload(table: TraceTable, path: Path, measured: MeasuredSpeeds) -> Trace:
    """Read submission in seconds, application and batch size; other columns are not used."""
    from stallwise.cluster.speed._tables import Apps

    folder = require_profiles(path, measured, "app_profiles", "pollux/app_profiles", why="has no durations")
    apps = Apps.read(folder, progress=_progress(folder))
    names = tuple(apps.apps)
    name, at, application = table.at("name"), table.at("time"), table.at("application")
    gpus, batch = table.at("num_replicas"), table.at("batch_size")

    def parse(line: int, fields: Fields) -> Job:
        gang, size = parse_count(fields[gpus], "num_replicas"), parse_count(fields[batch], "batch_size")
        model = known_model(fields[application], names, "application")
        job_id, time_s = parse_name(fields[name], "name"), parse_time(fields[at], "time")
        try:
            return apps.job(job_id, time_s, model, gang, size, line=line)
        except InputError as error:
            raise BadRowError("no measurement for its GPUs and batch size", str(error)) from None

    trace = collect(
        table,
        "Pollux or Sia",
        parse,
        (Sentence("trace.step-times", f"Run times from the step times measured in {folder.name}."),),
    )
    return replace(trace, speed=apps)


def _progress(folder: Path) -> Path | None:
    """Find Pollux' tables of the steps a job needs, next to Sia's folder, which has step times only."""
    if any(folder.glob("*/validation-*.csv")):
        return None
    other = folder.parent.parent / "pollux" / folder.name
    if not other.is_dir():
        raise InputError(
            f"{folder} has step times but no validation tables, which say how many steps a job needs. Put Pollux' "
            f"applications at {other}, or name a folder with both.",
            fields=("profiles",),
        )
    return other


def read_elasticflow(table: TraceTable, path: Path, measured: MeasuredSpeeds) -> Trace:
    """Read a trace with deadlines. Speeds are those of its own rows and of the other traces of its folder."""
    from stallwise.cluster.speed._tables import Scaling

    folder = measured.profiles or path.parent
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of traces like {path.name}.", fields=("profiles",))
    others = [read_table(other) for other in sorted(folder.glob("*.csv*")) if other.resolve() != path.resolve()]
    tables = [table, *(other for other in others if set(other.columns) >= ELASTICFLOW)]
    speed = Scaling.of(rate for one in tables for rate in _rates_of(one))
    at = {name: table.at(name) for name in ELASTICFLOW}

    def parse(line: int, fields: Fields) -> Job:
        arrival_s = parse_time(fields[at["submission_time"]], "submission_time")
        deadline_s = parse_time(fields[at["deadline"]], "deadline") - arrival_s
        if deadline_s <= 0:
            raise BadRowError("a deadline before its submission")
        parse_count(fields[at["num_iteration"]], "num_iteration")
        return Job(
            id=parse_name(fields[at["job_id"]]),
            arrival_s=arrival_s,
            gpus=parse_count(fields[at["num_gpu"]], "num_gpu"),
            work_s=parse_duration(fields[at["duration"]]),
            model=parse_name(fields[at["model_name"]], "model_name"),
            batch_size=parse_count(fields[at["batch_size"]], "batch_size"),
            deadline_s=deadline_s,
            line=line,
        )

    note = Sentence(
        "trace.speed-by-gpus",
        f"Speed by number of GPUs: steps over duration in {len(tables)} traces of {folder.name or folder}.",
    )
    return replace(collect(table, "ElasticFlow", parse, (note,)), speed=speed)


def _rates_of(table: TraceTable) -> Iterator[tuple[str, int, int, float]]:
    names = ("model_name", "batch_size", "num_gpu", "num_iteration", "duration")
    model, batch, gpus, steps, lasts = (table.at(name) for name in names)
    for _, fields in table.rows:
        try:
            rate = parse_count(fields[steps], "") / parse_duration(fields[lasts])
            yield fields[model].strip(), parse_count(fields[batch], ""), parse_count(fields[gpus], ""), rate
        except (BadRowError, SkippedRow, IndexError):  # reported where the row is a job
            continue
