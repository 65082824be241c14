"""Loading from buckets: `python -m benchmarks data`, or one part of it, `python -m benchmarks data.link`."""

from collections.abc import Iterator

from benchmarks.harness import Result


def measure() -> Iterator[Result]:
    """All parts, the shortest first. Their modules need the test servers, so they are imported here."""
    from benchmarks.data import cached, clients, deli, link, loopback

    for part in (clients, loopback, link, cached, deli):
        yield from part.measure()
