"""`stallwise report`, `compare` and `run join`: runs that were measured."""

import enum
import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Exit, Json, answer, save_page
from stallwise.errors import InputError

app = CommandApp(name="run", help="Work on run records.")


@app.command("join")
def join(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    others: Annotated[list[Path] | None, typer.Argument(help="Copies of the same run from the other nodes.")] = None,
    as_json: Json = False,
) -> None:
    """Put together what the ranks of a run wrote, also from machines without a shared folder."""
    from stallwise.analysis.compare import summarise
    from stallwise.record.join import join_parts
    from stallwise.report.views.run import draw_run
    from stallwise.run.reader import Run

    join_parts(run, others=tuple(others or ()))
    summary = summarise(Run.open(run))
    answer(lambda: summary, lambda: draw_run(summary), as_json=as_json)


if TYPE_CHECKING:
    from stallwise.analysis.profile import Profile


class ProfileView(enum.StrEnum):
    """How the split is shown."""

    CARD = "card"
    STASH = "stash"


ViewOption = Annotated[
    ProfileView, typer.Option("--as", help="card: parts of the step. stash: with the Stash paper's denominators.")
]


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write the report as a self-contained page to this file.")
    ] = None,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="The record itself: job, machines, counts, and each phase's time with interval."),
    ] = False,
    view: ViewOption = ProfileView.CARD,
    as_json: Json = False,
) -> None:
    """Show a profile again: where the time of a step goes, what limits it, and what to try next.

    Nothing is written unless --html names a file, so runs may be read-only. A run of any state can be shown with
    --detail. Exit code 0: shown. 2: the run cannot be read.
    """
    from stallwise.analysis.analysis import open_run
    from stallwise.run.reader import Run

    job = open_run(Run.open(run))
    if detail:
        from stallwise.report.views.run import draw_run

        answer(lambda: job.summary, lambda: draw_run(job.summary), as_json=as_json)
    else:
        show_profile(job.profile, view, as_json=as_json)
    if html is not None:
        from stallwise.report.views.profile_page import page

        save_page(page(job.profile, job.detail), html)


def show_profile(profile: "Profile", view: ProfileView, *, as_json: bool) -> None:
    """The card, or the same as JSON."""
    from stallwise.report.views.profile import document, draw, draw_stash, stash_document

    if view is ProfileView.STASH:
        answer(lambda: stash_document(profile), lambda: draw_stash(profile), as_json=as_json)
    else:
        answer(lambda: document(profile), lambda: draw(profile), as_json=as_json)
    if profile.verdict.longer_s is not None:
        typer.echo(f"\nTo measure longer: {longer_command(profile)}", err=True)


def longer_command(profile: "Profile") -> str:
    """The command that profiles the job again, for as long as the verdict needs."""
    from stallwise.run.reader import Run

    job, verdict = Run.open(profile.run).manifest.job, profile.verdict
    seconds = math.ceil(((verdict.measured_s or 0.0) + (verdict.longer_s or 0.0)) / 10) * 10
    ranks = profile.world.world_size // profile.world.nnodes
    launcher = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
    module = ["-m"] if job.module else []
    return shlex.join(
        ["stallwise", "profile", *launcher, "--max-time", f"{seconds}s", *module, job.script, *job.arguments]
    )


def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="The run to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="The run in question.")],
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower",
            metavar="PERCENT",
            help="Exit with code 1 if B's step is slower by more than this, and with code 3 if the noise is too large "
            "to tell: 5%.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare run A with run B: what changed around the job, and whether its step time changed beyond noise.

    Exit code 0: compared; with --fail-if-slower, B is not slower by more than that. 1: it is. 3: inconclusive, the
    interval holds the limit; profile both runs longer.
    """
    limit = None if fail_if_slower is None else parse_percent(fail_if_slower)
    from stallwise.analysis.compare import compare as compare_runs
    from stallwise.report.views.run import draw_comparison
    from stallwise.run.reader import Run

    comparison = compare_runs(Run.open(before), Run.open(after), fail_if_slower=limit)
    answer(lambda: comparison, lambda: draw_comparison(comparison), as_json=as_json)
    if comparison.slowdown is not None:
        raise typer.Exit(_EXIT_OF_SLOWDOWN[comparison.slowdown.verdict])


_EXIT_OF_SLOWDOWN = {"pass": Exit.OK, "fail": Exit.NO, "inconclusive": Exit.NOT_MEASURED}


def parse_percent(text: str) -> float:
    """`5%` or `2.5 %` as a fraction. The sign is needed: a bare 5 could as well mean five times."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", text)
    value = float(match[1]) / 100 if match else math.nan
    if not math.isfinite(value):
        raise InputError(f"--fail-if-slower takes a percentage such as 5%, not {text!r}.")
    return value
