"""`stallwise simulate`: the jobs of a trace on a cluster, under one scheduling policy after the other."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import sweeps
from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.cluster.comparison import Comparison
    from stallwise.cluster.job import Arrivals
    from stallwise.cluster.sweep import Place, Run, Sweep
    from stallwise.cluster.topology import Cluster
    from stallwise.cluster.traces import Measured, Trace
    from stallwise.cluster.traces.helios import Rhythm

_POLICIES = "fifo,srtf,srsf,las,tiresias,dally,patient"
_ARRIVALS = ("given", "batch", "poisson")


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace of jobs; its format is known by its header.")],
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
            "`elastic` that change the GPUs of a job; parameters as dally-manual:rack=6,net=12.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", help="Simulate so many times; arrivals are drawn anew (Poisson at the same rate).")
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
    network: Annotated[
        str,
        typer.Option(
            "--network",
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
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Until a preempted job's GPUs are free again, per GPU of it: 1s.")
    ] = "0s",
    restart: Annotated[str, typer.Option("--restart", help="Without progress after every later start: 30s.")] = "0s",
    deflate_to: Annotated[
        str | None,
        typer.Option(
            "--deflate-to",
            help="Beside every policy that preempts: the same with jobs that shrink, to this part of their GPUs "
            "(50%), instead; options in its name: srtf:deflate=0.5,slack=0.2,resize=5.",
        ),
    ] = None,
    gpus_per_machine: Annotated[
        int, typer.Option("--gpus-per-machine", help="Where a topology file does not say it.")
    ] = 8,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that are no usable job.")] = False,
    engine: Annotated[
        str, typer.Option("--engine", help="What runs the simulations: local (processes here) or ray (a Ray cluster).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Of a running Ray cluster, host:6379 or auto (default: RAY_ADDRESS); without any, --engine ray starts "
            "one on this machine.",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", help="Simulations at a time; default: as many as there are cores.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            help="Keep every simulation in this file as it is done; what is in it already is not simulated again.",
        ),
    ] = None,
    csv_to: Annotated[Path | None, typer.Option("--csv", help="Also write a row per simulation here, as CSV.")] = None,
    jobs_to: Annotated[Path | None, typer.Option("--jobs", help="Also write every job's times here, as CSV.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots here.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate a trace on a cluster under scheduling policies, side by side.

    Exit code 0: simulated. 2: it cannot be; bad lines of the trace are listed with their numbers (--skip-bad goes on
    without them).
    """
    names = _deflated(policies(policy or [_POLICIES]), deflate_to)
    clusters = _clusters(cluster, gpus_per_machine)
    factors = _numbers(loads, "--loads")
    if seeds < 1 or (cores is not None and cores < 1):
        raise InputError("--seeds and --cores take whole numbers from 1.")
    measured = _measured(profiles, profile or [], network)
    found, places = _read(trace, measured, slowdown, clusters, skip_bad=skip_bad)
    how, said = _arrivals(arrivals, seeds, rate, found, factors)
    sweep = _sweep(found, places, names, factors, seeds, how, rate, contention, (checkpoint, restart), cores)
    sweep = replace(sweep, keep=jobs_to is not None)
    runs = sweeps.simulated(sweep, sweeps.engine_of(engine, address, cores), results)
    made = _compared(found, sweep, runs, said)
    _answer(made, html, as_json=as_json)
    if csv_to is not None:
        from stallwise.report.simulate_csv import write_rows

        typer.echo(f"The rows are in {write_rows(made, csv_to)}", err=True)
    if jobs_to is not None:
        from stallwise.report.simulate_jobs import write_jobs

        typer.echo(f"The jobs are in {write_jobs(made, jobs_to)}", err=True)


def policies(given: Sequence[str]) -> tuple[str, ...]:
    """Names with their parameters: `fifo,dally-manual:rack=6,net=12` is two. The nearest to an unknown one is told."""
    from stallwise.cluster.policies import GROUPS, POLICIES, ROUND_POLICIES, policy_named

    names: list[str] = []
    for text in given:
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
    from stallwise.cluster.policies import policy_named
    from stallwise.units import parse_share

    if to is None:
        return names
    share = parse_share(to)
    if not 0 < share < 1:
        raise InputError(f"--deflate-to takes a part of the GPUs between 0 and 1, 50% or 0.5, not {to}.")
    made: list[str] = []
    for name in names:
        known = policy_named(name)
        made.append(name)
        if known.rounds is None and known.preemption.kind != "never" and known.shrinking is None:
            made.append(f"{name}{',' if ':' in name else ':'}deflate={share:g}")
    if len(made) == len(names):
        raise InputError("None of these policies preempts jobs, so there is nothing to deflate instead. Add one: srtf.")
    return tuple(dict.fromkeys(made))


def _clusters(given: list[str] | None, gpus_per_machine: int) -> "tuple[tuple[str, Cluster], ...]":
    from stallwise.cluster.topology_readers import parse_cluster

    if not given:
        raise InputError("Which cluster? Give --cluster racks=2,machines=8,gpus=8, or a topology file.")
    if gpus_per_machine < 1:
        raise InputError("--gpus-per-machine takes a whole number from 1.")
    return tuple((_short(text), parse_cluster(text, gpus_per_machine)) for text in dict.fromkeys(given))


def _short(text: str) -> str:
    return text if "=" in text else Path(text).name


def _numbers(text: str, option: str) -> tuple[float, ...]:
    found = []
    for piece in text.split(","):
        try:
            value = float(piece)
        except ValueError:
            raise InputError(f"{option} takes numbers with commas between, not {piece.strip()!r}.") from None
        if not 0 < value < float("inf"):
            raise InputError(f"{option} takes numbers above 0, not {piece.strip()}.")
        found.append(value)
    return tuple(dict.fromkeys(found))


