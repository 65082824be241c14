"""Profiles of PipeDream (msr-fiddle/pipedream, `graph.txt`): a layer graph with its edges, measured on one GPU.

Node line: `node7 -- Conv2d(…) -- forward_compute_time=1.3, backward_compute_time=2.7, activation_size=…,
parameter_size=…`, milliseconds and bytes. Edge line: a tab, then `node6 -- node7`. The forward time of an `Input` node
is the time to get a batch.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.numbers import number, text_of
from stallwise.workload.layers import Layer, LayerTrace

_NODE = re.compile(
    r"^(?P<name>\S+) -- (?P<operator>.+) -- forward_compute_time=(?P<forward>[^,]+), "
    r"backward_compute_time=(?P<backward>[^,]+), activation_size=.+, parameter_size=(?P<parameters>\S+)$"
)
_EDGE = re.compile(r"^\t(\S+) -- (\S+)$")


@dataclass(frozen=True, slots=True)
class PipedreamProfile:
    """The layers in an order their edges allow, and those edges as indices of layers (inputs left out)."""

    trace: LayerTrace
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Node:
    operator: str
    forward_s: float
    backward_s: float
    parameter_bytes: int


def looks_like_pipedream(text: str) -> bool:
    """Whether the first line is a node."""
    return bool(_NODE.match(text.partition("\n")[0]))


def read_pipedream(path: Path) -> PipedreamProfile:
    """Layers ordered by node number as far as the edges allow: that is the order in which they were called."""
    nodes, edges = _parse(path)
    order = _ordered(nodes, edges, path)
    inputs = {name for name in order if nodes[name].operator.startswith("Input")}
    places = {name: i for i, name in enumerate(name for name in order if name not in inputs)}
    layers = tuple(
        Layer(
            name=f"{name} {nodes[name].operator.partition('(')[0]}",
            forward_s=nodes[name].forward_s,
            backward_s=nodes[name].backward_s,
            gradient_bytes=nodes[name].parameter_bytes,
        )
        for name in places
    )
    trace = LayerTrace(
        layers=layers, source=str(path), read_s=sum(nodes[name].forward_s for name in sorted(inputs, key=_number))
    )
    kept = ((places[a], places[b]) for a, b in edges if a in places and b in places)
    return PipedreamProfile(trace, tuple(sorted(kept)))


def _parse(path: Path) -> tuple[dict[str, _Node], list[tuple[str, str]]]:
    nodes: dict[str, _Node] = {}
    edges: list[tuple[str, str]] = []
    for count, line in enumerate(text_of(path).splitlines(), 1):
        where = f"{path}, line {count}"
        if node := _NODE.match(line):
            if node["name"] in nodes:
                raise InputError(f"{where}: {node['name']} was described before.")
            nodes[node["name"]] = _node(node, where)
        elif edge := _EDGE.match(line):
            edges.append((edge[1], edge[2]))
        elif line.strip():
            raise InputError(f"{where} is neither a node nor an edge of a PipeDream profile.")
    for end in (end for edge in edges for end in edge):
        if end not in nodes:
            raise InputError(f"{path} has an edge to {end}, which it does not describe.")
    return nodes, edges


def _node(found: re.Match[str], where: str) -> _Node:
    return _Node(
        found["operator"],
        number(found["forward"], "the forward time", where) * 1e-3,
        number(found["backward"], "the backward time", where) * 1e-3,
        round(number(found["parameters"], "the parameter size", where)),
    )


def _ordered(nodes: Iterable[str], edges: list[tuple[str, str]], path: Path) -> list[str]:
    """Smallest number first among the nodes whose predecessors are all placed."""
    waiting = dict.fromkeys(nodes, 0)
    following: dict[str, list[str]] = defaultdict(list)
    for tail, head in edges:
        following[tail].append(head)
        waiting[head] += 1
    free = [(_number(name), name) for name, count in waiting.items() if not count]
    heapq.heapify(free)
    order = []
    while free:
        _, name = heapq.heappop(free)
        order.append(name)
        for head in following[name]:
            waiting[head] -= 1
            if not waiting[head]:
                heapq.heappush(free, (_number(head), head))
    if len(order) < len(waiting):
        stuck = sorted((name for name in waiting if waiting[name]), key=_number)
        raise InputError(
            f"{path} has a cycle through {', '.join(stuck[:3])}; layers that wait for each other never run."
        )
    return order


def _number(name: str) -> int:
    digits = "".join(c for c in name if c.isdigit())
    return int(digits) if digits else 0
