"""Every job of every simulation as CSV, for other tools."""

import csv
from pathlib import Path

from stallwise.cluster.comparison import Comparison
from stallwise.errors import InputError

COLUMNS = (
    "policy", "cluster", "load", "seed", "job_id", "gpus", "arrival_s", "first_start_s", "finish_s", "jct_s", "run_s",
    "queue_s", "work_s", "comm_s", "preemptions", "migrations",
)  # fmt: skip


def write_jobs(found: Comparison, path: Path) -> Path:
    """One row per job and simulation; times in seconds from the start of the trace."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for setting in found.settings:
                for standing in setting.standings:
                    for run in standing.runs:
                        out = run.outcome
                        if out is None:
                            continue
                        head = (standing.policy, setting.cluster, setting.load, run.case.seed)
                        arrays = (
                            out.gpus, out.arrival_s, out.first_start_s, out.finish_s, out.jct_s, out.run_s, out.queue_s,
                            out.work_s, out.comm_s, out.preemptions, out.migrations,
                        )  # fmt: skip
                        columns = (array.tolist() for array in arrays)
                        for job, *values in zip(out.jobs, *columns, strict=True):
                            writer.writerow((*head, job.id, *values))
    except OSError as error:
        raise InputError(
            f"The jobs cannot be written to {path} ({error.strerror}). Name another file with --jobs."
        ) from None
    return path
