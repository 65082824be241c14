"""The GPUs of a cluster as a tree of any depth, kept as arrays.

`domain[level, gpu]` is the domain a GPU belongs to; levels go from the tightest (slot, machine) to the widest (rack,
block, core). The whole cluster is the root above the last level and has no row. GPUs are numbered along the tree, so
the GPUs of every domain are consecutive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Which GPU belongs where."""

    levels: tuple[str, ...]
    """Kinds of domains from the tightest to the widest: `("slot", "machine", "rack")`."""
    domain: Ids
    """[level, gpu]"""
    names: tuple[tuple[str, ...], ...]
    """[level][domain]"""
    kinds: tuple[str, ...] = ()
    """What each GPU is called (`v100`); empty where all are alike."""

    @property
    def gpus(self) -> int:
        """How many."""
        return int(self.domain.shape[1])

    def size(self, level: int) -> int:
        """How many domains a level has; one level above the last there is the whole cluster."""
        return len(self.names[level]) if level < len(self.levels) else 1

    def largest(self, level: int) -> int:
        """GPUs of the largest domain of a level."""
        return _largest(self, level) if level < len(self.levels) else self.gpus

    def level(self, name: str) -> int:
        """The number of a level by its name; the level above the last where there is none of that name."""
        return self.levels.index(name) if name in self.levels else len(self.levels)

    @property
    def machine(self) -> int:
        """The level of machines; the widest where none is called so."""
        return min(self.level("machine"), max(len(self.levels) - 1, 0))

    def spans(self, gpus: npt.NDArray[np.integer[Any]]) -> tuple[int, ...]:
        """How many domains of each level a set of GPUs touches."""
        return tuple(len(np.unique(row[gpus])) for row in self.domain)

    @classmethod
    def counts(cls, *, gpus: int, machines: int = 1, racks: int = 1, blocks: int = 1, slots: int = 1) -> Self:
        """Even clusters, counts per parent: `gpus` in each of `machines` in each of `racks` in each of `blocks`.

        `slots` splits the GPUs of a machine. Slots and blocks make a level only where there is more than one.
        """
        for name, count in (
            ("gpus", gpus),
            ("machines", machines),
            ("racks", racks),
            ("blocks", blocks),
            ("slots", slots),
        ):
            if count < 1:
                raise InputError(f"A cluster with {name}={count} is not possible; every count is at least 1.")
        if gpus % slots:
            raise InputError(f"{gpus} GPUs do not divide evenly over {slots} slots of a machine.")
        number = np.arange(gpus * machines * racks * blocks)
        sizes = {"slot": gpus // slots, "machine": gpus, "rack": gpus * machines, "block": gpus * machines * racks}
        levels = [name for name in sizes if (name != "slot" or slots > 1) and (name != "block" or blocks > 1)]
        rows = [number // sizes[name] for name in levels]
        names = tuple(tuple(f"{name}{i}" for i in range(row[-1] + 1)) for name, row in zip(levels, rows, strict=True))
        return cls(tuple(levels), np.array(rows, dtype=np.int32), names)

    @classmethod
    def tree(cls, levels: Sequence[str], paths: Sequence[Sequence[str]]) -> Self:
        """One path of names per GPU, tightest domain first; a name inside another parent is another domain.

        GPUs are numbered in the order of their widest domain, then the next, as first met.
        """
        if not paths:
            raise InputError("A cluster needs at least one GPU; none was given.")
        for path in paths:
            if len(path) != len(levels):
                raise InputError(f"The path {'/'.join(path)} has {len(path)} parts for {len(levels)} levels.")
        met: list[dict[tuple[str, ...], int]] = [{} for _ in levels]
        keys = [[tuple(path[level:]) for level in range(len(levels))] for path in paths]
        for key in keys:
            for level, part in enumerate(key):
                met[level].setdefault(part, len(met[level]))
        ordered = sorted(keys, key=lambda key: tuple(met[level][key[level]] for level in reversed(range(len(levels)))))
        return cls._numbered(tuple(levels), ordered)

    @classmethod
    def _numbered(cls, levels: tuple[str, ...], ordered: Sequence[Sequence[tuple[str, ...]]]) -> Self:
        domain = np.zeros((len(levels), len(ordered)), dtype=np.int32)
        names: list[tuple[str, ...]] = []
        for level in range(len(levels)):
            numbers: dict[tuple[str, ...], int] = {}
            for gpu, key in enumerate(ordered):
                domain[level, gpu] = numbers.setdefault(key[level], len(numbers))
            names.append(tuple(part[0] for part in numbers))
        return cls(levels, domain, tuple(names))

    @classmethod
    def hosts(cls, levels: Sequence[str], hosts: Sequence[tuple[Sequence[str], int]]) -> Self:
        """From machines: each with its path (machine first, then its switch, …) and its number of GPUs."""
        return cls.tree(levels, [tuple(path) for path, gpus in hosts for _ in range(gpus)])


@lru_cache(maxsize=256)
def _largest(cluster: Cluster, level: int) -> int:
    """Counted once: whoever weighs placements asks for every kind of job."""
    return int(np.bincount(cluster.domain[level]).max())
