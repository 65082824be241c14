"""`stallwise show`: one run."""

from pathlib import Path
from typing import Annotated

import typer

from stallwise.cli.output import Json, answer


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")], as_json: Json = False
) -> None:
    """What a run measured: the job, the machines, and each phase's step time with its interval."""
    from stallwise.record.summary import summarise
    from stallwise.report.run import draw_run
    from stallwise.run.reader import Run

    summary = summarise(Run.open(run))
    answer(lambda: summary, lambda: draw_run(summary), as_json=as_json)
