"""Planning a job's cache and link: waits and costs of epochs with other caches, and the price of a run's requests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stallwise.analysis.analysis import open_run
from stallwise.analysis.object_store import BucketUse, LoaderTotals, bucket_use_of, loaders_of
from stallwise.analysis.profile import Profile
from stallwise.errors import InputError
from stallwise.hardware.prices import FREE_STORE, StorePrices
from stallwise.model.data.cache import partitioned
from stallwise.model.data.datapath import speed
from stallwise.model.data.object_store import (
    EpochReads,
    EpochWait,
    EvictionPolicy,
    ObjectStoreLink,
    SharedRate,
    apart,
    epoch_misses,
    epoch_wait,
    fetch_rate,
    partitioned_misses,
    partitioned_wait,
    together,
)
from stallwise.sentences import Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedUse:
    """A run's use of its bucket, priced."""

    use: BucketUse
    epoch_usd: float | None
    """Dollars of an epoch that continues as measured; None where its length or a price is unknown."""
    source: str | None


def price_use(use: BucketUse, prices: StorePrices | None, samples: int | None) -> PricedUse:
    """Price a run's requests by `prices`, or by those recorded."""
    tariff = prices or (use.store.prices() if use.store else None)
    if tariff is None:
        return PricedUse(use=use, epoch_usd=None, source=None)
    total, lists = use.total, use.store.lists if use.store else 0
    epoch = samples or (use.store.objects if use.store else None)
    epoch_usd = None
    if epoch is not None and total.samples:
        scale = epoch / total.samples
        epoch_usd = tariff.usd(round(total.requests * scale), 0, round(total.fetched_bytes * scale))
    priced = replace(use, usd=tariff.usd(total.requests, lists, total.fetched_bytes))
    return PricedUse(use=priced, epoch_usd=epoch_usd, source=price_source(tariff))


def with_egress(prices: StorePrices | None, egress_usd_per_gb: float | None) -> StorePrices | None:
    """Return the prices with another one for bytes out of the region (dollars per GB)."""
    if egress_usd_per_gb is None:
        return prices
    if prices is None:
        raise InputError(
            "A price of egress needs the store's other prices: they are known for s3 and gs.", fields=("egress",)
        )
    if not egress_usd_per_gb >= 0:
        raise InputError(
            f"The price of egress must be at least 0 dollars per GB, not {egress_usd_per_gb:g}.", fields=("egress",)
        )
    return replace(prices, egress_usd_per_byte=egress_usd_per_gb / 1e9)


def in_brackets(prices: StorePrices | None) -> str:
    """Return `price_source` in brackets, to follow a sum; empty where nothing is charged."""
    return "" if prices is None or prices == FREE_STORE else f" ({price_source(prices)})"


def price_source(prices: StorePrices) -> str:
    """Describe where prices come from, and what egress costs."""
    egress = (prices.egress_usd_per_byte or 0.0) * 1e9
    dated = f"{prices.source}, {prices.as_of}" if prices.as_of else prices.source
    return f"{dated}; egress {egress:g} dollars per GB"


if TYPE_CHECKING:
    from stallwise.run.reader import Run

