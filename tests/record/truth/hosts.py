"""Several hosts on one machine, as `stallwise study` makes them; without root a test says what it lacks."""

import contextlib
from collections.abc import Iterator, Sequence

from stallwise.errors import MissingFeatureError
from stallwise.machine import _study_hosts as study_hosts
from stallwise.machine._study_hosts import StudyHost as Host
from stallwise.units import parse_rate
from tests.conftest import lacks

__all__ = ["Host", "hosts_at_a_switch", "shape", "two_hosts"]

_BURST_BYTES = 256 << 10


@contextlib.contextmanager
def hosts_at_a_switch(count: int) -> Iterator[tuple[Host, ...]]:
    """Make the hosts and the switch between them; remove them afterwards, whatever happens."""
    try:
        study_hosts.require_shaping()
    except MissingFeatureError:
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    with study_hosts.study_hosts(count) as hosts:
        yield hosts


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The smallest network."""
    with hosts_at_a_switch(2) as (first, second):
        yield first, second


def shape(hosts: Sequence[Host], rate_mbit: int) -> None:
    """Limit what each host sends to `rate_mbit`."""
    study_hosts.shape(hosts, parse_rate(f"{rate_mbit}mbit"), _BURST_BYTES)
