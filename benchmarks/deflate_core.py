"""What a core-second is worth under a quota, on cores that rest in between and on cores that others use.

    python -m benchmarks.deflate_core        one minute; root; no claim, so `make bench` passes it by

One process decodes pictures. Its quota (period 10 ms) changes in turns; printed are pictures per core-second relative
to the median without a quota, and the least and most of the rounds.
"""

import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from benchmarks.deflate import neighbours
from stallwise.deflate import act

DECODER = """
import sys, time
from benchmarks.jobs.deflate import Pictures
pictures, done = Pictures(1, 0.0), 0
while True:
    pictures[0]
    done += 1
    if done % 20 == 0:
        sys.stdout.write(f"{done} {time.thread_time()}\\n")
        sys.stdout.flush()
"""
QUOTAS = (None, 0.5, 0.2, 0.12)
ROUNDS, WINDOW_S = 8, 1.0


def main() -> None:
    """Pictures decoded per core-second under a quota, in turns, relative to the median without: resting, and not."""
    for name, around in (("cores rest", contextlib.nullcontext), ("neighbours", neighbours)):
        with around(), _decoder() as decode:
            found: dict[float | None, list[float]] = {quota: [] for quota in QUOTAS}
            for _ in range(ROUNDS):
                for quota in QUOTAS:
                    found[quota].append(decode(quota))
        whole = statistics.median(found[None])
        for quota, rates in found.items():
            low, middle, high = (f(rates) / whole for f in (min, statistics.median, max))
            print(f"{name}, {quota or 'no'} quota: {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


@contextlib.contextmanager
def _decoder() -> Iterator[Callable[[float | None], float]]:
    with subprocess.Popen([sys.executable, "-c", DECODER], stdout=subprocess.PIPE, text=True) as running:
        lines: list[tuple[float, float]] = []
        threading.Thread(target=lambda: lines.extend(_numbers(running)), daemon=True).start()

        def decode(quota: float | None) -> float:
            if quota is None:
                act.undo(str(running.pid))
            else:
                act.deflate(
                    str(running.pid), act.DeflationRequest(cpu=act.Amount(amount=quota), cooperative=False, look_s=0.1)
                )
            time.sleep(WINDOW_S / 4)
            begin = lines[-1]
            time.sleep(WINDOW_S)
            return (lines[-1][0] - begin[0]) / (lines[-1][1] - begin[1])

        try:
            time.sleep(2.0)
            act.deflate(
                str(running.pid), act.DeflationRequest(cpu=act.Amount(amount=0.5), cooperative=False, look_s=0.1)
            )
            yield decode
        finally:
            act.undo(str(running.pid))
            running.kill()


def _numbers(running: "subprocess.Popen[str]") -> Iterator[tuple[float, float]]:
    for line in running.stdout or ():
        done, core_s = line.split()
        yield float(done), float(core_s)


if __name__ == "__main__":
    main()
