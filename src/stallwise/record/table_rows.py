"""Tables of set-ups to predict: recognised by their header, read cell by cell, complaints with the row number.

Only the columns named in `FORMATS` are ever read. What was measured, or predicted by others, may stand in the table;
it is handed back untouched and never looked at.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.errors import InputError, nearest_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of table."""

    name: str
    marks: tuple[str, ...]
    """Columns that only this kind has."""
    required: tuple[str, ...]
    optional: tuple[str, ...]
    predicts: str
    """The column whose quantity and unit the answer has."""


_REFERENCE = ("ref_gpu", "ref_throughput")
FORMATS = (
    Format(
        name="llm",
        marks=("seqlen",),
        required=("model", "seqlen", "batch", "gpu"),
        optional=("mode", "option", *_REFERENCE),
        predicts="measured_ms",
    ),
    Format(
        name="gavel",
        marks=("placement",),
        required=("gpu", "model"),
        optional=("table", "placement", "batch_size", "n_gpus", *_REFERENCE),
        predicts="steps_per_s",
    ),
    Format(
        name="image_infer",
        marks=("img_size", "compiled"),
        required=("model", "gpu", "img_size", "batch"),
        optional=("precision", "layout", "torch", "compiled", "params_m", "fwd_gmacs", "macts", *_REFERENCE),
        predicts="samples_per_s",
    ),
    Format(
        name="image_train",
        marks=("img_size",),
        required=("model", "gpu", "img_size", "batch"),
        optional=("precision", "layout", "torch", "params_m", "fwd_gmacs", "macts", *_REFERENCE),
        predicts="samples_per_s",
    ),
    Format(
        name="network",
        marks=("precision", "n_gpus"),
        required=("gpu", "precision", "model"),
        optional=("n_gpus", "nvlink_bridge", "era", "batch_per_gpu", *_REFERENCE),
        predicts="throughput",
    ),
)

# Column: lowest and highest value that makes sense, and its unit for the complaint.
_RANGES: Mapping[str, tuple[float, float, str]] = {
    "seqlen": (1, 1e7, "tokens"),
    "batch": (1e-3, 1e7, "samples"),
    "batch_size": (1e-3, 1e9, "samples"),
    "batch_per_gpu": (0, 1e10, "samples"),
    "n_gpus": (1, 1e5, "GPUs"),
    "img_size": (8, 8192, "pixels"),
    "params_m": (1e-4, 1e7, "millions of parameters"),
    "fwd_gmacs": (1e-5, 1e6, "10⁹ multiply-accumulates"),
    "macts": (1e-4, 1e6, "10⁶ activations"),
    "ref_throughput": (1e-12, 1e15, "a speed"),
}


# What data frames write where they have nothing.
_BLANK = frozenset(("nan", "na", "n/a", "<na>", "none", "null"))


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `number` counts data rows from 1, as people do below a header."""

    cells: Mapping[str, str]
    number: int

    def error(self, message: str) -> InputError:
        """The complaint about this row."""
        return InputError(f"Row {self.number}: {message}")

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks; what stands for nothing (`nan`, `None` …) is blank."""
        found = (self.cells.get(column) or "").strip()
        return default if not found or found.lower() in _BLANK else found

    def name(self, column: str) -> str:
        """A cell that must not be blank."""
        found = self.text(column)
        if not found:
            raise self.error(f"column {column} is blank. Give a name.")
        return found

    def number_of(self, column: str) -> float | None:
        """A number within what makes sense, or None when blank."""
        text = self.text(column)
        if not text:
            return None
        low, high, unit = _RANGES[column]
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"column {column} holds {text[:40]!r}, expected a number ({unit}).") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(
                f"column {column} holds {text[:40]}, expected {low:g} to {high:g} ({unit}). Check its unit."
            )
        return value

    def required(self, column: str) -> float:
        """A number that must not be blank."""
        found = self.number_of(column)
        if found is None:
            raise self.error(f"column {column} is blank. Give a number ({_RANGES[column][2]}).")
        return found

    def count(self, column: str, default: int) -> int:
        """A whole number."""
        found = self.number_of(column)
        if found is None:
            return default
        if found != int(found):
            raise self.error(f"column {column} holds {found:g}, expected a whole number.")
        return int(found)

    def flag(self, column: str) -> bool:
        """Yes or no; blank is no."""
        text = self.text(column, "false").lower()
        if text in ("true", "yes", "1", "1.0"):
            return True
        if text in ("false", "no", "0", "0.0"):
            return False
        raise self.error(f"column {column} holds {text[:40]!r}, expected True or False.")


def read_table(path: Path) -> tuple[Format, list[str], list[TableRow]]:
    """The format, all columns in order, and the rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file. Give a CSV file in UTF-8.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file ({error}). Check its quotes.") from None
    header = [column.strip() for column in lines[0]] if lines else []
    if not any(header):
        raise InputError(f"{path} is empty. Its first line must name the columns.")
    twice = next((column for column in header if column and header.count(column) > 1), None)
    if twice:
        raise InputError(f"{path}, row 0 (the header): column {twice} is there twice. Keep one.")
    found = recognised(header, str(path))
    rows = []
    for number, cells in enumerate((cells for cells in lines[1:] if any(cells)), start=1):
        if len(cells) != len(header):
            raise InputError(f"Row {number}: found {len(cells)} cells, expected {len(header)} as in the first line.")
        rows.append(TableRow(dict(zip(header, cells, strict=True)), number))
    if not rows:
        raise InputError(f"{path} has no rows below its header.")
    return found, header, rows


def recognised(header: Sequence[str], file: str) -> Format:
    """The format whose marks are all there and that lacks no required column."""
    for found in FORMATS:
        if not all(mark in header for mark in found.marks):
            continue
        missing = [column for column in found.required if column not in header]
        if not missing:
            return found
        near = nearest_names(missing[0], header, limit=1)
        hint = f" Is it {near[0]}?" if near else f" Found: {', '.join(header)}."
        raise InputError(f"{file}, row 0 (the header): column {missing[0]} is missing.{hint}")
    known = "; ".join(f"{found.name}: {', '.join(dict.fromkeys((*found.required, *found.marks)))}" for found in FORMATS)
    raise InputError(f"{file}, row 0 (the header): no kind of table has these columns. Known are {known}.")
