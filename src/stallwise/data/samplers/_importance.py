"""`ImportanceSampler`: draw hard samples more often, and cached ones while training improves (SHADE, FAST 2023).

    sampler = ImportanceSampler(dataset, changes_the_distribution=True)
    dataset.keep_important(sampler.importance)              # with NodeCache(…, policy="importance")
    for epoch in range(10):
        for images, labels, numbers in DataLoader(dataset, batch_size=32, sampler=Lookahead(sampler, dataset)):
            losses = criterion(model(images), labels)   # one per sample: reduction="none"
            sampler.learn(numbers, losses)

This is not a cache: it CHANGES WHAT THE MODEL IS TRAINED ON. Samples are drawn with replacement by a weight that
follows from their loss, so an epoch repeats some samples and leaves others out. A model trained this way is not claimed
to be as good; it has to be requested explicitly.

As in the authors' program: within a minibatch, samples are ranked by loss and a sample's weight becomes
log(rank + 10) (rank 0: the smallest loss). The next epoch draws by weight plus a smoothing term that scales with the
mean loss. With `repeat` > 1, and after `improving(True)`, that fraction of the epoch's hits comes from repeating
samples that are in the cache. `keep_important` makes the cache SHADE's too: a miss is admitted only where it outranks
the least important entry, which is then evicted. Weights lie in shared memory, so that workers see updates.
"""

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from stallwise.errors import InputError

# log(rank + 10) of a sample without a loss yet: the smallest.
_UNSEEN = math.log(10)


class ImportanceSampler(Sampler[int]):
    """Draws samples by importance, with replacement. The caller must confirm `changes_the_distribution`."""

    def __init__(
        self,
        dataset: Sized,
        *,
        changes_the_distribution: bool = False,
        is_cached: Callable[[int], bool] | None = None,
        repeat: float = 1.0,
        smoothing: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not changes_the_distribution:
            raise InputError(
                "Importance sampling trains on other samples than a shuffle does: hard ones more often, some not at "
                "all. If that is what you want, say ImportanceSampler(…, changes_the_distribution=True)."
            )
        if repeat < 1 or smoothing < 0:
            raise InputError("repeat must be at least 1, smoothing at least 0.")
        self._count = len(dataset)
        self.data_source = dataset
        self._is_cached, self._repeat, self._smoothing = is_cached, repeat, smoothing
        # Shared: loader workers, forked or spawned, rank cache entries by the rank's latest weights.
        self._shared = torch.full((self._count,), _UNSEEN, dtype=torch.float64).share_memory_()  # type: ignore[no-untyped-call]
        self._loss = 1.0
        self._is_improving = True
        self._seed, self._epoch = seed, 0

    def __len__(self) -> int:
        return self._count

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch: draws follow from seed and epoch."""
        self._epoch = epoch

    def learn(self, numbers: Sequence[int] | torch.Tensor, losses: Sequence[float] | torch.Tensor) -> None:
        """Update the weights from the losses of a minibatch, one per sample."""
        where = np.asarray(numbers, dtype=np.int64).reshape(-1)
        values = np.asarray(_plain(losses), dtype=np.float64).reshape(-1)
        if len(where) != len(values):
            raise InputError(f"{len(where)} samples and {len(values)} losses: give one loss per sample.")
        finite = np.where(np.isfinite(values), values, np.inf)
        ranks = np.argsort(np.argsort(finite, kind="stable"), kind="stable")
        self._shared.numpy()[where] = np.log(ranks + 10.0)
        if np.isfinite(values).any():
            self._loss += 0.1 * (float(values[np.isfinite(values)].mean()) - self._loss)

    def importance(self, number: int) -> float:
        """Return the weight of a sample without smoothing."""
        return float(self._shared[number])

    def improving(self, is_improving: bool) -> None:
        """Tell whether validation improves: cached samples are repeated only while it does."""
        self._is_improving = is_improving

    def weights(self) -> npt.NDArray[np.float64]:
        """Return the probabilities of the next epoch's draws: importance plus smoothing, normalised."""
        raw = self._shared.numpy() + self._smoothing * max(self._loss, 0.0)
        probabilities: npt.NDArray[np.float64] = raw / raw.sum()
        return probabilities

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self._seed, self._epoch))
        self._epoch += 1
        drawn = generator.choice(self._count, self._count, p=self.weights())
        return iter(self._repeated(drawn, generator).tolist())

    def _repeated(self, drawn: Any, generator: np.random.Generator) -> Any:
        """Replace drawn samples that are not cached by repeats of cached ones."""
        if self._is_cached is None or self._repeat <= 1 or not self._is_improving:
            return drawn
        cached = np.array([self._is_cached(int(number)) for number in drawn])
        hits, misses = drawn[cached], np.flatnonzero(~cached)
        more = min(len(misses), int((self._repeat - 1) * len(hits)))
        if more:
            drawn[generator.choice(misses, more, replace=False)] = generator.choice(hits, more)
        return drawn


def _plain(losses: Sequence[float] | torch.Tensor) -> Any:
    return losses.detach().float().cpu().numpy() if isinstance(losses, torch.Tensor) else losses
