"""Coordination of shared preparation: which batch is prepared, by which worker, and which jobs still have to take it.

Several jobs of a node read one order. Each batch is leased to one worker of some job, prepared once, staged, taken once
by every job, and freed (CoorDL's coordinated prep: Mohan et al., VLDB 2021). What is staged, being written or reserved
by a lease never exceeds the limit. Rules that keep jobs from holding each other up:

- Leases go out in the order of the batches; one that is returned (its worker died) goes out first.
- A job that waits longer than `patience_s` for a batch that finds no room is not held up by slower ones: the oldest
  staged batches that it has passed are dropped, then the farthest ahead, and the jobs that needed them are *behind*. A
  job that is behind has its batches prepared by its own workers, and nothing is kept for it until it has caught up.
- A batch that a job waits for and whose worker shows no progress for long is leased a second time, and so is every
  other batch of that worker: a stopped worker is waited for once.
- A job that ends is removed from every batch at once.

No clock, no socket, no file: every method takes the time as an argument, and `settle` yields the replies to send.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

BatchId = tuple[int, int]
"""Epoch and number of a batch in it."""

MOST_BATCHES = 4096
"""Limit of batches staged or leased, however small: each is a file descriptor of the server."""
_LEAST_LEASE_S = 5.0
_LEASE_FACTOR = 10.0


@dataclass(slots=True)
class JobProgress:
    """One job's position: the batch it takes next, and since when it waits for one."""

    position: BatchId | None = None
    behind: bool = False
    wants: BatchId | None = None
    since_s: float = 0.0


