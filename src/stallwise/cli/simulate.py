"""`stallwise simulate`: the jobs of a trace on a cluster, under one scheduling policy after the other."""

import contextlib
import enum
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options
from stallwise.cli.output import Json, answer, progress_line, save_page
from stallwise.errors import InputError, UnknownNameError
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.cluster.job import Arrivals
    from stallwise.cluster.sweep.cases import NamedCluster, SimulationResult, Sweep
    from stallwise.cluster.sweep.compare import SimulationComparison
    from stallwise.cluster.topology import Cluster
    from stallwise.cluster.traces import MeasuredSpeeds, Trace
    from stallwise.cluster.traces.rhythm import Rhythm


class EngineName(enum.StrEnum):
    """What runs the simulations of a sweep: processes of this machine, or a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


_POLICIES = "fifo,srtf,srsf,las,tiresias,dally,patient"
_ARRIVALS = ("given", "batch", "poisson")


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace of jobs; its format is known by its header.")],
    *,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="racks=2,machines=8,gpus=8 (counts per parent), kinds=v100:2x4+p100:4x4 (machines x GPUs of each "
            "kind), a Slurm topology.conf, or a table of hosts; "
            "several: each in turn.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="Names, commas between; `all` that decide at every event, `rounds` that compute allocations, "
            "`elastic` that change the GPUs of a job; parameters as dally-manual:rack=6,net=12; or a Python file with "
            "your own: my_policy.py, my_policy.py:ClassName.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Number of simulations; arrivals are drawn anew (Poisson at the same rate).")
    ] = 1,
    loads: Annotated[
        str, typer.Option("--loads", help="How many times as fast jobs come, commas between: 0.5,1,1.5.")
    ] = "1",
    arrivals: Annotated[
        str | None,
        typer.Option("--arrivals", help="given, batch (all at once), poisson, or a table of submissions per interval."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Jobs per day of Poisson arrivals.")] = None,
    contention: Annotated[bool, typer.Option("--contention", help="Jobs that share a link slow each other.")] = False,
    profiles: Annotated[
        Path | None,
        typer.Option(
            "--profiles", help="Layer profiles, applications or throughputs; default: those beside the trace."
        ),
    ] = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            help="MODEL=RUN: jobs of that model run as fast as this run, or layer file, says; several: each.",
        ),
    ] = None,
    links: Annotated[
        str,
        typer.Option(
            "--links",
            metavar="LINKS",
            help="Links that profiles are priced on: released, congested, or machine=25gbit,rack=10gbit:50us.",
        ),
    ] = "released",
    slowdown: Annotated[
        str | None,
        typer.Option(
            "--slowdown",
            help="Instead of profiles: speed by width of the placement, inside a machine first: 1,0.9,0.6.",
        ),
    ] = None,
    preemption_time: Annotated[
        str,
        typer.Option(
            "--preemption-time", metavar="TIME", help="Time until a preempted job's GPUs are free, per GPU of it: 1s."
        ),
    ] = "0s",
    restart: Annotated[
        str, typer.Option("--restart", metavar="TIME", help="Time without progress after every later start: 30s.")
    ] = "0s",
    deflate_to: Annotated[
        str | None,
        typer.Option(
            "--deflate-to",
            help="Beside every policy that preempts: the same with jobs that shrink, to this part of their GPUs "
            "(50%), instead; options in its name: srtf:deflate=0.5,slack=0.2,resize=5.",
        ),
    ] = None,
    gpus_per_machine: Annotated[
        int, typer.Option("--gpus-per-machine", help="GPUs of a machine, where a topology file does not say it.")
    ] = 8,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines of the trace that are no usable job.")
    ] = False,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="What runs the simulations: processes here, or a Ray cluster.")
    ] = EngineName.LOCAL,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Address of a running Ray cluster, or auto. Default: RAY_ADDRESS; without any, --engine ray starts "
            "one on this machine.",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--concurrency", help="Simulations at a time; default: as many as there are cores.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="Keep every simulation in this file as it is done; what is in it already is not simulated again.",
        ),
    ] = None,
    csv_to: Annotated[Path | None, typer.Option("--csv", help="Also write a row per simulation here, as CSV.")] = None,
    jobs_to: Annotated[
        Path | None, typer.Option("--jobs-csv", help="Also write every job's times here, as CSV.")
    ] = None,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Simulate a trace on a cluster under scheduling policies, side by side.

    Exit code 0: simulated. 2: bad input; bad lines of the trace are listed with their numbers (--skip-bad goes on
    without them). 143: ended by SIGTERM.
    """
    names = _deflated(policies(policy or [_POLICIES]), deflate_to)
    clusters = _clusters(cluster, gpus_per_machine)
    factors = _numbers(loads, "--loads")
    if seeds < 1 or (cores is not None and cores < 1):
        raise InputError("--seeds and --cores take whole numbers from 1.")
    measured = _measured(profiles, profile or [], links)
    jobs_trace, named_clusters = _read(trace, measured, slowdown, clusters, skip_bad=skip_bad)
    arrival_rule, notes = _arrivals(arrivals, seeds, rate, jobs_trace, factors)
    from stallwise.cluster.simulator import RestartCosts
    from stallwise.cluster.sweep.cases import Sweep
    from stallwise.units import parse_seconds

    sweep = Sweep(
        jobs=jobs_trace.jobs,
        clusters=named_clusters,
        policies=names,
        loads=factors,
        seeds=tuple(range(seeds)),
        arrivals=arrival_rule,
        jobs_per_s=None if rate is None else rate / 86400,
        costs=RestartCosts(checkpoint_s_per_gpu=parse_seconds(preemption_time), restart_s=parse_seconds(restart)),
        contention=contention,
        keep=jobs_to is not None,
    )
    if cores is not None:
        sweep = replace(sweep, cores=cores)
    runs = run_simulations(sweep, engine_of(engine.value, address, cores), results)
    comparison = _compared(jobs_trace, sweep, runs, notes)
    _answer(comparison, html, as_json=as_json)
    if csv_to is not None:
        from stallwise.report.views.simulate import write_rows

        typer.echo(f"The rows are in {write_rows(comparison, csv_to)}", err=True)
    if jobs_to is not None:
        from stallwise.report.views.simulate import write_jobs

        typer.echo(f"The jobs are in {write_jobs(comparison, jobs_to)}", err=True)


