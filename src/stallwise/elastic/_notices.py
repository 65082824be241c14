"""Notices that this machine is revoked: SIGTERM, and the clouds' metadata endpoints.

The signal is caught as soon as a rank starts, so that a notice during imports, compilation or the first step is not
missed. Endpoints are polled by one thread of the first rank of a machine, never by the training loop:

    AWS     PUT /latest/api/token, GET /latest/meta-data/spot/instance-action   404: nothing; 200: {"action", "time"}
    GCP     GET /computeMetadata/v1/instance/preempted                          TRUE or FALSE
    Azure   GET /metadata/scheduledevents?api-version=2020-07-01                Events with EventType Preempt

An endpoint that hangs, fails, or answers nonsense gives no notice. The time it states is clipped to what the cloud
grants at most: a notice for last year or for next year is a notice for now.
"""

import datetime as dt
import email.utils
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from stallwise.elastic.protocol import GRACE, IGNORED_NOTICES, METADATA
from stallwise.errors import UnknownNameError

BASE = "http://169.254.169.254"
_MAX_BYTES = 65_536
_VENDORS = {"amazon": "aws", "google": "gcp", "microsoft": "azure"}


@dataclass(frozen=True, slots=True)
class EndpointNotice:
    """An endpoint's notice: its cloud, what identifies it among others, and the seconds left."""

    cloud: str
    mark: str
    grace_s: float


@dataclass(frozen=True)
class Endpoint:
    """One cloud's metadata service."""

    cloud: str
    base: str = BASE
    timeout_s: float = 1.0

    def query(self, now: dt.datetime | None = None) -> EndpointNotice | None:
        """Query the endpoint; None where there is no notice, or no sensible answer."""
        try:
            return _QUERIES[self.cloud](self, now or dt.datetime.now(dt.UTC))
        except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def get(self, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
        """Return status and text. No proxy and no redirect: it is this machine's own address."""
        url = urlsplit(self.base)
        connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=self.timeout_s)
        try:
            connection.request(method, url.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_BYTES).decode(errors="replace")
        finally:
            connection.close()


def _aws(endpoint: Endpoint, now: dt.datetime) -> EndpointNotice | None:
    headers = {}
    status, token = endpoint.get("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, "PUT")
    if status == 200:
        headers["X-aws-ec2-metadata-token"] = token.strip()
    status, text = endpoint.get("/latest/meta-data/spot/instance-action", headers)
    if status != 200:
        return None
    action = json.loads(text)
    if action["action"] not in ("terminate", "stop", "hibernate"):
        return None
    left_s = _left_s(action.get("time"), now, GRACE_S["aws"])
    return EndpointNotice("aws", f"{action['action']} {action.get('time')}", left_s)


def _gcp(endpoint: Endpoint, _: dt.datetime) -> EndpointNotice | None:
    status, text = endpoint.get("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return EndpointNotice("gcp", "preempted", GRACE_S["gcp"]) if status == 200 and text.strip() == "TRUE" else None


def _azure(endpoint: Endpoint, now: dt.datetime) -> EndpointNotice | None:
    status, text = endpoint.get("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    if status != 200:
        return None
    for event in json.loads(text)["Events"]:
        if event.get("EventType") in ("Preempt", "Terminate"):
            left_s = _left_s(event.get("NotBefore"), now, GRACE_S["azure"])
            return EndpointNotice("azure", str(event.get("EventId", "preempt"))[:80], left_s)
    return None


GRACE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
"""Seconds that each cloud grants between notice and revocation."""
_QUERIES: dict[str, Callable[[Endpoint, dt.datetime], EndpointNotice | None]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
}


def _left_s(text: Any, now: dt.datetime, limit_s: float) -> float:
    """Return seconds until a time, between 0 and `limit_s`; an unreadable time counts as `limit_s`."""
    try:
        then = email.utils.parsedate_to_datetime(text) if "," in text else dt.datetime.fromisoformat(text)
        then = then if then.tzinfo else then.replace(tzinfo=dt.UTC)
        return min(max((then - now).total_seconds(), 0.0), limit_s)
    except (ValueError, TypeError, OverflowError):
        return limit_s


def metadata_endpoints(names: str | None = None) -> tuple[Endpoint, ...]:
    """Return the endpoints to query: `names`, else STALLWISE_METADATA, else the cloud this machine's firmware names.

    `aws`, `gcp=http://127.0.0.1:8080`, several with commas, or `none`.
    """
    text = names or os.environ.get(METADATA) or _vendor()
    selected = []
    for part in (part.strip() for part in text.split(",")):
        cloud, _, base = part.partition("=")
        if cloud in ("", "none"):
            continue
        if cloud not in _QUERIES:
            raise UnknownNameError("cloud with notices (aws, gcp, azure, none)", cloud, _QUERIES)
        selected.append(Endpoint(cloud, base or BASE))
    return tuple(selected)


def _vendor() -> str:
    try:
        vendor = Path("/sys/class/dmi/id/sys_vendor").read_text().lower()
    except OSError:
        return "none"
    return next((cloud for name, cloud in _VENDORS.items() if name in vendor), "none")


DEFAULT_GRACE_S = 30.0
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine, or this rank's membership in the round, ends at `deadline_s` (time.monotonic())."""

    source: str
    mark: str
    deadline_s: float

    @property
    def of_machine(self) -> bool:
        """Whether the machine itself is revoked; a signal may only mean that the fleet changes."""
        return self.source != "signal"


class _Signal:
    """The time of SIGTERM; None before."""

    at_s: float | None = None


def catch_signal() -> None:
    """Take SIGTERM as a notice from now on. A no-op outside the main thread, which alone can set handlers."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(_signal: int, _frame: FrameType | None) -> None:
    if _Signal.at_s is None:
        _Signal.at_s = time.monotonic()


def grace_s() -> float:
    """Return the seconds between SIGTERM and SIGKILL, as the agent says; else what most clouds grant."""
    try:
        return float(os.environ.get(GRACE, DEFAULT_GRACE_S))
    except ValueError:
        return DEFAULT_GRACE_S


class NoticeWatcher:
    """Collects the first notice from any source; each of `endpoints` is polled every second in a thread of its own."""

    def __init__(self, endpoints: Sequence[Endpoint] = (), every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._ended = threading.Event()
        self._notice: Notice | None = None
        self._ignored = set(os.environ.get(IGNORED_NOTICES, "").split("\n"))
        for endpoint in endpoints:
            threading.Thread(target=self._poll, args=(endpoint,), name="stallwise-notice", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    @property
    def notice(self) -> Notice | None:
        """The first notice; None while there is none."""
        if self._notice is not None:
            return self._notice
        if _Signal.at_s is None:
            return None
        return Notice("signal", "SIGTERM", _Signal.at_s + grace_s())

    def _poll(self, endpoint: Endpoint) -> None:
        while not self._ended.wait(self._every_s):
            notice = endpoint.query()
            if notice is not None and f"{notice.cloud} {notice.mark}" not in self._ignored:
                self._notice = Notice(notice.cloud, notice.mark, time.monotonic() + notice.grace_s)
                return
