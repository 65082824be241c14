"""`stallwise schedule`, `queue` and `submit`: the simulator's policies on a real Slurm cluster."""

import contextlib
import os
import select
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.commands import Command
from stallwise.cli.output import Exit, Json, answer, warn
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import ControllerSettings

STATE = Path("/var/lib/stallwise")
ControllerState = Annotated[
    Path,
    typer.Option("--state", envvar="STALLWISE_STATE", help="Folder of the controller's memory; one per partition."),
]
Partition = Annotated[
    str, typer.Option("--partition", "-p", envvar="STALLWISE_PARTITION", help="The partition it schedules.")
]


def schedule(
    *,
    partition: Partition,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="As in `stallwise simulate`; parameters as patient:lease=3600; or your own my_policy.py."
        ),
    ] = "patient",
    state: ControllerState = STATE,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Time between two looks at Slurm.")
    ] = "2s",
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="TIME", help="Time from TERM to KILL when a lease ends. Default: Slurm's KillWait."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Append every decision here, as JSON lines; default: stdout.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Serve Prometheus metrics at this address: 127.0.0.1:9814.")
    ] = None,
    start_within: Annotated[
        str,
        typer.Option(
            "--start-within", metavar="TIME", help="A released job that has not started after this time is held back."
        ),
    ] = "20s",
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Time one Slurm command may take.")] = "20s",
    observe: Annotated[
        str,
        typer.Option("--observe", metavar="TIME", help="How often speeds are read from the records that jobs write."),
    ] = "30s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print one pass of decisions and change nothing.")] = False,
    release_all: Annotated[
        bool, typer.Option("--release-all", help="Take it off: give every waiting job to plain Slurm, and end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Schedule the held jobs of a Slurm partition by a policy: pin nodes, release, requeue when a lease ends.

    Decisions are JSON lines already; --json makes --release-all and errors JSON too.

    Exit code 0: ended by TERM or Ctrl-C, or the dry run or --release-all is done. 1: --release-all could not release
    every job. 2: it cannot start: no Slurm, no such partition, or another controller has it.
    """
    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import check_partition, policy_for_slurm

    policy_for_slurm(policy)
    settings = _settings(partition, policy, interval, grace, start_within, observe, dry_run=dry_run)
    slurm = Slurm(timeout_s=_seconds(timeout, "--timeout"))
    check_partition(slurm, partition)
    about = f"partition {partition} of {slurm.setting('ClusterName') or 'this cluster'}"
    if dry_run:
        _look(settings, slurm, state)
    elif release_all:
        _release_all(slurm, state, about, partition, as_json=as_json)
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
) -> "ControllerSettings":
    from stallwise.slurm.controller import ControllerSettings
    from stallwise.slurm.reconciliation import ScheduleTiming

    return ControllerSettings(
        partition=partition,
        policy=policy,
        interval_s=_seconds(interval, "--interval"),
        grace_s=None if grace is None else _seconds(grace, "--grace"),
        timing=ScheduleTiming(start_s=_seconds(start_within, "--start-within")),
        dry_run=dry_run,
        observe_s=_seconds(observe, "--observe"),
    )


def _seconds(text: str, option: str) -> float:
    from stallwise.units import parse_seconds

    value_s = parse_seconds(text)
    if not 0 < value_s < float("inf"):
        raise InputError(f"{option} takes a time above 0, not {text!r}.")
    return value_s


def _run(
    settings: "ControllerSettings", slurm: "Slurm", folder: Path, about: str, log: Path | None, metrics: str | None
) -> None:
    """Run the controller until TERM or Ctrl-C."""
    from stallwise.slurm.controller import Controller, closing
    from stallwise.slurm.metrics import ControllerMetrics, serve_metrics
    from stallwise.slurm.state import ControllerState, DecisionLog, lock_partition, stdout_log

    stop = _stopped_by(signal.SIGTERM, signal.SIGINT)
    journal = DecisionLog(log) if log is not None else stdout_log()
    figures = ControllerMetrics()
    with lock_partition(folder, about), closing(ControllerState.open(folder, about)) as state:
        controller = Controller(settings, slurm, state, journal, folder, figures)
        controller.warm_up()
        with serve_metrics(metrics, figures, settings.partition) as port:
            where = "" if port is None else f"; metrics on port {port}"
            typer.echo(f"stallwise: scheduling {about} by {settings.policy}{where}", err=True)
            journal.write("begin", partition=settings.partition, policy=settings.policy)
            controller.run(stop)
            journal.write("end")


def _stopped_by(*signals: int) -> Callable[[float], bool]:
    """Wait for a number of seconds or until one of the signals has come; whether one has.

    A pipe, not a `threading.Event`: its `set` in a handler deadlocks where the signal meets the thread that waits while
    it holds the event's lock.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def handle(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(writable, b".")

    for number in signals:
        signal.signal(number, handle)
    return lambda seconds: bool(select.select([readable], [], [], seconds)[0])


def _look(settings: "ControllerSettings", slurm: "Slurm", folder: Path) -> None:
    """One decision from a copy of the state; nothing is changed."""
    from stallwise.slurm.controller import Controller, closing
    from stallwise.slurm.state import ControllerState, stdout_log

    with closing(ControllerState.copied(folder)) as state:
        Controller(settings, slurm, state, stdout_log(), folder).once()


def _release_all(slurm: "Slurm", folder: Path, about: str, partition: str, *, as_json: bool) -> None:
    from stallwise.slurm.actions import release_all
    from stallwise.slurm.state import ControllerState, lock_partition

    with lock_partition(folder, about):
        try:
            rows = ControllerState.copied(folder).rows()
        except (InputError, sqlite3.Error) as error:
            warn(f"{error} Jobs are released by the marks in their AdminComment alone.")
            rows = {}
        done = list(release_all(slurm, partition, rows))
    for entry in done:
        if entry.error is not None:
            typer.echo(f"job {entry.job}: {entry.error}", err=True)
    failed = sum(entry.error is not None for entry in done)
    if as_json:
        from stallwise.report.json import schema

        document = {"partition": partition, "jobs": done, "failed": failed}
        answer(lambda: schema("release") | document, lambda: None, as_json=True)
    else:
        typer.echo(f"{len(done) - failed} of {len(done)} waiting jobs of {about} are Slurm's now.")
    if failed:
        raise typer.Exit(Exit.NO)


_MISSED = 5


def queue(
    state: ControllerState = STATE,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only jobs of this user.")] = None,
    as_json: Json = False,
) -> None:
    """Show the jobs that `stallwise schedule` knows: where they run, or why they wait and until when at most.

    Exit code 0: shown; a warning on stderr where the controller has not been heard of for a while. 2: there is none.
    """
    import msgspec

    from stallwise.slurm.snapshot import read_snapshot

    snapshot = read_snapshot(state)
    if user is not None:
        snapshot = msgspec.structs.replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.user == user))
    silent_s = time.time() - snapshot.time_s
    if silent_s > max(30.0, _MISSED * snapshot.interval_s):
        warn(f"the controller of partition {snapshot.partition} was last heard of {silent_s:.0f} s ago.")
    from stallwise.report.views.slurm import draw_queue

    answer(lambda: snapshot, lambda: draw_queue(snapshot, time.time()), as_json=as_json)


