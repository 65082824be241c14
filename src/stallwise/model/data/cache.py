"""How much of an epoch a cache leaves to storage, and what that means for the data path.

Training reads every sample once per epoch, in another order each time. `cached` is the fraction of the dataset that
fits, 0 to 1; `miss` the fraction of an epoch's reads that go to storage once the first epochs are over. Written c and
m:

    no eviction (MinIO)         m = 1 - c
    LRU                         m = 1 - c - (1-c) ln(1-c)
    FIFO                        m = (e-1) (1-c) from c = 1 - 1/e on; below see `fifo_miss`
    random replacement          m = 1 - [(1 - e^-b) / b]²,  b = m/c
    random, read in file order  m = 1 - e^-b
    LRU or FIFO in file order   m = 1: every sample is evicted just before it is read again

A page cache under shuffled reads behaves like random replacement: of seven policies only that came near the misses
published for DALI (Mohan et al., VLDB 2021), which are thus no proof of it. Everything here holds for many samples of
about the same size; `replay` drives a cache read by read: what the closed forms leave out, and what they are checked
against. There items are numbers, capacities counts of items.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError

CachePolicy = Literal["no eviction", "lru", "fifo", "page cache", "page cache, file order"]
MissCurve = Callable[[float], float]
Vector = npt.NDArray[np.float64]


def no_evict_miss(cached: float) -> float:
    """Fill once, never evict (MinIO): exactly what was kept is hit."""
    return 1 - _fraction(cached)


def lru_miss(cached: float) -> float:
    """Least recently used goes first.

    A sample read at u of one epoch and at v of the next is hit if fewer than c others were read in between:
    those of (u, 1) and, of (0, v), the u that are not among them, so that (1-u) + v u < c.
    """
    part = _fraction(cached)
    return 0.0 if part == 1 else min(1.0, (1 - part) * (1 - math.log1p(-part)))


def fifo_miss(cached: float) -> float:
    """First in goes first; a hit does not prolong a sample's stay.

    Many samples, so that misses flow: a sample stays while c of them are missed. Let Π be the distribution of misses
    over the epoch and L = c/m the stay in epochs. A sample inserted at Π = q leaves at q + L; its next miss is then
    anywhere in the rest of that epoch, or in the next one if it was just read. For L ≥ 1 that gives
    Π' = Π + 1/(e-1), so Π = (e^x - 1)/(e-1), and 1/m = L + 1/(e-1). For L < 1, only samples inserted in the last L of
    the misses live to see the next epoch: Π = a (e^x - 1) up to x₁ where it reaches L, a straight line after; with
    a = 1 / [(1-x₁) + (2-x₁)(e^x₁ - 1)], L = a (e^x₁ - 1), m = 1/(a + L), c = L m.
    """
    part = _fraction(cached)
    if part >= 1 - 1 / math.e:
        return (math.e - 1) * (1 - part)

    def of(x: float) -> tuple[float, float]:
        a = 1 / ((1 - x) + (2 - x) * math.expm1(x))
        stay = a * math.expm1(x)
        return stay / (a + stay), 1 / (a + stay)

    return min(1.0, of(_rising(lambda x: of(x)[0], part))[1])  # rounding may pass 1 where next to nothing is kept


def page_cache_miss(cached: float) -> float:
    """Random replacement over shuffled epochs.

    Survival is memoryless: after k evictions out of n places a sample is still there with e^(-k/n). Between two reads
    of a sample lie (1-u) + v epochs, each with m evictions for c places: hit = E[e^(-b(1-u))] E[e^(-bv)].
    """
    return resharded_miss(cached, servers=1)


def page_cache_sequential_miss(cached: float) -> float:
    """Random replacement where every epoch reads in the same order: exactly one epoch between two reads."""
    part = _fraction(cached)
    return 1 - part if part in (0.0, 1.0) else _fixed_point(lambda miss: -math.expm1(-miss / part))


def resharded_miss(cached: float, servers: int) -> float:
    """Random replacement on each of `servers`, which read a new random 1/s of the dataset every epoch.

    `cached` is one server's, of the whole dataset. A sample comes back to the same server after a geometric number of
    epochs: b = m/(s c), hit = (1/s) [(1-e^-b)/b]² / (1 - (1-1/s) e^-b). A server reads m/s of the dataset from storage.
    """
    part, back = _fraction(cached), 1 / _count(servers)
    if part == 0 or (part == 1 and servers == 1):
        return 1 - part

    def miss(guess: float) -> float:
        b = guess * back / part
        return 1 - back * _gap_factor(b) ** 2 / (1 - (1 - back) * math.exp(-b))

    return _fixed_point(miss)


def shared_miss(cached: float, jobs: int) -> float:
    """Random replacement shared by `jobs` that read the same dataset, each in its own order, at the same pace.

    A sample read by one job at v was last read, by whoever was last, a gap g ago. By that job more than g ago:
    1 for g < v, else 1 + v - g. By any other: 1 - g for g < v, else (1-v)(1+v-g). Their product S(g | v) gives
    hit = E[e^(-Bg)] = 1 - B ∬ e^(-Bg) S(g | v) dg dv, with B = jobs · m/c misses of all jobs per place and epoch.
    Storage is read `jobs` · m times the dataset per epoch.
    """
    part = _fraction(cached)
    if part in (0.0, 1.0):
        return 1 - part
    gaps, survival = _gap_survival(_count(jobs))
    return _fixed_point(lambda miss: _missed(jobs * miss / part, gaps, survival))


def _gap_survival(jobs: int, steps: int = 400) -> tuple[Vector, Vector]:
    """Gaps in epochs, and the chance that nobody has read the sample for so long, averaged over v."""
    gaps = np.arange(2 * steps + 1) / steps
    v, g = ((np.arange(steps) + 0.5) / steps)[:, None], gaps[None, :]
    own = np.where(g < v, 1.0, np.clip(1 + v - g, 0, None))
    other = np.where(g < v, 1 - g, (1 - v) * np.clip(1 + v - g, 0, None))
    return gaps, (own * other ** (jobs - 1)).mean(axis=0)


def _missed(rate: float, gaps: Vector, survival: Vector) -> float:
    """B ∫ e^(-Bg) S(g) dg with S straight between its points, so that it holds for any B: 1 + Σ S' Δ(e^-Bg)/B."""
    bounded = min(rate, 1e12)
    slopes = np.diff(survival) / np.diff(gaps)
    return 1.0 - float(slopes @ np.diff(np.exp(-bounded * gaps))) / bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a server's reads are served, as fractions of them."""

    local: float
    peer: float
    storage: float


