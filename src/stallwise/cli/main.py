"""The `stallwise` command: its sub-commands in panels, and how errors become one sentence and an exit code.

Only typer is imported here; a command imports what it needs when it runs, so `--help` stays quick.
"""

import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from stallwise._version import __version__
from stallwise.cli import (
    catalog,
    data,
    deflate,
    fleet,
    instances,
    machine,
    overcommit,
    predict,
    profile,
    recommend,
    simulate,
    slurm,
    spot,
    trace,
    tune,
    ui,
)
from stallwise.cli import run as runs
from stallwise.cli.commands import ADVANCED, CLUSTERS, DATA, MACHINES, SPOT, START, WHAT_IF, CommandApp, choices_of
from stallwise.cli.output import Exit, exit_code, print_error, print_error_document, say_error
from stallwise.errors import InputError, StallwiseError, missing_extra, nearest_names

app = CommandApp(
    name="stallwise",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 the answer is no; 2 bad input; 3 could not be measured, or the noise leaves a yes/no "
    "question open; 70 a bug in Stallwise; 128 + N ended by signal N.",
)


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"stallwise {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where a training job's time and money go, what would change it, and what to rent."""


app.command("profile", context_settings=profile.CONTEXT, rich_help_panel=START)(profile.profile)
app.command("report", rich_help_panel=START)(runs.report)
app.command("tune", context_settings=tune.CONTEXT, rich_help_panel=START)(tune.tune)
app.command("compare", rich_help_panel=START)(runs.compare)
app.command("ui", rich_help_panel=START)(ui.ui)
app.command("doctor", rich_help_panel=START)(machine.doctor)
app.command("whatif", rich_help_panel=WHAT_IF)(predict.whatif)
app.command("predict", rich_help_panel=WHAT_IF)(predict.predict)
app.command("recommend", rich_help_panel=WHAT_IF)(recommend.recommend)
app.command("instances", rich_help_panel=WHAT_IF)(instances.instances)
app.add_typer(catalog.app, name="catalog", rich_help_panel=WHAT_IF)
app.command("probe", rich_help_panel=MACHINES)(machine.probe)
app.command("characterize", rich_help_panel=MACHINES)(machine.characterize)
app.add_typer(data.app, name="data", rich_help_panel=DATA)
app.add_typer(trace.app, name="trace", rich_help_panel=DATA)
app.add_typer(spot.app, name="spot", rich_help_panel=SPOT)
app.add_typer(fleet.app, name="fleet", rich_help_panel=SPOT)
app.command("ledger", rich_help_panel=SPOT)(fleet.ledger)
app.command("simulate", rich_help_panel=CLUSTERS)(simulate.simulate)
app.command("overcommit", rich_help_panel=CLUSTERS)(overcommit.overcommit)
app.command("schedule", rich_help_panel=CLUSTERS)(slurm.schedule)
app.command("submit", cls=slurm.Submit, context_settings=slurm.CONTEXT, rich_help_panel=CLUSTERS)(slurm.submit)
app.command("queue", rich_help_panel=CLUSTERS)(slurm.queue)
app.command("deflate", rich_help_panel=ADVANCED)(deflate.deflate)
app.command("study", rich_help_panel=ADVANCED)(machine.study)
app.add_typer(runs.app, name="run", rich_help_panel=ADVANCED)

# Packages that an extra brings, by the name they are imported by.
_EXTRAS = {
    **dict.fromkeys(("scipy", "polars"), "model"),
    **dict.fromkeys(("numba", "llvmlite"), "sim"),
    **dict.fromkeys(("prometheus_client", "hostlist"), "slurm"),
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "ui"),
    "obstore": "data",
    "ray": "ray",
}


def run() -> None:
    """Entry point. What the user did wrong ends in one sentence on stderr and exit code 2, a bug of ours in 70."""
    try:
        code = app(prog_name="stallwise", standalone_mode=False)
    except _UsageError as error:
        context, sentence = error.ctx, " ".join(error.format_message().split()).replace("Value error, ", "")
        sentence = _NO_NUMBER.sub(lambda found: f"{_NUMBERS[found[1]]} was expected", sentence)
        path = context.command_path if context is not None else "stallwise"
        sentence = f"{sentence.rstrip('.')}.{_nearest_choice(error)}"
        say_error(f"{sentence} Help: {path} --help")
        print_error_document("usage", sentence, Exit.USAGE)
        sys.exit(Exit.USAGE)
    except typer.Abort:
        sys.exit(Exit.INTERRUPTED)
    except StallwiseError as error:
        print_error(error, exit_code(error))
        sys.exit(exit_code(error))
    except BrokenPipeError:
        # The reader of our pipe (head, less) has left. Point stdout at nothing so that the interpreter's
        # own flush at exit does not complain again.
        sys.stdout = None
        sys.exit(Exit.OK)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            _end_as_bug(error)
        missing = missing_extra(str(error.name), extra, "This command")
        print_error(missing, Exit.USAGE)
        sys.exit(Exit.USAGE)
    except OSError as error:
        if error.filename is None or error.strerror is None:
            _end_as_bug(error)
        sentence = f"{error.filename} cannot be used ({error.strerror}). Check the path and its permissions."
        print_error(InputError(sentence), Exit.USAGE)
        sys.exit(Exit.USAGE)
    except Exception as error:
        _end_as_bug(error)
    sys.exit(code if isinstance(code, int) else Exit.OK)


_NO_NUMBER = re.compile(r"Input should be a valid (integer|number), .*")
_NUMBERS = {"integer": "a whole number", "number": "a number"}


def _nearest_choice(error: Any) -> str:
    """A hint for a value that is nearly one of the choices of its option."""
    parameter = getattr(error, "param", None)
    choices = choices_of(parameter) if parameter is not None else []
    value = re.search(r"'([^']*)' is not one of", error.message)
    near = nearest_names(value[1], choices, limit=1) if value else ()
    return f" Did you mean {near[0]}?" if near else ""


_UsageError: Any = typer.BadParameter.__mro__[1]
"""What the parser of the command line raises; typer carries its own click, and does not export this name."""


def _end_as_bug(error: Exception) -> NoReturn:
    """One sentence for an exception that nobody foresaw, with its traceback in a file, and exit code 70."""
    from stallwise.run.manifest import redact

    words = " ".join(redact(sys.argv[1:]))
    text = f"stallwise {__version__} {words}\nPython {sys.version}\n\n{''.join(traceback.format_exception(error))}"
    place = "The traceback could not be saved."
    name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    for folder in (_log_folder(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as log:
            log.write(text)
        place = f"The traceback is in {folder / name}."
        break
    name = f"{type(error).__name__}: {' '.join(str(error).split())}"
    sentence = f"This is a bug in Stallwise ({name}). Please report it with that traceback. {place}"
    say_error(sentence)
    print_error_document("internal", sentence, Exit.INTERNAL)
    sys.exit(Exit.INTERNAL)


def _log_folder() -> Path:
    from platformdirs import user_log_path

    return user_log_path("stallwise", appauthor=False)
