"""Per-layer forward and backward times, and the moment each gradient becomes ready.

For the few steps of the *layers* phase (batches on the device, no exchange) hooks take a mark where a module's
forward begins and ends, where its backward begins (the gradient of its output exists), and where a parameter's
gradient is complete (post-accumulate hook). Marks are CUDA events on the stream, or the clock on a processor;
nothing is synchronised until the phase is over. Hundreds of marks make a step of many small layers longer, so steps
alternate: one marks gradients and passes only, the next the layers; each figure comes from the lighter kind that has
it. All hooks leave with the phase: every other step is the user's own.

Activation checkpointing runs forward hooks again during backward; those calls are recognised and left out.
Under `torch.compile` hooks either force a recompilation or fire all at the end, so none is installed: sizes and
order are then known, times are not.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from stallwise.record.clock import Clock, Mark, elapsed_s
from stallwise.record.step_marks import Call, Passes, StepMarks, backward_times, forward_passes, forward_times, total_s
from stallwise.run.schema import GradientRow, LayerRow, SpanRow
from stallwise.workload.layers import plain_name


class LayerWatch:
    """Hooks on the modules and parameters that the optimizers train, for as long as a phase lasts."""

    def __init__(self, roots: Sequence[Module], clock: Clock) -> None:
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
        self._stack: list[Call] = []
        self._in_backward = False
        self._update_began: Mark | None = None

    def install(self) -> None:
        """Put every hook in place."""
        for number, module in enumerate(self.modules):
            self._handles.append(module.register_forward_pre_hook(self._forward_begins(number)))
            self._handles.append(module.register_forward_hook(self._forward_ends(number), always_call=True))
        for number, (_, parameter) in enumerate(self.parameters):
            self._handles.append(_when_complete(parameter, self._gradient_ready(number)))
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._timed_backward

    @property
    def marks_per_step(self) -> int:
        """About how many marks a step takes: half of them have all, half gradients only."""
        return len(self.parameters) + 2 * len(self.modules)

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        if self._handles:
            torch.autograd.backward = self._backward
        self._handles.clear()

    def next_step(self, *, kept: bool) -> None:
        """A step ended: keep its marks or give them back."""
        ended, self._step, self._stack = self._step, StepMarks(of_layers=not self._step.of_layers), []
        if kept and ended.backwards:
            (self.steps if ended.of_layers else self.light_steps).append(ended)
        else:
            self._give_back(ended)

    def release(self) -> None:
        """Nobody asks for these steps again."""
        for step in (*self.steps, *self.light_steps):
            self._give_back(step)
        self.steps.clear()
        self.light_steps.clear()

    def _give_back(self, step: StepMarks) -> None:
        for mark in step.marks():
            self.clock.done_with(mark)

    # ---- hooks ---------------------------------------------------------------------------------------------

    def _forward_begins(self, number: int) -> Callable[..., None]:
        def hook(_module: Module, _inputs: Any) -> None:
            if self._in_backward:
                self.recomputed = True
                return
            if not self._step.of_layers and self._step.calls and not self._begins_pass():
                return
            call = Call(number, self.clock.mark(), self._stack[-1] if self._stack else None)
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
                    tensor.register_hook(self._backward_begins(number))  # type: ignore[no-untyped-call]
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
        """An optimizer begins its step."""
        self._update_began = self.clock.mark()

    def update_ends(self) -> None:
        """An optimizer has stepped."""
        if self._update_began is not None:
            self._step.updates.append((self._update_began, self.clock.mark()))
            self._update_began = None

    # ---- what the marks say; only after the device has passed them ------------------------------------------

    def passes(self) -> Passes:
        """Forward (up to the begin of backward: the loss is in it), backward and update of a step."""
        steps = self.light_steps or self.steps
        if not steps:
            return Passes(None, None, None, None, self.recomputed)
        return Passes(
            forward_s=statistics.median(total_s(forward_passes(step)) for step in steps),
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
        """A root, watched only to see forward begin."""
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

        def span(track: str, name: str, begin: Mark, end: Mark) -> SpanRow:
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
    """Rows for gradients given in ready order, with the bucket torch's DDP has put each into."""
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
    found: dict[int, int] = {}
    for model in (root for root in roots if isinstance(root, DistributedDataParallel)):
        logged: dict[str, str] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        text = logged.get("rebuilt_per_bucket_param_indices") or ""
        trained = [p for p in model.module.parameters() if p.requires_grad]
        offset = max(found.values(), default=-1) + 1
        for number, bucket in enumerate(filter(None, (part.split() for part in text.split(",")))):
            found |= {id(trained[int(index)]): offset + number for index in bucket}
    return found


def named_parameters(roots: Sequence[Module]) -> list[tuple[str, Parameter]]:
    """The trained parameters with the names their model gives them."""
    return [
        (plain_name(name), parameter)
        for root in roots
        for name, parameter in root.named_parameters()
        if parameter.requires_grad
    ]


def tensors_in(thing: Any) -> Iterable[torch.Tensor]:
    """Every tensor in what a module returned."""
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
    found: dict[int, tuple[Module, str]] = {}
    for root in roots:
        for name, module in root.named_modules():
            if module is root or _is_leaf(module) or next(module.parameters(recurse=False), None) is not None:
                found.setdefault(id(module), (module, plain_name(name) or type(module).__name__))
    return [module for module, _ in found.values()], [name for _, name in found.values()]


def _is_leaf(module: Module) -> bool:
    return next(module.children(), None) is None
