"""One loader, one process: `python -m benchmarks.data.contestant SPEC` reads every sample and prints a line of JSON."""

import importlib
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.data.spec import Epoch, Report, Spec

Pair = tuple[int, int]


def main(spec: Spec) -> Report:
    """Imports come first and do not count: they are the same for a job that runs for days."""
    import torch

    torch.set_num_threads(1)
    module = importlib.import_module(f"benchmarks.data.loaders.{spec.loader}")
    start = time.perf_counter()
    loader = module.make(spec)
    made_s = time.perf_counter() - start
    epochs = tuple(run_epoch(loader, spec, number) for number in range(spec.epochs))
    extra = module.report(loader) if hasattr(module, "report") else {}
    del loader
    return Report(made_s=made_s, cpu_s=cpu_s(), epochs=epochs, extra=extra)


def run_epoch(loader: Iterable[list[Pair]], spec: Spec, number: int) -> Epoch:
    """Every batch, with a step of `step_s` after each; the wait is the time blocked in `next`."""
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if set_epoch is not None:
        set_epoch(number)
    start = time.perf_counter()
    batches, marks, total, waits = iter(loader), [], 0, []
    while True:
        asked = time.perf_counter()
        batch: Any = next(batches, None)
        waits.append(time.perf_counter() - asked)
        if batch is None:
            break
        first_s = time.perf_counter() - start if not marks else first_s  # noqa: F821
        for one, size in batch:
            marks.append(one)
            total += size
        if spec.step_s:
            time.sleep(spec.step_s)
    return Epoch(
        samples=len(marks),
        unique=len(set(marks)),
        bytes=total,
        first_s=first_s,
        seconds=time.perf_counter() - start,
        wait_s=sum(waits),
        first_wait_s=waits[0],
    )


def cpu_s() -> float:
    """Of this process and of its workers that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    print(main(Spec.read(sys.argv[1])).text(), flush=True)
