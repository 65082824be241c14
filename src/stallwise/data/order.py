"""The order of an epoch, from the rank that draws it to the loader workers that fetch ahead of it.

The rank writes the order into shared memory when the epoch begins (`Channel`); workers read it there (`Follower`). A
worker is told only the batches it is to prepare next, but DataLoader deals batches out in turn, so with W workers its
own future is every W-th batch from there on, to the end of the epoch and, where the next epoch's order is known
already, on into that one. A prediction that turns out wrong costs fetched bytes, never a wrong sample: samples are
asked for by number, the order only says which will be.
"""

import time
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.int64]

_GENERATION, _LENGTH, _FOLLOWING, _BATCHES, _KNOWN, _BEGUN = range(6)
_TIMES = 4096


class Channel:
    """Two orders in shared memory: the epoch that runs and, where known, the next.

    Generation g lies in place g mod 2. The rank alone writes, and only where nobody reads: the place of the epoch
    before is free once the next one has begun. Torch carries the tensors to workers, forked or spawned, and frees them.
    """

    def __init__(self, capacity: int, samples: int) -> None:
        # 20 bytes a sample: shared memory may be small (64 MB in a container that nobody gave more).
        def shared(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype).share_memory_()  # type: ignore[no-any-return, no-untyped-call]

        capacity = max(capacity, 1)
        self._tensors = {
            "head": shared(8, dtype=torch.int64),
            "orders": shared(2, capacity),
            # Where batches begin, for samplers that deal batches of their own.
            "bounds": shared(2, capacity + 1),
            # Where in the next epoch a sample is used on this node, -1 where it is not.
            "uses": shared(max(samples, 1)),
            "times": shared(_TIMES, dtype=torch.float64),
        }
        self._look()

    def _look(self) -> None:
        # Through NumPy: indexing a tensor costs microseconds, and this is done for every sample.
        views = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._head, self._orders, self._bounds = views["head"], views["orders"], views["bounds"]
        self._uses, self._times = views["uses"], views["times"]

    def __getstate__(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def __setstate__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._look()

    @property
    def capacity(self) -> int:
        """Numbers an epoch may have."""
        return int(self._orders.shape[1])

    @property
    def generation(self) -> int:
        """Epochs begun so far."""
        return int(self._head[_GENERATION])

    def begin(self, order: Numbers, bounds: Numbers | None, following: Numbers | None, uses: Numbers | None) -> None:
        """A new epoch, and what is known of the one after: its order on this rank, its uses on this node."""
        place = (self.generation + 1) % 2
        # It may lie there already, as what was to follow; it is written all the same, because that was a guess.
        self._head[_KNOWN] = 0
        self._orders[place, : len(order)] = order
        if bounds is not None:
            self._bounds[place, : len(bounds)] = bounds
        self._head[_LENGTH], self._head[_BATCHES] = len(order), 0 if bounds is None else len(bounds)
        self._head[_BEGUN] = time.monotonic_ns()
        self._head[_GENERATION] += 1
        if following is not None and uses is not None:
            self._orders[1 - place, : len(following)] = following
            self._uses[:] = uses
            self._head[_FOLLOWING], self._head[_KNOWN] = len(following), 1

    @property
    def begun(self) -> int:
        """When the running epoch began: the later of two that fit is meant."""
        return int(self._head[_BEGUN])

    def order(self, generation: int) -> Numbers | None:
        """The order of the running epoch or the next; None where it is not known, or over."""
        at = generation - self.generation
        if at == 0:
            return self._orders[generation % 2, : self._head[_LENGTH]]
        return self._orders[generation % 2, : self._head[_FOLLOWING]] if at == 1 and self._head[_KNOWN] else None

    def bounds(self, generation: int) -> Numbers | None:
        """Where the sampler's own batches begin, and the end of the last."""
        length = self._head[_BATCHES]
        return None if length == 0 or generation != self.generation else self._bounds[generation % 2, :length]

    def used_next(self, number: int) -> int | None:
        """How many positions after the end of this epoch a sample is used on this node; None where unknown or not."""
        use = int(self._uses[number]) if self._head[_KNOWN] else -1
        return use if use >= 0 else None

    @property
    def length(self) -> int:
        """Positions of the running epoch."""
        return int(self._head[_LENGTH])

    def dealt(self, position: int) -> None:
        """The rank has asked for this position now."""
        self._times[position % _TIMES] = time.monotonic()

    def dealt_s(self, position: int) -> float:
        """When (time.monotonic()) the position was asked for; only the latest few thousand are known."""
        return float(self._times[position % _TIMES])


class Follower:
    """One worker's own way through the order: what it was asked for, and what it will be.

    `crosses`: whether to go on into the next epoch. A loader without persistent workers ends them with the epoch, and
    what they hold in memory with them.
    """

    def __init__(self, channel: Channel, worker: int, workers: int) -> None:
        self._channel, self._worker, self._workers = channel, worker, max(workers, 1)
        self._generation = -1
        # Numbers with their positions: handed out by `ahead` and not asked for yet, and those of a batch begun.
        self._expected: deque[tuple[int, int]] = deque()
        self._begun: deque[tuple[int, int]] = deque()
        self._next = 0  # where the next batch of this worker begins that is not begun
        self._batch = 0  # how long batches are; 0 while unknown
        self._run = 0  # numbers that came singly, in a row
        self._last = -1  # position asked for last
        self._past = 0  # handed out of an epoch that had not begun
        self._passed: list[int] = []
        self._leaves_tail = False  # the loader has dropped a last batch that was smaller
        self.crosses = False

    @property
    def begun(self) -> int:
        """When the epoch it follows began."""
        return self._channel.begun

    @property
    def outstanding(self) -> int:
        """How many numbers are handed out and not asked for yet."""
        return len(self._expected)

    def follow(self, numbers: Sequence[int], *, whole: bool = True) -> int:
        """The worker is asked for these, a `whole` batch or one sample of it. How many of them `ahead` had given.

        0 means that what it gave will not come.
        """
        self._pass_tail(numbers)
        known = len(self._expected)
        self.ahead(len(numbers) - known)
        if len(self._expected) >= len(numbers) and all(
            n == e[0] for n, e in zip(numbers, self._expected, strict=False)
        ):
            for _ in numbers:
                self._last = self._expected.popleft()[1]
            if self._generation == self._channel.generation:
                self._past = 0
            return min(known, len(numbers))
        self._expected.clear()
        self._begun.clear()
        self._locate(numbers, whole=whole)
        return 0

    def passed(self) -> list[int]:
        """What was handed out and will not be asked for, since this was asked last."""
        passed, self._passed = self._passed, []
        return passed

    def found(self) -> bool:
        """Whether what was asked for last is in the order at all."""
        return self._generation >= 0

    def waited_s(self, count: int, now_s: float) -> float | None:
        """How long the batch of `count` that was asked for last lay in the worker's queue."""
        dealt_s = self._channel.dealt_s(self._last - count + 1) if self.found() else 0.0
        return now_s - dealt_s if 0 < dealt_s <= now_s else None

    def used_again(self, number: int) -> int | None:
        """In how many positions of the rank the sample taken last is used again on this node."""
        use = self._channel.used_next(number) if self.found() else None
        return None if use is None else self._channel.length - self._last + use

    def ahead(self, count: int, past: int | None = None) -> list[int]:
        """Up to `count` more numbers this worker will be asked for, in their order.

        `past`: no more than so many, with those handed out before, of an epoch that has not begun: it may never come.
        """
        found: list[tuple[int, int]] = []
        while len(found) < count and (self._begun or self._deal()):
            if self._generation > self._channel.generation:
                if past is not None and self._past >= past:
                    break
                self._past += 1
            else:
                self._past = 0
            found.append(self._begun.popleft())
        self._expected.extend(found)
        return [number for number, _ in found]

    def _pass_tail(self, numbers: Sequence[int]) -> None:
        """A loader that drops its last, smaller batch begins the next epoch where that was expected."""
        tail = len(self._expected) - self._past
        begun = self._generation == self._channel.generation
        if not (begun and self._past and 0 < tail < self._batch and self._channel.bounds(self._generation) is None):
            return
        if self._expected[0][0] != numbers[0] == self._expected[tail][0]:
            self._leaves_tail = True
            self._passed += [self._expected.popleft()[0] for _ in range(tail)]

    def _locate(self, numbers: Sequence[int], *, whole: bool) -> None:
        """Find the numbers in the running epoch and set out from there."""
        generation = self._channel.generation
        order = self._channel.order(generation)
        at = -1 if order is None else self._search(order, numbers)
        if at < 0:
            self._generation, self._batch = -1, 0
            return
        # It has lived to see another epoch, so it will see the next: what it holds ahead at the end is not lost.
        self.crosses |= 0 <= self._generation < generation
        if not whole and self._workers > 1:
            self._locate_single(at, generation)
        elif not whole and at not in (0, self._last + 1):
            # Somebody looks at a sample by itself; that is no epoch.
            self._generation, self._batch = -1, 0
        else:
            self._generation, self._batch, self._last = generation, len(numbers), at + len(numbers) - 1
            self._next = self._after(at)

    def _search(self, order: Numbers, numbers: Sequence[int]) -> int:
        wanted, count = np.asarray(numbers, dtype=np.int64), len(numbers)
        if count > len(order):
            return -1
        likely = self._worker * count  # the first batch of an epoch
        for at in (likely, *np.flatnonzero(order[: len(order) - count + 1] == wanted[0]).tolist()):
            if np.array_equal(order[at : at + count], wanted):
                return at
        return -1

    def _locate_single(self, at: int, generation: int) -> None:
        """Numbers come one at a time (a dataset around ours asks so): the batch's length shows when they jump."""
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
        """Begin the next batch of this worker; across the end of the epoch where the next is known."""
        order = self._channel.order(self._generation) if self._batch else None
        if order is None:
            return False
        if self._next + (self._batch if self._leaves_tail else 1) > len(order):
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
