"""One rank of a study: networks on a stand-in accelerator, with and without exchange, in turns.

Layers of the stand-in sleep for as long as a GPU would compute, and have real gradients. On CPUs that ranks share,
computing does not scale over ranks; layers that sleep leave the cores to the exchange, as an accelerator does. They
sleep by the accelerator's clock. A host launches ahead of its accelerator, so a kernel begins when the one before it
ends, not when a process was woken up: what a core's other work delays in one layer, the next sleeps less.

Of every network a rank runs rounds of two blocks: steps of the bare module, and steps of the same module in DDP with
torch's buckets scaled as the gradients are. Ranks meet before each block; the first step of a block is not counted. A
block's time is the mean of its steps, a network's the median over rounds, of the slowest rank. A network whose stall is
small against its noise gets more rounds. Rank 0 appends one line per network to the samples file.
"""

import argparse
import contextlib
import inspect
import math
import os
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.machine.study import StudySample
from stallwise.model.exchange.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES, MIB
from stallwise.record.processes import die_with_parent
from stallwise.workload.families import BACKWARD, Network, Tensor, network

_AHEAD_S = 2e-3
"""A host that is later than this did not launch ahead: then the accelerator waited for it."""


class _AcceleratorClock:
    """The time at which the accelerator completes the work launched so far."""

    def __init__(self) -> None:
        self._done_s = 0.0

    def begin(self) -> None:
        """Begin a step: nothing is launched before it, because it needs the updated weights."""
        self._done_s = time.perf_counter()

    def run(self, for_s: float) -> None:
        """Sleep until a layer of `for_s` seconds is complete."""
        now_s = time.perf_counter()
        begin_s = self._done_s if now_s - self._done_s <= _AHEAD_S else now_s
        self._done_s = begin_s + for_s
        time.sleep(max(0.0, self._done_s - now_s))


class _SleepingLayer(torch.autograd.Function):
    """Sleeps in forward and in backward, and gives each of its tensors a gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, clock: _AcceleratorClock, forward_s: float, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.clock, ctx.forward_s = clock, forward_s
        ctx.save_for_backward(*tensors)
        clock.run(forward_s)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.clock.run(BACKWARD * ctx.forward_s)
        return gradients[0], None, None, *(torch.ones_like(tensor) for tensor in ctx.saved_tensors)


class SleepingNetwork(nn.Module):
    """`network` with one in `scale` of its elements, each layer sleeping `s_per_mac` for its work, or `least_s`."""

    def __init__(self, network: Network, *, scale: int, s_per_mac: float, least_s: float = 0.0) -> None:
        super().__init__()
        self._names: list[list[str]] = []
        self._clock = _AcceleratorClock()
        for number, tensors in groupby(network.tensors, key=lambda tensor: tensor.layer):
            self._layer(number, list(tensors), scale)
        self._forward_s = network.forward_s(s_per_mac, least_s)

    def _layer(self, number: int, tensors: list[Tensor], scale: int) -> None:
        names = []
        for index, tensor in enumerate(tensors):
            name = f"layer{number}_{index}"
            self.register_parameter(name, nn.Parameter(torch.zeros(tensor.scaled(scale))))
            names.append(name)
        self._names.append(names)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run every layer in turn."""
        self._clock.begin()
        for names, forward_s in zip(self._names, self._forward_s, strict=True):
            weights = (getattr(self, name) for name in names)
            x = _SleepingLayer.apply(x, self._clock, forward_s, *weights)  # type: ignore[no-untyped-call]
        return x


_JOIN_S = 120.0
_BLOCK_S = 0.4
_MAX_STEPS = 25
# Rounds go on until the relative error of the stall is this small, or there are _MORE_ROUNDS times the least number.
_RELATIVE_ERROR = 0.02
_MORE_ROUNDS = 5


