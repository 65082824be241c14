"""Where a fact comes from: its date, its sources and how far to trust it."""

import datetime as dt
from dataclasses import dataclass
from typing import Literal, get_args

Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[str, ...] = get_args(Confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The date of a fact, the keys of its sources (explained in `sources.csv`) and the confidence in it.

    *high*: read from a machine-readable source or checked against a second one. *medium*: one source, or from
    memory of vendor documentation. *low*: estimated, contradicted or known to be stale.
    """

    as_of: dt.date
    sources: tuple[str, ...]
    confidence: Confidence
