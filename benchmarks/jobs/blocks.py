"""A training loop with short steps, watched in every other block: what watching costs, free of drift between launches.

Blocks are watched or not in the order a b b a. Prints one JSON line: per block, whether it was watched, and the mean
seconds and processor seconds of a step. No loader worker: what watching one costs falls into the step as well.
"""

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

STEPS, WARMUP, PAIRS = 60, 10, 60

Around = Callable[[nn.Module], contextlib.AbstractContextManager[None]]


class Stallwise:
    """Our light mode, switched on and off by exchanging what it patches."""

    def __init__(self) -> None:
        from stallwise.record.rank.environment import RecordSettings, begin_record
        from stallwise.record.rank.recorder import Recorder
        from stallwise.run.writer import RankWriter

        folder = Path(tempfile.mkdtemp())
        begin_record(folder / "run", script="blocks.py", arguments=(), launcher=None)
        settings = RecordSettings(folder=str(folder / "run"), light=True)
        writer = RankWriter.open(folder / "run", 0, clock_zero_s=time.monotonic())
        self._off = self._patches()
        Recorder(settings, writer, str(folder / "workers")).watch()
        self._on = self._patches()
        self.switch(on=False)

    def _patches(self) -> tuple[object, object, dict[int, object]]:
        return DataLoader.__iter__, _BaseDataLoaderIter.__next__, dict(optimizers._global_optimizer_post_hooks)

    def switch(self, *, on: bool) -> None:
        """Watch, or do not."""
        iterate, advance, hooks = self._on if on else self._off
        DataLoader.__iter__, _BaseDataLoaderIter.__next__ = iterate, advance
        optimizers._global_optimizer_post_hooks.clear()
        optimizers._global_optimizer_post_hooks.update(hooks)

    def around(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Our hooks need nothing in the loop."""
        return contextlib.nullcontext()


class TraceMl:
    """TraceML as `traceml run` starts it; unwatched blocks only leave its step marks out."""

    def __init__(self) -> None:
        import traceml_ai

        self._mark: Around = traceml_ai.trace_step
        self.around: Around = contextlib.nullcontext

    def switch(self, *, on: bool) -> None:
        """Mark steps, or do not."""
        self.around = self._mark if on else contextlib.nullcontext


def run_block(model: nn.Module, data: TensorDataset, around: Around) -> tuple[float, float]:
    """Mean seconds and processor seconds of a step in one pass over the data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    used = time.process_time()
    began = 0.0
    device = next(model.parameters()).device
    for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=64)):
        if number == WARMUP:
            began = time.perf_counter()
        with around(model):
            optimizer.zero_grad()
            loss_of(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / (STEPS - WARMUP), (time.process_time() - used) / STEPS


def main() -> None:
    """Alternate blocks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tool", choices=["stallwise", "traceml"])
    tool = Stallwise() if parser.parse_args().tool == "stallwise" else TraceMl()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(64 * STEPS, 256), torch.zeros(64 * STEPS).long())
    run_block(model, data, contextlib.nullcontext)
    blocks = []
    for number in range(2 * PAIRS):
        watched = (number % 2 == 1) != (number // 2 % 2 == 1)
        tool.switch(on=watched)
        step_s, used_s = run_block(model, data, tool.around)
        blocks.append({"watched": watched, "step_s": step_s, "processor_s": used_s})
    print(json.dumps({"blocks": blocks}), flush=True)


if __name__ == "__main__":
    main()
