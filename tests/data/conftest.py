"""The servers that the tests of `data/` share: started once, at first use."""

from collections.abc import Iterator

import pytest

from tests.data.testbed.fixtures import new_bucket, seaweed
from tests.data.testbed.proxy import Proxy, fault_proxy
from tests.data.testbed.seaweed import Seaweed

__all__ = ["new_bucket", "seaweed"]


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
