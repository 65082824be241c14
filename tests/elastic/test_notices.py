"""Revocation notices: metadata endpoints that answer, lie and hang."""

import datetime as dt
import socket
import threading
import time

import pytest

from stallwise.elastic._notices import Endpoint, NoticeWatcher, metadata_endpoints
from stallwise.errors import UnknownNameError
from tests.elastic.test_losses import metadata
from tests.waiting import until

NOW = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("answer", "grace_s"),
    [
        ('{"action": "terminate", "time": "2026-11-15T12:01:30Z"}', 90.0),
        ('{"action": "terminate", "time": "1970-01-01T00:00:00Z"}', 0.0),
        ('{"action": "terminate", "time": "9999-12-31T23:59:59Z"}', 120.0),
        ('{"action": "stop", "time": "soon"}', 120.0),
        ('{"action": "terminate"}', 120.0),
        ("[]", None),
        ('{"action": "dance"}', None),
        ("<html>", None),
        ("\0" * 100_000, None),
        (None, None),
    ],
)
def test_aws_is_believed_as_far_as_it_can_be(answer: str | None, grace_s: float | None) -> None:
    with metadata(lambda: answer) as where:
        notice = metadata_endpoints(where)[0].query(NOW)
    assert (None if notice is None else notice.grace_s) == grace_s


def test_gcp_and_azure() -> None:
    events = '{"Events": [{"EventId": "a", "EventType": "Freeze"}, %s]}'
    preempt = '{"EventId": "b", "EventType": "Preempt", "NotBefore": "Sun, 15 Nov 2026 12:00:20 GMT"}'
    with metadata(lambda: "TRUE") as where:
        notice = Endpoint("gcp", where.removeprefix("aws=")).query(NOW)
        assert notice is not None
        assert notice.grace_s == 30
    with metadata(lambda: events % preempt) as where:
        notice = Endpoint("azure", where.removeprefix("aws=")).query(NOW)
        assert notice is not None
        assert (notice.mark, notice.grace_s) == ("b", 20.0)
    with metadata(lambda: "FALSE") as where:
        assert Endpoint("gcp", where.removeprefix("aws=")).query(NOW) is None
    with pytest.raises(UnknownNameError):
        metadata_endpoints("asw")
    assert metadata_endpoints("none") == ()


def test_an_endpoint_that_hangs_costs_nothing() -> None:
    """It accepts and never answers; the watcher's thread waits, nobody else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted: list[socket.socket] = []
        threading.Thread(target=lambda: accepted.append(server.accept()[0]), daemon=True).start()
        begin_s = time.monotonic()
        watcher = NoticeWatcher([Endpoint("aws", f"http://127.0.0.1:{server.getsockname()[1]}", 120.0)], every_s=0.05)
        until(lambda: accepted)
        assert watcher.notice is None
        assert time.monotonic() - begin_s < 100, "less than its time-out"
        watcher.close()
        accepted[0].close()