def policies(texts: Sequence[str]) -> tuple[str, ...]:
    """Names with their parameters: `fifo,dally-manual:rack=6,net=12` is two."""
    from stallwise.cluster.policies.catalog import GROUPS, POLICIES, ROUND_POLICIES, policy_named

    names: list[str] = []
    for text in texts:
        for piece in (part.strip() for part in text.split(",")):
            if "=" in piece and ":" not in piece and names:
                names[-1] += f",{piece}"
            elif piece in GROUPS:
                names += GROUPS[piece]
            elif piece:
                names.append(piece)
    if not names:
        raise InputError(f"--policy names none. Choose from {', '.join([*POLICIES, *ROUND_POLICIES])}, or all.")
    for name in names:
        policy_named(name)
    return tuple(dict.fromkeys(names))


def _deflated(names: tuple[str, ...], to: str | None) -> tuple[str, ...]:
    """Beside every policy that preempts, the same with jobs that shrink instead."""
    from stallwise.cluster.policies.catalog import policy_named
    from stallwise.units import parse_share

    if to is None:
        return names
    share = parse_share(to)
    if not 0 < share < 1:
        raise InputError(f"--deflate-to takes a part of the GPUs between 0 and 1, 50% or 0.5, not {to}.")
    both: list[str] = []
    for name in names:
        policy = policy_named(name)
        both.append(name)
        if (
            policy.rounds is None
            and policy.user is None
            and policy.preemption.kind != "never"
            and policy.shrinking is None
        ):
            both.append(f"{name}{',' if ':' in name else ':'}deflate={share:g}")
    if len(both) == len(names):
        raise InputError("None of these policies preempts jobs, so there is nothing to deflate instead. Add one: srtf.")
    return tuple(dict.fromkeys(both))


def _clusters(texts: list[str] | None, gpus_per_machine: int) -> "tuple[tuple[str, Cluster], ...]":
    from stallwise.cluster.topology import parse_cluster

    if not texts:
        raise InputError("Which cluster? Give --cluster racks=2,machines=8,gpus=8, or a topology file.")
    if gpus_per_machine < 1:
        raise InputError("--gpus-per-machine takes a whole number from 1.")
    return tuple((_short(text), parse_cluster(text, gpus_per_machine)) for text in dict.fromkeys(texts))


