"""A predicted table: rows as JSON with the columns they came with, or a short view for the terminal."""

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from stallwise.record.table_forecast import TableForecast
from stallwise.report.terminal import table
from stallwise.report.text import show_number

_SHOWN = 20  # rows on a screen
_NAMES = ("model", "gpu", "n_gpus", "batch", "batch_size", "precision", "mode", "option", "placement")


def rows(found: TableForecast) -> list[dict[str, Any]]:
    """Every row with its own columns as they were, and `predicted`, `low`, `high`."""
    columns = {column: _values(column, [row.cells[column] for row in found.rows]) for column in found.columns}
    return [
        {
            **{column: values[i] for column, values in columns.items()},
            "predicted": forecast.predicted,
            "low": forecast.low,
            "high": forecast.high,
        }
        for i, forecast in enumerate(found.forecasts)
    ]


def _values(column: str, cells: list[str]) -> list[Any]:
    """A column as JSON has it: null where blank; numbers or truth values where all cells are such, else the text."""
    texts = [cell.strip() for cell in cells]
    filled = [text for text in texts if text]
    # A version such as 1.10 would not come back as it was.
    for kind in () if column == "torch" else (_truth, int, _number):
        try:
            made = {text: kind(text) for text in filled}
        except ValueError:
            continue
        return [made[text] if text else None for text in texts]
    return [text or None for text in texts]


def _truth(text: str) -> bool:
    if text not in ("True", "False"):
        raise ValueError(text)
    return text == "True"


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def draw(found: TableForecast) -> RenderableType:
    """The first rows."""
    names = [name for name in _NAMES if name in found.columns]
    drawn = table(*names, (f"predicted {found.format.predicts}", "right"), ("80 % interval", "right"))
    for row, forecast in list(zip(found.rows, found.forecasts, strict=True))[:_SHOWN]:
        drawn.add_row(
            *(row.text(name) for name in names),
            show_number(forecast.predicted),
            f"{show_number(forecast.low)} to {show_number(forecast.high)}",
        )
    more = len(found.rows) - _SHOWN
    rest = [Text(f"… and {more:,} rows more; --json has all of them", style="dim")] if more > 0 else []
    return Group(drawn, *rest)
