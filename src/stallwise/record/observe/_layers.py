"""The *layers* phase: what the job trains and how its step is made up, measured in a few steps of their own.

The first step counts FLOPs and activations (slow, never kept). In the others (batches on the device, no exchange) hooks
take a mark where a module's forward begins and ends, where its backward begins (the gradient of its output exists), and
where a parameter's gradient is complete (post-accumulate hook). Marks are CUDA events on the stream, or the host's
clock on a CPU; nothing is synchronised until the phase is over. Hundreds of marks make a step of many small layers
longer, so steps alternate: one marks gradients and passes only, the next the layers; each figure comes from the lighter
kind that has it. All hooks leave with the phase: every other step is the user's own. What comes out is the input of the
iteration graph and of every prediction, and it needs one process only.

Activation checkpointing runs forward hooks again during backward; those calls are recognised and left out. Under
`torch.compile` hooks either force a recompilation or fire all at the end, so none is installed: sizes and order are
then known, times are not.
"""

import contextlib
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stallwise.record.observe._contained import PhaseObserver
from stallwise.record.observe._features import StepCounter, is_compiled, trained_roots
from stallwise.record.rank._steps import StepClock, TimeMark, elapsed_s
from stallwise.run.manifest import ModelRecord
from stallwise.run.schema import GradientRow, LayerRow, SpanRow
from stallwise.run.writer import RankWriter
from stallwise.sentences import Sentence
from stallwise.workload.layers import plain_name


@dataclass(slots=True)
class ModuleCall:
    """One forward call of one module; `parent` is the watched module it ran inside of."""

    module: int
    begin: TimeMark
    parent: "ModuleCall | None"
    end: TimeMark | None = None


@dataclass(slots=True)
class StepMarks:
    """All time marks of one step."""

    calls: list[ModuleCall] = field(default_factory=list)
    backwards: list[tuple[TimeMark, TimeMark]] = field(default_factory=list)
    backward_begins: list[tuple[int, int, TimeMark]] = field(default_factory=list)  # which backward, module, when
    gradients: dict[int, tuple[int, TimeMark]] = field(default_factory=dict)  # parameter -> which backward, when
    updates: list[tuple[TimeMark, TimeMark]] = field(default_factory=list)
    of_layers: bool = True

    def marks(self) -> Iterable[TimeMark]:
        """Every mark of the step, so that their events can be reused."""
        for call in self.calls:
            yield call.begin
            if call.end is not None:
                yield call.end
        for begin, end in (*self.backwards, *self.updates):
            yield begin
            yield end
        yield from (mark for *_, mark in self.backward_begins)
        yield from (mark for _, mark in self.gradients.values())


@dataclass(frozen=True, slots=True)
class StepPasses:
    """The passes of a step, medians over the phase; None where they could not be told apart."""

    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    micro_batches: int | None
    checkpointed: bool


def total_s(pairs: Iterable[tuple[TimeMark, TimeMark]]) -> float:
    """Time between each pair of marks, added up."""
    return sum(elapsed_s(begin, end) for begin, end in pairs)


def forward_passes(step: StepMarks) -> list[tuple[TimeMark, TimeMark]]:
    """From the first call after one backward to the begin of the next: the forward passes of a step."""
    passes, since_s = [], 0.0
    for begin, end in step.backwards:
        first = next((c.begin for c in step.calls if since_s <= c.begin.wall_s <= begin.wall_s), None)
        if first is not None:
            passes.append((first, begin))
        since_s = end.wall_s
    return passes


def forward_times(step: StepMarks) -> dict[int, tuple[float, float, int]]:
    """Module -> begin of its first call since forward began, its own time (watched children taken out), calls."""
    if not step.calls:
        return {}
    origin = step.calls[0].begin
    own: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for call in step.calls:
        if call.end is None:
            continue
        duration_s = elapsed_s(call.begin, call.end)
        entry = own[call.module]
        if not entry[2]:
            entry[0] = elapsed_s(origin, call.begin)
        entry[1] += duration_s
        entry[2] += 1
        if call.parent is not None:
            own[call.parent.module][1] -= duration_s
    return {number: (start, max(0.0, total), int(calls)) for number, (start, total, calls) in own.items() if calls}


