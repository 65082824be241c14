"""Clusters as people have them: counts, Slurm's topology.conf, tables of hosts.

racks=2,machines=8,gpus=8     2 racks of 8 machines of 8 GPUs (counts are per parent)
kinds=v100:2x4+p100:4x4       2 machines of 4 GPUs called v100 and 4 of 4 called p100, in one rack
topology.conf                 Slurm's tree or block topology; `gpus` per node is given apart
topo.csv                      a row per host: its name, then switches (Alibaba Lingjun 2023: ip, DSW, PSW, ASW)
nodes.csv                     Alibaba's `sn,…,gpu,model`, Tiresias' `num_switch,…`, Helios' `,num`
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, UnknownNameError

__all__ = ["expand", "parse_cluster", "read_counts", "read_hosts", "read_kinds", "read_slurm"]

_LEVELS = ("blocks", "racks", "machines", "slots", "gpus")
_EXAMPLE = "racks=2,machines=8,gpus=8 (2 racks of 8 machines of 8 GPUs) or a topology file"
_MOST_GPUS = 4_000_000
# Names of switch levels above the machine, from the tightest out; deeper trees are numbered on.
_ABOVE = ("rack", "block", "core")


def parse_cluster(text: str, gpus_per_machine: int = 8) -> Cluster:
    """Counts where there is a `=`, else a file."""
    if text.startswith("kinds=") and not Path(text).exists():
        return read_kinds(text)
    if "=" in text and not Path(text).exists():
        return read_counts(text)
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The cluster {text!r} cannot be read ({reason}). Give {_EXAMPLE}.") from None
    if re.search(r"^\s*(SwitchName|BlockName)\s*=", content, re.IGNORECASE | re.MULTILINE):
        return read_slurm(content, path.name, gpus_per_machine)
    return read_hosts(content, path.name, gpus_per_machine)


def read_counts(text: str) -> Cluster:
    """`racks=2,machines=8,gpus=8`: each count is per parent; what is not said is 1, but gpus must be."""
    counts: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        level = next((known for known in _LEVELS if name.lower() in (known, known[:-1])), None)
        if level is None:
            raise UnknownNameError(f"level of a cluster ({', '.join(_LEVELS)})", name, _LEVELS)
        if not equals or not number.isdecimal() or int(number) < 1:
            raise InputError(f"{part!r} in the cluster {text!r} is not a count like {level}=8.")
        if level in counts:
            raise InputError(f"The cluster {text!r} says {level} twice.")
        counts[level] = int(number)
    if "gpus" not in counts:
        raise InputError(f"The cluster {text!r} says no gpus. Give {_EXAMPLE}.")
    total = math.prod(count for level, count in counts.items() if level != "slots")
    if total > _MOST_GPUS:
        raise InputError(f"The cluster {text!r} has {total:,} GPUs; up to {_MOST_GPUS:,} are simulated.")
    return Cluster.counts(**counts)


def read_kinds(text: str) -> Cluster:
    """`kinds=v100:2x4+p100:4x4`: machines x GPUs of each kind, all under one switch."""
    hosts: list[tuple[tuple[str, str], int]] = []
    kinds: list[str] = []
    for part in text.removeprefix("kinds=").split("+"):
        found = re.fullmatch(r"\s*([A-Za-z][\w.-]*):(\d+)x(\d+)\s*", part)
        if found is None or int(found[2]) < 1 or int(found[3]) < 1:
            raise InputError(f"{part!r} in the cluster {text!r} is not a kind like v100:2x4 (2 machines of 4 GPUs).")
        name, machines, gpus = found[1], int(found[2]), int(found[3])
        if len(kinds) + machines * gpus > _MOST_GPUS:
            raise InputError(f"The cluster {text!r} is too large; up to {_MOST_GPUS:,} GPUs are simulated.")
        if name in kinds:
            raise InputError(f"The cluster {text!r} says {name} twice.")
        hosts += [((f"{name}-{number}", "rack0"), gpus) for number in range(machines)]
        kinds += [name] * (machines * gpus)
    return replace(Cluster.hosts(("machine", "rack"), hosts), kinds=tuple(kinds))


def read_slurm(content: str, source: str, gpus_per_machine: int) -> Cluster:
    """`SwitchName=… Nodes=…` and `SwitchName=… Switches=…` (topology/tree), or `BlockName=… Nodes=…` (topology/block).

    Each node's path goes from its leaf switch up to the root. Leaves at different depths are not one tree of levels
    and are refused. LinkSpeed is read over, as Slurm itself does.
    """
    parent: dict[str, str] = {}
    leaf: dict[str, str] = {}
    switches: list[str] = []
    for number, fields in _slurm_lines(content, source):
        name = fields.get("switchname") or fields.get("blockname")
        if name is None:  # BlockSizes, and settings of other plugins
            continue
        switches += expand(name)
        for member, owner, what in (("nodes", leaf, "node"), ("switches", parent, "switch")):
            for child in expand(fields.get(member, "")):
                if child in owner:
                    raise InputError(f"{source}, line {number}: {what} {child} is under {owner[child]} already.")
                owner[child] = name
    return _from_leaves(leaf, parent, set(switches), source, gpus_per_machine)


def _slurm_lines(content: str, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines as `key=value` words, comments away, continued lines joined."""
    held, began = "", 0
    for number, raw in enumerate(content.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        began = began if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        line, held = held + line, ""
        words = [word.partition("=") for word in line.split()]
        for key, equals, _ in words:
            if not equals:
                raise InputError(f"{source}, line {began}: {key!r} is not of the form Name=value. Check the file.")
        if words:
            yield began, {key.lower(): value for key, _, value in words}


def _from_leaves(
    leaf: Mapping[str, str], parent: Mapping[str, str], switches: set[str], source: str, gpus: int
) -> Cluster:
    if not leaf:
        raise InputError(f"{source} names no Nodes under any switch. Check the file.")
    unknown = sorted(set(parent) - switches)
    if unknown:
        raise InputError(f"{source} puts switch {unknown[0]} under {parent[unknown[0]]} but never defines it.")
    paths = {node: (node, *_upwards(switch, parent, source)) for node, switch in leaf.items()}
    depths = {len(path) for path in paths.values()}
    if len(depths) > 1:
        deep = max(paths.values(), key=len)
        shallow = min(paths.values(), key=len)
        raise InputError(
            f"{source}: {shallow[0]} is {len(shallow) - 1} switches below the top and {deep[0]} is {len(deep) - 1}; "
            "every node must be as deep. Add the switch that is missing."
        )
    return _made(list(paths.values()), gpus)


def _upwards(switch: str, parent: Mapping[str, str], source: str) -> list[str]:
    path = [switch]
    while path[-1] in parent:
        if parent[path[-1]] in path:
            raise InputError(f"{source}: switch {switch} is above itself ({' > '.join(path)}). Check the file.")
        path.append(parent[path[-1]])
    return path


def _made(paths: Sequence[Sequence[str]], gpus: int | Sequence[int]) -> Cluster:
    """Levels that hold everything say nothing and are left away: the cluster itself is the root."""
    depth = len(paths[0])
    while depth > 2 and len({tuple(path[depth - 1 :]) for path in paths}) == 1:
        depth -= 1
    levels = ("machine", *(_ABOVE[i] if i < len(_ABOVE) else f"level{i + 2}" for i in range(depth - 1)))
    counts = [gpus] * len(paths) if isinstance(gpus, int) else gpus
    if sum(counts) > _MOST_GPUS:
        raise InputError(f"The cluster has {sum(counts):,} GPUs; up to {_MOST_GPUS:,} are simulated.")
    return Cluster.hosts(levels, [(tuple(path[:depth]), count) for path, count in zip(paths, counts, strict=True)])


def expand(text: str) -> list[str]:
    """Slurm's host lists: `n[1-3,7],gpu[01-02]` is n1 n2 n3 n7 gpu01 gpu02."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]+|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        made = [pieces[0]]
        for inside, after in zip(pieces[1::2], pieces[2::2], strict=True):
            made = [f"{start}{number}{after}" for start in made for number in _numbers(inside, text)]
        found += made
    return found


def _numbers(inside: str, text: str) -> Iterator[str]:
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if not low.isdecimal() or (dash and (not high.isdecimal() or int(high) < int(low))):
            raise InputError(f"The host list {text!r} has {piece!r} between brackets; a number or a range is needed.")
        if int(high or low) - int(low) >= _MOST_GPUS:
            raise InputError(f"The host list {text!r} has more than {_MOST_GPUS:,} hosts in {piece!r}.")
        for number in range(int(low), int(high or low) + 1):
            yield str(number).zfill(len(low))


def read_hosts(content: str, source: str, gpus_per_machine: int) -> Cluster:
    """A table with a header: hosts and their switches, or nodes with their number of GPUs."""
    rows = [row for row in csv.reader(io.StringIO(content), skipinitialspace=True) if any(row)]
    if len(rows) < 2:
        raise InputError(f"{source} has no host. Give {_EXAMPLE}.")
    columns, *hosts = ([field.strip() for field in row] for row in rows)
    for number, row in enumerate(hosts, 2):
        if len(row) != len(columns) or (not all(row[: len(columns)]) and columns[0] != ""):
            raise InputError(f"{source}, line {number}: a field is missing ({', '.join(columns)}). Correct the line.")
    if {"num_switch", "num_node_p_switch", "num_gpu_p_node"} <= set(columns):
        return _tiresias(dict(zip(columns, hosts[0], strict=True)), source)
    if columns == ["", "num"]:
        return _virtual_clusters(hosts, source, gpus_per_machine)
    if {"sn", "gpu"} <= set(columns):
        at = columns.index("sn"), columns.index("gpu")
        return _made([(row[at[0]], "all") for row in hosts], [_count(row[at[1]], source) for row in hosts])
    return _switches(columns, hosts, source, gpus_per_machine)


def _switches(columns: Sequence[str], hosts: Sequence[Sequence[str]], source: str, gpus: int) -> Cluster:
    """Lingjun's `ip,DSW,PSW,ASW`, or `host,rack,block,…` from the tightest out, with `gpus` where it is a column.

    A switch is known by its whole path: S1 under P8 is not S1 under P10 (Lingjun counts its 48 labels anew in each
    aggregation group; no such group of one label has more than 8 hosts).
    """
    if columns[0].lower() not in ("ip", "host", "node", "machine"):
        raise InputError(
            f"{source} has the columns {', '.join(columns)}, which is no known cluster. A table of hosts starts with "
            "host, then its switches from the tightest out (host,rack,block), and gpus where nodes differ."
        )
    outwards = [name for name in columns[1:] if name.lower() != "gpus"]
    if {"ASW", "PSW", "DSW"} <= set(outwards):
        outwards = ["ASW", "PSW", "DSW"]
    places = [0, *(columns.index(name) for name in outwards)]
    seen: dict[str, int] = {}
    for number, row in enumerate(hosts, 2):
        if seen.setdefault(row[0], number) != number:
            raise InputError(f"{source}, line {number}: host {row[0]} is on line {seen[row[0]]} already.")
    paths = [tuple(row[place] for place in places) for row in hosts]
    at = next((place for place, name in enumerate(columns) if name.lower() == "gpus"), None)
    if at is not None:
        return _made(paths, [_count(row[at], source) for row in hosts])
    return _made(paths, gpus)


def _tiresias(row: Mapping[str, str], source: str) -> Cluster:
    switches, nodes, gpus = (
        _count(row[name], source) for name in ("num_switch", "num_node_p_switch", "num_gpu_p_node")
    )
    return Cluster.counts(racks=switches, machines=nodes, gpus=gpus)


def _virtual_clusters(hosts: Iterable[Sequence[str]], source: str, gpus: int) -> Cluster:
    """Helios' virtual clusters, each with its number of nodes; one stands for a rack."""
    paths = [(f"{name}-{i}", name) for name, number in hosts for i in range(_count(number, source))]
    return _made(paths, gpus)


def _count(text: str, source: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{source}: {text!r} is not a count from 1 on. Correct it.")
    return int(text)
