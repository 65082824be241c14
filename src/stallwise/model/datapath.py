"""The data path as rates: storage delivers (F), processors prepare (P), the cache gives (C), the GPU takes (G).

A pipeline runs at the rate of its slowest stage: speed = min(F, P, G) (Mohan et al., *Analyzing and Mitigating Data
Stalls in DNN Training*, VLDB 2021). Loader workers prepare batches side by side, each alone with its batch, so w of
them deliver one every (prepare + blocked) / w seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWork:
    """What the batches of one step cost their loader: seconds of work and of being blocked, summed over batches."""

    prepare_s: float  # on a core or waiting for one
    blocked_s: float  # waiting for storage
    workers: int  # 0 where the training process loads its own data

    @property
    def prepare_period_s(self) -> float:
        """Seconds per step that preparation alone would allow."""
        return self.prepare_s / max(1, self.workers)

    @property
    def period_s(self) -> float:
        """Seconds per step that the loader as a whole allows."""
        return (self.prepare_s + self.blocked_s) / max(1, self.workers)


def fetch_part(work: LoaderWork, consume_s: float) -> float:
    """The part of a data stall that storage is to blame for, 0 to 1; the rest is preparation.

    DS-Analyzer's order of questions. Prep stall: what would be left if every read were instant, the excess of
    preparation over what the step takes anyway (`consume_s`). Fetch stall: what the blocked time adds to that. With
    no worker the two simply follow each other. Where neither exceeds the step on average and the stall comes from
    unevenness, it is shared in proportion to the work.
    """
    hidden_s = consume_s if work.workers else 0.0
    prep_s = max(0.0, work.prepare_period_s - hidden_s)
    whole_s = max(0.0, work.period_s - hidden_s)
    if whole_s > 0.05 * work.period_s:
        return (whole_s - prep_s) / whole_s
    return work.blocked_s / (work.prepare_s + work.blocked_s) if work.period_s > 0 else 0.0


def step_with_workers(work: LoaderWork, consume_s: float, workers: int, free_cores: int) -> float:
    """The step time with another number of workers: the slower of consuming and delivering.

    Blocked time overlaps freely, preparation needs a core each. Without a worker, loading and consuming take turns.
    """
    if workers == 0:
        return consume_s + work.prepare_s + work.blocked_s
    prepare_s = work.prepare_s / min(workers, free_cores)
    whole_s = (work.prepare_s + work.blocked_s) / workers
    return max(consume_s, prepare_s, whole_s)


def speed(fetch: float | None, prepare: float | None, ingest: float) -> float:
    """min(F, P, G) in samples/s; a rate that is unknown does not bind."""
    return min(rate for rate in (fetch, prepare, ingest) if rate is not None)


def prep_stall(prepare: float, ingest: float) -> float:
    """The part of an epoch lost to preparation when nothing has to be fetched: 1 - min(P, G)/G."""
    return 1 - min(prepare, ingest) / ingest


def fetch_stall(fetch: float, prepare: float, ingest: float) -> float:
    """The part of an epoch lost to storage beyond that: 1 - F/min(P, G) where F is the smaller."""
    return max(0.0, 1 - fetch / min(prepare, ingest))


def enough_cores(rates: Mapping[int, float], share: float = 0.98) -> int:
    """The fewest cores that reach `share` of the best rate measured: the knee of a curve that levels off."""
    best = max(rates.values())
    return min(cores for cores, rate in rates.items() if rate >= share * best)


def staging_bytes(batch_bytes: float, jobs: int, batches_per_job: int = 2) -> float:
    """Memory for batches prepared once for several jobs: each job makes one while another of its is being used up."""
    return jobs * batches_per_job * batch_bytes
