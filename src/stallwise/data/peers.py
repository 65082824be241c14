"""`Peers`: the caches of a job's nodes as one. A miss goes to the node that should have the object, then to the bucket.

    dist.init_process_group(...)
    cache = NodeCache("/mnt/nvme/cache", 200 * 10**9, peers=Peers())

CoorDL's partitioned cache (Mohan et al., VLDB 2021) without its directory: who keeps an object follows from its key
(`placement`). Who reads an object first fetches it from the bucket and hands it to its owner, so that with room for the
whole dataset on all nodes together the bucket is read once. Room that is left is filled with guests, which are served
locally and give way to what belongs here.

Nodes find each other in the job's own key-value store, and so get the token without which no peer answers. A peer
that is dead, slow, wrong or unknown costs one time-out and is passed over for a while, by all workers of the rank; the
next node in an object's order stands in for it. The worst that can happen is a read from the bucket.
"""

import os
import secrets
import subprocess
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwise.data.flights import Got
from stallwise.data.membership import Board, Meeting, folder_identity, meeting_of
from stallwise.data.peer_server import program, settings_line
from stallwise.data.peer_wire import NONCE_BYTES, Connection, WireError
from stallwise.data.placement import Member, ranked
from stallwise.errors import CacheError, InputError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from typing_extensions import Buffer

TIMEOUT_S = 1.0
BYPASS_S = 30.0
_LONGEST_BYPASS_S = 600.0
# What is on its way from or to a peer may take so much longer than the time-out as it would at this rate.
_LEAST_BYTES_PER_S = 1e6
# Requests of one process to one peer at a time: more would only queue on its link, and time out there.
_AT_ONCE = 8
_ASKED = 2
# How long an owner may wait for an object that somebody is fetching already, before it says that it has none.
_WAIT_S = 5.0
_FAILED = (OSError, EOFError, WireError)

_made: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class PeerStat:
    """What the nodes have done for this rank and its workers."""

    members: int
    bypassed: int
    """Members that are passed over now."""
    hits: int
    hit_bytes: int
    misses: int
    """Times a peer that was asked did not have it."""
    handed: int
    """Objects that were handed to their owner."""
    failures: int
    """Time-outs, refusals and wrong bytes."""


@dataclass(frozen=True, slots=True)
class Route:
    """Whom to ask for an object, in order; `owner` None: this node itself."""

    owner: Member | None
    others: Sequence[Member]

    @property
    def is_mine(self) -> bool:
        """Whether the object belongs to this node."""
        return self.owner is None


