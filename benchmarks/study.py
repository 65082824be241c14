"""Stalls predicted for families that the fit has not seen, at three link rates; needs root (network namespaces).

Bar (written before measuring): at each rate the mean error of the stalls of every held-out family is at most 10 %.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Result

BAR = 0.10


def measure() -> list[Result]:
    """One result per link; quick: eight networks at one rate."""
    options = ("--quick", "--rates", "500mbit") if os.environ.get("STALLWISE_BENCH_QUICK") else ()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stallwise", "study", "-o", str(Path(folder) / "study"), "--json", *options]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return [_result(link) for link in found["links"]]


def _result(link: dict) -> Result:
    errors = link["family_errors"]
    counts = link["family_errors_by_counts"]
    said = ", ".join(f"{family} {error:.1%} ({counts[family]:.1%} by counts)" for family, error in errors.items())
    return Result(
        claim=f"held-out families' stalls at {link['rate']}, {link['processes']} processes, within {BAR:.0%}",
        measured=said,
        held=max(errors.values()) <= BAR,
    )
