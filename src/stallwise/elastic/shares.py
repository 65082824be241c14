"""Unequal parts of the same global batch: a rank that has become slower takes fewer samples, the others more.

Who takes how many is `model.deflation.parts_for`'s, which leaves them equal where little would be gained.

The epoch's list is cut into the same global batches as ever; only who takes which samples of one changes. So every
sample is trained on once, the position after k steps is the same number, and a run may be resumed with other parts or
on another number of ranks. DDP averages the ranks' gradients; with the mean over b_i samples on rank i, the mean over
all of them is

    1/B Σ b_i g_i = 1/W Σ (b_i W/B) g_i

so each rank's gradient is multiplied by b_i W/B before it is exchanged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader

from stallwise.elastic.order import Resumable, parts_of
from stallwise.model.deflation import parts_for


@dataclass(frozen=True, slots=True)
class _AsMade:
    """What of a loader the script had set otherwise."""

    workers: int
    drop_last: bool


class Parts:
    """What this rank takes of every global batch, and the weight of its gradient. Where all take the same, nothing."""

    def __init__(self, model: nn.Module, rank: int, world: int, largest: int | None) -> None:
        self._model, self._rank, self._world, self._largest = model, rank, world, largest
        self._speeds: tuple[float, ...] = (1.0,) * world
        self._parts: tuple[int, ...] = ()  # of the loader under way, where they are unequal
        self._set_loaders: WeakKeyDictionary[Any, _AsMade] = WeakKeyDictionary()
        self._hooks: list[Any] = []
        self.weight = 1.0
        """Of this rank's gradient in the step under way."""

    def why_not(self, loader: Any) -> str:
        """Why the parts of this loader's batches cannot differ; empty where they can."""
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
        """Whether all ranks have said speeds (0: as ever) that call for other parts than now."""
        wanted = tuple(speed or 1.0 for speed in speeds) or (1.0,) * self._world
        return self._world > 1 and wanted != self._speeds and not self.why_not(loader) and self._set(wanted, loader)

    def _set(self, speeds: tuple[float, ...], loader: Any) -> bool:
        before, self._speeds = self._of(self._speeds, loader), speeds
        return self._of(speeds, loader) != before

    def _of(self, speeds: tuple[float, ...], loader: Any) -> tuple[int, ...]:
        if len(set(speeds)) == 1:
            return (loader.batch_size,) * self._world
        most = None if self._largest is None else max(self._largest, loader.batch_size)
        return parts_for(loader.batch_size * self._world, speeds, most)

    def take(self, loader: Any) -> tuple[int, ...] | None:
        """Set the loader, before it begins, to the present parts, and to workers by this rank's; None: equal."""
        self._parts = ()
        if self._world > 1 and len(set(self._speeds)) > 1 and not self.why_not(loader):
            parts = self._of(self._speeds, loader)
            self._parts = parts if len(set(parts)) > 1 else ()
        self._hook(on=bool(self._parts))
        if not self._parts:
            self._restore(loader)
            return None
        made = self._set_loaders.setdefault(loader, _AsMade(loader.num_workers, loader.sampler.drop_last))
        own = self._parts[self._rank]
        loader.batch_sampler.batch_size = own
        loader.sampler.parts, loader.sampler.drop_last = self._parts, loader.drop_last
        # What w workers did for the whole part, fewer do for a smaller one.
        _staff(loader, math.ceil(made.workers * min(1.0, own / loader.batch_size)))
        return self._parts

    def close(self) -> None:
        """Loaders as the script made them, gradients as they come."""
        self._hook(on=False)
        for loader in list(self._set_loaders):
            self._restore(loader)

    def _restore(self, loader: Any) -> None:
        """One that was never set is not touched."""
        try:
            made = self._set_loaders.pop(loader, None)
        except TypeError:  # nothing that could have been set
            return
        if made is not None:
            loader.batch_sampler.batch_size = loader.batch_size
            loader.sampler.parts, loader.sampler.drop_last = None, made.drop_last
            _staff(loader, made.workers)

    def begin(self, loader: Any, number: int) -> None:
        """Batch `number` since the loader began is next."""
        if not self._parts:
            return
        count, whole = loader.sampler.dealt_samples, loader.batch_size * self._world
        own = parts_of(max(self._world, min(whole, count - number * whole)), self._parts)
        self.weight = own[self._rank] * self._world / sum(own)

    def _hook(self, *, on: bool) -> None:
        """On each parameter's gradient, ahead of DDP's own, which sends it off."""
        if on and not self._hooks:
            trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            self._hooks = [one.register_hook(self._weighted) for one in trained]  # type: ignore[no-untyped-call]
        elif not on:
            for hook in self._hooks:
                hook.remove()
            self._hooks, self.weight = [], 1.0

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self.weight


def _staff(loader: Any, workers: int) -> None:
    if workers != loader.num_workers:
        loader.num_workers = workers
        loader._iterator = None  # a persistent one has its workers for life
