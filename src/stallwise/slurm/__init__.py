"""The policies of `cluster/` on a real Slurm, from outside: held jobs are pinned to nodes and released.

commands, wire, facts    what Slurm says, and what it is told
layout, speeds, ask      its nodes as a tree of GPUs; how fast jobs are by placement, said and seen
state, reconcile         what must not be forgotten, and how it is brought to agree with what Slurm says
plan, shape, why         one decision, as nodes that Slurm can be given, with reasons
carry, controller        carried out, again and again
submit, sensitivity      jobs that say what a spread placement costs them
"""
