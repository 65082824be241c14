"""From a run to what its data would cost under another cache and another link: `stallwise data plan`.

The run gives the pace at which the job takes samples when data is always there (the step without its data stalls, and
no faster than its workers decode), and how large a sample is. `model.bucket` does the rest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stallwise.data.pricing import said_of
from stallwise.errors import InputError
from stallwise.hardware.object_store import StorePrices
from stallwise.model.bucket import Epoch, Link, Policy, Wait, epoch_misses, epoch_wait, fetch_rate
from stallwise.model.cache import partitioned
from stallwise.model.datapath import speed
from stallwise.model.sharing import Pace as JobsPace
from stallwise.model.sharing import apart, partitioned_misses, partitioned_wait, together
from stallwise.record.bucket import BucketUse, Loaded, bucket_use_of, loaders_of
from stallwise.record.profile import Profile, profile_of

if TYPE_CHECKING:
    from stallwise.run.reader import Run

# A listing's page holds so many names.
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user says beyond the run."""

    cache_bytes: float
    link: Link
    link_from: str
    nodes: int | None = None
    epochs: int = 10
    policy: Policy = "no-evict"
    samples: int | None = None
    sample_bytes: float | None = None
    prices: StorePrices | None = None
    peer_bytes_per_s: float | None = None
    """Of a node's way to the others; None: as fast as its way to the bucket."""
    jobs: int | None = None
    """Jobs of a search on every node that read the same data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The job as far as its data matters, for all nodes together where not said otherwise."""

    run: str
    samples: int
    sample_bytes: float
    nodes: int
    ingest_samples_per_s: float
    """Of one node, with data always there."""
    decode_samples_per_s: float | None
    """Of one node's loaders."""
    batch_samples: float
    """Of one node's step."""

    @property
    def dataset_bytes(self) -> float:
        """All objects."""
        return self.samples * self.sample_bytes

    @property
    def ready_samples_per_s(self) -> float:
        """min(P, G) of one node."""
        return speed(None, self.decode_samples_per_s, self.ingest_samples_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Today's setting, as the run measured it, made an epoch of."""

    nodes: int
    miss: float
    wait_s: float | None
    epoch_s: float | None
    requests: float
    fetched_bytes: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One cache on every node: what epochs then cost. Requests, bytes and dollars are of all nodes."""

    name: str
    cache_bytes: float
    policy: Policy | None
    sticky: bool
    misses: tuple[float, ...]
    first: Wait
    last: Wait
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
    """Several jobs on a node, each with this cache: what each gets, apart and prepared together."""

    jobs: int
    apart: JobsPace
    together: JobsPace
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlan:
    """The answer. The field names are the keys of `--json`."""

    facts: Facts
    link: Link
    epochs: int
    objects_per_s: float
    measured: Measured | None
    alternatives: tuple[Alternative, ...]
    jobs: JobsPlan | None
    assumptions: tuple[str, ...]


def plan_of(run: "Run", asked: Asked) -> DataPlan:
    """Today's setting beside others."""
    profile, use = profile_of(run), bucket_use_of(run)
    if asked.prices is None and use is not None and use.store is not None:
        asked = replace(asked, prices=use.store.prices())
    facts = _facts(profile, use, loaders_of(run), asked)
    alternatives = [_alternative(facts, asked, *setting) for setting in _settings(facts, asked)]
    return DataPlan(
        facts=facts,
        link=asked.link,
        epochs=asked.epochs,
        objects_per_s=fetch_rate(asked.link, facts.sample_bytes).objects_per_s,
        measured=_measured(profile, use, facts, asked.prices) if use else None,
        alternatives=(*alternatives, *_shared(facts, asked)),
        jobs=None if asked.jobs is None else _jobs(facts, asked, asked.jobs),
        assumptions=tuple(_assumptions(profile, use, facts, asked)),
    )


def _facts(profile: Profile, use: BucketUse | None, loaders: Sequence[Loaded], asked: Asked) -> Facts:
    nodes_run = profile.world.nnodes
    if profile.samples_per_s is None:
        raise InputError(f"The run at {profile.run} does not say how many samples a step takes: there is no pace.")
    batch = profile.samples_per_s * profile.step_s / nodes_run
    stalls = [share.s for share in (profile.split.prep, profile.split.fetch) if share is not None]
    waits_s = sum(stalls) if stalls else (use.data_wait_s if use and use.data_wait_s else 0.0)
    return Facts(
        run=str(profile.run),
        samples=_samples(profile, use, asked),
        sample_bytes=_sample_bytes(profile, use, asked),
        nodes=asked.nodes or nodes_run,
        ingest_samples_per_s=batch / max(profile.step_s - waits_s, 1e-9),
        decode_samples_per_s=_decode_samples_per_s(profile, loaders),
        batch_samples=batch,
    )


def _samples(profile: Profile, use: BucketUse | None, asked: Asked) -> int:
    known = asked.samples or (use.store.objects if use and use.store else None)
    if known is None:
        raise InputError(
            f"The run at {profile.run} does not say how many samples the dataset has. Give --samples, "
            "as in --samples 1281167."
        )
    return known


def _sample_bytes(profile: Profile, use: BucketUse | None, asked: Asked) -> float:
    if asked.sample_bytes is not None:
        return asked.sample_bytes
    if use is None or not use.total.samples:
        raise InputError(
            f"The run at {profile.run} did not read from a bucket, so it does not say how large an object is. "
            "Give --sample-size, as in --sample-size 110KB."
        )
    return use.total.data_bytes / use.total.samples


def _decode_samples_per_s(profile: Profile, loaders: Sequence[Loaded]) -> float | None:
    """What one node's loaders decode and read from their cache; the profile's P where no bucket was read."""
    if not loaders:
        return profile.rates.P.samples_per_s / profile.world.nnodes if profile.rates.P else None
    busy = [one for one in loaders if one.decode.mean_s + one.cache.mean_s > 0]
    if not busy:
        return None
    rates = [one.samples / (one.batches * (one.decode.mean_s + one.cache.mean_s)) for one in busy]
    return sum(rates) / profile.world.nnodes


def _settings(facts: Facts, asked: Asked) -> Sequence[tuple[str, float, bool]]:
    whole = facts.dataset_bytes
    settings = [
        ("no cache", 0.0, False),
        ("this cache", asked.cache_bytes, False),
        ("half the data", whole / 2, False),
        ("all the data", whole, False),
    ]
    if facts.nodes > 1:
        share = whole / facts.nodes
        settings += [("this cache", asked.cache_bytes, True), ("its share", share, True)]
    return settings


def _alternative(facts: Facts, asked: Asked, name: str, cache_bytes: float, sticky: bool) -> Alternative:
    cached = cache_bytes / facts.dataset_bytes
    misses = epoch_misses(asked.policy, cached, nodes=facts.nodes, epochs=asked.epochs, sticky=sticky)
    waits = [epoch_wait(_epoch(facts), asked.link, miss) for miss in misses]
    return _summed(facts, asked, name, cache_bytes, misses, waits, sticky=sticky)


def _summed(
    facts: Facts,
    asked: Asked,
    name: str,
    cache_bytes: float,
    misses: tuple[float, ...],
    waits: Sequence[Wait],
    *,
    sticky: bool = False,
) -> Alternative:
    """Epochs with these misses and waits, together."""
    lists = -(-facts.samples // _PAGE) * facts.nodes
    usd = [_usd(asked.prices, miss, facts, lists if number == 0 else 0) for number, miss in enumerate(misses)]
    return Alternative(
        name=name,
        cache_bytes=cache_bytes,
        policy=asked.policy if cache_bytes else None,
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


def _shared(facts: Facts, asked: Asked) -> Iterator[Alternative]:
    """The caches of all nodes as one (`Peers`), for this cache and for each node's share."""
    if facts.nodes == 1:
        return
    never = replace(asked, policy="no-evict")
    for name, cache_bytes in (("this cache", asked.cache_bytes), ("its share", facts.dataset_bytes / facts.nodes)):
        cached = cache_bytes / facts.dataset_bytes
        misses = partitioned_misses(cached, facts.nodes, asked.epochs)
        waits = [_shared_wait(facts, asked, cached, miss) for miss in misses]
        yield _summed(facts, never, f"{name}, shared", cache_bytes, misses, waits)


def _shared_wait(facts: Facts, asked: Asked, cached: float, miss: float) -> Wait:
    sources = partitioned(cached, facts.nodes)
    # In the first epoch a node hands what it reads to its owner: all but its own part crosses, too.
    peer = 1 - 1 / facts.nodes if miss == 1 else sources.peer
    peer_bytes_per_s = asked.peer_bytes_per_s or asked.link.bytes_per_s
    return partitioned_wait(_epoch(facts), asked.link, peer_bytes_per_s, miss=miss, peer=peer)


def _jobs(facts: Facts, asked: Asked, jobs: int) -> JobsPlan:
    """What a job takes and the node prepares as in the run; storage brings what the link does."""
    cached = min(1.0, asked.cache_bytes / facts.dataset_bytes)
    storage = fetch_rate(asked.link, facts.sample_bytes).objects_per_s
    prepare = facts.decode_samples_per_s or float("inf")
    alone = apart(jobs, facts.ingest_samples_per_s, prepare, storage, cached)
    shared = together(jobs, facts.ingest_samples_per_s, prepare, storage, cached)
    return JobsPlan(jobs=jobs, apart=alone, together=shared, gain=shared.samples_per_s / alone.samples_per_s)


def _epoch(facts: Facts) -> Epoch:
    return Epoch(
        samples=facts.samples / facts.nodes,
        sample_bytes=facts.sample_bytes,
        ready_samples_per_s=facts.ready_samples_per_s,
        first_samples=facts.batch_samples,
    )


def _usd(prices: StorePrices | None, miss: float, facts: Facts, lists: int) -> float | None:
    if prices is None:
        return None
    return prices.usd(round(miss * facts.samples), lists, round(miss * facts.dataset_bytes))


def _measured(profile: Profile, use: BucketUse, facts: Facts, prices: StorePrices | None) -> Measured:
    """The epoch that the run's own figures make; of as many nodes as it had."""
    total = use.total
    per_sample = facts.samples / max(total.samples, 1)
    steps = facts.samples / (facts.batch_samples * profile.world.nnodes)
    requests, fetched = total.requests * per_sample, total.fetched_bytes * per_sample
    return Measured(
        nodes=profile.world.nnodes,
        miss=1 - (total.hit_share or 0.0),
        wait_s=None if use.data_wait_s is None else use.data_wait_s * steps,
        epoch_s=None if use.step_s is None else use.step_s * steps,
        requests=requests,
        fetched_bytes=fetched,
        usd=None if prices is None else prices.usd(round(requests), 0, round(fetched)),
    )


def _assumptions(profile: Profile, use: BucketUse | None, facts: Facts, asked: Asked) -> Sequence[str]:
    link = asked.link
    said = [
        f"The link is one node's own: {asked.link_from}. Real loaders have made 82 to 91 % of a link's nominal rate; "
        "intervals reach down to 82 %.",
        f"{link.concurrency} requests are under way at a time on each node, each waiting {link.latency_s * 1e3:.3g} ms "
        "before its bytes come (mean value analysis of a closed queue).",
        "Samples are fetched in the order they are used (Lookahead), so a job waits only for what the link cannot "
        "bring while it computes, and for the first batch of every epoch.",
        "The job takes samples as fast as the run's step without its data stalls"
        + (
            ", but no faster than its loaders decode."
            if facts.ready_samples_per_s < facts.ingest_samples_per_s
            else "; its loaders decode faster than that."
            if facts.decode_samples_per_s
            else "; how fast its loaders decode is not known."
        ),
        "All objects are as large as the mean; caches begin empty.",
    ]
    if facts.nodes > 1:
        said.append(
            "Every epoch deals samples to nodes anew, so a node's cache holds what others will want. Sticky partitions "
            "keep a node's samples on it: fewer misses, and a weaker shuffle. Caches that are shared (Peers) give each "
            "other what they have at "
            + ("the link's rate." if asked.peer_bytes_per_s is None else f"{asked.peer_bytes_per_s / 1e6:,.0f} MB/s.")
        )
    if asked.jobs is not None:
        said.append(
            f"{asked.jobs} jobs take and prepare like the run's, share its loaders' cores and this cache; copying a "
            "prepared batch costs nothing."
        )
    if facts.nodes != profile.world.nnodes:
        said.append(
            f"Each of {facts.nodes} nodes computes as fast as one of the run's {profile.world.nnodes}; what they lose "
            "to exchanging gradients is not in it (stallwise whatif)."
        )
    if asked.prices is None:
        said.append("What the store charges is not known: give --store s3 or gs for dollars.")
    else:
        said.append(f"Prices: {said_of(asked.prices)}.")
    return said
