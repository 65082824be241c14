"""Runs inside the job: applies settings where the unmodified script makes its loaders, datasets and DDP models.

Installed before the recorder, so that the recorder watches what the script would see. A loader is identified by the
line of the script that makes it and its callers' lines, which are the same in every launch; so one function may make
the loaders for training and validation.

Settings of a loader can be switched while the job runs: the script's loop iterates over a `SwitchingIterator`, which
takes each batch from a copy of the loader with the settings of the current block.
"""

import copy
import functools
import inspect
import os
import statistics
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
import torch
from torch import distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
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

from stallwise.record.ablate.loader import length_of
from stallwise.record.rank.environment import rank_place
from stallwise.record.rank.recorder import ProfileDone
from stallwise.record.rank.script import when_imported
from stallwise.run.atomic import write_atomically
from stallwise.torch_private import BaseDataLoaderIter, MultiProcessingDataLoaderIter
from stallwise.tune._judgement import GainPrior, is_decided
from stallwise.tune.knobs import (
    BLOCKS_NAME,
    LOADERS_NAME,
    OPTIMIZER_NAME,
    BlockRecord,
    Knobs,
    LoaderFacts,
    OptimizerFacts,
    TrialBlock,
    TrialSpec,
)

_GRACE_S = 60.0  # beyond the time of a trial, for setting up the job
# Taken before any patch.
_next_batch = BaseDataLoaderIter.__next__


class BlockSequence:
    """Counts batches of the loader under trial, knows the current block, and ends the job after the last one."""

    def __init__(self, trial: TrialSpec, *, first: bool) -> None:
        self._trial = trial
        self._first = first
        self._at = 0
        self._batches = 0
        self._begin_s: float | None = None
        self._first_s: float | None = None
        self._made_s = time.monotonic()
        self._records: list[BlockRecord] = []
        self._live: Any = None
        self._live_of: tuple[Any, int] | None = None
        self._starts_s: list[float] = []

    @property
    def arm(self) -> int:
        """The arm of the current block."""
        return self._trial.blocks[self._at].arm

    def count(self) -> None:
        """Count a batch that the loop requests, and go to the next block where this one is done."""
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        block = self._trial.blocks[self._at]
        if self._batches == block.settle:
            self._begin_s = now_s
        done = self._batches - block.settle
        if done == block.batches or (done > 0 and self._drags(block, done, now_s)):
            self._close(now_s, done)
        elif self._late(now_s) and not _several():
            self._end()
        self._batches += 1

    def check_overdue(self) -> None:
        """End the job where it takes steps without the loader under trial, which this launch does not have."""
        now_s = time.monotonic()
        limit_s = self._trial.max_s
        if limit_s is not None and now_s - self._made_s > limit_s + _GRACE_S:
            self._end()

    def batch(self, loader: Any) -> Any:
        """Return the next batch of the arm's own loader."""
        if self._live is not None and self._live_of == (loader, self._at):
            return _next_batch(self._live)
        self._stop()
        began_s = time.monotonic()
        self._live, self._live_of = _started(loader, self._trial.arms[self.arm]), (loader, self._at)
        batch = _next_batch(self._live)
        self._starts_s = [time.monotonic() - began_s]
        return batch

    def first(self, iterator: Any, advance: Callable[[Any], Any]) -> Any:
        """Return the next batch of the script's own iterator; records the start-up time with the first."""
        start_s = iterator.__dict__.pop("_stallwise_start_s", None)
        if start_s is None:
            return advance(iterator)
        began_s = time.monotonic()
        batch = advance(iterator)
        self._starts_s.append(start_s + time.monotonic() - began_s)
        return batch

    def _drags(self, block: TrialBlock, done: int, now_s: float) -> bool:
        if block.most_s is None or self._begin_s is None or done % block.quantum:
            return False
        return now_s - self._begin_s >= block.most_s and not _several()

    def _close(self, now_s: float, batches: int) -> None:
        block = self._trial.blocks[self._at]
        if self._begin_s is not None:
            record = BlockRecord(
                arm=block.arm, begin_s=self._begin_s, end_s=now_s, batches=batches, start_s=self._start_s
            )
            self._records.append(record)
        if self._first:
            write_atomically(Path(self._trial.folder, BLOCKS_NAME), msgspec.json.encode(self._records))
        if self._at + 1 == len(self._trial.blocks) or self._all_stop(now_s):
            self._end()
        self._at += 1
        self._batches, self._begin_s = 0, now_s if self._trial.blocks[self._at].settle == 0 else None

    @property
    def _start_s(self) -> float:
        """Mean start-up time of the epochs after the first, where there are any: in the first, caches fill."""
        starts_s = self._starts_s[1:] or self._starts_s
        return sum(starts_s) / len(starts_s) if starts_s else 0.0

    def _late(self, now_s: float) -> bool:
        return self._trial.max_s is not None and now_s - (self._first_s or now_s) > self._trial.max_s

    def _decided(self) -> bool:
        """Whether every arm has won or lost, after a whole round."""
        arms = len(self._trial.arms)
        if not self._trial.predictions or not arms or len(self._records) % arms:
            return False
        times_s: list[list[float]] = [[] for _ in range(arms)]
        for record in self._records:
            batch_s = (record.end_s - record.begin_s) / record.batches
            epoch_s = max(0.0, record.start_s - batch_s) if self._trial.epoch_batches else 0.0
            times_s[record.arm].append(batch_s + epoch_s / (self._trial.epoch_batches or 1))
        priors = [GainPrior(gain=gain, low=low, high=high) for gain, low, high in self._trial.predictions]
        return is_decided(times_s, priors)

    def _all_stop(self, now_s: float) -> bool:
        if not _several():
            return self._late(now_s) or self._decided()
        store, key = dist.distributed_c10d._get_default_store(), f"stallwise/late/{self._at}"
        if self._first:
            store.set(key, str(int(self._late(now_s) or self._decided())))
        return bool(int(store.get(key)))

    def _end(self) -> None:
        self._stop()
        raise ProfileDone

    def _stop(self) -> None:
        live, self._live = self._live, None
        if isinstance(live, MultiProcessingDataLoaderIter):
            live._shutdown_workers()


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class SwitchingIterator(BaseDataLoaderIter):
    """The iterator of the script's loop; it has no workers itself."""

    # The arm's own queue goes on from epoch to epoch.
    _stallwise_keeps_queue = True

    def __init__(self, loader: Any, board: BlockSequence) -> None:
        # Not super().__init__, which would begin to draw from the sampler.
        self._loader = loader
        self._board = board
        self._yielded = 0

    def __len__(self) -> int:
        return len(self._loader)

    def advance(self) -> Any:
        """Return the next batch, or end the epoch where the script expects it."""
        if self._yielded >= len(self._loader):
            raise StopIteration
        self._board.count()
        self._yielded += 1
        return self._board.batch(self._loader)


