"""Spot prices that move, and fleets that follow them: a price above which no machine is held, or a spend to keep to.

    static      a fixed number of machines, whatever they cost
    cap         the same machines, none while one costs more than the cap (a bid)
    dynamic     as many machines as a steady spend buys: n(t) = spend / price(t), within limits

A machine that is let go because of its price is not lost: the job saves first and goes on where it was. The idea of
clusters that grow while machines are cheap is that of Li, Walls, Xu & Guo (ICAC 2019), who added them by hand.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError, UnknownNameError
from stallwise.inputs import bounded_nesting, read_text
from stallwise.spot.lifetimes.log import Floats
from stallwise.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]
DAY_S = 24.0 * SECONDS_PER_HOUR
# A replay that begins closer to the end of the series sees its last price for longer than that price was seen.
_ROOM = 2.0


@dataclass(frozen=True)
class SpotPrices:
    """Dollars per machine-hour on spot: `usd_per_h[i]` from `at_s[i]` to `at_s[i + 1]`, the last to `end_s`."""

    at_s: Floats
    usd_per_h: Floats
    end_s: float
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.at_s) == 0 or np.any(np.diff(self.at_s) <= 0) or self.end_s < self.at_s[-1]:
            raise InputError(f"The prices {self.name or 'given'} need times that go forward. Sort them.")
        if not np.all(np.isfinite(self.usd_per_h)) or np.any(self.usd_per_h <= 0):
            raise InputError(f"The prices {self.name or 'given'} need to be above 0. Correct or leave out the others.")

    @property
    def days(self) -> float:
        """Length of the series in days."""
        return (self.end_s - float(self.at_s[0])) / DAY_S

    @property
    def spans_s(self) -> Floats:
        """Seconds that each price held."""
        return np.diff(np.append(self.at_s, self.end_s))

    @property
    def mean_usd_per_h(self) -> float:
        """Price averaged over time."""
        spans_s = self.spans_s
        return float(np.dot(self.usd_per_h, spans_s) / spans_s.sum()) if spans_s.sum() else float(self.usd_per_h[-1])

    def quantile(self, fraction: float) -> float:
        """The price that is not exceeded in this fraction of the time."""
        order = np.argsort(self.usd_per_h)
        below = np.cumsum(self.spans_s[order])
        place = int(np.searchsorted(below, fraction * below[-1]))
        return float(self.usd_per_h[order][min(place, len(order) - 1)])

    def starts(self, count: int, work_s: float) -> Floats:
        """Times to start replays at, evenly over the series, with room for the job where there is some."""
        first, last = float(self.at_s[0]), max(float(self.at_s[0]), self.end_s - _ROOM * work_s)
        return np.linspace(first, last, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """How the fleet follows the price; without any limit it does not (static)."""

    cap_usd_per_h: float = math.inf
    """No spot machine is held while its price is above this."""
    spend_usd_per_h: float | None = None
    """As many spot machines as this buys; None: a fixed number."""
    least: int = 0
    most: int | None = None
    """With a spend: never fewer, never more; None: twice the fleet."""

    def __post_init__(self) -> None:
        if self.cap_usd_per_h <= 0 or (self.spend_usd_per_h is not None and self.spend_usd_per_h <= 0):
            raise InputError("A price cap and a spend per hour must be above 0.")
        if self.least < 0 or (self.most is not None and self.most < max(1, self.least)):
            raise InputError(f"A fleet of {self.least} to {self.most} machines is none. Give a largest size from 1.")

    @property
    def moves(self) -> bool:
        """Whether the price changes the fleet at all."""
        return math.isfinite(self.cap_usd_per_h) or self.spend_usd_per_h is not None

    def most_of(self, machines: int) -> int:
        """Largest number of spot machines."""
        if self.spend_usd_per_h is None:
            return machines
        return 2 * machines if self.most is None else self.most

    def sizes(self, usd_per_h: Floats, machines: int) -> Ints:
        """Number of spot machines to hold at each price."""
        if self.spend_usd_per_h is None:
            sizes = np.full(len(usd_per_h), machines)
        else:
            sizes = np.floor(self.spend_usd_per_h / usd_per_h + 1e-9)
            sizes = np.clip(sizes, self.least, self.most_of(machines))
        return np.where(usd_per_h <= self.cap_usd_per_h, sizes, 0).astype(np.int64)


STATIC = PriceRule()


def steady_spend(prices: SpotPrices, machines: int) -> PriceRule:
    """The dynamic rule that spends on average what the static fleet does: the mean price times its machines."""
    return PriceRule(spend_usd_per_h=prices.mean_usd_per_h * machines)


@dataclass(frozen=True, slots=True)
class PriceTrack:
    """Prices and fleet sizes as the compiled loops take them: relative to a base price, with running sums."""

    at_s: Floats
    relative: Floats
    paid_s: Floats
    """∫ relative price dt up to each time."""
    sizes: Ints
    """Spot machines to hold."""
    starts_s: Floats


def follow_prices(
    prices: SpotPrices | None, rule: PriceRule, machines: int, base: float, count: int, work_s: float
) -> PriceTrack:
    """Apply a rule to prices. `base` is the spot price the loops multiply by; without prices every hour costs that."""
    if prices is None:
        if rule.moves:
            raise InputError("A price cap or a spend needs prices that move.", fields=("price_history",))
        one = np.ones(1)
        return PriceTrack(np.zeros(1), one, np.zeros(1), np.full(1, machines, dtype=np.int64), np.zeros(count))
    if base <= 0:
        raise InputError("Prices that move need a spot price above 0 to be measured against.")
    sizes = rule.sizes(prices.usd_per_h, machines)
    if not sizes.any():
        raise InputError(
            f"The price was never at or below {rule.cap_usd_per_h:g} $/h (least {prices.usd_per_h.min():.4g}), so no "
            "machine would ever be held. Allow a higher price.",
            fields=("price_cap", "spend"),
        )
    relative = prices.usd_per_h / base
    paid_s = np.concatenate([[0.0], np.cumsum(relative[:-1] * np.diff(prices.at_s))])
    return PriceTrack(prices.at_s.astype(np.float64), relative, paid_s, sizes, prices.starts(count, work_s))


_NAMES = {
    "time": ("date", "time", "timestamp"),
    "usd_per_h": ("spot_usd_h", "usd_per_h", "spot_usd_per_h", "spotprice", "spot_price", "price"),
    "instance": ("instance_type", "instancetype", "instance"),
    "zone": ("az", "zone", "availabilityzone", "availability_zone"),
}


def read_prices(path: Path, *, instance: str | None = None, zone: str | None = None) -> SpotPrices:
    """Read spot prices over time of one instance type in one zone: CSV, Parquet, or AWS's JSON.

    date,spot_usd_h                          one type in one zone
    date,instance_type,az,spot_usd_h         several; an instance type and a zone are chosen
    {"SpotPriceHistory": [{"Timestamp": …, "InstanceType": …, "AvailabilityZone": …, "SpotPrice": "0.91"}, …]}
    """
    table = _named(_frame(path), path)
    for column, field, name in (("instance", "instance", instance), ("zone", "price_zone", zone)):
        table = _select(table, column, field, name, path)
    table = _timed(table, path).drop_nulls().unique("at_s", keep="last").sort("at_s")
    if table.height < 2:
        raise InputError(f"{path} has {table.height} prices; two are the least that can move. Check the file.")
    at_s = table["at_s"].to_numpy()
    end_s = float(at_s[-1] + np.median(np.diff(at_s)))
    name = " in ".join(part for part in (instance, zone) if part) or path.name
    return SpotPrices(at_s - at_s[0], table["usd_per_h"].to_numpy(), end_s - float(at_s[0]), name)


def _frame(path: Path) -> "pl.DataFrame":
    import polars as pl

    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        text = read_text(path, "utf-8")
        if text.lstrip().startswith("{"):
            with bounded_nesting(path, "a price history"):
                return pl.DataFrame(json.loads(text)["SpotPriceHistory"])
        return pl.read_csv(text.encode())
    except OSError as error:
        raise InputError(f"The prices {path} cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        raise InputError(
            f"{path} holds no prices: a CSV or Parquet table with date and spot_usd_h was expected, or the answer of "
            "aws ec2 describe-spot-price-history. Check the file."
        ) from None


def _named(frame: "pl.DataFrame", path: Path) -> "pl.DataFrame":
    """Rename the columns that are known to our names and drop the others."""
    import polars as pl

    lower = {column.lower(): column for column in frame.columns}
    columns = {ours: next((lower[name] for name in names if name in lower), None) for ours, names in _NAMES.items()}
    for needed in ("time", "usd_per_h"):
        if columns[needed] is None:
            raise InputError(f"{path} has no column {_NAMES[needed][0]}; it has {', '.join(frame.columns)[:120]}.")
    return frame.select(pl.col(theirs).alias(ours) for ours, theirs in columns.items() if theirs is not None)


def _select(table: "pl.DataFrame", column: str, field: str, name: str | None, path: Path) -> "pl.DataFrame":
    """Keep the rows of one instance type or zone; where there are several, one has to be named."""
    if column not in table.columns:
        return table
    names = sorted(str(value) for value in table[column].unique().to_list())
    if name is None and len(names) > 1:
        some = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
        raise InputError(f"{path} has prices of {len(names)} {column}s ({some}). Choose one.", fields=(field,))
    if name is not None and name not in names:
        raise UnknownNameError(f"{column} with prices in {path}", name, names)
    return (table if name is None else table.filter(table[column] == name)).drop(column)


def _timed(table: "pl.DataFrame", path: Path) -> "pl.DataFrame":
    """Convert times to seconds and prices to numbers."""
    import polars as pl

    time = pl.col("time")
    if table["time"].dtype == pl.String:
        try:
            plain = table["time"].str.slice(0, 19).str.replace(" ", "T")
            dated = plain.str.len_chars().max() == len("2026-01-31")
            kind = pl.Date if dated else pl.Datetime("us")
            table = table.with_columns(plain.str.strptime(kind, "%Y-%m-%d" if dated else "%Y-%m-%dT%H:%M:%S"))
        except pl.exceptions.PolarsError:
            raise InputError(f"{path}: a time not like 2026-01-31 or 2026-01-31T14:05:00. Correct it.") from None
    if table["time"].dtype.is_temporal():
        time = time.cast(pl.Datetime("us")).dt.epoch("us") / 1e6
    try:
        return table.select(time.cast(pl.Float64).alias("at_s"), pl.col("usd_per_h").cast(pl.Float64))
    except pl.exceptions.PolarsError:
        raise InputError(f"{path}: a price or a time that is no number. Correct it.") from None
