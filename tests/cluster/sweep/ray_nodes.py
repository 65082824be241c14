"""A Ray cluster of several nodes on this machine: `python -m tests.cluster.sweep.ray_nodes FOLDER TRACE`.

It runs as a program of its own: Ray stays in the process it was started in. Two nodes of one core each do the work. In
the middle of a sweep one worker process is killed, then a whole node. Prints what was seen as JSON.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stallwise.cluster.sweep.cases import SimulationResult
from stallwise.cluster.sweep.local import LocalEngine
from stallwise.cluster.sweep.ray import RayEngine, ray_package, simulate_portion
from stallwise.cluster.sweep.sweep import run_sweep
from tests.cluster.sweep.sweeps import contents, made_sweep

TASK = f"ray::{simulate_portion.__name__}"


def main() -> None:
    """Start, sweep, kill, compare, and end."""
    folder, trace = Path(sys.argv[1]) / "ray", Path(sys.argv[2])  # where Ray also notes the address
    folder.mkdir()
    ray_package("auto")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "temp_dir": str(folder)},
    )
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    try:
        cluster.wait_for_nodes()
        seen = {"command": _command(cluster.address, trace), "killed": _killed(cluster, nodes)}
    finally:
        cluster.shutdown()
    print(json.dumps(seen))


def _command(address: str, trace: Path) -> Any:
    """The program on this cluster."""
    done = subprocess.run(
        (sys.executable, "-m", "stallwise", "simulate", str(trace), "--cluster", "machines=2,gpus=4",
         "--policy", "fifo,las", "--seeds", "3", "--json", "--engine", "ray", "--address", address),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def _killed(cluster: Any, nodes: list[Any]) -> dict[str, Any]:
    """Sweep while a worker process and then a whole node are killed; repeat where the sweep ended before both were.

    The kills come from a thread: while a progress callback waits, no new task starts and a node may have none at work.
    """
    sweep = made_sweep(seeds=4, jobs=600)
    expected = contents(run_sweep(sweep, engine=LocalEngine(1)))
    kills, ended = _Kills(cluster, nodes[1]), threading.Event()
    killer = threading.Thread(target=kills.run, args=(ended,), daemon=True)
    killer.start()
    answers: list[Sequence[SimulationResult]] = []
    while kills.count < 2 and len(answers) < 5:
        answers.append(run_sweep(sweep, engine=RayEngine(address=cluster.address)))
    ended.set()
    killer.join()
    return {"lost": kills.count, "same": [contents(runs) == expected for runs in answers]}


@dataclass(slots=True)
class _Kills:
    """Kills a worker of the cluster that is at work, then the node of another one."""

    cluster: Any
    node: Any
    count: int = 0

    def run(self, ended: threading.Event) -> None:
        while self.count < 2 and not ended.wait(0.01):
            raylet = psutil.Process(self.node.all_processes["raylet"][0].process.pid)
            worker = _at_work(psutil.Process() if self.count == 0 else raylet)
            if worker is None:
                continue
            if self.count == 0:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            else:
                self.cluster.remove_node(self.node, allow_graceful=False)
            self.count += 1


def _at_work(ancestor: psutil.Process) -> psutil.Process | None:
    """A worker in the middle of a task among the descendants of a process."""
    for process in ancestor.children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith(TASK):
                return process
        except psutil.Error:  # it ended meanwhile
            continue
    return None


if __name__ == "__main__":
    main()
