"""How much slower a core is while all others of the machine work too.

Cores share caches, memory and often their arithmetic (two threads of one core look like two cores), so twice as many
busy cores do less than twice the work. Measured in a second: the same work in one process alone, then in one on every
core at once.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_WORK_S = 0.3
_ROUNDS = 3
_MOST = 64

# Unpacking and summing bytes, about what preparing samples does. Each process works when it is told and says its rate.
_PROGRAM = f"""
import random, sys, time, zlib
packed = zlib.compress(random.Random(0).randbytes(1 << 15) * 8)
print("ready", flush=True)
for _ in sys.stdin:
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < {_WORK_S}:
        sum(zlib.decompress(packed)[::16])
        done += 1
    print(done / (time.perf_counter() - began), flush=True)
"""


def measure_crowding(cores: int) -> float:
    """How many times as long work takes with every core busy, from 1; 1 where there is one core, or nothing to tell."""
    many = min(cores, _MOST)
    if many < 2:
        return 1.0
    try:
        with _workers(many) as workers:
            alone, together = [], []
            for _ in range(_ROUNDS):
                alone += _rates(workers[:1])
                together += _rates(workers)
    except (OSError, ValueError):
        return 1.0
    return max(1.0, max(alone) * len(together) / sum(together))


@contextlib.contextmanager
def _workers(many: int) -> Iterator[list["subprocess.Popen[str]"]]:
    command = [sys.executable, "-I", "-c", _PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(many):
            process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            process.stdout.readline()
        yield started


def _rates(workers: list["subprocess.Popen[str]"]) -> list[float]:
    for process in workers:
        print("go", file=process.stdin, flush=True)
    return [float(process.stdout.readline()) for process in workers if process.stdout is not None]
