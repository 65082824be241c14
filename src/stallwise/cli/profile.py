"""`stallwise profile [options] train.py [args...]`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.options import (
    HangAfter,
    MasterAddr,
    MasterPort,
    Nnodes,
    NodeRank,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
    seconds,
)
from stallwise.cli.output import Json, PeriodicReporter, interrupted, unmeasured
from stallwise.cli.run import ProfileView, ViewOption, show_profile

if TYPE_CHECKING:
    from stallwise.record.launch import ProfileOutcome, ProfileProgress

# Everything after the script belongs to the script, options too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def profile(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script, or with -m a module. Its arguments follow it.")],
    *,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Folder of the run. Default: stallwise-runs/SCRIPT-DATE-TIME.")
    ] = None,
    light: Annotated[bool, typer.Option("--light", help="Observe only; never stop the job early.")] = False,
    max_time: Annotated[
        str, typer.Option("--max-time", metavar="TIME", help="Time to measure at most, after warm-up: 90s, 2min.")
    ] = "2min",
    until_certain: Annotated[
        bool, typer.Option("--until-certain", help="End as soon as it is certain what limits the step.")
    ] = False,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Steps to measure at most.")] = None,
    cold: Annotated[bool, typer.Option("--cold/--no-cold", help="Also measure with cold data files.")] = True,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let files go where the script says: existing ones are overwritten.")
    ] = False,
    keep_writes: Annotated[
        bool, typer.Option("--keep-writes", help="Keep what the script writes, in scratch/ of the run.")
    ] = False,
    overlay: Annotated[
        bool, typer.Option("--overlay/--no-overlay", help="Run the job on a throw-away overlay of the file system.")
    ] = True,
    hang_after: HangAfter = "5min",
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    rdzv_backend: RdzvBackend = None,
    rdzv_endpoint: RdzvEndpoint = None,
    rdzv_id: RdzvId = None,
    view: ViewOption = ProfileView.CARD,
    as_json: Json = False,
) -> None:
    """Measure where a training job's time goes. The script is run as it is.

    The profile ends by itself when its intervals are tight or a budget is spent; what the script writes meanwhile is
    thrown away. Exit code 0: a complete profile, also where its bottleneck is inconclusive. 3: the job failed or ended
    before anything could be measured; what was measured is kept. 130: interrupted, likewise.
    """
    max_time_s = seconds(max_time, "--max-time", least_s=0.01)
    from stallwise.record.launch import Launch, TorchrunOptions, run_profile
    from stallwise.record.rank.environment import RecordSettings

    options = TorchrunOptions(
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
    )
    settings = RecordSettings(
        folder=out or default_folder(script),
        light=light,
        cold=cold,
        max_s=max_time_s,
        until_certain=until_certain,
        max_steps=max_steps,
        allow_writes=allow_writes,
        keep_writes=keep_writes,
        overlay=overlay,
        hang_after_s=seconds(hang_after, "--hang-after"),
    )
    launch = Launch(
        script=script,
        arguments=tuple(context.args),
        module=module,
        torchrun=options.arguments(),
        world=options.world(),
        node_rank=node_rank,
        run_id=options.run_id(),
        settings=settings,
    )
    # The job's own output must not get between a program and our JSON.
    reporter: PeriodicReporter[ProfileProgress] = PeriodicReporter(lambda now: _progress_sentence(now, max_time_s))
    outcome = run_profile(launch, reporter, job_stdout=sys.stderr.fileno() if as_json else None)
    if launch.node_rank != 0:
        sentence = f"This node's part is in {launch.folder}; node 0 shows the result."
        if outcome.exit_code or outcome.interrupted or outcome.hung:
            raise failed(outcome, f"stallwise: {failure_sentence(outcome)} {sentence}")
        typer.echo(f"stallwise: {sentence}", err=True)
        return
    _show(launch.folder, outcome, view, as_json=as_json)


def _show(folder: Path, outcome: "ProfileOutcome", view: ProfileView, *, as_json: bool) -> None:
    from stallwise.analysis.analysis import open_run
    from stallwise.errors import RunError

    happened = failure_sentence(outcome)
    try:
        result = open_run(folder).profile if all_phases_measured(outcome) else None
    except RunError:
        result = None
    if result is None:
        raise failed(outcome, f"stallwise: {no_result_sentence(outcome, happened)}")
    show_profile(result, view, as_json=as_json)
    typer.echo(f"\nThe run is in {folder}; see it again with: stallwise report {folder}", err=True)
    if happened:
        raise failed(outcome, f"stallwise: {happened} What was measured before is kept.")


def failed(outcome: "ProfileOutcome", sentence: str) -> typer.Exit:
    """The end of a profile that is not complete: interrupted, or not to be measured."""
    return interrupted(sentence) if outcome.interrupted else unmeasured(sentence)


def failure_sentence(outcome: "ProfileOutcome") -> str:
    """One sentence for a job that did not end as it should; empty for one that did."""
    why, code = outcome.manifest.partial_reason or "", outcome.exit_code
    if outcome.interrupted:
        return "The profile was interrupted."
    if outcome.hung or (not code and why):
        return why
    if code == 0:
        return ""
    ended = f"The job ended with exit code {code}" if code > 0 else f"The job was killed by signal {-code}"
    return f"{ended}. {why}".rstrip()


def all_phases_measured(outcome: "ProfileOutcome") -> bool:
    """Whether every phase has a block; without one the split would count the rest as compute."""
    from stallwise.run.phases import LADDER

    return all(phase.blocks for phase in outcome.manifest.phases if phase.name in LADDER)


def no_result_sentence(outcome: "ProfileOutcome", happened: str) -> str:
    """Why there is nothing to show, and what to do about it."""
    if happened:
        return f"{happened} Too little was measured before that to show anything."
    steps = outcome.manifest.counts.steps
    if steps == 0:
        return (
            "No training step was seen, so there is nothing to show: no optimizer stepped in the processes that "
            "Stallwise started. A script that starts its ranks itself is profiled with --nproc-per-node; a loop "
            "without an optimizer calls stallwise.step()."
        )
    return (
        f"{steps} steps were seen, too few to measure each phase once, so there is nothing to show. "
        "Give the script more steps or epochs."
    )


def default_folder(script: str) -> str:
    """The default folder of a run."""
    return f"stallwise-runs/{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _progress_sentence(progress: "ProfileProgress", budget_s: float) -> str:
    left_s = max(0.0, budget_s - progress.elapsed_s)
    return f"round {progress.round}, {progress.phase}, {progress.steps} steps; at most {left_s:.0f} s left"
