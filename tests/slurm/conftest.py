"""A real Slurm of eight nodes in two racks, four fake GPUs each, for the whole session; every test leaves it idle.

Tests wait for what happens, and compare Slurm's and the controller's own times and the order of things; no test counts
on something taking less than so many seconds.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, slurm
from tests.slurm.killing import load
from tests.slurm.site import Site

# The grace of a TERM is Slurm's KillWait; tests need not wait half a minute for it. Slurm may look at released jobs
# up to 3 s late by default.
SETTINGS = ("KillWait=3", "SchedulerParameters=batch_sched_delay=0", "PartitionName=other Nodes=ALL State=UP")


@pytest.fixture(scope="session")
def two_racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    load()  # the scheduler's kernels are compiled by their first use, which must not fall into a test
    with slurm(tmp_path_factory.mktemp("slurm8"), nodes=8, cpus=8, gpus=4, racks=2, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def site(two_racks: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(two_racks, tmp_path)
    yield made
    made.quiet()
