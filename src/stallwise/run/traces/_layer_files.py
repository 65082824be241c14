"""Layer traces of other tools as `LayerTrace`: B-Caffe, DreamDDP, PipeDream and cluster-sim.

B-Caffe (shyhuai/B-Caffe, the authors' own logs for MG-WFBP). A row ends in
`[param_id, elements, backward_us, comm_us(, merged_us)]`, microseconds and float32 elements, in forward order. A layer
owns two rows, weight and bias, which repeat its one backward time. A file may hold several blocks (a warm-up, then the
run), each starting at id 0; the last one counts. With five fields the fourth was measured in the un-merged benchmark
iteration, the fifth during the run, where 0 means sent together with a neighbour.

DreamDDP (trl730109/DreamDDP). Backward and all-reduce per module, in seconds, forward order: either a pair of JSON maps
`…bp.json` and `…comm.json` (module to seconds; with LoRA only adapters are exchanged), or the CSV
`layer,backward_s,comm_s`. Neither holds forward times nor sizes. The JSON writes NaN or infinity for what was not
timed; that counts as zero, and the trace's `times` says how often.

PipeDream (msr-fiddle/pipedream, `graph.txt`). A layer graph with its edges, measured on one GPU. Node line:
`node7 -- Conv2d(…) -- forward_compute_time=1.3, backward_compute_time=2.7, activation_size=…, parameter_size=…`,
milliseconds and bytes. Edge line: a tab, then `node6 -- node7`. The forward time of an `Input` node is the time
to get a batch.

cluster-sim (aakash-sharma/cluster-sim, the Dally simulator; ASTRA-sim workloads) as CSV. Nanoseconds of compute per
phase (forward, gradient of the input, gradient of the weights) and the bytes all-reduced per layer, in forward order.
The batch stands in the file name (`resnet50_b512.csv`). A file may be shorter than the network it describes; nothing in
it says so.
"""

import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stallwise.errors import InputError
from stallwise.inputs import bounded_nesting
from stallwise.run.traces.inputs import number, rows_of, text_of
from stallwise.workload.layers import Layer, LayerTrace

_ROW = re.compile(r"\[\s*(\d+\s*(?:,[^,\[\]]+){3,4})\]\s*$")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class BcaffeRow:
    """One parameter tensor of a B-Caffe log, with its times in seconds."""

    bytes: int
    backward_s: float
    benchmark_s: float
    run_s: float | None


def looks_like_bcaffe(text: str) -> bool:
    """Whether the first line that is not empty ends in a row."""
    return bool(_ROW.search(text.lstrip().partition("\n")[0]))


def bcaffe_rows(path: Path) -> list[BcaffeRow]:
    """The tensors of the last block, in forward order."""
    block: list[BcaffeRow] = []
    for count, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        match = _ROW.search(line)
        if not match:
            raise InputError(f"{path}, line {count} is no B-Caffe row `[id, elements, backward_us, comm_us]`.")
        number_in_block, row = _bcaffe_row(match[1].split(","), f"{path}, line {count}")
        if number_in_block == 0:
            block = []
        if number_in_block != len(block):
            raise InputError(f"{path}, line {count}: parameter {len(block)} is missing; is the log complete?")
        block.append(row)
    if not any(row.backward_s for row in block):
        raise InputError(f"{path} holds only warm-up rows without times.")
    return block


def _bcaffe_row(fields: list[str], where: str) -> tuple[int, BcaffeRow]:
    names = ("the parameter id", "the element count", "the backward time", "the exchange time", "the merged time")
    values = [number(field.strip(), name, where) for field, name in zip(fields, names, strict=False)]
    micro = [value * 1e-6 for value in values[2:]]
    return int(values[0]), BcaffeRow(
        int(values[1]) * _FLOAT_BYTES, micro[0], micro[1], micro[2] if len(micro) > 2 else None
    )


def read_bcaffe(path: Path, *, exchange: Literal["benchmark", "run"] = "benchmark") -> LayerTrace:
    """Layers of a B-Caffe log; forward times are not in it and are taken as half of backward, as its authors do."""
    rows = bcaffe_rows(path)
    if len(rows) % 2:
        raise InputError(f"{path} has {len(rows)} rows; weight and bias should come in pairs. Is the log complete?")
    layers = []
    for i in range(0, len(rows), 2):
        weight, bias = rows[i], rows[i + 1]
        if weight.backward_s != bias.backward_s:
            raise InputError(f"{path}: parameters {i} and {i + 1} have different backward times, so are no layer.")
        layers.append(
            Layer(
                name=f"layer {i // 2 + 1}",
                forward_s=weight.backward_s / 2,
                backward_s=weight.backward_s,
                gradient_bytes=weight.bytes + bias.bytes,
                exchange_s=_exchange_s(weight, exchange, path) + _exchange_s(bias, exchange, path),
            )
        )
    return LayerTrace(
        layers=tuple(layers),
        source=str(path),
        times=f"backward and exchange ({exchange}) measured, forward taken as half of backward",
    )


