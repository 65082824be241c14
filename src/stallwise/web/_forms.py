"""The sliders of the page: read from a query, checked, and written as the command with the same answer."""

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.errors import InputError

MAX_NODES, MAX_WORKERS, MAX_GPUS = 1024, 256, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SliderPositions:
    """One position of all of them; None: as measured, or as listed."""

    instance: str | None = None
    """Cloud and instance type, `aws/p4d.24xlarge`; None: the run's own machines."""
    nodes: int | None = None
    used: int | None = None
    """GPUs of each node."""
    workers: int | None = None
    cache: float | None = None
    """Fraction of the data found in memory."""
    network_gbit: float | None = None
    """Between nodes."""
    link_gbit: float | None = None
    """Between the GPUs of a node."""
    keep_batch: bool = False
    """The batch of all GPUs together stays; else that of each GPU."""
    spot: bool = False
    quick: bool = False
    """A spot fleet by fewer replays: an answer for a slider that moves."""
    mean_life_h: float = 12.0
    samples: float | None = None
    """Of the whole job."""
    usd_per_h: float | None = None
    """Of one of the run's own machines."""

    @property
    def listed(self) -> bool:
        """Whether rented machines are taken as the catalog has them."""
        return self.cache is None and self.network_gbit is None and self.link_gbit is None

    def whatif_words(self, run: str, global_batch: float | None) -> list[str]:
        """The words of the `stallwise whatif` command for these positions."""
        words = ["stallwise", "whatif", run]
        for option, value in (("--nodes", self.nodes), ("--gpus-per-node", self.used), ("--workers", self.workers)):
            words += [] if value is None else [option, str(value)]
        words += [] if self.cache is None else ["--cached", f"{100 * self.cache:g}%"]
        for option, rate in (("--network", self.network_gbit), ("--link", self.link_gbit)):
            words += [] if rate is None else [option, f"{rate:g}gbit"]
        return words if global_batch is None else [*words, "--global-batch", f"{global_batch:.15g}"]

    def recommend_words(self, run: str, global_batch: float | None) -> list[str]:
        """`stallwise recommend` that judges this fleet among others; it takes machines as they are listed."""
        cloud, _, name = (self.instance or "").partition("/")
        words = ["stallwise", "recommend", run, "--samples", f"{self.samples:.15g}", "--clouds", cloud]
        words += ["--instances", name, "--max-nodes", str(self.nodes or 1)]
        words += ["--scale-batch"] if global_batch is None else ["--global-batch", f"{global_batch:.15g}"]
        words += [] if self.workers is None else ["--workers", str(self.workers)]
        return [*words, "--spot-only", "--mean-life", f"{self.mean_life_h:g}h"] if self.spot else words


def sliders_of(query: Mapping[str, str]) -> SliderPositions:
    """The positions in a query; an `InputError` names what is no number or out of range."""
    return SliderPositions(
        instance=query.get("instance") or None,
        nodes=query_integer(query, "nodes", 1, MAX_NODES),
        used=query_integer(query, "used", 1, MAX_GPUS),
        workers=query_integer(query, "workers", 0, MAX_WORKERS),
        cache=query_number(query, "cache", 0.0, 1.0),
        network_gbit=query_number(query, "network_gbit", 1e-3, 1e5),
        link_gbit=query_number(query, "link_gbit", 1e-3, 1e5),
        keep_batch=query.get("batch") == "kept",
        spot=query.get("spot") == "1",
        quick=query.get("quick") == "1",
        mean_life_h=query_number(query, "mean_life_h", 1e-2, 1e5) or 12.0,
        samples=query_number(query, "samples", 1.0, 1e18),
        usd_per_h=query_number(query, "usd_per_h", 0.0, 1e6),
    )


def shell_command(words: list[str]) -> str:
    """The words as one line for a shell."""
    return shlex.join(words)


def query_number(query: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    """A number of the query within bounds; None where it is not there."""
    text = query.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{name} takes a number from {low:g} to {high:g}, not {text[:40]!r}.")
    return value


def query_integer(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """As `query_number`, without a fraction."""
    value = query_number(query, name, low, high)
    if value is not None and value != int(value):
        raise InputError(f"{name} takes a whole number, not {value:g}.")
    return None if value is None else int(value)
