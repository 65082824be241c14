"""Pods and nodes of Alibaba's GPU cluster, 2023 (`openb_pod_list_default.csv`, `openb_node_list_all_node.csv`).

Pods of best effort (BE) and Burstable may be shrunk, latency-sensitive (LS) and Guaranteed ones not. A share of a GPU
is taken as such; shares of one node are pooled, as if a pod could have two halves of different GPUs.
"""

from pathlib import Path

import numpy as np

from stallwise.cluster.deflation.resources import Amounts, Hosts, Machines
from stallwise.cluster.traces.checks import TraceError
from stallwise.cluster.traces.rows import BadRowError, Fields, LeftOut, Problem, Table, seconds
from stallwise.cluster.traces.table import read_table
from stallwise.errors import InputError

PODS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos", "deletion_time", "scheduled_time")
NODES = ("sn", "cpu_milli", "memory_mib", "gpu")
PRIORITY = {"BE": 0.2, "Burstable": 0.6}
"""Of pods that may be shrunk; the trace orders the classes, the numbers are ours."""


def read_pods(path: Path, *, skip_bad: bool = False) -> Machines:
    """Every pod that ran, from scheduled to deleted."""
    table = read_table(path)
    at = {name: table.at(name) for name in PODS}
    rows: list[tuple[float, float, Amounts, str]] = []
    problems: list[Problem] = []
    left_out: dict[str, int] = {}
    for line, fields in table.rows:
        try:
            rows.append(_pod(fields, at, len(table.columns)))
        except BadRowError as bad:
            problems.append(Problem(line, bad.kind, bad.said))
        except LeftOut as reason:
            left_out[str(reason)] = left_out.get(str(reason), 0) + 1
    if problems and not skip_bad:
        raise TraceError(table.source, tuple(problems))
    rows.sort(key=lambda row: row[0])
    notes = [f"{count:,} {reason}: left out." for reason, count in left_out.items()]
    if problems:
        notes.append(f"{len(problems):,} bad lines left out.")
    return _machines(table, rows, tuple(notes))


def _pod(fields: Fields, at: dict[str, int], width: int) -> tuple[float, float, Amounts, str]:
    if len(fields) != width:
        raise BadRowError("another number of fields", f"{len(fields)} fields, expected {width}")
    if not fields[at["scheduled_time"]].strip():
        raise LeftOut("pods that never ran")
    start_s = seconds(fields[at["scheduled_time"]], "scheduled_time")
    end_s = seconds(fields[at["deletion_time"]], "deletion_time")
    if end_s < start_s:
        raise BadRowError("deleted before it was scheduled")
    if end_s == start_s:
        raise LeftOut("pods of 0 s")
    gpus = _count(fields[at["num_gpu"]], "num_gpu")
    size = Amounts(
        cpu_milli=_count(fields[at["cpu_milli"]], "cpu_milli"),
        memory_mib=_count(fields[at["memory_mib"]], "memory_mib"),
        gpu_milli=gpus * _count(fields[at["gpu_milli"]], "gpu_milli") if gpus else 0,
    )
    return start_s, end_s, size, fields[at["qos"]].strip()


def _count(text: str, what: str) -> int:
    if not text.strip().isdigit():
        raise BadRowError(f"{what} is no whole number", f"{what} {text[:40]!r} is no whole number")
    return int(text)


def _machines(table: Table, rows: list[tuple[float, float, Amounts, str]], notes: tuple[str, ...]) -> Machines:
    size = np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, len(Amounts._fields))
    count = len(rows)
    return Machines(
        source=table.source,
        format="Alibaba GPU 2023",
        arrival_s=np.array([row[0] for row in rows]),
        end_s=np.array([row[1] for row in rows]),
        size=size,
        least=np.zeros_like(size),
        low=np.array([row[3] in PRIORITY for row in rows], dtype=bool),
        priority=np.array([PRIORITY.get(row[3], 1.0) for row in rows]),
        series=np.full(count, -1, dtype=np.int64),
        offset=np.zeros(count, dtype=np.int64),
        notes=notes,
    )


def read_nodes(path: Path) -> Hosts:
    """The nodes, in an order in which any evenly spread part of them is like the whole."""
    table = read_table(path)
    cpu, memory, gpu = (table.at(name) for name in NODES[1:])
    try:
        rows = [
            Amounts(cpu_milli=int(f[cpu]), memory_mib=int(f[memory]), gpu_milli=1000 * int(f[gpu]))
            for _, f in table.rows
        ]
    except (ValueError, IndexError) as error:
        raise InputError(f"{path.name} has a node whose {', '.join(NODES[1:])} are no numbers ({error}).") from None
    if not rows:
        raise InputError(f"{path.name} has no node.")
    return Hosts(total=np.array(sorted(rows), dtype=np.int64), name=path.name)
