"""A scheduling policy of one's own: `stallwise simulate TRACE --cluster … --policy fifo,examples/my_policy.py`.

Small jobs first, so that many are served soon; a job that has waited for six hours goes before all others and keeps its
GPUs until it is done, so that large ones are served at all. `waited_s` is 0 as soon as it runs, so the policy remembers
who was owed. docs/simulate.md says what a policy is given and what it may declare.
"""

PATIENCE_S = 6 * 3600


class SmallFirst:
    """Fewest GPUs first, then the first to arrive; waiting too long comes before everything."""

    preemptive = True  # jobs further down the list give way to jobs further up
    interval_s = 600  # six hours pass between events, too

    def __init__(self):
        self.owed = set()

    def decide(self, view):
        """Return the jobs in order of priority: called whenever a job waits and something has changed."""
        self.owed.update(job.id for job in view.jobs if job.waited_s >= PATIENCE_S)
        return sorted(view.jobs, key=self.rank)

    def rank(self, job):
        """Return what jobs are sorted by, smaller first."""
        if job.id in self.owed:
            return 0, 0, job.arrival_s
        return 1, job.gpus, job.arrival_s
