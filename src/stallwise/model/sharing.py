"""What sharing gives: caches of nodes as one, and jobs of a node that prepare batches together (CoorDL, VLDB 2021).

Nodes. With caches of c of the dataset on n nodes that never evict and serve each other (`cache.partitioned`), the
bucket is read once and then for 1 - n c of an epoch's reads; c of them are local, the rest goes between the nodes. A
node waits for whichever of the two ways takes longer, they run side by side:

    wait = first + (1 - b/N) max(0, max(m N/F, p N s/B) - N/G)

with the bucket's F objects/s (`bucket.fetch_rate`) and B bytes/s that a node gets from its peers.

Jobs. J jobs on a node take samples at G/s each; the node prepares P/s and reads F/s from storage, all jobs together.
Apart, every job prepares all samples: each gets min(G, P/J, F/(J m_J)), m_J being what a cache leaves that J orders
share (`cache.shared_miss`). Together a sample is prepared and read once, and only copied J times (t_copy s each, on the
same cores): each job gets min(G, 1/(1/P + J t_copy/k), F/m) on k cores.
"""

from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.model.bucket import Epoch, Link, Wait, fetch_rate
from stallwise.model.cache import no_evict_miss, partitioned, shared_miss


def partitioned_misses(cached: float, nodes: int, epochs: int) -> tuple[float, ...]:
    """The part of each epoch's reads that goes to the bucket: all of the first, then what no node has room for."""
    if epochs < 1:
        raise InputError(f"There must be at least one epoch, not {epochs}.")
    return (1.0, *[partitioned(cached, nodes).storage] * (epochs - 1))


def partitioned_wait(epoch: Epoch, link: Link, peer_bytes_per_s: float, *, miss: float, peer: float) -> Wait:
    """The wait of a node of whose reads `miss` go to the bucket and `peer` to other nodes, side by side."""
    rate = fetch_rate(link, epoch.sample_bytes)
    compute_s = epoch.samples / epoch.ready_samples_per_s
    peer_s = peer * epoch.samples * epoch.sample_bytes / peer_bytes_per_s
    first = min(epoch.first_samples, epoch.samples)

    def at(objects_per_s: float) -> tuple[float, float, float]:
        fetch_s = max(miss * epoch.samples / objects_per_s, peer_s)
        lead_s = (link.latency_s if miss > 0 else 0.0) + first / epoch.samples * fetch_s
        return fetch_s, lead_s, lead_s + (1 - first / epoch.samples) * max(0.0, fetch_s - compute_s)

    fetch_s, first_s, wait_s = at(rate.objects_per_s)
    return Wait(
        compute_s=compute_s,
        fetch_s=fetch_s,
        first_s=first_s,
        wait_s=wait_s,
        low_s=at(rate.high)[2],
        high_s=at(rate.low)[2],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast jobs of a node go, in samples/s of each, and how often an epoch reads the dataset from storage."""

    samples_per_s: float
    reads: float


def apart(jobs: int, take_per_s: float, prepare_per_s: float, storage_per_s: float | None, cached: float) -> Pace:
    """Every job prepares all its samples; they share cores, storage and a page cache that holds `cached`."""
    reads = jobs * shared_miss(cached, jobs)
    return Pace(samples_per_s=_least(take_per_s, prepare_per_s / jobs, storage_per_s, reads), reads=reads)


def together(
    jobs: int,
    take_per_s: float,
    prepare_per_s: float,
    storage_per_s: float | None,
    cached: float,
    *,
    copy_s: float = 0.0,
    cores: int = 1,
) -> Pace:
    """Every sample is prepared once for all; each job copies it, which takes `copy_s` of one of `cores`."""
    if jobs < 1 or cores < 1:
        raise InputError(f"There must be at least one job and one core, not {jobs} and {cores}.")
    reads = no_evict_miss(cached)
    prepared = 1 / (1 / prepare_per_s + jobs * copy_s / cores)
    return Pace(samples_per_s=_least(take_per_s, prepared, storage_per_s, reads), reads=reads)


def _least(take_per_s: float, prepare_per_s: float, storage_per_s: float | None, reads: float) -> float:
    """Storage brings `storage_per_s`; each pass of a job needs `reads` of them per sample."""
    fetched = [storage_per_s / reads] if storage_per_s is not None and reads > 0 else []
    return min(take_per_s, prepare_per_s, *fetched)
