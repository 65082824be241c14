"""Reads spot prices over time: a table (CSV or Parquet), or what `aws ec2 describe-spot-price-history` prints.

date,spot_usd_h                          one type in one zone
date,instance_type,az,spot_usd_h         many; an instance type and a zone are chosen
{"SpotPriceHistory": [{"Timestamp": …, "InstanceType": …, "AvailabilityZone": …, "SpotPrice": "0.91"}, …]}
"""

import json
from pathlib import Path

import numpy as np
import polars as pl

from stallwise.errors import InputError, UnknownNameError
from stallwise.spot.plan.price import Prices

_NAMES = {
    "time": ("date", "time", "timestamp"),
    "usd_per_h": ("spot_usd_h", "usd_per_h", "spot_usd_per_h", "spotprice", "spot_price", "price"),
    "instance": ("instance_type", "instancetype", "instance"),
    "zone": ("az", "zone", "availabilityzone", "availability_zone"),
}


def read_prices(path: Path, *, instance: str | None = None, zone: str | None = None) -> Prices:
    """The prices of one instance type in one zone; a sentence where the file does not say which, or is none."""
    table = _named(_frame(path), path)
    for column, option, wanted in (("instance", "--instance", instance), ("zone", "--price-zone", zone)):
        table = _chosen(table, column, option, wanted, path)
    table = _timed(table, path).drop_nulls().unique("at_s", keep="last").sort("at_s")
    if table.height < 2:
        raise InputError(f"{path} has {table.height} prices; two are the least that can move. Check the file.")
    at_s = table["at_s"].to_numpy()
    end_s = float(at_s[-1] + np.median(np.diff(at_s)))
    name = " in ".join(part for part in (instance, zone) if part) or path.name
    return Prices(at_s - at_s[0], table["usd_per_h"].to_numpy(), end_s - float(at_s[0]), name)


def _frame(path: Path) -> pl.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return pl.DataFrame(json.loads(text)["SpotPriceHistory"])
        return pl.read_csv(text.encode())
    except OSError as error:
        raise InputError(f"The prices {path} cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, KeyError, TypeError, pl.exceptions.PolarsError):
        raise InputError(
            f"{path} holds no prices: a CSV or Parquet table with date and spot_usd_h was expected, or the answer of "
            "aws ec2 describe-spot-price-history. Check the file."
        ) from None


def _named(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """The columns by our names, as far as there are any."""
    lower = {column.lower(): column for column in frame.columns}
    found = {ours: next((lower[name] for name in names if name in lower), None) for ours, names in _NAMES.items()}
    for needed in ("time", "usd_per_h"):
        if found[needed] is None:
            raise InputError(f"{path} has no column {_NAMES[needed][0]}; it has {', '.join(frame.columns)[:120]}.")
    return frame.select(pl.col(theirs).alias(ours) for ours, theirs in found.items() if theirs is not None)


def _chosen(table: pl.DataFrame, column: str, option: str, wanted: str | None, path: Path) -> pl.DataFrame:
    """Only rows of the wanted instance type or zone; of several one has to be named."""
    if column not in table.columns:
        return table
    known = sorted(str(value) for value in table[column].unique().to_list())
    if wanted is None and len(known) > 1:
        some = ", ".join(known[:8]) + (" …" if len(known) > 8 else "")
        raise InputError(f"{path} has prices of {len(known)} {column}s ({some}). Choose one with {option}.")
    if wanted is not None and wanted not in known:
        raise UnknownNameError(f"{column} with prices in {path}", wanted, known)
    return (table if wanted is None else table.filter(pl.col(column) == wanted)).drop(column)


def _timed(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Times as seconds, prices as numbers."""
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
