"""The process that coordinates jobs which prepare their batches together: one per group, on one node.

Started by the first job, it outlives any of them and ends by itself after the last. It never touches a sample: it holds
descriptors, hands them on, and sends what the `coordinator` decides. One thread, no locks: whatever one job does or
does not do, the others' messages are served.
"""

import contextlib
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import time
from dataclasses import asdict, dataclass, field

from stallwise.data.shared._coordinator import MOST_BATCHES, Coordinator, GiveBatch, GrantRoom, LeaseBatch
from stallwise.data.shared._protocol import (
    BatchFailure,
    BatchReceipt,
    BatchRequest,
    BatchUpload,
    DisconnectedError,
    EpochStart,
    OrderRequest,
    RoomRequest,
    StagingHello,
    StagingReply,
    StagingRequest,
    StatRequest,
    WorkRequest,
    address_of,
    is_same_user,
    receive,
    request_of,
    send,
)

IDLE_S = 1.0
_NO_DESCRIPTORS = (
    "The process that shares batches has no file descriptors left (ulimit -n is {}). Raise it, or make batches larger."
)
_POLL_S = 1.0
_FULL_S = 0.05


@dataclass(eq=False)
class StagingClient:
    """One connection: a job, or one of its workers."""

    connection: socket.socket
    job: str = ""
    is_worker: bool = False
    facts: list[tuple[str, str, str]] = field(default_factory=list)


