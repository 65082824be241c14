"""How long work shows how far it is, on stderr: a bar in a terminal, a line every few seconds elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_EVERY_S = 5.0
_SLOW_S = 10.0
_COMPILING = "still starting; the first call compiles the simulator, about a minute, later calls do not."


class Teller:
    """`tell(what, done, of)`; bytes and rates where `bytes_done` is given. One line at a time, gone when it ends."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._began_s = self._last_s = 0.0

    def __enter__(self) -> "Teller":
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(
        self, what: str, done: int, of: int | None = None, bytes_done: int | None = None, bytes_of: int | None = None
    ) -> None:
        """So many of so many (None: nobody knows) are done."""
        now_s = time.monotonic()
        if what != self._what:
            self._what, self._began_s, self._last_s = what, now_s, now_s
            self._new_task(what, of)
        line = _line(what, done, of, bytes_done, bytes_of, now_s - self._began_s)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=of, said=line)
        elif now_s - self._last_s >= _EVERY_S:
            self._last_s = now_s
            typer.echo(f"stallwise: {line}", err=True)

    def _new_task(self, what: str, of: int | None) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=of, said="")


@contextlib.contextmanager
def while_compiling() -> Iterator[Callable[[], None]]:
    """A word where the first call of all compiles the simulator, unless what is given is called before: it began."""
    slow = threading.Timer(_SLOW_S, typer.echo, (f"stallwise: {_COMPILING}",), {"err": True})
    slow.daemon = True
    slow.start()
    try:
        yield slow.cancel
    finally:
        slow.cancel()


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns: list[Any] = [BarColumn(bar_width=24), TextColumn("{task.fields[said]}", markup=False)]
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _line(what: str, done: int, of: int | None, bytes_done: int | None, bytes_of: int | None, seconds: float) -> str:
    """1,200 of 2,000 objects, 120 MB of 200 MB, 25 MB/s, 3.2 s left."""
    from stallwise.report.text import show_bytes, show_rate, show_seconds

    said = [f"{done:,} {what}" if of is None else f"{done:,} of {of:,} {what}"]
    if bytes_done is not None:
        said.append(show_bytes(bytes_done) if not bytes_of else f"{show_bytes(bytes_done)} of {show_bytes(bytes_of)}")
        if seconds > 0:
            said.append(show_rate(bytes_done / seconds))
    part = bytes_done / bytes_of if bytes_done and bytes_of else done / of if of else 0.0
    if 0 < part < 1 and seconds > 1:
        said.append(f"{show_seconds(seconds / part - seconds)} left")
    return ", ".join(said)
