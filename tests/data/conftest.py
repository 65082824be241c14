"""The servers that the tests of `data/` share: started once, at first use."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.data.testbed.proxy import Proxy, fault_proxy
from tests.data.testbed.seaweed import Seaweed
from tests.data.testbed.seaweed import seaweed as start_seaweed

_numbers = count()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real object store on loopback, for the whole session: a test takes a bucket of its own."""
    with start_seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def _proxy(seaweed: Seaweed) -> Iterator[Proxy]:
    with fault_proxy(seaweed) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: Proxy) -> Proxy:
    """A proxy in front of it, without faults and with counters at zero when the test begins."""
    _proxy.set()
    _proxy.reset()
    return _proxy


@pytest.fixture
def new_bucket(seaweed: Seaweed) -> Iterator[Callable[..., str]]:
    """Make a bucket with these objects, `new_bucket(objects(100, 1000))`; it is gone after the test."""
    made: list[str] = []

    def make(objects: object = ()) -> str:
        name = f"bucket-{next(_numbers)}"
        seaweed.fill(name, objects)  # type: ignore[arg-type]
        made.append(name)
        return name

    yield make
    for name in made:
        seaweed.remove_bucket(name)
