"""The coordinator: which machines are in a job's present round, and the store its ranks meet at.

It is the only authority on membership, so that at most one set of machines is the job. A machine is alive as long as
the coordinator hears from it, by the coordinator's own monotonic clock (`JobMembership`): no clock of a machine is ever
compared with another's. A round begins when none of the last one's machines is in it any more (each asked to join the
next, left, or was lost) and at least the least number of machines wait; machines of the last round come before spares.

Jobs are apart: each has its own machines and its own keys. The store keeps bytes and never looks into them.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from stallwise.elastic.wire import (
    LENGTH,
    MAGIC,
    MAX_KEY_CHARS,
    MAX_VALUE_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    AddValue,
    CloseJob,
    CompareSet,
    CountKeys,
    DeleteKey,
    FrameCodec,
    GetValue,
    Hello,
    Join,
    Leave,
    Look,
    MembershipStatus,
    Reply,
    Request,
    SetValue,
    WaitKeys,
    WireFormatError,
    frame_length,
    proof,
)

MAX_JOBS = 1024
MAX_JOB_BYTES = 64 << 20
MAX_WAIT_S = 5.0
_HANDSHAKE_S = 5.0
_STRANGERS = 128
"""Connections that have not shown the secret; the oldest goes when there are more."""
_CONNECTIONS = 8192
_KEEPALIVE_S = (60, 10, 6)
_KEY_BYTES = 64
"""Counted for each key beside its name and value."""


class RefusedError(Exception):
    """A request that the coordinator does not carry out; the message is for the client."""


@dataclass(slots=True)
class _Machine:
    """A machine and when the coordinator last heard from it."""

    ranks: int
    expiry_s: float
    heard_s: float


@dataclass(slots=True)
class JobMembership:
    """The machines of one job. `now` is the coordinator's monotonic clock."""

    now: Callable[[], float] = time.monotonic
    round: int = -1
    closed: str | None = None
    why: str = ""
    members: list[tuple[str, int]] = field(default_factory=list)
    _active: dict[str, _Machine] = field(default_factory=dict)
    _waiting: dict[str, _Machine] = field(default_factory=dict)
    _terms: tuple[int, int, str] | None = None
    _last_call_s: float = 0.0
    _enough_since_s: float | None = None

    def join(self, request: Join) -> bool:
        """Let a machine wait for the next round; returns whether a job that had ended begins anew."""
        if not (1 <= request.least <= request.most and request.ranks >= 1 and 0 < request.expiry_s < 3600):
            raise RefusedError("The machine's numbers make no sense.")
        self._expire()
        begins_anew = self.closed is not None and request.again and not self._active
        if begins_anew:
            self.closed, self.why, self._terms = None, "", None
        self._active.pop(request.member, None)
        if self.closed is not None:
            return False
        terms = (request.least, request.most, request.program)
        if not self._active and not self._waiting:
            self._terms = terms
        if self._terms != terms and self._terms is not None:
            least, most, program = self._terms
            raise RefusedError(
                f"The job of this name runs {program} on {least}:{most} machines, not {request.program} on "
                f"{request.least}:{request.most}. Give this job another name."
            )
        self._last_call_s = request.last_call_s
        self._waiting[request.member] = _Machine(request.ranks, request.expiry_s, self.now())
        self._begin_round()
        return begins_anew

    def look(self, member: str) -> None:
        """Note that the machine is alive; one that was lost stays lost until it joins again."""
        self._expire()
        machine = self._active.get(member) or self._waiting.get(member)
        if machine is not None:
            machine.heard_s = self.now()
        self._begin_round()

    def leave(self, member: str) -> None:
        self._active.pop(member, None)
        self._waiting.pop(member, None)
        self._begin_round()

    def close(self, request: CloseJob) -> None:
        """End the job, if the machine is in its present round."""
        self._expire()
        if request.member in self._active and self.closed is None:
            self.closed, self.why = request.kind, request.why

    def status(self, coordinator: str, member: str, serial: int) -> MembershipStatus:
        place = "member" if member in self._active else "waiting" if member in self._waiting else "out"
        return MembershipStatus(
            coordinator=coordinator,
            serial=serial,
            place=place,
            round=self.round,
            members=self.members,
            present=len(self._active),
            waiting=len(self._waiting),
            closed=self.closed,
            why=self.why,
            clock_s=time.time(),
        )

    def _expire(self) -> None:
        now_s = self.now()
        for machines in (self._active, self._waiting):
            for name in [name for name, one in machines.items() if now_s - one.heard_s > one.expiry_s]:
                del machines[name]

    def _begin_round(self) -> None:
        if self._active or self.closed is not None or self._terms is None:
            return
        least, most, _ = self._terms
        if len(self._waiting) < least:
            self._enough_since_s = None
            return
        if self._enough_since_s is None:
            self._enough_since_s = self.now()
        if len(self._waiting) < most and self.now() - self._enough_since_s < self._last_call_s:
            return
        before = {name for name, _ in self.members}
        names = sorted(self._waiting, key=lambda name: name not in before)[:most]  # stable: spares as they came
        self._active = {name: self._waiting.pop(name) for name in names}
        self.members = [(name, machine.ranks) for name, machine in self._active.items()]
        self.round += 1
        self._enough_since_s = None


