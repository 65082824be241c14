"""One coordinator for the jobs of many tests, as it would be: each job has its own place there."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from stallwise.record.processes import die_with_parent
from tests.data.testbed.processes import free_ports


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """Where it listens."""
    found = free_ports(1)[0]
    command = [sys.executable, "-m", "stallwise.elastic", "coordinator", "--port", str(found)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent) as coordinator:
        yield found
        coordinator.terminate()
