"""Who is in the group: nodes meet in the job's key-value store; a rank's workers read a board in shared memory.

The store's connection belongs to the rank: a worker forked from it must not use it. So the rank looks, when it joins
and when an epoch begins, and writes what it found on a board that its workers see.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stallwise.data.placement import Member
from stallwise.errors import InputError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PREFIX = "stallwise/peers"
_POLL_S = 0.02
_SLOTS = 1024
_TEXT_BYTES = 1 << 17
_COUNTS = ("hits", "hit_bytes", "misses", "handed", "failures")
_LINES = 256
_SIOCGIFADDR = 0x8915


class Meeting:
    """The store as one rank uses it. Only calls that return at once, or after what is known to be there."""

    def __init__(self, store: "Store", name: str, world: int, patience_s: float, *, is_leader: bool) -> None:
        self.pid, self.is_leader = os.getpid(), is_leader
        self._store, self._at = store, f"{_PREFIX}/{name}"
        self._world, self._patience_s = world, patience_s
        self._version = -1

    def token(self) -> bytes:
        """Drawn by whoever comes first; all others read it."""
        drawn = secrets.token_hex(32)
        return bytes(self._store.compare_set(f"{self._at}/token", "", drawn))

    def register(self, identity: str, host: str, port: int) -> None:
        """Tell the others where this node's cache is served."""
        self._say({"id": identity, "host": host, "port": port})

    def leave(self, identity: str) -> None:
        """Tell the others that it is not any more."""
        with contextlib.suppress(RuntimeError):  # whoever held the store has left already
            self._say({"id": identity, "host": "", "port": 0})

    def _say(self, what: dict[str, Any]) -> None:
        slot = self._store.add(f"{self._at}/slots", 1) - 1
        self._store.set(f"{self._at}/slot/{slot}", json.dumps(what))
        self._store.add(f"{self._at}/version", 1)

    def arrive(self) -> None:
        """Wait, not for ever, until every rank of the job has come so far: who starts alone thinks all is its own."""
        come = self._store.add(f"{self._at}/arrived", 1)
        give_up_s = time.monotonic() + self._patience_s
        while come < self._world and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
            come = self._store.add(f"{self._at}/arrived", 0)

    def members(self) -> list[Member] | None:
        """All nodes, or None where nothing has changed or the store is gone: then what is known stays."""
        try:
            version = self._store.add(f"{self._at}/version", 0)
            if version == self._version:
                return None
            found: dict[str, Member] = {}
            for slot in range(self._store.add(f"{self._at}/slots", 0)):
                if self._store.check([f"{self._at}/slot/{slot}"]):
                    said = json.loads(self._store.get(f"{self._at}/slot/{slot}"))
                    found[said["id"]] = Member(said["id"], said["host"], said["port"], slot)
        except RuntimeError:  # also torch's DistError
            return None
        self._version = version
        return [member for member in found.values() if member.port]

    def own_address(self) -> str:
        """Of the interface the job was told to use, else the address this host reaches the store from."""
        named = _interface_address()
        if named is not None:
            return named
        host = _store_host(self._store)
        if host is None:
            return "127.0.0.1"
        kind = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind[0], socket.SOCK_DGRAM) as probe:
            probe.connect(kind[4])  # sends nothing
            return str(probe.getsockname()[0])


def meeting_of(store: "Store | None", name: str, patience_s: float) -> Meeting:
    """Where this process's job meets."""
    import torch.distributed as dist

    is_leader = os.environ.get("LOCAL_RANK", "0") == "0"
    if store is not None:
        return Meeting(store, name, 0, patience_s, is_leader=True)
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "Peers meet in torch.distributed, and this process has joined no job. Call init_process_group before, "
            "or give Peers a store: Peers(TCPStore(…))."
        )
    shared = dist.distributed_c10d._get_default_store()
    return Meeting(shared, name, dist.get_world_size(), patience_s, is_leader=is_leader)


def _interface_address() -> str | None:
    """As gloo and NCCL are told; the store's own host would else reach itself over loopback, which others cannot."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        name = os.environ.get(variable, "").partition(",")[0].lstrip("=")
        if name and (Path("/sys/class/net") / name).exists():
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                return socket.inet_ntoa(answer[20:24])
    return None


def _store_host(store: Any) -> str | None:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR")


def folder_identity(folder: Path) -> str:
    """A cache folder's own name among the nodes: kept in it, because what it holds follows from it."""
    path = folder / "peer"
    with contextlib.suppress(OSError):
        if not path.exists():
            part = folder / f"peer.{os.getpid()}.part"
            part.write_text(secrets.token_hex(8))
            with contextlib.suppress(FileExistsError):
                os.link(part, path)  # the first of several wins
            part.unlink()
        identity = path.read_text().strip()
        if identity:
            return identity
    return f"{socket.gethostname()}:{folder}"


class Board:
    """Members, who is passed over until when, and counts, in memory that a rank's workers share."""

    def __init__(self) -> None:
        import torch

        self._text = torch.zeros(_TEXT_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._head = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._passed = torch.zeros((_SLOTS, 2), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._sums = torch.zeros((_LINES, len(_COUNTS)), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._seen: tuple[int, tuple[Member, ...]] = (0, ())

    def members(self) -> tuple[Member, ...]:
        """As last written; read anew only when something has changed."""
        head = self._head.numpy()
        for _ in range(1000):
            version = int(head[0])
            if version == self._seen[0]:
                return self._seen[1]
            text = self._text.numpy()[: int(head[1])].tobytes()
            if version % 2 == 0 and int(head[0]) == version:
                found = tuple(Member(*each) for each in json.loads(text or b"[]"))
                self._seen = (version, found)
                return found
            time.sleep(1e-4)  # it is being written at this moment
        return self._seen[1]

    def write(self, members: Iterable[Member]) -> None:
        """By the rank only. An odd version says: not now."""
        listed = sorted(members, key=lambda member: member.slot)
        text = json.dumps([[m.id, m.host, m.port, m.slot] for m in listed]).encode()
        if len(text) > _TEXT_BYTES:
            raise InputError(f"{len(listed)} nodes are more than can share their caches.")
        head = self._head.numpy()
        head[0] += 1
        self._text.numpy()[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        head[1] = len(text)
        head[0] += 1

    def is_bypassed(self, member: Member) -> bool:
        """Whether it is passed over now."""
        return time.monotonic() < float(self._passed.numpy()[member.slot % _SLOTS, 0])

    def bypass(self, member: Member, first_s: float, longest_s: float) -> None:
        """Pass it over: longer every time it fails in a row."""
        row = self._passed.numpy()[member.slot % _SLOTS]
        if time.monotonic() < row[0]:
            return  # others of this rank had asked at the same time: one failure
        row[1] = min(longest_s, 2 * row[1]) if row[1] else first_s
        row[0] = time.monotonic() + row[1]

    def answered(self, member: Member) -> None:
        """It is well."""
        row = self._passed.numpy()[member.slot % _SLOTS]
        if row[1]:
            row[1] = 0.0

    def count(self, **counts: int) -> None:
        """Add to this process's line (a line may be shared by two processes: then a count in a million is lost)."""
        row = self._sums.numpy()[os.getpid() % _LINES]
        for name, number in counts.items():
            row[_COUNTS.index(name)] += number

    def counts(self) -> dict[str, int]:
        """Sums over all processes."""
        sums = self._sums.numpy().sum(axis=0)
        return {name: int(value) for name, value in zip(_COUNTS, sums, strict=True)}