def _short(text: str) -> str:
    return text if "=" in text else Path(text).name


def _numbers(text: str, option: str) -> tuple[float, ...]:
    numbers = []
    for piece in text.split(","):
        try:
            value = float(piece)
        except ValueError:
            raise InputError(f"{option} takes numbers with commas between, not {piece.strip()!r}.") from None
        if not 0 < value < float("inf"):
            raise InputError(f"{option} takes numbers above 0, not {piece.strip()}.")
        numbers.append(value)
    return tuple(dict.fromkeys(numbers))


def _measured(profiles: Path | None, own: Sequence[str], network: str) -> "MeasuredSpeeds":
    from stallwise.cluster.traces import MeasuredSpeeds

    named: dict[str, Path] = {}
    for text in own:
        name, _, path = text.partition("=")
        if not name.strip() or not path.strip():
            raise InputError(f"--profile takes MODEL=RUN, as in --profile resnet50=runs/resnet50, not {text!r}.")
        if not Path(path.strip()).exists():
            raise InputError(f"There is nothing at {path.strip()}. Check --profile {text}.")
        named[name.strip()] = Path(path.strip())
    return MeasuredSpeeds(profiles=profiles, own=tuple(named.items()), network=network)


def _read(
    path: Path,
    measured: "MeasuredSpeeds",
    slowdown: str | None,
    clusters: "tuple[tuple[str, Cluster], ...]",
    *,
    skip_bad: bool,
) -> "tuple[Trace, tuple[NamedCluster, ...]]":
    """The trace, every line checked against the smallest cluster, and the clusters with its speeds there."""
    from stallwise.cluster.sweep.cases import NamedCluster
    from stallwise.cluster.traces import read_trace
    from stallwise.cluster.traces.rows import mark_misfits, usable_trace
    from stallwise.cluster.traces.speeds import trace_speeds

    flat = None if slowdown is None else _numbers(slowdown, "--slowdown")
    trace, speeds = trace_speeds(read_trace(path, measured), path, measured, flat)
    least = min(cluster.gpus for _, cluster in clusters)
    kept = usable_trace(mark_misfits(trace, least, models=speeds.models), skip_bad=skip_bad)
    return kept, tuple(NamedCluster(name=name, cluster=cluster, speed=speeds.on(cluster)) for name, cluster in clusters)


def _arrivals(
    rule: str | None, seeds: int, rate: float | None, trace: "Trace", loads: Sequence[float]
) -> "tuple[Arrivals | Rhythm, tuple[Sentence, ...]]":
    """When jobs come, and a note where the default was taken."""
    batch = trace.jobs[-1].arrival_s == trace.jobs[0].arrival_s
    if rule is None:
        rule = "poisson" if (rate is not None or (seeds > 1 and not batch)) else "given"
        drawn = rule == "poisson" and rate is None
        anew = "Seeds draw arrivals anew: Poisson at the mean rate of the trace."
        notes = (Sentence("arrivals.poisson", anew),) if drawn else ()
    else:
        notes = ()
    if (rule == "batch" or (batch and rule == "given")) and tuple(loads) != (1.0,):
        raise InputError("All jobs come at once, so --loads changes nothing. Leave it out, or give --rate.")
    if rate is not None and (rate <= 0 or rule != "poisson"):
        raise InputError("--rate takes jobs per day above 0, and goes with --arrivals poisson only.")
    if rule == "poisson" and batch and rate is None:
        raise InputError(f"All jobs of {trace.source} come at once and so have no rate. Give --rate, in jobs per day.")
    for name in _ARRIVALS:
        if rule == name:
            return name, notes  # type: ignore[return-value]
    return _rhythm(rule), notes


def _rhythm(path: str) -> "Rhythm":
    from stallwise.cluster.traces.rhythm import read_rhythm
    from stallwise.errors import UnknownNameError

    if not Path(path).exists():
        raise UnknownNameError("way to arrive (given, batch, poisson, or a file)", path, _ARRIVALS)
    return read_rhythm(Path(path))


_NO_TRAFFIC = Sentence(
    "traffic.unknown", "Nothing is known about the traffic of these jobs, so --contention changes nothing."
)


