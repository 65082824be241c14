"""What a run's requests cost, by the prices it recorded or others."""

from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.hardware.object_store import FREE, StorePrices
from stallwise.record.bucket import BucketUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A run's use of its bucket with dollars."""

    use: BucketUse
    epoch_usd: float | None
    """Of an epoch that goes on as measured; None where its length or a price is unknown."""
    source: str | None


def price_use(use: BucketUse, prices: StorePrices | None, samples: int | None) -> Priced:
    """Dollars by `prices`, or by those recorded."""
    by = prices or (use.store.prices() if use.store else None)
    if by is None:
        return Priced(use=use, epoch_usd=None, source=None)
    total, lists = use.total, use.store.lists if use.store else 0
    epoch = samples or (use.store.objects if use.store else None)
    epoch_usd = None
    if epoch is not None and total.samples:
        share = epoch / total.samples
        epoch_usd = by.usd(round(total.requests * share), 0, round(total.fetched_bytes * share))
    priced = replace(use, usd=by.usd(total.requests, lists, total.fetched_bytes))
    return Priced(use=priced, epoch_usd=epoch_usd, source=said_of(by))


def with_egress(prices: StorePrices | None, egress_usd_per_gb: float | None) -> StorePrices | None:
    """The prices with another one for bytes out of the region."""
    if egress_usd_per_gb is None:
        return prices
    if prices is None:
        raise InputError("--egress needs to know the store's other prices: they are known for s3 and gs.")
    if not egress_usd_per_gb >= 0:
        raise InputError(f"--egress takes dollars per GB from 0, not {egress_usd_per_gb:g}.")
    return replace(prices, egress_usd_per_byte=egress_usd_per_gb / 1e9)


def in_brackets(prices: StorePrices | None) -> str:
    """The same, to stand behind a sum; nothing where nothing is charged."""
    return "" if prices is None or prices == FREE else f" ({said_of(prices)})"


def said_of(prices: StorePrices) -> str:
    """Where prices come from, and what egress costs: part of every sum that is shown."""
    egress = (prices.egress_usd_per_byte or 0.0) * 1e9
    dated = f"{prices.source}, {prices.as_of}" if prices.as_of else prices.source
    return f"{dated}; egress {egress:g} dollars per GB"
