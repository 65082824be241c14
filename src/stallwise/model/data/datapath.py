"""The data path as rates: storage delivers (F), CPUs prepare (P), the cache gives (C), the GPU takes (G).

A pipeline runs at the rate of its slowest stage: speed = min(F, P, G) (Mohan et al., *Analyzing and Mitigating Data
Stalls in DNN Training*, VLDB 2021). Loader workers prepare batches side by side, each alone with its batch, so w of
them deliver one every (prepare + blocked) / w seconds.

`taken_every_s` follows single batches. torch hands batch i to worker i mod w, keeps w·depth of them under way, and
gives them out in order. With t_i the time batch i takes, and c the time the loop needs for one:

    requested_i = 0 for i < w·depth, else taken_(i - w·depth)
    done_i      = max(requested_i, done_(i - w)) + t_i
    taken_i     = max(done_i, taken_(i-1) + c)

On average this is max(c, t / w) (`step_with_workers`); what it adds is the cost of uneven batches, which a deeper queue
or one more worker removes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderWork:
    """Work of a loader for the batches of one step: seconds of preparing and of being blocked, summed over batches."""

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


def fetch_fraction(work: LoaderWork, consume_s: float) -> float:
    """Fraction of a data stall that is due to storage, 0 to 1; the rest is preparation.

    DS-Analyzer's order of questions. Prep stall: what would be left if every read were instant, the excess of
    preparation over what the step takes anyway (`consume_s`). Fetch stall: what the blocked time adds to that. With
    no worker the two simply follow each other. Where neither exceeds the step on average and the stall comes from
    unevenness, it is divided in proportion to the work.
    """
    hidden_s = consume_s if work.workers else 0.0
    prep_s = max(0.0, work.prepare_period_s - hidden_s)
    whole_s = max(0.0, work.period_s - hidden_s)
    if whole_s > 0.05 * work.period_s:
        return (whole_s - prep_s) / whole_s
    work_s = work.prepare_s + work.blocked_s
    return work.blocked_s / work_s if work_s > 0 else 0.0


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


_ROUNDS = 24
_MOST = 4096


def taken_every_s(batches_s: Sequence[float], consume_s: float, workers: int, depth: int = 2) -> float:
    """Mean seconds between two batches in steady state; without workers loading and consuming take turns."""
    if not batches_s:
        return consume_s
    if workers == 0:
        return consume_s + sum(batches_s) / len(batches_s)
    queue = workers * max(1, depth)
    # Whole passes over the measured times, so that none counts more often than another.
    passes = -(-max(_ROUNDS * queue, 256) // len(batches_s))
    count = min(passes * len(batches_s), _MOST)
    warm = min(count // 3, 4 * queue)
    done, taken = [0.0] * count, [0.0] * count
    for i, batch_s in enumerate(itertools.islice(itertools.cycle(batches_s), count)):
        requested_s = taken[i - queue] if i >= queue else 0.0
        free_s = done[i - workers] if i >= workers else 0.0
        done[i] = max(requested_s, free_s) + batch_s
        taken[i] = max(done[i], taken[i - 1] + consume_s if i else 0.0)
    return (taken[-1] - taken[warm]) / (count - 1 - warm)