def _compared(
    trace: "Trace", sweep: "Sweep", runs: "list[SimulationResult]", notes: tuple[Sentence, ...]
) -> "SimulationComparison":
    from stallwise.cluster.sweep.compare import compare_policies

    if sweep.contention and not any(place.speed is not None and place.speed.shares for place in sweep.clusters):
        notes = (*notes, _NO_TRAFFIC)
    for name in sweep.policies:
        shrunk = sum(run.metrics.deflations for run in runs if run.case.policy == name)
        if shrunk:
            given = f"{name}: jobs gave GPUs {shrunk:,} times instead of being stopped."
            notes = (*notes, Sentence("policy.deflations", given, policy=name, deflations=shrunk))
        due = sum(run.metrics.deadlines for run in runs if run.case.policy == name)
        if due:
            met = sum(run.metrics.deadlines_met for run in runs if run.case.policy == name)
            kept = f"{name}: {met:,} of {due:,} deadlines met."
            notes = (*notes, Sentence("policy.deadlines", kept, policy=name, deadlines=due, deadlines_met=met))
    from stallwise.cluster.policies.catalog import GROUPS, KNOWS, ROUND_POLICIES

    names = (policy.partition(":")[0] for policy in sweep.policies)
    round_policies = [name for name in dict.fromkeys(names) if name in ROUND_POLICIES]
    knows = [Sentence("policy.knows", f"{name} knows of a job: {KNOWS[name]}.", policy=name) for name in round_policies]
    if growing := [name for name in round_policies if name in (*GROUPS["elastic"], *GROUPS["deadlines"])]:
        names_of = ", ".join(growing)
        knows.append(
            Sentence("policy.elastic", f"Jobs grow and shrink under {names_of}: nothing is counted as lost there.")
        )
    return compare_policies(trace, sweep, runs, (*notes, *knows))


def _answer(comparison: "SimulationComparison", html: Path | None, *, as_json: bool) -> None:
    if as_json:
        from stallwise.report.views.simulate import document

        answer(lambda: document(comparison), lambda: None, as_json=True)
    else:
        from stallwise.report.views.simulate import draw

        answer(lambda: None, lambda: draw(comparison), as_json=False)
    if html is not None:
        from stallwise.report.views.simulate import page

        save_page(page(comparison), html)


if TYPE_CHECKING:
    from stallwise.cluster.sweep.cases import Engine, SimulationResult, Sweep

ENGINES = ("local", "ray")


def engine_of(name: str, address: str | None, cores: int | None) -> "Engine":
    """An engine by its name."""
    from stallwise.cluster.sweep.cases import available_cores
    from stallwise.cluster.sweep.local import LocalEngine

    if name == "local":
        if address is not None:
            raise InputError("--address is that of a Ray cluster. Give --engine ray too, or leave it out.")
        return LocalEngine(cores or available_cores())
    if name == "ray":
        from stallwise.cluster.sweep.ray import RayEngine, ray_package

        address = address or os.environ.get("RAY_ADDRESS") or None
        ray_package(address)  # say at once that it is missing, not after a trace was read
        return RayEngine(cores, address)
    raise UnknownNameError(f"engine ({', '.join(ENGINES)})", name, ENGINES)


def run_simulations(sweep: "Sweep", engine: "Engine", results: Path | None) -> "list[SimulationResult]":
    """Run the sweep with progress on stderr and a notice when the simulator is compiled."""
    from stallwise.cli.output import ProgressReporter, compile_notice
    from stallwise.cluster.sweep.results import ResultsFile
    from stallwise.cluster.sweep.sweep import run_sweep

    if results is not None and sweep.keep:
        raise InputError("--jobs needs every simulation whole, and --results keeps figures only. Leave out one.")
    journal = contextlib.nullcontext() if results is None else ResultsFile(results, progress_line)
    with journal as kept, ProgressReporter() as progress, compile_notice() as begun, _exit_on_sigterm():

        def tell(what: str, done: int, of: int) -> None:
            begun()
            progress.report(what, done, of)

        return run_sweep(sweep, tell, engine=engine, journal=kept)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Exit on SIGTERM, as batch systems send it, ending workers as after Ctrl-C."""

    ended = 0

    def leave(number: int, _: FrameType | None) -> None:
        nonlocal ended
        ended = 128 + number
        raise SystemExit(ended)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    except BaseException:
        if ended:  # Ray, interrupted while it waits, makes something else of it
            raise SystemExit(ended) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
