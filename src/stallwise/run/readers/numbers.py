"""What every reader does: get the text, get numbers out of it, and say where they are wrong."""

import csv
import io
import math
from collections.abc import Collection
from pathlib import Path

from stallwise.errors import InputError


def text_of(path: Path) -> str:
    """The text of a file that is there, is text and is not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (UnicodeDecodeError, IsADirectoryError, PermissionError) as reason:
        raise InputError(f"{path} cannot be read as text ({type(reason).__name__}); give the trace itself.") from None
    if not text.strip():
        raise InputError(f"{path} is empty.")
    return text


def number(text: str, what: str, where: str) -> float:
    """A finite number of at least 0, or a sentence that says what is wrong with it and where."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {what} is {text!r}, which is no number.") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {what} is {text}; it must be a finite number of at least 0.")
    return value


def rows_of(path: Path, columns: Collection[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a CSV with at least these columns, each with where it stands."""
    reader = csv.DictReader(io.StringIO(text_of(path)))
    missing = set(columns) - set(reader.fieldnames or ())
    if missing:
        raise InputError(f"{path} lacks the column {', '.join(sorted(missing))}.")
    rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    if not rows:
        raise InputError(f"{path} has a header but no layers.")
    for where, row in rows:
        if any(row[column] in (None, "") for column in columns):
            raise InputError(f"{where}: the row is shorter than the header; is the file complete?")
    return rows
