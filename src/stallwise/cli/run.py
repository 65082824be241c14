"""`stallwise run join`."""

from pathlib import Path
from typing import Annotated

import typer

from stallwise.cli.output import Json, answer

app = typer.Typer(name="run", help="Work on run records.", no_args_is_help=True)


@app.command("join")
def join(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    others: Annotated[list[Path] | None, typer.Argument(help="Copies of the same run from the other nodes.")] = None,
    as_json: Json = False,
) -> None:
    """Put together what the ranks of a run wrote, also from machines without a shared folder."""
    from stallwise.record.launch import join_parts
    from stallwise.record.summary import summarise
    from stallwise.report.run import draw_run
    from stallwise.run.reader import Run

    join_parts(run, others=tuple(others or ()))
    summary = summarise(Run.open(run))
    answer(lambda: summary, lambda: draw_run(summary), as_json=as_json)