# Names on a page of a listing.
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlanRequest:
    """What the user specifies beyond the run."""

    cache_bytes: float
    link: ObjectStoreLink
    link_from: str
    nodes: int | None = None
    epochs: int = 10
    policy: EvictionPolicy = "no-evict"
    samples: int | None = None
    sample_bytes: float | None = None
    prices: StorePrices | None = None
    peer_bytes_per_s: float | None = None
    """Rate of a node's link to the others; None: that of its link to the bucket."""
    jobs: int | None = None
    """Jobs on every node that read the same data (a hyper-parameter search)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDataFacts:
    """The job's data path, for all nodes together unless stated otherwise."""

    run: str
    samples: int
    sample_bytes: float
    nodes: int
    ingest_samples_per_s: float
    """Of one node, with data always ready."""
    decode_samples_per_s: float | None
    """Of one node's loaders."""
    batch_samples: float
    """Of one node's step."""

    @property
    def dataset_bytes(self) -> float:
        """Size of all objects together."""
        return self.samples * self.sample_bytes

    @property
    def ready_samples_per_s(self) -> float:
        """min(P, G) of one node."""
        return speed(None, self.decode_samples_per_s, self.ingest_samples_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEpoch:
    """The current setting as the run measured it, scaled to an epoch."""

    nodes: int
    miss: float
    wait_s: float | None
    epoch_s: float | None
    requests: float
    fetched_bytes: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAlternative:
    """One cache on every node, and what epochs then cost. Requests, bytes and dollars are of all nodes."""

    name: str
    cache_bytes: float
    policy: EvictionPolicy | None
    sticky: bool
    misses: tuple[float, ...]
    first: EpochWait
    last: EpochWait
    wait_s: float
    """Over all epochs."""
    epochs_s: float
    requests_first: float
    requests_last: float
    fetched_bytes: float
    usd_first: float | None
    usd_last: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPlan:
    """Several jobs on a node with this cache: the rate of each, with separate and with shared preparation."""

    jobs: int
    apart: SharedRate
    together: SharedRate
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """The plan. The field names are the keys of its JSON."""

    facts: JobDataFacts
    link: ObjectStoreLink
    epochs: int
    objects_per_s: float
    measured: MeasuredEpoch | None
    alternatives: tuple[CacheAlternative, ...]
    jobs: JobsPlan | None
    assumptions: tuple[Sentence, ...]


def data_plan_of(run: "Run", request: DataPlanRequest) -> DataPlan:
    """Compare the run's setting with other caches."""
    profile, use = open_run(run).profile, bucket_use_of(run)
    if request.prices is None and use is not None and use.store is not None:
        request = replace(request, prices=use.store.prices())
    facts = _facts(profile, use, loaders_of(run), request)
    alternatives = [_alternative(facts, request, *setting) for setting in _settings(facts, request)]
    return DataPlan(
        facts=facts,
        link=request.link,
        epochs=request.epochs,
        objects_per_s=fetch_rate(request.link, facts.sample_bytes).objects_per_s,
        measured=_measured(profile, use, facts, request.prices) if use else None,
        alternatives=(*alternatives, *_shared(facts, request)),
        jobs=None if request.jobs is None else _jobs(facts, request, request.jobs),
        assumptions=tuple(_assumptions(profile, facts, request)),
    )


def _facts(
    profile: Profile, use: BucketUse | None, loaders: Sequence[LoaderTotals], request: DataPlanRequest
) -> JobDataFacts:
    nodes_run = profile.world.nnodes
    if profile.samples_per_s is None:
        raise InputError(f"The run at {profile.run} does not record the samples of a step, so its pace is not known.")
    batch = profile.samples_per_s * profile.step_s / nodes_run
    stalls = [share.s for share in (profile.split.prep, profile.split.fetch) if share is not None]
    waits_s = sum(stalls) if stalls else (use.data_wait_s if use and use.data_wait_s else 0.0)
    return JobDataFacts(
        run=str(profile.run),
        samples=_samples(profile, use, request),
        sample_bytes=_sample_bytes(profile, use, request),
        nodes=request.nodes or nodes_run,
        ingest_samples_per_s=batch / max(profile.step_s - waits_s, 1e-9),
        decode_samples_per_s=_decode_samples_per_s(profile, loaders),
        batch_samples=batch,
    )


def _samples(profile: Profile, use: BucketUse | None, request: DataPlanRequest) -> int:
    samples = request.samples or (use.store.objects if use and use.store else None)
    if samples is None:
        raise InputError(
            f"The run at {profile.run} does not record how many samples the dataset has (1281167, for example).",
            fields=("samples",),
        )
    return samples


def _sample_bytes(profile: Profile, use: BucketUse | None, request: DataPlanRequest) -> float:
    if request.sample_bytes is not None:
        return request.sample_bytes
    if use is None or not use.total.samples:
        raise InputError(
            f"The run at {profile.run} did not read from a bucket, so the size of an object is not known "
            "(110KB, for example).",
            fields=("sample_size",),
        )
    return use.total.data_bytes / use.total.samples


def _decode_samples_per_s(profile: Profile, loaders: Sequence[LoaderTotals]) -> float | None:
    """Return the rate at which one node's loaders decode and read their cache; P where no bucket was read."""
    if not loaders:
        return profile.rates.P.samples_per_s / profile.world.nnodes if profile.rates.P else None
    busy = [one for one in loaders if one.decode.mean_s + one.cache.mean_s > 0]
    if not busy:
        return None
    rates = [one.samples / (one.batches * (one.decode.mean_s + one.cache.mean_s)) for one in busy]
    return sum(rates) / profile.world.nnodes


def _settings(facts: JobDataFacts, request: DataPlanRequest) -> Sequence[tuple[str, float, bool]]:
    whole = facts.dataset_bytes
    settings = [
        ("no cache", 0.0, False),
        ("this cache", request.cache_bytes, False),
        ("half the data", whole / 2, False),
        ("all the data", whole, False),
    ]
    if facts.nodes > 1:
        share = whole / facts.nodes
        settings += [("this cache", request.cache_bytes, True), ("its share", share, True)]
    return settings


def _alternative(
    facts: JobDataFacts, request: DataPlanRequest, name: str, cache_bytes: float, sticky: bool
) -> CacheAlternative:
    cached = cache_bytes / facts.dataset_bytes
    misses = epoch_misses(request.policy, cached, nodes=facts.nodes, epochs=request.epochs, sticky=sticky)
    waits = [epoch_wait(_epoch(facts), request.link, miss) for miss in misses]
    return _summed(facts, request, name, cache_bytes, misses, waits, sticky=sticky)


def _summed(
    facts: JobDataFacts,
    request: DataPlanRequest,
    name: str,
    cache_bytes: float,
    misses: tuple[float, ...],
    waits: Sequence[EpochWait],
    *,
    sticky: bool = False,
) -> CacheAlternative:
    """Sum up epochs with these misses and waits."""
    lists = -(-facts.samples // _PAGE) * facts.nodes
    usd = [_usd(request.prices, miss, facts, lists if number == 0 else 0) for number, miss in enumerate(misses)]
    return CacheAlternative(
        name=name,
        cache_bytes=cache_bytes,
        policy=request.policy if cache_bytes else None,
        sticky=sticky,
        misses=misses,
        first=waits[0],
        last=waits[-1],
        wait_s=sum(wait.wait_s for wait in waits),
        epochs_s=sum(wait.compute_s + wait.wait_s for wait in waits),
        requests_first=misses[0] * facts.samples,
        requests_last=misses[-1] * facts.samples,
        fetched_bytes=sum(misses) * facts.dataset_bytes,
        usd_first=usd[0],
        usd_last=usd[-1],
        usd=None if None in usd else sum(value or 0.0 for value in usd),
    )


def _shared(facts: JobDataFacts, request: DataPlanRequest) -> Iterator[CacheAlternative]:
    """Yield the caches of all nodes as one (`Peers`), for this cache and for each node's share."""
    if facts.nodes == 1:
        return
    never = replace(request, policy="no-evict")
    for name, cache_bytes in (("this cache", request.cache_bytes), ("its share", facts.dataset_bytes / facts.nodes)):
        cached = cache_bytes / facts.dataset_bytes
        misses = partitioned_misses(cached, facts.nodes, request.epochs)
        waits = [_shared_wait(facts, request, cached, miss) for miss in misses]
        yield _summed(facts, never, f"{name}, shared", cache_bytes, misses, waits)


def _shared_wait(facts: JobDataFacts, request: DataPlanRequest, cached: float, miss: float) -> EpochWait:
    sources = partitioned(cached, facts.nodes)
    # In the first epoch a node hands what it reads to its owner: all but its own share crosses, too.
    peer = 1 - 1 / facts.nodes if miss == 1 else sources.peer
    peer_bytes_per_s = request.peer_bytes_per_s or request.link.bytes_per_s
    return partitioned_wait(_epoch(facts), request.link, peer_bytes_per_s, miss=miss, peer=peer)


def _jobs(facts: JobDataFacts, request: DataPlanRequest, jobs: int) -> JobsPlan:
    """Compare separate with shared preparation, at the run's rates and the link's."""
    cached = min(1.0, request.cache_bytes / facts.dataset_bytes)
    storage = fetch_rate(request.link, facts.sample_bytes).objects_per_s
    prepare = facts.decode_samples_per_s or float("inf")
    alone = apart(jobs, facts.ingest_samples_per_s, prepare, storage, cached)
    shared = together(jobs, facts.ingest_samples_per_s, prepare, storage, cached)
    return JobsPlan(jobs=jobs, apart=alone, together=shared, gain=shared.samples_per_s / alone.samples_per_s)


def _epoch(facts: JobDataFacts) -> EpochReads:
    return EpochReads(
        samples=facts.samples / facts.nodes,
        sample_bytes=facts.sample_bytes,
        ready_samples_per_s=facts.ready_samples_per_s,
        first_samples=facts.batch_samples,
    )


def _usd(prices: StorePrices | None, miss: float, facts: JobDataFacts, lists: int) -> float | None:
    if prices is None:
        return None
    return prices.usd(round(miss * facts.samples), lists, round(miss * facts.dataset_bytes))


def _measured(profile: Profile, use: BucketUse, facts: JobDataFacts, prices: StorePrices | None) -> MeasuredEpoch:
    """Scale the run's own figures to an epoch, on as many nodes as it had."""
    total = use.total
    per_sample = facts.samples / max(total.samples, 1)
    steps = facts.samples / (facts.batch_samples * profile.world.nnodes)
    requests, fetched = total.requests * per_sample, total.fetched_bytes * per_sample
    return MeasuredEpoch(
        nodes=profile.world.nnodes,
        miss=1 - (total.hit_share or 0.0),
        wait_s=None if use.data_wait_s is None else use.data_wait_s * steps,
        epoch_s=None if use.step_s is None else use.step_s * steps,
        requests=requests,
        fetched_bytes=fetched,
        usd=None if prices is None else prices.usd(round(requests), 0, round(fetched)),
    )


def _against_decoding(facts: JobDataFacts) -> str:
    if facts.ready_samples_per_s < facts.ingest_samples_per_s:
        return ", but no faster than its loaders decode."
    if facts.decode_samples_per_s:
        return "; its loaders decode faster than that."
    return "; how fast its loaders decode is not known."


def _assumptions(profile: Profile, facts: JobDataFacts, request: DataPlanRequest) -> Sequence[Sentence]:
    link, peer_bytes_per_s = request.link, request.peer_bytes_per_s
    notes = [
        Sentence(
            "link.own",
            f"The link is one node's own: {request.link_from}. Real loaders have made 82 to 91 % of a link's nominal "
            "rate; intervals reach down to 82 %.",
        ),
        Sentence(
            "requests.at-a-time",
            f"{link.concurrency} requests are under way at a time on each node, each waiting "
            f"{link.latency_s * 1e3:.3g} ms before its bytes come (mean value analysis of a closed queue).",
        ),
        Sentence(
            "samples.lookahead",
            "Samples are fetched in the order they are used (Lookahead), so a job waits only for what the link cannot "
            "bring while it computes, and for the first batch of every epoch.",
        ),
        Sentence(
            "job.consumption",
            "The job takes samples as fast as the run's step without its data stalls" + _against_decoding(facts),
        ),
        Sentence("objects.mean-size", "All objects are as large as the mean; caches begin empty."),
    ]
    if facts.nodes > 1:
        notes.append(
            Sentence(
                "samples.dealt-anew",
                "Every epoch deals samples to nodes anew, so a node's cache holds what others will want. Sticky "
                "partitions keep a node's samples on it: fewer misses, and a weaker shuffle. Caches that are shared "
                "(Peers) give each other what they have at "
                + (f"{peer_bytes_per_s / 1e6:,.0f} MB/s." if peer_bytes_per_s else "the link's rate."),
                peer_bytes_per_s=peer_bytes_per_s,
            )
        )
    if request.jobs is not None:
        notes.append(
            Sentence(
                "jobs.share-cache",
                f"{request.jobs} jobs take and prepare like the run's, share its loaders' cores and this cache; "
                "copying a prepared batch costs nothing.",
            )
        )
    if facts.nodes != profile.world.nnodes:
        notes.append(
            Sentence(
                "nodes.alike",
                f"Each of {facts.nodes} nodes computes as fast as one of the run's {profile.world.nnodes}; what they "
                "lose to exchanging gradients is not in it (stallwise whatif).",
                nodes=facts.nodes,
                nnodes=profile.world.nnodes,
            )
        )
    if request.prices is None:
        notes.append(
            Sentence(
                "prices.unknown",
                "The store's prices are not known, so there are no dollars: name the store (s3 or gs).",
            )
        )
    else:
        notes.append(Sentence("prices.source", f"Prices: {price_source(request.prices)}."))
    return notes