if TYPE_CHECKING:
    from typer._click.core import Context

    from stallwise.slurm.facts import JobDescription

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


class Submit(Command):
    """Takes its own options out of the words before the script; every other word goes to sbatch untouched.

    Left to itself the parser would look into a cluster of short options for letters it knows, and take `-Jpretrain`
    for a job J in the partition `retrain`.
    """

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Put our own options first, then `--`, then everything else unchanged."""
        takes = {
            name: 0 if getattr(option, "is_flag", False) else option.nargs
            for option in self.get_params(ctx)
            for name in option.opts
            if name.startswith("-")
        }
        ours: list[str] = []
        theirs: list[str] = []
        left = list(args)
        while left and left[0].startswith("-") and left[0] != "--":
            name, equals, _ = left[0].partition("=")
            short = left[0][:2] if not name.startswith("--") else ""
            if name in takes:
                count = 1 if equals else 1 + takes[name]
            elif takes.get(short):
                count = 1  # its value is glued to it: -pgpu
            else:
                theirs.append(left.pop(0))
                continue
            ours += left[:count]
            del left[:count]
        rest = left[1:] if left[:1] == ["--"] else left
        return super().parse_args(ctx, [*ours, "--", *theirs, *rest])


def submit(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SBATCH-OPTIONS SCRIPT ARGS…", help="Goes to sbatch as it is; the options below come first."
        ),
    ] = None,
    *,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs in all.")] = None,
    nodes: Annotated[str | None, typer.Option("--nodes", help="Node range; default: 1 to one per GPU.")] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", envvar="STALLWISE_PARTITION", help="Partition to submit to.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="A run of this job: its sensitivity is predicted.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A network by name; jobs of one name learn from each other.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="MODEL", help="With --model: GPU model of the cluster: V100.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="With --model: samples per GPU and step.")] = 32,
    tokens: Annotated[int | None, typer.Option("--tokens", help="With --model: length of a sequence.")] = None,
    speeds: Annotated[
        str | None,
        typer.Option("--speeds", help="Speed inside a machine, inside a rack, beyond: 1,0.9,0.6."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Folder the job writes its run records to; speeds are learned.")
    ] = None,
    gpu_link: Annotated[
        str,
        typer.Option("--gpu-link", envvar="STALLWISE_GPU_LINK", metavar="RATE", help="Rate between GPUs of a machine."),
    ] = "300GB/s",
    machine_link: Annotated[
        str,
        typer.Option(
            "--machine-link", envvar="STALLWISE_MACHINE_LINK", metavar="RATE", help="Rate between machines of a rack."
        ),
    ] = "100gbit",
    rack_link: Annotated[
        str,
        typer.Option(
            "--rack-link", envvar="STALLWISE_RACK_LINK", metavar="RATE", help="Rate between racks, per machine."
        ),
    ] = "25gbit",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the sbatch command and submit nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job held, with what it says about its sensitivity to placement; everything else is sbatch's.

    Exit code 0: submitted, with sbatch's own words on stdout. 2: refused, by sbatch or before.
    """
    import shlex

    from stallwise.slurm.submission import sbatch_command
    from stallwise.slurm.submission import submit as to_slurm

    ask = _slowdown_request(
        run, model, speeds, gpus, partition, (gpu, batch, tokens), (gpu_link, machine_link, rack_link)
    )
    if record is not None:
        import msgspec

        ask = msgspec.structs.replace(ask, record=str(record.resolve()))
    command = sbatch_command(ask, words or (), gpus=gpus, nodes=nodes, partition=partition)
    reply = None if dry_run else to_slurm(command)
    if as_json:
        from stallwise.report.json import schema

        document = {"submitted": not dry_run, "command": list(command), "sbatch": reply}
        answer(lambda: schema("submission") | document, lambda: None, as_json=True)
    else:
        typer.echo(shlex.join(command) if reply is None else reply)


