"""One coordinator for the jobs of many tests, as it would be: each job has its own place there."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from obstore.store import ObjectStore

from stallwise.elastic._manifest import checkpoint_name
from stallwise.elastic._ownership import RoundIdentity
from stallwise.elastic.remote import RemoteStore
from stallwise.record.processes import die_with_parent
from tests.data.testbed.fixtures import new_bucket, seaweed
from tests.data.testbed.processes import free_ports
from tests.data.testbed.seaweed import Seaweed
from tests.elastic.lab import SECRET
from tests.elastic.saved import ROUND, upload_checkpoint

__all__ = ["bucket", "new_bucket", "port", "seaweed"]


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """Where it listens."""
    number = free_ports(1)[0]
    command = [sys.executable, "-m", "stallwise.elastic", "coordinator", "--port", str(number)]
    environment = {**os.environ, **SECRET}
    coordinator = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment, preexec_fn=die_with_parent)
    yield number
    coordinator.kill()
    coordinator.wait(30)


@pytest.fixture
def bucket(
    tmp_path: Path, seaweed: Seaweed, new_bucket: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RemoteStore]:
    """Checkpoints 10, 20 and 30, one below another session's prefix, and one of an earlier round in no list."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{new_bucket()}/one"
    store, other = (RemoteStore(one, seaweed.endpoint, tmp_path) for one in (url, f"{url}/other"))
    for one in (store, other):
        one.claim(ROUND)
    for step in (10, 20, 30):
        upload_checkpoint(store, step, b"content" * 50)
    upload_checkpoint(other, 40, b"content")
    other.close()
    half = store.draft(f"{checkpoint_name(50)}@1.1")
    half.mkdir()
    (half / "rank-00000.safetensors").write_bytes(b"x")
    store.deliver(half, ["rank-00000.safetensors"])
    store.drop(half)
    store.claim(RoundIdentity(ROUND.job, ROUND.coordinator, 1))
    yield store
    store.close()


@pytest.fixture
def objects_of(seaweed: Seaweed) -> Callable[[RemoteStore], ObjectStore]:
    """The objects that a store of checkpoints keeps."""
    return lambda store: seaweed.store(*store.shown.removeprefix("s3://").split("/", 1))
