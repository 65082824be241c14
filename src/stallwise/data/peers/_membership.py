"""The nodes of a group: how they meet, which one owns an object, and that all of them index the same objects.

Nodes meet in the job's key-value store (`PeerRendezvous`). The store's connection belongs to the rank: a worker forked
from it must not use it. So the rank reads the members when it joins and when an epoch begins, and writes them into a
table in shared memory that its workers see (`PeerTable`).

Which node owns an object follows from rendezvous hashing (Thaler and Ravishankar, IEEE/ACM ToN 1998): every node gives
every object a score, and the highest owns it. All nodes compute the same without a directory. When a node leaves, only
its objects move, each to the node with the next score; when one joins, it takes an even share of every node's, and the
node that had an object before is now the second: asked next, it still has it.

All ranks of a job must mean the same objects by the same numbers. Each node lists the bucket, or keeps an index of it,
by itself. Where an object was added or removed in between, sample 17 is one object on one node and another on the next:
some would be trained on twice, others never, and nothing would look wrong. So the first rank leaves its index's
fingerprint in the job's key-value store, and every other compares (`check_same_index`). No rank waits for another.
"""

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import xxhash

from stallwise.errors import InputError


@dataclass(frozen=True, slots=True)
class PeerNode:
    """A node of the group: its identity stays with its cache folder over restarts; `slot` counts arrivals."""

    id: str
    host: str
    port: int
    slot: int


def rank_nodes(key: bytes, members: Iterable[PeerNode]) -> Sequence[PeerNode]:
    """Return the nodes in the order in which they should keep the object."""
    return sorted(members, key=lambda member: _score(key, member.id), reverse=True)


def _score(key: bytes, identity: str) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(identity.encode() + key), identity


if TYPE_CHECKING:
    from stallwise.torch_private import Store

_PREFIX = "stallwise/peers"
_POLL_S = 0.02
_SLOTS = 1024
_TEXT_BYTES = 1 << 17
_COUNTS = ("hits", "hit_bytes", "misses", "handed", "failures")
_LINES = 256
_SIOCGIFADDR = 0x8915
# More arrivals than a job of a thousand nodes has in its life; what somebody else writes there must not cost more.
_MOST_ARRIVALS = 1 << 16
_SECRET = "of the job's secret"  # noqa: S105 - stands for one in the store
SECRET_VARIABLE = "STALLWISE_JOB_SECRET"  # noqa: S105 - a variable's name
_LEAST_SECRET_BYTES = 16


class PeerRendezvous:
    """The job's key-value store as one rank uses it, by calls that do not block."""

    def __init__(self, store: "Store", name: str, world: int, patience_s: float, *, is_leader: bool) -> None:
        self.pid, self.is_leader = os.getpid(), is_leader
        self._store, self._at = store, f"{_PREFIX}/{name}"
        self._world, self._patience_s = world, patience_s
        self._version = -1

    def token(self, secret: bytes | None = None) -> bytes:
        """Return the group's token: from the job's secret, or drawn by the first rank and read by the others.

        With a secret, only that there is one is left in the store; without, whoever reaches the store has the token.
        """
        own = _SECRET if secret is not None else secrets.token_hex(32)
        token = bytes(self._store.compare_set(f"{self._at}/token", "", own))
        if (token == _SECRET.encode()) != (secret is not None):
            raise InputError(
                f"Some ranks of this job have its secret and others do not: set {SECRET_VARIABLE} on all nodes."
            )
        return token if secret is None else hmac.digest(secret, f"stallwise peers {self._at}".encode(), "sha256")

    def register(self, identity: str, host: str, port: int) -> None:
        """Publish the address at which this node's cache is served."""
        self._publish({"id": identity, "host": host, "port": port})

    def leave(self, identity: str) -> None:
        """Publish that this node's cache is not served any more."""
        with contextlib.suppress(RuntimeError):  # the process that hosts the store has ended
            self._publish({"id": identity, "host": "", "port": 0})

    def _publish(self, entry: dict[str, Any]) -> None:
        slot = self._store.add(f"{self._at}/slots", 1) - 1
        self._store.set(f"{self._at}/slot/{slot}", json.dumps(entry))
        self._store.add(f"{self._at}/version", 1)

    def arrive(self) -> None:
        """Wait, at most `patience_s`, until every rank has joined: a node that starts alone would own everything."""
        arrived = self._store.add(f"{self._at}/arrived", 1)
        give_up_s = time.monotonic() + self._patience_s
        while arrived < self._world and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
            arrived = self._store.add(f"{self._at}/arrived", 0)

    def members(self) -> list[PeerNode] | None:
        """Return all nodes; None where nothing has changed or the store is gone."""
        try:
            version = self._store.add(f"{self._at}/version", 0)
            if version == self._version:
                return None
            nodes: dict[str, PeerNode] = {}
            slots = self._store.add(f"{self._at}/slots", 0)
            for slot in range(max(0, slots - _MOST_ARRIVALS), slots):
                if self._store.check([f"{self._at}/slot/{slot}"]):
                    node = node_in(self._store.get(f"{self._at}/slot/{slot}"), slot)
                    if node is not None:
                        nodes[node.id] = node
        except RuntimeError:  # also torch's DistError
            return None
        self._version = version
        return [member for member in nodes.values() if member.port]

    def own_address(self) -> str:
        """Return the address of the interface set for gloo or NCCL, else the one this host reaches the store from."""
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


class _Entry(msgspec.Struct, frozen=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    host: Annotated[str, msgspec.Meta(max_length=256)]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]


