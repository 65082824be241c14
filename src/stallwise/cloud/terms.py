"""The user's own terms: discounts, and how many GPUs they may rent where.

A rule names what it is about by words joined with `/`: cloud, region, instance type, GPU (or its family), market, in
any order: `aws=15%`, `aws/p4d.24xlarge/on-demand=30%`, `gcp/us-central1/H100=16`. All of its words have to fit an
offer. Of several discounts that fit, the largest counts; of several quotas, the smallest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import plain_name
from stallwise.hardware.offer import MARKETS, Offer
from stallwise.units import parse_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What it is about, and the part taken off the price or the GPUs that may be rented."""

    words: tuple[str, ...]
    value: float

    def fits(self, offer: Offer) -> bool:
        """Whether all its words fit the offer."""
        instance, gpu = offer.instance, offer.instance.gpu
        facets = {instance.cloud, offer.region, instance.name, gpu.name, gpu.family, offer.market}
        return set(self.words) <= {plain_name(facet) for facet in facets}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Discounts and quotas; without any, list prices and no limit."""

    discounts: tuple[Rule, ...] = ()
    quotas: tuple[Rule, ...] = ()

    def usd_per_h(self, offer: Offer) -> float:
        """The price after the largest discount that fits."""
        return offer.usd_per_h * (1.0 - max((rule.value for rule in self.discounts if rule.fits(offer)), default=0.0))

    def most_gpus(self, offer: Offer) -> float:
        """GPUs that may be rented; infinite without a quota."""
        return min((rule.value for rule in self.quotas if rule.fits(offer)), default=float("inf"))


def terms_of(
    catalog: Catalog, discounts: Iterable[str] = (), quotas: Iterable[str] = (), file: Path | None = None
) -> Terms:
    """From options like `aws/p4d.24xlarge=30%` and a YAML file with the keys `discounts` and `quotas`."""
    read = {} if file is None else _read(file)
    taken = [*(f"{key}={value}" for key, value in read.get("discounts", {}).items()), *discounts]
    limits = [*(f"{key}={value}" for key, value in read.get("quotas", {}).items()), *quotas]
    known = _known_words(catalog)
    return Terms(
        discounts=tuple(_discount(text, known) for text in taken),
        quotas=tuple(_quota(text, known) for text in limits),
    )


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML ({str(error).splitlines()[0]}).") from None
    usable = isinstance(found, dict) and all(
        key in ("discounts", "quotas") and isinstance(value, dict) for key, value in found.items()
    )
    if not usable:
        raise InputError(f"{path} must hold `discounts:` and `quotas:`, each with lines like `aws/us-east-1: 20%`.")
    checked: Mapping[str, Mapping[str, Any]] = found
    return checked


def _known_words(catalog: Catalog) -> dict[str, str]:
    names = {*catalog.clouds, *catalog.regions(), *MARKETS}
    names |= {name for _, name in catalog.instances} | set(catalog.gpus) | {gpu.family for gpu in catalog.gpus.values()}
    return {plain_name(name): name for name in names}


def _words(text: str, known: Mapping[str, str], wanted: str) -> tuple[tuple[str, ...], str]:
    left, equals, right = text.partition("=")
    words = tuple(plain_name(word) for word in left.split("/") if word.strip())
    if not equals or not words or not right.strip():
        raise InputError(f"{text!r} is not {wanted}.")
    for word, shown in zip(words, (w for w in left.split("/") if w.strip()), strict=True):
        if word not in known:
            raise UnknownNameError("cloud, region, instance type, GPU or market", shown, known.values())
    return words, right.strip()


def _discount(text: str, known: Mapping[str, str]) -> Rule:
    words, value = _words(text, known, "a discount like aws/p4d.24xlarge=30%")
    return Rule(words=words, value=parse_share(value))


def _quota(text: str, known: Mapping[str, str]) -> Rule:
    words, value = _words(text, known, "a quota of GPUs like aws/us-east-1=16")
    if not value.isdigit():
        raise InputError(f"{text!r}: a quota is a whole number of GPUs.")
    return Rule(words=words, value=float(value))
