"""What watching costs: our light mode against not watching, and against TraceML, in alternating blocks.

Bars (written before the measurement): the upper end of the 95 % interval of the added step time is at most 1 % of the
step or 50 µs, whichever is larger; added time and added processor time are no more than TraceML's.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Result
from stallwise.model.statistics.intervals import Interval, median_of_block_means, paired_difference

JOB = str(Path(__file__).with_name("jobs") / "blocks.py")
LAUNCHES = 3
BAR_S, BAR_SHARE = 50e-6, 0.01

Pairs = list[tuple[dict[str, float], dict[str, float]]]


def measure() -> list[Result]:
    """Launch both tools by turns; blocks within a launch are compared in pairs of neighbours."""
    commands = {
        "stallwise": [sys.executable, JOB, "stallwise"],
        "traceml": [str(Path(sys.executable).with_name("traceml")), "run", JOB, "--args", "traceml"],
    }
    if not Path(commands["traceml"][0]).exists():
        raise RuntimeError("TraceML is not installed: run `make bench`, which installs it")
    pairs: dict[str, Pairs] = {name: [] for name in commands}
    for _ in range(LAUNCHES):
        for name, command in commands.items():
            pairs[name] += run_blocks(command)
    return _judge(pairs)


def run_blocks(command: list[str]) -> Pairs:
    """(unwatched, watched) neighbours of one launch."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    for line in done.stdout.splitlines():
        start = line.find('{"blocks"')
        if start >= 0:
            blocks = json.loads(line[start : line.rindex("}") + 1])["blocks"]
            return [
                (first, second) if second["watched"] else (second, first)
                for first, second in zip(blocks[::2], blocks[1::2], strict=True)
            ]
    raise RuntimeError(f"{command} printed no figures:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def added(pairs: Pairs, figure: str) -> Interval:
    """What watching adds to a step."""
    return paired_difference([bare[figure] for bare, _ in pairs], [watched[figure] for _, watched in pairs])


def judge_light(pairs: Pairs) -> Result:
    """Our light mode against its bar."""
    step = median_of_block_means([bare["step_s"] for bare, _ in pairs])
    ours = added(pairs, "step_s")
    bar_s = max(BAR_S, BAR_SHARE * step.value)
    return Result(
        claim=f"light mode adds at most {bar_s * 1e6:.0f} µs to a step of {step.value * 1e3:.2f} ms",
        measured=f"{_micro(ours)} a step; {len(pairs)} pairs of blocks",
        held=ours.high <= bar_s,
    )


def _judge(pairs: dict[str, Pairs]) -> list[Result]:
    ours, theirs = (added(pairs[name], "step_s") for name in ("stallwise", "traceml"))
    ours_cpu, theirs_cpu = (added(pairs[name], "processor_s") for name in ("stallwise", "traceml"))
    return [
        judge_light(pairs["stallwise"]),
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
