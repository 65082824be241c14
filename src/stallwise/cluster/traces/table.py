"""A trace file on disk into fields with line numbers. CSV by the standard library: no data frame starts as quickly."""

import csv
import io
from pathlib import Path

from stallwise.cluster.traces.rows import Table
from stallwise.errors import InputError

_GAVEL_FIELDS = 10


def read_table(path: Path) -> Table:
    """Columns from the first line; Gavel's native traces have none and are cut at tabs."""
    text = _text(path)
    first = text.split("\n", 1)[0]
    tabbed = first.count("\t") == _GAVEL_FIELDS - 1
    reader = csv.reader(io.StringIO(text), delimiter="\t" if tabbed else ",", skipinitialspace=True)
    try:
        columns = () if tabbed else tuple(name.strip() for name in next(reader))
        rows = [(reader.line_num, fields) for fields in reader if any(fields)]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}. Check the file.") from None
    return Table(source=path.name, columns=columns, rows=tuple(rows))


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The trace {path} cannot be read ({reason}). Check the path.") from None
    if not text.strip():
        raise InputError(f"The trace {path} is empty. Check the file.")
    return text.lstrip("\r\n")
