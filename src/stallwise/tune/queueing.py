"""A DataLoader as a pipeline: when batches are taken, given how long each takes to prepare.

torch hands batch i to worker i mod w, keeps w·depth of them under way, and gives them out in order. So with t_i the
time batch i takes, and c the time the loop needs for one:

    asked_i = 0 for i < w·depth, else taken_(i - w·depth)
    done_i  = max(asked_i, done_(i - w)) + t_i
    taken_i = max(done_i, taken_(i-1) + c)

In the mean this is max(c, t / w) (`model.datapath.step_with_workers`); what it adds is what uneven batches cost, which
is what a deeper queue or one worker more removes.
"""

import itertools
from collections.abc import Sequence

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
        asked_s = taken[i - queue] if i >= queue else 0.0
        free_s = done[i - workers] if i >= workers else 0.0
        done[i] = max(asked_s, free_s) + batch_s
        taken[i] = max(done[i], taken[i - 1] + consume_s if i else 0.0)
    return (taken[-1] - taken[warm]) / (count - 1 - warm)
