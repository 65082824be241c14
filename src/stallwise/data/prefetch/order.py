"""The order of an epoch: how a sampler draws it, and how it reaches the loader workers that prefetch in it.

The rank writes the order into shared memory when the epoch begins (`OrderChannel`); workers read it there
(`OrderFollower`). A worker is told only the batches it is to prepare next, but DataLoader deals batches out in turn, so
with W workers its own future is every W-th batch from there on, to the end of the epoch and, where the next epoch's
order is known already, on into that one. A wrong prediction costs fetched bytes, never a wrong sample: samples are
requested by number, the order only says which ones will be.

`draw_of` distinguishes three kinds of samplers by what determines their order:

    distributed   seed and epoch: every rank can compute every rank's order of any epoch, and the rest of an epoch
                  can be dealt out to another number of ranks
    random        the state of a generator when the epoch begins
    any other     nothing we can reproduce: its order is kept as it came

All of them give exactly the numbers the sampler itself would give.
"""

import copy
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from stallwise.errors import InputError

Numbers = npt.NDArray[np.int64]

_GENERATION, _LENGTH, _NEXT_LENGTH, _BATCHES, _HAS_NEXT, _BEGAN = range(6)
_TIMES = 4096


class OrderChannel:
    """Two orders in shared memory: that of the current epoch and, where known, of the next.

    Generation g lies in row g mod 2. Only the rank writes, and only where no worker reads: the row of the epoch
    before is free once the next one has begun. Torch carries the tensors to workers, forked or spawned, and frees them.
    """

    def __init__(self, capacity: int, samples: int) -> None:
        # 20 bytes a sample: shared memory may be small (64 MB in a default container).
        def shared(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype).share_memory_()  # type: ignore[no-any-return, no-untyped-call]

        capacity = max(capacity, 1)
        self._tensors = {
            "head": shared(8, dtype=torch.int64),
            "orders": shared(2, capacity),
            # Where batches begin, for batch samplers.
            "bounds": shared(2, capacity + 1),
            # Position in the next epoch where this node uses a sample, -1 where it does not.
            "uses": shared(max(samples, 1)),
            "times": shared(_TIMES, dtype=torch.float64),
        }
        self._make_views()

    def _make_views(self) -> None:
        # Through NumPy: indexing a tensor costs microseconds, and this is done for every sample.
        views = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._head, self._orders, self._bounds = views["head"], views["orders"], views["bounds"]
        self._uses, self._times = views["uses"], views["times"]

    def __getstate__(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def __setstate__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._make_views()

    @property
    def capacity(self) -> int:
        """The largest number of samples in an epoch."""
        return int(self._orders.shape[1])

    @property
    def generation(self) -> int:
        """Number of epochs begun so far."""
        return int(self._head[_GENERATION])

    def begin(self, order: Numbers, bounds: Numbers | None, following: Numbers | None, uses: Numbers | None) -> None:
        """Publish a new epoch, and what is known of the next: its order on this rank, its uses on this node."""
        row = (self.generation + 1) % 2
        # It may be there already as the next epoch; it is written again, because that was a guess.
        self._head[_HAS_NEXT] = 0
        self._orders[row, : len(order)] = order
        if bounds is not None:
            self._bounds[row, : len(bounds)] = bounds
        self._head[_LENGTH], self._head[_BATCHES] = len(order), 0 if bounds is None else len(bounds)
        self._head[_BEGAN] = time.monotonic_ns()
        self._head[_GENERATION] += 1
        if following is not None and uses is not None:
            self._orders[1 - row, : len(following)] = following
            self._uses[:] = uses
            self._head[_NEXT_LENGTH], self._head[_HAS_NEXT] = len(following), 1

    @property
    def epoch_began_ns(self) -> int:
        """When the current epoch began (`time.monotonic_ns()`): of two orders that fit, the later one is followed."""
        return int(self._head[_BEGAN])

    def order(self, generation: int) -> Numbers | None:
        """Return the order of the current epoch or the next; None where it is unknown or past."""
        at = generation - self.generation
        if at == 0:
            return self._orders[generation % 2, : self._head[_LENGTH]]
        return self._orders[generation % 2, : self._head[_NEXT_LENGTH]] if at == 1 and self._head[_HAS_NEXT] else None

    def bounds(self, generation: int) -> Numbers | None:
        """Return where a batch sampler's batches begin, and the end of the last."""
        length = self._head[_BATCHES]
        return None if length == 0 or generation != self.generation else self._bounds[generation % 2, :length]

    def used_next(self, number: int) -> int | None:
        """Return the position in the next epoch where this node uses the sample; None where unknown or unused."""
        use = int(self._uses[number]) if self._head[_HAS_NEXT] else -1
        return use if use >= 0 else None

    @property
    def length(self) -> int:
        """Number of positions of the current epoch."""
        return int(self._head[_LENGTH])

    def mark_dealt(self, position: int) -> None:
        """Record that the rank requests this position now."""
        self._times[position % _TIMES] = time.monotonic()

    def dealt_s(self, position: int) -> float:
        """Return when (`time.monotonic()`) the position was requested; only the latest few thousand are kept."""
        return float(self._times[position % _TIMES])


class OrderFollower:
    """One worker's position in the order: what was requested of it, and what will be.

    `crosses`: whether to continue into the next epoch. A loader without persistent workers ends them with the epoch,
    and what they hold in memory with them.
    """

    def __init__(self, channel: OrderChannel, worker: int, workers: int) -> None:
        self._channel, self._worker, self._workers = channel, worker, max(workers, 1)
        self._generation = -1
        # Numbers with their positions: returned by `ahead` and not requested yet, and those of a batch begun.
        self._expected: deque[tuple[int, int]] = deque()
        self._begun: deque[tuple[int, int]] = deque()
        self._next = 0  # where this worker's next batch begins
        self._batch = 0  # samples in a batch; 0 while unknown
        self._run = 0  # numbers requested singly, in a row
        self._last = -1  # position requested last
        self._past = 0  # returned of an epoch that had not begun
        self._skipped: list[int] = []
        self._drops_tail = False  # the loader has dropped a last, smaller batch
        self.crosses = False

    @property
    def epoch_began_ns(self) -> int:
        """When the epoch it follows began (`time.monotonic_ns()`)."""
        return self._channel.epoch_began_ns

    @property
    def outstanding(self) -> int:
        """How many numbers `ahead` has returned that are not requested yet."""
        return len(self._expected)

    def follow(self, numbers: Sequence[int], *, whole: bool = True) -> int:
        """Note a request, a `whole` batch or one sample; return how many of its numbers `ahead` had returned.

        0 means that what `ahead` returned will not be requested.
        """
        self._skip_tail(numbers)
        announced = len(self._expected)
        self.ahead(len(numbers) - announced)
        if len(self._expected) >= len(numbers) and all(
            n == e[0] for n, e in zip(numbers, self._expected, strict=False)
        ):
            for _ in numbers:
                self._last = self._expected.popleft()[1]
            if self._generation == self._channel.generation:
                self._past = 0
            return min(announced, len(numbers))
        self._expected.clear()
        self._begun.clear()
        self._locate(numbers, whole=whole)
        return 0

    def skipped(self) -> list[int]:
        """Return, once, the numbers that `ahead` had returned and that will not be requested."""
        skipped, self._skipped = self._skipped, []
        return skipped

    @property
    def is_located(self) -> bool:
        """Whether the last request is in the order at all."""
        return self._generation >= 0

    def waited_s(self, count: int, now_s: float) -> float | None:
        """Return the seconds that the last batch of `count` waited in the worker's queue, if known."""
        dealt_s = self._channel.dealt_s(self._last - count + 1) if self.is_located else 0.0
        return now_s - dealt_s if 0 < dealt_s <= now_s else None

    def used_again(self, number: int) -> int | None:
        """Return after how many positions of the rank this node uses the sample again, if known."""
        use = self._channel.used_next(number) if self.is_located else None
        return None if use is None else self._channel.length - self._last + use

    def ahead(self, count: int, past: int | None = None) -> list[int]:
        """Return up to `count` more numbers that will be requested of this worker, in order.

        `past`: the limit of numbers, with those returned before, of an epoch that has not begun: it may never come.
        """
        items: list[tuple[int, int]] = []
        while len(items) < count and (self._begun or self._deal()):
            if self._generation > self._channel.generation:
                if past is not None and self._past >= past:
                    break
                self._past += 1
            else:
                self._past = 0
            items.append(self._begun.popleft())
        self._expected.extend(items)
        return [number for number, _ in items]

    def _skip_tail(self, numbers: Sequence[int]) -> None:
        """Skip a last, smaller batch that the loader dropped: the next epoch begins where it was expected."""
        tail = len(self._expected) - self._past
        begun = self._generation == self._channel.generation
        if not (begun and self._past and 0 < tail < self._batch and self._channel.bounds(self._generation) is None):
            return
        if self._expected[0][0] != numbers[0] == self._expected[tail][0]:
            self._drops_tail = True
            self._skipped += [self._expected.popleft()[0] for _ in range(tail)]

    def _locate(self, numbers: Sequence[int], *, whole: bool) -> None:
        """Find the numbers in the current epoch and continue from there."""
        generation = self._channel.generation
        order = self._channel.order(generation)
        at = -1 if order is None else self._search(order, numbers)
        if at < 0:
            self._generation, self._batch = -1, 0
            return
        # It has lived through an epoch's end, so it will through the next: what it prefetches is not lost.
        self.crosses |= 0 <= self._generation < generation
        if not whole and self._workers > 1:
            self._locate_single(at, generation)
        elif not whole and at not in (0, self._last + 1):
            # A single sample is requested by itself; that is no epoch.
            self._generation, self._batch = -1, 0
        else:
            self._generation, self._batch, self._last = generation, len(numbers), at + len(numbers) - 1
            self._next = self._after(at)

    def _search(self, order: Numbers, numbers: Sequence[int]) -> int:
        target, count = np.asarray(numbers, dtype=np.int64), len(numbers)
        if count > len(order):
            return -1
        likely = self._worker * count  # the first batch of an epoch
        for at in (likely, *np.flatnonzero(order[: len(order) - count + 1] == target[0]).tolist()):
            if np.array_equal(order[at : at + count], target):
                return at
        return -1

    def _locate_single(self, at: int, generation: int) -> None:
        """Numbers are requested singly (by a wrapping dataset): the batch's length is known when they jump."""
        same = generation == self._generation
        if same and at == self._last + 1:
            self._run += 1
        else:
            if same and self._run > 0 and at > self._last:
                self._batch, self._next = self._run, at + self._workers * self._run
                self._begin(at + 1, at + self._run)
            self._run = 1
        self._generation, self._last = generation, at

    def _after(self, at: int) -> int:
        bounds = self._channel.bounds(self._generation)
        if bounds is None:
            return at + self._workers * self._batch
        return int(bounds[min(int(np.searchsorted(bounds, at)) + self._workers, len(bounds) - 1)])

    def _deal(self) -> bool:
        """Begin this worker's next batch, across the end of the epoch where the next is known."""
        order = self._channel.order(self._generation) if self._batch else None
        if order is None:
            return False
        if self._next + (self._batch if self._drops_tail else 1) > len(order):
            if not self.crosses or self._channel.order(self._generation + 1) is None:
                return False
            self._generation, self._next = self._generation + 1, self._worker * self._batch
            return self._deal()
        at, bounds = self._next, self._channel.bounds(self._generation)
        self._begin(at, at + self._batch if bounds is None else int(bounds[np.searchsorted(bounds, at) + 1]))
        self._next = self._after(at)
        return True

    def _begin(self, start: int, end: int) -> None:
        order = self._channel.order(self._generation)
        if order is not None:
            self._begun.extend(zip(order[start:end].tolist(), range(start, end), strict=False))


Item = int | list[int]


class EpochDraw(Protocol):
    """Draws, predicts, saves and restores the order of one sampler."""

    padding: int

    def begin(self) -> list[Item]:
        """Return the order of the epoch that begins now.

        After `restore` it is the rest of the saved one, unless the sampler was set to another epoch since. Where a
        sampler does not count epochs and nothing is left, the next one begins.
        """
        ...

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        """Return this rank's next epoch, and those of all ranks of the node; None where it cannot be predicted."""
        ...

    def state(self, consumed: int) -> dict[str, Any]:
        """Return what is needed to continue after `consumed` samples of the epoch on this rank.

        Of an epoch that has not begun yet only what was consumed when it was saved counts.
        """
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next `begin` continue from a saved state."""
        ...


@runtime_checkable
class GlobalDraw(EpochDraw, Protocol):
    """A draw that knows the order of all ranks."""

    def begin_all(self) -> list[Item]:
        """Return the order of all ranks: of every W in a row each rank takes one."""
        ...


def draw_of(sampler: Sampler[Any]) -> EpochDraw:
    """Return the draw for the kind of sampler; a subclass with its own `__iter__` is *any other*."""
    kind = type(sampler)
    if isinstance(sampler, DistributedSampler) and kind.__iter__ is DistributedSampler.__iter__:
        return _Distributed(sampler)
    if isinstance(sampler, RandomSampler) and kind.__iter__ is RandomSampler.__iter__:
        return _Random(sampler)
    return _AnyOther(sampler)


class _Distributed:
    """`DistributedSampler`: rank r of W takes r, r + W, … of one shuffled list.

    When all ranks have trained on k samples, the first k·W of that list are done, whatever W is. The rest is
    dealt out the same way to any number of ranks.
    """

    def __init__(self, sampler: "DistributedSampler[Any]") -> None:
        self._sampler = sampler
        self._start = 0  # of the shuffled list, done before this launch
        self._begun: int | None = None  # the epoch `_start` is of
        self._pending: tuple[int, int] | None = None  # an epoch, and how much of it was done
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
        """Return an epoch from `start` on, padded to a multiple of the ranks, and the number of repeats."""
        ranks = self._sampler.num_replicas
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank, whole.epoch = 1, 0, epoch
        whole.num_samples = whole.total_size = len(self._sampler.dataset)  # type: ignore[arg-type]
        rest: list[Item] = list(whole)[start:]
        over = len(rest) % ranks
        if over and self._sampler.drop_last:
            return rest[: len(rest) - over], 0
        padding = (ranks - over) % ranks if rest else 0
        # As the sampler does: repeat from the front, as often as needed.
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
    """`RandomSampler`: the generator's state determines the order. Without one it draws a seed, and so do we."""

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
        # torch.load(map_location="cuda") moves it to the device, where generators do not accept it.
        self._pending = None if state["generator"] is None else (state["generator"].cpu(), state["done"])


class _AnyOther:
    """Any other sampler: its order is kept as it came, on each rank its own."""

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
        return getattr(sampler_with(self._sampler, "epoch"), "epoch", None)

    def _left(self) -> list[Item] | None:
        """Return the rest of the epoch that begins next; None where that is all of it, not drawn yet."""
        epoch, rest = self._pending or (None, None)
        return rest if epoch == self._epoch() and (rest or epoch is not None) else None

    def following(self) -> tuple[list[Item], list[Numbers]] | None:
        return None

    def state(self, consumed: int) -> dict[str, Any]:
        order = self._order
        if self._pending is not None or self._begun != self._epoch():
            order, consumed = self._left(), 0
        # The order itself and not a copy of its rest: StatefulDataLoader calls this at every batch.
        return {"kind": "order", "order": order, "done": consumed, "epoch": self._epoch(), **self._ranks()}

    def _ranks(self) -> dict[str, Any]:
        part = sampler_with(self._sampler, "num_replicas")
        return {"rank": getattr(part, "rank", None), "ranks": getattr(part, "num_replicas", None)}

    def restore(self, state: dict[str, Any]) -> None:
        saved, current = {name: state[name] for name in ("rank", "ranks")}, self._ranks()
        if saved != current:
            raise InputError(
                f"The position was saved by rank {saved['rank']} of {saved['ranks']}, this is rank {current['rank']} "
                f"of {current['ranks']}: each rank saves and loads its own with this sampler, on equally many ranks."
            )
        epoch_sampler = sampler_with(self._sampler, "set_epoch")
        if epoch_sampler is not None and state["epoch"] is not None:
            epoch_sampler.set_epoch(state["epoch"])
        self._pending = None if state["order"] is None else (state["epoch"], _rest(state["order"], state["done"]))


def sampler_with(sampler: Any, name: str) -> Any:
    """Return the sampler, or the one inside it, that has an attribute of this name; None where none has."""
    while sampler is not None and not hasattr(sampler, name):
        sampler = getattr(sampler, "sampler", None)
    return sampler


def _rest(order: list[Item], consumed: int) -> list[Item]:
    """Return the order without the items of the consumed samples."""
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
                f"{getattr(sampler, name)!r}: it must be the same to continue that epoch."
            )


def numbers(order: Sequence[Item]) -> Numbers:
    """Return the order as one array, batches laid end to end."""
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