def main(arguments: Sequence[str]) -> int:
    """Measure all networks; an error is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m stallwise.machine.study_rank", description=__doc__)
    parser.add_argument("--networks", required=True)
    parser.add_argument("--rate", required=True)
    parser.add_argument("--scale", type=int, required=True)
    parser.add_argument("--s-per-mac", type=float, required=True)
    parser.add_argument("--least-s", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    die_with_parent()
    if os.getppid() != options.parent:
        # It died while torch was imported, before the kernel was asked to tell.
        sys.stderr.write("The study that started this rank is gone.\n")
        return 2
    _raise_priority()
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_JOIN_S))
        for name in options.networks.split(","):
            _measure(name, options)
        dist.barrier()
        dist.destroy_process_group()
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        sys.stderr.write(f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}\n")
        return 2
    return 0


def _raise_priority() -> None:
    """Ask for real-time scheduling, to wake up on time: ranks mostly sleep, as hosts of accelerators do.

    That needs root; without it other work on the machine affects the figures.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _measure(name: str, options: Any) -> None:
    shape = network(name)
    module = SleepingNetwork(shape, scale=options.scale, s_per_mac=options.s_per_mac, least_s=options.least_s)
    shared = DistributedDataParallel(module, **_scaled_buckets(options.scale))
    for _ in range(2):  # torch learns the order of gradients, then builds its buckets
        _step(shared)
    steps = _steps(_slowest(_block(shared, 1)[0]), options.steps)
    alone: list[float] = []
    backward: list[float] = []
    exchanged: list[float] = []
    while not _precise_enough([w - a for w, a in zip(exchanged, alone, strict=True)], options.rounds):
        alone_s, backward_s = _block(module, steps)
        alone.append(_slowest(alone_s))
        backward.append(_slowest(backward_s))
        exchanged.append(_slowest(_block(shared, steps)[0]))
    if dist.get_rank() != 0:
        return
    stalls = [with_s - without_s for with_s, without_s in zip(exchanged, alone, strict=True)]
    _append(
        options.out,
        StudySample(
            rate=options.rate,
            processes=dist.get_world_size(),
            network=name,
            alone_s=statistics.median(alone),
            backward_s=statistics.median(backward),
            shared_s=statistics.median(exchanged),
            spread_s=max(stalls) - min(stalls),
            bucket_bytes=_buckets(shared),
        ),
    )


def _precise_enough(stalls_s: Sequence[float], least: int) -> bool:
    """Whether the median stall is precise enough; the same on all ranks, as all see the slowest rank's times.

    What disturbs a block does so by a millisecond or two whatever the network, which matters for small stalls only:
    they get more rounds. The standard error of a median is 1.25 times that of a mean.
    """
    count = len(stalls_s)
    if count < least or least < 2 or count >= _MORE_ROUNDS * least:
        return count >= least
    error_s = 1.25 * statistics.stdev(stalls_s) / math.sqrt(count)
    return error_s <= _RELATIVE_ERROR * abs(statistics.median(stalls_s))


def _steps(step_s: float, least: int) -> int:
    """Steps that make a block long enough to be measured; the same on all ranks, as `step_s` is."""
    return max(least, min(_MAX_STEPS, math.ceil(_BLOCK_S / step_s)))


def _scaled_buckets(scale: int) -> dict[str, Any]:
    """DDP's bucket sizes (1 MiB, then 25 MiB) divided by `scale`."""
    first, later = DDP_FIRST_BYTES / MIB / scale, DDP_BUCKET_BYTES / MIB / scale
    if "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters:
        return {"bucket_cap_mb_list": [first, later]}
    return {"bucket_cap_mb": later}


def _block(model: nn.Module, steps: int) -> tuple[float, float]:
    """Mean seconds of a step and of its backward; ranks begin together, the first step is not counted."""
    dist.barrier()
    _step(model)
    begin_s = time.perf_counter()
    backward_s = sum(_step(model) for _ in range(steps))
    return (time.perf_counter() - begin_s) / steps, backward_s / steps


def _step(model: nn.Module) -> float:
    x = torch.ones(1, requires_grad=True)
    model.zero_grad(set_to_none=True)
    loss = model(x).sum()
    begin_s = time.perf_counter()
    loss.backward()
    return time.perf_counter() - begin_s


def _slowest(value_s: float) -> float:
    shared = torch.tensor([value_s], dtype=torch.float64)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return float(shared[0])


def _buckets(model: DistributedDataParallel) -> tuple[int, ...]:
    data: dict[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return tuple(int(size) for size in str(data["rebuilt_bucket_sizes"]).split(","))


def _append(path: Path, sample: StudySample) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(sample) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
