"""Least remaining service first, in rounds: the order of Ada-SRSF, and the plainest of rules."""

import numpy as np

from stallwise.cluster.rounds.queue import Choice, Queue, first_fit


class ShortestService:
    """By remaining work times GPUs, on the quickest kind there is room on."""

    def choose(self, queue: Queue) -> list[Choice]:
        """Who fits, in order."""
        jobs = queue.active
        order = jobs[np.argsort(queue.left[jobs] * queue.gang[jobs], kind="stable")]
        return first_fit(queue, [(int(j), int(k)) for j in order for k in np.argsort(-queue.rate[j], kind="stable")])

    def ran(self, job: int, kind: int, seconds: float) -> None:
        """Nothing is counted."""
