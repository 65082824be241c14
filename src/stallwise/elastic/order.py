"""Where in the data a job stands, and going on from there, also on another number of ranks.

    sampler = Resumable(DistributedSampler(dataset, seed=1))
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

`stallwise.data`'s `Lookahead` can do the same over a bucket. A `StatefulDataLoader` keeps its own position, on the same
number of ranks; of anything else the batches that were trained on are drawn again and left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Sampler

from stallwise.data.draws import ForAll, draw_of, part_with
from stallwise.model.deflation import shares

SAMPLER, LOADER, COUNT = "sampler", "loader", "count"


class Resumable(Sampler[Any]):
    """Exactly what the sampler yields; after `load_state_dict`, what was left of that epoch.

    With `DistributedSampler` the rest is dealt out anew to as many ranks as there are now, every sample once. (As that
    sampler does, it repeats a few where they do not divide; `padding` says how many. `drop_last=True` drops instead.)
    """

    def __init__(self, sampler: Sampler[Any]) -> None:
        self.sampler = sampler
        self._draw = draw_of(sampler)
        self.parts: Sequence[int] | None = None
        """Of every global batch, by rank, where they are not equal (`shares`)."""
        self.drop_last = False
        self.dealt_samples = 0
        """Of all ranks, when it last began with such parts."""

    @property
    def dealable(self) -> bool:
        """Whether parts of a global batch may differ."""
        return isinstance(self._draw, ForAll)

    @property
    def padding(self) -> int:
        """Samples that all ranks together see twice in this epoch."""
        return self._draw.padding

    def __len__(self) -> int:
        equal = len(self.sampler)  # type: ignore[arg-type]
        if self.parts is None:
            return equal
        own = dealt(range(equal * len(self.parts)), self.parts, self._rank, drop_last=self.drop_last)
        return sum(map(len, own))

    def __iter__(self) -> Iterator[Any]:
        if self.parts is None or not isinstance(self._draw, ForAll):
            return iter(self._draw.begin())
        items = self._draw.begin_all()
        self.dealt_samples = len(items)
        return (item for part in dealt(items, self.parts, self._rank, drop_last=self.drop_last) for item in part)

    @property
    def _rank(self) -> int:
        return int(part_with(self.sampler, "num_replicas").rank)

    def set_epoch(self, epoch: int) -> None:
        """As `DistributedSampler.set_epoch`."""
        counting = part_with(self.sampler, "set_epoch")
        if counting is not None:
            counting.set_epoch(epoch)

    def state_dict(self, consumed: int) -> dict[str, Any]:
        """Where the epoch stands after `consumed` samples on this rank, since it began or was resumed."""
        return self._draw.state(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next epoch is the rest of the saved one."""
        self._draw.restore(state)


def dealt(items: Sequence[Any], parts: Sequence[int], rank: int, *, drop_last: bool) -> list[Sequence[Any]]:
    """The batches of one rank: its part of every global batch of `items`; of a last, shorter one in proportion."""
    whole = sum(parts)
    found = []
    for start in range(0, len(items), whole):
        own = parts_of(min(whole, len(items) - start), parts)
        if sum(own) < whole and drop_last:
            break
        begin = start + sum(own[:rank])
        found.append(items[begin : begin + own[rank]])
    return found


def parts_of(count: int, parts: Sequence[int]) -> Sequence[int]:
    """Of a global batch of `count` samples; as `parts` where it is a whole one."""
    return parts if count == sum(parts) else shares(count, [float(part) for part in parts])


def begin_epoch(loader: Any, epoch: int, saved: dict[str, Any] | None) -> int:
    """Set the loader to an epoch, or to the rest of the saved one; returns how many batches are to be left out."""
    counting = [part_with(getattr(loader, name, None), "set_epoch") for name in ("sampler", "batch_sampler")]
    for part in [*filter(None, counting), *_counting_datasets(getattr(loader, "dataset", None))]:
        part.set_epoch(epoch)
    if saved is None or saved["epoch"] != epoch:
        return 0
    if saved["kind"] == SAMPLER:
        _sampler(loader).load_state_dict(saved["state"])
    elif saved["kind"] == LOADER:
        loader.load_state_dict(saved["state"])
    else:
        return int(saved["batches"])
    return 0


def _counting_datasets(dataset: Any) -> Iterator[Any]:
    """The dataset and those inside it (Subset, ConcatDataset, StackDataset, the user's own) that count epochs."""
    if dataset is None:
        return
    if hasattr(dataset, "set_epoch"):
        yield dataset
    inside = getattr(dataset, "datasets", ())
    inside = inside.values() if isinstance(inside, Mapping) else inside if isinstance(inside, list | tuple) else ()
    for one in (getattr(dataset, "dataset", None), *inside):
        yield from _counting_datasets(one)


def position(loader: Any, epoch: int, batches: int, left_out: int) -> dict[str, Any] | None:
    """Where the loader stands after `batches` of this epoch, since it was begun or resumed; None: anywhere."""
    sampler = _sampler(loader)
    if sampler is not None:
        batched = part_with(getattr(loader, "batch_sampler", None), "batch_size")
        size = getattr(loader, "batch_size", None) or getattr(batched, "batch_size", None) or 1
        return {"kind": SAMPLER, "epoch": epoch, "state": sampler.state_dict(batches * size)}
    if hasattr(loader, "state_dict"):
        state = loader.state_dict()
        return {"kind": LOADER, "epoch": epoch, "state": state} if state else None
    return {"kind": COUNT, "epoch": epoch, "batches": batches + left_out}


def _sampler(loader: Any) -> Any:
    """The loader's sampler that knows its position; None where it has none."""
    for name in ("sampler", "batch_sampler"):
        found = part_with(getattr(loader, name, None), "state_dict")
        if found is not None and hasattr(found, "load_state_dict"):
            return found
    return None
