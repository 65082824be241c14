"""Placements of jobs: the partition's nodes as a tree, nodes that a request allows, and speeds by placement.

`NodeLayout`: nodes and switches of a partition as the tree of GPUs that policies use, and which GPU is on which node.

`fit_nodes`: from the GPUs a policy chose to nodes that the job's own request allows.

`PlacementSpeeds`: how fast jobs run by placement, stated by the job and corrected by observation. Stated: speeds inside
a machine, inside a rack, beyond (`facts.JobDescription`). Observed: the median of the last steps per second of
gangs of one user's model at one level of placement. Two observed levels give their ratio, whatever was stated:

    speed(wide) = speed(tight) · observed(wide) / observed(tight)

One observed level gives the speed there where the job stated the time of a step at full speed. Speeds never rise from
tight to wide, and stay in (0, 1]. Records are the users' own files: what one user's say never changes another's speeds,
one false record among others does not move a median, and a ratio that no placement makes is left out.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stallwise.cluster.job import Job
from stallwise.cluster.speed.base import Shape, Speed
from stallwise.cluster.topology import Cluster, expand, read_slurm
from stallwise.errors import InputError
from stallwise.slurm.facts import FreeResources, SlurmJob, SlurmNode, suffices
from stallwise.slurm.state import JobRow, ObservedSpeed

_SOURCE = "scontrol show topology"


@dataclass(frozen=True, slots=True, eq=False)
class NodeLayout:
    """The GPUs of a partition.

    Numbers of one node's GPUs are consecutive and stand for no particular device: pinning a job to nodes does not
    choose among the GPUs of a node.
    """

    cluster: Cluster
    numbers: Mapping[str, range]
    """GPU numbers by node."""
    node_of: tuple[str, ...]
    """Node by GPU number."""

    def gpus_by_node(self, gpus: Iterable[int]) -> dict[str, int]:
        """Count GPUs per node, in the order of the tree."""
        counts: dict[str, int] = {}
        for gpu in sorted(gpus):
            counts[self.node_of[gpu]] = counts.get(self.node_of[gpu], 0) + 1
        return counts

    def level(self, nodes: Iterable[str]) -> int:
        """Return the level that nodes span: 0 one machine, 1 one rack, …; the number of levels: the cluster."""
        import numpy as np

        firsts = np.array([self.numbers[node][0] for node in nodes if node in self.numbers], dtype=np.int64)
        for level in range(len(self.cluster.levels)):
            if len(np.unique(self.cluster.domain[level][firsts])) <= 1:
                return level
        return len(self.cluster.levels)

    def level_name(self, level: int) -> str:
        """Return machine, rack, …, or cluster."""
        return self.cluster.levels[level] if level < len(self.cluster.levels) else "cluster"

    def domains(self, level: int, first: str) -> list[list[str]]:
        """List the nodes of every domain of a level; that of node `first` comes first."""
        if level >= len(self.cluster.levels):
            return [list(self.numbers)]
        row = self.cluster.domain[level]
        domains: dict[int, list[str]] = {int(row[self.numbers[first][0]]): []}
        for node, gpus in self.numbers.items():
            domains.setdefault(int(row[gpus[0]]), []).append(node)
        return list(domains.values())


def layout_of(nodes: Iterable[SlurmNode], topology: str, partition: str) -> NodeLayout:
    """Return the layout of a partition's nodes. Without switches every node is in one rack."""
    gpus = {node.name: node.gpus for node in nodes if partition in node.partitions and node.gpus > 0}
    if not gpus:
        raise InputError(
            f"Slurm lists no GPU on the nodes of partition {partition!r}. Check the partition, and Gres=gpu:… of the "
            "nodes in slurm.conf.",
            fields=("partition",),
        )
    levels, paths = _paths(topology, list(gpus))
    cluster = Cluster.hosts(levels, [(path, gpus[path[0]]) for path in paths])
    names = [cluster.names[0][domain] for domain in cluster.domain[0]]
    first = {name: number for number, name in reversed(list(enumerate(names)))}
    return NodeLayout(cluster, {name: range(at, at + gpus[name]) for name, at in first.items()}, tuple(names))


