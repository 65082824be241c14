"""`stallwise ui`: the runs of a folder in the browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.errors import InputError

if TYPE_CHECKING:
    from subprocess import Popen

    from stallwise.cloud.wish import SpotTerms
    from stallwise.web.opened import Opened


_KEPT: "list[Popen[bytes]]" = []
"""What opens the browser ends with this process."""
_MOST_TERMS = 128


def ui(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="A folder that holds runs, at any depth.")
    ] = Path(),
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0: any that is free.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Look at runs in the browser: list, compare, drag sliders, see what to rent, browse a simulation.

    Serves 127.0.0.1 alone, to whoever has the token in the printed address. Reads the folder, writes nothing, sends
    nothing. Ctrl-C ends it.
    """
    try:
        from stallwise.web.server import listen, new_token, serve
    except ModuleNotFoundError as error:
        raise InputError(f"The page needs {error.name}: pip install 'stallwise[ui]'.") from None
    from stallwise.cli.recommend_inputs import starting
    from stallwise.hardware.catalog import load_catalog
    from stallwise.web.app import Place
    from stallwise.web.opened import Desk
    from stallwise.web.predict import Terms
    from stallwise.web.shelf import Shelf

    begins = starting(None, None)
    terms = Terms(provision_s=begins.provision_s, startup_s=begins.startup_s, said=begins.said, losses=_losses)
    desk = Desk(Shelf(folder), load_catalog())
    opened = listen(port)
    serve(
        Place(desk=desk, terms=terms, token=new_token(), folder=str(folder)),
        opened,
        lambda address: _ready(address, folder, browser=not no_browser),
    )


def _losses(opened: "Opened", mean_life_h: float) -> "SpotTerms":
    """As `stallwise recommend --spot --mean-life` takes them from the run; kept as long as its files stay the same."""
    from stallwise.cli.recommend_inputs import spot_terms, starting

    known = opened.spot_terms
    found = known.get(mean_life_h)
    if found is None:
        if len(known) >= _MOST_TERMS:
            known.clear()
        path = opened.run.path
        found = known[mean_life_h] = spot_terms(path, f"{mean_life_h:g}h", None, starting(None, None), None, None)
    return found


def _ready(address: str, folder: Path, *, browser: bool) -> None:
    typer.echo(f"The runs in {folder} are at {address}\nCtrl-C ends it.")
    if browser:
        typer.echo("If no page comes up (browsers from snap or Flatpak cannot read /tmp), open that address yourself.")
        from stallwise.web.opener import open_page

        _KEPT.append(open_page(address))
