"""Text and numbers of input files; every error says which file and where in it."""

import csv
import io
import math
from collections.abc import Collection
from pathlib import Path

from stallwise.errors import InputError
from stallwise.inputs import bounded_rows, read_whole

MOST_RANKS = 1_000_000
"""Of a job, and GPUs of a machine: ten times what the largest have. Memory grows with them, so a file's word is not
enough."""
MOST_WORKERS = 10_000
"""Of one rank's loader."""
_LARGEST = 1e300
_MOST_LAYERS = 1_000_000


def text_of(path: Path) -> str:
    """The text of a file that is there, is text and is not empty."""
    if path.is_dir():
        raise InputError(f"{path} cannot be read as text: it is a folder; give the trace itself.")
    try:
        text = io.TextIOWrapper(io.BytesIO(read_whole(path)), encoding="utf-8").read()
    except UnicodeDecodeError as reason:
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
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{where}: {what} is {text}; it must be a finite number of at least 0.")
    return value


def shown(value: float) -> str:
    """A number as people read it; JSON has whole ones of thousands of digits, which no format takes."""
    return f"{max(-_LARGEST, min(_LARGEST, value)):.10g}"


def count(value: int, what: str, where: str, *, least: int = 1, most: int = MOST_RANKS) -> int:
    """A number of ranks, GPUs or workers that can be, or a sentence."""
    if not least <= value <= most:
        raise InputError(f"{where}: {what} is {shown(value)}; it must be a whole number from {least} to {most:,}.")
    return value


def rows_of(path: Path, columns: Collection[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a CSV with at least these columns, each with where it stands."""
    reader = csv.DictReader(io.StringIO(text_of(path)))
    missing = set(columns) - set(reader.fieldnames or ())
    if missing:
        raise InputError(f"{path} lacks the column {', '.join(sorted(missing))}.")
    try:
        rows = [(f"{path}, line {reader.line_num}", row) for row in bounded_rows(reader, path, _MOST_LAYERS)]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}. Check the file.") from None
    if not rows:
        raise InputError(f"{path} has a header but no layers.")
    for where, row in rows:
        if any(row[column] in (None, "") for column in columns):
            raise InputError(f"{where}: the row is shorter than the header; is the file complete?")
    return rows
