"""Taking the controller off: every waiting job goes to plain Slurm, with the nodes it asked for itself."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmError, SlurmJob
from stallwise.slurm.reconcile import asked
from stallwise.slurm.state import Row


@dataclass(frozen=True, slots=True)
class Released:
    """One job, and what went wrong where something did."""

    job: str
    error: str | None = None


def release_all(slurm: Slurm, partition: str, rows: Mapping[str, Row]) -> Iterator[Released]:
    """Unpin and release every held job of the partition, and unpin those on their way; running ones are not touched.

    What a job asked for itself is in the mark its pin left, so this works without a state too; a job that could not be
    marked then keeps the number of nodes it was last pinned to. Jobs an administrator holds stay held.
    """
    for job in slurm.jobs():
        if job.partition != partition or not job.pending or job.reason == "JobHeldAdmin":
            continue
        row = rows.get(job.key)
        marked = job.mark is not None or job.mark_is_long
        if job.held or marked or (row is not None and row.phase in ("starting", "holding")):
            yield _release(slurm, job, row)


def _release(slurm: Slurm, job: SlurmJob, row: Row | None) -> Released:
    try:
        if job.mark is not None:
            least, most, required = asked(job)
            slurm.unpin(job.key, least, most, required, marked=True)
        elif row is not None and (job.required != row.required or job.mark_is_long):
            slurm.unpin(job.key, row.least_nodes, row.most_nodes, row.required, marked=job.mark_is_long)
        elif row is None and (job.mark_is_long or (job.required and job.restarts > 0)):
            slurm.unpin(job.key, job.least_nodes, job.most_nodes, marked=job.mark_is_long)
        if job.restarts > 0:
            slurm.start_now(job.key)
        slurm.release(job.key)
    except SlurmError as error:
        return Released(job.key, str(error))
    return Released(job.key)
