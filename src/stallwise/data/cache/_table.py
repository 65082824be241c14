"""The hash table in a cache's index file, shared by many processes, with a fast search for the highest rank.

A record is 32 bytes: key, charge, rank. The charge is the disk space of an entry, negative while it is being written,
0 in a slot never used and `_GONE` in a deleted one. A key's slot is the first free one from its home (linear
probing, no wrap: a tail of slots follows the last home). A bound per block of slots, never below the highest rank of
its kept entries, makes the search for a victim two small reads: take the block with the highest bound, look, lower the
bound if it was too high, and try again.

Everything is read and written with `pread` and `pwrite`: unlike with a mapped file, a full disk or a truncated file is
then an error and not a SIGBUS. Only the holder of the index's lock may change anything.
"""

import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TABLE_AT = 1 << 17
FEWEST_SLOTS = 1024
_BLOCK = _TAIL = 512
_CHUNK = 256 * _BLOCK
_CROWDED = 0.6
_WINDOW = 8  # slots read at once when looking for a key

_KEY = struct.Struct(">QQ")
_RECORD = struct.Struct("<QQqd")
_FLOAT = struct.Struct("<d")
_RECORDS = np.dtype([("hi", "<u8"), ("lo", "<u8"), ("charge", "<i8"), ("rank", "<f8")])
_GONE = -(1 << 63)
_MASK = (1 << 64) - 1
# Odd multipliers: a single flipped bit always changes a sum of products modulo 2^64.
_HI, _LO, _CHARGE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9

Records = npt.NDArray[np.void]


class DamagedError(Exception):
    """The index file is inconsistent; it is rebuilt from the entries."""


@dataclass(slots=True)
class TableTotals:
    """Sums over all records; `fold` is a checksum of keys and charges that follows every change.

    None of them changes when an entry being written is finished, so that this needs only one write.
    """

    slots: int = FEWEST_SLOTS
    used_bytes: int = 0
    records: int = 0
    gone: int = 0
    fold: int = 0


class TableSlot(NamedTuple):
    """The slot of a key, or the free slot where it could go (-1: none)."""

    number: int
    key: bytes
    charge: int
    rank: float

    @property
    def is_used(self) -> bool:
        """Whether the key has a record."""
        return self.charge not in (0, _GONE)

    @property
    def is_written(self) -> bool:
        """Whether the record is of an entry that is still being written."""
        return self.charge < 0 and self.charge != _GONE


