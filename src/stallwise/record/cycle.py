"""Where a step begins: the shortest repeating cycle of batch fetches and optimizer steps.

The recorder reports every fetch and every optimizer step, in order. A *cycle* opens at the first fetch of a
training loader after an optimizer step; with gradient accumulation it holds k fetches and one optimizer step.
Where cycles of different shape repeat (five critic updates, then one of the generator) a *step* is that whole
repetition. A loader counts as a training loader when most cycles fetch from it; what other loaders fetch is
evaluation. Without any loader, an optimizer step itself opens the next cycle.

Loops that look ahead (Accelerate's loaders, and so Hugging Face's Trainer) fetch a batch before they train on the one
before: their epoch begins with two fetches and ends with none. Such cycles say nothing about the repetition.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

_MOST = 0.8
_LONGEST_PERIOD = 32
_CONVINCED = 3
_SEAM_CYCLES = 2  # the last of an epoch and the first of the next

Shape = tuple[tuple[str, int], ...]
"""What happened in a cycle, in order: ("fetch", loader) or ("optimizer", optimizer)."""

ANY: Shape = ()
"""A cycle at the seam of two epochs: it may stand for any."""


class CycleTracker:
    """Follows fetches and optimizer steps; says when a cycle opens and what it consisted of."""

    def __init__(self) -> None:
        self.cycles = 0
        self.shapes: list[Shape] = []  # of the cycles until it was settled what the job does
        self._seen: list[tuple[str, int]] = []  # what happened since the cycle opened
        self._fetched_in: Counter[int] = Counter()
        self._stepped = False
        self._training: frozenset[int] | None = None
        self._explicit = False
        self.evaluating: int | None = None  # the loader of the last fetch, where it is not a training loader
        self._mistaken: Counter[int] = Counter()
        self._over: int | None = None  # the loader that found its epoch over, until the next fetch
        self._seams = 0  # cycles at the seam of two epochs that are still to be closed
        self._period: int | None = None

    def fetch(self, loader: int, *, grad_enabled: bool = True) -> bool:
        """A loader is asked for a batch; True when that opens a cycle."""
        if self.is_evaluation(loader, grad_enabled=grad_enabled) or self._explicit:
            self.evaluating = loader
            return False
        self.evaluating = None
        hollow = self._over is not None and not self._seen  # opened by a fetch that then found the epoch over
        opens = (self._stepped or not self._seen) and not hollow
        if opens:
            self._open()
        self._over = None
        self._seen.append(("fetch", loader))
        return opens

    def nothing_fetched(self, loader: int) -> None:
        """The fetch just reported found the epoch over: the cycle it opened begins with the next one."""
        if self._seen and self._seen[-1] == ("fetch", loader):
            self._seen.pop()
            self._over = loader

    def optimizer(self, optimizer: int) -> bool:
        """An optimizer has stepped; True when that opens a cycle (only in jobs without a loader)."""
        opens = False
        self._trained_on(self.evaluating)
        if self._over is not None:
            # Its last batch was fetched before the epoch was found over: the loop looks ahead.
            self._seen.append(("end", self._over))
            self._over, self._seams = None, _SEAM_CYCLES
        if not self._explicit and not self._has_loader() and self._first_again(optimizer):
            self._open()
            opens = True
        self._seen.append(("optimizer", optimizer))
        self._stepped = True
        return opens

    def mark(self) -> bool:
        """The script says itself that a step begins (`stallwise.step()`); from then on only that counts."""
        self._explicit = True
        self._open()
        self._seen.append(("mark", 0))
        return True

    def is_evaluation(self, loader: int, *, grad_enabled: bool) -> bool:
        """Whether this loader's batches are not trained on."""
        if self._training is not None:
            return loader not in self._training
        return not grad_enabled

    def settle(self) -> None:
        """Enough cycles were seen: decide which loaders are training loaders."""
        full = max(1, self.cycles - 1)
        self._period = self.period
        self._training = frozenset(loader for loader, n in self._fetched_in.items() if n >= _MOST * full)

    @property
    def period(self) -> int:
        """Cycles per step, from the shapes seen so far; later irregularities do not change it."""
        return self._period or period_of(self.shapes)

    @property
    def repeats(self) -> bool:
        """Whether the shapes seen so far show a repetition; after twice the longest one there is none to wait for."""
        tail = self.shapes[1:]
        return self.period > 1 or len(set(tail) - {ANY}) <= 1 or len(tail) > 2 * _LONGEST_PERIOD

    @property
    def fetches_per_cycle(self) -> float:
        """Mean number of fetches in the cycles seen so far."""
        shapes = [shape for shape in self.shapes if shape != ANY]
        fetches = sum(kind == "fetch" for shape in shapes for kind, _ in shape)
        return fetches / max(1, len(shapes))

    def _trained_on(self, loader: int | None) -> None:
        """An optimizer stepped on batches that were taken for evaluation: again and again, and it is training."""
        if self._training is None or loader is None:
            return
        self._mistaken[loader] += 1
        if self._mistaken[loader] >= _CONVINCED:
            self._training |= {loader}

    def _has_loader(self) -> bool:
        return bool(self._fetched_in) or any(kind == "fetch" for kind, _ in self._seen)

    def _first_again(self, optimizer: int) -> bool:
        return not self._seen or self._seen[0] == ("optimizer", optimizer)

    def _open(self) -> None:
        if self._seen and self._training is None:
            self.shapes.append(ANY if self._seams else tuple(self._seen))
            self._fetched_in.update({key for kind, key in self._seen if kind in ("fetch", "end")})
        self._seams = max(0, self._seams - 1)
        self._seen = []
        self._stepped = False
        self.cycles += 1


def period_of(shapes: Sequence[Hashable]) -> int:
    """The smallest p with shapes[i] = shapes[i + p] wherever both were seen at least twice over; else 1.

    The first shape is ignored: a job's first cycle often holds a fetch more (a look at the data). `ANY` equals all.
    """
    tail = shapes[1:]
    for period in range(1, min(_LONGEST_PERIOD, len(tail) // 2) + 1):
        pairs = ((tail[i], tail[i + period]) for i in range(len(tail) - period))
        if all(a == b or ANY in (a, b) for a, b in pairs):
            return period
    return 1
