"""`stallwise tune [options] train.py [args...]`."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.options import HangAfter, NprocPerNode, seconds
from stallwise.cli.output import Exit, Json, PeriodicReporter, answer, interrupted, progress_line
from stallwise.cli.profile import CONTEXT, default_folder, failed, failure_sentence, no_result_sentence

if TYPE_CHECKING:
    from stallwise.record.launch import Launch, ProfileOutcome, ProfileProgress
    from stallwise.tune.search import TuneResult

__all__ = ["CONTEXT", "tune"]


def tune(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script, or with -m a module. Its arguments follow it.")],
    *,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", help="Folder of the profile's run. Default: stallwise-runs/SCRIPT-DATE-TIME."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Profile and predict; try nothing.")] = False,
    with_compile: Annotated[
        bool, typer.Option("--compile", help="Try torch.compile on the model too; compiling takes minutes of the time.")
    ] = False,
    max_time: Annotated[
        str, typer.Option("--max-time", metavar="TIME", help="Time for all of it, launches included: 5min.")
    ] = "4min",
    hang_after: HangAfter = "5min",
    nproc_per_node: NprocPerNode = None,
    as_json: Json = False,
) -> None:
    """Find settings that make a training job faster, try them on it, and keep what helps.

    The script is launched a few times as it is; what it saves meanwhile goes to scratch. Batch size, precision and all
    else that would change the training stay. Exit code 0: an answer, also that nothing helps. 2: bad input. 3: the job
    failed or is too short to be measured. 130: interrupted.
    """
    from stallwise.record.launch import Launch, TorchrunOptions
    from stallwise.record.rank.environment import RecordSettings

    max_time_s = seconds(max_time, "--max-time")
    options = TorchrunOptions(nproc_per_node=nproc_per_node)
    launch = Launch(
        script=script,
        arguments=tuple(context.args),
        module=module,
        torchrun=options.arguments(),
        world=options.world(),
        settings=RecordSettings(
            folder=out or default_folder(script), cold=False, hang_after_s=seconds(hang_after, "--hang-after")
        ),
    )
    try:
        with _terminated_is_interrupted():
            result, outcome = _search(launch, max_time_s, dry_run=dry_run, with_compile=with_compile)
    except KeyboardInterrupt:
        raise interrupted("stallwise: The tuning was interrupted before anything was measured.") from None
    if result is None:
        happened = "The tuning was interrupted." if outcome.interrupted else failure_sentence(outcome)
        raise failed(outcome, f"stallwise: {no_result_sentence(outcome, happened)}")
    _show_result(result, as_json=as_json)
    typer.echo(f"\nThe profile is in {launch.folder}; see it with: stallwise report {launch.folder}", err=True)
    if result.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)


def _search(
    launch: "Launch", max_time_s: float, *, dry_run: bool, with_compile: bool
) -> "tuple[TuneResult | None, ProfileOutcome]":
    from stallwise.tune.search import tune as search
    from stallwise.tune.trials import TrialRunner

    # Beside the run: checkpoints that trials write to scratch may be large, and /tmp small.
    with _aside(launch.folder.parent) as folder:
        bench = TrialRunner(
            launch=replace(launch, shared_folders=(str(folder),)),
            folder=folder,
            job_stdout=sys.stderr.fileno(),
            progress=PeriodicReporter(_profile_sentence),
        )
        return search(bench, max_s=max_time_s, dry_run=dry_run, tell=progress_line, with_compile=with_compile)


def _show_result(result: "TuneResult", *, as_json: bool) -> None:
    def document() -> object:
        from stallwise.report.views.tune import document

        return document(result)

    def draw() -> object:
        from stallwise.report.views.tune import draw

        return draw(result)

    answer(document, draw, as_json=as_json)


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[Path]:
    """A temporary folder; if this process is killed, a helper process removes it."""
    is_new = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    try:
        aside = tempfile.TemporaryDirectory(prefix=".tune-", dir=parent, ignore_cleanup_errors=True)
        with _swept(Path(aside.name).absolute()) as folder:
            try:
                yield folder
            finally:
                _remove(aside)
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                parent.rmdir()  # nothing came of it


def _remove(aside: "tempfile.TemporaryDirectory[str]") -> None:
    """Remove the folder; a job that was just stopped may still be writing there for a moment."""
    give_up_s = time.monotonic() + _REMOVE_S
    aside.cleanup()
    while Path(aside.name).exists() and time.monotonic() < give_up_s:
        time.sleep(0.1)
        aside.cleanup()


_REMOVE_S = 20.0


@contextlib.contextmanager
def _swept(folder: Path) -> Iterator[Path]:
    # Its input ends with us. The job, which the kernel ends then, may still be writing for a moment.
    command = ["/bin/sh", "-c", 'cat; sleep 3; rm -rf "$0"', str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as sweeper:
        try:
            yield folder
        finally:
            sweeper.kill()


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that everything is cleaned up."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _profile_sentence(progress: "ProfileProgress") -> str:
    return f"profiling: round {progress.round}, {progress.phase}, {progress.steps} steps in {progress.elapsed_s:.0f} s"
