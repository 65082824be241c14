"""The books of coordinated preparation: which batch is prepared, by whom, and who still has to take it.

Several jobs of a node read one order. Each batch is leased to one worker of some job, prepared once, staged, taken once
by every job, and freed (CoorDL's coordinated prep: Mohan et al., VLDB 2021). What is staged, being written or reserved
by a lease never exceeds the limit. Rules that keep jobs from holding each other up:

- Leases go out in the order of the batches; one that is given back (its worker died) goes out first.
- A job that waits longer than `patience_s` for a batch that finds no room is not held up by slower ones: the oldest
  staged batches that it has passed are dropped, then the farthest ahead, and who wanted them is *behind*. A job that
  is behind has its batches prepared by its own workers, and nobody keeps anything for it until it has caught up.
- A batch that some job waits for and whose worker shows nothing for long is leased a second time, and so is whatever
  else that worker has: a stopped one is waited for once.
- A job that is gone is taken off every batch at once.

No clock, no socket, no file: everything here is told what time it is, and `settle` says what to answer to whom.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

Spot = tuple[int, int]
"""Epoch and number of a batch."""

MOST_BATCHES = 4096
"""Staged or leased at a time, however small: each is a descriptor of the process that holds them."""
_LEAST_LEASE_S = 5.0
_LEASE_FACTOR = 10.0


@dataclass(slots=True)
class Job:
    """One job: the batch it takes next, and since when it waits for one."""

    position: Spot | None = None
    behind: bool = False
    wants: Spot | None = None
    since_s: float = 0.0


@dataclass(slots=True)
class Batch:
    """A batch in the staging area. `payload` is the server's; None while it is being written."""

    size_bytes: int
    users: set[str]
    payload: object = None
    error: str | None = None
    reading: set[str] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether it can be taken."""
        return self.payload is not None or self.error is not None


@dataclass(slots=True)
class Leased:
    """Who prepares a batch, since when, and what is kept free for it."""

    worker: Hashable
    since_s: float
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Give:
    """Answer a job: here is the batch it waits for."""

    job: str
    spot: Spot
    batch: Batch


@dataclass(frozen=True, slots=True)
class Lend:
    """Answer a worker: prepare this (None: nothing at the moment, asked without waiting)."""

    worker: Hashable
    spot: Spot | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Answer a worker that has prepared a batch: write it, or throw it away."""

    worker: Hashable
    spot: Spot
    is_wanted: bool


Action = Give | Lend | Grant


@dataclass(slots=True)
class Counts:
    """What happened so far."""

    prepared: int = 0
    given: int = 0
    dropped: int = 0
    again: int = 0
    peak: int = 0
    peak_bytes: int = 0


