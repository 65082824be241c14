"""A bucket plan and its file: which parameters' gradients travel together, in the order they become ready."""

from collections import Counter
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.run.atomic import write_atomically

VERSION = 1


class Bucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One all-reduce: the parameters whose gradients it carries, by name in the bare module.

    Of a plan without names they are gradients by their place in ready order, or whole buckets of the traced job.
    """

    parameters: tuple[str, ...]
    bytes: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says of a step, in seconds, as far as it was asked."""

    planned_s: float
    own_s: float
    """With the job's own buckets."""
    without_exchange_s: float


class BucketPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Buckets in the order they are sent. Every trained parameter of the module is in exactly one.

    `named` is False of a plan made from a trace, which holds sizes and order of gradients but no names: then only its
    bytes can be carried out.
    """

    version: int = VERSION
    source: str
    """The run it was made from."""
    gpus: int
    buckets: tuple[Bucket, ...]
    named: bool = True
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InputError(
                f"The bucket plan has version {self.version}; this Stallwise reads {VERSION}. Make it anew."
            )
        if not self.buckets or not all(bucket.parameters for bucket in self.buckets):
            raise InputError("The bucket plan has no buckets, or one without parameters. Make it anew.")
        named = Counter(name for bucket in self.buckets for name in bucket.parameters)
        twice = next((name for name, count in named.items() if count > 1), None)
        if twice is not None:
            raise InputError(f"The bucket plan has {twice!r} in two buckets. Make it anew.")

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(bucket.bytes for bucket in self.buckets)

    @property
    def parameters(self) -> frozenset[str]:
        """All names."""
        return frozenset(name for bucket in self.buckets for name in bucket.parameters)


def read_plan(path: str | Path) -> BucketPlan:
    """The plan in a file; an `InputError` that names the file where it holds none."""
    place = Path(path)
    try:
        data = place.read_bytes()
    except OSError as error:
        raise InputError(
            f"The bucket plan {place} cannot be read ({error.strerror}). Make one: stallwise whatif RUN --best-buckets."
        ) from None
    try:
        return msgspec.json.decode(data, type=BucketPlan)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"{place} is no bucket plan ({error}). Make one: stallwise whatif RUN --best-buckets {place}."
        ) from None


def write_plan(plan: BucketPlan, path: Path) -> Path:
    """Write the plan and return its path."""
    if not path.parent.is_dir():
        raise InputError(f"The folder of {path} does not exist. Name another file with --best-buckets.")
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    return path
