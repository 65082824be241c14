"""Ranks that a real Slurm starts."""

import json
import os
import sys

from tests.conftest import Cli
from tests.record.jobs import JOBS
from tests.slurm.cluster import free_port
from tests.slurm.site import PATIENCE_S, Site


def test_srun_starts_the_recorder_on_two_nodes(site: Site, ask: Cli) -> None:
    script = [str(JOBS / "srun_job.py"), "--port", str(free_port()), "--steps", "170"]
    ranks = ["srun", "-N2", "--ntasks-per-node=2"]
    done = site.run(*ranks, sys.executable, "-m", "stallwise.record", *script)
    assert done.returncode == 0, done.stderr
    (run,) = (site.folder / "stallwise-runs").iterdir()
    assert run.name.startswith("srun_job-")
    assert f"stallwise run join stallwise-runs/{run.name}" in done.stderr
    found = json.loads(ask("run", "join", "--json", str(run)).stdout)
    assert found["state"] == "complete", found["partial_reason"]
    assert found["counts"]["ranks_seen"] == found["world"]["world_size"] == 4
    assert found["world"]["nnodes"] == len(found["nodes"]) == 2
    steps = {phase["name"]: phase["steps"] for phase in found["phases"]}
    assert steps["node only"] > 0, "ranks per node are known from Slurm"
    assert steps["no exchange"] > 0


def test_the_launcher_says_no_to_being_started_as_a_rank(site: Site) -> None:
    folder = site.folder / "empty"
    folder.mkdir()
    done = site.cluster.run(
        "srun",
        "-n2",
        sys.executable,
        "-m",
        "stallwise",
        "profile",
        str(JOBS / "train.py"),
        cwd=folder,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "python -m stallwise.record" in done.stderr
    assert os.listdir(folder) == []  # noqa: PTH208
