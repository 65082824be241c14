"""`Peers`: the caches of a job's nodes as one. A miss goes to the node that should have the object, then to the bucket.

    dist.init_process_group(...)
    cache = NodeCache("/mnt/nvme/cache", 200 * 10**9, peers=Peers())

CoorDL's partitioned cache (Mohan et al., VLDB 2021) without its directory: the owner of an object follows from its key
(`membership`). The first reader of an object fetches it from the bucket and hands it to its owner, so that with room
for the whole dataset on all nodes together the bucket is read once. Free room is filled with guests, which are served
locally and are evicted for objects that belong to the node.

Nodes find each other in the job's own key-value store. No peer replies without the token, which follows from the job's
secret (`STALLWISE_JOB_SECRET`); a job without one leaves a token in that store, for whoever reaches it. A peer
that is dead, slow, wrong or unknown costs one time-out and is bypassed for a while, by all workers of the rank; the
next node in an object's order replaces it. The worst case is a read from the bucket.
"""

import os
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.data.cache._single_flight import FetchResult
from stallwise.data.peers._membership import (
    PeerNode,
    PeerRendezvous,
    PeerTable,
    folder_identity,
    job_secret,
    rank_nodes,
    rendezvous_of,
)
from stallwise.data.peers._protocol import NONCE_BYTES, Connection, PeerServerSettings, WireError
from stallwise.errors import CacheError, InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from stallwise.torch_private import Store

TIMEOUT_S = 1.0
BYPASS_S = 30.0
_LONGEST_BYPASS_S = 600.0
# A transfer may take longer than the time-out by the time its bytes need at this rate.
_LEAST_BYTES_PER_S = 1e6
# Concurrent requests of one process to one peer: more would only queue on its link, and time out there.
_AT_ONCE = 8
_CANDIDATES = 2
# How long an owner may wait for an object that is being fetched already, before it replies that it has none.
_WAIT_S = 5.0
_FAILED = (OSError, EOFError, WireError)
_Send = Callable[[Connection, float], Any]

_groups: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class PeerStat:
    """Counts of the requests of this rank and its workers to other nodes."""

    members: int
    bypassed: int
    """Members that are bypassed now."""
    hits: int
    hit_bytes: int
    misses: int
    """Requests to peers that did not have the object."""
    handed: int
    """Objects handed to their owner."""
    failures: int
    """Time-outs, refused connections and wrong bytes."""


@dataclass(frozen=True, slots=True)
class Route:
    """Which nodes to ask for an object, in order; `owner` None: this node itself."""

    owner: PeerNode | None
    others: Sequence[PeerNode]

    @property
    def is_mine(self) -> bool:
        """Whether the object belongs to this node."""
        return self.owner is None


