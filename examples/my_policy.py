"""A scheduling policy of one's own: `stallwise simulate TRACE --cluster … --policy fifo,examples/my_policy.py`.

Small jobs first, so that many are served soon; a job that has waited for six hours goes before all others, so that
large ones are served at all. docs/simulate.md says what a policy is given and what it may declare.
"""

PATIENCE_S = 6 * 3600


class SmallFirst:
    """Fewest GPUs first, then least service so far; waiting too long comes before everything."""

    preemptive = True  # jobs further down the list give way to jobs further up
    lease_s = 1800  # … but everybody keeps its GPUs for half an hour at least

    def decide(self, view):
        """Return the jobs in order of priority: called whenever a job waits and something has changed."""
        return sorted(view.jobs, key=self.rank)

    def rank(self, job):
        """Return what jobs are sorted by, smaller first."""
        if job.waited_s >= PATIENCE_S:
            return 0, job.arrival_s, 0
        return 1, job.gpus, job.attained_gpu_s
