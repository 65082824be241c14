"""Which samples each rank trains on, also after an interruption, on other numbers of ranks and at unequal speeds.

    sampler = Resumable(DistributedSampler(dataset, seed=1))
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

`Resumable` continues an epoch on any number of ranks; `stallwise.data`'s `Lookahead` does the same over an object
store. A `StatefulDataLoader` keeps its own position, on the same number of ranks; of any other loader the batches that
were trained on are drawn again and skipped.

`BatchParts`: unequal parts of the same global batch. A rank that has become slower takes fewer samples, the others more
(`model.deflation.parts_for`, which leaves the parts equal where little would be gained). The epoch's list is cut into
the same global batches as ever; only which rank takes which samples of one changes. So every sample is trained on once,
the position after k steps is the same number, and a job may be resumed with other parts or on another number of ranks.
DDP averages the ranks' gradients; with the mean over b_i samples on rank i, the mean over all of them is

    1/B Σ b_i g_i = 1/W Σ (b_i W/B) g_i

so each rank's gradient is multiplied by b_i W/B before it is exchanged.

`rescale_rates`: the learning rate for another number of workers, with the batch of each worker as it was. Goyal et al.
2017: when the batch grows k-fold, so does the rate (`linear`); `sqrt` keeps the gradient's noise instead. The
schedule's own bases follow, so that its next step does not undo it.

`Augmented`: random augmentation that a restart does not change, drawn from (seed, epoch, index) in whichever loader
worker.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from stallwise.data.prefetch.order import GlobalDraw, draw_of, sampler_with
from stallwise.model.deflation import parts_for, shares

SAMPLER, LOADER, COUNT = "sampler", "loader", "count"


class Resumable(Sampler[Any]):
    """Yields exactly what the sampler does; after `load_state_dict`, the rest of that epoch.

    With `DistributedSampler` the rest is distributed over the present number of ranks, every sample once. (As that
    sampler does, it repeats a few where they do not divide; `padding` is their number. `drop_last=True` drops instead.)
    """

    def __init__(self, sampler: Sampler[Any]) -> None:
        self.sampler = sampler
        self._draw = draw_of(sampler)
        self.parts: Sequence[int] | None = None
        """Samples of every global batch by rank, where they are not equal (`BatchParts`)."""
        self.drop_last = False
        self.dealt_samples = 0
        """Samples of all ranks when it last began with such parts."""

    @property
    def dealable(self) -> bool:
        """Whether the ranks' parts of a global batch may differ."""
        return isinstance(self._draw, GlobalDraw)

    @property
    def padding(self) -> int:
        """Number of samples that all ranks together see twice in this epoch."""
        return self._draw.padding

    def __len__(self) -> int:
        equal = len(self.sampler)  # type: ignore[arg-type]
        if self.parts is None:
            return equal
        batches = rank_batches(range(equal * len(self.parts)), self.parts, self._rank, drop_last=self.drop_last)
        return sum(map(len, batches))

    def __iter__(self) -> Iterator[Any]:
        if self.parts is None or not isinstance(self._draw, GlobalDraw):
            return iter(self._draw.begin())
        items = self._draw.begin_all()
        self.dealt_samples = len(items)
        return (item for part in rank_batches(items, self.parts, self._rank, drop_last=self.drop_last) for item in part)

    @property
    def _rank(self) -> int:
        return int(sampler_with(self.sampler, "num_replicas").rank)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the shuffling depends on, as `DistributedSampler.set_epoch` does."""
        counting = sampler_with(self.sampler, "set_epoch")
        if counting is not None:
            counting.set_epoch(epoch)

    def state_dict(self, consumed: int) -> dict[str, Any]:
        """Return the position after `consumed` samples on this rank, since the epoch began or was resumed."""
        return self._draw.state(consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next epoch the rest of the saved one."""
        self._draw.restore(state)


def rank_batches(items: Sequence[Any], parts: Sequence[int], rank: int, *, drop_last: bool) -> list[Sequence[Any]]:
    """Return the batches of one rank: its part of every global batch of `items`; a shorter last one in proportion."""
    whole = sum(parts)
    batches = []
    for start in range(0, len(items), whole):
        own = scaled_parts(min(whole, len(items) - start), parts)
        if sum(own) < whole and drop_last:
            break
        begin = start + sum(own[:rank])
        batches.append(items[begin : begin + own[rank]])
    return batches


def scaled_parts(count: int, parts: Sequence[int]) -> Sequence[int]:
    """Return the parts of a global batch of `count` samples, in proportion to `parts`."""
    return parts if count == sum(parts) else shares(count, [float(part) for part in parts])


