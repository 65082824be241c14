"""How an epoch's order is drawn, what the next one will be, and how to draw the same again after a restart.

Three kinds of samplers are told apart by what fixes their order:

    distributed   seed and epoch: every rank can work out every rank's order of any epoch, and what is left of an epoch
                  can be dealt out anew to another number of ranks
    random        the state of a generator when the epoch begins
    any other     nothing we know: its order is kept as it came

All of them give exactly the numbers the sampler itself would give.
"""

import copy
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from stallwise.data.order import Numbers
from stallwise.errors import InputError

Item = int | list[int]


class Draw(Protocol):
    """One sampler's way to an order."""

    padding: int

    def begin(self) -> list[Item]:
        """The order of the epoch that begins now (what is left of it after `restore`)."""
        ...

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        """This rank's next epoch as far as can be told, and those of all ranks of the node; None where it cannot."""
        ...

    def state(self, consumed: int) -> dict[str, Any]:
        """All that is needed to go on after `consumed` samples of the epoch on this rank."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """The next `begin` goes on from there."""
        ...


def draw_of(sampler: Sampler[Any]) -> Draw:
    """The kind of the sampler. A subclass that draws in its own way is any other."""
    kind = type(sampler)
    if isinstance(sampler, DistributedSampler) and kind.__iter__ is DistributedSampler.__iter__:
        return _Distributed(sampler)
    if isinstance(sampler, RandomSampler) and kind.__iter__ is RandomSampler.__iter__:
        return _Random(sampler)
    return _AnyOther(sampler)


class _Distributed:
    """`DistributedSampler`: rank r of W takes r, r + W, … of one shuffled list.

    When all ranks have trained on k samples, the first k·W of that list are done, whatever W is. What is left is
    dealt out the same way to any number of ranks.
    """

    def __init__(self, sampler: "DistributedSampler[Any]") -> None:
        self._sampler = sampler
        self._start = 0  # of the shuffled list, done before this launch
        self._pending = 0
        self.padding = 0

    def begin(self) -> list[Item]:
        self._start, self._pending = self._pending, 0
        order, self.padding = self._of(self._sampler.epoch, self._sampler.rank, self._start)
        return order

    def _of(self, epoch: int, rank: int, start: int) -> tuple[list[Item], int]:
        """A rank's order of an epoch from `start` on, and how many repeats fill up all ranks' last round."""
        ranks, drop = self._sampler.num_replicas, self._sampler.drop_last
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank, whole.epoch = 1, 0, epoch
        whole.num_samples = whole.total_size = len(self._sampler.dataset)  # type: ignore[arg-type]
        rest = list(whole)[start:]
        over = len(rest) % ranks
        if over and drop:
            return list(rest[rank : len(rest) - over : ranks]), 0
        padding = (ranks - over) % ranks if rest else 0
        # As the sampler does: from the front, as often as needed.
        filled = rest + (rest * -(-padding // max(len(rest), 1)))[:padding]
        return list(filled[rank::ranks]), padding

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        epoch = self._sampler.epoch + 1
        own, _ = self._of(epoch, self._sampler.rank, 0)
        first = int(os.environ.get("RANK", self._sampler.rank)) - int(os.environ.get("LOCAL_RANK", 0))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        ranks = [r for r in range(first, first + local) if 0 <= r < self._sampler.num_replicas]
        return own, [numbers(self._of(epoch, rank, 0)[0]) for rank in ranks or [self._sampler.rank]]

    def state(self, consumed: int) -> dict[str, Any]:
        done = min(self._start + consumed * self._sampler.num_replicas, len(self._sampler.dataset))  # type: ignore[arg-type]
        keep = {"seed": self._sampler.seed, "shuffle": self._sampler.shuffle}
        return {"kind": "distributed", "epoch": self._sampler.epoch, "done": done, **keep}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("seed", "shuffle"):
            if state[name] != getattr(self._sampler, name):
                raise InputError(
                    f"The saved epoch was drawn with {name}={state[name]!r}, the sampler has "
                    f"{getattr(self._sampler, name)!r}: give it the same to go on in that epoch."
                )
        self._sampler.set_epoch(state["epoch"])
        self._pending = state["done"]


class _Random:
    """`RandomSampler`: the generator's state is the order. Without one it draws a seed, and so do we, in its place."""

    def __init__(self, sampler: RandomSampler) -> None:
        self._sampler = sampler
        self._generator_state: torch.Tensor | None = None
        self._pending: tuple[torch.Tensor, int] | None = None
        self._skipped = 0
        self.padding = 0

    def begin(self) -> list[Item]:
        own = self._sampler.generator
        generator = own if own is not None else torch.Generator()
        self._skipped = 0
        if self._pending is not None:
            state, self._skipped = self._pending
            generator.set_state(state)
            self._pending = None
        elif own is None:
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        self._generator_state = generator.get_state()
        return self._with(generator)[self._skipped :]

    def _with(self, generator: torch.Generator) -> list[Item]:
        kept, self._sampler.generator = self._sampler.generator, generator
        try:
            return list(self._sampler)
        finally:
            self._sampler.generator = kept

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        if self._sampler.generator is None:
            return None
        ahead = torch.Generator()
        ahead.set_state(self._sampler.generator.get_state())
        order = self._with(ahead)
        return order, [numbers(order)]

    def state(self, consumed: int) -> dict[str, Any]:
        return {"kind": "random", "generator": self._generator_state, "done": self._skipped + consumed}

    def restore(self, state: dict[str, Any]) -> None:
        self._pending = None if state["generator"] is None else (state["generator"], state["done"])


class _AnyOther:
    """A sampler we know nothing of: what it gave is kept."""

    def __init__(self, sampler: Sampler[Any]) -> None:
        self._sampler = sampler
        self._order: list[Item] = []
        self._pending: list[Item] | None = None
        self.padding = 0

    def begin(self) -> list[Item]:
        self._order = list(self._sampler) if self._pending is None else self._pending
        self._pending = None
        return self._order

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        return None

    def state(self, consumed: int) -> dict[str, Any]:
        done, items = 0, 0
        while items < len(self._order) and done < consumed:
            item = self._order[items]
            done, items = done + (len(item) if isinstance(item, list) else 1), items + 1
        return {"kind": "order", "rest": self._order[items:]}

    def restore(self, state: dict[str, Any]) -> None:
        self._pending = state["rest"]


def numbers(order: Sequence[Item]) -> Numbers:
    """Batches laid end to end."""
    if order and isinstance(order[0], list):
        return np.concatenate([np.asarray(batch, dtype=np.int64) for batch in order])
    return np.asarray(order, dtype=np.int64)
