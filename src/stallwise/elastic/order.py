"""Where in the data a job stands, and going on from there, also on another number of ranks.

    sampler = Resumable(DistributedSampler(dataset, seed=1))
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

`stallwise.data`'s `Lookahead` can do the same over a bucket. A `StatefulDataLoader` keeps its own position, on the same
number of ranks; of anything else the batches that were trained on are drawn again and left out.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Sampler

from stallwise.data.draws import draw_of, part_with

SAMPLER, LOADER, COUNT = "sampler", "loader", "count"


class Resumable(Sampler[Any]):
    """Exactly what the sampler yields; after `load_state_dict`, what was left of that epoch.

    With `DistributedSampler` the rest is dealt out anew to as many ranks as there are now, every sample once. (As that
    sampler does, it repeats a few where they do not divide; `padding` says how many. `drop_last=True` drops instead.)
    """

    def __init__(self, sampler: Sampler[Any]) -> None:
        self.sampler = sampler
        self._draw = draw_of(sampler)

    @property
    def padding(self) -> int:
        """Samples that all ranks together see twice in this epoch."""
        return self._draw.padding

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._draw.begin())

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


def begin_epoch(loader: Any, epoch: int, saved: dict[str, Any] | None) -> int:
    """Set the loader to an epoch, or to the rest of the saved one; returns how many batches are to be left out."""
    for name in ("sampler", "batch_sampler", "dataset"):
        counting = part_with(getattr(loader, name, None), "set_epoch")
        if counting is not None:
            counting.set_epoch(epoch)
    if saved is None or saved["epoch"] != epoch:
        return 0
    if saved["kind"] == SAMPLER:
        _sampler(loader).load_state_dict(saved["state"])
    elif saved["kind"] == LOADER:
        loader.load_state_dict(saved["state"])
    else:
        return int(saved["batches"])
    return 0


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
