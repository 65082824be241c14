"""Rows of a table as text, and their cells as values; every complaint names file, line and column."""

import csv
import datetime as dt
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.errors import CatalogError, nearest_names


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its cells by column, and where it stands for messages. A blank cell means unknown."""

    cells: Mapping[str, str]
    file: str
    line: int

    def error(self, column: str, expected: str) -> CatalogError:
        """The complaint about one cell."""
        found = self.cells.get(column, "")
        shown = repr(found[:60]) if found else "nothing"
        return CatalogError(
            f"{self.file}, line {self.line}, column {column}: found {shown}, expected {expected}. "
            "Correct it and try again; nothing was changed."
        )

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks."""
        return (self.cells.get(column) or "").strip() or default

    def name(self, column: str) -> str:
        """A cell that must not be blank."""
        text = self.text(column)
        if not text:
            raise self.error(column, "a name")
        return text

    def number(self, column: str, *, zero: bool = False) -> float | None:
        """A positive number, or `None` when blank; zero only where it means "has none"."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, "a number") from None
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            hint = "" if zero else " (leave it blank where it is unknown)"
            raise self.error(column, f"a number {'not below' if zero else 'above'} 0{hint}")
        return value

    def scaled(self, column: str, unit: float, *, zero: bool = False) -> float | None:
        """The number times its unit."""
        value = self.number(column, zero=zero)
        return None if value is None else value * unit

    def required_number(self, column: str) -> float:
        """A positive number that must not be blank."""
        value = self.number(column)
        if value is None:
            raise self.error(column, "a number")
        return value

    def count(self, column: str) -> int | None:
        """A positive whole number, or `None` when blank."""
        value = self.number(column)
        if value is not None and value != int(value):
            raise self.error(column, "a whole number")
        return None if value is None else int(value)

    def required_count(self, column: str) -> int:
        """A positive whole number that must not be blank."""
        value = self.count(column)
        if value is None:
            raise self.error(column, "a whole number")
        return value

    def date(self, column: str, default: dt.date | None = None) -> dt.date | None:
        """A date as YYYY-MM-DD, or the default when blank."""
        text = self.text(column)
        if not text:
            return default
        try:
            return dt.date.fromisoformat(text)
        except ValueError:
            raise self.error(column, "a date like 2026-08-22") from None

    def choice(self, column: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of a few words; a blank cell is the default, or an error where there is none."""
        text = self.text(column)
        if not text and default is not None:
            return default
        if text not in allowed:
            raise self.error(column, "one of " + ", ".join(allowed))
        return text


def read_text(path: Path) -> str:
    """A text file as a string; anything else is a `CatalogError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CatalogError(f"{path} is not a text file. Give a CSV or YAML file in UTF-8.") from None
    except OSError as error:
        raise CatalogError(f"{path} cannot be read ({error.strerror}). Check the path.") from None


def csv_rows(text: str, file: str) -> Iterator[Row]:
    """The rows of CSV text with a header; blank lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        if not any(header) or "\0" in text:
            raise CatalogError(f"{file} is empty or not a CSV file. Its first line must name the columns.")
        twice = {column for column in header if header.count(column) > 1}
        if twice:
            raise CatalogError(f"{file}, line 1: column {min(twice)!r} stands there twice. Remove one.")
        for cells in reader:
            if not any(cells):
                continue
            if len(cells) != len(header):
                raise CatalogError(
                    f"{file}, line {reader.line_num}: found {len(cells)} cells, expected {len(header)} as in "
                    "the first line. Correct it and try again; nothing was changed."
                )
            yield Row(dict(zip(header, cells, strict=True)), file, reader.line_num)
    except csv.Error as error:
        raise CatalogError(
            f"{file}, line {reader.line_num}: not valid CSV ({error}). Correct it and try again; nothing was changed."
        ) from None


def header_of(text: str) -> list[str]:
    """The column names of CSV text, as far as its first line can be read."""
    try:
        return [column.strip() for column in next(csv.reader(io.StringIO(text, newline="")), [])]
    except csv.Error:
        return []


def check_columns(found: Sequence[str], file: str, line: int, *, required: Sequence[str], known: Sequence[str]) -> None:
    """Complain about a column that is missing, and about one nobody knows (most likely a slip of the pen)."""
    missing = [column for column in required if column not in found]
    if missing:
        raise CatalogError(
            f"{file}, line {line}: column {missing[0]} is missing. Found: {', '.join(found) or 'nothing'}."
        )
    for column in found:
        if column not in known:
            near = nearest_names(column, known, limit=1)
            hint = f" Did you mean {near[0]}?" if near else f" Known are: {', '.join(known)}."
            raise CatalogError(f"{file}, line {line}: there is no column {column!r}.{hint}")


def show_number(value: float | None, unit: float = 1.0) -> str:
    """A value as a cell, in its unit; blank for unknown."""
    return "" if value is None else f"{value / unit:.10g}"
