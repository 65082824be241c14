"""What watching costs: `stallwise profile --light` against the bare script and against TraceML, launch by launch.

Bars (written before the measurement): the upper end of the 95 % interval of the added step time is at most 1 % of the
step or 50 µs, whichever is larger; added time and added processor time are no more than TraceML's.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Result
from stallwise.model.intervals import Interval, median_of_block_means, paired_difference

JOB = str(Path(__file__).with_name("jobs") / "steps.py")
TURNS = 21
BAR_S, BAR_SHARE = 50e-6, 0.01


def measure() -> list[Result]:
    """Bare, watched and traced by turns; pairs of neighbours are compared."""
    runs: dict[str, list[dict[str, float]]] = {"bare": [], "stallwise": [], "traceml": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS + 1):  # the first is warm-up
            commands = {
                "bare": [sys.executable, JOB],
                "stallwise": [
                    *(sys.executable, "-m", "stallwise", "profile", "--light", "-o", f"{folder}/{turn}", JOB),
                ],
                "traceml": [str(Path(sys.executable).with_name("traceml")), "run", JOB, "--args", "--traceml"],
            }
            for name, command in commands.items():
                found = _run(command, folder)
                if turn:
                    runs[name].append(found)
    return _judge(runs)


def _run(command: list[str], folder: str) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    for line in done.stdout.splitlines():
        start = line.find('{"step_s"')
        if start >= 0:
            found: dict[str, float] = json.loads(line[start : line.index("}", start) + 1])
            return found
    raise RuntimeError(f"{command} printed no figures:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def _judge(runs: dict[str, list[dict[str, float]]]) -> list[Result]:
    def added(name: str, figure: str) -> Interval:
        return paired_difference([r[figure] for r in runs["bare"]], [r[figure] for r in runs[name]])

    step = median_of_block_means([r["step_s"] for r in runs["bare"]])
    ours, theirs = added("stallwise", "step_s"), added("traceml", "step_s")
    ours_cpu, theirs_cpu = added("stallwise", "processor_s"), added("traceml", "processor_s")
    bar_s = max(BAR_S, BAR_SHARE * step.value)
    return [
        Result(
            claim=f"light mode adds at most {bar_s * 1e6:.0f} µs to a step of {step.value * 1e3:.2f} ms",
            measured=f"{_micro(ours)} a step; {TURNS} turns",
            held=ours.high <= bar_s,
        ),
        Result(
            claim="light mode adds no more time than TraceML",
            measured=f"{_micro(ours)} against {_micro(theirs)}; ratio {ours.value / theirs.value:.2f}",
            held=ours.value <= theirs.value,
        ),
        Result(
            claim="light mode uses no more processor time than TraceML",
            measured=f"{_micro(ours_cpu)} against {_micro(theirs_cpu)} a step",
            held=ours_cpu.value <= theirs_cpu.value,
        ),
    ]


def _micro(value: Interval) -> str:
    return f"{value.value * 1e6:.0f} µs ({value.low * 1e6:.0f} to {value.high * 1e6:.0f})"
