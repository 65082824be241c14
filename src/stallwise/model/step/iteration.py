"""The graph of one step: from a layer trace, a plan of messages and a way of loading data.

    read ─► take ─► copy ─► forward 1 … L ─► backward L … 1 ─► update ─┐
             ▲                               └► messages ─►────┘       │
             └──────────────────────── next step ◄─────────────────────┘

Each GPU has its own chain of forwards and backwards; a message waits for the backward of its last layer on *all* of
them, messages use the one channel in order, the update waits for the messages that gate it, and the next batch is taken
after the update. GPUs of a machine share its storage and its host link one after the other.

**Timetable.** When each node runs in a step that repeats, and which are critical. In steady state node i of iteration
n begins at v_i + n · T, where T is the period and v an eigenvector of the max-plus system (Baccelli et al.,
*Synchronization and Linearity*, 1992, th. 3.23):

    v_head = max over edges (tail, head, lag) of v_tail + cost_tail - lag · T

The v taken here is that of the critical cycle: the longest ways from one of its nodes. Iterations share one period, so
what reaches over its end (a batch read ahead, an exchange under the next forward pass) goes on at its beginning.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from stallwise.errors import InputError
from stallwise.model.exchange._messages import ExchangePlan, Message
from stallwise.model.step.graph import Graph, GraphDraft, NodeKind, Seconds
from stallwise.model.step.paths import Path, steady_state
from stallwise.workload.layers import LayerTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetup:
    """How batches reach the GPU.

    `workers` loader workers take turns, each `prefetch` batches ahead of the training loop (torch's DataLoader); with 0
    the training process reads its own batches and nothing overlaps. `storage_sharers` and `link_sharers` are the GPUs
    whose reads or copies queue at one disk or host link that is busy with one at a time: then workers do not help.
    """

    workers: int = 1
    prefetch: int = 2
    copy: Literal["inline", "engine", "reader"] = "inline"
    """Copies to the GPU wait with the compute (`inline`), run beside it on a copy engine one batch ahead (`engine`), or
    are made by whoever reads, in turn with reading (`reader`; Caffe's double buffer)."""
    storage_sharers: int = 1
    link_sharers: int = 1

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch", 1), ("storage_sharers", 1), ("link_sharers", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}.")


def rescaled(trace: LayerTrace, *, compute: float = 1.0, data: float = 1.0) -> LayerTrace:
    """Return the trace with compute times, or read and copy times, multiplied (a faster GPU, another batch)."""
    return replace(
        trace,
        layers=tuple(
            replace(layer, forward_s=layer.forward_s * compute, backward_s=layer.backward_s * compute)
            for layer in trace.layers
        ),
        update_s=trace.update_s * compute,
        read_s=trace.read_s * data,
        copy_s=trace.copy_s * data,
    )


def iteration_graph(
    trace: LayerTrace, plan: ExchangePlan, loading: LoaderSetup | None = None, *, gpus: Sequence[float] = (1.0,)
) -> Graph:
    """Build the graph of one step in steady state.

    `gpus` draws several GPUs of one machine, each with its own factor on compute times (a straggler has 1.2). With one,
    it stands for all: what it shares costs as much as all sharers together, which gives the same step for equal GPUs.
    """
    drawing = _Drawing(trace, plan, loading or LoaderSetup(), tuple(gpus))
    drawing.compute()
    drawing.data()
    drawing.messages()
    drawing.updates()
    return drawing.draft.graph()


class _Drawing:
    """Builds one graph; remembers the node of every forward, backward, take, copy and read."""

    def __init__(self, trace: LayerTrace, plan: ExchangePlan, loading: LoaderSetup, gpus: tuple[float, ...]) -> None:
        self.trace, self.plan, self.loading, self.gpus = trace, plan, loading, gpus
        self.draft = GraphDraft()
        self.takes: list[list[int]] = []
        self.points: list[dict[tuple[str, int, int], int]] = []
        self.gating: list[int] = []
        self.waiting: list[int] = []  # the message that waits for the last update, if any
        self.idle: list[int] = []  # reads of a training process without workers
        for name in ("storage_sharers", "link_sharers"):
            sharers = getattr(loading, name)
            if len(gpus) > 1 and sharers not in (1, len(gpus)):
                raise InputError(f"{name} must be 1 or {len(gpus)}, the number of GPUs, not {sharers}.")

    def compute(self) -> None:
        """Take, forward and backward of every pass on every GPU."""
        layers, update_s = self.trace.layers, self._update_by_layer_s()
        for gpu, factor in enumerate(self.gpus):
            resource, points, takes = f"GPU {gpu}", {}, []
            before: int | None = None
            for step in range(self.plan.passes):
                if step and self.plan.updates == "every pass":
                    cost = self.trace.update_s * factor
                    before = self.draft.node(NodeKind.UPDATE, "update", cost, resource, [before])
                before = self.draft.node(NodeKind.TAKE, "take a batch", 0.0, resource, [before])
                takes.append(before)
                for i, layer in enumerate(layers):
                    cost = (layer.forward_s + (0.0 if step else update_s[i])) * factor
                    before = self.draft.node(NodeKind.FORWARD, f"forward {layer.name}", cost, resource, [before])
                    points["forward", step, i] = before
                for i in range(len(layers) - 1, -1, -1):
                    cost = layers[i].backward_s * factor
                    before = self.draft.node(NodeKind.BACKWARD, f"backward {layers[i].name}", cost, resource, [before])
                    points["backward", step, i] = before
            self.points.append(points)
            self.takes.append(takes)

    def _update_by_layer_s(self) -> list[float]:
        """What each layer's own update adds before its first forward, by the bytes it updates; else nothing."""
        layers, total = self.trace.layers, self.trace.gradient_bytes
        if self.plan.updates != "by layer" or not total:
            return [0.0] * len(layers)
        return [self.trace.update_s * layer.gradient_bytes / total for layer in layers]

    def data(self) -> None:
        """Reads and copies; nothing where the trace has neither."""
        if not self.trace.read_s and not self.trace.copy_s:
            return
        reads = [self._reads(gpu) for gpu in range(len(self.gpus))]
        copies = [self._copies(gpu, reads[gpu]) for gpu in range(len(self.gpus))]
        if self.loading.storage_sharers > 1:
            self._queue(reads)
        if self.loading.link_sharers > 1:
            self._queue(copies)
        if not self.loading.workers:
            self.idle = [of_gpu[0] for of_gpu in reads]
            return
        for gpu in range(len(self.gpus)):
            last = copies if self.loading.copy == "reader" else reads
            self._ahead(last[gpu], reads[gpu], self.loading.workers)
            self._ahead(self.takes[gpu], reads[gpu], self.loading.workers * self.loading.prefetch)
            if self.loading.copy == "engine":
                self._ahead(self.takes[gpu], copies[gpu], 1)

    def _reads(self, gpu: int) -> list[int]:
        shared = self.loading.storage_sharers > 1
        factor = self.loading.storage_sharers if len(self.gpus) == 1 else 1
        resource = "storage" if shared else f"loader {gpu}"
        nodes = []
        for step in range(self.plan.passes):
            inline = not self.loading.workers and step > 0
            after = [self.points[gpu]["backward", step - 1, 0]] if inline else []
            cost = self.trace.read_s * factor
            nodes.append(self.draft.node(NodeKind.READ, "read a batch", cost, resource, after))
        return nodes

    def _copies(self, gpu: int, reads: list[int]) -> list[int]:
        shared = self.loading.link_sharers > 1
        factor = self.loading.link_sharers if len(self.gpus) == 1 else 1
        inline = self.loading.copy == "inline" or not self.loading.workers
        nodes = []
        for step, (read, take) in enumerate(zip(reads, self.takes[gpu], strict=True)):
            resource = "host link" if shared else f"copy engine {gpu}"
            cost = self.trace.copy_s * factor
            copy = self.draft.node(NodeKind.COPY, "copy a batch to the GPU", cost, resource, [take if inline else read])
            self.draft.edge(*((read, take) if inline else (copy, take)))
            if inline:
                self.draft.edge(copy, self.points[gpu]["forward", step, 0])
            nodes.append(copy)
        return nodes

    def _ahead(self, tails: list[int], heads: list[int], batches: int) -> None:
        """Batch n of `heads` waits for batch n - `batches` of `tails`; a step has one batch per pass."""
        for step, head in enumerate(heads):
            lag, at = divmod(step - batches, len(tails))
            self.draft.edge(tails[at], head, -lag)

    def _queue(self, nodes: list[list[int]]) -> None:
        """One after the other over all GPUs and passes, and round again."""
        turn = [of_gpu[step] for step in range(self.plan.passes) for of_gpu in nodes]
        for tail, head in pairwise(turn):
            self.draft.edge(tail, head)
        self.draft.edge(turn[-1], turn[0], 1)

    def messages(self) -> None:
        """Add the messages, one after the other on each channel."""
        last: dict[str, int] = {}
        nodes: list[int] = []
        for message in self.plan.messages:
            after = [last.get(message.channel), None if message.follows is None else nodes[message.follows]]
            node = self.draft.node(NodeKind.EXCHANGE, self._label(message), message.seconds, message.channel, after)
            last[message.channel] = node
            nodes.append(node)
            if not self.plan.detached:
                self._tie(message, node)
                self._time(message, node)
        if self.plan.detached and nodes:
            self.draft.edge(nodes[-1], nodes[0], 1)

    def _tie(self, message: Message, node: int) -> None:
        for points in self.points:
            if message.after is not None:
                self.draft.edge(points[message.after[0], message.index, message.after[1]], node)
            elif message.index:
                self.draft.edge(points["backward", message.index - 1, 0], node)
            if message.gates is not None:
                index, lag = (0, 1) if message.next_step else (message.index, 0)
                self.draft.edge(node, points[message.gates[0], index, message.gates[1]], lag)
        if message.after is None and not message.index and not self.waiting:
            self.waiting.append(node)  # the first is enough: the others follow it on the channel
        if message.gates is None:
            self.gating.append(node)

    def _time(self, message: Message, node: int) -> None:
        """Add a timer from the start of backward."""
        if not message.not_before_s:
            return
        begins = [points["forward", message.index, len(self.trace.layers) - 1] for points in self.points]
        wait = self.draft.node(
            NodeKind.WAIT, "wait for the next cycle", message.not_before_s, f"timer of {node}", begins
        )
        self.draft.edge(wait, node)

    def _label(self, message: Message) -> str:
        first, last = (self.trace.layers[i].name for i in message.layers)
        return f"{message.what} {first}" if first == last else f"{message.what} {last} … {first}"

    def updates(self) -> None:
        """Add one update per GPU, and the edges to the next step."""
        last = self.plan.passes - 1
        for gpu in range(len(self.gpus)):
            after = [self.points[gpu]["backward", last, 0], *self.gating]
            whole = self.plan.updates != "by layer" or not self.trace.gradient_bytes
            cost = self.trace.update_s * self.gpus[gpu] if whole else 0.0
            update = self.draft.node(NodeKind.UPDATE, "update", cost, f"GPU {gpu}", after)
            reads = [self.idle[gpu]] if self.idle else []
            for head in (self.takes[gpu][0], *reads, *self.waiting):
                self.draft.edge(update, head, 1)


_LANES = {
    NodeKind.READ: "read",
    NodeKind.COPY: "copy",
    NodeKind.FORWARD: "forward",
    NodeKind.BACKWARD: "backward",
    NodeKind.EXCHANGE: "exchange",
    NodeKind.UPDATE: "update",
}
_EVEN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TimetableSlot:
    """A stretch of one kind of work within the period, in seconds."""

    kind: str
    """`read`, `copy`, `forward`, `backward`, `exchange` or `update`."""
    start_s: float
    end_s: float
    nodes: int
    critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimetable:
    """The timetable of a step from the moment its batch is taken; slots by kind, then by time."""

    step_s: float
    slots: tuple[TimetableSlot, ...]

    def critical_s(self, kind: str) -> float:
        """Seconds of this kind of work on the critical path, per period."""
        return sum(slot.end_s - slot.start_s for slot in self.slots if slot.kind == kind and slot.critical)


def step_timetable(graph: Graph) -> StepTimetable:
    """Compute the timetable of a step in steady state."""
    path = steady_state(graph)
    begins = _begins(graph, path)
    takes = begins[(graph.kind == NodeKind.TAKE) & np.isfinite(begins)]
    begins = begins - (takes.min() if len(takes) else np.nanmin(np.where(np.isfinite(begins), begins, np.nan)))
    on_path = np.zeros(len(graph), dtype=bool)
    on_path[path.nodes] = True
    slots: list[TimetableSlot] = []
    for kind, name in _LANES.items():
        nodes = np.flatnonzero((graph.kind == kind) & (graph.cost_s > 0) & np.isfinite(begins))
        for critical in (False, True):
            pieces = [
                piece
                for node in nodes[on_path[nodes] == critical].tolist()
                for piece in _wrapped(float(begins[node]), float(graph.cost_s[node]), path.period_s)
            ]
            slots += _joined(name, pieces, critical=critical)
    return StepTimetable(step_s=path.period_s, slots=tuple(slots))


def _begins(graph: Graph, path: Path) -> Seconds:
    """Longest ways from a node of the critical cycle, each lag a period less; what it does not reach: -inf."""
    period_s, order = path.period_s, _order(graph)
    begins = [-math.inf] * len(graph)
    begins[int(path.nodes[0])] = 0.0
    cost, start, target = graph.cost_s.tolist(), graph.start.tolist(), graph.target.tolist()
    late = list(zip(graph.late_tail.tolist(), graph.late_head.tolist(), graph.late_lag.tolist(), strict=True))
    moved = True
    # Within an iteration one pass in topological order is enough; no way crosses more lagged edges than there are.
    for _ in range(len(late) + 2):
        for node in order:
            ends = begins[node] + cost[node]
            for at in range(start[node], start[node + 1]):
                begins[target[at]] = max(begins[target[at]], ends)
        moved = False
        for tail, head, lag in late:
            again = begins[tail] + cost[tail] - lag * period_s
            if again > begins[head] + _EVEN * period_s:
                begins[head], moved = again, True
        if not moved:
            break
    return np.array(begins)


def _order(graph: Graph) -> list[int]:
    """Nodes so that edges within the iteration lead forward (Kahn)."""
    start, target = graph.start.tolist(), graph.target.tolist()
    waiting = [0] * len(graph)
    for head in target:
        waiting[head] += 1
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for at in range(start[node], start[node + 1]):
            waiting[target[at]] -= 1
            if not waiting[target[at]]:
                order.append(target[at])
    return order


def _wrapped(start_s: float, cost_s: float, period_s: float) -> Iterator[tuple[float, float]]:
    """The stretch mapped into one period; one longer than the period fills it."""
    if cost_s >= period_s:
        yield 0.0, period_s
        return
    start = start_s % period_s
    if start > period_s * (1 - _EVEN):
        start = 0.0
    end = start + cost_s
    yield start, min(end, period_s)
    if end > period_s * (1 + _EVEN):
        yield 0.0, end - period_s


def _joined(kind: str, pieces: Sequence[tuple[float, float]], *, critical: bool) -> list[TimetableSlot]:
    """Join adjacent stretches into one slot; `nodes` counts them."""
    slots: list[TimetableSlot] = []
    for start_s, end_s in sorted(pieces):
        last = slots[-1] if slots else None
        if last is not None and start_s <= last.end_s * (1 + _EVEN) + 1e-12:
            slots[-1] = TimetableSlot(
                kind=kind,
                start_s=last.start_s,
                end_s=max(last.end_s, end_s),
                nodes=last.nodes + 1,
                critical=critical,
            )
        else:
            slots.append(TimetableSlot(kind=kind, start_s=start_s, end_s=end_s, nodes=1, critical=critical))
    return slots
