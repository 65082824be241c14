"""A Ray cluster of several nodes on this machine, for the tests: `python -m tests.cluster.ray_nodes FOLDER TRACE`.

It runs as a program of its own: Ray stays in the process it was started in. Two nodes of one core each do the work. In
the middle of a sweep one worker process is killed, then a whole node. Prints what was seen as JSON.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from stallwise.cluster.engines.local import Local
from stallwise.cluster.engines.on_ray import OnRay, portion_simulated, ray_package
from stallwise.cluster.sweep import Run, run_sweep
from tests.cluster.sweeps import contents, made_sweep

TASK = f"ray::{portion_simulated.__name__}"


def main() -> None:
    """Start, sweep, kill, compare, and end."""
    folder, trace = Path(sys.argv[1]) / "ray", Path(sys.argv[2])  # where Ray also notes the address
    folder.mkdir()
    ray_package()
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
    """A sweep that loses a worker, then the node of another one."""
    sweep = made_sweep(seeds=4, jobs=600)
    expected = run_sweep(sweep, engine=Local(1))
    lost: list[int] = []

    def tell(what: str, done: int, of: int) -> None:
        if len(lost) == 0 and done >= of // 8:
            process = _at_work(None)
            process.kill()
            lost.append(process.pid)
        elif len(lost) == 1 and done >= of // 3:
            lost.append(_at_work(nodes[1]).pid)
            cluster.remove_node(nodes[1], allow_graceful=False)

    found: list[Run] = run_sweep(sweep, tell, engine=OnRay(address=cluster.address))
    return {"lost": len(lost), "runs": len(found), "same": contents(found) == contents(expected)}


def _at_work(node: Any) -> psutil.Process:
    """A worker in the middle of a task, of a node or of any."""
    above = psutil.Process() if node is None else psutil.Process(node.all_processes["raylet"][0].process.pid)
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        for process in above.children(recursive=True):
            try:
                if process.cmdline()[:1] and process.cmdline()[0].startswith(TASK):
                    return process
            except psutil.Error:  # it ended meanwhile
                continue
    raise SystemExit("No worker was at work.")


if __name__ == "__main__":
    main()
