"""`stallwise profile [options] train.py [args...]`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, no
from stallwise.cli.report import As, View, show_profile
from stallwise.cli.torchrun import (
    MasterAddr,
    MasterPort,
    Nnodes,
    NodeRank,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
)

if TYPE_CHECKING:
    from stallwise.record.launch import Outcome, Progress

# Everything after the script belongs to the script, options too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

_PROGRESS_S = 5.0


def profile(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script, or with -m a module. Its arguments follow it.")],
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    out: Annotated[
        str | None, typer.Option("-o", "--out", help="Folder of the run. Default: stallwise-runs/SCRIPT-DATE-TIME.")
    ] = None,
    light: Annotated[bool, typer.Option("--light", help="Only watch: take nothing away, end nothing early.")] = False,
    max_time_s: Annotated[float, typer.Option("--max-time", help="Seconds to measure at most, after warm-up.")] = 120.0,
    max_steps: Annotated[int | None, typer.Option("--max-steps", help="Steps to measure at most.")] = None,
    cold: Annotated[bool, typer.Option("--cold/--no-cold", help="Also measure with cold data files.")] = True,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let checkpoints go where the script says, not to the run's scratch.")
    ] = False,
    hang_after_s: Annotated[
        float, typer.Option("--hang-after", help="Seconds without a step after which the job counts as hung.")
    ] = 300.0,
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    rdzv_backend: RdzvBackend = None,
    rdzv_endpoint: RdzvEndpoint = None,
    rdzv_id: RdzvId = None,
    view: As = View.CARD,
    as_json: Json = False,
) -> None:
    """Measure where a training job's time goes. The script is run as it is.

    The profile ends by itself when its intervals are tight or a budget is spent; what the script saves meanwhile goes
    to the run's scratch folder. Exit code 0: a complete profile. 1: the job failed, was interrupted or ended before
    anything could be measured; what was measured is kept.
    """
    from stallwise.record.launch import Launch, run_profile
    from stallwise.record.settings import Settings
    from stallwise.record.torchrun import TorchrunOptions

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
    settings = Settings(
        folder=out or default_folder(script),
        light=light,
        cold=cold,
        max_s=max_time_s,
        max_steps=max_steps,
        allow_writes=allow_writes,
        hang_after_s=hang_after_s,
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
    outcome = run_profile(launch, Teller(max_time_s), job_stdout=sys.stderr.fileno() if as_json else None)
    if launch.node_rank != 0:
        sentence = f"This node's part is in {launch.folder}; node 0 shows the result."
        if outcome.exit_code or outcome.interrupted or outcome.hung:
            raise no(f"stallwise: {what_happened(outcome)} {sentence}")
        typer.echo(f"stallwise: {sentence}", err=True)
        return
    _show(launch.folder, outcome, view, as_json=as_json)


def _show(folder: Path, outcome: "Outcome", view: View, *, as_json: bool) -> None:
    from stallwise.errors import RunError
    from stallwise.record.profile import profile_of
    from stallwise.run.reader import Run

    happened = what_happened(outcome)
    try:
        found = profile_of(Run.open(folder)) if each_phase_was_measured(outcome) else None
    except RunError:
        found = None
    if found is None:
        raise no(f"stallwise: {too_little(outcome, happened)}")
    show_profile(found, view, as_json=as_json)
    typer.echo(f"\nThe run is in {folder}; see it again with: stallwise report {folder}", err=True)
    if happened:
        raise no(f"stallwise: {happened} What was measured before is kept.")


def what_happened(outcome: "Outcome") -> str:
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


def each_phase_was_measured(outcome: "Outcome") -> bool:
    """Without a block of every phase there is no split: all the rest would pass for compute."""
    from stallwise.record.plan import LADDER

    return all(phase.blocks for phase in outcome.manifest.phases if phase.name in LADDER)


def too_little(outcome: "Outcome", happened: str) -> str:
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
    """Where a run goes that nobody gave a place."""
    return f"stallwise-runs/{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


class Teller:
    """Says on stderr how far the profile is: at the start, then every few seconds."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._last_s = 0.0

    def __call__(self, now: "Progress") -> None:
        """Where rank 0 is."""
        if time.monotonic() - self._last_s < _PROGRESS_S:
            return
        self._last_s = time.monotonic()
        left_s = max(0.0, self._budget_s - now.elapsed_s)
        typer.echo(
            f"stallwise: round {now.round}, {now.phase}, {now.steps} steps; at most {left_s:.0f} s left", err=True
        )
