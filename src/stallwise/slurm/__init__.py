"""The policies of `cluster/` on a real Slurm, from outside: held jobs are pinned to nodes and released.

facts, commands            jobs and nodes as Slurm reports them; its programs and their JSON
_placement, observation    nodes as a tree of GPUs and speeds by placement; speeds read from run records
state, reconciliation      what is kept on disk, and how it is brought to agree with what Slurm reports
_plan, actions             one decision, as nodes that Slurm can be given, with reasons; carried out
controller                 all of it, again and again
snapshot, metrics          the queue as a file, metrics for Prometheus
submission                 jobs that describe what a spread placement costs them
"""