class Peers:
    """The other nodes of a job. Made where the job is, after `init_process_group`; workers carry it along.

    store      where the nodes meet: torch.distributed's own by default, or any `torch.distributed.Store`
    address    what this node listens on; by default the address it reaches the store from
    port       0: any free one
    timeout_s  longest that a peer may take to connect, and to answer beyond the time its bytes take at 1 MB/s
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
    ) -> None:
        if timeout_s <= 0 or bypass_s <= 0:
            raise InputError("The time-outs of peers must be above zero seconds.")
        _made[name] += 1
        self._meeting: Meeting | None = meeting_of(store, f"{name}/{_made[name] if store is None else 0}", patience_s)
        self._address, self._port = address, port
        self._timeout_s, self._bypass_s = timeout_s, bypass_s
        self._token, self._identity = b"", ""
        self._board = Board()
        self._server: _Server | None = None
        self._limit_bytes = 0
        self._forget()

    def __repr__(self) -> str:
        return f"Peers(members={len(self.members)})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_timeout_s", "_bypass_s", "_token", "_identity", "_board", "_limit_bytes", "_address", "_port")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _meeting=None, _server=None)
        self._forget()

    @property
    def members(self) -> tuple[Member, ...]:
        """All nodes known now, this one included."""
        return self._board.members()

    def join(self, folder: Path, limit_bytes: int) -> None:
        """Serve the cache in `folder` to the others, and find them (`NodeCache` calls this)."""
        meeting = self._meeting
        if meeting is None or self._identity:
            raise InputError("Peers belong to one NodeCache, made in the process that joined the job. Make new ones.")
        self._identity, self._limit_bytes = folder_identity(folder), limit_bytes
        self._token = meeting.token()
        if meeting.is_leader:
            self._serve(folder)
        meeting.arrive()
        self.refresh()

    def refresh(self) -> None:
        """See who has come and gone. `Lookahead` does so when an epoch begins."""
        if self._meeting is None or self._meeting.pid != os.getpid():
            return
        if self._server is not None and self._server.process.poll() is not None:
            self._serve(self._server.folder)
        found = self._meeting.members()
        if found is not None:
            self._board.write(found)

    def leave(self) -> None:
        """Stop serving, and say so; the others read what was here from the bucket."""
        if self._meeting is not None:
            self._meeting.leave(self._identity)
        if self._server is not None:
            self._server.end()
            self._server = None
        with self._lock:
            _close_all(self._idle)

    def stat(self) -> PeerStat:
        """Sums over this rank and its workers."""
        counts = {field.name: 0 for field in fields(PeerStat)} | self._board.counts()
        counts["members"] = len(self.members)
        counts["bypassed"] = sum(self._board.is_bypassed(member) for member in self.members)
        return PeerStat(**counts)

    def route(self, key: bytes) -> Route:
        """Whom the object belongs to, peers that are passed over apart."""
        able = [m for m in self.members if m.id == self._identity or not self._board.is_bypassed(m)]
        order = ranked(key, able)
        if not order or order[0].id == self._identity:
            return Route(None, order[1:_ASKED])
        return Route(order[0], [m for m in order[:_ASKED] if m.id != self._identity])

    def get(
        self,
        key: bytes,
        size_bytes: int,
        route: Route,
        fetch: "Callable[[], Buffer]",
        fits: Callable[[bytes], bool | None] | None = None,
    ) -> Got:
        """From a peer, else by `fetch`; what its owner did not have is handed to it."""
        for member in route.others:
            data = self._ask(member, key, size_bytes, fits, _WAIT_S if member is route.owner else 0.0)
            if data is not None:
                had_it = member is route.owner
                return Got(data, "peer", route.owner is not None and (had_it or self._hand(route.owner, key, data)))
        data = bytes(fetch())
        return Got(data, "store", route.owner is not None and self._hand(route.owner, key, data))

    def _ask(
        self, member: Member, key: bytes, size_bytes: int, fits: Callable[[bytes], bool | None] | None, wait_s: float
    ) -> bytes | None:
        def get(connection: Connection, deadline_s: float) -> bytes | None:
            data = connection.get(key, size_bytes, size_bytes or self._limit_bytes, deadline_s, wait_s)
            right = True if data is None or fits is None else fits(data)
            if right is False:
                raise WireError("its bytes are not those of the object's version")
            return data if right else None

        answered, data = self._talk(member, key, size_bytes, get)
        if answered and data is None:
            self._board.count(misses=1)
        if data is not None:
            self._board.count(hits=1, hit_bytes=len(data))
        return data  # type: ignore[no-any-return]

    def _hand(self, member: Member, key: bytes, data: bytes) -> bool:
        if self._board.is_bypassed(member) or not data:
            return False
        _, kept = self._talk(member, key, len(data), lambda c, deadline_s: c.put(key, data, deadline_s))
        self._board.count(handed=int(bool(kept)))
        return bool(kept)

    def _talk(
        self, member: Member, key: bytes, size_bytes: int, say: "Callable[[Connection, float], Any]"
    ) -> tuple[bool, Any]:
        """One request; whatever goes wrong, the peer is passed over for a while."""
        with self._way_to(member) as way:
            # While this one waited for its turn, others may have found the peer dead.
            return (False, None) if self._board.is_bypassed(member) else self._said(member, key, size_bytes, way, say)

    def _said(
        self, member: Member, key: bytes, size_bytes: int, way: "_Way", say: "Callable[[Connection, float], Any]"
    ) -> tuple[bool, Any]:
        allowed_s = self._timeout_s + way.flying(size_bytes) / _LEAST_BYTES_PER_S
        connection: Connection | None = None
        try:
            connection, is_old = self._connect(member)
            try:
                answer = say(connection, time.monotonic() + allowed_s)
            except (EOFError, ConnectionError):
                # A connection that lay idle may have been closed by the peer: that says nothing about it.
                connection.close()
                if not is_old:
                    raise
                connection, _ = self._connect(member, fresh=True)
                answer = say(connection, time.monotonic() + allowed_s)
        except _FAILED as error:
            self._bypass(member, key, connection, error)
            return False, None
        finally:
            way.flying(-size_bytes)
        self._give_back(member, connection)
        self._board.answered(member)
        return True, answer

    def _bypass(self, member: Member, key: bytes, connection: Connection | None, error: Exception) -> None:
        if connection is not None:
            if isinstance(error, WireError):
                self._tell(connection, key)
            connection.close()
        self._board.count(failures=1)
        self._board.bypass(member, self._bypass_s, _LONGEST_BYPASS_S)

    def _tell(self, connection: Connection, key: bytes) -> None:
        """It sent wrong bytes: perhaps its disk is bad and it does not know."""
        try:
            connection.check(key, time.monotonic() + self._timeout_s)
        except _FAILED:
            return

    # Connections: of this process, each used by one thread at a time.

    def _forget(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._ways: dict[tuple[str, int], _Way] = {}
        weakref.finalize(self, _close_all, self._idle)

    def _way_to(self, member: Member) -> "_Way":
        if self._pid != os.getpid():
            self._forget()  # forked: the parent's connections stay the parent's
        with self._lock:
            return self._ways.setdefault((member.host, member.port), _Way())

    def _connect(self, member: Member, *, fresh: bool = False) -> tuple[Connection, bool]:
        with self._lock:
            idle = self._idle.get((member.host, member.port))
            if idle and not fresh:
                return idle.pop(), True
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Connection(member.host, member.port, self._token, nonce, self._timeout_s), False

    def _give_back(self, member: Member, connection: Connection) -> None:
        with self._lock:
            self._idle.setdefault((member.host, member.port), []).append(connection)

    def _serve(self, folder: Path) -> None:
        meeting = self._meeting
        if meeting is None:
            return
        address = self._address or meeting.own_address()
        self._server = _Server(folder, settings_line(folder, self._limit_bytes, address, self._port, self._token, ""))
        weakref.finalize(self, self._server.end)
        meeting.register(self._identity, address, self._server.port)


class _Way:
    """This process's way to one peer: how many requests are on it, and how many bytes."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._bytes = 0

    def __enter__(self) -> "_Way":
        self._places.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._places.release()

    def flying(self, more_bytes: int) -> int:
        """Add to what is on its way; all of it."""
        with self._lock:
            self._bytes += more_bytes
            return self._bytes


def _close_all(idle: dict[tuple[str, int], list[Connection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()


class _Server:
    """A started `peer_server`."""

    def __init__(self, folder: Path, settings: bytes) -> None:
        self.folder, self._pid = folder, os.getpid()
        self.process = subprocess.Popen(program(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("both are pipes")
        self.process.stdin.write(settings)
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            self.end()
            raise CacheError(f"The process that serves {folder} to other nodes could not start: see its error above.")
        self.port = int(said)

    def end(self) -> None:
        """End it; in a forked child it is not ours."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self._pid == os.getpid():
            self.process.kill()
            self.process.wait()