def _paths(topology: str, nodes: list[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return levels, and for each node its path up the tree. Nodes under no switch get one of their own."""
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
    """Yield lines as topology.conf has them.

    `show topology` repeats the nodes of a leaf at every switch above it. A block of topology/block counts as a leaf.
    """
    for line in topology.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name = fields.get("SwitchName") or fields.get("BlockName")
        below = "Switches" if fields.get("Switches") else "Nodes"
        if name is not None and expand(fields.get(below, "")):
            yield f"SwitchName={name} {below}={fields[below]}"


_SIMPLE = re.compile(r"[\w.-]+([,&][\w.-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBounds:
    """The nodes, and their CPUs and memory."""

    layout: NodeLayout
    nodes: Mapping[str, SlurmNode]
    free: Mapping[str, FreeResources]
    """CPUs and memory that will be free."""
    wholes: Mapping[str, FreeResources]
    """CPUs and memory of the empty nodes."""


def fit_nodes(
    row: JobRow,
    job: SlurmJob,
    chosen: Mapping[str, int],
    free_gpus: Callable[[], Mapping[str, int]],
    bounds: NodeBounds,
    may_widen: Callable[[int], bool],
) -> dict[str, int] | None:
    """Return GPUs by node: as chosen where that fits the job's request, else the tightest others that do, else None.

    A job that requested GPUs on every node (`--gres`, `--gpus-per-node`) needs whole sets; one that gave a range of
    nodes stays inside it; nodes it names are among its nodes (`--nodelist` names some of them, not all); excluded nodes
    and features are respected; CPUs and memory must be free. Policies know nothing of that: where their choice does not
    fit, other domains as wide are tried, then wider ones, as far as the job's request requires it or its patience has
    ended (`may_widen`). `free_gpus` returns what will be free by node.
    """
    fits = _fits(row, job, chosen) and suffices(job.need, chosen, bounds.free)
    if fits and not (job.excluded or row.required or job.features):
        return dict(chosen)
    layout, allowed = bounds.layout, _allowed(job, bounds.nodes)
    if fits and allowed.issuperset(chosen) and set(row.required) <= set(chosen):
        return dict(chosen)
    usable = _usable(job, free_gpus(), bounds.free)
    first, least = layout.level(chosen), _least_level(row, job, allowed, bounds)
    for level in range(first, len(layout.cluster.levels) + 1):
        if level > max(first, least) and not may_widen(level):
            return None
        for domain in layout.domains(level, next(iter(chosen))):
            placed = _inside(row, job, [node for node in domain if node in allowed], usable, bounds.free)
            if placed is not None:
                return placed
    return None


def _usable(job: SlurmJob, gpus: Mapping[str, int], free: Mapping[str, FreeResources]) -> dict[str, int]:
    """Return GPUs by node that the job could have, for the CPUs and memory there, in multiples of a task's."""
    counts = {node: free[node].max_gpus(job.need, count) for node, count in gpus.items() if node in free}
    return {node: count - count % job.unit for node, count in counts.items()}


def _least_level(row: JobRow, job: SlurmJob, allowed: set[str], bounds: NodeBounds) -> int:
    """Return the tightest level at which its request could be met in an empty cluster."""
    layout = bounds.layout
    whole = _usable(job, {node: len(gpus) for node, gpus in layout.numbers.items()}, bounds.wholes)
    for level in range(len(layout.cluster.levels)):
        for domain in layout.domains(level, next(iter(layout.numbers))):
            if _inside(row, job, [node for node in domain if node in allowed], whole, bounds.wholes) is not None:
                return level
    return len(layout.cluster.levels)


def _inside(
    row: JobRow, job: SlurmJob, nodes: list[str], usable: Mapping[str, int], free: Mapping[str, FreeResources]
) -> dict[str, int] | None:
    """Return a placement on some of these nodes: those it names first, then the freest, as few as possible."""
    each = row.per_node or job.unit
    able = [node for node in nodes if usable.get(node, 0) >= each]
    if not set(row.required) <= set(able):
        return None
    ordered = sorted(able, key=lambda node: (node not in row.required, 0 if row.per_node else -usable[node]))
    fewest, most = _node_range(row, job)
    for count in range(max(fewest, len(row.required)), min(most, len(ordered)) + 1):
        placed = _spread(row.gang, each, ordered[:count], usable, even=row.per_node > 0)
        if placed is not None and suffices(job.need, placed, free):
            return placed
    return None


def _node_range(row: JobRow, job: SlurmJob) -> tuple[int, int]:
    """Return the fewest and most nodes; each has a GPU at least."""
    if row.per_node:
        return -(-row.gang // row.per_node), row.gang // row.per_node
    return row.least_nodes, min(row.most_nodes or row.gang, row.gang // job.unit)


def _fits(row: JobRow, job: SlurmJob, chosen: Mapping[str, int]) -> bool:
    fewest, most = _node_range(row, job)
    if not fewest <= len(chosen) <= most:
        return False
    if row.per_node:
        return set(chosen.values()) == {row.per_node}
    return job.unit == 1 or all(count % job.unit == 0 for count in chosen.values())


def _spread(gang: int, each: int, picked: list[str], usable: Mapping[str, int], *, even: bool) -> dict[str, int] | None:
    """Spread the gang over all these nodes: `each` on every one, then the rest, first nodes first."""
    if sum(each if even else usable[node] for node in picked) < gang or each * len(picked) > gang:
        return None
    placed = dict.fromkeys(picked, each)
    left = gang - each * len(picked)
    for node in picked:
        more = min(left, usable[node] - each)
        placed[node] += more
        left -= more
    return placed


def _allowed(job: SlurmJob, nodes: Mapping[str, SlurmNode]) -> set[str]:
    """Return nodes that the user's request allows. Features joined by other signs than `&` are left to Slurm."""
    allowed = set(nodes) - set(job.excluded)
    if job.features and _SIMPLE.fullmatch(job.features):
        features = set(re.split("[,&]", job.features))
        allowed = {name for name in allowed if features <= nodes[name].features}
    return allowed


_MIN_SPEED = 0.01
_READINGS = 21
"""Readings that count: speeds drift, and old ones must fade."""
_LEAST_RATIO, _GREATEST_RATIO = 0.02, 2.0
"""Of an observed speed to the tightest observed one, or to the stated full speed. One outside is of another job."""


@dataclass(frozen=True, slots=True)
class PlacementSpeeds(Speed):
    """Speeds of jobs from the tightest level outwards; a job without any is never slowed."""

    by_job: Mapping[str, tuple[float, ...]]

    def kind(self, job: Job) -> Hashable:
        """Return what jobs of equal speeds share."""
        return self.by_job.get(job.id, ())

    def rate(self, job: Job, shape: Shape) -> float:
        """Return the speed at the widest level the gang spans."""
        return rate_at(self.by_job.get(job.id, ()), shape.widest())


def rate_at(speeds: Sequence[float], level: int) -> float:
    """Return the speed of a placement at a level; beyond the stated levels it is that of the widest."""
    return speeds[min(level, len(speeds) - 1)] if speeds else 1.0


def corrected_speeds(
    stated: Sequence[float], observed: Mapping[int, float], levels: int, step_s: float | None = None
) -> tuple[float, ...]:
    """Return speeds of `levels` + 1 levels from the stated ones and steps per second observed at some of them."""
    speeds = [rate_at(stated, level) for level in range(levels + 1)]
    observed = {level: steps for level, steps in observed.items() if level <= levels}  # switches may have gone since
    anchor = min(observed, default=None)
    if anchor is None:
        return tuple(stated)
    full = 1 / step_s if step_s is not None else observed[anchor]
    ratios = {level: steps / full for level, steps in observed.items()}
    ratios = {level: ratio for level, ratio in ratios.items() if _LEAST_RATIO <= ratio <= _GREATEST_RATIO}
    for level, ratio in ratios.items():
        speeds[level] = ratio if step_s is not None else speeds[anchor] * ratio
    return _monotone(speeds, set(ratios)) if ratios else tuple(stated)


def _monotone(speeds: list[float], observed: set[int]) -> tuple[float, ...]:
    """Make speeds fall from tight to wide: observed ones stay, stated ones between and beyond them follow."""
    bounded = [min(1.0, max(_MIN_SPEED, speed)) for speed in speeds]
    for level in range(1, len(bounded)):
        if bounded[level] > bounded[level - 1]:
            if level in observed and level - 1 not in observed:
                for tighter in range(level):
                    bounded[tighter] = max(bounded[tighter], bounded[level])
            else:
                bounded[level] = bounded[level - 1]
    return tuple(bounded)


def with_reading(old: ObservedSpeed, steps_per_s: float) -> ObservedSpeed:
    """Return the observed speed with one more reading; the oldest ones are dropped."""
    return replace(old, readings=(*old.readings, steps_per_s)[-_READINGS:])
