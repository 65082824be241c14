"""`stallwise report RUN`: the card of a profile, and its page."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer

if TYPE_CHECKING:
    from stallwise.record.profile import Profile


class View(enum.StrEnum):
    """How the split is shown."""

    CARD = "card"
    STASH = "stash"


As = Annotated[View, typer.Option("--as", help="card: parts of the step. stash: with the Stash paper's denominators.")]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Where to write the page. Default: report.html in the run's folder.")
    ] = None,
    view: As = View.CARD,
    as_json: Json = False,
) -> None:
    """Show a profile again: the card here, and a self-contained page for the browser."""
    from stallwise.record.detail import detail_of
    from stallwise.record.profile import profile_of
    from stallwise.report.html import write_page
    from stallwise.run.reader import Run

    opened = Run.open(run)
    found = profile_of(opened)
    show_profile(found, view, as_json=as_json)
    page = write_page(found, html or run / "report.html", detail_of(opened))
    typer.echo(f"\nThe page is {page}", err=True)


def show_profile(found: "Profile", view: View, *, as_json: bool) -> None:
    """The card, or the same as JSON."""
    from stallwise.report.card import draw
    from stallwise.report.profile_json import document
    from stallwise.report.stash import draw_stash, stash_document

    if view is View.STASH:
        answer(lambda: stash_document(found), lambda: draw_stash(found), as_json=as_json)
    else:
        answer(lambda: document(found), lambda: draw(found), as_json=as_json)