class Peers:
    """The other nodes of a job. Created in the rank after `init_process_group`; workers inherit it.

    store      where the nodes meet: torch.distributed's own by default, or any `torch.distributed.Store`
    address    what this node listens on; by default the address it reaches the store from
    port       0: any free one
    secret     the job's secret: at least 16 bytes that all ranks have; by default that of the environment
    timeout_s  limit for a peer to connect, and to reply beyond the time its bytes take at 1 MB/s
    """

    def __init__(
        self,
        store: "Store | None" = None,
        *,
        address: str | None = None,
        port: int = 0,
        timeout_s: float = TIMEOUT_S,
        bypass_s: float = BYPASS_S,
        name: str = "default",
        patience_s: float = 30.0,
        secret: bytes | None = None,
    ) -> None:
        if timeout_s <= 0 or bypass_s <= 0:
            raise InputError("The time-outs of peers must be above zero seconds.")
        _groups[name] += 1
        self._rendezvous: PeerRendezvous | None = rendezvous_of(
            store, f"{name}/{_groups[name] if store is None else 0}", patience_s
        )
        self._secret = job_secret(secret)
        self._address, self._port = address, port
        self._timeout_s, self._bypass_s = timeout_s, bypass_s
        self._token, self._identity = b"", ""
        self._table = PeerTable()
        self._server: _ServerProcess | None = None
        self._limit_bytes, self._shared = 0, False
        self._forget()

    def __repr__(self) -> str:
        return f"Peers(members={len(self.members)})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_timeout_s", "_bypass_s", "_token", "_identity", "_table", "_limit_bytes", "_address", "_port")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _rendezvous=None, _server=None, _secret=None, _shared=False)
        self._forget()

    @property
    def members(self) -> tuple[PeerNode, ...]:
        """All current nodes, this one included."""
        return self._table.members()

    def join(self, folder: Path, limit_bytes: int, *, shared: bool = False) -> None:
        """Serve the cache in `folder` to the others, and find them (`NodeCache` calls this)."""
        rendezvous = self._rendezvous
        if rendezvous is None or self._identity:
            raise InputError("Peers belong to one NodeCache, created in the process that joined the job.")
        self._identity, self._limit_bytes, self._shared = folder_identity(folder), limit_bytes, shared
        self._token = rendezvous.token(self._secret)
        if rendezvous.is_leader:
            self._serve(folder)
        rendezvous.arrive()
        self.refresh()

    def refresh(self) -> None:
        """Read the members anew. `Lookahead` calls this when an epoch begins."""
        if self._rendezvous is None or self._rendezvous.pid != os.getpid():
            return
        if self._server is not None and self._server.process.poll() is not None:
            self._serve(self._server.folder)
        members = self._rendezvous.members()
        if members is not None:
            self._table.write(members)

    def leave(self) -> None:
        """Stop serving and leave the group; the others read this node's objects from the bucket."""
        if self._rendezvous is not None:
            self._rendezvous.leave(self._identity)
        if self._server is not None:
            self._server.end()
            self._server = None
        with self._lock:
            _close_all(self._idle)

    def stat(self) -> PeerStat:
        """Return the counts of this rank and its workers."""
        counts = {field.name: 0 for field in fields(PeerStat)} | self._table.counts()
        counts["members"] = len(self.members)
        counts["bypassed"] = sum(self._table.is_bypassed(member) for member in self.members)
        return PeerStat(**counts)

    def route(self, key: bytes) -> Route:
        """Return the owner of the object and the nodes to ask, without bypassed ones."""
        able = [m for m in self.members if m.id == self._identity or not self._table.is_bypassed(m)]
        order = rank_nodes(key, able)
        if not order or order[0].id == self._identity:
            return Route(None, order[1:_CANDIDATES])
        return Route(order[0], [m for m in order[:_CANDIDATES] if m.id != self._identity])

    def get(
        self,
        key: bytes,
        size_bytes: int,
        route: Route,
        fetch: "Callable[[], Buffer]",
        fits: Callable[[bytes], bool | None] | None = None,
    ) -> FetchResult:
        """Return the object from a peer, else by `fetch`; it is handed to an owner that did not have it."""
        for member in route.others:
            data = self._get_from(member, key, size_bytes, fits, _WAIT_S if member is route.owner else 0.0)
            if data is not None:
                from_owner = member is route.owner
                return FetchResult(
                    data, "peer", route.owner is not None and (from_owner or self._hand(route.owner, key, data))
                )
        data = bytes(fetch())
        return FetchResult(data, "store", route.owner is not None and self._hand(route.owner, key, data))

    def _get_from(
        self, member: PeerNode, key: bytes, size_bytes: int, fits: Callable[[bytes], bool | None] | None, wait_s: float
    ) -> bytes | None:
        def get(connection: Connection, deadline_s: float) -> bytes | None:
            data = connection.get(key, size_bytes, size_bytes or self._limit_bytes, deadline_s, wait_s)
            right = True if data is None or fits is None else fits(data)
            if right is False:
                raise WireError("its bytes are not those of the object's version")
            return data if right else None

        replied, data = self._request(member, key, size_bytes, get)
        if replied and data is None:
            self._table.count(misses=1)
        if data is not None:
            self._table.count(hits=1, hit_bytes=len(data))
        return data  # type: ignore[no-any-return]

    def _hand(self, member: PeerNode, key: bytes, data: bytes) -> bool:
        if self._table.is_bypassed(member) or not data:
            return False
        _, kept = self._request(member, key, len(data), lambda c, deadline_s: c.put(key, data, deadline_s))
        self._table.count(handed=int(bool(kept)))
        return bool(kept)

    def _request(self, member: PeerNode, key: bytes, size_bytes: int, send: _Send) -> tuple[bool, Any]:
        """Return whether the peer replied, and its reply; after any failure the peer is bypassed for a while."""
        with self._channel_to(member) as channel:
            # While this request waited for its turn, others may have found the peer dead.
            if self._table.is_bypassed(member):
                return False, None
            return self._send(member, key, size_bytes, channel, send)

    def _send(
        self,
        member: PeerNode,
        key: bytes,
        size_bytes: int,
        channel: "_PeerChannel",
        send: _Send,
    ) -> tuple[bool, Any]:
        allowed_s = self._timeout_s + channel.add_bytes(size_bytes) / _LEAST_BYTES_PER_S
        connection: Connection | None = None
        try:
            connection, was_idle = self._connect(member)
            try:
                reply = send(connection, time.monotonic() + allowed_s)
            except (EOFError, ConnectionError):
                # The peer may have closed an idle connection: that is no failure.
                connection.close()
                if not was_idle:
                    raise
                connection, _ = self._connect(member, fresh=True)
                reply = send(connection, time.monotonic() + allowed_s)
        except _FAILED as error:
            self._bypass(member, key, connection, error)
            return False, None
        finally:
            channel.add_bytes(-size_bytes)
        self._give_back(member, connection)
        self._table.reset_bypass(member)
        return True, reply

    def _bypass(self, member: PeerNode, key: bytes, connection: Connection | None, error: Exception) -> None:
        if connection is not None:
            if isinstance(error, WireError):
                self._request_check(connection, key)
            connection.close()
        self._table.count(failures=1)
        self._table.bypass(member, self._bypass_s, _LONGEST_BYPASS_S)

    def _request_check(self, connection: Connection, key: bytes) -> None:
        """Let a peer that sent wrong bytes verify its entry: its disk may be bad."""
        try:
            connection.check(key, time.monotonic() + self._timeout_s)
        except _FAILED:
            return

    # Connections of this process, each used by one thread at a time.

    def _forget(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._channels: dict[tuple[str, int], _PeerChannel] = {}
        weakref.finalize(self, _close_all, self._idle)

    def _channel_to(self, member: PeerNode) -> "_PeerChannel":
        if self._pid != os.getpid():
            self._forget()  # forked: the parent's connections belong to the parent
        with self._lock:
            return self._channels.setdefault((member.host, member.port), _PeerChannel())

    def _connect(self, member: PeerNode, *, fresh: bool = False) -> tuple[Connection, bool]:
        with self._lock:
            idle = self._idle.get((member.host, member.port))
            if idle and not fresh:
                return idle.pop(), True
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Connection(member.host, member.port, self._token, nonce, self._timeout_s), False

    def _give_back(self, member: PeerNode, connection: Connection) -> None:
        with self._lock:
            self._idle.setdefault((member.host, member.port), []).append(connection)

    def _serve(self, folder: Path) -> None:
        rendezvous = self._rendezvous
        if rendezvous is None:
            return
        address = self._address or rendezvous.own_address()
        settings = PeerServerSettings(str(folder), self._limit_bytes, address, self._port, self._token, self._shared)
        self._server = _ServerProcess(folder, settings)
        weakref.finalize(self, self._server.end)
        rendezvous.register(self._identity, address, self._server.port)


class _PeerChannel:
    """This process's traffic to one peer: limits concurrent requests and counts their bytes."""

    def __init__(self) -> None:
        self._slots = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._bytes = 0

    def __enter__(self) -> "_PeerChannel":
        self._slots.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._slots.release()

    def add_bytes(self, more_bytes: int) -> int:
        """Add to the bytes in transfer, and return their sum."""
        with self._lock:
            self._bytes += more_bytes
            return self._bytes


def _close_all(idle: dict[tuple[str, int], list[Connection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()


class _ServerProcess:
    """The process of this node's `peers.server` and the port it serves at."""

    def __init__(self, folder: Path, settings: PeerServerSettings) -> None:
        self.folder, self._pid = folder, os.getpid()
        program = [sys.executable, "-m", "stallwise.data.peers.server"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("both are pipes")
        self.process.stdin.write(msgspec.json.encode(settings) + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.end()
            raise CacheError(f"The process that serves {folder} to other nodes could not start: see its error above.")
        self.port = int(line)

    def end(self) -> None:
        """End the process; a forked child only closes its copies of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()