def _slowdown_request(
    run: Path | None,
    model: str | None,
    speeds: str | None,
    gpus: int | None,
    partition: str | None,
    network: tuple[str | None, int, int | None],
    links: tuple[str, str, str],
) -> "JobDescription":
    from stallwise.slurm.facts import JobDescription

    if run is not None and speeds is not None:
        raise InputError("--run and --speeds say the same thing. Give one of them.")
    if speeds is not None:
        return JobDescription(speeds=_speed_numbers(speeds), model=model)
    if run is None and (model is None or network[0] is None):
        return JobDescription(model=model)
    if gpus is None or partition is None:
        raise InputError("How much a job suffers depends on its gang and the cluster: give --gpus and --partition.")
    return _predicted_request(run, model, gpus, partition, network, links)


def _predicted_request(
    run: Path | None,
    model: str | None,
    gpus: int,
    partition: str,
    network: tuple[str | None, int, int | None],
    links: tuple[str, str, str],
) -> "JobDescription":
    import msgspec

    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.controller import check_partition
    from stallwise.slurm.submission import Links, NamedNetwork, describe_network, describe_run
    from stallwise.units import parse_rate

    cluster = check_partition(Slurm(), partition).cluster
    inside, machines, racks = (parse_rate(text) for text in links)
    joined = Links(gpu_bytes_per_s=inside, machine_bytes_per_s=machines, rack_bytes_per_s=racks)
    if run is not None:
        ask = describe_run(run, gpus, cluster, joined)
        return msgspec.structs.replace(ask, model=model) if model is not None else ask
    named = NamedNetwork(model=model or "", gpu=network[0] or "", batch=network[1], tokens=network[2])
    return describe_network(named, gpus, cluster, joined)


def _speed_numbers(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(piece) for piece in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0 < value <= 1 for value in speeds) or len(speeds) > 8:
        raise InputError(f"--speeds takes numbers above 0 and up to 1 with commas between, not {text!r}.")
    return speeds
