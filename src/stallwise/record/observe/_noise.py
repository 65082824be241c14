"""The *gradient noise* phase: squared norms of the gradient over a small and over a large batch of the same step.

With several ranks under DistributedDataParallel exchange is off, so each rank's gradient is that of its own batch; our
own all-reduce then averages copies of the gradients, chunk by chunk, and leaves the script's alone. All ranks reserve
the memory for it before any begins, because one that dropped out later would leave the others waiting. One rank that
accumulates gradients has the first micro-batch's, and the sum of all at the step's end; how the script scales its loss
cancels out. Norms are taken where a backward pass returns, before any clipping, and read from the device only at the
end of the phase. What comes out is the input of `model/statistics/noise_scale.py`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stallwise.record.observe._contained import PhaseObserver
from stallwise.run.schema import NoiseRow
from stallwise.run.writer import RankWriter

_CHUNK_ELEMENTS = 8 << 20


class NoisePhase(PhaseObserver):
    """Observes the phase: takes both norms at the last backward pass of every kept step."""

    def __init__(
        self, optimizers: Iterable[Optimizer], models: Iterable[DistributedDataParallel], writer: RankWriter
    ) -> None:
        self._writer = writer
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._parameters: list[Parameter] = [p for group in groups for p in group["params"] if p.requires_grad]
        self._group: Any = next((model.process_group for model in models), None)
        self._passes = 0
        self._micro_batches: int | None = None  # of a step; known after the first
        self._first: torch.Tensor | None = None
        self._norms: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._of_step: tuple[torch.Tensor, torch.Tensor, int] | None = None
        self._failure: Exception | None = None
        self._chunk: torch.Tensor | None = None

    def begin(self, steps: int) -> None:
        """Wrap the backward pass, once every rank has the memory for its part; an error on all where one has not."""
        if self._group is not None:
            self._reserve()
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._measured_backward

    def _reserve(self) -> None:
        device, refusal = self._parameters[0].device, ""
        short = torch.zeros(1, device=device)
        try:
            elements = min(_CHUNK_ELEMENTS, sum(p.numel() for p in self._parameters))
            self._chunk = torch.zeros(elements, device=device)
        except RuntimeError as error:
            refusal = str(error)
            short += 1
        self._group.allreduce([short]).wait()
        if short.item():
            raise RuntimeError(refusal or "another rank has too little memory")

    def step_ended(self, *, kept: bool) -> None:
        """Keep the norms of a step; the steps before the first that is kept tell how many passes it has."""
        if kept and self._of_step is not None:
            self._norms.append(self._of_step)
        elif not kept:
            self._micro_batches = self._passes or None
        self._passes, self._first, self._of_step = 0, None, None

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Unwrap the backward pass and write a row for every step."""
        self.abandon()
        if self._failure is not None:
            raise self._failure
        for step, (small, large, parts) in enumerate(self._norms):
            self._writer.append(
                "noise",
                NoiseRow(self._writer.rank, first_step + step, float(small), float(large), parts),
            )

    def abandon(self) -> None:
        """Unwrap the backward pass: the script ends inside the phase, or watching it failed."""
        if torch.autograd.backward == self._measured_backward:
            torch.autograd.backward = self._backward

    def _measured_backward(self, *args: Any, **kwargs: Any) -> None:
        self._backward(*args, **kwargs)
        if self._failure is not None:
            return
        self._passes += 1
        try:
            if self._passes == 1 and self._group is None:
                self._first = _squared_norm(p.grad for p in self._parameters)
            if self._passes == self._micro_batches:
                self._of_step = self._both()
        except Exception as error:  # of a gradient without a norm, a sparse one: the script must not see it
            self._failure = error

    def _both(self) -> tuple[torch.Tensor, torch.Tensor, int] | None:
        """Squared norms over the small and the large batch, and how many small ones make the large one."""
        whole = _squared_norm(p.grad for p in self._parameters)
        if self._group is not None:
            ranks = dist.get_world_size(self._group)
            return whole, self._averaged(ranks), ranks
        if self._first is None or self._passes < 2:
            return None
        # The sum of the micro-batches' gradients, each scaled as the first is.
        return self._first, whole / self._passes**2, self._passes

    def _averaged(self, ranks: int) -> torch.Tensor:
        """The squared norm of the mean over ranks, of copies; every rank sends every parameter, zeros where unused."""
        assert self._chunk is not None  # noqa: S101 - reserved where there is a group
        total = torch.zeros((), dtype=torch.float64, device=self._chunk.device)
        filled = 0
        for parameter in self._parameters:
            flat = None if parameter.grad is None else parameter.grad.detach().reshape(-1)
            done = 0
            while done < parameter.numel():
                size = min(parameter.numel() - done, len(self._chunk) - filled)
                part = self._chunk[filled : filled + size]
                if flat is None:
                    part.zero_()
                else:
                    part.copy_(flat[done : done + size])
                done, filled = done + size, filled + size
                if filled == len(self._chunk):
                    total += self._sent(self._chunk, ranks)
                    filled = 0
        return total + self._sent(self._chunk[:filled], ranks) if filled else total

    def _sent(self, chunk: torch.Tensor, ranks: int) -> torch.Tensor:
        """The squared norm of the mean of a chunk over ranks.

        By the group's own method: the script's collectives are timed where torch.distributed's are called.
        """
        self._group.allreduce([chunk]).wait()
        norm: torch.Tensor = torch.linalg.vector_norm(chunk).double() / ranks
        return norm.square()


def _squared_norm(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor:
    norms = [
        torch.linalg.vector_norm(g.detach(), dtype=torch.float32).double() ** 2 for g in gradients if g is not None
    ]
    return torch.stack(norms).sum() if norms else torch.zeros((), dtype=torch.float64)
