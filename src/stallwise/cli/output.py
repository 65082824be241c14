"""How every command answers: one JSON document, or drawn text; the exit codes; progress meanwhile.

stdout carries the answer alone, or with `--json` the error that stands in its place. Progress, warnings and errors in
words go to stderr, so `--json | jq` always works.
"""

import contextlib
import enum
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from stallwise.errors import MeasurementError, ObjectError, OfflineError, StallwiseError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Exit(enum.IntEnum):
    """What the exit code means, for every command."""

    OK = 0
    NO = 1  # the question was understood and the answer is no: nothing matches, a limit is passed
    USAGE = 2  # bad input: the sentence on stderr says what to do
    NOT_MEASURED = 3  # could not be measured, fetched or reached; or the noise leaves a yes/no question open
    INTERNAL = 70  # a bug in Stallwise; the traceback is in a file
    INTERRUPTED = 130  # 128 + SIGINT


def exit_code(error: StallwiseError) -> Exit:
    """The exit code that an error ends a command with."""
    unmeasured = isinstance(error, (MeasurementError, ObjectError, OfflineError))
    return Exit.NOT_MEASURED if unmeasured else Exit.USAGE


class _Stdout:
    """What this call of the program is to write to stdout, and whether it has."""

    as_json = False
    answered = False


def _remember(value: bool) -> bool:
    _Stdout.as_json, _Stdout.answered = value, False
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_remember,
        is_eager=True,
        help="Print one JSON document and nothing else on stdout; errors too.",
    ),
]


def answer(document: Callable[[], Any], draw: Callable[[], Any], *, as_json: bool) -> None:
    """Print `document()` as JSON, or what `draw()` returns (a view, or any rich renderable) as text."""
    if as_json:
        _print_json(document())
        return
    from stallwise.report import terminal

    terminal.console().print(terminal.draw(draw()))


def _print_json(document: Any) -> None:
    from stallwise.report.json import to_json, with_schema

    sys.stdout.write(to_json(with_schema(document)) + "\n")
    sys.stdout.flush()
    _Stdout.answered = True


def print_error(error: StallwiseError, code: int) -> None:
    """Say an error on stderr; where the answer was to be JSON, write it to stdout as JSON too."""
    say_error(with_options(error))
    options = [option_names((name,)) for name in error.fields]
    print_error_document(error.code, str(error), code, options=options)


def say_error(sentence: str) -> None:
    """Say on stderr why the program ends."""
    typer.secho(f"stallwise: {_printable(sentence)}", err=True, fg=typer.colors.RED)


def print_error_document(error: str, sentence: str, code: int, *, options: Sequence[str] = ()) -> None:
    """Write an error as JSON to stdout, where `--json` was given and no answer has been written."""
    if _Stdout.as_json and not _Stdout.answered:
        from stallwise.report.json import error_document

        _print_json(error_document(error, sentence, options, code))


def _printable(text: str) -> str:
    """Text for a terminal; its lines stay."""
    from stallwise.report.format import printable

    return "\n".join(map(printable, text.split("\n")))


def option_names(fields: Sequence[str]) -> str:
    """Parameters by their Python names as the options of the command line: `dataset_size` is `--dataset-size`."""
    return ", ".join("--" + name.replace("_", "-") for name in fields)


def with_options(error: StallwiseError) -> str:
    """The sentence of an error, followed by the options that it is about."""
    if not error.fields:
        return str(error)
    return f"{error} Option{'s' if len(error.fields) > 1 else ''}: {option_names(error.fields)}."


def warn(sentence: str) -> None:
    """Say one sentence on stderr without failing."""
    typer.secho(f"warning: {_printable(sentence)}", err=True, fg=typer.colors.YELLOW)


def save_page(page: str, path: Path) -> None:
    """Write a page and name it on stderr."""
    from stallwise.report.html import write_html

    typer.echo(f"\nThe page is {write_html(page, path)}", err=True)


def fail(sentence: str) -> typer.Exit:
    """The answer is no: say why on stderr and leave with code 1 (`raise fail(...)`)."""
    typer.echo(_printable(sentence), err=True)
    print_error_document("no", sentence, Exit.NO)
    return typer.Exit(Exit.NO)


