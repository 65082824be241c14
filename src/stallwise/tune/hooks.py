"""In the job: settings are applied where the unmodified script makes its loaders, datasets and DDP models.

Installed before the recorder, so that the recorder watches what the script would see. A loader is known by the line of
the script that makes it and the lines that led there, which are the same in every launch; so one function may make the
loaders for training and validation.
"""

import functools
import inspect
import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stallwise.record.loader import length_of
from stallwise.record.on_import import when_imported
from stallwise.record.place import place
from stallwise.run.atomic import write_atomically
from stallwise.tune.knobs import LOADERS_NAME, Knobs, Loader, Trial
from stallwise.tune.switching import Board, Switching

_SAMPLERS = (RandomSampler, SequentialSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)
_OURS = str(Path(__file__).parent.parent)
_DEEP = 4


def install(trial: Trial) -> None:
    """Patch the classes of this process."""
    hooks = Hooks(trial)
    hooks.patch_loaders()
    if trial.fixed.bucket_cap_mb is not None:
        when_imported("torch.nn.parallel.distributed", hooks.patch_ddp)
    if trial.fixed.cache_bytes is not None:
        when_imported("stallwise.data.dataset", hooks.patch_buckets)


class Hooks:
    """What this rank knows of its loaders."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self._first = place().rank == 0
        self._sites: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen: dict[str, Loader] = {}
        self._steps: dict[str, int] = {}
        self._last: str | None = None
        self._board = Board(trial, first=self._first) if trial.blocks else None

    def patch_loaders(self) -> None:
        """`DataLoader`: settings when it is made; notes and switches when it is iterated."""
        hooks, loaders, iterators = self, cast("Any", DataLoader), cast("Any", _BaseDataLoaderIter)
        make, iterate, advance = loaders.__init__, loaders.__iter__, iterators.__next__
        signature = inspect.signature(make)

        @functools.wraps(make)
        def __init__(loader: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            site = _site()
            if site == hooks.trial.site:
                bound = signature.bind(loader, *arguments, **named)
                given = apply(hooks.trial.fixed, {**bound.arguments})
                given.pop("self")
                make(loader, **given)
            else:
                make(loader, *arguments, **named)
            hooks._sites[loader] = site

        def __iter__(loader: Any) -> Any:  # noqa: N807
            site = hooks._sites.get(loader)
            if site is not None and site not in hooks._seen:
                hooks._seen[site] = describe(loader, site)
            board = hooks._board if site == hooks.trial.site else None
            # A loop without gradients does not train, whichever loader it asks.
            if board is not None and hooks.trial.arms and torch.is_grad_enabled():
                iterator: Any = Switching(loader, board)
            else:
                began_s = time.monotonic()
                iterator = iterate(loader)
                iterator._stallwise_start_s = time.monotonic() - began_s
            iterator._stallwise_site = site
            return iterator

        def __next__(iterator: Any) -> Any:  # noqa: N807
            site, board = getattr(iterator, "_stallwise_site", None), hooks._board
            if torch.is_grad_enabled():
                hooks._last = site
            if isinstance(iterator, Switching):
                return iterator.advance()
            if board is None or site != hooks.trial.site or not torch.is_grad_enabled():
                return advance(iterator)
            board.turn()
            return board.first(iterator, advance)

        loaders.__init__, loaders.__iter__, iterators.__next__ = __init__, __iter__, __next__
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        """The loader whose batch came last feeds this step; told at the 1st, 2nd, 4th … step."""
        if self._board is not None:
            self._board.check_overdue()
        if self._last is None or not self._first:
            return
        count = self._steps[self._last] = self._steps.get(self._last, 0) + 1
        if count & (count - 1) == 0:
            self._tell()

    def _tell(self) -> None:
        found = [msgspec.structs.replace(loader, steps=self._steps.get(site, 0)) for site, loader in self._seen.items()]
        write_atomically(Path(self.trial.folder, LOADERS_NAME), msgspec.json.encode(found))

    def patch_ddp(self, module: Any) -> None:
        """`DistributedDataParallel`: the size of its buckets."""
        kind, size = module.DistributedDataParallel, self.trial.fixed.bucket_cap_mb
        _with_argument(kind, lambda given: {**given, "bucket_cap_mb": size})

    def patch_buckets(self, module: Any) -> None:
        """`BucketDataset`: a cache, where it has none."""
        from stallwise.data.cache import NodeCache

        folder, limit = self.trial.cache_folder, self.trial.fixed.cache_bytes

        def cached(given: dict[str, Any]) -> dict[str, Any]:
            if given.get("cache") is not None or folder is None or limit is None:
                return given
            return {**given, "cache": NodeCache(Path(folder), limit)}

        _with_argument(module.BucketDataset, cached)


def _with_argument(kind: Any, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    make = kind.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def __init__(made: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        given = changed({**signature.bind(made, *arguments, **named).arguments})
        given.pop("self")
        make(made, **given)

    kind.__init__ = __init__


def apply(knobs: Knobs, given: dict[str, Any]) -> dict[str, Any]:
    """A DataLoader's arguments with the settings of `knobs`; what goes against the rest is left as it was."""
    wanted = {
        name: value
        for name, value in knobs.given().items()
        if name in ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    }
    changed = {**given, **wanted}
    if not changed.get("num_workers", 0):
        changed.pop("prefetch_factor", None)
        changed["persistent_workers"] = False
    if knobs.lookahead:
        changed.update(_ahead(changed))
    return changed