@dataclass(slots=True)
class StagedBatch:
    """A batch in the staging area. `payload` is the server's descriptor; None while it is being written."""

    size_bytes: int
    users: set[str]
    payload: object = None
    error: str | None = None
    reading: set[str] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether jobs can take it, or its error."""
        return self.payload is not None or self.error is not None


@dataclass(slots=True)
class Lease:
    """Which worker prepares a batch, since when, and the bytes reserved for it."""

    worker: Hashable
    since_s: float
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class GiveBatch:
    """Reply to a job with the batch it waits for."""

    job: str
    batch_id: BatchId
    batch: StagedBatch


@dataclass(frozen=True, slots=True)
class LeaseBatch:
    """Reply to a worker with the batch to prepare (None: nothing at the moment, requested without waiting)."""

    worker: Hashable
    batch_id: BatchId | None


@dataclass(frozen=True, slots=True)
class GrantRoom:
    """Reply to a worker that has prepared a batch: deliver it, or discard it."""

    worker: Hashable
    batch_id: BatchId
    is_wanted: bool


Action = GiveBatch | LeaseBatch | GrantRoom


@dataclass(slots=True)
class StagingCounts:
    """Counts of batches since the group began; the field names are the keys of `SharedLoader.stat`."""

    prepared: int = 0
    given: int = 0
    dropped: int = 0
    again: int = 0
    peak: int = 0
    peak_bytes: int = 0


class Coordinator:
    """State of one group of jobs: positions, staged batches and leases."""

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
        self.jobs: dict[str, JobProgress] = {}
        self.batches: dict[BatchId, StagedBatch] = {}
        self.leases: dict[BatchId, Lease] = {}
        self.epochs: dict[int, int] = {}
        """Number of batches of every epoch that some job has begun."""
        self.counts = StagingCounts()
        self.freed: list[StagedBatch] = []
        """Batches that no job needs any more; the server closes their descriptors."""
        self._workers: dict[Hashable, str] = {}
        self._requests: dict[Hashable, bool] = {}
        self._room_requests: dict[Hashable, tuple[BatchId, int]] = {}
        # By worker: a batch that was leased twice may be ready twice, and both workers wait for a reply.
        self._returned: set[BatchId] = set()
        self._front: BatchId = (0, 0)
        self._usual_bytes = 0
        self._usual_s = 0.0
        self._first_s: float | None = None

    # Events from clients.

    def join(self, job: str) -> None:
        self.jobs[job] = JobProgress()

    def join_worker(self, worker: Hashable, job: str) -> None:
        self._workers[worker] = job

    def begin(self, job: str, epoch: int, batches: int, at: int, now_s: float) -> None:
        """A job begins an epoch, or continues within it."""
        self.epochs[epoch] = batches
        progress = self.jobs[job]
        progress.position, progress.wants = (epoch, at), None
        self._first_s = now_s if self._first_s is None else self._first_s
        for batch_id in list(self.batches):
            if self._keeps_for(job, batch_id):
                self.batches[batch_id].users.add(job)
            else:  # of an epoch that it abandoned
                self._release(job, batch_id)

    def want(self, job: str, batch_id: BatchId, now_s: float) -> None:
        """A job waits for its next batch."""
        progress = self.jobs[job]
        progress.position, progress.wants, progress.since_s = batch_id, batch_id, now_s
        if progress.behind and batch_id in self.batches:
            progress.behind = False  # caught up
            for other, batch in self.batches.items():
                if other >= batch_id:
                    batch.users.add(job)

    def done(self, job: str, batch_id: BatchId) -> None:
        """A job has taken a batch out of the staging area."""
        self.jobs[job].position = self._after(batch_id)
        if batch_id in self.batches:
            self._release(job, batch_id)

    def request_work(self, worker: Hashable, *, wait: bool) -> None:
        """A worker requests a batch to prepare."""
        self._requests[worker] = wait

    def request_room(self, worker: Hashable, batch_id: BatchId, size_bytes: int) -> None:
        """A worker has prepared a batch and requests room for it."""
        self._room_requests[worker] = (batch_id, size_bytes)

    def put(self, worker: Hashable, batch_id: BatchId, payload: object, now_s: float) -> bool:
        """A worker delivers a batch; return whether it was still expected."""
        batch = self.batches.get(batch_id)
        lease = self.leases.get(batch_id)
        if batch is None or batch.is_ready or lease is None or lease.worker != worker:
            return False
        self._close_lease(batch_id, now_s)
        batch.payload = payload
        self._free_if_over(batch_id)
        return True

    def fail(self, worker: Hashable, batch_id: BatchId, text: str, now_s: float) -> None:
        """A batch cannot be prepared: all jobs that need it get the error."""
        lease = self.leases.get(batch_id)
        if lease is None or lease.worker != worker:
            return
        self._close_lease(batch_id, now_s)
        self.batches[batch_id] = StagedBatch(0, self._users(batch_id), error=text)
        self._free_if_over(batch_id)

    def leave(self, job: str) -> None:
        """A job has ended, in whatever way."""
        self.jobs.pop(job, None)
        for batch_id in list(self.batches):
            self._release(job, batch_id)
        if not self.jobs:
            self._first_s = None

    def leave_worker(self, worker: Hashable) -> None:
        """A worker has ended; its leases go out first."""
        self._workers.pop(worker, None)
        self._requests.pop(worker, None)
        self._room_requests.pop(worker, None)
        for batch_id in [batch_id for batch_id, lease in self.leases.items() if lease.worker == worker]:
            self._take_back(batch_id)

    # Decisions.

    def settle(self, now_s: float) -> Iterator[Action]:
        """Yield every reply that can be sent now."""
        self._reassign_stalled(now_s)
        self._drop_for_waiting(now_s)
        yield from self._grants(now_s)
        yield from self._gives()
        if self._has_gathered(now_s):
            yield from self._lends(now_s)

    @property
    def used_bytes(self) -> int:
        """Bytes staged, being written and reserved."""
        return sum(batch.size_bytes for batch in self.batches.values()) + self._reserved_bytes

    @property
    def staged_bytes(self) -> int:
        """Bytes of batches staged or being written."""
        return sum(batch.size_bytes for batch in self.batches.values())

    def next_s(self, now_s: float) -> float | None:
        """Seconds after which to settle again without an event; None: not needed."""
        waits = any(job.wants is not None for job in self.jobs.values())
        return min(0.25, self.patience_s / 4) if waits or not self._has_gathered(now_s) else None

    def _gives(self) -> Iterator[Action]:
        for name, job in self.jobs.items():
            batch = self.batches.get(job.wants) if job.wants else None
            if job.wants and batch is not None and batch.is_ready:
                batch.reading.add(name)
                self.counts.given += 1
                batch_id, job.wants = job.wants, None
                yield GiveBatch(name, batch_id, batch)

    def _grants(self, now_s: float) -> Iterator[Action]:
        for worker, (batch_id, size_bytes) in sorted(self._room_requests.items(), key=lambda item: item[1][0]):
            lease = self.leases.get(batch_id)
            if lease is None or lease.worker != worker or batch_id in self.batches or not self._users(batch_id):
                del self._room_requests[worker]
                if lease is not None and lease.worker == worker:
                    self._close_lease(batch_id, now_s)
                yield GrantRoom(worker, batch_id, is_wanted=False)
            elif self.used_bytes - lease.reserved_bytes + size_bytes <= self.limit_bytes:
                del self._room_requests[worker]
                lease.reserved_bytes = 0
                self._usual_bytes = max(self._usual_bytes, size_bytes)
                self.batches[batch_id] = StagedBatch(size_bytes, self._users(batch_id))
                self.counts.prepared += 1
                self.counts.peak = max(self.counts.peak, len(self.batches))
                self.counts.peak_bytes = max(self.counts.peak_bytes, self.staged_bytes)
                yield GrantRoom(worker, batch_id, is_wanted=True)

    def _lends(self, now_s: float) -> Iterator[Action]:
        # Workers of stalled jobs first: later batches must not take the room of those needed now.
        for worker, waits in sorted(self._requests.items(), key=lambda item: not self._is_stalled(item[0])):
            batch_id = self._choice(self._workers.get(worker, ""))
            if batch_id is not None:
                self._returned.discard(batch_id)
                if batch_id == self._front:
                    self._front = self._after(batch_id)
                self.leases[batch_id] = Lease(worker, now_s, self._usual_bytes)
            if batch_id is not None or not waits:
                del self._requests[worker]
                yield LeaseBatch(worker, batch_id)

    def _is_stalled(self, worker: Hashable) -> bool:
        job = self.jobs.get(self._workers.get(worker, ""))
        return job is not None and job.wants is not None and self._is_open(job.wants)

    def _choice(self, job: str) -> BatchId | None:
        """Return the batch that a worker of this job should prepare: the one its job waits for, else the next."""
        if not self._has_room(self._usual_bytes):
            return None
        if not self._usual_bytes and self.leases:
            return None  # the first batch will show how large one is
        own = self.jobs.get(job)
        if own is not None and own.wants is not None and self._is_open(own.wants):
            return own.wants
        leading = self._leading()
        if not leading:
            return None
        self._returned = {batch_id for batch_id in self._returned if self._is_open(batch_id) and self._users(batch_id)}
        self._front = max(self._front, min(leading))
        while self._front[0] in self.epochs and not self._is_open(self._front):
            self._front = self._after(self._front)
        ready = [*self._returned, *([self._front] if self._front[0] in self.epochs else [])]
        return min(ready, default=None)

    def _leading(self) -> list[BatchId]:
        """Return the positions of the jobs that are not behind; if all are, the farthest leads from now on."""
        placed = [job for job in self.jobs.values() if job.position is not None]
        if placed and all(job.behind for job in placed):
            farthest = max(job.position for job in placed if job.position is not None)
            for job in placed:
                job.behind = job.position != farthest
            self._front = farthest
        return [job.position for job in placed if job.position is not None and not job.behind]

    def _is_open(self, batch_id: BatchId) -> bool:
        return batch_id[0] in self.epochs and batch_id not in self.batches and batch_id not in self.leases

    def _reassign_stalled(self, now_s: float) -> None:
        """Take back a lease that a job waits for and whose worker shows no progress for long."""
        allowed_s = max(_LEAST_LEASE_S, _LEASE_FACTOR * self._usual_s, 2 * self.patience_s)
        for job in self.jobs.values():
            lease = self.leases.get(job.wants) if job.wants else None
            if job.wants is None or lease is None or self._waits_for_room(job.wants) is not None:
                continue
            if now_s - lease.since_s >= allowed_s and now_s - job.since_s >= self.patience_s:
                self.counts.again += 1
                # It may only be slow: the next lease gets longer, or none would ever finish.
                self._usual_s = max(self._usual_s, now_s - lease.since_s)
                for batch_id in [batch_id for batch_id, other in self.leases.items() if other.worker == lease.worker]:
                    if self._waits_for_room(batch_id) is None:
                        self._take_back(batch_id)

    def _drop_for_waiting(self, now_s: float) -> None:
        """Drop batches that slower jobs have not taken, where a faster job has waited too long for room."""
        for job in self.jobs.values():
            allowed_s = self.patience_s * (2 if job.behind else 1)
            if job.wants is None or job.wants in self.batches or now_s - job.since_s < allowed_s:
                continue
            lease = self.leases.get(job.wants)
            requested_bytes = self._waits_for_room(job.wants)
            if lease is not None and requested_bytes is None:
                continue  # it is being prepared
            needed = self._usual_bytes
            if lease is not None and requested_bytes is not None:
                needed = requested_bytes - lease.reserved_bytes
            passed = sorted(batch_id for batch_id in self.batches if batch_id < job.wants)
            ahead = sorted((batch_id for batch_id in self.batches if batch_id > job.wants), reverse=True)
            for batch_id in (*passed, *ahead):
                batch = self.batches.get(batch_id)
                if batch is None or self._has_room(needed):
                    continue
                if batch.is_ready and not batch.reading:
                    self._drop(batch_id)

    def _waits_for_room(self, batch_id: BatchId) -> int | None:
        """How large a batch is that its worker has ready and finds no room for."""
        lease = self.leases.get(batch_id)
        request = self._room_requests.get(lease.worker) if lease is not None else None
        return request[1] if request is not None and request[0] == batch_id else None

    def _release(self, job: str, batch_id: BatchId) -> None:
        """Remove a job that has the batch, or does not need it any more."""
        self.batches[batch_id].users.discard(job)
        self.batches[batch_id].reading.discard(job)
        self._free_if_over(batch_id)

    def _drop(self, batch_id: BatchId) -> None:
        for name in self.batches[batch_id].users:
            self.jobs[name].behind = True
        for batch in self.batches.values():
            batch.users = {name for name in batch.users if not self.jobs[name].behind or name in batch.reading}
        self.counts.dropped += 1
        for other in list(self.batches):
            self._free_if_over(other)

    def _free_if_over(self, batch_id: BatchId) -> None:
        batch = self.batches[batch_id]
        if batch.is_ready and not batch.users and not batch.reading:
            self.freed.append(self.batches.pop(batch_id))

    def _take_back(self, batch_id: BatchId) -> None:
        del self.leases[batch_id]
        batch = self.batches.get(batch_id)
        if batch is not None and not batch.is_ready:
            self.freed.append(self.batches.pop(batch_id))  # its worker died while writing
        self._returned.add(batch_id)

    def _close_lease(self, batch_id: BatchId, now_s: float) -> None:
        lease = self.leases.pop(batch_id)
        self._usual_s = max(self._usual_s, now_s - lease.since_s)

    def _users(self, batch_id: BatchId) -> set[str]:
        return {name for name in self.jobs if self._keeps_for(name, batch_id)}

    def _keeps_for(self, name: str, batch_id: BatchId) -> bool:
        job = self.jobs[name]
        if job.wants == batch_id:
            return True
        near = job.position is not None and job.position <= batch_id and batch_id[0] <= job.position[0] + 1
        return near and not job.behind

    def _has_room(self, size_bytes: int) -> bool:
        places = len(self.batches.keys() | self.leases.keys())
        return self.used_bytes + size_bytes <= self.limit_bytes and places < self.most

    @property
    def _reserved_bytes(self) -> int:
        return sum(lease.reserved_bytes for lease in self.leases.values())

    def _after(self, batch_id: BatchId) -> BatchId:
        epoch, batch = batch_id
        return (epoch, batch + 1) if batch + 1 < self.epochs.get(epoch, 0) else (epoch + 1, 0)

    def _has_gathered(self, now_s: float) -> bool:
        if self._first_s is None:
            return False
        begun = sum(job.position is not None for job in self.jobs.values())
        return begun >= self.expected or now_s - self._first_s >= self.gather_s or self._front > (0, 0)
