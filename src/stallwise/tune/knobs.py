"""The settings that may be turned without touching the script, and what a launched job is told about them.

None of them changes what is trained: batches, their order and their contents stay; only who prepares them, how early,
and in what pieces gradients travel. (Random augmentation inside loader workers draws from other seeds when their
number changes, as it does from one launch to the next.)
"""

import os
from typing import Self

import msgspec

VARIABLE = "STALLWISE_TRIAL"
LOADERS_NAME = "loaders.json"
"""In the trial's folder: the loaders that the script made."""
BLOCKS_NAME = "blocks.json"
"""In the trial's folder: which settings were on when."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings to use instead of the script's own; None leaves the script's."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    lookahead: bool | None = None
    """Wrap the sampler of a loader over a `BucketDataset` in `Lookahead`."""
    cache_bytes: int | None = None
    """Give a `BucketDataset` a `NodeCache` of that size."""
    bucket_cap_mb: float | None = None
    """Size of DistributedDataParallel's buckets."""

    def with_(self, other: "Knobs") -> "Knobs":
        """These, and where `other` says something, what it says."""
        return msgspec.structs.replace(self, **other.given())

    def given(self) -> dict[str, int | float | bool]:
        """What is set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def shown(self) -> str:
        """num_workers=4 prefetch_factor=4."""
        words = [f"{name}={_text(value)}" for name, value in self.given().items()]
        return " ".join(words) or "the script's own settings"


def _text(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


NONE = Knobs()
"""The script's own settings."""


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """So many batches under one arm, of which the first `settle` do not count."""

    arm: int
    settle: int
    batches: int
    quantum: int = 1
    """A whole number of these belongs to a block: batches of many workers come in bursts."""
    most_s: float | None = None
    """A job of one process ends the block after so long, where its steps turn out longer than predicted."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch is to try. Without blocks the script runs as it is, and only its loaders are noted."""

    folder: str
    """Where the job leaves its notes."""
    site: str | None = None
    """The loader that is changed, by the line that makes it."""
    fixed: Knobs = Knobs()
    """Settings of the whole launch."""
    arms: tuple[Knobs, ...] = ()
    """Loader settings to switch between while the job runs; none: the script's own iterator is left alone."""
    blocks: tuple[Block, ...] = ()
    cache_folder: str | None = None
    max_s: float | None = None
    """End the job after so long, counted from its first batch; several ranks end together, after a block."""

    def to_environment(self) -> dict[str, str]:
        """The variable to start ranks with."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls) -> Self | None:
        """The trial this process is part of."""
        text = os.environ.get(VARIABLE)
        return msgspec.json.decode(text, type=cls) if text else None


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader as the script made it."""

    site: str
    """The line that makes it and the lines that led there: "train.py:61 train.py:80"."""
    steps: int
    """Optimizer steps that used its batches last."""
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
    """Over a `BucketDataset`."""
    bucket_bytes: int | None = None
    looks_ahead: bool = False
    cached: bool = False
    changes: bool = False
    """The dataset has a set_epoch of its own, which workers that stay alive would not hear of."""
    threads: int = 1
    """Threads that one operation of the training process uses."""
    trainer: bool = False
    """Made by Hugging Face's Trainer, from its own arguments."""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One block as it happened, in seconds of the rank's monotonic clock."""

    arm: int
    begin_s: float
    end_s: float
    batches: int
    start_s: float = 0.0
    """From nothing to the first batch, as at the beginning of an epoch."""


def decode_loaders(data: bytes) -> tuple[Loader, ...]:
    """The loaders in a file that a job left."""
    return msgspec.json.decode(data, type=tuple[Loader, ...])


def decode_blocks(data: bytes) -> tuple[Ran, ...]:
    """The blocks in a file that a job left."""
    return msgspec.json.decode(data, type=tuple[Ran, ...])