def _ahead(given: dict[str, Any]) -> dict[str, Any]:
    """The loader's own sampler, or the one it would make, in a `Lookahead`."""
    from stallwise.data import Lookahead

    dataset = given["dataset"]
    if given.get("batch_sampler") is not None:
        return {"batch_sampler": Lookahead(given["batch_sampler"], dataset)}
    sampler = given.get("sampler")
    if sampler is None:
        shuffled = given.get("shuffle")
        sampler = RandomSampler(dataset, generator=given.get("generator")) if shuffled else SequentialSampler(dataset)
    return {"sampler": Lookahead(sampler, dataset), "shuffle": None}


def describe(loader: Any, site: str) -> Loader:
    """A loader's facts."""
    dataset, sampler = loader.dataset, loader.sampler
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    under = getattr(sampler, "_sampler", sampler) if type(sampler).__name__ == "Lookahead" else sampler
    bucket = type(inner).__name__ == "BucketDataset" and hasattr(inner, "index")
    batches = loader.batch_sampler
    ahead = any(type(one).__name__ == "Lookahead" for one in (sampler, batches))
    iterable = isinstance(dataset, IterableDataset)
    plain = type(sampler) in _SAMPLERS and (batches is None or type(batches) is BatchSampler)
    return Loader(
        site=site,
        steps=0,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        length=length_of(loader),
        dataset=type(dataset).__name__,
        iterable=iterable,
        sampler=type(sampler).__name__,
        fixed_order=isinstance(under, (SequentialSampler, DistributedSampler)),
        switchable=plain and not iterable and type(loader) is DataLoader and (not bucket or inner is dataset),
        bucket=bucket,
        bucket_bytes=inner.index.total_bytes if bucket and hasattr(inner.index, "total_bytes") else None,
        looks_ahead=ahead,
        cached=bucket and inner.cache is not None,
        changes=hasattr(dataset, "set_epoch"),
        threads=torch.get_num_threads(),
        trainer=f"{os.sep}transformers{os.sep}trainer" in site or f"{os.sep}accelerate{os.sep}" in site,
    )


def _site() -> str:
    """The line that makes the loader, which is neither ours nor torch's, and those of the same file that led there."""
    frame: FrameType | None = sys._getframe(1)
    lines: list[tuple[str, int]] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if lines[0][0] == file if lines else not _passes_on(file):
            lines.append((file, frame.f_lineno))
        frame = frame.f_back
    return " ".join(f"{file}:{line}" for file, line in lines[:_DEEP])


def _passes_on(file: str) -> bool:
    return file.startswith(_OURS) or f"{os.sep}torch{os.sep}" in file