def unmeasured(sentence: str) -> typer.Exit:
    """It could not be measured: say why on stderr and leave with code 3 (`raise unmeasured(...)`)."""
    typer.echo(_printable(sentence), err=True)
    print_error_document("measurement", sentence, Exit.NOT_MEASURED)
    return typer.Exit(Exit.NOT_MEASURED)


def interrupted(sentence: str) -> typer.Exit:
    """Ctrl-C ended it: say what is left on stderr and leave with code 130 (`raise interrupted(...)`)."""
    typer.echo(_printable(sentence), err=True)
    print_error_document("interrupted", sentence, Exit.INTERRUPTED)
    return typer.Exit(Exit.INTERRUPTED)


_EVERY_S = 5.0
_SLOW_S = 10.0
Progress_ = TypeVar("Progress_")
_COMPILING = "still starting; the first call compiles the simulator, about a minute, later calls do not."


class ProgressReporter:
    """Shows the progress of long work on stderr: a bar in a terminal, a line every few seconds elsewhere.

    Rates and the time left are shown where bytes are given. The bar is gone when the work ends.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._subject = ""
        self._began_s = self._last_s = 0.0

    def __enter__(self) -> "ProgressReporter":
        if sys.stderr.isatty():
            self._bar = _progress_bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(
        self, subject: str, done: int, of: int | None = None, bytes_done: int | None = None, bytes_of: int | None = None
    ) -> None:
        """Show that `done` of `of` (None: unknown) are done; another subject starts another bar."""
        now_s = time.monotonic()
        if subject != self._subject:
            self._subject, self._began_s, self._last_s = subject, now_s, now_s
            self._new_task(subject, of)
        line = _progress_line(subject, done, of, bytes_done, bytes_of, now_s - self._began_s)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=of, line=line)
        elif now_s - self._last_s >= _EVERY_S:
            self._last_s = now_s
            progress_line(line)

    def _new_task(self, subject: str, of: int | None) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(subject, total=of, line="")


class PeriodicReporter(Generic[Progress_]):
    """Prints progress on stderr at most every few seconds; at once where `subject` of it has changed."""

    def __init__(
        self, sentence: Callable[[Progress_], str], subject: Callable[[Progress_], object] = lambda progress: None
    ) -> None:
        self._sentence, self._subject = sentence, subject
        self._last_s = -math.inf
        self._last_subject: object = None

    def __call__(self, progress: Progress_) -> None:
        now_s, subject = time.monotonic(), self._subject(progress)
        if subject == self._last_subject and now_s - self._last_s < _EVERY_S:
            return
        self._last_s, self._last_subject = now_s, subject
        progress_line(self._sentence(progress))


def progress_line(sentence: str) -> None:
    """Print one line of progress on stderr."""
    typer.echo(f"stallwise: {_printable(sentence)}", err=True)


@contextlib.contextmanager
def compile_notice() -> Iterator[Callable[[], None]]:
    """Say after a while that the first call ever compiles the simulator, unless the yielded function was called."""
    timer = threading.Timer(_SLOW_S, progress_line, (_COMPILING,))
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _progress_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns: list[Any] = [BarColumn(bar_width=24), TextColumn("{task.fields[line]}", markup=False)]
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _progress_line(
    subject: str, done: int, of: int | None, bytes_done: int | None, bytes_of: int | None, seconds: float
) -> str:
    """1,200 of 2,000 objects, 120 MB of 200 MB, 25 MB/s, 3.2 s left."""
    from stallwise.report.format import show_bytes, show_rate, show_seconds

    pieces = [f"{done:,} {subject}" if of is None else f"{done:,} of {of:,} {subject}"]
    if bytes_done is not None:
        pieces.append(show_bytes(bytes_done) if not bytes_of else f"{show_bytes(bytes_done)} of {show_bytes(bytes_of)}")
        if seconds > 0:
            pieces.append(show_rate(bytes_done / seconds))
    fraction = bytes_done / bytes_of if bytes_done and bytes_of else done / of if of else 0.0
    if 0 < fraction < 1 and seconds > 1:
        pieces.append(f"{show_seconds(seconds / fraction - seconds)} left")
    return ", ".join(pieces)