class JobStore:
    """The keys of one job, bounded."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self.changed = asyncio.Event()

    def set(self, key: str, value: bytes) -> None:
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_BYTES:
            raise RefusedError("A key or value is longer than the coordinator keeps.")
        grown = self._bytes - self._size(key) + _KEY_BYTES + len(key) + len(value)
        if grown > MAX_JOB_BYTES:
            raise RefusedError(f"The job has more than {MAX_JOB_BYTES} bytes at the coordinator.")
        self._values[key], self._bytes = value, grown
        self.changed.set()
        self.changed = asyncio.Event()

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def add(self, key: str, amount: int) -> int:
        try:
            total = int(self._values.get(key, b"0")) + amount
        except ValueError:
            raise RefusedError(f"{key} is no number.") from None
        if amount or key in self._values:
            self.set(key, str(total).encode())
        return total

    def delete(self, key: str) -> bool:
        self._bytes -= self._size(key)
        return self._values.pop(key, None) is not None

    def drop_prefix(self, prefix: str) -> None:
        for key in [key for key in self._values if key.startswith(prefix)]:
            self.delete(key)

    def has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def __len__(self) -> int:
        return len(self._values)

    def _size(self, key: str) -> int:
        value = self._values.get(key)
        return 0 if value is None else _KEY_BYTES + len(key) + len(value)


@dataclass(slots=True)
class _Job:
    membership: JobMembership
    store: JobStore


class JobCoordinator:
    """Serves jobs to clients that have the secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.identity = secrets.token_hex(8)
        self._jobs: dict[str, _Job] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._connections = self._replies = 0

    async def start(self, address: str, port: int) -> asyncio.Server:
        """Listen on one address; port 0: any."""
        return await asyncio.start_server(self._connected, address, port)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        if task is None:
            return
        self._connections += 1
        self._strangers[task] = None
        if len(self._strangers) > _STRANGERS:
            next(iter(self._strangers)).cancel()
        try:
            if self._connections <= _CONNECTIONS:
                _keep_alive(writer.get_extra_info("socket"))
                codec = await asyncio.wait_for(self._handshake(reader, writer), _HANDSHAKE_S)
                self._strangers.pop(task, None)
                if codec is not None:
                    await self._attend(reader, writer, codec)
        except (OSError, EOFError, WireFormatError, msgspec.MsgspecError, RecursionError, asyncio.CancelledError):
            pass  # of a stranger, or a client that is gone: its connection ends, nothing else
        finally:
            self._connections -= 1
            self._strangers.pop(task, None)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> FrameCodec | None:
        server_nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(MAGIC + server_nonce)
        greeting = await reader.readexactly(len(MAGIC) + NONCE_BYTES + PROOF_BYTES)
        client_nonce, theirs = greeting[len(MAGIC) : -PROOF_BYTES], greeting[-PROOF_BYTES:]
        expected = proof(self._secret, b"client", server_nonce, client_nonce)
        if not greeting.startswith(MAGIC) or not hmac.compare_digest(theirs, expected):
            writer.write(bytes(PROOF_BYTES))  # a proof of nothing: the client can say what is wrong
            return None
        writer.write(proof(self._secret, b"server", server_nonce, client_nonce))
        return FrameCodec(proof(self._secret, b"session", server_nonce, client_nonce), b"s", b"c")

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: FrameCodec) -> None:
        job: _Job | None = None
        while True:
            length = frame_length(await reader.readexactly(LENGTH.size))
            mac = await reader.readexactly(PROOF_BYTES)
            body = codec.check(mac, await reader.readexactly(length))
            request = msgspec.json.decode(body, type=Request)
            try:
                if isinstance(request, Hello):
                    job, reply = self._job(request.job), Reply()
                elif job is None:
                    raise RefusedError("The first request of a connection names its job.")
                elif isinstance(request, WaitKeys):
                    reply = Reply(number=await _wait(job.store, request))
                else:
                    reply = self._answer(job, request)
            except RefusedError as refused:
                reply = Reply(refused=str(refused))
            writer.write(codec.encode(msgspec.json.encode(reply)))
            await writer.drain()

    def _job(self, name: str) -> _Job:
        if len(name) > MAX_KEY_CHARS:
            raise RefusedError("The job's name is too long.")
        if name not in self._jobs and len(self._jobs) >= MAX_JOBS:
            raise RefusedError(f"The coordinator has {MAX_JOBS} jobs already.")
        return self._jobs.setdefault(name, _Job(JobMembership(), JobStore()))

    def _answer(self, job: _Job, request: Request) -> Reply:
        store = job.store
        match request:
            case SetValue(key, value):
                store.set(key, value)
            case GetValue(key):
                return Reply(value=store.get(key))
            case AddValue(key, amount):
                return Reply(number=store.add(key, amount))
            case CompareSet(key, expected, value):
                if (store.get(key) or b"") == expected:
                    store.set(key, value)
                return Reply(value=store.get(key) or expected)
            case DeleteKey(key):
                return Reply(number=store.delete(key))
            case CountKeys():
                return Reply(number=len(store))
            case Join() | Look() | Leave() | CloseJob():
                return Reply(status=self._membership(job, request))
        return Reply()

    def _membership(self, job: _Job, request: Join | Look | Leave | CloseJob) -> MembershipStatus:
        membership, before = job.membership, job.membership.round
        match request:
            case Join():
                if membership.join(request):
                    job.store = JobStore()  # budgets and marks of the attempt that has ended
            case Look():
                membership.look(request.member)
            case Leave():
                membership.leave(request.member)
            case CloseJob():
                membership.close(request)
        if membership.round != before:
            # Ranks of an earlier round see that they are no longer the job, also where their agent is stopped.
            job.store.set(begun_key(membership.round), b"1")
            job.store.drop_prefix(f"ranks/{before}/")
        self._replies += 1
        return membership.status(self.identity, request.member, self._replies)


def begun_key(number: int) -> str:
    """Return the key that exists once a round has begun."""
    return f"begun/{number}"


async def _wait(store: JobStore, request: WaitKeys) -> int:
    """Return whether all keys exist, at the latest after the client's patience."""
    until_s = time.monotonic() + min(request.patience_s, MAX_WAIT_S)
    while not store.has(request.keys):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return 0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(store.changed.wait(), left_s)
    return 1


def _keep_alive(connection: socket.socket) -> None:
    """Let the kernel end connections whose other side is gone without a word."""
    idle_s, interval_s, tries = _KEEPALIVE_S
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, tries)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def serve(address: str, port: int, secret: bytes, report: Callable[[int], None]) -> None:
    """Serve until the process ends; `report` receives the port when it listens."""

    async def run() -> None:
        server = await JobCoordinator(secret).start(address, port)
        report(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
