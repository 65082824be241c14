"""Metrics of loading for Prometheus, as a text file for node_exporter's textfile collector or any scraper.

    from stallwise.data.tools.metrics import write_gauges
    write_gauges("/var/lib/node_exporter/stallwise.prom", dataset=dataset, loader=shared_loader)

No server: the file is replaced atomically whenever the caller writes it (once per epoch, or per minute).
`prometheus_client` is imported at the first call only (13 ms, 1.4 MB); loading itself does not need it. Names end in
the unit; what only grows is a counter. It contains no secrets: a bucket is labelled by its address.
"""

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from stallwise.errors import missing_extra

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

    from stallwise.data._dataset import BucketDataset
    from stallwise.data.cache.cache import NodeCache
    from stallwise.data.shared._loader import SharedLoader

_PREFIX = "stallwise_data"
_CACHE_GAUGES = {"entries", "used_bytes", "limit_bytes"}
_PEER_GAUGES = {"members", "bypassed_now"}
_STAGING_GAUGES = {"staged_bytes", "staged", "limit_bytes", "jobs", "behind", "peak", "peak_bytes"}


class _Sample(NamedTuple):
    name: str  # without prefix and without `_total`
    value: float
    label: tuple[str, str]
    is_gauge: bool = False


class _Samples:
    """A collector of values that are read once: the account of a dataset, its cache and peers, a shared loader."""

    def __init__(
        self,
        *,
        dataset: "BucketDataset[Any] | None" = None,
        cache: "NodeCache | None" = None,
        loader: "SharedLoader | None" = None,
    ) -> None:
        self._samples: list[_Sample] = []
        if dataset is not None:
            self._samples += _account(dataset)
            cache = cache or dataset.cache
        if cache is not None:
            self._samples += _cache(cache)
        if loader is not None:
            self._samples += _staging(loader)

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value, (key, text), is_gauge in self._samples:
            family = GaugeMetricFamily if is_gauge else CounterMetricFamily
            metric = family(f"{_PREFIX}_{name}", f"Loading: {name.replace('_', ' ')}.", labels=[key])
            metric.add_metric([text], value)
            yield metric


def gauges(**sources: Any) -> str:
    """Return the text format for `dataset`, `cache` and `loader`."""
    registry = _registry(**sources)
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


def write_gauges(path: str | os.PathLike[str], **sources: Any) -> None:
    """Write the metrics of `dataset`, `cache` and `loader` to a file, replaced atomically."""
    registry = _registry(**sources)
    from prometheus_client import write_to_textfile

    write_to_textfile(os.fspath(path), registry)


def _registry(**sources: Any) -> "CollectorRegistry":
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise missing_extra("prometheus_client", "data", "Writing metrics") from None
    registry = CollectorRegistry()
    registry.register(_Samples(**sources))
    return registry


def _account(dataset: "BucketDataset[Any]") -> Iterator[_Sample]:
    account, label = dataset.account(), ("bucket", dataset.shown)
    for field in fields(account):
        name = f"{field.name[:-2]}_seconds" if field.name.endswith("_s") else field.name
        yield _Sample(name, getattr(account, field.name), label)
    spent = dataset.cost_usd()
    if spent is not None:
        yield _Sample("cost_usd", spent, label)


def _cache(cache: "NodeCache") -> Iterator[_Sample]:
    label, stat = ("cache", str(cache.folder)), cache.stat()
    for field in fields(stat):
        if field.name != "policy":
            yield _Sample(f"cache_{field.name}", getattr(stat, field.name), label, field.name in _CACHE_GAUGES)
    if cache.peers is not None:
        peers = cache.peers.stat()
        for field in fields(peers):
            name = "bypassed_now" if field.name == "bypassed" else field.name
            yield _Sample(f"peer_{name}", getattr(peers, field.name), label, name in _PEER_GAUGES)


def _staging(loader: "SharedLoader") -> Iterator[_Sample]:
    for name, value in loader.stat().items():
        yield _Sample(f"staging_{name}", value, ("group", loader.group), name in _STAGING_GAUGES)
