"""Nodes and switches of a partition as the tree of GPUs that policies see, and which GPU is on which node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stallwise.cluster.topology import Cluster
from stallwise.cluster.topology_readers import expand, read_slurm
from stallwise.errors import InputError
from stallwise.slurm.facts import SlurmNode

_SOURCE = "scontrol show topology"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The GPUs of a partition. Numbers of one node's GPUs are consecutive and stand for no particular device:
    pinning a job to nodes does not choose among the GPUs of a node."""

    cluster: Cluster
    numbers: Mapping[str, range]
    """GPUs by node."""
    node_of: tuple[str, ...]
    """Node by GPU."""

    def places(self, gpus: Iterable[int]) -> dict[str, int]:
        """GPUs per node, in the order of the tree."""
        found: dict[str, int] = {}
        for gpu in sorted(gpus):
            found[self.node_of[gpu]] = found.get(self.node_of[gpu], 0) + 1
        return found

    def level(self, nodes: Iterable[str]) -> int:
        """How wide a set of nodes is: 0 one machine, 1 one rack, …; the number of levels: the whole cluster."""
        import numpy as np

        firsts = np.array([self.numbers[node][0] for node in nodes if node in self.numbers], dtype=np.int64)
        for level in range(len(self.cluster.levels)):
            if len(np.unique(self.cluster.domain[level][firsts])) <= 1:
                return level
        return len(self.cluster.levels)

    def level_name(self, level: int) -> str:
        """machine, rack, …, cluster."""
        return self.cluster.levels[level] if level < len(self.cluster.levels) else "cluster"

    def domains(self, level: int, first: str) -> list[list[str]]:
        """Nodes of every domain of a level; that of node `first` comes first."""
        if level >= len(self.cluster.levels):
            return [list(self.numbers)]
        row = self.cluster.domain[level]
        found: dict[int, list[str]] = {int(row[self.numbers[first][0]]): []}
        for node, gpus in self.numbers.items():
            found.setdefault(int(row[gpus[0]]), []).append(node)
        return list(found.values())


def layout_of(nodes: Iterable[SlurmNode], topology: str, partition: str) -> Layout:
    """The GPUs of the nodes of a partition. Without switches every node is in one rack."""
    gpus = {node.name: node.gpus for node in nodes if partition in node.partitions and node.gpus > 0}
    if not gpus:
        raise InputError(
            f"No node of partition {partition!r} has a GPU as far as Slurm knows. Check --partition, and Gres=gpu:… of "
            "the nodes in slurm.conf."
        )
    levels, paths = _paths(topology, list(gpus))
    cluster = Cluster.hosts(levels, [(path, gpus[path[0]]) for path in paths])
    names = [cluster.names[0][domain] for domain in cluster.domain[0]]
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    return Layout(cluster, {name: range(at, at + gpus[name]) for name, at in first.items()}, tuple(names))


def _paths(topology: str, nodes: list[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Levels, and for each node its way out. Nodes under no switch get one of their own."""
    content = "\n".join(_leaves(topology))
    if not content:
        return ("machine", "rack"), [(node, "all") for node in nodes]
    tree = read_slurm(content, _SOURCE, 1)
    paths = {
        tree.names[0][tree.domain[0][i]]: tuple(
            tree.names[level][row[i]] for level, row in enumerate(tree.domain)
        )
        for i in range(tree.gpus)
    }  # fmt: skip
    beyond = len(tree.levels) - 1
    return tree.levels, [paths.get(node, (node, *(f"none-{node}",) * beyond)) for node in nodes]


def _leaves(topology: str) -> Iterable[str]:
    """Lines as topology.conf has them: `show topology` repeats the nodes of a leaf at every switch above it. A block of
    topology/block counts as a leaf."""
    for line in topology.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = fields.get("SwitchName") or fields.get("BlockName")
        below = "Switches" if fields.get("Switches") else "Nodes"
        if name is not None and expand(fields.get(below, "")):
            yield f"SwitchName={name} {below}={fields[below]}"