def backward_times(step: StepMarks) -> dict[int, tuple[float, float]]:
    """Module -> begin of its backward since backward began, and its time up to the next module's begin."""
    times: dict[int, tuple[float, float]] = {}
    for which, (begin, end) in enumerate(step.backwards):
        begins = [(number, mark) for at, number, mark in step.backward_begins if at == which]
        for position, (number, mark) in enumerate(begins):
            until = begins[position + 1][1] if position + 1 < len(begins) else end
            start_s, before = elapsed_s(begin, mark), times.get(number)
            duration_s = max(0.0, elapsed_s(mark, until))
            times[number] = (before[0], before[1] + duration_s) if before else (start_s, duration_s)
    return times


class LayerWatch:
    """Hooks on the modules and parameters that the optimizers train, for the duration of a phase."""

    def __init__(self, roots: Sequence[Module], clock: StepClock) -> None:
        self.clock = clock
        self.steps: list[StepMarks] = []  # with marks at every layer
        self.light_steps: list[StepMarks] = []  # with marks at gradients and passes only
        self.recomputed = False
        self.modules, self.names = _watched(roots)
        self.parameters = named_parameters(roots)
        self.output_bytes: dict[int, int] = {}
        self._roots = tuple(roots)
        self._handles: list[Any] = []
        self._step = StepMarks()
        self._stack: list[ModuleCall] = []
        self._in_backward = False
        self._update_began: TimeMark | None = None
        self.unwatched = 0
        self.failure: str | None = None
        """The first error in a hook of ours; from then on nothing is marked."""

    def install(self) -> None:
        """Install the hooks; modules that take none (TorchScript) are counted in `unwatched`."""
        for number, module in enumerate(self.modules):
            try:
                begin = module.register_forward_pre_hook(self._contained(self._forward_begins(number)))
            except RuntimeError:
                self.unwatched += 1
                continue
            self._handles.append(begin)
            end = self._contained(self._forward_ends(number))
            self._handles.append(module.register_forward_hook(end, always_call=True))
        for number, (_, parameter) in enumerate(self.parameters):
            with contextlib.suppress(RuntimeError):
                self._handles.append(_when_complete(parameter, self._contained(self._gradient_ready(number))))
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._timed_backward

    def _contained(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Keep what goes wrong in a hook of ours from the script."""

        def contained(*args: Any) -> None:
            if self.failure is not None:
                return
            try:
                hook(*args)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"

        return contained

    @property
    def marks_per_step(self) -> int:
        """Marks of a step on average: half of the steps mark everything, half gradients only."""
        return len(self.parameters) + 2 * len(self.modules)

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        if torch.autograd.backward == self._timed_backward:
            torch.autograd.backward = self._backward

    def next_step(self, *, kept: bool) -> None:
        """Keep or recycle the marks of the step that ended."""
        ended, self._step, self._stack = self._step, StepMarks(of_layers=not self._step.of_layers), []
        if kept and ended.backwards:
            (self.steps if ended.of_layers else self.light_steps).append(ended)
        else:
            self._recycle(ended)

    def release(self) -> None:
        """Recycle the marks of all kept steps."""
        for step in (*self.steps, *self.light_steps):
            self._recycle(step)
        self.steps.clear()
        self.light_steps.clear()

    def _recycle(self, step: StepMarks) -> None:
        for mark in step.marks():
            self.clock.recycle(mark)

    # ---- hooks ---------------------------------------------------------------------------------------------

    def _forward_begins(self, number: int) -> Callable[..., None]:
        def hook(_module: Module, _inputs: Any) -> None:
            if self._in_backward:
                self.recomputed = True
                return
            if not self._step.of_layers and self._step.calls and not self._begins_pass():
                return
            call = ModuleCall(number, self.clock.mark(), self._stack[-1] if self._stack else None)
            self._stack.append(call)
            self._step.calls.append(call)

        return hook

    def _begins_pass(self) -> bool:
        """Whether a backward has ended since the last marked call: the forward of another micro-batch begins."""
        backwards = self._step.backwards
        return bool(backwards) and self._step.calls[-1].begin.wall_s < backwards[-1][1].wall_s

    def _forward_ends(self, number: int) -> Callable[..., None]:
        def hook(_module: Module, _inputs: Any, output: Any) -> None:
            if self._in_backward or not self._step.of_layers:
                return
            while self._stack and self._stack[-1].module != number:
                self._stack.pop()  # a call that raised and was caught
            if not self._stack:
                return
            self._stack.pop().end = self.clock.mark()
            tensors = list(tensors_in(output))
            self.output_bytes[number] = sum(tensor.nbytes for tensor in tensors)
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self._contained(self._backward_begins(number)))  # type: ignore[no-untyped-call]
                    break

        return hook

    def _backward_begins(self, number: int) -> Callable[[torch.Tensor], None]:
        def hook(_gradient: torch.Tensor) -> None:
            self._step.backward_begins.append((len(self._step.backwards), number, self.clock.mark()))

        return hook

    def _gradient_ready(self, number: int) -> Callable[[torch.Tensor], None]:
        def hook(_parameter: torch.Tensor) -> None:
            self._step.gradients[number] = (len(self._step.backwards), self.clock.mark())

        return hook

    def _timed_backward(self, *args: Any, **kwargs: Any) -> None:
        begin, outer = self.clock.mark(), self._in_backward
        self._in_backward = True
        try:
            self._backward(*args, **kwargs)
        finally:
            self._in_backward = outer
        if not outer:
            self._step.backwards.append((begin, self.clock.mark()))

    def update_begins(self) -> None:
        """Mark the begin of an optimizer step."""
        self._update_began = self.clock.mark()

    def update_ends(self) -> None:
        """Mark the end of an optimizer step."""
        if self._update_began is not None:
            self._step.updates.append((self._update_began, self.clock.mark()))
            self._update_began = None

    # ---- results; only after the device has passed the marks -------------------------------------------------

    def passes(self) -> StepPasses:
        """Forward (up to the begin of backward: the loss is in it), backward and update of a step."""
        steps = self.light_steps or self.steps
        if not steps:
            return StepPasses(None, None, None, None, self.recomputed)
        seen = any(step.calls for step in steps)
        return StepPasses(
            forward_s=statistics.median(total_s(forward_passes(step)) for step in steps) if seen else None,
            backward_s=statistics.median(total_s(step.backwards) for step in steps),
            update_s=statistics.median(total_s(step.updates) for step in steps),
            micro_batches=round(statistics.median(len(step.backwards) for step in steps)),
            checkpointed=self.recomputed,
        )

    def layer_rows(self, rank: int) -> list[LayerRow]:
        """A row per module that was called, in forward order."""
        forward: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
        backward: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for step in self.steps:
            for number, times in forward_times(step).items():
                forward[number].append(times)
            for number, span in backward_times(step).items():
                backward[number].append(span)
        layers = [number for number in forward if not self._only_holds_others(number)]
        forward = {number: forward[number] for number in layers} or forward
        rows: list[LayerRow] = []
        for number in sorted(forward, key=lambda n: statistics.median(start for start, *_ in forward[n])):
            starts, durations, calls = zip(*forward[number], strict=True)
            behind = backward.get(number)
            rows.append(
                LayerRow(
                    rank=rank,
                    layer=len(rows),
                    name=self.names[number],
                    kind=type(self.modules[number]).__name__,
                    calls=round(statistics.median(calls)),
                    forward_start_s=statistics.median(starts),
                    forward_s=statistics.median(durations),
                    backward_start_s=statistics.median(s for s, _ in behind) if behind else None,
                    backward_s=statistics.median(d for _, d in behind) if behind else None,
                    parameter_bytes=sum(p.nbytes for p in self.modules[number].parameters(recurse=False)),
                    output_bytes=self.output_bytes.get(number),
                )
            )
        return rows

    def _only_holds_others(self, number: int) -> bool:
        """Whether the module is a root, watched only for the begin of forward."""
        module = self.modules[number]
        return not _is_leaf(module) and next(module.parameters(recurse=False), None) is None

    def gradient_rows(self, rank: int) -> list[GradientRow]:
        """A row per gradient, in ready order; those that never came in (unused parameters) are left out."""
        ready: dict[int, list[float]] = defaultdict(list)
        for step in self.light_steps or self.steps:
            for number, (which, mark) in step.gradients.items():
                if which < len(step.backwards):
                    ready[number].append(max(0.0, elapsed_s(step.backwards[which][0], mark)))
        moments = {number: statistics.median(times) for number, times in ready.items()}
        order = sorted(moments, key=lambda number: moments[number])
        return gradient_rows(rank, self._roots, [(self.parameters[n], moments[n]) for n in order])

    def spans(self, rank: int, zero_s: float, step_of: Callable[[int], int]) -> list[SpanRow]:
        """The last kept step as spans for a timeline."""
        if not self.steps or not self.steps[-1].calls:
            return []
        # Every other step marks its layers.
        step, number = self.steps[-1], step_of(2 * (len(self.steps) - 1))
        origin = step.calls[0].begin

        def span(track: str, name: str, begin: TimeMark, end: TimeMark) -> SpanRow:
            start_s = origin.wall_s - zero_s + elapsed_s(origin, begin)
            return SpanRow(rank, number, track, name, start_s, max(0.0, elapsed_s(begin, end)))

        rows = [span("backward", "backward", *pair) for pair in step.backwards]
        rows += [span("optimizer", "update", *pair) for pair in step.updates]
        rows += [span("forward", "forward", *pair) for pair in forward_passes(step)]
        for call in step.calls:
            if call.end is not None:
                rows.append(span("layer", self.names[call.module], call.begin, call.end))
        return rows


def gradient_rows(
    rank: int, roots: Sequence[Module], ready: Iterable[tuple[tuple[str, Parameter], float | None]]
) -> list[GradientRow]:
    """Rows for gradients in ready order, with the bucket that torch's DDP has put each into."""
    buckets = ddp_buckets(roots)
    return [
        GradientRow(
            rank=rank,
            order=order,
            name=name,
            elements=parameter.numel(),
            bytes=parameter.numel() * parameter.element_size(),
            ready_s=moment,
            bucket=buckets.get(id(parameter)),
        )
        for order, ((name, parameter), moment) in enumerate(ready)
    ]


def ddp_buckets(roots: Sequence[Module]) -> dict[int, int]:
    """Parameter (by identity) -> its bucket, as DDP reports after it has rebuilt its buckets in ready order."""
    buckets: dict[int, int] = {}
    for model in (root for root in roots if isinstance(root, DistributedDataParallel)):
        logged: dict[str, str] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        text = logged.get("rebuilt_per_bucket_param_indices") or ""
        trained = [p for p in model.module.parameters() if p.requires_grad]
        offset = max(buckets.values(), default=-1) + 1
        for number, bucket in enumerate(filter(None, (part.split() for part in text.split(",")))):
            buckets |= {id(trained[int(index)]): offset + number for index in bucket}
    return buckets


def named_parameters(roots: Sequence[Module]) -> list[tuple[str, Parameter]]:
    """The trained parameters with the names their model gives them."""
    return [
        (plain_name(name), parameter)
        for root in roots
        for name, parameter in root.named_parameters()
        if parameter.requires_grad
    ]


def tensors_in(thing: Any) -> Iterable[torch.Tensor]:
    """Every tensor in the output of a module."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from tensors_in(value)


def _when_complete(parameter: Parameter, hook: Callable[[torch.Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def _watched(roots: Sequence[Module]) -> tuple[list[Module], list[str]]:
    """Modules that compute: those without children, those with parameters of their own; and the roots.

    A root's own time is what its model does between its layers.
    """
    modules: dict[int, tuple[Module, str]] = {}
    for root in roots:
        for name, module in root.named_modules():
            if module is root or _is_leaf(module) or next(module.parameters(recurse=False), None) is not None:
                modules.setdefault(id(module), (module, plain_name(name) or type(module).__name__))
    return [module for module, _ in modules.values()], [name for _, name in modules.values()]


def _is_leaf(module: Module) -> bool:
    return next(module.children(), None) is None


_UNKNOWN = StepPasses(None, None, None, None, checkpointed=False)


class LayerPhase(PhaseObserver):
    """Observes the layers phase: is told of each of its steps, and writes rows and the model record at its end."""

    def __init__(self, optimizers: Iterable[Optimizer], clock: StepClock, writer: RankWriter) -> None:
        self._clock = clock
        self._writer = writer
        self._roots = trained_roots(optimizers)
        self._compiled = is_compiled(self._roots)
        self._parameters = [p for _, p in named_parameters(self._roots)]
        self._watch: LayerWatch | None = None
        self._count: StepCounter | None = None
        self._counting = False

    def begin(self, steps: int) -> None:
        """Install the hooks for a phase of `steps` steps."""
        if self._compiled or not self._roots:
            return
        self._watch = LayerWatch(self._roots, self._clock)
        self._watch.install()
        if self._watch.unwatched:
            self._writer.note(
                Sentence(
                    "layers.torchscript",
                    f"{self._watch.unwatched} modules are TorchScript, which takes no hooks: their times are unknown.",
                )
            )
        self._clock.prepare(self._watch.marks_per_step * steps)
        # A dispatch mode belongs to one thread; batches may be asked for in another than the one that trains.
        if threading.current_thread() is threading.main_thread():
            self._count = StepCounter(self._parameters, self._clock)
            self._count.begin()
            self._counting = True

    def update_begins(self) -> None:
        """Mark the begin of an optimizer step."""
        if self._watch is not None:
            self._watch.update_begins()

    def update_ends(self) -> None:
        """Mark the end of an optimizer step."""
        if self._watch is not None:
            self._watch.update_ends()

    def step_ended(self, *, kept: bool) -> None:
        """Stop counting after the first step; keep or drop the marks of a step."""
        if self._counting and self._count is not None:
            self._counting = False
            self._count.end()
            for note in self._count.notes:
                self._writer.note(note)
        if self._watch is not None:
            self._watch.next_step(kept=kept)

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Remove the hooks and write rows; the device has passed every mark."""
        watch = self._watch
        if watch is not None:
            watch.remove()
            if watch.failure is not None:
                raise RuntimeError(watch.failure)
            for row in watch.layer_rows(self._writer.rank):
                self._writer.append("layers", row)
            for gradient in watch.gradient_rows(self._writer.rank):
                self._writer.append("gradients", gradient)
            for span in watch.spans(self._writer.rank, zero_s, lambda kept: first_step + kept):
                self._writer.append("spans", span)
        else:
            self._write_order_only()
        self._writer.model(self._model(watch.passes() if watch is not None else _UNKNOWN, step_s))
        if watch is not None:
            watch.release()

    def abandon(self) -> None:
        """Remove the hooks: the script ends inside the phase, or watching it failed."""
        try:
            if self._counting and self._count is not None:
                self._counting = False
                self._count.end()
        finally:
            if self._watch is not None:
                self._watch.remove()

    def _write_order_only(self) -> None:
        """Without hooks: gradients in the reverse of the model's order, as DDP itself first assumes."""
        if self._compiled:
            self._writer.note(
                Sentence(
                    "layers.compiled",
                    "The model is compiled, so times of single layers and gradients are unknown; predictions from this "
                    "run assume that gradients become ready evenly over backward, last layer first.",
                )
            )
        order = [(pair, None) for pair in reversed(named_parameters(self._roots))]
        for gradient in gradient_rows(self._writer.rank, self._roots, order):
            self._writer.append("gradients", gradient)

    def _model(self, passes: StepPasses, step_s: float | None) -> ModelRecord:
        count = self._count
        every = {id(p): p for root in self._roots for p in root.parameters()}.values()
        return ModelRecord(
            parameters=sum(p.numel() for p in every),
            trained_parameters=sum(p.numel() for p in self._parameters),
            gradient_tensors=len(self._parameters),
            gradient_bytes=sum(p.numel() * p.element_size() for p in self._parameters),
            layers=sum(next(m.parameters(recurse=False), None) is not None for m in _modules(self._roots)),
            precision=count.precision(self._parameters) if count else None,
            flops_per_step=count.flops if count else None,
            activation_bytes=count.activation_bytes if count and not passes.checkpointed else None,
            compiled=self._compiled,
            checkpointed=passes.checkpointed,
            micro_batches=passes.micro_batches,
            step_s=step_s,
            forward_s=passes.forward_s,
            backward_s=passes.backward_s,
            update_s=passes.update_s,
            bucket_bytes=_bucket_bytes(self._roots),
            bucket_cap_bytes=_bucket_cap_bytes(self._roots),
            sharded=any("FSDP" in type(module).__name__ for module in _modules(self._roots)),
        )


def _modules(roots: list[Module]) -> list[Module]:
    return list({id(module): module for root in roots for module in root.modules()}.values())


def _bucket_cap_bytes(roots: list[Module]) -> int | None:
    return next((int(root.bucket_bytes_cap) for root in roots if isinstance(root, DistributedDataParallel)), None)


def _bucket_bytes(roots: list[Module]) -> tuple[int, ...]:
    """Bytes of each of DDP's buckets, in the order they are sent."""
    sizes: dict[int, int] = {}
    buckets = ddp_buckets(roots)
    for _, parameter in named_parameters(roots):
        if id(parameter) in buckets:
            number = buckets[id(parameter)]
            sizes[number] = sizes.get(number, 0) + parameter.numel() * parameter.element_size()
    return tuple(sizes[number] for number in sorted(sizes))
