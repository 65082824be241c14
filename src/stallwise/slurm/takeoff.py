"""Taking the controller off: every waiting job goes to plain Slurm, with the nodes it asked for itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmError, SlurmJob
from stallwise.slurm.state import Row


@dataclass(frozen=True, slots=True)
class Released:
    """One job, and what went wrong where something did."""

    job: str
    error: str | None = None


def release_all(slurm: Slurm, partition: str, rows: Mapping[str, Row]) -> Iterator[Released]:
    """Unpin and release every held job of the partition, and unpin those on their way; running ones are not touched.

    Works without a state too: then a job keeps the number of nodes it was last pinned to. Jobs an administrator holds
    stay held.
    """
    for job in slurm.jobs():
        if job.partition != partition or not job.pending or job.reason == "JobHeldAdmin":
            continue
        row = rows.get(job.key)
        if job.held or (row is not None and row.phase in ("starting", "holding")):
            yield _release(slurm, job, row)


def _release(slurm: Slurm, job: SlurmJob, row: Row | None) -> Released:
    try:
        if row is not None and job.required != row.required:
            slurm.unpin(job.key, row.least_nodes, row.most_nodes, row.required)
        elif row is None and job.required and job.restarts > 0:
            slurm.unpin(job.key, job.least_nodes, job.most_nodes)
        if job.restarts > 0:
            slurm.start_now(job.key)
        slurm.release(job.key)
    except SlurmError as error:
        return Released(job.key, str(error))
    return Released(job.key)