def begin_epoch(loader: Any, epoch: int, saved: dict[str, Any] | None) -> int:
    """Set the loader to an epoch, or to the rest of the saved one; returns the number of batches to skip."""
    counting = [sampler_with(getattr(loader, name, None), "set_epoch") for name in ("sampler", "batch_sampler")]
    for part in [*filter(None, counting), *_counting_datasets(getattr(loader, "dataset", None))]:
        part.set_epoch(epoch)
    if saved is None or saved["epoch"] != epoch:
        return 0
    if saved["kind"] == SAMPLER:
        _resumable_sampler(loader).load_state_dict(saved["state"])
    elif saved["kind"] == LOADER:
        loader.load_state_dict(saved["state"])
    else:
        return int(saved["batches"])
    return 0


def _counting_datasets(dataset: Any) -> Iterator[Any]:
    """Yield the dataset and those inside it (Subset, ConcatDataset, StackDataset, …) that count epochs."""
    if dataset is None:
        return
    if hasattr(dataset, "set_epoch"):
        yield dataset
    inside = getattr(dataset, "datasets", ())
    inside = inside.values() if isinstance(inside, Mapping) else inside if isinstance(inside, list | tuple) else ()
    for one in (getattr(dataset, "dataset", None), *inside):
        yield from _counting_datasets(one)


def loader_position(loader: Any, epoch: int, batches: int, skipped: int) -> dict[str, Any] | None:
    """Return the position after `batches` of this epoch, since it began or was resumed; None: unknown."""
    sampler = _resumable_sampler(loader)
    if sampler is not None:
        batched = sampler_with(getattr(loader, "batch_sampler", None), "batch_size")
        size = getattr(loader, "batch_size", None) or getattr(batched, "batch_size", None) or 1
        return {"kind": SAMPLER, "epoch": epoch, "state": sampler.state_dict(batches * size)}
    if hasattr(loader, "state_dict"):
        state = loader.state_dict()
        return {"kind": LOADER, "epoch": epoch, "state": state} if state else None
    return {"kind": COUNT, "epoch": epoch, "batches": batches + skipped}


def _resumable_sampler(loader: Any) -> Any:
    """Return the loader's sampler that knows its position; None where it has none."""
    for name in ("sampler", "batch_sampler"):
        sampler = sampler_with(getattr(loader, name, None), "state_dict")
        if sampler is not None and hasattr(sampler, "load_state_dict"):
            return sampler
    return None


@dataclass(frozen=True, slots=True)
class _LoaderDefaults:
    """Settings of a loader as the script made it."""

    workers: int
    drop_last: bool


