"""`stallwise schedule`: the policies of the simulator on a real cluster."""

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import Settings

STATE = Path("/var/lib/stallwise")
State = Annotated[
    Path,
    typer.Option("--state", envvar="STALLWISE_STATE", help="Folder of the controller's memory; one per partition."),
]
Partition = Annotated[
    str, typer.Option("--partition", "-p", envvar="STALLWISE_PARTITION", help="The partition it schedules.")
]


def schedule(
    partition: Partition,
    engine: Annotated[str, typer.Option("--engine", help="What carries decisions out: slurm.")] = "slurm",
    policy: Annotated[
        str, typer.Option("--policy", help="As in `stallwise simulate`; parameters as patient:lease=3600.")
    ] = "patient",
    state: State = STATE,
    interval: Annotated[str, typer.Option("--interval", help="Between two looks at Slurm.")] = "2s",
    grace: Annotated[
        str | None, typer.Option("--grace", help="From TERM to KILL when a lease ends; default: Slurm's KillWait.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Append every decision here, as JSON lines; default: stdout.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Serve Prometheus metrics at this address: 127.0.0.1:9814.")
    ] = None,
    start_within: Annotated[
        str, typer.Option("--start-within", help="A released job that has not started by then is held back.")
    ] = "20s",
    timeout: Annotated[str, typer.Option("--timeout", help="Of one Slurm command.")] = "20s",
    observe: Annotated[
        str, typer.Option("--observe", help="How often speeds are read from the records that jobs write.")
    ] = "30s",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say once what it would do now, and change nothing.")
    ] = False,
    release_all: Annotated[
        bool, typer.Option("--release-all", help="Take it off: give every waiting job to plain Slurm, and end.")
    ] = False,
) -> None:
    """Schedule the held jobs of a Slurm partition by a policy: pin nodes, release, requeue when a lease ends.

    Exit code 0: ended by TERM or Ctrl-C, or the dry run or --release-all is done. 1: --release-all could not release
    every job. 2: it cannot start: no Slurm, no such partition, or another controller has it.
    """
    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import check_partition, policy_for_slurm

    if engine != "slurm":
        raise InputError(f"No engine is called {engine!r}. There is one: slurm.")
    policy_for_slurm(policy)
    settings = _settings(partition, policy, interval, grace, start_within, observe, dry_run=dry_run)
    slurm = Slurm(timeout_s=_seconds(timeout, "--timeout"))
    check_partition(slurm, partition)
    about = f"partition {partition} of {slurm.setting('ClusterName') or 'this cluster'}"
    if dry_run:
        _look(settings, slurm, state)
    elif release_all:
        _release_all(slurm, state, about, partition)
    else:
        _run(settings, slurm, state, about, log, metrics)


def _settings(
    partition: str,
    policy: str,
    interval: str,
    grace: str | None,
    start_within: str,
    observe: str,
    *,
    dry_run: bool,
) -> "Settings":
    from stallwise.slurm.controller import Settings
    from stallwise.slurm.reconcile import Timing

    return Settings(
        partition=partition,
        policy=policy,
        interval_s=_seconds(interval, "--interval"),
        grace_s=None if grace is None else _seconds(grace, "--grace"),
        timing=Timing(start_s=_seconds(start_within, "--start-within")),
        dry_run=dry_run,
        observe_s=_seconds(observe, "--observe"),
    )


def _seconds(text: str, option: str) -> float:
    from stallwise.units import parse_seconds

    found = parse_seconds(text)
    if not 0 < found < float("inf"):
        raise InputError(f"{option} takes a time above 0, not {text!r}.")
    return found


def _run(settings: "Settings", slurm: "Slurm", folder: Path, about: str, log: Path | None, metrics: str | None) -> None:
    """Until TERM or Ctrl-C."""
    from stallwise.slurm.controller import Controller, closing
    from stallwise.slurm.journal import Journal, to_stdout
    from stallwise.slurm.lock import only_one
    from stallwise.slurm.metrics import Figures, served
    from stallwise.slurm.state import State

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    journal = Journal(log) if log is not None else to_stdout()
    figures = Figures()
    with only_one(folder, about), closing(State.open(folder, about)) as state:
        controller = Controller(settings, slurm, state, journal, folder, figures)
        controller.warm_up()
        with served(metrics, figures, settings.partition) as port:
            where = "" if port is None else f"; metrics on port {port}"
            typer.echo(f"stallwise: scheduling {about} by {settings.policy}{where}", err=True)
            journal.write("begin", partition=settings.partition, policy=settings.policy)
            controller.run(over.wait)
            journal.write("end")


def _look(settings: "Settings", slurm: "Slurm", folder: Path) -> None:
    """One decision from a copy of the state; nothing is changed."""
    from stallwise.slurm.controller import Controller, closing
    from stallwise.slurm.journal import to_stdout
    from stallwise.slurm.state import State

    with closing(State.copied(folder)) as state:
        Controller(settings, slurm, state, to_stdout(), folder).once()


def _release_all(slurm: "Slurm", folder: Path, about: str, partition: str) -> None:
    from stallwise.slurm.lock import only_one
    from stallwise.slurm.state import State
    from stallwise.slurm.takeoff import release_all

    with only_one(folder, about):
        done = list(release_all(slurm, partition, State.copied(folder).rows()))
    for entry in done:
        if entry.error is not None:
            typer.echo(f"job {entry.job}: {entry.error}", err=True)
    failed = sum(entry.error is not None for entry in done)
    typer.echo(f"{len(done) - failed} of {len(done)} waiting jobs of {about} are Slurm's now.")
    if failed:
        raise typer.Exit(Exit.NO)
