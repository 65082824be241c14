"""What moving and keeping data costs: bytes that leave a region or a cloud, and a copy that is kept.

List prices of standard object storage and transfer in the first tier, from memory of the clouds' price pages (2025).
They differ by region and volume.
"""

from dataclasses import dataclass

from stallwise.units import GB

_HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingPrices:
    """Dollars of one cloud. `None`: no source gives it."""

    to_region_usd_per_gb: float | None
    """To another region of the same cloud."""
    out_usd_per_gb: float | None
    """To anywhere else."""
    kept_usd_per_gb_month: float | None
    as_of: str = "2025"
    source: str = "price pages, first tier, from memory"


FREE = MovingPrices(to_region_usd_per_gb=0.0, out_usd_per_gb=0.0, kept_usd_per_gb_month=None)

LISTED = {
    "aws": MovingPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.09, kept_usd_per_gb_month=0.023),
    "azure": MovingPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.087, kept_usd_per_gb_month=0.0184),
    "gcp": MovingPrices(to_region_usd_per_gb=0.02, out_usd_per_gb=0.12, kept_usd_per_gb_month=0.020),
    "lambda": FREE,
}
_UNKNOWN = MovingPrices(to_region_usd_per_gb=None, out_usd_per_gb=None, kept_usd_per_gb_month=None)


def moving_usd(data_bytes: float, source: tuple[str, str], target: tuple[str, str]) -> float | None:
    """From one (cloud, region) to another, once: 0 inside a region, None where no price is known."""
    if source == target:
        return 0.0
    prices = LISTED.get(source[0], _UNKNOWN)
    rate = prices.to_region_usd_per_gb if source[0] == target[0] else prices.out_usd_per_gb
    return None if rate is None else data_bytes / GB * rate


def keeping_usd_per_h(data_bytes: float, cloud: str) -> float | None:
    """A copy in that cloud's object store, per hour; None where no price is known."""
    rate = LISTED.get(cloud, _UNKNOWN).kept_usd_per_gb_month
    return None if rate is None else data_bytes / GB * rate / _HOURS_PER_MONTH
