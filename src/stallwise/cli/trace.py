"""`stallwise trace export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer

if TYPE_CHECKING:
    from stallwise.report.trace import Exported

app = typer.Typer(name="trace", help="A run as a timeline.", no_args_is_help=True)


@app.command("export")
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, compressed if it ends in .gz. Default: RUN/trace.json.gz."),
    ] = None,
    ranks: Annotated[
        list[int] | None, typer.Option("--rank", metavar="N", help="Only this rank; may be given again. Default: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the timeline of a run for ui.perfetto.dev and chrome://tracing."""
    from stallwise.report.trace import export as export_run
    from stallwise.run.reader import Run

    found = export_run(Run.open(run), out or run / "trace.json.gz", tuple(ranks or ()))
    answer(lambda: found, lambda: _words(found), as_json=as_json)


def _words(found: "Exported") -> str:
    from rich.markup import escape

    count = len(found.ranks)
    what = f"{found.events:,} events of {count} {'rank' if count == 1 else 'ranks'}"
    return f"{escape(str(found.path))}: {what}. Open it at ui.perfetto.dev (nothing is uploaded) or chrome://tracing."
