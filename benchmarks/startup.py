"""Starting Stallwise costs little beside starting Python."""

import sys

from benchmarks.harness import Result, command_s, take_turns

ROUNDS = 5
BARS_S = {"import stallwise": 0.150, "stallwise --help": 0.400, "catalog offers --gpu H100 --json": 1.0}


def measure() -> list[Result]:
    """Median of five for each start, beside an empty Python."""
    python = sys.executable
    times = take_turns(
        {
            "python -c pass": lambda: command_s(python, "-c", "pass"),
            "import stallwise": lambda: command_s(python, "-c", "import stallwise"),
            "stallwise --help": lambda: command_s(python, "-m", "stallwise", "--help"),
            "catalog offers --gpu H100 --json": lambda: command_s(
                python, "-m", "stallwise", "catalog", "offers", "--gpu", "H100", "--json"
            ),
        },
        ROUNDS,
    )
    peer = times.pop("python -c pass")
    return [
        Result(
            claim=f"{name} ≤ {BARS_S[name] * 1e3:.0f} ms",
            measured=f"{ours}; python -c pass {peer}; ratio {ours.median_s / peer.median_s:.1f}",
            held=ours.median_s <= BARS_S[name],
        )
        for name, ours in times.items()
    ]