class Staging:
    """All books of one group of jobs."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        patience_s: float = 2.0,
        expected: int = 1,
        gather_s: float = 30.0,
        most: int = MOST_BATCHES,
    ) -> None:
        self.limit_bytes, self.patience_s, self.most = limit_bytes, patience_s, most
        self.expected, self.gather_s = expected, gather_s
        self.jobs: dict[str, Job] = {}
        self.batches: dict[Spot, Batch] = {}
        self.leases: dict[Spot, Leased] = {}
        self.epochs: dict[int, int] = {}
        """Batches of every epoch that some job has begun."""
        self.counts = Counts()
        self.freed: list[Batch] = []
        """Batches that are over; the server closes what is theirs."""
        self._workers: dict[Hashable, str] = {}
        self._asking: dict[Hashable, bool] = {}
        self._rooms: dict[Hashable, tuple[Spot, int]] = {}
        # By worker: a batch that was leased a second time may be ready twice, and both workers wait for an answer.
        self._returned: set[Spot] = set()
        self._front: Spot = (0, 0)
        self._usual_bytes = 0
        self._usual_s = 0.0
        self._first_s: float | None = None

    # What clients do.

    def join(self, job: str) -> None:
        """A job has come."""
        self.jobs[job] = Job()

    def join_worker(self, worker: Hashable, job: str) -> None:
        """A worker of a job has come."""
        self._workers[worker] = job

    def begin(self, job: str, epoch: int, batches: int, at: int, now_s: float) -> None:
        """A job begins an epoch, or goes on within it."""
        self.epochs[epoch] = batches
        held = self.jobs[job]
        held.position, held.wants = (epoch, at), None
        self._first_s = now_s if self._first_s is None else self._first_s
        for spot in list(self.batches):
            if self._keeps_for(job, spot):
                self.batches[spot].users.add(job)
            else:  # of an epoch that it broke off
                self._let_go(job, spot)

    def want(self, job: str, spot: Spot, now_s: float) -> None:
        """A job waits for its next batch."""
        held = self.jobs[job]
        held.position, held.wants, held.since_s = spot, spot, now_s
        if held.behind and spot in self.batches:
            held.behind = False  # caught up
            for other, batch in self.batches.items():
                if other >= spot:
                    batch.users.add(job)

    def done(self, job: str, spot: Spot) -> None:
        """A job has taken a batch out of the staging area."""
        held = self.jobs[job]
        held.position = self._after(spot)
        if spot in self.batches:
            self._let_go(job, spot)

    def ask(self, worker: Hashable, *, wait: bool) -> None:
        """A worker asks for something to prepare."""
        self._asking[worker] = wait

    def room(self, worker: Hashable, spot: Spot, size_bytes: int) -> None:
        """A worker has prepared a batch, and asks for room."""
        self._rooms[worker] = (spot, size_bytes)

    def put(self, worker: Hashable, spot: Spot, payload: object, now_s: float) -> bool:
        """The batch is there; whether it was still expected."""
        batch = self.batches.get(spot)
        lease = self.leases.get(spot)
        if batch is None or batch.is_ready or lease is None or lease.worker != worker:
            return False
        self._close_lease(spot, now_s)
        batch.payload = payload
        self._free_if_over(spot)
        return True

    def fail(self, worker: Hashable, spot: Spot, text: str, now_s: float) -> None:
        """It cannot be prepared: all who want it hear so."""
        lease = self.leases.get(spot)
        if lease is None or lease.worker != worker:
            return
        self._close_lease(spot, now_s)
        self.batches[spot] = Batch(0, self._users(spot), error=text)
        self._free_if_over(spot)

    def leave(self, job: str) -> None:
        """A job is gone, however."""
        self.jobs.pop(job, None)
        for spot in list(self.batches):
            self._let_go(job, spot)
        if not self.jobs:
            self._first_s = None

    def leave_worker(self, worker: Hashable) -> None:
        """A worker is gone; what it had goes out first."""
        self._workers.pop(worker, None)
        self._asking.pop(worker, None)
        self._rooms.pop(worker, None)
        for spot in [spot for spot, lease in self.leases.items() if lease.worker == worker]:
            self._take_back(spot)

    # What follows.

    def settle(self, now_s: float) -> Iterator[Action]:
        """Everything that can be answered now."""
        self._doubt(now_s)
        self._make_way(now_s)
        yield from self._grants(now_s)
        yield from self._gives()
        if self._has_gathered(now_s):
            yield from self._lends(now_s)

    @property
    def used_bytes(self) -> int:
        """Staged, being written and reserved."""
        return sum(batch.size_bytes for batch in self.batches.values()) + self._reserved_bytes

    @property
    def staged_bytes(self) -> int:
        """In memory now."""
        return sum(batch.size_bytes for batch in self.batches.values())

    def next_s(self, now_s: float) -> float | None:
        """When to settle again though nothing happens."""
        waits = any(job.wants is not None for job in self.jobs.values())
        return min(0.25, self.patience_s / 4) if waits or not self._has_gathered(now_s) else None

    def _gives(self) -> Iterator[Action]:
        for name, job in self.jobs.items():
            batch = self.batches.get(job.wants) if job.wants else None
            if job.wants and batch is not None and batch.is_ready:
                batch.reading.add(name)
                self.counts.given += 1
                spot, job.wants = job.wants, None
                yield Give(name, spot, batch)

    def _grants(self, now_s: float) -> Iterator[Action]:
        for worker, (spot, size_bytes) in sorted(self._rooms.items(), key=lambda asked: asked[1][0]):
            lease = self.leases.get(spot)
            if lease is None or lease.worker != worker or spot in self.batches or not self._users(spot):
                del self._rooms[worker]
                if lease is not None and lease.worker == worker:
                    self._close_lease(spot, now_s)
                yield Grant(worker, spot, is_wanted=False)
            elif self.used_bytes - lease.reserved_bytes + size_bytes <= self.limit_bytes:
                del self._rooms[worker]
                lease.reserved_bytes = 0
                self._usual_bytes = max(self._usual_bytes, size_bytes)
                self.batches[spot] = Batch(size_bytes, self._users(spot))
                self.counts.prepared += 1
                self.counts.peak = max(self.counts.peak, len(self.batches))
                self.counts.peak_bytes = max(self.counts.peak_bytes, self.staged_bytes)
                yield Grant(worker, spot, is_wanted=True)

    def _lends(self, now_s: float) -> Iterator[Action]:
        # Those first whose own job stands still: what comes next must not take the room from what is wanted now.
        for worker, waits in sorted(self._asking.items(), key=lambda asked: not self._stands_still(asked[0])):
            spot = self._choice(self._workers.get(worker, ""))
            if spot is not None:
                self._returned.discard(spot)
                if spot == self._front:
                    self._front = self._after(spot)
                self.leases[spot] = Leased(worker, now_s, self._usual_bytes)
            if spot is not None or not waits:
                del self._asking[worker]
                yield Lend(worker, spot)

    def _stands_still(self, worker: Hashable) -> bool:
        job = self.jobs.get(self._workers.get(worker, ""))
        return job is not None and job.wants is not None and self._is_open(job.wants)

    def _choice(self, job: str) -> Spot | None:
        """What a worker of this job should prepare: what its own job stands still for, else what comes next."""
        if not self._has_room(self._usual_bytes):
            return None
        if not self._usual_bytes and self.leases:
            return None  # how large a batch is, the first will show
        own = self.jobs.get(job)
        if own is not None and own.wants is not None and self._is_open(own.wants):
            return own.wants
        leading = self._leading()
        if not leading:
            return None
        self._returned = {spot for spot in self._returned if self._is_open(spot) and self._users(spot)}
        self._front = max(self._front, min(leading))
        while self._front[0] in self.epochs and not self._is_open(self._front):
            self._front = self._after(self._front)
        ready = [*self._returned, *([self._front] if self._front[0] in self.epochs else [])]
        return min(ready, default=None)

    def _leading(self) -> list[Spot]:
        """Where the jobs are that are not behind; where all are, the farthest leads from now on."""
        placed = [job for job in self.jobs.values() if job.position is not None]
        if placed and all(job.behind for job in placed):
            farthest = max(job.position for job in placed if job.position is not None)
            for job in placed:
                job.behind = job.position != farthest
            self._front = farthest
        return [job.position for job in placed if job.position is not None and not job.behind]

    def _is_open(self, spot: Spot) -> bool:
        return spot[0] in self.epochs and spot not in self.batches and spot not in self.leases

    def _doubt(self, now_s: float) -> None:
        """A lease that somebody waits for and nobody has heard of for long goes to another."""
        allowed_s = max(_LEAST_LEASE_S, _LEASE_FACTOR * self._usual_s, 2 * self.patience_s)
        for job in self.jobs.values():
            lease = self.leases.get(job.wants) if job.wants else None
            if job.wants is None or lease is None or self._waits_for_room(job.wants) is not None:
                continue
            if now_s - lease.since_s >= allowed_s and now_s - job.since_s >= self.patience_s:
                self.counts.again += 1
                # It may only be slow: the next one gets longer, or nobody would ever be done.
                self._usual_s = max(self._usual_s, now_s - lease.since_s)
                for spot in [spot for spot, other in self.leases.items() if other.worker == lease.worker]:
                    if self._waits_for_room(spot) is None:
                        self._take_back(spot)

    def _make_way(self, now_s: float) -> None:
        """Drop what slower jobs have not taken, where a faster one has lost its patience for room."""
        for job in self.jobs.values():
            allowed_s = self.patience_s * (2 if job.behind else 1)
            if job.wants is None or job.wants in self.batches or now_s - job.since_s < allowed_s:
                continue
            lease = self.leases.get(job.wants)
            asked_bytes = self._waits_for_room(job.wants)
            if lease is not None and asked_bytes is None:
                continue  # it is being prepared
            needed = self._usual_bytes if lease is None or asked_bytes is None else asked_bytes - lease.reserved_bytes
            passed = sorted(spot for spot in self.batches if spot < job.wants)
            ahead = sorted((spot for spot in self.batches if spot > job.wants), reverse=True)
            for spot in (*passed, *ahead):
                batch = self.batches.get(spot)
                if batch is None or self._has_room(needed):
                    continue
                if batch.is_ready and not batch.reading:
                    self._drop(spot)

    def _waits_for_room(self, spot: Spot) -> int | None:
        """How large a batch is that its worker has ready and finds no room for."""
        lease = self.leases.get(spot)
        asked = self._rooms.get(lease.worker) if lease is not None else None
        return asked[1] if asked is not None and asked[0] == spot else None

    def _let_go(self, job: str, spot: Spot) -> None:
        """A job has it, or does not want it any more."""
        self.batches[spot].users.discard(job)
        self.batches[spot].reading.discard(job)
        self._free_if_over(spot)

    def _drop(self, spot: Spot) -> None:
        for name in self.batches[spot].users:
            self.jobs[name].behind = True
        for batch in self.batches.values():
            batch.users = {name for name in batch.users if not self.jobs[name].behind or name in batch.reading}
        self.counts.dropped += 1
        for other in list(self.batches):
            self._free_if_over(other)

    def _free_if_over(self, spot: Spot) -> None:
        batch = self.batches[spot]
        if batch.is_ready and not batch.users and not batch.reading:
            self.freed.append(self.batches.pop(spot))

    def _take_back(self, spot: Spot) -> None:
        del self.leases[spot]
        batch = self.batches.get(spot)
        if batch is not None and not batch.is_ready:
            self.freed.append(self.batches.pop(spot))  # its worker died while it wrote
        self._returned.add(spot)

    def _close_lease(self, spot: Spot, now_s: float) -> None:
        lease = self.leases.pop(spot)
        self._usual_s = max(self._usual_s, now_s - lease.since_s)

    def _users(self, spot: Spot) -> set[str]:
        return {name for name in self.jobs if self._keeps_for(name, spot)}

    def _keeps_for(self, name: str, spot: Spot) -> bool:
        job = self.jobs[name]
        if job.wants == spot:
            return True
        near = job.position is not None and job.position <= spot and spot[0] <= job.position[0] + 1
        return near and not job.behind

    def _has_room(self, size_bytes: int) -> bool:
        places = len(self.batches.keys() | self.leases.keys())
        return self.used_bytes + size_bytes <= self.limit_bytes and places < self.most

    @property
    def _reserved_bytes(self) -> int:
        return sum(lease.reserved_bytes for lease in self.leases.values())

    def _after(self, spot: Spot) -> Spot:
        epoch, batch = spot
        return (epoch, batch + 1) if batch + 1 < self.epochs.get(epoch, 0) else (epoch + 1, 0)

    def _has_gathered(self, now_s: float) -> bool:
        if self._first_s is None:
            return False
        begun = sum(job.position is not None for job in self.jobs.values())
        return begun >= self.expected or now_s - self._first_s >= self.gather_s or self._front > (0, 0)
