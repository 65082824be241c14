"""What a cache folder holds, in one file that all its processes share; the files themselves are the truth.

Whoever changes it holds its lock, first marks it dirty, and clears the mark with the new totals at the end. A ledger
that is found dirty (its changer was killed), damaged, gone, older than the machine's last start, or kept by another
policy is rebuilt by scanning the folder. Reading an entry needs no ledger at all.
"""

import contextlib
import math
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from stallwise.data.claims import Claims, close_here, open_here
from stallwise.data.entries import Found
from stallwise.data.policy import POLICIES, RANKED, Policy
from stallwise.data.table import DamagedError, Place, Table, Totals
from stallwise.data.tally import Tally
from stallwise.errors import CacheError

_MAGIC = b"SWLEDGR1"
_HEAD = struct.Struct("<8sII16sqqd4qQ")
_SUM = struct.Struct("<Q")
_PATIENCE_S = 5.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class UnavailableError(Exception):
    """The ledger cannot be had now: somebody holds it for long, or its file was removed."""


@dataclass(slots=True)
class Head:
    """The ledger's first bytes. `number` counts insertions and, under LRU, hits."""

    policy: int
    limit_bytes: int
    boot: bytes
    number: int = 0
    tidied_s: float = 0.0
    is_dirty: bool = False
    totals: Totals = field(default_factory=Totals)


@dataclass(slots=True)
class Page:
    """The ledger in the hands of the one who may change it."""

    head: Head
    table: Table