class StagingServer:
    """The server of one group: connections, descriptors of batches, and the `Coordinator`."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._waits = selectors.DefaultSelector()
        self._waits.register(listening, selectors.EVENT_READ)
        self._clients: set[StagingClient] = set()
        self._jobs: dict[str, StagingClient] = {}
        self._coordinator: Coordinator | None = None
        self._orders: dict[int, tuple[str, int]] = {}
        self._files = _most_files()

    def run(self) -> None:
        """Serve until no client has been connected for a while."""
        empty_s = time.monotonic()
        while self._clients or time.monotonic() - empty_s < IDLE_S:
            coordinator = self._coordinator
            pause_s = coordinator.next_s(time.monotonic()) if coordinator is not None else None
            for key, _ in self._waits.select(_POLL_S if pause_s is None else pause_s):
                if key.data is None:
                    self._accept()
                elif key.data in self._clients:
                    self._receive(key.data)
            self._settle()
            if self._clients:
                empty_s = time.monotonic()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            time.sleep(_FULL_S)  # no descriptor is free: the client waits until one is
            return
        if not is_same_user(connection):
            connection.close()
            return
        client = StagingClient(connection)
        self._clients.add(client)
        self._waits.register(connection, selectors.EVENT_READ, client)

    def _receive(self, client: StagingClient) -> None:
        file: int | None = None
        try:
            data, file = receive(client.connection)
            if self._handle(client, request_of(data), file):
                file = None  # it is kept
        except (DisconnectedError, KeyError):
            self._disconnect(client)  # gone, or its message is invalid
        finally:
            if file is not None:
                os.close(file)

    def _handle(self, client: StagingClient, request: StagingRequest, file: int | None) -> bool:
        """Handle a message; return whether its descriptor is kept."""
        now_s = time.monotonic()
        if isinstance(request, StagingHello):
            self._hello(client, request)
            return False
        coordinator = self._coordinator
        if coordinator is None or (client.job not in coordinator.jobs):
            raise KeyError("it has not introduced itself")
        if isinstance(request, EpochStart):
            return self._begin(client, request, file, coordinator)
        if isinstance(request, BatchRequest):
            coordinator.want(client.job, (request.epoch, request.batch), now_s)
        elif isinstance(request, BatchReceipt):
            coordinator.done(client.job, (request.epoch, request.batch))
        elif isinstance(request, WorkRequest):
            coordinator.request_work(client, wait=request.wait)
        elif isinstance(request, OrderRequest):
            self._reply(client, StagingReply(), self._orders[request.epoch][1])
        elif isinstance(request, RoomRequest):
            self._room(client, request, coordinator, now_s)
        elif isinstance(request, BatchUpload):
            if file is not None:
                return coordinator.put(client, (request.epoch, request.batch), file, now_s)
            # The kernel drops a descriptor when the table is full.
            coordinator.fail(client, (request.epoch, request.batch), _NO_DESCRIPTORS.format(self._files), now_s)
        elif isinstance(request, BatchFailure):
            coordinator.fail(client, (request.epoch, request.batch), request.text, now_s)
        elif isinstance(request, StatRequest):
            self._reply(client, StagingReply(stat=_stat(coordinator)))
        return False

    def _hello(self, client: StagingClient, request: StagingHello) -> None:
        if client.job:
            raise KeyError("it has introduced itself")
        if request.is_worker:
            coordinator = self._coordinator
            if coordinator is None or request.job not in coordinator.jobs:
                raise KeyError("its job is not here")
            client.job, client.is_worker = request.job, True
            coordinator.join_worker(client, request.job)
            self._reply(client, StagingReply())
            return
        difference = self._difference(request)
        if difference is not None:
            self._reply(client, StagingReply(refused=difference))
            return
        if self._coordinator is None:
            self._coordinator = Coordinator(
                request.limit_bytes,
                patience_s=request.patience_s,
                expected=request.expected,
                gather_s=request.gather_s,
                # The other half is for connections and orders.
                most=min(MOST_BATCHES, self._files // 2),
            )
        client.job, client.facts = request.job, request.facts
        self._jobs[request.job] = client
        self._coordinator.join(request.job)
        self._reply(client, StagingReply())

    def _difference(self, request: StagingHello) -> str | None:
        """Describe how a new job differs from those of the group; None where it does not."""
        member = next(iter(self._jobs.values()), None)
        if member is None:
            return None
        theirs = {name: (digest, shown) for name, digest, shown in member.facts}
        for name, digest, shown in request.facts:
            other = theirs.pop(name, ("", "none"))
            if other[0] != digest:
                if other[1] == shown:
                    return (
                        f"its {name} ({shown}) has other contents, code or settings than that of the jobs already there"
                    )
                return f"its {name} is {shown}, that of the jobs already there is {other[1]}"
        return f"it has no {next(iter(theirs))}, and the jobs already there have one" if theirs else None

    def _begin(self, client: StagingClient, request: EpochStart, file: int | None, coordinator: Coordinator) -> bool:
        order = self._orders.get(request.epoch)
        if order is not None and order[0] != request.digest:
            difference = f"its order of epoch {request.epoch} is not that of the jobs already there"
            self._reply(client, StagingReply(refused=difference))
            return False
        if order is None:
            if file is None or not _is_order(file):
                raise KeyError("an epoch without its order")
            self._orders[request.epoch] = (request.digest, file)
        coordinator.begin(client.job, request.epoch, request.batches, request.at, time.monotonic())
        self._reply(client, StagingReply())
        return order is None

    def _room(self, client: StagingClient, request: RoomRequest, coordinator: Coordinator, now_s: float) -> None:
        batch_id = (request.epoch, request.batch)
        if request.size_bytes <= coordinator.limit_bytes:
            coordinator.request_room(client, batch_id, request.size_bytes)
            return
        coordinator.fail(
            client,
            batch_id,
            f"A batch of {request.size_bytes:,} bytes does not fit into staging_bytes={coordinator.limit_bytes:,}. "
            "Give all jobs more, several batches at least.",
            now_s,
        )
        self._reply(client, StagingReply(batch=batch_id, is_wanted=False))

    def _settle(self) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return
        for action in list(coordinator.settle(time.monotonic())):
            if isinstance(action, GiveBatch):
                batch = action.batch
                file = batch.payload if isinstance(batch.payload, int) else None
                client = self._jobs.get(action.job)
                if client is not None:  # it may have disconnected a moment ago
                    self._reply(client, StagingReply(batch=action.batch_id, error=batch.error), file)
            elif isinstance(action, LeaseBatch) and isinstance(action.worker, StagingClient):
                self._reply(action.worker, StagingReply(batch=action.batch_id))
            elif isinstance(action, GrantRoom) and isinstance(action.worker, StagingClient):
                self._reply(action.worker, StagingReply(batch=action.batch_id, is_wanted=action.is_wanted))
        self._free(coordinator)

    def _free(self, coordinator: Coordinator) -> None:
        for batch in coordinator.freed:
            if isinstance(batch.payload, int):
                os.close(batch.payload)
        coordinator.freed.clear()
        oldest = min((job.position[0] for job in coordinator.jobs.values() if job.position), default=None)
        for epoch in [e for e in self._orders if oldest is not None and e < oldest]:
            os.close(self._orders.pop(epoch)[1])
            coordinator.epochs.pop(epoch, None)

    def _reply(self, client: StagingClient, reply: StagingReply, file: int | None = None) -> None:
        try:
            # Each client has one open request, so its buffer is empty: a client that does not read is stopped.
            client.connection.setblocking(False)
            send(client.connection, reply, file)
            client.connection.setblocking(True)
        except (DisconnectedError, BlockingIOError):
            self._disconnect(client)

    def _disconnect(self, client: StagingClient) -> None:
        """Remove a client that closed or failed, and return its leases at once."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._waits.unregister(client.connection)
        client.connection.close()
        coordinator = self._coordinator
        if coordinator is None or not client.job:
            return
        if client.is_worker:
            coordinator.leave_worker(client)
            return
        if self._jobs.get(client.job) is not client:
            return
        del self._jobs[client.job]
        coordinator.leave(client.job)
        for worker in [one for one in self._clients if one.is_worker and one.job == client.job]:
            self._disconnect(worker)
        if not self._jobs:
            self._reset(coordinator)

    def _reset(self, coordinator: Coordinator) -> None:
        """Free everything after the last job: the next one begins a new group."""
        for batch in coordinator.batches.values():
            if isinstance(batch.payload, int):
                os.close(batch.payload)
        for _, file in self._orders.values():
            os.close(file)
        self._free(coordinator)
        self._orders, self._coordinator = {}, None


def _is_order(file: int) -> bool:
    facts = os.fstat(file)
    return stat.S_ISREG(facts.st_mode) and facts.st_size % 8 == 0


def _most_files() -> int:
    """Raise the limit of open files to the hard limit; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = hard if hard != resource.RLIM_INFINITY else 4 * MOST_BATCHES
    if soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _stat(coordinator: Coordinator) -> dict[str, int]:
    now = {
        "staged_bytes": coordinator.staged_bytes,
        "staged": len(coordinator.batches),
        "limit_bytes": coordinator.limit_bytes,
        "jobs": len(coordinator.jobs),
        "behind": sum(job.behind for job in coordinator.jobs.values()),
    }
    return now | asdict(coordinator.counts)


def main() -> None:
    """Serve the group named in the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(listening):
        try:
            listening.bind(address_of(sys.argv[1]))
        except OSError:
            return  # another process was faster
        listening.listen(256)
        StagingServer(listening).run()


if __name__ == "__main__":
    main()
