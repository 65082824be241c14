"""The `stallwise` command: its sub-commands, and how errors become one sentence and an exit code.

Only typer is imported here; a command imports what it needs when it runs, so `--help` stays quick.
"""

import sys
from typing import Annotated

import typer

import stallwise
from stallwise.cli import (
    catalog,
    characterize,
    compare,
    data,
    deflate,
    doctor,
    overcommit,
    predict,
    probe,
    profile,
    queue,
    recommend,
    report,
    schedule,
    show,
    simulate,
    spot,
    study,
    submit,
    trace,
    tune,
    ui,
    whatif,
)
from stallwise.cli import run as run_commands
from stallwise.cli.output import Exit
from stallwise.errors import StallwiseError

app = typer.Typer(
    name="stallwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stallwise {stallwise.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where a training job's time and money go, what would change it, and what to rent."""


app.command("profile", context_settings=profile.CONTEXT)(profile.profile)
app.command("report")(report.report)
app.command("probe")(probe.probe)
app.command("show")(show.show)
app.command("compare")(compare.compare)
app.command("whatif")(whatif.whatif)
app.command("predict")(predict.predict)
app.command("recommend")(recommend.recommend)
app.command("characterize")(characterize.characterize)
app.command("tune", context_settings=tune.CONTEXT)(tune.tune)
app.command("study")(study.study)
app.command("simulate")(simulate.simulate)
app.command("overcommit")(overcommit.overcommit)
app.command("schedule")(schedule.schedule)
app.command("submit", cls=submit.Submit, context_settings=submit.CONTEXT)(submit.submit)
app.command("queue")(queue.queue)
app.command("deflate")(deflate.deflate)
app.command("ui")(ui.ui)
app.command("doctor")(doctor.doctor)
app.add_typer(catalog.app, name="catalog")
app.add_typer(data.app, name="data")
app.add_typer(run_commands.app, name="run")
app.add_typer(spot.app, name="spot")
app.add_typer(trace.app, name="trace")


def run() -> None:
    """Entry point. What the user did wrong ends in one sentence on stderr and exit code 2."""
    try:
        app()
    except StallwiseError as error:
        typer.secho(f"stallwise: {error}", err=True, fg=typer.colors.RED)
        sys.exit(Exit.USAGE)
    except BrokenPipeError:
        # The reader of our pipe (head, less) has left. Point stdout at nothing so that the interpreter's
        # own flush at exit does not complain again.
        sys.stdout = None
        sys.exit(Exit.OK)