class Ledger:
    """An open ledger file."""

    def __init__(self, path: Path, policy: Policy, limit_bytes: int, *, is_writable: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT if is_writable else os.O_RDONLY
        self._handle = open_here(path, flags | os.O_NOFOLLOW)
        self.claims = Claims(self._handle)
        self.tally = Tally(self._handle, self.claims)
        self._policy, self._limit_bytes = POLICIES.index(policy), limit_bytes
        self._boot = _boot()
        self._mutex = threading.Lock()
        self.is_lost = False

    def close(self) -> None:
        """Free every lock."""
        close_here(self._handle)

    def attach(self, folder: Path, scan: Callable[[], list[Found]]) -> None:
        """Join those who use the folder: same policy, and the lowest limit of all.

        The records are added up once, here; a ledger that is not sound is rebuilt from `scan`.
        """
        self._scan = scan
        with self._locked():
            other = next((policy for _, policy in self.tally.others() if policy != self._policy), None)
            if other is not None:
                raise _other_policy(folder, self._policy, other)
            self.tally.take(self._limit_bytes, self._policy)
            head = self.peek()
            if head is None or head.policy != self._policy or not self._is_sound(head):
                head = self._rebuilt(head)
            head.limit_bytes = self.lowest_limit_bytes()
            self._store(head)

    def lowest_limit_bytes(self) -> int:
        """Our own limit or that of the most modest who uses the folder now."""
        return min([self._limit_bytes, *(limit for limit, _ in self.tally.others() if limit > 0)])

    @contextlib.contextmanager
    def holding(self) -> Iterator[Page]:
        """The ledger, for looking and for changes of a single record that leave its totals alone."""
        with self._locked():
            head = self.peek()
            if head is None or head.is_dirty or head.boot != self._boot:
                head = self._rebuilt(head)
                self._store(head)
            yield Page(head, self.table(head))

    @contextlib.contextmanager
    def changing(self) -> Iterator[Page]:
        """The ledger, for changes. What ends in an exception leaves it dirty, and the next one rebuilds it."""
        with self.holding() as page:
            page.head.is_dirty = True
            self._store(page.head)
            yield page
            page.head.is_dirty, page.head.totals = False, page.table.totals
            self._store(page.head)

    def peek(self) -> Head | None:
        """The head as it is now, without waiting; None if it is damaged."""
        data = os.pread(self._handle, _HEAD.size + _SUM.size, 0)
        if len(data) < _HEAD.size + _SUM.size or not data.startswith(_MAGIC):
            return None
        if _SUM.unpack(data[_HEAD.size :])[0] != xxhash.xxh3_64_intdigest(data[: _HEAD.size]):
            return None
        _, policy, dirty, boot, limit, number, tidied_s, *totals = _HEAD.unpack(data[: _HEAD.size])
        return Head(policy, limit, boot, number, tidied_s, bool(dirty), Totals(*totals))

    def place(self, key: bytes) -> Place | None:
        """The record of `key`; read without the lock, so what lies there must be checked."""
        head = self.peek()
        try:
            found = None if head is None else self.table(head).find(key)
        except DamagedError:
            return None
        return found if found is not None and found.is_there else None

    def knows(self, key: bytes) -> bool:
        """Whether there is a record of `key`; read without the lock, so only probably."""
        head = self.peek()
        try:
            return head is not None and self.table(head).find(key).is_there
        except DamagedError:
            return True

    def table(self, head: Head) -> Table:
        """The records; without the lock, only to look at."""
        return Table(self._handle, head.totals)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._mutex.acquire(timeout=_PATIENCE_S):
            raise UnavailableError("another thread holds it")
        try:
            if not self.claims.take_ledger(_PATIENCE_S):
                raise UnavailableError("another process holds it")
            try:
                # Somebody removed the folder: locks on a file without a name exclude nobody.
                self.is_lost = os.fstat(self._handle).st_nlink == 0
                if self.is_lost:
                    raise UnavailableError("it was removed")
                yield
            finally:
                self.claims.free_ledger()
        finally:
            self._mutex.release()

    def _is_sound(self, head: Head) -> bool:
        if head.is_dirty or head.boot != self._boot:
            return False
        with contextlib.suppress(DamagedError):
            return self.table(head).is_sound()
        return False

    def recount(self) -> None:
        """Rebuild from what lies in the folder."""
        with self._locked():
            self._store(self._rebuilt(self.peek()))

    def _rebuilt(self, old: Head | None) -> Head:
        """A ledger of what lies in the folder. Ranks are carried over; a file without one is the first to go."""
        head = Head(self._policy, self.lowest_limit_bytes(), self._boot)
        ranks: dict[bytes, float] = {}
        if old is None:
            self.tally.wipe()
        else:
            ranks = self._ranks(old)
            old.is_dirty = True
            self._store(old)  # should we be killed while we write the table
            head.number = old.number if old.policy == self._policy else 0  # other policies count other things
        scanned = self._scan()
        head.number = max([head.number, *(file.number for file in scanned)])
        ranks |= {file.key: file.rank for file in scanned if file.rank is not None}
        charges = _charges(scanned)
        first = math.inf if POLICIES[self._policy] in RANKED else 0.0
        table = self.table(head)
        table.fill(list(charges), list(charges.values()), [ranks.get(key, first) for key in charges])
        head.totals = table.totals
        return head

    def _ranks(self, head: Head) -> dict[bytes, float]:
        """What the old table says, as far as it can be read."""
        with contextlib.suppress(DamagedError):
            return dict(self.table(head).ranks()) if head.policy == self._policy else {}
        return {}

    def _store(self, head: Head) -> None:
        of = head.totals
        facts = (head.policy, head.is_dirty, head.boot, head.limit_bytes, head.number, head.tidied_s)
        data = _HEAD.pack(_MAGIC, *facts, of.slots, of.used_bytes, of.records, of.gone, of.fold)
        os.pwrite(self._handle, data + _SUM.pack(xxhash.xxh3_64_intdigest(data)), 0)


def _charges(found: Iterable[Found]) -> dict[bytes, int]:
    """Disk space by key, oldest first, negative where something is being written."""
    charges: dict[bytes, int] = {}
    for file in sorted(found, key=lambda file: file.modified_ns):
        before = charges.get(file.key, 0)
        charge = abs(before) + file.charge_bytes
        charges[file.key] = -charge if file.is_part or before < 0 else charge
    return charges


def _boot() -> bytes:
    """Which start of the machine this is."""
    try:
        return xxhash.xxh3_128_digest(_BOOT.read_bytes())
    except OSError:
        return bytes(16)


def _other_policy(folder: Path, own: int, other: int) -> CacheError:
    return CacheError(
        f"The cache folder {folder} is in use with policy {POLICIES[other]!r} and cannot be opened with "
        f"{POLICIES[own]!r}. Use the same policy, or another folder."
    )
