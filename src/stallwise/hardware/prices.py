"""Ages of prices, and the list prices of object stores and of data transfer.

Store and transfer prices are those of standard storage in the first tier. They differ by region and volume and change
seldom; who pays others gives their own.
"""

import datetime as dt
import os
from collections.abc import Iterable
from dataclasses import dataclass

from stallwise.hardware.instance import Offer
from stallwise.units import GB

STALE_AFTER_DAYS = 90


def current_date() -> dt.date:
    """The date to which ages of prices are counted: SOURCE_DATE_EPOCH where it is set, otherwise this day."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    if seconds.isdecimal():
        return dt.datetime.fromtimestamp(int(seconds), dt.UTC).date()
    return dt.date.today()


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceAge:
    """The span of dates of some prices, and the age of the oldest."""

    oldest_as_of: dt.date
    newest_as_of: dt.date
    age_days: int

    @property
    def stale(self) -> bool:
        """Whether the oldest price is too old to rely on."""
        return self.age_days > STALE_AFTER_DAYS


def price_age(offers: Iterable[Offer], today: dt.date) -> PriceAge | None:
    """Age of the prices of what is still sold; `None` where there is none.

    The last price of a retired type is as fresh as it will ever be, so it does not count.
    """
    dates = {offer.origin.as_of for offer in offers if offer.instance.retired_on is None}
    if not dates:
        return None
    oldest, newest = min(dates), max(dates)
    return PriceAge(oldest_as_of=oldest, newest_as_of=newest, age_days=max(0, (today - oldest).days))


def stale_sentence(age: PriceAge) -> str:
    """A warning about prices that are too old."""
    return (
        f"prices shown are up to {age.age_days} days old (oldest {age.oldest_as_of}). "
        "Refresh them with `stallwise catalog update`, or `stallwise catalog import ~/.sky/catalogs`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePrices:
    """Dollars for one GET, one LIST page and one byte out of the region. `None`: no source gives it."""

    get_usd: float | None
    list_usd: float | None
    egress_usd_per_byte: float | None
    """To where the job runs: 0 inside the store's region."""
    as_of: str
    source: str

    def usd(self, gets: int, lists: int, egress_bytes: int) -> float | None:
        """Dollars for these numbers of requests and bytes; None where a price that is needed is unknown."""
        parts = ((gets, self.get_usd), (lists, self.list_usd), (egress_bytes, self.egress_usd_per_byte))
        if any(count and price is None for count, price in parts):
            return None
        return sum(count * (price or 0.0) for count, price in parts)


FREE_STORE = StorePrices(
    get_usd=0.0, list_usd=0.0, egress_usd_per_byte=0.0, as_of="", source="not a store that charges"
)

# Egress is 0: the data lies in the region of the job unless its owner says otherwise.
STORE_PRICES = {
    "s3": StorePrices(
        get_usd=0.0004e-3,
        list_usd=0.005e-3,
        egress_usd_per_byte=0.0,
        as_of="2021",
        source="S3 standard, first tier, as quoted by secondary sources",
    ),
    "gs": StorePrices(
        get_usd=0.004e-4,
        list_usd=0.05e-4,
        egress_usd_per_byte=0.0,
        as_of="2021-01",
        source="Google Cloud Storage price page, regional standard, class B and class A operations",
    ),
}


def store_prices(scheme: str) -> StorePrices | None:
    """List prices of the store with this URL scheme; None where they are not known (Azure)."""
    if scheme in {"file", "http", "https"}:
        return FREE_STORE
    return STORE_PRICES.get(scheme)


_HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPrices:
    """Dollars of one cloud. `None`: no source gives it."""

    to_region_usd_per_gb: float | None
    """To another region of the same cloud."""
    out_usd_per_gb: float | None
    """To anywhere else."""
    kept_usd_per_gb_month: float | None
    as_of: str = "2025"
    source: str = "price pages, first tier, from memory"


FREE_TRANSFER = TransferPrices(to_region_usd_per_gb=0.0, out_usd_per_gb=0.0, kept_usd_per_gb_month=None)

TRANSFER_PRICES = {
    "aws": TransferPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.09, kept_usd_per_gb_month=0.023),
    "azure": TransferPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.087, kept_usd_per_gb_month=0.0184),
    "gcp": TransferPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.12, kept_usd_per_gb_month=0.020),
    "lambda": FREE_TRANSFER,
}
_UNKNOWN_TRANSFER = TransferPrices(to_region_usd_per_gb=None, out_usd_per_gb=None, kept_usd_per_gb_month=None)


def transfer_usd(data_bytes: float, source: tuple[str, str], target: tuple[str, str]) -> float | None:
    """Dollars for moving data from one (cloud, region) to another: 0 inside a region, None where no price is known."""
    if source == target:
        return 0.0
    prices = TRANSFER_PRICES.get(source[0], _UNKNOWN_TRANSFER)
    rate = prices.to_region_usd_per_gb if source[0] == target[0] else prices.out_usd_per_gb
    return None if rate is None else data_bytes / GB * rate


def storage_usd_per_h(data_bytes: float, cloud: str) -> float | None:
    """Dollars per hour for a copy in that cloud's object store; None where no price is known."""
    rate = TRANSFER_PRICES.get(cloud, _UNKNOWN_TRANSFER).kept_usd_per_gb_month
    return None if rate is None else data_bytes / GB * rate / _HOURS_PER_MONTH
