"""The object store that tests of several folders share: a `conftest.py` imports these fixtures.

One server per process: pytest makes a session fixture once for every `conftest.py` that names it, so the server itself
is kept here and counts its users.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.data.testbed.seaweed import Seaweed
from tests.data.testbed.seaweed import seaweed as start_seaweed

_numbers = count()
_users: list[Seaweed] = []
_servers = contextlib.ExitStack()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real object store on loopback, for the whole session: a test takes a bucket of its own."""
    if _users:
        _users.append(_users[0])
    else:
        _users.append(_servers.enter_context(start_seaweed(tmp_path_factory.mktemp("seaweed"))))
    yield _users[0]
    _users.pop()
    if not _users:
        _servers.close()


@pytest.fixture
def new_bucket(seaweed: Seaweed) -> Iterator[Callable[..., str]]:
    """Make a bucket with these objects, `new_bucket(objects(100, 1000))`; it is gone after the test."""
    names: list[str] = []

    def make(objects: object = ()) -> str:
        name = f"bucket-{next(_numbers)}"
        seaweed.fill(name, objects)  # type: ignore[arg-type]
        names.append(name)
        return name

    yield make
    for name in names:
        seaweed.remove_bucket(name)