class EntryTable:
    """Records of an open index file. `totals` is kept up to date; the caller stores it."""

    def __init__(self, handle: int, totals: TableTotals) -> None:
        self._handle, self.totals = handle, totals

    def find(self, key: bytes) -> TableSlot:
        """Return the slot of a key, or the free slot where it could go."""
        hi, lo = _KEY.unpack(key)
        totals = self.totals
        at, end = _home(hi, lo, totals.slots), totals.slots + _TAIL
        free: TableSlot | None = None
        while at < end:
            window = self._read(at, min(_WINDOW, end - at))
            for slot, (own_hi, own_lo, charge, rank) in enumerate(_RECORD.iter_unpack(window), at):
                if own_lo == lo and own_hi == hi and charge not in (0, _GONE):
                    return TableSlot(slot, key, charge, rank)
                if free is None and charge in (0, _GONE):
                    free = TableSlot(slot, key, charge, rank)
                if charge == 0:
                    return free or TableSlot(slot, key, charge, rank)
            at += _WINDOW
        return free or TableSlot(-1, key, 0, -math.inf)

    def put(self, slot: TableSlot, charge: int, rank: float) -> None:
        """Insert or replace a key's record; a negative charge is an entry being written, which is never a victim."""
        totals = self.totals
        if slot.is_used:
            self._count(slot.key, slot.charge, -1)
        elif slot.number < 0 or totals.records + totals.gone + 1 > _CROWDED * totals.slots:
            self._grow()
            return self.put(self.find(slot.key), charge, rank)
        self.totals.gone -= slot.charge == _GONE
        self._count(slot.key, charge, 1)
        return self._write(slot.number, slot.key, charge, rank)

    def finish(self, slot: TableSlot) -> None:
        """Mark an entry as written: from now on it may be a victim."""
        self._write(slot.number, slot.key, abs(slot.charge), slot.rank)

    def set_rank(self, slot: TableSlot, rank: float) -> None:
        """Change the rank of a used slot. The bound of its block still holds for a lower rank."""
        self._write(slot.number, slot.key, slot.charge, rank, renews_bound=not rank <= slot.rank)

    def drop(self, slot: TableSlot) -> None:
        """Delete the record of a used slot."""
        self._count(slot.key, slot.charge, -1)
        following = slot.number + 1
        end = self.totals.slots + _TAIL
        is_last = following < end and _RECORD.unpack(self._read(following, 1))[2] == 0
        self.totals.gone += not is_last
        self._write(slot.number, bytes(16), 0 if is_last else _GONE, -math.inf)

    def highest(self) -> TableSlot | None:
        """Return the slot of the entry of the highest rank, unless all are -inf."""
        bounds = self._bounds()
        if bounds.max() == -math.inf and self.totals.records:
            bounds = self._renew_bounds()
        while bounds[block := int(bounds.argmax())] > -math.inf:
            records = self._records(block * _BLOCK, _BLOCK)
            ranks = _kept_ranks(records)
            best = int(ranks.argmax())
            if ranks[best] >= bounds[block]:
                return _slot_of(block * _BLOCK + best, records[best])
            bounds[block] = ranks[best]
            self._write_bound(block, float(ranks[best]))
        return None

    def highest_bound(self) -> float:
        """Return an upper bound of the ranks; without the lock it may be outdated at once."""
        return float(self._bounds().max())

    def being_written(self) -> list[TableSlot]:
        """Return the slots of all entries that are still being written."""
        unfinished = []
        for first, records in self._chunks():
            slots = np.flatnonzero((records["charge"] < 0) & (records["charge"] != _GONE))
            unfinished += [_slot_of(first + int(slot), records[slot]) for slot in slots]
        return unfinished

    def demote(self, below: float) -> None:
        """Give entries ranked below `below` the highest rank of all, so that they are evicted first."""
        is_any = False
        for first, records in self._chunks():
            late = (records["charge"] > 0) & (records["rank"] < below)
            if late.any():
                is_any = True
                changed = records.copy()
                changed["rank"][late] = math.inf
                _write_all(self._handle, changed.tobytes(), TABLE_AT + first * _RECORD.size)
        if is_any:
            self._renew_bounds()

    def ranks(self) -> Iterator[tuple[bytes, float]]:
        """Yield key and rank of every finished entry."""
        for _, records in self._chunks():
            kept = records[records["charge"] > 0]
            for hi, lo, rank in zip(kept["hi"].tolist(), kept["lo"].tolist(), kept["rank"].tolist(), strict=True):
                yield _KEY.pack(hi, lo), rank

    def is_sound(self) -> bool:
        """Whether the records add up to the totals."""
        sums = [_totals(records) for _, records in self._chunks()]
        summed = TableTotals(
            slots=self.totals.slots,
            used_bytes=sum(part.used_bytes for part in sums),
            records=sum(part.records for part in sums),
            gone=sum(part.gone for part in sums),
            fold=sum(part.fold for part in sums) & _MASK,
        )
        return summed == self.totals

    def fill(self, keys: Sequence[bytes], charges: Sequence[int], ranks: Sequence[float]) -> None:
        """Replace all records by these."""
        words = np.frombuffer(b"".join(keys), dtype=">u8").reshape(-1, 2)
        records = np.zeros(len(keys), _RECORDS)
        records["hi"], records["lo"] = words[:, 0], words[:, 1]
        records["charge"], records["rank"] = charges, ranks
        self._rewrite(records)

    def _grow(self) -> None:
        live = [records[(records["charge"] != 0) & (records["charge"] != _GONE)] for _, records in self._chunks()]
        self._rewrite(np.concatenate(live))

    def _rewrite(self, records: Records) -> None:
        """Write a table of these records, at most half full.

        In the order of their homes, the slot of each is its home or the one after its predecessor's, whichever is
        later: max over i ≤ j of (home_i - i), plus j.
        """
        slots = FEWEST_SLOTS
        while slots < 2 * len(records) or not _fits(_slots_of(records, slots), slots):
            slots *= 2
        table = np.zeros(slots + _TAIL, _RECORDS)
        order = np.argsort(_homes(records, slots), kind="stable")
        table[_slots_of(records, slots)] = records[order]
        self.reserve(slots)
        _write_all(self._handle, table.tobytes(), TABLE_AT)
        self.totals = _totals(table)
        self.totals.slots = slots
        self._renew_bounds()

    def reserve(self, slots: int) -> None:
        """Allocate the disk space of `slots` slots, so that no later write fails on a full disk."""
        os.posix_fallocate(self._handle, 0, file_bytes(slots))

    def _count(self, key: bytes, charge: int, times: int) -> None:
        totals = self.totals
        totals.used_bytes += times * abs(charge)
        totals.records += times
        hi, lo = _KEY.unpack(key)
        totals.fold = (totals.fold + times * (hi * _HI + lo * _LO + abs(charge) * _CHARGE)) & _MASK

    def _write(self, slot: int, key: bytes, charge: int, rank: float, *, renews_bound: bool = True) -> None:
        os.pwrite(self._handle, _RECORD.pack(*_KEY.unpack(key), charge, rank), TABLE_AT + slot * _RECORD.size)
        if charge > 0 and renews_bound:
            block = slot // _BLOCK
            bound = os.pread(self._handle, _FLOAT.size, self._bounds_at + block * _FLOAT.size)
            if len(bound) < _FLOAT.size or not _FLOAT.unpack(bound)[0] >= rank:
                self._write_bound(block, rank)

    @property
    def _bounds_at(self) -> int:
        return TABLE_AT + (self.totals.slots + _TAIL) * _RECORD.size

    def _bounds(self) -> npt.NDArray[np.float64]:
        length = (self.totals.slots + _TAIL) // _BLOCK * _FLOAT.size
        bounds = np.frombuffer(_exactly(self._handle, length, self._bounds_at), "<f8")
        return np.where(np.isnan(bounds), math.inf, bounds)

    def _write_bound(self, block: int, bound: float) -> None:
        os.pwrite(self._handle, _FLOAT.pack(bound), self._bounds_at + block * _FLOAT.size)

    def _renew_bounds(self) -> npt.NDArray[np.float64]:
        chunks = [_kept_ranks(records).reshape(-1, _BLOCK).max(axis=1) for _, records in self._chunks()]
        bounds: npt.NDArray[np.float64] = np.concatenate(chunks)
        _write_all(self._handle, bounds.astype("<f8").tobytes(), self._bounds_at)
        return bounds

    def _chunks(self) -> Iterator[tuple[int, Records]]:
        """Yield all slots in chunks of a few megabytes, each with the number of its first slot."""
        end = self.totals.slots + _TAIL
        for first in range(0, end, _CHUNK):
            yield first, self._records(first, min(_CHUNK, end - first))

    def _records(self, slot: int, count: int) -> Records:
        return np.frombuffer(self._read(slot, count), _RECORDS)

    def _read(self, slot: int, count: int) -> bytes:
        return _exactly(self._handle, count * _RECORD.size, TABLE_AT + slot * _RECORD.size)


