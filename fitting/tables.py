"""The shared measurements as set-ups and truth, read by the product's own reader."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stallwise.analysis.tables import TableFormat, TableRow, read_table
from stallwise.hardware.catalog import Catalog

ROOT = Path(__file__).parents[1]
Vector = npt.NDArray[np.float64]


def data_folder() -> Path:
    """Where the public measurements lie (`STALLWISE_DATA`, else beside the repository)."""
    return Path(os.environ.get("STALLWISE_DATA", ROOT / "../shared/data"))


@cache
def shipped_catalog() -> Catalog:
    """The catalog without anybody's own tables."""
    return Catalog(ROOT / "fitting")


@dataclass(frozen=True)
class Measured:
    """Rows of one table with what was measured."""

    format: TableFormat
    rows: tuple[TableRow, ...]
    truth: Vector


def measured(folder: Path, file: str) -> Measured:
    """One shared table; here, and only here, the column of the truth is read."""
    found, _, rows = read_table(folder / "throughput" / file)
    truth = [float(row.cells[found.predicts]) for row in rows]
    return Measured(found, tuple(rows), np.array(truth))
