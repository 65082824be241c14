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
from typing import Any, Protocol, runtime_checkable

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
        """The order of the epoch that begins now.

        After `restore` it is what is left of the saved one, unless the sampler was set to another epoch since. Where a
        sampler does not count epochs and nothing is left, the next one begins.
        """
        ...

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        """This rank's next epoch as far as can be told, and those of all ranks of the node; None where it cannot."""
        ...

    def state(self, consumed: int) -> dict[str, Any]:
        """All that is needed to go on after `consumed` samples of the epoch on this rank.

        Of an epoch that has not begun yet nothing is consumed but what was when it was saved.
        """
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """The next `begin` goes on from there."""
        ...


@runtime_checkable
class ForAll(Draw, Protocol):
    """One that knows the order of all ranks."""

    def begin_all(self) -> list[Item]:
        """As `begin`, of all ranks: of every W in a row each takes one."""
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
        self._begun: int | None = None  # the epoch `_start` is of
        self._pending: tuple[int, int] | None = None  # an epoch, and what of it was done
        self.padding = 0

    def begin(self) -> list[Item]:
        return list(self.begin_all()[self._sampler.rank :: self._sampler.num_replicas])

    def begin_all(self) -> list[Item]:
        self._start, self._begun, self._pending = self._done_before(), self._sampler.epoch, None
        filled, self.padding = self._filled(self._sampler.epoch, self._start)
        return filled

    def _done_before(self) -> int:
        return self._pending[1] if self._pending is not None and self._pending[0] == self._sampler.epoch else 0

    def _filled(self, epoch: int, start: int) -> tuple[list[Item], int]:
        """An epoch from `start` on, made a multiple of the ranks; how many repeats that took."""
        ranks = self._sampler.num_replicas
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank, whole.epoch = 1, 0, epoch
        whole.num_samples = whole.total_size = len(self._sampler.dataset)  # type: ignore[arg-type]
        rest: list[Item] = list(whole)[start:]
        over = len(rest) % ranks
        if over and self._sampler.drop_last:
            return rest[: len(rest) - over], 0
        padding = (ranks - over) % ranks if rest else 0
        # As the sampler does: from the front, as often as needed.
        return rest + (rest * -(-padding // max(len(rest), 1)))[:padding], padding

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        filled, _ = self._filled(self._sampler.epoch + 1, 0)
        first = int(os.environ.get("RANK", self._sampler.rank)) - int(os.environ.get("LOCAL_RANK", 0))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        ranks = [r for r in range(first, first + local) if 0 <= r < self._sampler.num_replicas]
        parts = {r: list(filled[r :: self._sampler.num_replicas]) for r in {self._sampler.rank, *ranks}}
        return parts[self._sampler.rank], [numbers(parts[r]) for r in ranks or [self._sampler.rank]]

    def state(self, consumed: int) -> dict[str, Any]:
        if self._pending is not None or self._begun not in (None, self._sampler.epoch):
            done = self._done_before()
        else:
            done = min(self._start + consumed * self._sampler.num_replicas, len(self._sampler.dataset))  # type: ignore[arg-type]
        keep = {"seed": self._sampler.seed, "shuffle": self._sampler.shuffle}
        return {"kind": "distributed", "epoch": self._sampler.epoch, "done": done, **keep}

    def restore(self, state: dict[str, Any]) -> None:
        _check_same(self._sampler, state, "seed", "shuffle")
        self._sampler.set_epoch(state["epoch"])
        self._pending = state["epoch"], state["done"]


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
        pending, self._pending = self._pending, None
        if pending is not None:
            generator.set_state(pending[0])
            if rest := self._drawn(generator, pending[1]):
                return rest
        if own is None:
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        return self._drawn(generator, 0)

    def _drawn(self, generator: torch.Generator, skipped: int) -> list[Item]:
        self._generator_state, self._skipped = generator.get_state(), skipped
        return self._with(generator)[skipped:]

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
        generator, done = self._pending or (self._generator_state, self._skipped + consumed)
        keep = {"num_samples": self._sampler.num_samples, "replacement": self._sampler.replacement}
        return {"kind": "random", "generator": generator, "done": done, **keep}

    def restore(self, state: dict[str, Any]) -> None:
        _check_same(self._sampler, state, "num_samples", "replacement")
        # torch.load(map_location="cuda") carries it to the device, where no generator takes it from.
        self._pending = None if state["generator"] is None else (state["generator"].cpu(), state["done"])


class _AnyOther:
    """A sampler we know nothing of: what it gave is kept, on each rank its own."""

    def __init__(self, sampler: Sampler[Any]) -> None:
        self._sampler = sampler
        self._order: list[Item] | None = None
        self._begun: Any = None  # the epoch `_order` is of, where the sampler counts them
        self._pending: tuple[Any, list[Item]] | None = None
        self.padding = 0

    def begin(self) -> list[Item]:
        rest, self._pending = self._left(), None
        self._order, self._begun = list(self._sampler) if rest is None else rest, self._epoch()
        return self._order

    def _epoch(self) -> Any:
        return getattr(part_with(self._sampler, "epoch"), "epoch", None)

    def _left(self) -> list[Item] | None:
        """What is left of the epoch that begins next; None where that is all of it, not drawn yet."""
        epoch, rest = self._pending or (None, None)
        return rest if epoch == self._epoch() and (rest or epoch is not None) else None

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        return None

    def state(self, consumed: int) -> dict[str, Any]:
        order = self._order
        if self._pending is not None or self._begun != self._epoch():
            order, consumed = self._left(), 0
        # The order itself and not a copy of its rest: StatefulDataLoader asks at every batch.
        return {"kind": "order", "order": order, "done": consumed, "epoch": self._epoch(), **self._whose()}

    def _whose(self) -> dict[str, Any]:
        part = part_with(self._sampler, "num_replicas")
        return {"rank": getattr(part, "rank", None), "ranks": getattr(part, "num_replicas", None)}

    def restore(self, state: dict[str, Any]) -> None:
        saved, whose = {name: state[name] for name in ("rank", "ranks")}, self._whose()
        if saved != whose:
            raise InputError(
                f"The position was saved by rank {saved['rank']} of {saved['ranks']}, this is rank {whose['rank']} of "
                f"{whose['ranks']}: with this sampler every rank saves and loads its own, on as many ranks as before."
            )
        counting = part_with(self._sampler, "set_epoch")
        if counting is not None and state["epoch"] is not None:
            counting.set_epoch(state["epoch"])
        self._pending = None if state["order"] is None else (state["epoch"], _rest(state["order"], state["done"]))


def part_with(sampler: Any, name: str) -> Any:
    """The sampler, or the one inside it, that has an attribute of this name; None where none has."""
    while sampler is not None and not hasattr(sampler, name):
        sampler = getattr(sampler, "sampler", None)
    return sampler


def _rest(order: list[Item], consumed: int) -> list[Item]:
    """Without the items that the consumed samples were in."""
    done, items = 0, 0
    while items < len(order) and done < consumed:
        item = order[items]
        done, items = done + (len(item) if isinstance(item, list) else 1), items + 1
    return order[items:]


def _check_same(sampler: Any, state: dict[str, Any], *names: str) -> None:
    for name in names:
        if state[name] != getattr(sampler, name):
            raise InputError(
                f"The saved epoch was drawn with {name}={state[name]!r}, the sampler has "
                f"{getattr(sampler, name)!r}: give it the same to go on in that epoch."
            )


def numbers(order: Sequence[Item]) -> Numbers:
    """Batches laid end to end."""
    try:
        if order and isinstance(order[0], list):
            flat = np.concatenate([np.asarray(batch, dtype=np.int64) for batch in order])
        else:
            flat = np.asarray(order, dtype=np.int64)
    except (TypeError, ValueError):
        flat = np.empty((0, 0), dtype=np.int64)
    if flat.ndim != 1:
        raise InputError(f"Lookahead needs a sampler of whole numbers, or of lists of them, not of {order[0]!r}.")
    return flat
