"""What loading does, as Prometheus reads it: plain text, for node_exporter's textfile collector or any scraper.

    from stallwise.data.gauges import write_gauges
    write_gauges("/var/lib/node_exporter/stallwise.prom", dataset=dataset, loader=shared_loader)

No server and no package: a file that is replaced in one step, written by whoever calls this (once per epoch, or per
minute). Names end in the unit; what only grows is a counter. Nothing secret is in it: a bucket goes by its address.
"""

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwise.data.cache import NodeCache
    from stallwise.data.dataset import BucketDataset
    from stallwise.data.shared_loader import SharedLoader

_PREFIX = "stallwise_data"
_GAUGES = {"entries", "used_bytes", "limit_bytes", "members", "bypassed_now"}
_STAGING_GAUGES = {"staged_bytes", "staged", "limit_bytes", "jobs", "behind", "peak", "peak_bytes"}

Line = tuple[str, str, float, dict[str, str]]
"""Name without prefix, kind, value, labels."""


def gauges(
    *,
    dataset: "BucketDataset[Any] | None" = None,
    cache: "NodeCache | None" = None,
    loader: "SharedLoader | None" = None,
) -> str:
    """The text: the account of a dataset, its cache and peers, and the staging area of a shared loader."""
    lines: list[Line] = []
    if dataset is not None:
        lines += _account(dataset)
        cache = cache or dataset.cache
    if cache is not None:
        lines += _cache(cache)
    if loader is not None:
        lines += _staging(loader)
    return "".join(_text(lines))


def write_gauges(path: str | os.PathLike[str], **what: Any) -> None:
    """Replace the file in one step, so that nobody ever reads half of it."""
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    part.write_text(gauges(**what))
    part.replace(target)


def _account(dataset: "BucketDataset[Any]") -> Iterator[Line]:
    account, labels = dataset.account(), {"bucket": dataset.shown}
    for field in fields(account):
        name = f"{field.name[:-2]}_seconds" if field.name.endswith("_s") else field.name
        yield f"{name}_total", "counter", getattr(account, field.name), labels
    spent = dataset.cost_usd()
    if spent is not None:
        yield "cost_usd_total", "counter", spent, labels


def _cache(cache: "NodeCache") -> Iterator[Line]:
    labels, stat = {"cache": str(cache.folder)}, cache.stat()
    for field in fields(stat):
        value = getattr(stat, field.name)
        if field.name != "policy":
            yield _line("cache", field.name, value, labels, is_gauge=field.name in _GAUGES)
    if cache.peers is not None:
        known = cache.peers.stat()
        for field in fields(known):
            name = "bypassed_now" if field.name == "bypassed" else field.name
            yield _line("peer", name, getattr(known, field.name), labels, is_gauge=name in _GAUGES)


def _staging(loader: "SharedLoader") -> Iterator[Line]:
    for name, value in loader.stat().items():
        yield _line("staging", name, value, {"group": loader.group}, is_gauge=name in _STAGING_GAUGES)


def _line(part: str, name: str, value: float, labels: dict[str, str], *, is_gauge: bool) -> Line:
    return (
        (f"{part}_{name}", "gauge", value, labels) if is_gauge else (f"{part}_{name}_total", "counter", value, labels)
    )


def _text(lines: list[Line]) -> Iterator[str]:
    for name, kind, value, labels in lines:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"# TYPE {_PREFIX}_{name} {kind}\n{_PREFIX}_{name}{{{shown}}} {value:.17g}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
