"""The settings that can be changed without editing the script, and the files through which a launched job learns them.

None of them changes what is trained: batches, their order and their contents stay; only which process prepares them,
how early, in which buckets gradients are exchanged, and by which kernels the same formulas are computed. (Random
augmentation inside loader workers draws from other seeds when their number changes, as it does from one launch to the
next. A fused optimizer and a compiled model round elsewhere.)
"""

import os
from typing import Self

import msgspec

VARIABLE = "STALLWISE_TRIAL"
LOADERS_NAME = "loaders.json"
"""File in the trial's folder with the loaders that the script made."""
OPTIMIZER_NAME = "optimizer.json"
"""File in the trial's folder with the optimizer that the script made."""
BLOCKS_NAME = "blocks.json"
"""File in the trial's folder with the time of each block of settings."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings to use instead of the script's own; None leaves the script's."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    lookahead: bool | None = None
    """Wrap the sampler of a loader over a `BucketDataset` in `Lookahead`."""
    cache_bytes: int | None = None
    """Size of the `NodeCache` that a `BucketDataset` gets."""
    bucket_cap_mb: float | None = None
    """Size of DistributedDataParallel's buckets."""
    fused_optimizer: bool | None = None
    """Let torch's optimizers update all parameters in one kernel."""
    compile: bool | None = None
    """Compile the model that is trained (`Module.compile`)."""

    def with_(self, other: "Knobs") -> "Knobs":
        """Return these settings with those of `other` in place of them where it has any."""
        return msgspec.structs.replace(self, **other.as_dict())

    def as_dict(self) -> dict[str, int | float | bool]:
        """Return the settings that are not None, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def shown(self) -> str:
        """Return the settings as text, such as `num_workers=4 prefetch_factor=4`."""
        words = [f"{name}={_text(value)}" for name, value in self.as_dict().items()]
        return " ".join(words) or "the script's own settings"


def _text(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


NONE = Knobs()
"""The script's own settings."""


class TrialBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A number of batches under one arm, of which the first `settle` are not measured."""

    arm: int
    settle: int
    batches: int
    quantum: int = 1
    """The batches of a block are a multiple of this, because batches of several workers come in bursts."""
    most_s: float | None = None
    """Time after which a job of one process ends the block, where its steps are longer than predicted."""


class TrialSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch tries. Without blocks the script runs unchanged, and only its loaders are recorded."""

    folder: str
    """Folder in which the job writes its files."""
    site: str | None = None
    """Source line of the loader that is changed."""
    fixed: Knobs = Knobs()
    """Settings of the whole launch."""
    arms: tuple[Knobs, ...] = ()
    """Loader settings to switch between while the job runs; empty: the script's own iterator is used."""
    blocks: tuple[TrialBlock, ...] = ()
    cache_folder: str | None = None
    predictions: tuple[tuple[float, float, float], ...] = ()
    """Predicted gain of each arm with its bounds: the job ends after the round in which every arm has won or lost."""
    epoch_batches: int | None = None
    """Batches over which what beginning an epoch takes is spread."""
    max_s: float | None = None
    """Time after which the job ends, from its first batch; several ranks end together, after a block."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable for the ranks."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the trial of this process, from its environment."""
        text = os.environ.get(VARIABLE)
        return msgspec.json.decode(text, type=cls) if text else None


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader as the script made it, with what decides which settings may change."""

    site: str
    """Source line that makes it and its callers' lines: "train.py:61 train.py:80"."""
    steps: int
    """Number of optimizer steps that followed one of its batches."""
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    length: int | None
    """Batches in an epoch."""
    dataset: str
    iterable: bool
    """An IterableDataset: more workers would give other batches."""
    sampler: str
    fixed_order: bool
    """The order of an epoch does not depend on what was drawn before: the same with workers that stay alive."""
    switchable: bool
    """Map-style data and a sampler of torch's own, so that settings can be switched while the job runs."""
    bucket: bool = False
    """Whether it reads a `BucketDataset`."""
    bucket_bytes: int | None = None
    looks_ahead: bool = False
    cached: bool = False
    changes: bool = False
    """The dataset has a set_epoch of its own, which workers that stay alive would not see."""
    threads: int = 1
    """Threads that one operation of the training process uses."""
    trainer: bool = False
    """Made by Hugging Face's Trainer, from its own arguments."""


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer that makes most of the script's steps."""

    kind: str
    """Name of its class, such as AdamW."""
    step_s: float
    """Time that the host spends in one of its steps: the median."""
    is_fusable: bool
    """One of torch's own that knows `fused=True`, made without it or anything that excludes it."""


class BlockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measured block, in seconds of the rank's monotonic clock."""

    arm: int
    begin_s: float
    end_s: float
    batches: int
    start_s: float = 0.0
    """Time to the first batch after the workers start, as at the beginning of an epoch."""


def decode_loaders(data: bytes) -> tuple[LoaderFacts, ...]:
    """Decode the file of loaders that a job wrote."""
    return msgspec.json.decode(data, type=tuple[LoaderFacts, ...])


def decode_optimizer(data: bytes) -> OptimizerFacts:
    """Decode the file of the optimizer that a job wrote."""
    return msgspec.json.decode(data, type=OptimizerFacts)


def decode_blocks(data: bytes) -> tuple[BlockRecord, ...]:
    """Decode the file of blocks that a job wrote."""
    return msgspec.json.decode(data, type=tuple[BlockRecord, ...])
