"""`stallwise tune [options] train.py [args...]`."""

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit, Json, answer, no
from stallwise.cli.profile import CONTEXT, default_folder, too_little, what_happened
from stallwise.cli.torchrun import NprocPerNode

if TYPE_CHECKING:
    from stallwise.record.launch import Launch, Outcome, Progress
    from stallwise.tune.result import Tuning

__all__ = ["CONTEXT", "tune"]

_PROGRESS_S = 5.0


def tune(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script, or with -m a module. Its arguments follow it.")],
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", help="Folder of the profile's run. Default: stallwise-runs/SCRIPT-DATE-TIME."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Profile and predict; try nothing.")] = False,
    max_time_s: Annotated[float, typer.Option("--max-time", help="Seconds for all of it, launches included.")] = 240.0,
    hang_after_s: Annotated[
        float, typer.Option("--hang-after", help="Seconds without a step after which the job counts as hung.")
    ] = 300.0,
    nproc_per_node: NprocPerNode = None,
    as_json: Json = False,
) -> None:
    """Find settings that make a training job faster, try them on it, and keep what helps.

    The script is launched a few times as it is; what it saves meanwhile goes to scratch. Batch size, precision and all
    else that would change the training stay. Exit code 0: an answer, also that nothing helps. 1: the job failed, was
    interrupted or is too short to be measured.
    """
    from stallwise.errors import InputError
    from stallwise.record.launch import Launch
    from stallwise.record.settings import Settings
    from stallwise.record.torchrun import TorchrunOptions

    if not max_time_s > 0:
        raise InputError(f"--max-time takes seconds above 0, not {max_time_s:g}.")
    options = TorchrunOptions(nproc_per_node=nproc_per_node)
    launch = Launch(
        script=script,
        arguments=tuple(context.args),
        module=module,
        torchrun=options.arguments(),
        world=options.world(),
        settings=Settings(folder=out or default_folder(script), cold=False, hang_after_s=hang_after_s),
    )
    try:
        with _terminated_is_interrupted():
            found, outcome = _search(launch, max_time_s, dry_run=dry_run)
    except KeyboardInterrupt:
        raise no("stallwise: The tuning was interrupted before anything was measured.") from None
    if found is None:
        happened = "The tuning was interrupted." if outcome.interrupted else what_happened(outcome)
        raise no(f"stallwise: {too_little(outcome, happened)}")
    _show(found, as_json=as_json)
    typer.echo(f"\nThe profile is in {launch.folder}; see it with: stallwise report {launch.folder}", err=True)
    if found.interrupted:
        raise typer.Exit(Exit.NO)


def _search(launch: "Launch", max_time_s: float, *, dry_run: bool) -> "tuple[Tuning | None, Outcome]":
    from stallwise.tune.search import tune as search
    from stallwise.tune.trial import Bench

    # Beside the run: checkpoints that trials write to scratch may be large, and /tmp small.
    with _aside(launch.folder.parent) as folder:
        bench = Bench(launch=launch, folder=folder, job_stdout=sys.stderr.fileno(), progress=_Teller())
        return search(bench, max_s=max_time_s, dry_run=dry_run, tell=_tell)


def _show(found: "Tuning", *, as_json: bool) -> None:
    def document() -> object:
        from stallwise.report.tune_json import document

        return document(found)

    def draw() -> object:
        from stallwise.report.tune import draw

        return draw(found)

    answer(document, draw, as_json=as_json)


@contextlib.contextmanager
def _aside(parent: Path) -> Iterator[Path]:
    """A folder that is removed at the end, also where we are killed: then by a process that waits for just that."""
    made = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".tune-", dir=parent) as name, _swept(Path(name).absolute()) as folder:
            yield folder
    finally:
        if made:
            with contextlib.suppress(OSError):
                parent.rmdir()  # nothing came of it


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
    """A batch system's SIGTERM ends us as Ctrl-C does, with everything cleared away."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Teller:
    """Says on stderr how far the profile is, every few seconds."""

    def __init__(self) -> None:
        self._last_s = 0.0

    def __call__(self, now: "Progress") -> None:
        """Where rank 0 is."""
        if time.monotonic() - self._last_s >= _PROGRESS_S:
            self._last_s = time.monotonic()
            _tell(f"profiling: round {now.round}, {now.phase}, {now.steps} steps in {now.elapsed_s:.0f} s")


def _tell(sentence: str) -> None:
    typer.echo(f"stallwise: {sentence}", err=True)
