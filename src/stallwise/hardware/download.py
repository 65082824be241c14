"""Download of SkyPilot's published catalog. Nothing else uses the network, and this only when asked."""

import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from stallwise.errors import InputError, OfflineError

BASE_URL = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs"
CLOUDS = ("aws", "gcp", "azure", "lambda")
SCHEMAS = ("v8", "v7", "v6", "v5")
_TIMEOUT_S = 20
_NOT_THERE = 404


def download_lists(folder: Path, clouds: Iterable[str] = CLOUDS, base_url: str = BASE_URL) -> Path:
    """Fetch `vms.csv` of each cloud from the newest schema that has it; `folder` gets SkyPilot's layout."""
    if not base_url.startswith(("http://", "https://")):
        raise InputError(f"{base_url!r} is no web address. Give one that starts with https:// or http://.")
    for cloud in clouds:
        target = folder / "v0" / cloud / "vms.csv"
        target.parent.mkdir(parents=True)
        target.write_bytes(_fetch_newest(base_url.rstrip("/"), cloud))
    return folder


def _fetch_newest(base_url: str, cloud: str) -> bytes:
    for schema in SCHEMAS:
        body = _fetch(f"{base_url}/{schema}/{cloud}/vms.csv")
        if body is not None:
            return body
    raise InputError(
        f"{base_url} publishes no price list of {cloud} (looked for schemas {', '.join(SCHEMAS)}). "
        "Name other clouds with --cloud."
    )


def _fetch(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (http(s) was checked)
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _NOT_THERE:
            return None
        reason: object = f"HTTP {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
    except (OSError, ValueError) as error:
        reason = error
    raise OfflineError(
        f"{url} could not be fetched ({reason}). Try again when online, or read a catalog you already have: "
        "`stallwise catalog import ~/.sky/catalogs`. Your prices are as they were."
    )
