"""`Lookahead(sampler)`: announces the sampler's order to the loader workers before samples are requested.

    loader = DataLoader(dataset, batch_size=32, num_workers=4, sampler=Lookahead(RandomSampler(dataset)))

It yields exactly what the sampler yields. When an epoch begins it writes the whole order where the workers of its
`BucketDataset` find it, and, where it can be predicted, the order of the next epoch. After one wrong prediction
(another user of the generator, an epoch that is not advanced) the next epoch is not predicted any more.
"""

import weakref
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from torch.utils.data import Sampler, Subset

from stallwise.data._dataset import BucketDataset
from stallwise.data.peers._membership import check_same_index
from stallwise.data.prefetch._pace import DeliMode
from stallwise.data.prefetch.order import Item, Numbers, OrderChannel, draw_of, numbers, sampler_with
from stallwise.errors import InputError

_STATE_VERSION = 1


class Lookahead(Sampler[Any]):
    """Wraps any finite sampler or batch sampler over a `BucketDataset` (or a `Subset` of one)."""

    def __init__(
        self,
        sampler: Sampler[Any],
        dataset: Any = None,
        *,
        mode: DeliMode | None = None,
    ) -> None:
        self._sampler = sampler
        self._dataset, self._map = _bucket_of(sampler, dataset)
        self._length = _finite(sampler)
        self._draw = draw_of(sampler)
        if sampler_with(sampler, "num_replicas") is not None:
            check_same_index(self._dataset.index.bucket, self._objects, self._dataset.shown)
        # Batch samplers count batches, and a sampler may draw with replacement: the capacity covers both.
        capacity = max(self._length, len(self._dataset if self._map is None else self._map))
        self._channel = OrderChannel(capacity, len(self._dataset))
        self._guess: Numbers | None = None
        self._guessing = True
        self._yielded = 0
        self._dataset.follow(self._channel, mode)
        weakref.finalize(self, self._dataset.unfollow, self._channel).atexit = False

    @property
    def padding(self) -> int:
        """Samples repeated in this epoch, over all ranks, so that each rank has the same number."""
        return self._draw.padding

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the wrapped sampler, as `DistributedSampler.set_epoch` does."""
        epoch_sampler = sampler_with(self._sampler, "set_epoch")
        if epoch_sampler is not None:
            epoch_sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        order = self._draw.begin()
        self._publish(order)
        if self._dataset.cache is not None and self._dataset.cache.peers is not None:
            self._dataset.cache.peers.refresh()
        self._yielded, position = 0, 0
        for item in order:
            count = len(item) if isinstance(item, list) else 1
            self._channel.mark_dealt(position)
            position += count
            self._yielded += count
            yield item

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch. `consumed`: samples this rank has trained on since it began or resumed.

        Without `consumed` it is what the loader has requested, which with workers is ahead of what was trained on;
        `StatefulDataLoader` calls this at the right moments by itself.
        """
        done = self._yielded if consumed is None else consumed
        return {
            "version": _STATE_VERSION,
            "objects": self._objects,
            **self._draw.state(done),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved epoch: the next one this sampler begins is the rest of it.

        With `DistributedSampler` also on another number of ranks. A following `set_epoch` with another epoch
        begins that one from its start.
        """
        if state.get("version") != _STATE_VERSION:
            raise InputError(f"The saved position is of version {state.get('version')}, this is {_STATE_VERSION}.")
        if state["objects"] != self._objects:
            raise InputError(
                "The bucket has changed since the position was saved, or the subset of it: the same numbers mean other "
                "objects now. Begin the epoch anew."
            )
        kind = draw_of(self._sampler).state(0)["kind"]
        if state["kind"] != kind:
            raise InputError(f"The position was saved by a sampler of kind {state['kind']!r}, this one is {kind!r}.")
        self._draw.restore(state)

    @cached_property
    def _objects(self) -> str:
        """Digest of the objects that the sampler's numbers refer to."""
        whole = self._dataset.index.fingerprint
        return whole if self._map is None else blake2b(whole.encode() + self._map.tobytes(), digest_size=16).hexdigest()

    def _publish(self, order: list[Item]) -> None:
        flat = self._mapped(numbers(order))
        if len(flat) > self._channel.capacity:
            # Longer than its length (drawn with replacement, or overlapping batches): the rest is not announced.
            flat = flat[: self._channel.capacity]
        if self._guess is not None and not np.array_equal(self._guess, flat):
            self._guessing = False
        following = self._draw.following() if self._guessing else None
        self._guess, uses = None, None
        if following is not None:
            self._guess = self._mapped(numbers(following[0]))[: self._channel.capacity]
            uses = self._uses([self._mapped(part) for part in following[1]])
        bounds = _bounds(order)
        self._channel.begin(flat, None if bounds is None else bounds[: self._channel.capacity + 1], self._guess, uses)

    def _mapped(self, flat: Numbers) -> Numbers:
        return flat if self._map is None else self._map[flat]

    def _uses(self, parts: list[Numbers]) -> Numbers:
        """Return for each sample its first position in the next epoch on any rank of this node, -1 for none."""
        uses = np.full(len(self._dataset), -1, dtype=np.int64)
        for part in parts:
            positions = np.arange(len(part))
            earlier = (uses[part] < 0) | (positions < uses[part])
            uses[part[earlier]] = positions[earlier]
        return uses


def _bounds(order: list[Item]) -> Numbers | None:
    if not order or not isinstance(order[0], list):
        return None
    return np.cumsum([0, *(len(batch) for batch in order if isinstance(batch, list))], dtype=np.int64)


def _finite(sampler: Sampler[Any]) -> int:
    try:
        return len(sampler)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        raise InputError(
            f"{type(sampler).__name__} does not say how long an epoch is (it has no length): there is no order to look "
            "ahead in."
        ) from None


def _bucket_of(sampler: Any, dataset: Any) -> tuple[BucketDataset[Any], Numbers | None]:
    """Return the `BucketDataset` behind a sampler, and what its numbers mean there (through nested subsets)."""
    source = dataset
    while source is None and sampler is not None:
        source = getattr(sampler, "data_source", None)
        source = getattr(sampler, "dataset", None) if source is None else source
        sampler = getattr(sampler, "sampler", None)
    mapping: Numbers | None = None
    while isinstance(source, Subset):
        chosen = np.asarray(source.indices, dtype=np.int64)
        mapping = chosen if mapping is None else chosen[mapping]
        source = source.dataset
    if not isinstance(source, BucketDataset):
        raise InputError(
            f"Lookahead found no BucketDataset behind the sampler (it found {type(source).__name__}). "
            "Name it: Lookahead(sampler, dataset). It must request samples by the sampler's numbers."
        )
    return source, mapping
