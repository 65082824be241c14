"""`stallwise spot watch`: measured against predicted speed while a job trains, and what binds it."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stallwise.cli.output import Exit, Json
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.elastic.watching import Verdict, Window

_LOOK_S = 0.5


def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a session's checkpoints.")],
    each: Annotated[
        float | None,
        typer.Option("--each", help="Predicted samples per second of one worker; default: learnt from this run."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Stay until the job is done; or judge what is there.")
    ] = True,
    all_lines: Annotated[
        bool, typer.Option("--all", help="A line every second, not only when something changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch a training job: is it as fast as its workers should be, and if not, what binds?

    Predicted is the sum of the workers' speeds, learnt from this run at its fewest workers. An alarm begins at 10 %
    below that, held for three seconds, and ends under 6.7 %. Exit code 0: no alarm at the end. 1: there is one. 2:
    there is nothing to watch.
    """
    from stallwise.elastic.events import NAME
    from stallwise.elastic.watching import Watch

    path = folder / NAME
    if not path.exists():
        raise InputError(f"{folder} has no {NAME}: no session of stallwise.elastic has written there.")
    watching, last = Watch(each=each), None
    for window in _windows(path, follow=follow):
        verdict = watching.judge(window)
        if as_json or all_lines or last is None or _changed(last, verdict):
            _show(verdict, as_json=as_json)
        last = verdict
    if last is None:
        raise InputError(f"{path} says nothing of the job's speed yet. Wait until it has trained for some seconds.")
    if not as_json and not all_lines:
        _show(last, as_json=False)
    if last.alarm:
        raise typer.Exit(Exit.NO)


def _changed(last: "Verdict", now: "Verdict") -> bool:
    named = [one.advice.bottleneck if one.advice else None for one in (last, now)]
    known = [one.predicted_per_s is None for one in (last, now)]
    if named[0] != named[1] or known[0] != known[1]:
        return True
    return last.alarm != now.alarm or last.window.workers != now.window.workers


def _show(verdict: "Verdict", *, as_json: bool) -> None:
    from stallwise.report.spot_watch import document, line

    if as_json:
        from stallwise.report.json import to_json

        sys.stdout.write(" ".join(to_json(document(verdict)).split()) + "\n")
    else:
        from stallwise.report.terminal import console

        console().print(line(verdict))
    sys.stdout.flush()


def _windows(path: Path, *, follow: bool) -> Iterator["Window"]:
    """The diary's windows, as they come."""
    from stallwise.elastic.events import read_events

    seen = 0
    while True:
        events = list(read_events(path))
        for event in events[seen:]:
            if event["kind"] == "pace":
                yield _window(event)
        seen = len(events)
        if not follow or (events and events[-1]["kind"] == "done"):
            return
        time.sleep(_LOOK_S)


def _window(event: dict[str, Any]) -> "Window":
    from stallwise.elastic.watching import Window

    per_s = event["samples_per_s"] or event["world"] / event["step_s"]
    times = tuple(tuple(part) for part in event["times_ms"])
    return Window(at_s=event["at"], workers=event["world"], per_s=per_s, step_s=event["step_s"], times_ms=times)
