"""What object stores charge for being read: requests, and bytes that leave the region.

List prices of standard storage, in dollars. They change seldom; who pays others gives their own.
"""

from dataclasses import dataclass


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
        """What so many of each cost; None where a price that is needed is unknown."""
        parts = ((gets, self.get_usd), (lists, self.list_usd), (egress_bytes, self.egress_usd_per_byte))
        if any(count and price is None for count, price in parts):
            return None
        return sum(count * (price or 0.0) for count, price in parts)


FREE = StorePrices(get_usd=0.0, list_usd=0.0, egress_usd_per_byte=0.0, as_of="", source="not a store that charges")

# Egress is 0: the data lies in the region of the job unless its owner says otherwise.
LISTED = {
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


def prices_of(scheme: str) -> StorePrices | None:
    """By the address's scheme; None for a store whose prices are not known here (Azure)."""
    if scheme in {"file", "http", "https"}:
        return FREE
    return LISTED.get(scheme)
