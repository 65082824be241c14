"""Microsoft's Philly log as others publish it (CC BY 4.0): Sia's CSV of 82,247 jobs, Themis' two samples."""

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import (
    Fields,
    Table,
    Trace,
    collect,
    duration,
    earliest,
    identity,
    moment,
    seconds,
    whole,
)

LOG = frozenset({"timestamp", "duration", "num_gpus", "gpu_time", "cluster"})
HYPERDRIVE = frozenset({"experiment-id", "job-id", "start-time", "run-time", "num-gpus"})
PROCESSED = frozenset({"experiment_id", "start_time", "running_time", "num_gpus"})


def read_philly_log(table: Table) -> Trace:
    """One row per job with the date of submission; rows have no id, so the line is the id. `cluster` is the user."""
    at, lasts, gpus, group = (table.at(name) for name in ("timestamp", "duration", "num_gpus", "cluster"))
    began_s = earliest(table, at, "timestamp")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=str(line),
            arrival_s=moment(fields[at], "timestamp") - began_s,
            gpus=whole(fields[gpus], "num_gpus"),
            work_s=duration(fields[lasts]),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(table, "Philly log", parse, ("Submissions are counted from the first one.",))


def read_hyperdrive(table: Table) -> Trace:
    """Jobs of hyper-parameter searches; the start in the log stands for the submission."""
    group, job_id, at = table.at("experiment-id"), table.at("job-id"), table.at("start-time")
    lasts, gpus = table.at("run-time"), table.at("num-gpus")
    began_s = earliest(table, at, "start-time")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=identity(fields[job_id], "job-id"),
            arrival_s=moment(fields[at], "start-time") - began_s,
            gpus=whole(fields[gpus], "num-gpus"),
            work_s=duration(fields[lasts], "run-time"),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(table, "Themis Philly", parse, ("The log has starts, not submissions: they stand for arrivals.",))


def read_processed(table: Table) -> Trace:
    """The same with seconds from the start; the first column, without a name, is the id."""
    at, lasts, gpus, group = (table.at(name) for name in ("start_time", "running_time", "num_gpus", "experiment_id"))

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=identity(fields[0], "number in the first column"),
            arrival_s=seconds(fields[at], "start_time"),
            gpus=whole(fields[gpus], "num_gpus"),
            work_s=duration(fields[lasts], "running_time"),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(table, "Themis Philly", parse, ("The log has starts, not submissions: they stand for arrivals.",))