class _Endless:
    """A sampler that repeats the epochs of another without end."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._sampler


def _with_lookahead(loader: Any) -> tuple[Any, Any, Any]:
    """Return the dataset, and its sampler and batch sampler with look-ahead.

    The dataset is a copy, because one with look-ahead sends its order to all workers that are started later.
    """
    from stallwise.data import Lookahead

    dataset = copy.copy(loader.dataset)
    dataset._channels = []
    sampler = Lookahead(loader.sampler, dataset)
    batches = loader.batch_sampler
    return dataset, sampler, batches and BatchSampler(sampler, batches.batch_size, batches.drop_last)


def _started(loader: Any, knobs: Knobs) -> Any:
    """Start an iterator over a copy of `loader` with other settings."""
    arm = copy.copy(loader)
    workers = loader.num_workers if knobs.num_workers is None else knobs.num_workers
    depth = (loader.prefetch_factor or 2) if knobs.prefetch_factor is None else knobs.prefetch_factor
    dataset, sampler, batches = _with_lookahead(loader) if knobs.lookahead else (loader.dataset, loader.sampler, None)
    batches = batches or loader.batch_sampler
    name, endless = ("sampler", _Endless(sampler)) if batches is None else ("batch_sampler", _Endless(batches))
    # Not by __setattr__, which forbids changing the sampler of a loader in use; this copy is not in use yet.
    arm.__dict__.update(
        {
            "num_workers": workers,
            "prefetch_factor": depth if workers else None,
            "pin_memory": loader.pin_memory if knobs.pin_memory is None else knobs.pin_memory,
            "persistent_workers": False,
            "_iterator": None,
            "dataset": dataset,
            name: endless,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores are part of the trial
        return arm._get_iterator()


_SAMPLERS = (RandomSampler, SequentialSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)
_PACKAGE = str(Path(__file__).parent.parent)
_MOST_LINES = 4


def install(trial: TrialSpec) -> None:
    """Patch DataLoader, DDP and BucketDataset in this process."""
    hooks = Hooks(trial)
    hooks.patch_loaders()
    if trial.fixed.bucket_cap_mb is not None:
        when_imported("torch.nn.parallel.distributed", hooks.patch_ddp)
    if trial.fixed.cache_bytes is not None:
        when_imported("stallwise.data._dataset", hooks.patch_buckets)
    if trial.fixed.fused_optimizer:
        fuse_optimizers()
    if trial.fixed.compile:
        compile_trained_model()


class Hooks:
    """The patches of one rank, and the loaders it has seen."""

    def __init__(self, trial: TrialSpec) -> None:
        self.trial = trial
        self._first = rank_place().rank == 0
        self._sites: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen: dict[str, LoaderFacts] = {}
        self._steps: dict[str, int] = {}
        self._last: str | None = None
        self._board = BlockSequence(trial, first=self._first) if trial.blocks else None
        self._optimizer_steps: dict[int, tuple[Any, list[float]]] = {}
        self._step_began_s = 0.0

    def patch_loaders(self) -> None:
        """Patch `DataLoader`: apply settings when it is made; record and switch when it is iterated."""
        hooks, loaders, iterators = self, cast("Any", DataLoader), cast("Any", BaseDataLoaderIter)
        make, iterate, advance = loaders.__init__, loaders.__iter__, iterators.__next__
        signature = inspect.signature(make)

        @functools.wraps(make)
        def __init__(loader: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            site = _site()
            if site == hooks.trial.site:
                bound = signature.bind(loader, *arguments, **named)
                applied = apply(hooks.trial.fixed, {**bound.arguments})
                applied.pop("self")
                make(loader, **applied)
            else:
                make(loader, *arguments, **named)
            hooks._sites[loader] = site

        def __iter__(loader: Any) -> Any:  # noqa: N807
            site = hooks._sites.get(loader)
            if site is not None and site not in hooks._seen:
                hooks._seen[site] = describe(loader, site)
            board = hooks._board if site == hooks.trial.site else None
            # A loop without gradients does not train, whichever loader it uses.
            if board is not None and hooks.trial.arms and torch.is_grad_enabled():
                iterator: Any = SwitchingIterator(loader, board)
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
            if isinstance(iterator, SwitchingIterator):
                return iterator.advance()
            if board is None or site != hooks.trial.site or not torch.is_grad_enabled():
                return advance(iterator)
            board.count()
            return board.first(iterator, advance)

        loaders.__init__, loaders.__iter__, iterators.__next__ = __init__, __iter__, __next__
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._stepped)

    def _step_begins(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        self._step_began_s = time.monotonic()

    def _stepped(self, optimizer: Any, _arguments: Any, _named: Any) -> None:
        """Count a step for the loader whose batch came last; writes what was seen at the 1st, 2nd, 4th … step."""
        if self._board is not None:
            self._board.check_overdue()
            if self.trial.site is None:
                self._board.count()
        elif self._first:
            self._time_step(optimizer, time.monotonic() - self._step_began_s)
        if self._last is None or not self._first:
            return
        count = self._steps[self._last] = self._steps.get(self._last, 0) + 1
        if count & (count - 1) == 0:
            self._write_loaders()

    def _time_step(self, optimizer: Any, duration_s: float) -> None:
        """Keep how long the host was in a step; writes the optimizer with the most steps at its 2nd, 4th … step."""
        times_s = self._optimizer_steps.setdefault(id(optimizer), (optimizer, []))[1]
        times_s.append(duration_s)
        most = max(len(times) for _, times in self._optimizer_steps.values())
        if len(times_s) < most or len(times_s) == 1 or len(times_s) & (len(times_s) - 1):
            return
        facts = OptimizerFacts(
            kind=type(optimizer).__name__,
            # The first makes the optimizer's state.
            step_s=statistics.median(times_s[1:]),
            is_fusable=is_fusable(optimizer),
        )
        write_atomically(Path(self.trial.folder, OPTIMIZER_NAME), msgspec.json.encode(facts))

    def _write_loaders(self) -> None:
        loaders = [
            msgspec.structs.replace(loader, steps=self._steps.get(site, 0)) for site, loader in self._seen.items()
        ]
        write_atomically(Path(self.trial.folder, LOADERS_NAME), msgspec.json.encode(loaders))

    def patch_ddp(self, module: Any) -> None:
        """Patch `DistributedDataParallel`: the size of its buckets."""
        kind, size = module.DistributedDataParallel, self.trial.fixed.bucket_cap_mb
        _with_argument(kind, lambda arguments: {**arguments, "bucket_cap_mb": size})

    def patch_buckets(self, module: Any) -> None:
        """Patch `BucketDataset`: a cache, where it has none."""
        from stallwise.data.cache.cache import NodeCache

        folder, limit = self.trial.cache_folder, self.trial.fixed.cache_bytes

        def cached(arguments: dict[str, Any]) -> dict[str, Any]:
            if arguments.get("cache") is not None or folder is None or limit is None:
                return arguments
            return {**arguments, "cache": NodeCache(Path(folder), limit)}

        _with_argument(module.BucketDataset, cached)


_EXCLUDES_FUSED = ("fused", "foreach", "capturable", "differentiable")


def _fusable_kinds() -> list[Any]:
    """torch's own optimizers that have one kernel for the update of all parameters."""
    kinds = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    return [
        kind
        for kind in kinds
        if issubclass(kind, torch.optim.Optimizer) and "fused" in inspect.signature(kind.__init__).parameters
    ]


