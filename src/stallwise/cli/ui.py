"""`stallwise ui`: the runs of a folder in the browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import missing_extra

if TYPE_CHECKING:
    from subprocess import Popen

    from stallwise.cloud.request import SpotTerms
    from stallwise.web.runs import OpenRun


_BROWSERS: "list[Popen[bytes]]" = []
"""Processes that open the browser; they end with this one."""
_MAX_TERMS = 128


def ui(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that holds runs, at any depth.")] = Path(),
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0: any that is free.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    as_json: Json = False,
) -> None:
    """Look at runs in the browser: list, compare, drag sliders, see what to rent, browse a simulation.

    Serves 127.0.0.1 alone, to those with the token of the printed address. Reads the folder, writes nothing, sends
    nothing. Ctrl-C ends it.
    """
    try:
        from stallwise.web.server import listen, new_place, new_token, serve
    except ModuleNotFoundError as error:
        raise missing_extra(str(error.name), "ui", "The page") from None
    from stallwise.cloud.request import fleet_start
    from stallwise.hardware.catalog import load_catalog
    from stallwise.web.app import ServerState
    from stallwise.web.predict import RentTerms
    from stallwise.web.runs import RunCache, RunFolder

    start = fleet_start()
    terms = RentTerms(
        provision_s=start.provision_s, startup_s=start.startup_s, assumptions=start.assumptions, losses=_losses
    )
    runs = RunCache(RunFolder(folder), load_catalog())
    listener = listen(port)
    serve(
        ServerState(runs=runs, terms=terms, token=new_token(), place=new_place(), folder=str(folder)),
        listener,
        lambda address: _ready(address, folder, browser=not no_browser, as_json=as_json),
    )


def _losses(opened: "OpenRun", mean_life_h: float) -> "SpotTerms":
    """As `stallwise recommend --spot --mean-life` takes them from the run; kept as long as its files stay the same."""
    from stallwise.cli.recommend_inputs import spot_terms
    from stallwise.cloud.request import fleet_start

    terms_by_life = opened.spot_terms
    terms = terms_by_life.get(mean_life_h)
    if terms is None:
        if len(terms_by_life) >= _MAX_TERMS:
            terms_by_life.clear()
        job = opened.analysis
        terms = terms_by_life[mean_life_h] = spot_terms(job, f"{mean_life_h:g}h", None, fleet_start(), None, None)
    return terms


def _ready(address: str, folder: Path, *, browser: bool, as_json: bool) -> None:
    if as_json:
        from stallwise.report.json import schema

        answer(lambda: schema("ui") | {"folder": str(folder), "address": address}, lambda: None, as_json=True)
    else:
        typer.echo(f"The runs in {folder} are at {address}\nCtrl-C ends it.")
    if browser:
        typer.echo(
            "If no page comes up (browsers from snap or Flatpak cannot read /tmp), open that address yourself.",
            err=as_json,
        )
        from stallwise.web.browser import open_in_browser

        _BROWSERS.append(open_in_browser(address))
