"""What the controller last saw and decided, as a file that `stallwise queue` shows: written whole or not at all."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.slurm.controller import Settings
    from stallwise.slurm.plan import Partition, Plan

NAME = "queue.json"


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the queue."""

    job: str
    user: str
    name: str
    gpus: int
    phase: str
    since_s: float
    """Waits or runs since."""
    nodes: dict[str, int] = {}
    why: str = ""
    until_s: float | None = None
    """By then at the latest what `why` says is over; None: that depends on other jobs."""
    speeds: tuple[float, ...] = ()
    model: str | None = None
    stops: int = 0
    lease_s: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole queue at one moment."""

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


def write_snapshot(folder: Path, here: "Partition", plan: "Plan", settings: "Settings", *, dry_run: bool) -> None:
    """Put the file in place. A dry run leaves none."""
    if dry_run:
        return
    made = snapshot(here, plan, settings)
    path = folder / NAME
    try:
        beside = path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(made))
        beside.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None


def snapshot(here: "Partition", plan: "Plan", settings: "Settings") -> Snapshot:
    """The queue as the last pass left it."""
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
                why=why.text if why and phase == "waiting" else "",
                until_s=why.until_s if why and phase == "waiting" and why.until_s < 1e12 else None,
                speeds=here.speeds.get(row.key, ()),
                model=row.model,
                stops=row.stops,
                lease_s=row.lease_s if row.phase == "running" and row.lease_s < 1e12 else None,
            )
        )
    return Snapshot(
        time_s=here.now_s,
        partition=settings.partition,
        policy=settings.policy,
        gpus=here.layout.cluster.gpus,
        free_gpus=plan.free_gpus,
        other_gpus=plan.lost_gpus,
        levels=here.layout.cluster.levels,
        interval_s=settings.interval_s,
        jobs=tuple(jobs),
    )


def read_snapshot(folder: Path) -> Snapshot:
    """What the controller of that state last wrote."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Snapshot)
    except FileNotFoundError:
        raise InputError(
            f"No controller has written to {folder}. Start `stallwise schedule`, or give its --state."
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{folder / NAME} cannot be read: {error}.") from None
