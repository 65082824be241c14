"""Workloads of Pollux (OSDI 2021) and Sia (SOSP 2023): an application, its GPUs and batch size; no durations.

How long a job runs follows from measured step times and the steps that its batch size needs (`cluster/tables.py`).
"""

from dataclasses import replace
from pathlib import Path

from stallwise.cluster.job import Job
from stallwise.cluster.traces.measured import Measured, needed
from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    Table,
    Trace,
    collect,
    identity,
    known_model,
    seconds,
    whole,
)
from stallwise.errors import InputError

WORKLOAD = frozenset({"name", "time", "application", "num_replicas", "batch_size"})


def read_workload(table: Table, path: Path, measured: Measured) -> Trace:
    """Submission in seconds, application and batch size; what else stands in the file is not used."""
    from stallwise.cluster.tables import Apps

    folder = needed(path, measured, "app_profiles", "pollux/app_profiles", why="has no durations")
    apps = Apps.read(folder, progress=_progress(folder))
    known = tuple(apps.apps)
    name, at, application = table.at("name"), table.at("time"), table.at("application")
    gpus, batch = table.at("num_replicas"), table.at("batch_size")

    def parse(line: int, fields: Fields) -> Job:
        gang, size = whole(fields[gpus], "num_replicas"), whole(fields[batch], "batch_size")
        model = known_model(fields[application], known, "application")
        job_id, time_s = identity(fields[name], "name"), seconds(fields[at], "time")
        try:
            return apps.job(job_id, time_s, model, gang, size, line=line)
        except InputError as error:
            raise BadRowError("no measurement for its GPUs and batch size", str(error)) from None

    made = collect(table, "Pollux or Sia", parse, (f"Run times from the step times measured in {folder.name}.",))
    return replace(made, speed=apps)


def _progress(folder: Path) -> Path | None:
    """Sia measured steps only; how many a job needs stands in Pollux' tables, in the folder next to its own."""
    if any(folder.glob("*/validation-*.csv")):
        return None
    other = folder.parent.parent / "pollux" / folder.name
    if not other.is_dir():
        raise InputError(
            f"{folder} has step times but no validation tables, which say how many steps a job needs. Put Pollux' "
            f"applications at {other}, or name a folder with both by --profiles."
        )
    return other