def node_in(entry: bytes, slot: int) -> PeerNode | None:
    """Return the node that a value in the store names; None where it is something else."""
    try:
        node = msgspec.json.decode(entry, type=_Entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return PeerNode(node.id, node.host, node.port, slot)


def job_secret(secret: bytes | None) -> bytes | None:
    """Return the job's secret: this one, or that of the environment; None where there is none."""
    own = secret if secret is not None else os.environ.get(SECRET_VARIABLE, "").encode()
    if secret is not None or own:
        if len(own) < _LEAST_SECRET_BYTES:
            raise InputError(f"A job's secret has at least {_LEAST_SECRET_BYTES} bytes, not {len(own)}.")
        return own
    return None


def rendezvous_of(store: "Store | None", name: str, patience_s: float) -> PeerRendezvous:
    """Return the rendezvous of this process's job, in `store` or in torch.distributed's own."""
    import torch.distributed as dist

    is_leader = os.environ.get("LOCAL_RANK", "0") == "0"
    if store is not None:
        return PeerRendezvous(store, name, 0, patience_s, is_leader=True)
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "Peers meet in torch.distributed, and this process has joined no job. Call init_process_group first, "
            "or give Peers a store: Peers(TCPStore(…))."
        )
    shared = dist.distributed_c10d._get_default_store()
    return PeerRendezvous(shared, name, dist.get_world_size(), patience_s, is_leader=is_leader)


def _interface_address() -> str | None:
    """Return the address of gloo's or NCCL's interface; the store's own host would reach itself over loopback."""
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
    """Return the identity of a cache folder among the nodes, stored in the folder: its contents follow from it."""
    path = folder / "peer"
    with contextlib.suppress(OSError):
        if not path.exists():
            part = folder / f"peer.{os.getpid()}.part"
            part.write_text(secrets.token_hex(8))
            with contextlib.suppress(FileExistsError):
                os.link(part, path)  # the first of several processes wins
            part.unlink()
        identity = path.read_text().strip()
        if identity:
            return identity
    return f"{socket.gethostname()}:{folder}"


class PeerTable:
    """Members, until when each is bypassed, and counts, in memory that a rank's workers share."""

    def __init__(self) -> None:
        import torch

        self._text = torch.zeros(_TEXT_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._head = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._bypassed = torch.zeros((_SLOTS, 2), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._sums = torch.zeros((_LINES, len(_COUNTS)), dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._cached: tuple[int, tuple[PeerNode, ...]] = (0, ())

    def members(self) -> tuple[PeerNode, ...]:
        """Return the members as last written; parsed again only after a change."""
        head = self._head.numpy()
        for _ in range(1000):
            version = int(head[0])
            if version == self._cached[0]:
                return self._cached[1]
            text = self._text.numpy()[: int(head[1])].tobytes()
            if version % 2 == 0 and int(head[0]) == version:
                members = tuple(PeerNode(*fields) for fields in json.loads(text or b"[]"))
                self._cached = (version, members)
                return members
            time.sleep(1e-4)  # it is being written
        return self._cached[1]

    def write(self, members: Iterable[PeerNode]) -> None:
        """Write the members (the rank only). An odd version marks a write in progress."""
        listed = sorted(members, key=lambda member: member.slot)
        text = json.dumps([[m.id, m.host, m.port, m.slot] for m in listed]).encode()
        if len(text) > _TEXT_BYTES:
            raise InputError(f"{len(listed)} nodes are too many to share their caches.")
        head = self._head.numpy()
        head[0] += 1
        self._text.numpy()[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        head[1] = len(text)
        head[0] += 1

    def is_bypassed(self, member: PeerNode) -> bool:
        """Whether the member is bypassed now."""
        return time.monotonic() < float(self._bypassed.numpy()[member.slot % _SLOTS, 0])

    def bypass(self, member: PeerNode, first_s: float, longest_s: float) -> None:
        """Bypass the member, for twice as long with every failure in a row (seconds)."""
        row = self._bypassed.numpy()[member.slot % _SLOTS]
        if time.monotonic() < row[0]:
            return  # several workers of this rank failed at the same time: one failure
        row[1] = min(longest_s, 2 * row[1]) if row[1] else first_s
        row[0] = time.monotonic() + row[1]

    def reset_bypass(self, member: PeerNode) -> None:
        """Reset the back-off of a peer that answered."""
        row = self._bypassed.numpy()[member.slot % _SLOTS]
        if row[1]:
            row[1] = 0.0

    def count(self, **counts: int) -> None:
        """Add to this process's line (two processes may share a line and rarely lose a count)."""
        row = self._sums.numpy()[os.getpid() % _LINES]
        for name, number in counts.items():
            row[_COUNTS.index(name)] += number

    def counts(self) -> dict[str, int]:
        """Return the sums over all processes."""
        sums = self._sums.numpy().sum(axis=0)
        return {name: int(value) for name, value in zip(_COUNTS, sums, strict=True)}


# How many loaders this process has created over each bucket: ranks create theirs in the same order.
_loaders: Counter[str] = Counter()


def check_same_index(bucket: str, fingerprint: str, shown: str) -> None:
    """Raise `InputError` where another rank has a different index of this bucket."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    _loaders[bucket] += 1
    key = f"stallwise/index/{bucket}/{_loaders[bucket]}"
    mine = f"{fingerprint} {dist.get_rank()}"
    first, rank = dist.distributed_c10d._get_default_store().compare_set(key, "", mine).decode().split()
    if first != fingerprint:
        raise InputError(
            f"Rank {dist.get_rank()} and rank {rank} hold different indexes of {shown}: the bucket changed between "
            "their listings, or one was kept from before. Give all nodes one index_folder on a shared disk, or list "
            "anew on all of them (refresh=True) while nothing is written to the bucket."
        )