def _measured(profiles: Path | None, own: Sequence[str], network: str) -> "Measured":
    from stallwise.cluster.traces import Measured

    named: dict[str, Path] = {}
    for text in own:
        name, _, path = text.partition("=")
        if not name.strip() or not path.strip():
            raise InputError(f"--profile takes MODEL=RUN, as in --profile resnet50=runs/resnet50, not {text!r}.")
        if not Path(path.strip()).exists():
            raise InputError(f"There is nothing at {path.strip()}. Check --profile {text}.")
        named[name.strip()] = Path(path.strip())
    return Measured(profiles=profiles, own=tuple(named.items()), network=network)


def _read(
    path: Path,
    measured: "Measured",
    slowdown: str | None,
    clusters: "tuple[tuple[str, Cluster], ...]",
    *,
    skip_bad: bool,
) -> "tuple[Trace, tuple[Place, ...]]":
    """The trace, every line checked against the smallest cluster, and the clusters with its speeds there."""
    from stallwise.cluster.sweep import Place
    from stallwise.cluster.traces import read_trace
    from stallwise.cluster.traces.checks import fitted, usable
    from stallwise.cluster.traces.speeds import speeds_of

    flat = None if slowdown is None else _numbers(slowdown, "--slowdown")
    found, speeds = speeds_of(read_trace(path, measured), path, measured, flat)
    least = min(cluster.gpus for _, cluster in clusters)
    kept = usable(fitted(found, least, models=speeds.models), skip_bad=skip_bad)
    return kept, tuple(Place(name=name, cluster=cluster, speed=speeds.on(cluster)) for name, cluster in clusters)


def _arrivals(
    given: str | None, seeds: int, rate: float | None, trace: "Trace", loads: Sequence[float]
) -> "tuple[Arrivals | Rhythm, tuple[str, ...]]":
    """When jobs come, and a sentence where that was not asked for."""
    batch = trace.jobs[-1].arrival_s == trace.jobs[0].arrival_s
    if given is None:
        given = "poisson" if (rate is not None or (seeds > 1 and not batch)) else "given"
        drawn = given == "poisson" and rate is None
        said = ("Seeds draw arrivals anew: Poisson at the mean rate of the trace.",) if drawn else ()
    else:
        said = ()
    if (given == "batch" or (batch and given == "given")) and tuple(loads) != (1.0,):
        raise InputError("All jobs come at once, so --loads changes nothing. Leave it out, or give --rate.")
    if rate is not None and (rate <= 0 or given != "poisson"):
        raise InputError("--rate takes jobs per day above 0, and goes with --arrivals poisson only.")
    if given == "poisson" and batch and rate is None:
        raise InputError(f"All jobs of {trace.source} come at once and so have no rate. Give --rate, in jobs per day.")
    for known in _ARRIVALS:
        if given == known:
            return known, said  # type: ignore[return-value]
    return _rhythm(given), said


def _rhythm(given: str) -> "Rhythm":
    from stallwise.cluster.traces.helios import read_rhythm
    from stallwise.errors import UnknownNameError

    if not Path(given).exists():
        raise UnknownNameError("way to arrive (given, batch, poisson, or a file)", given, _ARRIVALS)
    return read_rhythm(Path(given))


def _sweep(
    trace: "Trace",
    places: "tuple[Place, ...]",
    names: tuple[str, ...],
    loads: tuple[float, ...],
    seeds: int,
    arrivals: "Arrivals | Rhythm",
    rate: float | None,
    contention: bool,
    times: tuple[str, str],
    cores: int | None,
) -> "Sweep":
    from stallwise.cluster.simulator import Costs
    from stallwise.cluster.sweep import Sweep
    from stallwise.units import parse_seconds

    costs = Costs(checkpoint_s_per_gpu=parse_seconds(times[0]), restart_s=parse_seconds(times[1]))
    made = Sweep(
        jobs=trace.jobs,
        places=places,
        policies=names,
        loads=loads,
        seeds=tuple(range(seeds)),
        arrivals=arrivals,
        jobs_per_s=None if rate is None else rate / 86400,
        costs=costs,
        contention=contention,
    )
    return made if cores is None else replace(made, cores=cores)


def _compared(trace: "Trace", sweep: "Sweep", runs: "list[Run]", said: tuple[str, ...]) -> "Comparison":
    from stallwise.cluster.comparison import compared

    if sweep.contention and not any(getattr(place.speed, "shares", False) for place in sweep.places):
        said = (*said, "Nothing is known about the traffic of these jobs, so --contention changes nothing.")
    for name in sweep.policies:
        shrunk = sum(run.metrics.deflations for run in runs if run.case.policy == name)
        if shrunk:
            said = (*said, f"{name}: jobs gave GPUs {shrunk:,} times instead of being stopped.")
    from stallwise.cluster.policies import GROUPS, KNOWS, ROUND_POLICIES

    names = (policy.partition(":")[0] for policy in sweep.policies)
    asked = [name for name in dict.fromkeys(names) if name in ROUND_POLICIES]
    knows = [f"{name} knows of a job: {KNOWS[name]}." for name in asked]
    if growing := [name for name in asked if name in GROUPS["elastic"]]:
        knows.append(f"Jobs grow and shrink under {', '.join(growing)}: nothing is counted as lost there.")
    return compared(trace, sweep, runs, (*said, *knows))


def _answer(found: "Comparison", html: Path | None, *, as_json: bool) -> None:
    if as_json:
        from stallwise.report.simulate_json import document

        answer(lambda: document(found), lambda: None, as_json=True)
    else:
        from stallwise.report.simulate import draw

        answer(lambda: None, lambda: draw(found), as_json=False)
    if html is not None:
        from stallwise.report.simulate_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)