def file_bytes(slots: int) -> int:
    """Length in bytes of an index file with `slots` slots."""
    return TABLE_AT + (slots + _TAIL) * _RECORD.size + (slots + _TAIL) // _BLOCK * _FLOAT.size


def _exactly(handle: int, length: int, at: int) -> bytes:
    data = os.pread(handle, length, at)
    if len(data) != length:
        raise DamagedError("it is too short")
    return data


def _write_all(handle: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:  # one write takes 2 GiB at most
        written = os.pwrite(handle, rest, at)
        rest, at = rest[written:], at + written


def _home(hi: int, lo: int, slots: int) -> int:
    return ((hi * _HI + lo * _LO) & _MASK) * slots >> 64


def _homes(records: Records, slots: int) -> npt.NDArray[np.int64]:
    shift = np.uint64(64 - (slots.bit_length() - 1))
    return (_mixed(records) >> shift).astype(np.int64)


def _mixed(records: Records) -> npt.NDArray[np.uint64]:
    hi: npt.NDArray[np.uint64] = records["hi"].astype(np.uint64)
    lo: npt.NDArray[np.uint64] = records["lo"].astype(np.uint64)
    return np.asarray(hi * np.uint64(_HI) + lo * np.uint64(_LO), np.uint64)


def _slots_of(records: Records, slots: int) -> npt.NDArray[np.int64]:
    """Slots of the records, sorted by their home slots."""
    steps = np.arange(len(records))
    homes = np.sort(_homes(records, slots), kind="stable")
    placed: npt.NDArray[np.int64] = np.maximum.accumulate(homes - steps) + steps
    return placed


def _fits(placed: npt.NDArray[np.int64], slots: int) -> bool:
    return not len(placed) or int(placed[-1]) < slots + _TAIL


def _kept_ranks(records: Records) -> npt.NDArray[np.float64]:
    ranks = np.where(np.isnan(records["rank"]), math.inf, records["rank"])
    kept: npt.NDArray[np.float64] = np.where(records["charge"] > 0, ranks, -math.inf)
    return kept


def _slot_of(slot: int, record: np.void) -> TableSlot:
    hi, lo, charge, rank = record.tolist()
    return TableSlot(slot, _KEY.pack(hi, lo), charge, rank)


def _totals(records: Records) -> TableTotals:
    """Sum over some slots; `slots` itself is left 0."""
    charges = records["charge"]
    live = records[(charges != 0) & (charges != _GONE)]
    taken = np.abs(live["charge"])
    mixed = _mixed(live) + taken.astype(np.uint64) * np.uint64(_CHARGE)
    return TableTotals(
        slots=0,
        used_bytes=int(taken.sum()),
        records=len(live),
        gone=int((charges == _GONE).sum()),
        fold=int(mixed.sum(dtype=np.uint64)),
    )
