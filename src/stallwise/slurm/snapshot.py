"""The queue as the controller last saw and decided it: a file that `stallwise queue` shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallwise.errors import InputError
from stallwise.inputs import read_bytes
from stallwise.run.atomic import replace_file
from stallwise.sentences import Sentence, read_sentence, sentence_document

if TYPE_CHECKING:
    from stallwise.slurm._plan import Partition, SchedulePlan

SNAPSHOT_FILE = "queue.json"


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the queue."""

    job: str
    user: str
    name: str
    gpus: int
    phase: str
    since_s: float
    """Time since which it waits or runs."""
    nodes: dict[str, int] = {}
    why: Sentence | None = None
    """Why it waits."""
    until_s: float | None = None
    """When the reason `why` ends at the latest; None: it depends on other jobs."""
    speeds: tuple[float, ...] = ()
    model: str | None = None
    stops: int = 0
    lease_s: float | None = None


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of a partition at one moment."""

    time_s: float
    partition: str
    policy: str
    gpus: int
    free_gpus: int
    other_gpus: int
    levels: tuple[str, ...]
    interval_s: float
    jobs: tuple[QueuedJob, ...]


_SHOWN = ("waiting", "starting", "holding", "running", "warned", "stopping", "ending")


def write_snapshot(folder: Path, snapshot: QueueSnapshot) -> None:
    """Replace the file as a whole."""
    path = folder / SNAPSHOT_FILE
    try:
        replace_file(path, msgspec.json.encode(snapshot, enc_hook=sentence_document), durable=False)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def snapshot_of(
    here: "Partition", plan: "SchedulePlan", partition: str, policy: str, interval_s: float
) -> QueueSnapshot:
    """Return the queue after a decision."""
    started = {start.key: start for start in plan.start}
    jobs = []
    for row in here.rows.values():
        if row.phase not in _SHOWN:
            continue
        job, why = here.jobs.get(row.key), plan.why.get(row.key)
        start = started.get(row.key)
        phase = "starting" if start else "stopping" if row.key in plan.stop else row.phase
        waits = phase in ("waiting", "starting", "holding")
        jobs.append(
            QueuedJob(
                job=row.key,
                user=job.user if job else "",
                name=job.name if job else "",
                gpus=row.gang,
                phase=phase,
                since_s=row.asked_s if waits else row.granted_s,
                nodes=dict(start.placed) if start else row.placed,
                why=why.text if why and phase == "waiting" else None,
                until_s=why.until_s if why and phase == "waiting" and why.until_s < 1e12 else None,
                speeds=here.speeds.get(row.key, ()),
                model=row.model,
                stops=row.stops,
                lease_s=row.lease_s if row.phase == "running" and row.lease_s < 1e12 else None,
            )
        )
    return QueueSnapshot(
        time_s=here.now_s,
        partition=partition,
        policy=policy,
        gpus=here.layout.cluster.gpus,
        free_gpus=plan.free_gpus,
        other_gpus=plan.lost_gpus,
        levels=here.layout.cluster.levels,
        interval_s=interval_s,
        jobs=tuple(jobs),
    )


def read_snapshot(folder: Path) -> QueueSnapshot:
    """Read what the controller of that state last wrote."""
    try:
        return msgspec.json.decode(read_bytes(folder / SNAPSHOT_FILE), type=QueueSnapshot, dec_hook=read_sentence)
    except FileNotFoundError:
        raise InputError(
            f"No controller has written to {folder}. Start `stallwise schedule`, or name the folder of its state.",
            fields=("state",),
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{folder / SNAPSHOT_FILE} cannot be read: {error}.") from None
