"""Two ranks on each of two hosts: what the link inside a host costs, and what the network between them (`make soak`).

Truth is the bare script's own ladder: exchanging among all, inside each host only, not at all. Bar, written before the
measurement: each within 10 % of its truth or 3 % of the step (four ranks share two cores here).
"""

import json
import statistics
from pathlib import Path

import pytest

from tests.figures import Figures
from tests.record.truth.bench import JOB
from tests.record.truth.hosts import Host, shape, two_hosts
from tests.record.truth.test_network import ADDRESS, on_both

OPTIONS = ("--workers", "0", "--parameters", "2000000", "--compute", "0.120", "--layers", "8")
WORLD = ("--nnodes", "2", "--node-rank", "{node}", "--nproc-per-node", "2")
RATE_MBIT = 1000
pytestmark = [pytest.mark.truth, pytest.mark.soak]


def bare_s(hosts: tuple[Host, Host], *more: str) -> float:
    words = ("-m", "torch.distributed.run", *WORLD, *ADDRESS, str(JOB), *OPTIONS, *more, "--steps", "50")
    printed = on_both(hosts, *words)[0].stdout.strip().splitlines()
    return float(json.loads(next(line for line in printed if line.startswith("{")))["step_s"])


def split(hosts: tuple[Host, Host], folder: Path) -> dict[str, float]:
    options = ("--json", "--no-cold", "--max-time", "15s", "-o", str(folder))
    found = json.loads(
        on_both(hosts, "-m", "stallwise", "profile", *options, *WORLD, *ADDRESS, str(JOB), *OPTIONS)[0].stdout
    )
    parts = {name: found["split"][name]["s"] for name in ("network", "interconnect")}
    return {**parts, "step": found["step_s"]}


def test_inside_and_between_are_told_apart(tmp_path: Path, figures: Figures) -> None:
    with two_hosts() as hosts:
        shape(hosts, RATE_MBIT)
        turns = [(bare_s(hosts), bare_s(hosts, "--node-only", "2"), bare_s(hosts, "--no-sync")) for _ in range(2)]
        everywhere_s, inside_s, alone_s = (statistics.mean(times) for times in zip(*turns, strict=True))
        found = split(hosts, tmp_path / "run")
    for name, truth_s in (("network", everywhere_s - inside_s), ("interconnect", inside_s - alone_s)):
        figures.judge(f"two ranks on two hosts: {name}", found[name], truth_s, rel=0.10, abs=0.03 * found["step"])
