"""`stallwise tune [options] train.py [args...]`."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer, no
from stallwise.cli.profile import CONTEXT, Teller, default_folder, too_little, what_happened
from stallwise.cli.torchrun import NprocPerNode

if TYPE_CHECKING:
    from stallwise.record.launch import Launch

__all__ = ["CONTEXT", "tune"]


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
    _run(launch, max_time_s, dry_run=dry_run, as_json=as_json)


def _run(launch: "Launch", max_time_s: float, *, dry_run: bool, as_json: bool) -> None:
    from stallwise.errors import RunError
    from stallwise.tune.search import tune as search
    from stallwise.tune.trial import Bench

    launch.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Beside the run: checkpoints that trials write to scratch may be large, and /tmp small.
        with tempfile.TemporaryDirectory(prefix=".tune-", dir=launch.folder.parent) as folder:
            bench = Bench(
                launch=launch,
                folder=Path(folder).absolute(),
                job_stdout=sys.stderr.fileno(),
                progress=Teller(max_time_s),
            )
            found, outcome = search(bench, max_s=max_time_s, dry_run=dry_run, tell=_tell)
    except KeyboardInterrupt:
        raise no("stallwise: The tuning was interrupted. Nothing was changed.") from None
    except RunError as error:
        raise no(f"stallwise: {error}") from None
    if found is None:
        raise no(f"stallwise: {too_little(outcome, what_happened(outcome))}")

    def document() -> object:
        from stallwise.report.tune_json import document

        return document(found)

    def draw() -> object:
        from stallwise.report.tune import draw

        return draw(found)

    answer(document, draw, as_json=as_json)


def _tell(sentence: str) -> None:
    typer.echo(f"stallwise: {sentence}", err=True)
