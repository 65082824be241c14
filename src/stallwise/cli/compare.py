"""`stallwise compare`: two runs."""

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from stallwise.cli.output import Exit, Json, answer
from stallwise.errors import InputError


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="The run to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The run in question.")],
    fail_over: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Exit with code 1 if B's step is slower by more, as in 5%."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What changed from run A to run B, and whether its step time did, beyond noise."""
    limit = None if fail_over is None else parse_percent(fail_over)
    from stallwise.record.comparison import compare as compare_runs
    from stallwise.report.run import draw_comparison
    from stallwise.run.reader import Run

    comparison = compare_runs(Run.open(before), Run.open(after), fail_over=limit)
    answer(lambda: comparison, lambda: draw_comparison(comparison), as_json=as_json)
    if comparison.fail_over and comparison.fail_over.exceeded:
        raise typer.Exit(Exit.NO)


def parse_percent(text: str) -> float:
    """`5%` or `2.5 %` as a fraction. The sign is needed: a bare 5 could as well mean five times."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", text)
    value = float(match[1]) / 100 if match else math.nan
    if not math.isfinite(value):
        raise InputError(f"--fail-over takes a percentage such as 5%, not {text!r}.")
    return value
