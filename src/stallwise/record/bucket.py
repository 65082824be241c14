"""What a run says about loading from a bucket: the table `loads`, added up.

Counts are of everything that was loaded while the job was profiled. Waits are of the batches loaded while the script
ran as it is (all batches where none did): in other phases loaders have time to spare.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.hardware.object_store import StorePrices
from stallwise.record import plan
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars

_PARTS = ("network", "cache", "decode", "queue")


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The bucket behind a run, as the dataset described it."""

    url: str
    objects: int
    bytes: int
    lists: int = 0
    get_usd: float | None = None
    list_usd: float | None = None
    egress_usd_per_byte: float | None = None
    cache_bytes: int | None = None
    policy: str | None = None
    lookahead_bytes: int | None = None
    concurrency: int | None = None

    def prices(self) -> StorePrices:
        """What the dataset took its requests to cost."""
        return StorePrices(
            get_usd=self.get_usd,
            list_usd=self.list_usd,
            egress_usd_per_byte=self.egress_usd_per_byte,
            as_of="",
            source="prices as recorded",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Seconds per batch."""

    mean_s: float
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What one loader did, or all of them (`rank` None). `worker` None: the rank itself, or all."""

    rank: int | None
    worker: int | None
    batches: int
    samples: int
    data_bytes: int
    hits: int
    requests: int
    retries: int
    fetched_bytes: int
    network: Waits
    cache: Waits
    decode: Waits
    queue: Waits | None
    """How long a batch lay in its loader's queue; None where nobody looked ahead."""

    @property
    def hit_share(self) -> float | None:
        """The part of the samples that came from the node's cache."""
        return self.hits / self.samples if self.samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUse:
    """Loading from a bucket in one run."""

    total: Loaded
    step_s: float | None
    data_wait_s: float | None
    """Of a step, how long the ranks wait for their batches on average."""
    network_share: float | None
    """The part of a batch's loading that is waiting for the store."""
    store: StoreFacts | None
    usd: float | None
    """Requests and egress of everything that was loaded; None where prices are unknown."""

    @property
    def data_wait_share(self) -> float | None:
        """The part of the step that is waiting for data."""
        return self.data_wait_s / self.step_s if self.data_wait_s is not None and self.step_s else None


def bucket_use_of(run: Run) -> BucketUse | None:
    """None where the run loaded nothing from a bucket."""
    import polars as pl

    loads = run.table("loads")
    if not loads.height:
        return None
    total = _loaded(None, None, loads)
    kept = run.table("steps").filter(pl.col("kept") & (pl.col("phase") == plan.AS_IS))
    busy_s = total.network.mean_s + total.cache.mean_s + total.decode.mean_s
    store = store_of(run)
    return BucketUse(
        total=total,
        step_s=_mean(kept, "duration_s"),
        data_wait_s=_mean(kept, "data_wait_s"),
        network_share=total.network.mean_s / busy_s if busy_s > 0 else None,
        store=store,
        usd=store.prices().usd(total.requests, store.lists, total.fetched_bytes) if store else None,
    )


def loaders_of(run: Run) -> tuple[Loaded, ...]:
    """Each process that loaded, by rank and worker."""
    groups = run.table("loads").partition_by("rank", "worker", as_dict=True, maintain_order=False)
    found = [_loaded(rank, worker, part) for (rank, worker), part in groups.items()]
    return tuple(sorted(found, key=lambda one: (one.rank or 0, -1 if one.worker is None else one.worker)))


def store_of(run: Run) -> StoreFacts | None:
    """The description of the bucket, where the dataset left one."""
    import polars as pl

    for detail in run.table("events").filter(pl.col("kind") == "bucket").get_column("detail").drop_nulls():
        try:
            return msgspec.json.decode(detail, type=StoreFacts)
        except msgspec.DecodeError:
            continue
    return None


def _loaded(rank: int | None, worker: int | None, loads: "polars.DataFrame") -> Loaded:
    import polars as pl

    as_is = loads.filter(pl.col("phase") == plan.AS_IS)
    timed = as_is if as_is.height else loads
    waits: dict[str, Any] = {part: _waits(timed.get_column(f"{part}_s").drop_nulls()) for part in _PARTS}
    nothing = Waits(mean_s=0.0, p50_s=0.0, p95_s=0.0)
    sums = {name: int(loads.get_column(name).sum()) for name in _SUMMED}
    return Loaded(
        rank=rank,
        worker=worker,
        batches=loads.height,
        **sums,
        network=waits["network"] or nothing,
        cache=waits["cache"] or nothing,
        decode=waits["decode"] or nothing,
        queue=waits["queue"],
    )


_SUMMED = ("samples", "data_bytes", "hits", "requests", "retries", "fetched_bytes")


def _waits(values: "polars.Series") -> Waits | None:
    if not len(values):
        return None
    p50, p95 = (float(values.quantile(q, "linear") or 0.0) for q in (0.5, 0.95))
    return Waits(mean_s=float(values.mean()), p50_s=p50, p95_s=p95)  # type: ignore[arg-type]


def _mean(steps: "polars.DataFrame", column: str) -> float | None:
    values = steps.get_column(column).drop_nulls()
    return float(values.mean()) if len(values) else None  # type: ignore[arg-type]
