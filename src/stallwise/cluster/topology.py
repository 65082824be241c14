"""The GPUs of a cluster as a tree of any depth, kept as arrays, and the files and words that describe one.

`domain[level, gpu]` is the domain a GPU belongs to; levels go from the tightest (slot, machine) to the widest (rack,
block, core). The whole cluster is the root above the last level and has no row. GPUs are numbered along the tree, so
the GPUs of every domain are consecutive.

`parse_cluster` reads

racks=2,machines=8,gpus=8     counts per parent
kinds=v100:2x4+p100:4x4       machines x GPUs of each kind
topology.conf                 Slurm's switches or blocks
hosts.csv                     a host and its switches per row (Alibaba Lingjun 2023: ip, DSW, PSW, ASW)
nodes.csv                     Alibaba's `sn,…,gpu,model`, Tiresias' `num_switch,…`, Helios' `,num`
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError, UnknownNameError
from stallwise.inputs import bounded_rows, read_text

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """The domains (machine, rack, …) that each GPU belongs to."""

    levels: tuple[str, ...]
    """Kinds of domains from the tightest to the widest: `("slot", "machine", "rack")`."""
    domain: Ids
    """[level, gpu]"""
    names: tuple[tuple[str, ...], ...]
    """[level][domain]"""
    kinds: tuple[str, ...] = ()
    """Model of each GPU (`v100`); empty where all are alike."""

    @property
    def gpus(self) -> int:
        return int(self.domain.shape[1])

    def size(self, level: int) -> int:
        """Number of domains of a level; one level above the last there is the whole cluster."""
        return len(self.names[level]) if level < len(self.levels) else 1

    def largest(self, level: int) -> int:
        """Number of GPUs of the largest domain of a level."""
        return _largest(self, level) if level < len(self.levels) else self.gpus

    def level(self, name: str) -> int:
        """The number of a level by its name; the level above the last where there is none of that name."""
        return self.levels.index(name) if name in self.levels else len(self.levels)

    @property
    def machine(self) -> int:
        """The level of machines; the widest where none is called so."""
        return min(self.level("machine"), max(len(self.levels) - 1, 0))

    def spans(self, gpus: npt.NDArray[np.integer[Any]]) -> tuple[int, ...]:
        """Number of domains of each level that a set of GPUs touches."""
        return tuple(len(np.unique(row[gpus])) for row in self.domain)

    @classmethod
    def counts(cls, *, gpus: int, machines: int = 1, racks: int = 1, blocks: int = 1, slots: int = 1) -> Self:
        """Make an even cluster from counts per parent: `gpus` per machine, `machines` per rack, `racks` per block.

        `slots` splits the GPUs of a machine. Slots and blocks make a level only where there is more than one.
        """
        for name, count in (
            ("gpus", gpus),
            ("machines", machines),
            ("racks", racks),
            ("blocks", blocks),
            ("slots", slots),
        ):
            if count < 1:
                raise InputError(f"A cluster with {name}={count} is not possible; every count is at least 1.")
        if gpus % slots:
            raise InputError(f"{gpus} GPUs do not divide evenly over {slots} slots of a machine.")
        number = np.arange(gpus * machines * racks * blocks)
        sizes = {"slot": gpus // slots, "machine": gpus, "rack": gpus * machines, "block": gpus * machines * racks}
        levels = [name for name in sizes if (name != "slot" or slots > 1) and (name != "block" or blocks > 1)]
        rows = [number // sizes[name] for name in levels]
        names = tuple(tuple(f"{name}{i}" for i in range(row[-1] + 1)) for name, row in zip(levels, rows, strict=True))
        return cls(tuple(levels), np.array(rows, dtype=np.int32), names)

    @classmethod
    def tree(cls, levels: Sequence[str], paths: Sequence[Sequence[str]]) -> Self:
        """Make a cluster from one path of names per GPU, tightest domain first; names are local to their parent.

        GPUs are numbered in the order of their widest domain, then the next, as first met.
        """
        if not paths:
            raise InputError("A cluster needs at least one GPU; none was given.")
        for path in paths:
            if len(path) != len(levels):
                raise InputError(f"The path {'/'.join(path)} has {len(path)} parts for {len(levels)} levels.")
        order: list[dict[tuple[str, ...], int]] = [{} for _ in levels]
        keys = [[tuple(path[level:]) for level in range(len(levels))] for path in paths]
        for key in keys:
            for level, part in enumerate(key):
                order[level].setdefault(part, len(order[level]))
        ordered = sorted(
            keys, key=lambda key: tuple(order[level][key[level]] for level in reversed(range(len(levels))))
        )
        return cls._numbered(tuple(levels), ordered)

    @classmethod
    def _numbered(cls, levels: tuple[str, ...], ordered: Sequence[Sequence[tuple[str, ...]]]) -> Self:
        domain = np.zeros((len(levels), len(ordered)), dtype=np.int32)
        names: list[tuple[str, ...]] = []
        for level in range(len(levels)):
            numbers: dict[tuple[str, ...], int] = {}
            for gpu, key in enumerate(ordered):
                domain[level, gpu] = numbers.setdefault(key[level], len(numbers))
            names.append(tuple(part[0] for part in numbers))
        return cls(levels, domain, tuple(names))

    @classmethod
    def hosts(cls, levels: Sequence[str], hosts: Sequence[tuple[Sequence[str], int]]) -> Self:
        """Make a cluster from machines: the path of each (machine first, then its switch, …) and its number of GPUs."""
        return cls.tree(levels, [tuple(path) for path, gpus in hosts for _ in range(gpus)])


@lru_cache(maxsize=256)
def _largest(cluster: Cluster, level: int) -> int:
    """Count once per cluster and level: policies that rank placements ask for it for every kind of job."""
    return int(np.bincount(cluster.domain[level]).max())


_LEVELS = ("blocks", "racks", "machines", "slots", "gpus")
_EXAMPLE = "racks=2,machines=8,gpus=8 (2 racks of 8 machines of 8 GPUs) or a topology file"
_MOST_GPUS, _DIGITS = 4_000_000, 18
# Names of switch levels above the machine, from the tightest out; deeper trees are numbered on.
_ABOVE = ("rack", "block", "core")


def parse_cluster(text: str, gpus_per_machine: int = 8) -> Cluster:
    """Parse the description of a cluster: counts where there is a `=`, else a file."""
    if text.startswith("kinds=") and not Path(text).exists():
        return read_kinds(text)
    if "=" in text and not Path(text).exists():
        return read_counts(text)
    path = Path(text)
    try:
        content = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The cluster {text!r} cannot be read ({reason}). Give {_EXAMPLE}.") from None
    if re.search(r"^\s*(SwitchName|BlockName)\s*=", content, re.IGNORECASE | re.MULTILINE):
        return read_slurm(content, path.name, gpus_per_machine)
    return read_hosts(content, path.name, gpus_per_machine)


def read_counts(text: str) -> Cluster:
    """Parse `racks=2,machines=8,gpus=8`: each count is per parent and 1 by default; gpus is required."""
    counts: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        level = next((plural for plural in _LEVELS if name.lower() in (plural, plural[:-1])), None)
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
    """Parse `kinds=v100:2x4+p100:4x4`: machines x GPUs of each kind, all under one switch."""
    hosts: list[tuple[tuple[str, str], int]] = []
    kinds: list[str] = []
    for part in text.removeprefix("kinds=").split("+"):
        match = re.fullmatch(r"\s*([A-Za-z][\w.-]*):(\d+)x(\d+)\s*", part)
        if match is None or int(match[2]) < 1 or int(match[3]) < 1:
            raise InputError(f"{part!r} in the cluster {text!r} is not a kind like v100:2x4 (2 machines of 4 GPUs).")
        name, machines, gpus = match[1], int(match[2]), int(match[3])
        if len(kinds) + machines * gpus > _MOST_GPUS:
            raise InputError(f"The cluster {text!r} is too large; up to {_MOST_GPUS:,} GPUs are simulated.")
        if name in kinds:
            raise InputError(f"The cluster {text!r} says {name} twice.")
        hosts += [((f"{name}-{number}", "rack0"), gpus) for number in range(machines)]
        kinds += [name] * (machines * gpus)
    return replace(Cluster.hosts(("machine", "rack"), hosts), kinds=tuple(kinds))


def read_slurm(content: str, source: str, gpus_per_machine: int) -> Cluster:
    """Read a topology.conf: switches with Nodes or Switches (topology/tree), or blocks with Nodes (topology/block).

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
    """Yield the `key=value` words of each line, without comments, continued lines joined."""
    pending, began = "", 0
    for number, raw in enumerate(content.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        began = began if pending else number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        line, pending = pending + line, ""
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
    return _cluster_of(list(paths.values()), gpus)


def _upwards(switch: str, parent: Mapping[str, str], source: str) -> list[str]:
    path = [switch]
    while path[-1] in parent:
        if parent[path[-1]] in path:
            raise InputError(f"{source}: switch {switch} is above itself ({' > '.join(path)}). Check the file.")
        path.append(parent[path[-1]])
    return path


def _cluster_of(paths: Sequence[Sequence[str]], gpus: int | Sequence[int]) -> Cluster:
    """Make a cluster from paths of names. A top level with one domain is dropped: the cluster itself is the root."""
    depth = len(paths[0])
    while depth > 2 and len({tuple(path[depth - 1 :]) for path in paths}) == 1:
        depth -= 1
    levels = ("machine", *(_ABOVE[i] if i < len(_ABOVE) else f"level{i + 2}" for i in range(depth - 1)))
    counts = [gpus] * len(paths) if isinstance(gpus, int) else gpus
    if sum(counts) > _MOST_GPUS:
        raise InputError(f"The cluster has {sum(counts):,} GPUs; up to {_MOST_GPUS:,} are simulated.")
    return Cluster.hosts(levels, [(tuple(path[:depth]), count) for path, count in zip(paths, counts, strict=True)])


def expand(text: str) -> list[str]:
    """Expand Slurm's host lists: `n[1-3,7],gpu[01-02]` is n1 n2 n3 n7 gpu01 gpu02."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]+|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        names = [pieces[0]]
        for inside, after in zip(pieces[1::2], pieces[2::2], strict=True):
            numbers = list(islice(_numbers(inside, text), _MOST_GPUS + 1))
            if len(names) * len(numbers) + len(hosts) > _MOST_GPUS:
                raise InputError(f"The host list {text[:80]!r} has more than {_MOST_GPUS:,} hosts.")
            names = [f"{start}{number}{after}" for start in names for number in numbers]
        hosts += names
    return hosts


def _numbers(inside: str, text: str) -> Iterator[str]:
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if max(len(low), len(high)) > _DIGITS:
            raise InputError(f"The host list {text[:80]!r} has a number of more than {_DIGITS} digits.")
        if not low.isdecimal() or (dash and (not high.isdecimal() or int(high) < int(low))):
            raise InputError(f"The host list {text!r} has {piece!r} between brackets; a number or a range is needed.")
        if int(high or low) - int(low) >= _MOST_GPUS:
            raise InputError(f"The host list {text!r} has more than {_MOST_GPUS:,} hosts in {piece!r}.")
        for number in range(int(low), int(high or low) + 1):
            yield str(number).zfill(len(low))


def read_hosts(content: str, source: str, gpus_per_machine: int) -> Cluster:
    """Read a table with a header: hosts and their switches, or nodes with their number of GPUs."""
    reader = csv.reader(io.StringIO(content), skipinitialspace=True)
    try:
        rows = [row for row in bounded_rows(reader, source) if any(row)]
    except csv.Error as error:
        raise InputError(f"{source}, line {reader.line_num}: {error}. Check the file.") from None
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
        return _cluster_of([(row[at[0]], "all") for row in hosts], [_count(row[at[1]], source) for row in hosts])
    return _switches(columns, hosts, source, gpus_per_machine)


def _switches(columns: Sequence[str], hosts: Sequence[Sequence[str]], source: str, gpus: int) -> Cluster:
    """Read Lingjun's `ip,DSW,PSW,ASW`, or `host,rack,block,…` from the tightest out, with `gpus` where it is a column.

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
    lines: dict[str, int] = {}
    for number, row in enumerate(hosts, 2):
        if lines.setdefault(row[0], number) != number:
            raise InputError(f"{source}, line {number}: host {row[0]} is on line {lines[row[0]]} already.")
    paths = [tuple(row[place] for place in places) for row in hosts]
    at = next((place for place, name in enumerate(columns) if name.lower() == "gpus"), None)
    if at is not None:
        return _cluster_of(paths, [_count(row[at], source) for row in hosts])
    return _cluster_of(paths, gpus)


def _tiresias(row: Mapping[str, str], source: str) -> Cluster:
    switches, nodes, gpus = (
        _count(row[name], source) for name in ("num_switch", "num_node_p_switch", "num_gpu_p_node")
    )
    return Cluster.counts(racks=switches, machines=nodes, gpus=gpus)


def _virtual_clusters(hosts: Sequence[Sequence[str]], source: str, gpus: int) -> Cluster:
    """Read Helios' virtual clusters, each with its number of nodes and taken as a rack."""
    counts = [_count(number, source) for _, number in hosts]
    if sum(counts) > _MOST_GPUS:
        raise InputError(f"{source} has {sum(counts):,} nodes; up to {_MOST_GPUS:,} GPUs are simulated.")
    paths = [(f"{name}-{i}", name) for (name, _), count in zip(hosts, counts, strict=True) for i in range(count)]
    return _cluster_of(paths, gpus)


def _count(text: str, source: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
        raise InputError(f"{source}: {text[:40]!r} is not a count from 1 on. Correct it.")
    return int(text)
