"""Every simulation of a sweep as a row of a table, in the order and with the names of the JSON document."""

import csv
from pathlib import Path

from stallwise.cluster.comparison import Comparison
from stallwise.errors import InputError
from stallwise.report.simulate_json import document


def write_rows(found: Comparison, path: Path) -> Path:
    """One line per simulation; numbers as they are, to the last digit."""
    rows = document(found)["rows"]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}. Give another file with --csv.") from None
    return path
