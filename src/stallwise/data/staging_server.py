"""The process that keeps the books of jobs which prepare their batches together: one per group, on one node.

Started by the first job, it outlives any of them and ends by itself when the last has gone. It never touches a sample:
it holds descriptors, hands them on, and does what `staging` says. One thread, no locks: whatever a job does or does
not do, the others' messages are answered.
"""

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, field

import msgspec

from stallwise.data.staging import MOST_BATCHES, Give, Grant, Lend, Staging
from stallwise.data.staging_wire import (
    Answer,
    Ask,
    AskStat,
    Begin,
    Done,
    Fail,
    GoneError,
    Hello,
    OrderOf,
    Put,
    Request,
    Room,
    Want,
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
class Client:
    """One connection: a job, or one of its workers."""

    connection: socket.socket
    job: str = ""
    is_worker: bool = False
    facts: list[tuple[str, str, str]] = field(default_factory=list)


class Server:
    """One group's."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._waits = selectors.DefaultSelector()
        self._waits.register(listening, selectors.EVENT_READ)
        self._clients: set[Client] = set()
        self._jobs: dict[str, Client] = {}
        self._staging: Staging | None = None
        self._orders: dict[int, tuple[str, int]] = {}
        self._files = _most_files()

    def run(self) -> None:
        """Until nobody has been here for a while."""
        empty_s = time.monotonic()
        while self._clients or time.monotonic() - empty_s < IDLE_S:
            staging = self._staging
            pause_s = staging.next_s(time.monotonic()) if staging is not None else None
            for key, _ in self._waits.select(_POLL_S if pause_s is None else pause_s):
                if key.data is None:
                    self._welcome()
                elif key.data in self._clients:
                    self._hear(key.data)
            self._settle()
            if self._clients:
                empty_s = time.monotonic()

    def _welcome(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            time.sleep(_FULL_S)  # no descriptor is free: who calls waits until one is
            return
        if not is_same_user(connection):
            connection.close()
            return
        client = Client(connection)
        self._clients.add(client)
        self._waits.register(connection, selectors.EVENT_READ, client)

    def _hear(self, client: Client) -> None:
        file: int | None = None
        try:
            data, file = receive(client.connection)
            if self._do(client, request_of(data), file):
                file = None  # it is kept
        except (GoneError, msgspec.DecodeError, KeyError):
            self._part(client)  # gone, or it speaks nonsense
        finally:
            if file is not None:
                os.close(file)

    def _do(self, client: Client, said: Request, file: int | None) -> bool:
        """Whether the descriptor that came with it is kept."""
        now_s = time.monotonic()
        if isinstance(said, Hello):
            self._hello(client, said)
            return False
        staging = self._staging
        if staging is None or (client.job not in staging.jobs):
            raise KeyError("it has not said who it is")
        if isinstance(said, Begin):
            return self._begin(client, said, file, staging)
        if isinstance(said, Want):
            staging.want(client.job, (said.epoch, said.batch), now_s)
        elif isinstance(said, Done):
            staging.done(client.job, (said.epoch, said.batch))
        elif isinstance(said, Ask):
            staging.ask(client, wait=said.wait)
        elif isinstance(said, OrderOf):
            self._answer(client, Answer(), self._orders[said.epoch][1])
        elif isinstance(said, Room):
            self._room(client, said, staging, now_s)
        elif isinstance(said, Put):
            if file is not None:
                return staging.put(client, (said.epoch, said.batch), file, now_s)
            # The kernel leaves a descriptor out that the table has no place for.
            staging.fail(client, (said.epoch, said.batch), _NO_DESCRIPTORS.format(self._files), now_s)
        elif isinstance(said, Fail):
            staging.fail(client, (said.epoch, said.batch), said.text, now_s)
        elif isinstance(said, AskStat):
            self._answer(client, Answer(stat=_stat(staging)))
        return False

    def _hello(self, client: Client, said: Hello) -> None:
        if said.is_worker:
            staging = self._staging
            if staging is None or said.job not in staging.jobs:
                raise KeyError("its job is not here")
            client.job, client.is_worker = said.job, True
            staging.join_worker(client, said.job)
            self._answer(client, Answer())
            return
        differing = self._differing(said)
        if differing is not None:
            self._answer(client, Answer(refused=differing))
            return
        if self._staging is None:
            self._staging = Staging(
                said.limit_bytes,
                patience_s=said.patience_s,
                expected=said.expected,
                gather_s=said.gather_s,
                # The other half is for jobs, their workers and orders.
                most=min(MOST_BATCHES, self._files // 2),
            )
        client.job, client.facts = said.job, said.facts
        self._jobs[said.job] = client
        self._staging.join(said.job)
        self._answer(client, Answer())

    def _differing(self, said: Hello) -> str | None:
        """What a job that comes does otherwise than those that are here."""
        here = next(iter(self._jobs.values()), None)
        if here is None:
            return None
        theirs = {name: (digest, shown) for name, digest, shown in here.facts}
        for name, digest, shown in said.facts:
            other = theirs.pop(name, ("", "none"))
            if other[0] != digest:
                how = " (of the same name, but other code or settings)" if other[1] == shown else ""
                return f"its {name} is {shown}{how}, that of the jobs already there is {other[1]}"
        return f"it has no {next(iter(theirs))}, and the jobs already there have one" if theirs else None

    def _begin(self, client: Client, said: Begin, file: int | None, staging: Staging) -> bool:
        known = self._orders.get(said.epoch)
        if known is not None and known[0] != said.digest:
            self._answer(
                client, Answer(refused=f"its order of epoch {said.epoch} is not that of the jobs already there")
            )
            return False
        if known is None:
            if file is None:
                raise KeyError("an epoch without its order")
            self._orders[said.epoch] = (said.digest, file)
        staging.begin(client.job, said.epoch, said.batches, said.at, time.monotonic())
        self._answer(client, Answer())
        return known is None

    def _room(self, client: Client, said: Room, staging: Staging, now_s: float) -> None:
        spot = (said.epoch, said.batch)
        if said.size_bytes <= staging.limit_bytes:
            staging.room(client, spot, said.size_bytes)
            return
        staging.fail(
            client,
            spot,
            f"A batch of {said.size_bytes:,} bytes does not fit into staging_bytes={staging.limit_bytes:,}. "
            "Give all jobs more, several batches at least.",
            now_s,
        )
        self._answer(client, Answer(spot=spot, is_wanted=False))

    def _settle(self) -> None:
        staging = self._staging
        if staging is None:
            return
        for action in list(staging.settle(time.monotonic())):
            if isinstance(action, Give):
                batch = action.batch
                file = batch.payload if isinstance(batch.payload, int) else None
                client = self._jobs.get(action.job)
                if client is not None:  # it may have gone a moment ago
                    self._answer(client, Answer(spot=action.spot, error=batch.error), file)
            elif isinstance(action, Lend) and isinstance(action.worker, Client):
                self._answer(action.worker, Answer(spot=action.spot))
            elif isinstance(action, Grant) and isinstance(action.worker, Client):
                self._answer(action.worker, Answer(spot=action.spot, is_wanted=action.is_wanted))
        self._free(staging)

    def _free(self, staging: Staging) -> None:
        for batch in staging.freed:
            if isinstance(batch.payload, int):
                os.close(batch.payload)
        staging.freed.clear()
        oldest = min((job.position[0] for job in staging.jobs.values() if job.position), default=None)
        for epoch in [e for e in self._orders if oldest is not None and e < oldest]:
            os.close(self._orders.pop(epoch)[1])
            staging.epochs.pop(epoch, None)

    def _answer(self, client: Client, answer: Answer, file: int | None = None) -> None:
        try:
            # Each client has one request open, so its buffer is empty: who does not even read is stopped.
            client.connection.setblocking(False)
            send(client.connection, answer, file)
            client.connection.setblocking(True)
        except (GoneError, BlockingIOError):
            self._part(client)

    def _part(self, client: Client) -> None:
        """Somebody has gone, orderly or not: what it held is given back at once."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        self._waits.unregister(client.connection)
        client.connection.close()
        staging = self._staging
        if staging is None or not client.job:
            return
        if client.is_worker:
            staging.leave_worker(client)
            return
        if self._jobs.get(client.job) is not client:
            return
        del self._jobs[client.job]
        staging.leave(client.job)
        for worker in [one for one in self._clients if one.is_worker and one.job == client.job]:
            self._part(worker)
        if not self._jobs:
            self._reset(staging)

    def _reset(self, staging: Staging) -> None:
        """Nobody is left: the next who comes begins a new group, whatever it does."""
        for batch in staging.batches.values():
            if isinstance(batch.payload, int):
                os.close(batch.payload)
        for _, file in self._orders.values():
            os.close(file)
        self._free(staging)
        self._orders, self._staging = {}, None


def _most_files() -> int:
    """As many descriptors as we may have; all we may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 4 * MOST_BATCHES
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _stat(staging: Staging) -> dict[str, int]:
    now = {
        "staged_bytes": staging.staged_bytes,
        "staged": len(staging.batches),
        "limit_bytes": staging.limit_bytes,
        "jobs": len(staging.jobs),
        "behind": sum(job.behind for job in staging.jobs.values()),
    }
    return now | asdict(staging.counts)


def main() -> None:
    """Serve the group named in the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(listening):
        try:
            listening.bind(address_of(sys.argv[1]))
        except OSError:
            return  # another was faster
        listening.listen(256)
        Server(listening).run()


if __name__ == "__main__":
    main()
