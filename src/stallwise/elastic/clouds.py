"""What the clouds say about this machine's end: their metadata endpoints, believed only as far as they can be.

    AWS     PUT /latest/api/token, GET /latest/meta-data/spot/instance-action   404: nothing; 200: {"action", "time"}
    GCP     GET /computeMetadata/v1/instance/preempted                          TRUE or FALSE
    Azure   GET /metadata/scheduledevents?api-version=2020-07-01                Events with EventType Preempt

An endpoint that hangs, fails, or answers nonsense says nothing. A time it gives is cut to what the cloud grants at
most: a notice for last year or for next year is a notice for now.
"""

import datetime as dt
import email.utils
import http.client
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stallwise.elastic.codes import METADATA
from stallwise.errors import UnknownNameError

BASE = "http://169.254.169.254"
_MOST_BYTES = 65_536
_VENDORS = {"amazon": "aws", "google": "gcp", "microsoft": "azure"}


@dataclass(frozen=True, slots=True)
class Told:
    """An endpoint's notice: which one, what marks it among others, and the seconds left."""

    cloud: str
    mark: str
    grace_s: float


@dataclass(frozen=True)
class Endpoint:
    """One cloud's metadata service."""

    cloud: str
    base: str = BASE
    timeout_s: float = 1.0

    def ask(self, now: dt.datetime | None = None) -> Told | None:
        """A notice, or None: there is none, or nobody answers sensibly."""
        try:
            return _ASKED[self.cloud](self, now or dt.datetime.now(dt.UTC))
        except (OSError, ValueError, http.client.HTTPException, KeyError, TypeError, AttributeError):
            return None

    def get(self, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
        """Status and text. No proxy and no redirect: it is this machine's own address."""
        where = urlsplit(self.base)
        made = http.client.HTTPConnection(where.hostname or "", where.port or 80, timeout=self.timeout_s)
        try:
            made.request(method, where.path.rstrip("/") + path, headers=headers)
            answer = made.getresponse()
            return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
        finally:
            made.close()


def _aws(endpoint: Endpoint, now: dt.datetime) -> Told | None:
    headers = {}
    status, token = endpoint.get("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, "PUT")
    if status == 200:
        headers["X-aws-ec2-metadata-token"] = token.strip()
    status, text = endpoint.get("/latest/meta-data/spot/instance-action", headers)
    if status != 200:
        return None
    said = json.loads(text)
    if said["action"] not in ("terminate", "stop", "hibernate"):
        return None
    return Told("aws", f"{said['action']} {said.get('time')}", _left_s(said.get("time"), now, GRACE_S["aws"]))


def _gcp(endpoint: Endpoint, _: dt.datetime) -> Told | None:
    status, text = endpoint.get("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    return Told("gcp", "preempted", GRACE_S["gcp"]) if status == 200 and text.strip() == "TRUE" else None


def _azure(endpoint: Endpoint, now: dt.datetime) -> Told | None:
    status, text = endpoint.get("/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    if status != 200:
        return None
    for event in json.loads(text)["Events"]:
        if event.get("EventType") in ("Preempt", "Terminate"):
            left_s = _left_s(event.get("NotBefore"), now, GRACE_S["azure"])
            return Told("azure", str(event.get("EventId", "preempt"))[:80], left_s)
    return None


GRACE_S = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
"""What each cloud grants between notice and end."""
_ASKED: dict[str, Callable[[Endpoint, dt.datetime], Told | None]] = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _left_s(text: Any, now: dt.datetime, most_s: float) -> float:
    """Seconds until then, between 0 and what the cloud grants; a time nobody can read counts as all of that."""
    try:
        then = email.utils.parsedate_to_datetime(text) if "," in text else dt.datetime.fromisoformat(text)
        then = then if then.tzinfo else then.replace(tzinfo=dt.UTC)
        return min(max((then - now).total_seconds(), 0.0), most_s)
    except (ValueError, TypeError, OverflowError):
        return most_s


def endpoints(said: str | None = None) -> tuple[Endpoint, ...]:
    """Whom to ask: `said`, else the variable STALLWISE_METADATA, else the cloud this machine's firmware names.

    `aws`, `gcp=http://127.0.0.1:8080`, several with commas, or `none`.
    """
    text = said or os.environ.get(METADATA) or _vendor()
    found = []
    for part in (part.strip() for part in text.split(",")):
        cloud, _, base = part.partition("=")
        if cloud in ("", "none"):
            continue
        if cloud not in _ASKED:
            raise UnknownNameError("cloud with notices (aws, gcp, azure, none)", cloud, _ASKED)
        found.append(Endpoint(cloud, base or BASE))
    return tuple(found)


def _vendor() -> str:
    try:
        vendor = Path("/sys/class/dmi/id/sys_vendor").read_text().lower()
    except OSError:
        return "none"
    return next((cloud for name, cloud in _VENDORS.items() if name in vendor), "none")
