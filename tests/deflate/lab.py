"""Ranks of one job on this machine, without an agent."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.data.testbed.processes import free_ports

JOB = Path(__file__).with_name("job.py")


def train(root: Path, world: int, *arguments: str) -> None:
    """Run the job to its end."""
    root.mkdir(parents=True, exist_ok=True)
    port = free_ports(1)[0]
    command = [sys.executable, str(JOB), "--folder", str(root / "run"), "--log", str(root / "logs"), *arguments]
    started = []
    for rank in range(world):
        named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
        known = {name: str(value) for name, value in named.items()}
        environment = {
            **os.environ, **known, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
            "STALLWISE_DOORS": str(root / "doors"),
        }  # fmt: skip
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        said = [process.communicate(timeout=250)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), b"\n".join(said)[-4000:].decode()


def steps(root: Path) -> list[dict[str, Any]]:
    """Lines of all ranks; each with its rank."""
    found = []
    for path in sorted((root / "logs").glob("*.jsonl")):
        rank = int(path.name.partition("-")[0])
        found += [{"rank": rank, **json.loads(line)} for line in path.read_text().splitlines()]
    return found


def weights(root: Path) -> list[float]:
    found: list[float] = json.loads((root / "logs" / "weights.json").read_text())
    return found
