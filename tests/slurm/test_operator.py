"""The controller with an operator's rights, on a Slurm with accounts (slurmdbd, MariaDB): they suffice, and are few."""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.slurm.accounting import accounted, add_user
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import SETTINGS
from tests.slurm.site import Site

pytestmark = pytest.mark.soak
OPERATOR, USER, STRANGER = "games", "news", "uucp"  # accounts every Debian has and nobody uses


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("accounts")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # every user reads slurm.conf
    with accounted(folder, nodes=4, cpus=8, gpus=4, racks=2, more=SETTINGS) as running:
        add_user(running, OPERATOR, "Operator")
        add_user(running, USER)
        yield running


def as_user(cluster: Cluster, user: str, *command: str) -> subprocess.CompletedProcess[str]:
    group = pwd.getpwnam(user).pw_gid
    return subprocess.run(
        command,
        user=user,
        group=group,
        extra_groups=[],
        env=cluster.environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=250,
    )


def submit(site: Site, gpus: int, seconds: float, *options: str) -> str:
    words = ["--parsable", "--hold", "--output=/dev/null", "--chdir=/", f"--export=ALL,OUT={site.folder}/out", *options]
    done = as_user(site.cluster, USER, "sbatch", *words, f"--gpus={gpus}", str(site.script), str(seconds))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_operator_is_enough_and_cannot_do_more(cluster: Cluster, tmp_path: Path) -> None:
    site = Site(cluster, tmp_path)
    for path in (tmp_path, tmp_path / "out", tmp_path / "out/pipe"):
        path.chmod(0o777)
    first = submit(site, 16, 600)
    command = [sys.executable, "-m", "tests.slurm.operating", OPERATOR, *site.schedule("dally-no-wait:lease=2")[3:]]
    process = subprocess.Popen(command, cwd=ROOT, env=cluster.environment, stderr=subprocess.PIPE, text=True)
    try:
        site.wait(lambda: site.started(first) or process.poll() is not None, "a job of another user")
        second = submit(site, 16, 1, "--no-requeue")  # its own lease may end before its script has begun
        site.wait(
            lambda: (site.ended(second) and len(site.executions(first)) > 1) or process.poll() is not None,
            "both jobs of another user",
        )
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=250)[1]
    assert process.returncode == 0, said
    assert len(site.executions(first)) == 2, "stopped at its lease's end and started again"
    assert len(site.executions(second)) == 1
    assert site.executions(first)[0].term_s is not None
    assert not site.lines("failed")
    assert os.stat(site.state / "schedule.sqlite").st_uid == pwd.getpwnam(OPERATOR).pw_uid  # noqa: PTH116
    # What it must not be able to do, and who must not be able to do what it does.
    for words in (["nodename=n1", "state=drain", "reason=no"], ["partitionname=all", "state=down"]):
        assert as_user(cluster, OPERATOR, "scontrol", "update", *words).returncode != 0
    third = submit(site, 1, 1)
    for words in (["update", f"jobid={third}", "reqnodelist=n1"], ["release", third], ["requeuehold", third]):
        assert as_user(cluster, STRANGER, "scontrol", *words).returncode != 0
    cluster.run("scancel", first, third)
