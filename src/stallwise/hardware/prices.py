"""How old prices are. List prices change every few months, spot prices every day."""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from stallwise.hardware.offer import Offer

STALE_AFTER_DAYS = 90


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
    """What to say about prices that are too old."""
    return (
        f"prices shown are up to {age.age_days} days old (oldest {age.oldest_as_of}). "
        "Refresh them with `stallwise catalog update`, or `stallwise catalog import ~/.sky/catalogs`."
    )
