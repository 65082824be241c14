"""The *layers* phase: what the job trains and how its step is made up, measured in a few steps of their own.

The first step counts FLOPs and activations (slow, never kept), the others carry the hooks of `LayerWatch`. What
comes out is the input of the iteration graph and of every prediction, and it needs one process only.
"""

import threading
from collections.abc import Iterable

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stallwise.record.clock import Clock
from stallwise.record.features import OneStep, is_compiled, trained_roots
from stallwise.record.layers import LayerWatch, ddp_buckets, gradient_rows, named_parameters
from stallwise.record.step_marks import Passes
from stallwise.run.manifest import ModelRecord
from stallwise.run.writer import RankWriter

_UNKNOWN = Passes(None, None, None, None, checkpointed=False)


class Anatomy:
    """Enters with the phase, hears of each of its steps, and writes what it found when the phase is over."""

    def __init__(self, optimizers: Iterable[Optimizer], clock: Clock, writer: RankWriter) -> None:
        self._clock = clock
        self._writer = writer
        self._roots = trained_roots(optimizers)
        self._compiled = is_compiled(self._roots)
        self._parameters = [p for _, p in named_parameters(self._roots)]
        self._watch: LayerWatch | None = None
        self._count: OneStep | None = None
        self._counting = False

    def begin(self, steps: int) -> None:
        """The phase of so many steps begins."""
        if self._compiled or not self._roots:
            return
        self._watch = LayerWatch(self._roots, self._clock)
        self._watch.install()
        self._clock.prepare(self._watch.marks_per_step * steps)
        # A dispatch mode belongs to one thread; batches may be asked for in another than the one that trains.
        if threading.current_thread() is threading.main_thread():
            self._count = OneStep(self._parameters, self._clock)
            self._count.begin()
            self._counting = True

    def update_begins(self) -> None:
        """An optimizer begins its step."""
        if self._watch is not None:
            self._watch.update_begins()

    def update_ends(self) -> None:
        """An optimizer has stepped."""
        if self._watch is not None:
            self._watch.update_ends()

    def step_ended(self, *, kept: bool) -> None:
        """A step of the phase is over."""
        if self._counting and self._count is not None:
            self._count.end()
            self._counting = False
        if self._watch is not None:
            self._watch.next_step(kept=kept)

    def leave(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """The phase is over and the device has passed every mark: take the hooks away and write."""
        watch = self._watch
        if watch is not None:
            watch.remove()
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
        """The script ends inside the phase."""
        if self._counting and self._count is not None:
            self._count.end()
        if self._watch is not None:
            self._watch.remove()

    def _write_order_only(self) -> None:
        """Without hooks: gradients in the reverse of the model's order, as DDP itself first assumes."""
        if self._compiled:
            self._writer.note(
                "The model is compiled, so times of single layers and gradients are unknown; predictions from this "
                "run assume that gradients become ready evenly over backward, last layer first."
            )
        order = [(pair, None) for pair in reversed(named_parameters(self._roots))]
        for gradient in gradient_rows(self._writer.rank, self._roots, order):
            self._writer.append("gradients", gradient)

    def _model(self, passes: Passes, step_s: float | None) -> ModelRecord:
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