def is_fusable(optimizer: Any) -> bool:
    """Whether `fused=True` would change how this optimizer works."""
    return type(optimizer) in _fusable_kinds() and not any(optimizer.defaults.get(name) for name in _EXCLUDES_FUSED)


def fuse_optimizers() -> None:
    """Patch torch's optimizers: they are made with `fused=True` where the script leaves that open."""

    def fused(arguments: dict[str, Any]) -> dict[str, Any]:
        is_open = arguments.get("fused") is None and not any(arguments.get(name) for name in _EXCLUDES_FUSED)
        return {**arguments, "fused": True} if is_open else arguments

    for kind in _fusable_kinds():
        _with_argument(kind, fused)


def compile_trained_model() -> None:
    """Compile the first module that is called with gradients: the outermost one, from its next call on."""

    def compile_it(module: Any, _arguments: Any) -> None:
        if not torch.is_grad_enabled() or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        handle.remove()
        if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
            return
        if type(module).__module__.startswith("torch.nn"):
            module.forward = torch.compile(module.forward)  # of torch's own classes it passes over the call
        else:
            module.compile()

    handle = register_module_forward_pre_hook(compile_it)


def _with_argument(kind: Any, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    make = kind.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def __init__(instance: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        arguments_by_name = changed({**signature.bind(instance, *arguments, **named).arguments})
        arguments_by_name.pop("self")
        make(instance, **arguments_by_name)

    kind.__init__ = __init__


def apply(knobs: Knobs, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a DataLoader's arguments with the settings of `knobs`; those that contradict the rest are left out."""
    loader_settings = {
        name: value
        for name, value in knobs.as_dict().items()
        if name in ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
    }
    changed = {**arguments, **loader_settings}
    if not changed.get("num_workers", 0):
        changed.pop("prefetch_factor", None)
        changed["persistent_workers"] = False
    if knobs.lookahead:
        changed.update(_lookahead_arguments(changed))
    return changed


def _lookahead_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Wrap the loader's own sampler, or the one it would make, in a `Lookahead`."""
    from stallwise.data import Lookahead

    dataset = arguments["dataset"]
    if arguments.get("batch_sampler") is not None:
        return {"batch_sampler": Lookahead(arguments["batch_sampler"], dataset)}
    sampler = arguments.get("sampler")
    if sampler is None:
        shuffled = arguments.get("shuffle")
        sampler = (
            RandomSampler(dataset, generator=arguments.get("generator")) if shuffled else SequentialSampler(dataset)
        )
    return {"sampler": Lookahead(sampler, dataset), "shuffle": None}


def describe(loader: Any, site: str) -> LoaderFacts:
    """Record the settings and properties of a loader."""
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
    return LoaderFacts(
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
    """The line that makes the loader, outside Stallwise and torch, and its callers' lines in the same file."""
    frame: FrameType | None = sys._getframe(1)
    lines: list[tuple[str, int]] = []
    while frame is not None:
        file = frame.f_code.co_filename
        if lines[0][0] == file if lines else not _is_library(file):
            lines.append((file, frame.f_lineno))
        frame = frame.f_back
    return " ".join(f"{file}:{line}" for file, line in lines[:_MOST_LINES])


def _is_library(file: str) -> bool:
    return file.startswith(_PACKAGE) or f"{os.sep}torch{os.sep}" in file
