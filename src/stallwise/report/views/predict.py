"""A job or a table of jobs on another GPU: terminal and JSON."""

import math
from typing import Any

from stallwise.analysis.prediction import Prediction
from stallwise.analysis.table_forecast import RowForecast, TableForecast, Unanswered
from stallwise.model.step.epoch import JobDuration
from stallwise.report.format import show_bounds, show_bytes, show_number, show_seconds, show_usd, show_usd_bounds
from stallwise.report.json import schema
from stallwise.report.view import Notes, PartColumn, View, number, table, view
from stallwise.report.views.whatif import document as step_document
from stallwise.report.views.whatif import draw as draw_step

Dollars = tuple[float, float, float] | None


def draw(prediction: Prediction, whole: JobDuration | None = None, usd: Dollars = None) -> View:
    """The step as `whatif` shows it, with the epoch, the job and its cost."""
    if whole is None:
        return draw_step(prediction)
    rows = [
        ("epoch", f"{show_seconds(whole.epoch_s)}, the first {show_seconds(whole.first_epoch_s)}"),
        ("job", f"{show_seconds(whole.job_s)}  ({show_bounds(whole.low_s, whole.high_s)})"),
    ]
    if usd is not None:
        rows.append(("cost", f"{show_usd(usd[0])}  ({show_usd_bounds(usd[1], usd[2])})"))
    return draw_step(prediction, *rows)


def document(prediction: Prediction, whole: JobDuration | None = None, usd: Dollars = None) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    job = None
    if whole is not None:
        job = {
            "epoch_s": whole.epoch_s,
            "first_epoch_s": whole.first_epoch_s,
            "job_s": whole.job_s,
            "low_s": whole.low_s,
            "high_s": whole.high_s,
            "samples_per_s": whole.samples_per_s,
            "usd": None if usd is None else list(usd),
        }
    step = step_document(prediction)
    return {
        **schema("predict"),
        "source_gpu": prediction.source_gpu,
        "gpu": prediction.setup.device,
        "precision": prediction.setup.precision,
        **{key: value for key, value in step.items() if key not in ("curve", "curve_ends", "schema")},
        "job": job,
    }


_SHOWN = 20  # rows on a screen
_PRIORITIES = {"placement": 5, "option": 4, "mode": 3, "precision": 2, "batch_size": 1}
_NAMES = (
    *("model", "Model", "gpu", "System", "n_gpus", "# GPUs", "#-GPUs", "dp", "tp", "pp"),
    *("batch", "batch_size", "precision", "mode", "option", "placement"),
)


def table_rows(forecast: TableForecast) -> list[dict[str, Any]]:
    """Every row with its own columns as they were, and `predicted`, `low`, `high`; without these, a `reason`."""
    columns = {column: _values(column, [row.cells[column] for row in forecast.rows]) for column in forecast.columns}
    return [
        {
            **{column: values[i] for column, values in columns.items()},
            "predicted": one.predicted if isinstance(one, RowForecast) else None,
            "low": one.low if isinstance(one, RowForecast) else None,
            "high": one.high if isinstance(one, RowForecast) else None,
            **_memory(one),
            **({"reason": one.reason} if isinstance(one, Unanswered) else {}),
        }
        for i, one in enumerate(forecast.forecasts)
    ]


def _memory(one: RowForecast | Unanswered) -> dict[str, Any]:
    if not isinstance(one, RowForecast) or one.memory_bytes is None:
        return {}
    return {"fits": one.fits, "memory_bytes": one.memory_bytes}


def _values(column: str, cells: list[str]) -> list[Any]:
    """A column as JSON has it: null where blank; numbers or truth values where all cells are such, else the text."""
    texts = [cell.strip() for cell in cells]
    filled = [text for text in texts if text]
    # A version such as 1.10 would not come back as it was.
    for kind in () if column == "torch" else (_truth, int, _number):
        try:
            converted = {text: kind(text) for text in filled}
        except ValueError:
            continue
        return [converted[text] if text else None for text in texts]
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


def _memory_cells(one: RowForecast | Unanswered) -> tuple[str, str]:
    if not isinstance(one, RowForecast) or one.memory_bytes is None:
        return "-", "-"
    return show_bytes(one.memory_bytes), "yes" if one.fits else "no"


def draw_table(forecast: TableForecast) -> View:
    """The first rows of a predicted table, and why rows have no prediction."""
    names = [name for name in _NAMES if name in forecast.columns]
    memory = any(_memory(one) for one in forecast.forecasts)
    columns = (
        *(PartColumn(name, priority=_PRIORITIES.get(name, 0)) for name in names),
        number(f"predicted {forecast.format.predicts}"),
        number("80 % interval"),
        *((number("memory", 1), PartColumn("fits", priority=2)) if memory else ()),
    )
    rows = (
        (
            *(row.text(name) for name in names),
            *(
                (show_number(one.predicted), f"{show_number(one.low)} to {show_number(one.high)}")
                if isinstance(one, RowForecast)
                else ("-", f"row {row.number}: see below")
            ),
            *(_memory_cells(one) if memory else ()),
        )
        for row, one in list(zip(forecast.rows, forecast.forecasts, strict=True))[:_SHOWN]
    )
    more = len(forecast.rows) - _SHOWN
    note = f"… and {more:,} rows more; the JSON document has all of them" if more > 0 else ""
    reasons: list[str] = [one.reason for one in forecast.forecasts if isinstance(one, Unanswered)]
    if reasons:
        count = f"{forecast.answered:,} of {len(forecast.rows):,} rows are answered."
        left = len(reasons) - _SHOWN
        reasons = [count, *reasons[:_SHOWN], *([f"… and {left:,} more"] if left > 0 else [])]
    return view("", table(columns, rows, note=note), Notes("not predicted", tuple(reasons)) if reasons else None)
