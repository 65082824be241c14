"""CPUs and memory: what a job needs of each node beside its GPUs, and what is free there.

Policies place GPUs. Slurm also gives out CPUs, and memory where it is told to (`CR_Core_Memory` and the like), and lets
a job that is pinned to a node without them wait there for ever. So a choice counts only where these are free:

    CPUs on a node with g GPUs      max(1, --mincpus, --cpus-per-task, g · --cpus-per-gpu)
    CPUs on all of them together    at least what the job asks for in all
    memory on a node                --mem, or --mem-per-cpu · CPUs, or --mem-per-gpu · g; said none: all of the node's
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job asks for beside GPUs."""

    cpus: int = 1
    """In all."""
    cpus_per_node: int = 1
    cpus_per_gpu: int = 0
    memory_mb: float = 0.0
    """On each node; 0: not said."""
    memory_mb_per_cpu: float = 0.0
    memory_mb_per_gpu: float = 0.0
    whole_nodes: bool = False
    """`--exclusive`: nobody else may be there."""

    def cpus_with(self, gpus: int) -> int:
        """On a node where it has so many GPUs."""
        return max(1, self.cpus_per_node, self.cpus_per_gpu * gpus)

    def memory_mb_with(self, gpus: int, cpus: float, whole_mb: float) -> float:
        """Likewise."""
        said = max(self.memory_mb, self.memory_mb_per_cpu * cpus, self.memory_mb_per_gpu * gpus)
        return said or whole_mb


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """What is free on a node."""

    cpus: float = math.inf
    memory_mb: float = math.inf
    """Infinite where Slurm does not give memory out."""
    whole_mb: float = 0.0
    """All the memory it has."""
    whole_cpus: float = math.inf
    empty: bool = True
    """No job is there."""

    def holds(self, need: Need, gpus: int) -> bool:
        """Whether a job can have so many GPUs here."""
        cpus = need.cpus_with(gpus)
        if cpus > self.cpus or (need.whole_nodes and not self.empty):
            return False
        return math.isinf(self.memory_mb) or need.memory_mb_with(gpus, cpus, self.whole_mb) <= self.memory_mb

    def most(self, need: Need, free: int) -> int:
        """GPUs a job can have here of those that are free."""
        return next((gpus for gpus in range(free, 0, -1) if self.holds(need, gpus)), 0)


def suffices(need: Need, placed: Mapping[str, int], spares: Mapping[str, Spare]) -> bool:
    """Whether every node has what the job needs there, and all together what it needs in all."""
    if not all(spares[node].holds(need, gpus) for node, gpus in placed.items()):
        return False
    return sum(spares[node].cpus for node in placed) >= need.cpus


def after_start(need: Need, placed: Mapping[str, int], spares: Mapping[str, Spare]) -> dict[str, Spare]:
    """The nodes of a job once it has started there."""
    return {node: _changed(spares[node], need, placed, node, -1) for node in placed if node in spares}


def after_stop(
    need: Need, placed: Mapping[str, int], spares: Mapping[str, Spare], others: Collection[str] = ()
) -> dict[str, Spare]:
    """The nodes of a job once it has left; on `others` more jobs are known to stay.

    Slurm may have given it more than it asked for: then this is too little. A node is empty again where all its CPUs
    are free, or where the job was alone.
    """
    return {node: _left(spares[node], need, placed, node, node in others) for node in placed if node in spares}


def _left(spare: Spare, need: Need, placed: Mapping[str, int], node: str, shared: bool) -> Spare:
    after = _changed(spare, need, placed, node, +1)
    if need.whole_nodes and not shared:
        memory = spare.memory_mb if math.isinf(spare.memory_mb) else spare.whole_mb
        return replace(after, cpus=max(after.cpus, spare.whole_cpus), memory_mb=memory, empty=True)
    return replace(after, empty=not shared and (spare.empty or after.cpus >= spare.whole_cpus))


def _changed(spare: Spare, need: Need, placed: Mapping[str, int], node: str, sign: int) -> Spare:
    cpus = max(need.cpus_with(placed[node]), math.ceil(need.cpus / len(placed)))
    memory = need.memory_mb_with(placed[node], cpus, spare.whole_mb)
    if need.whole_nodes and sign < 0:
        return replace(spare, cpus=0, memory_mb=min(0.0, spare.memory_mb), empty=False)
    return replace(
        spare,
        cpus=max(0, spare.cpus + sign * cpus),
        memory_mb=min(max(0.0, spare.memory_mb + sign * memory), max(spare.whole_mb, spare.memory_mb)),
        empty=spare.empty and sign > 0,
    )
