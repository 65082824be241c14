"""From the GPUs a policy chose to nodes that a job's own request allows."""

import re
from collections.abc import Callable, Mapping

from stallwise.slurm.facts import SlurmJob, SlurmNode
from stallwise.slurm.layout import Layout
from stallwise.slurm.state import Row

_SIMPLE = re.compile(r"[\w.-]+([,&][\w.-]+)*")


def fitted(
    row: Row,
    job: SlurmJob,
    chosen: Mapping[str, int],
    rooms: Callable[[], Mapping[str, int]],
    layout: Layout,
    nodes: Mapping[str, SlurmNode],
    may_widen: Callable[[int], bool],
) -> dict[str, int] | None:
    """GPUs by node for the job: as chosen where that fits its request, else the tightest others that do, else None.

    A job that asked for GPUs on every node (`--gres`, `--gpus-per-node`) needs whole sets; one that gave a range of
    nodes stays inside it; excluded nodes and features are kept to. Policies know nothing of that: where their choice
    does not fit, other domains as wide are tried, then wider ones, as far as the job's own words force it to or its
    patience has ended (`may_widen`). `rooms` tells what will be free by node.
    """
    plain = not (job.excluded or row.required or job.features)
    if plain and _fits(row, chosen):
        return dict(chosen)
    allowed, room = _allowed(row, job, nodes), rooms()
    if _fits(row, chosen) and allowed.issuperset(chosen):
        return dict(chosen)
    first, least = layout.level(chosen), _least_level(row, allowed, layout)
    for level in range(first, len(layout.cluster.levels) + 1):
        if level > max(first, least) and not may_widen(level):
            return None
        for domain in layout.domains(level, next(iter(chosen))):
            found = _inside(row, [node for node in domain if node in allowed and room.get(node, 0) > 0], room)
            if found is not None:
                return found
    return None


def _least_level(row: Row, allowed: set[str], layout: Layout) -> int:
    """The tightest level at which its words could be met in an empty cluster."""
    whole = {node: len(gpus) for node, gpus in layout.numbers.items()}
    for level in range(len(layout.cluster.levels)):
        for domain in layout.domains(level, next(iter(whole))):
            if _inside(row, [node for node in domain if node in allowed], whole) is not None:
                return level
    return len(layout.cluster.levels)


def _inside(row: Row, around: list[str], room: Mapping[str, int]) -> dict[str, int] | None:
    if row.per_node:
        whole = [node for node in around if room[node] >= row.per_node][: row.least_nodes]
        return dict.fromkeys(whole, row.per_node) if len(whole) == row.least_nodes else None
    return _spread(row, around, room)


def _fits(row: Row, chosen: Mapping[str, int]) -> bool:
    if row.per_node:
        return len(chosen) == row.least_nodes and set(chosen.values()) == {row.per_node}
    most = row.most_nodes or len(chosen)
    return row.least_nodes <= len(chosen) <= most


def _spread(row: Row, around: list[str], room: Mapping[str, int]) -> dict[str, int] | None:
    """The freest nodes, as few as hold the gang but no fewer than asked for, at least one GPU on each."""
    freest = sorted(around, key=lambda node: -room[node])
    count = max(row.least_nodes, next((n for n in range(1, len(freest) + 1) if _sum(freest[:n], room) >= row.gang), 0))
    picked = freest[:count]
    if count == 0 or len(picked) < count or count > min(row.most_nodes or row.gang, row.gang):
        return None
    if _sum(picked, room) < row.gang:
        return None
    placed = dict.fromkeys(picked, 1)
    left = row.gang - count
    for node in picked:
        more = min(left, room[node] - 1)
        placed[node] += more
        left -= more
    return placed


def _sum(nodes: list[str], room: Mapping[str, int]) -> int:
    return sum(room[node] for node in nodes)


def _allowed(row: Row, job: SlurmJob, nodes: Mapping[str, SlurmNode]) -> set[str]:
    """Nodes the user's own words allow. Features joined by other signs than `&` are left to Slurm to judge."""
    found = set(nodes) - set(job.excluded)
    if row.required:
        found &= set(row.required)
    if job.features and _SIMPLE.fullmatch(job.features):
        wanted = set(re.split("[,&]", job.features))
        found = {name for name in found if wanted <= nodes[name].features}
    return found