class BatchParts:
    """This rank's part of every global batch, and the weight of its gradient; inactive while all parts are equal."""

    def __init__(self, model: nn.Module, rank: int, world: int, largest: int | None) -> None:
        self._model, self._rank, self._world, self._largest = model, rank, world, largest
        self._speeds: tuple[float, ...] = (1.0,) * world
        self._parts: tuple[int, ...] = ()  # of the loader under way, where they are unequal
        self._set_loaders: WeakKeyDictionary[Any, _LoaderDefaults] = WeakKeyDictionary()
        self._hooks: list[Any] = []
        self.weight = 1.0
        """Factor of this rank's gradient in the step under way."""

    def why_not(self, loader: Any) -> str:
        """Return why the parts of this loader's batches cannot differ; empty where they can."""
        if not isinstance(self._model, DistributedDataParallel):
            return "its model is not DDP's"
        if any(isinstance(module, nn.SyncBatchNorm) for module in self._model.modules()):
            return "its model has SyncBatchNorm, which exchanges gradients before they could be weighted"
        if not (isinstance(loader, DataLoader) and loader.batch_size and isinstance(loader.sampler, Resumable)):
            return "its loader is no DataLoader with batch_size and a sampler of stallwise.elastic.Resumable"
        if not loader.sampler.dealable or type(loader.batch_sampler) is not BatchSampler:
            return "its sampler is no DistributedSampler of all ranks"
        return ""

    def changed(self, speeds: Sequence[float], loader: Any) -> bool:
        """Take the ranks' requested speeds (0: none); returns whether they call for other parts than now."""
        requested = tuple(speed or 1.0 for speed in speeds) or (1.0,) * self._world
        return (
            self._world > 1 and requested != self._speeds and not self.why_not(loader) and self._set(requested, loader)
        )

    def _set(self, speeds: tuple[float, ...], loader: Any) -> bool:
        before, self._speeds = self._of(self._speeds, loader), speeds
        return self._of(speeds, loader) != before

    def _of(self, speeds: tuple[float, ...], loader: Any) -> tuple[int, ...]:
        if len(set(speeds)) == 1:
            return (loader.batch_size,) * self._world
        most = None if self._largest is None else max(self._largest, loader.batch_size)
        return parts_for(loader.batch_size * self._world, speeds, most)

    def take(self, loader: Any) -> tuple[int, ...] | None:
        """Set the loader, before it begins, to the present parts and workers to match; None: equal parts."""
        self._parts = ()
        if self._world > 1 and len(set(self._speeds)) > 1 and not self.why_not(loader):
            parts = self._of(self._speeds, loader)
            self._parts = parts if len(set(parts)) > 1 else ()
        self._hook(on=bool(self._parts))
        if not self._parts:
            self._restore(loader)
            return None
        defaults = self._set_loaders.setdefault(loader, _LoaderDefaults(loader.num_workers, loader.sampler.drop_last))
        own = self._parts[self._rank]
        loader.batch_sampler.batch_size = own
        loader.sampler.parts, loader.sampler.drop_last = self._parts, loader.drop_last
        # A smaller part needs fewer workers.
        _set_workers(loader, math.ceil(defaults.workers * min(1.0, own / loader.batch_size)))
        return self._parts

    def close(self) -> None:
        """Restore loaders as the script made them, and gradients without weights."""
        self._hook(on=False)
        for loader in list(self._set_loaders):
            self._restore(loader)

    def _restore(self, loader: Any) -> None:
        """Restore a loader; one that was never set is not touched."""
        try:
            defaults = self._set_loaders.pop(loader, None)
        except TypeError:  # not hashable: it was never set
            return
        if defaults is not None:
            loader.batch_sampler.batch_size = loader.batch_size
            loader.sampler.parts, loader.sampler.drop_last = None, defaults.drop_last
            _set_workers(loader, defaults.workers)

    def begin(self, loader: Any, number: int) -> None:
        """Set the weight for batch `number` since the loader began."""
        if not self._parts:
            return
        count, whole = loader.sampler.dealt_samples, loader.batch_size * self._world
        own = scaled_parts(max(self._world, min(whole, count - number * whole)), self._parts)
        self.weight = own[self._rank] * self._world / sum(own)

    def _hook(self, *, on: bool) -> None:
        """Hook each parameter's gradient, ahead of DDP's own hook, which sends it off."""
        if on and not self._hooks:
            trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            self._hooks = [one.register_hook(self._weighted) for one in trained]  # type: ignore[no-untyped-call]
        elif not on:
            for hook in self._hooks:
                hook.remove()
            self._hooks, self.weight = [], 1.0

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.weight


def _set_workers(loader: Any, workers: int) -> None:
    if workers != loader.num_workers:
        loader.num_workers = workers
        loader._iterator = None  # a persistent one has its workers for life


Scaling = Literal["linear", "sqrt", "none"]


def rate_factor(before: int, now: int, scaling: Scaling) -> float:
    """Return the factor of the learning rate when `before` workers become `now`."""
    ratio = now / before
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def rescale_rates(optimizer: Any, scheduler: Any, by: float) -> None:
    """Multiply every learning rate, and what the schedule computes rates from."""
    if by == 1.0:
        return
    for one in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
        for group in one.param_groups:
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in group:
                    group[name] = group[name] * by
    for one in _schedulers(scheduler):
        for name in ("base_lrs", "_last_lr", "max_lrs", "min_lrs"):
            if isinstance(rates := getattr(one, name, None), list):
                setattr(one, name, [rate * by for rate in rates])


def _schedulers(scheduler: Any) -> list[Any]:
    """Return the scheduler and those inside it."""
    if scheduler is None:
        return []
    inside = getattr(scheduler, "_schedulers", [])
    return [scheduler, *(one for part in inside for one in _schedulers(part))]


class Augmented(Dataset[Any]):
    """A map-style dataset with `transform(sample)`; torch's, NumPy's and Python's random state is set for each sample.

    The state around it is left as it was. A session calls `set_epoch`; without one, do so before each epoch.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any], seed: int = 0) -> None:
        self.dataset, self._transform, self._seed = dataset, transform, seed
        # Shared, so that loader workers which live on see the next epoch.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next samples."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        python_state, numpy_state = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[]):
            seed = seed_of(self._seed, int(self._epoch[0]), index)
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
            try:
                return self._transform(sample)
            finally:
                random.setstate(python_state)
                np.random.set_state(numpy_state)


def seed_of(seed: int, epoch: int, index: int) -> int:
    """Return 63 bits that differ wherever one of the three does (splitmix64's mixing)."""
    mixed = 0
    for value in (seed, epoch, index):
        mixed = (mixed + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
