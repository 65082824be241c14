"""How every command answers: one JSON document, or drawn text; exit codes 0, 1, 2.

stdout carries the answer alone. Warnings and errors go to stderr, so `--json | jq` always works.
"""

import enum
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer


class Exit(enum.IntEnum):
    """What the exit code means, for every command."""

    OK = 0
    NO = 1  # the question was understood and the answer is no: nothing matches, a limit is passed
    USAGE = 2  # bad input: the sentence on stderr says what to do


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]


def answer(document: Callable[[], Any], draw: Callable[[], Any], *, as_json: bool) -> None:
    """Print `document()` as JSON, or what `draw()` returns (any rich renderable) as text."""
    if as_json:
        from stallwise.report.json import to_json

        sys.stdout.write(to_json(document()) + "\n")
        return
    from stallwise.report.terminal import console

    console().print(draw())


def warn(sentence: str) -> None:
    """Say one sentence on stderr without failing."""
    typer.secho(f"warning: {sentence}", err=True, fg=typer.colors.YELLOW)


def no(sentence: str) -> typer.Exit:
    """The answer is no: say why on stderr and leave with code 1 (`raise no(...)`)."""
    typer.echo(sentence, err=True)
    return typer.Exit(Exit.NO)
