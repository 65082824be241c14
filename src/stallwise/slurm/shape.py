"""From the GPUs a policy chose to nodes that a job's own request allows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stallwise.slurm.facts import SlurmJob, SlurmNode
from stallwise.slurm.layout import Layout
from stallwise.slurm.room import Spare, suffices
from stallwise.slurm.state import Row

_SIMPLE = re.compile(r"[\w.-]+([,&][\w.-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the nodes are and have."""

    layout: Layout
    nodes: Mapping[str, SlurmNode]
    spares: Mapping[str, Spare]
    """CPUs and memory that will be free."""
    wholes: Mapping[str, Spare]
    """Likewise in an empty cluster."""


def fitted(
    row: Row,
    job: SlurmJob,
    chosen: Mapping[str, int],
    rooms: Callable[[], Mapping[str, int]],
    bounds: Bounds,
    may_widen: Callable[[int], bool],
) -> dict[str, int] | None:
    """GPUs by node for the job: as chosen where that fits its request, else the tightest others that do, else None.

    A job that asked for GPUs on every node (`--gres`, `--gpus-per-node`) needs whole sets; one that gave a range of
    nodes stays inside it; nodes it names are among its nodes (`--nodelist` names the least, not the most); excluded
    nodes and features are kept to; CPUs and memory must be there. Policies know nothing of that: where their choice
    does not fit, other domains as wide are tried, then wider ones, as far as the job's own words force it to or its
    patience has ended (`may_widen`). `rooms` tells what will be free by node.
    """
    good = _fits(row, job, chosen) and suffices(job.need, chosen, bounds.spares)
    if good and not (job.excluded or row.required or job.features):
        return dict(chosen)
    layout, allowed = bounds.layout, _allowed(job, bounds.nodes)
    if good and allowed.issuperset(chosen) and set(row.required) <= set(chosen):
        return dict(chosen)
    room = _usable(job, rooms(), bounds.spares)
    first, least = layout.level(chosen), _least_level(row, job, allowed, bounds)
    for level in range(first, len(layout.cluster.levels) + 1):
        if level > max(first, least) and not may_widen(level):
            return None
        for domain in layout.domains(level, next(iter(chosen))):
            found = _inside(row, job, [node for node in domain if node in allowed], room, bounds.spares)
            if found is not None:
                return found
    return None


def _usable(job: SlurmJob, free: Mapping[str, int], spares: Mapping[str, Spare]) -> dict[str, int]:
    """GPUs by node that the job could have, for the CPUs and the memory there, in multiples of what a task has."""
    most = {node: spares[node].most(job.need, count) for node, count in free.items() if node in spares}
    return {node: count - count % job.unit for node, count in most.items()}


def _least_level(row: Row, job: SlurmJob, allowed: set[str], bounds: Bounds) -> int:
    """The tightest level at which its words could be met in an empty cluster."""
    layout = bounds.layout
    whole = _usable(job, {node: len(gpus) for node, gpus in layout.numbers.items()}, bounds.wholes)
    for level in range(len(layout.cluster.levels)):
        for domain in layout.domains(level, next(iter(layout.numbers))):
            if _inside(row, job, [node for node in domain if node in allowed], whole, bounds.wholes) is not None:
                return level
    return len(layout.cluster.levels)


def _inside(
    row: Row, job: SlurmJob, around: list[str], room: Mapping[str, int], spares: Mapping[str, Spare]
) -> dict[str, int] | None:
    """A placement on some of these nodes: those it names first, then the freest, as few as will do."""
    each = row.per_node or job.unit
    able = [node for node in around if room.get(node, 0) >= each]
    if not set(row.required) <= set(able):
        return None
    ordered = sorted(able, key=lambda node: (node not in row.required, 0 if row.per_node else -room[node]))
    fewest, most = _node_range(row, job)
    for count in range(max(fewest, len(row.required)), min(most, len(ordered)) + 1):
        placed = _spread(row.gang, each, ordered[:count], room, even=row.per_node > 0)
        if placed is not None and suffices(job.need, placed, spares):
            return placed
    return None


def _node_range(row: Row, job: SlurmJob) -> tuple[int, int]:
    """Fewest and most nodes; each has a GPU at least."""
    if row.per_node:
        return -(-row.gang // row.per_node), row.gang // row.per_node
    return row.least_nodes, min(row.most_nodes or row.gang, row.gang // job.unit)


def _fits(row: Row, job: SlurmJob, chosen: Mapping[str, int]) -> bool:
    fewest, most = _node_range(row, job)
    if not fewest <= len(chosen) <= most:
        return False
    if row.per_node:
        return set(chosen.values()) == {row.per_node}
    return job.unit == 1 or all(count % job.unit == 0 for count in chosen.values())


def _spread(gang: int, each: int, picked: list[str], room: Mapping[str, int], *, even: bool) -> dict[str, int] | None:
    """The gang over all these nodes: so many on each, then what is left in the same multiples, first come first."""
    if sum(each if even else room[node] for node in picked) < gang or each * len(picked) > gang:
        return None
    placed = dict.fromkeys(picked, each)
    left = gang - each * len(picked)
    for node in picked:
        more = min(left, room[node] - each)
        placed[node] += more
        left -= more
    return placed


def _allowed(job: SlurmJob, nodes: Mapping[str, SlurmNode]) -> set[str]:
    """Nodes the user's own words allow. Features joined by other signs than `&` are left to Slurm to judge."""
    found = set(nodes) - set(job.excluded)
    if job.features and _SIMPLE.fullmatch(job.features):
        wanted = set(re.split("[,&]", job.features))
        found = {name for name in found if wanted <= nodes[name].features}
    return found