def partitioned(cached: float, servers: int) -> Sources:
    """Servers that never evict and serve each other: own cache, then a peer's, then storage (CoorDL).

    `cached` is one server's, of the whole dataset. Each keeps its own shard first; what fits beyond repeats others'.
    """
    part = _fraction(cached)
    local = min(1.0, part)
    return Sources(
        local=local,
        peer=min(1.0, part * _count(servers)) - local,
        storage=max(0.0, 1 - part * servers),
    )


_MISSES: dict[CachePolicy, MissCurve] = {
    "no eviction": no_evict_miss,
    "lru": lru_miss,
    "fifo": fifo_miss,
    "page cache": page_cache_miss,
    "page cache, file order": page_cache_sequential_miss,
}


def miss(policy: CachePolicy, cached: float) -> float:
    """Fraction of an epoch's reads that `policy` leaves to storage."""
    return _MISSES[policy](cached)


def _gap_factor(b: float) -> float:
    """(1 - e^-b) / b, which is 1 at 0."""
    return -math.expm1(-b) / b if b > 0 else 1.0


def _fixed_point(of: Callable[[float], float]) -> float:
    """The m above 0 with m = of(m), where of(m) > m below it and < m above it."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) > middle else (low, middle)
    return high


def _rising(of: Callable[[float], float], value: float) -> float:
    """The x in 0 to 1 with of(x) = value, for a rising function."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < value else (low, middle)
    return high


def _fraction(value: float) -> float:
    """Check a fraction; a cache larger than the dataset holds all of it."""
    if not value >= 0:
        raise InputError(f"A fraction of the dataset or of its reads is a number from 0 to 1, not {value}.")
    return min(1.0, value)


def _count(value: int) -> int:
    if value < 1:
        raise InputError(f"There must be at least one server or job, not {value}.")
    return value


class Cache(Protocol):
    """A cache of items; `read` returns whether it was a hit and admits or evicts items by its policy."""

    def read(self, item: int) -> bool:
        """Read an item; return whether it was a hit."""
        ...


class Fifo:
    """A FIFO cache; with `renew`, a hit moves the item to the end of the queue, which is LRU."""

    def __init__(self, capacity: int, *, renew: bool = False) -> None:
        self._capacity, self._renew = capacity, renew
        self._items: OrderedDict[int, None] = OrderedDict()

    def read(self, item: int) -> bool:
        if item in self._items:
            if self._renew:
                self._items.move_to_end(item)
            return True
        self._items[item] = None
        if len(self._items) > self._capacity:
            self._items.popitem(last=False)
        return False


def resharded(items: int, epochs: int, *, servers: int, seed: int = 0) -> Iterator[list[list[int]]]:
    """Yield the reads of each server, epoch by epoch: a new random split of all items every time."""
    numbers = np.random.default_rng(seed)
    for _ in range(epochs):
        yield [part.tolist() for part in np.array_split(numbers.permutation(items), servers)]


def replay(cache: Cache, epochs: Iterable[Iterable[int]]) -> list[float]:
    """Return the fraction of each epoch's reads that missed."""
    missed = []
    for reads in epochs:
        hits = [cache.read(item) for item in reads]
        missed.append(1 - sum(hits) / len(hits))
    return missed