def _exchange_s(row: BcaffeRow, which: str, path: Path) -> float:
    if which == "benchmark":
        return row.benchmark_s
    if row.run_s is None:
        raise InputError(f"{path} has no fifth field, so no exchange times of the run; take those of the benchmark.")
    return row.run_s


_DREAMDDP_COLUMNS = ("layer", "backward_s", "comm_s")
_DREAMDDP_LACKS = "no forward times and no gradient sizes recorded"


def looks_like_dreamddp(path: Path, text: str) -> bool:
    """A CSV with those columns, or one of a pair of JSON maps."""
    return text.startswith(",".join(_DREAMDDP_COLUMNS)) or path.name.endswith(("bp.json", "comm.json"))


def read_dreamddp(path: Path) -> LayerTrace:
    """Give the CSV, or either file of the JSON pair."""
    return _dreamddp_pair(path) if path.suffix == ".json" else _dreamddp_csv(path)


def _dreamddp_csv(path: Path) -> LayerTrace:
    layers = tuple(
        Layer(
            name=row["layer"],
            forward_s=0.0,
            backward_s=number(row["backward_s"], "backward_s", where),
            gradient_bytes=0,
            exchange_s=number(row["comm_s"], "comm_s", where),
        )
        for where, row in rows_of(path, _DREAMDDP_COLUMNS)
    )
    return LayerTrace(layers=layers, source=str(path), times=f"backward and exchange measured; {_DREAMDDP_LACKS}")


def _dreamddp_pair(path: Path) -> LayerTrace:
    stem = path.name.removesuffix("bp.json").removesuffix("comm.json")
    if stem == path.name:
        raise InputError(f"{path} is no DreamDDP file; their names end in bp.json and comm.json.")
    backward, untimed = _dreamddp_times(path.with_name(f"{stem}bp.json"))
    exchanged, unsent = _dreamddp_times(path.with_name(f"{stem}comm.json"))
    strangers = exchanged.keys() - backward.keys()
    if strangers:
        raise InputError(f"{path}: {min(strangers)} is exchanged but has no backward time; do the two files belong?")
    layers = tuple(
        Layer(name=name, forward_s=0.0, backward_s=seconds, gradient_bytes=0, exchange_s=exchanged.get(name, 0.0))
        for name, seconds in backward.items()
    )
    unmeasured = f"; {untimed + unsent} times that were NaN or infinite count as zero" if untimed + unsent else ""
    return LayerTrace(
        layers=layers,
        source=str(path.with_name(stem.rstrip("_."))),
        times=f"backward and exchange measured; {_DREAMDDP_LACKS}{unmeasured}",
    )


def _dreamddp_times(path: Path) -> tuple[dict[str, float], int]:
    """Seconds by module, and how many were not finite."""
    try:
        with bounded_nesting(path, "a DreamDDP profile"):
            document = json.loads(text_of(path))
    except ValueError as reason:
        raise InputError(f"{path} is no JSON: {reason}.") from None
    if not isinstance(document, dict) or not document:
        raise InputError(f"{path} is no map of modules to seconds.")
    times, missing = {}, 0
    for name, value in document.items():
        if isinstance(value, float) and not math.isfinite(value):
            missing += 1
            value = 0.0
        times[name] = number(value, name, str(path))
    return times, missing


_PIPEDREAM_NODE = re.compile(
    r"^(?P<name>\S+) -- (?P<operator>.+) -- forward_compute_time=(?P<forward>[^,]+), "
    r"backward_compute_time=(?P<backward>[^,]+), activation_size=.+, parameter_size=(?P<parameters>\S+)$"
)
_PIPEDREAM_EDGE = re.compile(r"^\t(\S+) -- (\S+)$")


@dataclass(frozen=True, slots=True)
class PipedreamProfile:
    """The layers in an order their edges allow, and those edges as indices of layers (inputs left out)."""

    trace: LayerTrace
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _PipedreamNode:
    operator: str
    forward_s: float
    backward_s: float
    parameter_bytes: int


def looks_like_pipedream(text: str) -> bool:
    """Whether the first line is a node."""
    return bool(_PIPEDREAM_NODE.match(text.partition("\n")[0]))


