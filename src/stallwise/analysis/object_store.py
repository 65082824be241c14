"""Loading from an object store in a run: the table `loads`, added up.

Counts are of everything that was loaded while the job was profiled. Waits are of the batches loaded while the script
ran as it is (all batches where none did): in other phases loaders have time to spare.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.hardware.prices import StorePrices
from stallwise.run import phases
from stallwise.run.reader import Run

if TYPE_CHECKING:
    from stallwise.run.table import Table, TableColumn

_PARTS = ("network", "cache", "decode", "queue")


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The object store behind a run, as the dataset described it."""

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
        """The prices that the dataset recorded."""
        return StorePrices(
            get_usd=self.get_usd,
            list_usd=self.list_usd,
            egress_usd_per_byte=self.egress_usd_per_byte,
            as_of="",
            source="prices as recorded",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitTimes:
    """Mean and percentiles of a waiting time, in seconds per batch."""

    mean_s: float
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderTotals:
    """Counts and waits of one loader, or of all of them (`rank` None). `worker` None: the rank itself, or all."""

    rank: int | None
    worker: int | None
    batches: int
    samples: int
    data_bytes: int
    hits: int
    requests: int
    retries: int
    fetched_bytes: int
    network: WaitTimes
    cache: WaitTimes
    decode: WaitTimes
    queue: WaitTimes | None
    """How long a batch lay in its loader's queue; None where no loader looked ahead."""

    @property
    def hit_share(self) -> float | None:
        """Fraction of the samples that came from the node's cache."""
        return self.hits / self.samples if self.samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUse:
    """Use of an object store in one run."""

    total: LoaderTotals
    step_s: float | None
    data_wait_s: float | None
    """Of a step, how long the ranks wait for their batches on average."""
    network_share: float | None
    """Fraction of a batch's loading time spent waiting for the store."""
    store: StoreFacts | None
    usd: float | None
    """Requests and egress of everything that was loaded; None where prices are unknown."""

    @property
    def data_wait_share(self) -> float | None:
        """Fraction of the step spent waiting for data."""
        return self.data_wait_s / self.step_s if self.data_wait_s is not None and self.step_s else None


def bucket_use_of(run: Run) -> BucketUse | None:
    """How the run used an object store; None where it loaded nothing from one."""
    loads = run.table("loads")
    if not loads.height:
        return None
    total = _loaded(None, None, loads)
    steps = run.table("steps")
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.AS_IS))
    busy_s = total.network.mean_s + total.cache.mean_s + total.decode.mean_s
    store = store_of(run)
    return BucketUse(
        total=total,
        step_s=kept["duration_s"].mean(),
        data_wait_s=kept["data_wait_s"].mean(),
        network_share=total.network.mean_s / busy_s if busy_s > 0 else None,
        store=store,
        usd=store.prices().usd(total.requests, store.lists, total.fetched_bytes) if store else None,
    )


def loaders_of(run: Run) -> tuple[LoaderTotals, ...]:
    """Each process that loaded, by rank and worker."""
    groups = run.table("loads").group_by("rank", "worker").parts()
    loaders = [_loaded(rank, worker, part) for (rank, worker), part in groups]
    return tuple(sorted(loaders, key=lambda one: (one.rank or 0, -1 if one.worker is None else one.worker)))


def store_of(run: Run) -> StoreFacts | None:
    """The description of the object store, where the dataset left one."""
    events = run.table("events")
    for detail in events.filter(events["kind"].equals("bucket"))["detail"].valid:
        try:
            return msgspec.json.decode(detail, type=StoreFacts)
        except msgspec.DecodeError:
            continue
    return None


def _loaded(rank: int | None, worker: int | None, loads: "Table") -> LoaderTotals:
    as_is = loads.filter(loads["phase"].equals(phases.AS_IS))
    timed = as_is if as_is.height else loads
    waits: dict[str, Any] = {part: _waits(timed[f"{part}_s"]) for part in _PARTS}
    nothing = WaitTimes(mean_s=0.0, p50_s=0.0, p95_s=0.0)
    sums = {name: loads[name].sum() for name in _SUMMED}
    return LoaderTotals(
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


def _waits(values: "TableColumn") -> WaitTimes | None:
    mean_s, p50_s, p95_s = values.mean(), values.quantile(0.5), values.quantile(0.95)
    if mean_s is None or p50_s is None or p95_s is None:
        return None
    return WaitTimes(mean_s=mean_s, p50_s=p50_s, p95_s=p95_s)
