"""A bucket plan and its file: which parameters' gradients are exchanged together, in the order they become ready."""

from collections import Counter
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.inputs import read_bytes
from stallwise.run.atomic import write_atomically

VERSION = 1


class GradientBucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One all-reduce: the parameters whose gradients it carries, by name in the bare module.

    Of a plan without names they are gradients by their place in ready order, or whole buckets of the traced job.
    """

    parameters: tuple[str, ...]
    bytes: int


class BucketForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of a step with the plan, with the job's own buckets and without exchange."""

    planned_s: float
    own_s: float
    """With the job's own buckets."""
    without_exchange_s: float


class BucketPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Buckets in the order they are sent. Every trained parameter of the module is in exactly one.

    `named` is False for a plan made from a trace, which holds sizes and order of gradients but no names: only its bytes
    can be applied.
    """

    version: int = VERSION
    source: str
    """The run it was made from."""
    gpus: int
    buckets: tuple[GradientBucket, ...]
    named: bool = True
    forecast: BucketForecast | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(
                f"The bucket plan has version {self.version}; this Stallwise reads {VERSION}. Make it again."
            )
        if not self.buckets or not all(bucket.parameters for bucket in self.buckets):
            raise InputError("The bucket plan has no buckets, or one without parameters. Make it again.")
        named = Counter(name for bucket in self.buckets for name in bucket.parameters)
        twice = next((name for name, count in named.items() if count > 1), None)
        if twice is not None:
            raise InputError(f"The bucket plan has {twice!r} in two buckets. Make it again.")

    @property
    def bytes(self) -> int:
        """Bytes of all gradients together."""
        return sum(bucket.bytes for bucket in self.buckets)

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the parameters in all buckets."""
        return frozenset(name for bucket in self.buckets for name in bucket.parameters)


def read_plan(path: str | Path) -> BucketPlan:
    """Read a plan from its file; raises an `InputError` that names the file where it holds none."""
    file = Path(path)
    try:
        data = read_bytes(file)
    except OSError as error:
        raise InputError(
            f"The bucket plan {file} cannot be read ({error.strerror}). Make one with stallwise whatif.",
            fields=("best_buckets",),
        ) from None
    try:
        return msgspec.json.decode(data, type=BucketPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"{file} is not a bucket plan ({error}). Make one with stallwise whatif.", fields=("best_buckets",)
        ) from None


def write_plan(plan: BucketPlan, path: Path) -> Path:
    """Write the plan and return its path."""
    if not path.parent.is_dir():
        raise InputError(f"The folder of {path} does not exist. Name another file.", fields=("best_buckets",))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    return path