def read_pipedream(path: Path) -> PipedreamProfile:
    """Layers ordered by node number as far as the edges allow: that is the order in which they were called."""
    nodes, edges = _parse_pipedream(path)
    order = _topological_order(nodes, edges, path)
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
        layers=layers, source=str(path), read_s=sum(nodes[name].forward_s for name in sorted(inputs, key=_node_number))
    )
    kept = ((places[a], places[b]) for a, b in edges if a in places and b in places)
    return PipedreamProfile(trace, tuple(sorted(kept)))


def _parse_pipedream(path: Path) -> tuple[dict[str, _PipedreamNode], list[tuple[str, str]]]:
    nodes: dict[str, _PipedreamNode] = {}
    edges: list[tuple[str, str]] = []
    for count, line in enumerate(text_of(path).splitlines(), 1):
        where = f"{path}, line {count}"
        if node := _PIPEDREAM_NODE.match(line):
            if node["name"] in nodes:
                raise InputError(f"{where}: {node['name']} was described before.")
            nodes[node["name"]] = _pipedream_node(node, where)
        elif edge := _PIPEDREAM_EDGE.match(line):
            edges.append((edge[1], edge[2]))
        elif line.strip():
            raise InputError(f"{where} is neither a node nor an edge of a PipeDream profile.")
    for end in (end for edge in edges for end in edge):
        if end not in nodes:
            raise InputError(f"{path} has an edge to {end}, which it does not describe.")
    return nodes, edges


def _pipedream_node(match: re.Match[str], where: str) -> _PipedreamNode:
    return _PipedreamNode(
        match["operator"],
        number(match["forward"], "the forward time", where) * 1e-3,
        number(match["backward"], "the backward time", where) * 1e-3,
        round(number(match["parameters"], "the parameter size", where)),
    )


def _topological_order(nodes: Iterable[str], edges: list[tuple[str, str]], path: Path) -> list[str]:
    """Smallest number first among the nodes whose predecessors are all placed."""
    waiting = dict.fromkeys(nodes, 0)
    following: dict[str, list[str]] = defaultdict(list)
    for tail, head in edges:
        following[tail].append(head)
        waiting[head] += 1
    free = [(_node_number(name), name) for name, count in waiting.items() if not count]
    heapq.heapify(free)
    order = []
    while free:
        _, name = heapq.heappop(free)
        order.append(name)
        for head in following[name]:
            waiting[head] -= 1
            if not waiting[head]:
                heapq.heappush(free, (_node_number(head), head))
    if len(order) < len(waiting):
        stuck = sorted((name for name in waiting if waiting[name]), key=_node_number)
        raise InputError(
            f"{path} has a cycle through {', '.join(stuck[:3])}; layers that wait for each other never run."
        )
    return order


def _node_number(name: str) -> int:
    digits = "".join(c for c in name if c.isdigit())
    return int(digits) if digits else 0


_CLUSTER_SIM_COLUMNS = (
    "layer",
    "fwd_compute_ns",
    "input_grad_compute_ns",
    "weight_grad_compute_ns",
    "weight_grad_collective",
    "weight_grad_bytes",
)


def looks_like_cluster_sim(text: str) -> bool:
    """Whether the header is theirs."""
    return text.startswith(",".join(_CLUSTER_SIM_COLUMNS))


def read_cluster_sim(path: Path) -> LayerTrace:
    """Backward of a layer is the gradient of its input and of its weights."""
    batch = re.search(r"_b(\d+)$", path.stem)
    return LayerTrace(
        layers=tuple(_cluster_sim_layer(row, where) for where, row in rows_of(path, _CLUSTER_SIM_COLUMNS)),
        source=str(path),
        samples=int(batch[1]) if batch else None,
    )


def _cluster_sim_layer(row: dict[str, str], where: str) -> Layer:
    if row["weight_grad_collective"] not in ("ALLREDUCE", "NONE"):
        raise InputError(f"{where}: collective {row['weight_grad_collective']!r} is not known here, only ALLREDUCE.")
    seconds = {
        name: number(row[name], name, where) * 1e-9
        for name in ("fwd_compute_ns", "input_grad_compute_ns", "weight_grad_compute_ns")
    }
    size = number(row["weight_grad_bytes"], "weight_grad_bytes", where)
    return Layer(
        name=row["layer"],
        forward_s=seconds["fwd_compute_ns"],
        backward_s=seconds["input_grad_compute_ns"] + seconds["weight_grad_compute_ns"],
        gradient_bytes=int(size) if row["weight_grad_collective"] == "ALLREDUCE" else 0,
    )
