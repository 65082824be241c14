"""`stallwise overcommit`: machines on a fleet smaller than they ask for, shrinking them beside preempting them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options
from stallwise.cli.output import Json, answer, save_page
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.overcommit.comparison import OvercommitComparison
    from stallwise.overcommit.resources import Hosts, VirtualMachines

_RULES = "proportional,priority,deterministic,preempt"
_LEVELS = "0%,25%,50%,60%,70%,80%"


def overcommit(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Machines or pods that come and go; its format is known by its header."),
    ],
    *,
    host: Annotated[
        str, typer.Option("--host", help="What one host has: cpu=48,memory=128GiB (also disk, network, gpu); or nodes.")
    ] = "cpu=48,memory=128GiB",
    rules: Annotated[
        str,
        typer.Option(
            "--rules",
            help="Who gives way, commas between: proportional, minimum, priority, priority-minimum, deterministic, "
            "preempt; all.",
        ),
    ] = _RULES,
    levels: Annotated[
        str, typer.Option("--overcommit", help="How much more is requested than there is, commas between: 0%,50%,80%.")
    ] = _LEVELS,
    hosts: Annotated[
        int | None,
        typer.Option("--hosts", help="Hosts of the whole fleet; default: the fewest that hold all."),
    ] = None,
    use: Annotated[
        Path | None,
        typer.Option("--use", help="CPU use over time in per cent, a column per machine, 5 minutes per row (CSV, gz)."),
    ] = None,
    low: Annotated[
        str | None,
        typer.Option("--low", help="Fraction of machines that may be shrunk, where the trace does not say."),
    ] = None,
    least: Annotated[
        str | None, typer.Option("--least", help="No machine works with less than this fraction of its size: 20%.")
    ] = None,
    draw: Annotated[
        int | None, typer.Option("--draw", help="Take this many machines of the trace, drawn at random. Default: all.")
    ] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Hosts of their own for every level of priority.")
    ] = False,
    seed: options.Seed = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that are no machine.")] = False,
    cores: Annotated[
        int | None, typer.Option("--concurrency", help="Simulations at a time; default: as many as there are cores.")
    ] = None,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Put more machines on hosts than fit: shrink those of low priority, or preempt them, side by side.

    Exit code 0: simulated. 2: bad input; bad lines of the trace are listed with their numbers (--skip-bad goes on
    without them).
    """
    ways, over = _ways(rules), _shares(levels)
    if any(number is not None and number < 1 for number in (hosts, draw, cores)):
        raise InputError("--hosts, --draw and --cores take whole numbers from 1.")
    trace_machines, fleet = _read(trace, host, use, low, least, draw, seed, skip_bad=skip_bad)
    comparison = _simulated(trace_machines, fleet, ways, over, hosts, cores, partitioned=partitions)
    _answer(comparison, html, as_json=as_json)


def _ways(text: str) -> tuple[str, ...]:
    from stallwise.errors import UnknownNameError
    from stallwise.overcommit.simulator import WAYS

    names = [piece.strip() for piece in text.split(",") if piece.strip()]
    if names == ["all"]:
        return WAYS[:-1]
    for name in names:
        if name not in WAYS:
            raise UnknownNameError("rule", name, WAYS)
    if not names:
        raise InputError(f"--rules names none. Choose from {', '.join(WAYS)}, or all.")
    return tuple(dict.fromkeys(names))


def _shares(text: str) -> tuple[float, ...]:
    shares = []
    for piece in text.split(","):
        number, per_cent = piece.strip().removesuffix("%"), piece.strip().endswith("%")
        try:
            value = float(number) / (100 if per_cent else 1)
        except ValueError:
            raise InputError(f"--overcommit takes shares with commas between, 0%,50%,80%, not {piece!r}.") from None
        if not 0 <= value <= 100:
            raise InputError(f"--overcommit takes shares from 0%, not {piece.strip()}.")
        shares.append(value)
    return tuple(dict.fromkeys(shares))


def _read(
    path: Path,
    host: str,
    use: Path | None,
    low: str | None,
    least: str | None,
    machines: int | None,
    seed: int,
    *,
    skip_bad: bool,
) -> "tuple[VirtualMachines, Hosts]":
    from stallwise.overcommit.traces import complete_machines, read_hosts, read_machines, read_use, sample_machines
    from stallwise.units import parse_share

    hosts = read_hosts(host)
    virtual = sample_machines(read_machines(path, skip_bad=skip_bad), machines, seed=seed)
    share = None if low is None else parse_share(low)
    virtual = complete_machines(virtual, None if use is None else read_use(use), low=share, seed=seed)
    return (virtual if least is None else virtual.with_least(parse_share(least))), hosts


def _simulated(
    machines: "VirtualMachines",
    hosts: "Hosts",
    ways: tuple[str, ...],
    levels: tuple[float, ...],
    whole: int | None,
    cores: int | None,
    *,
    partitioned: bool,
) -> "OvercommitComparison":
    """Simulate with progress on stderr and a notice when the simulator is compiled."""
    from stallwise.cli.output import ProgressReporter, compile_notice
    from stallwise.overcommit.comparison import overcommit as run

    with ProgressReporter() as progress, compile_notice() as begun:

        def report(subject: str, done: int, of: int | None) -> None:
            if of is not None:
                begun()
            progress.report(subject, done, of)

        return run(machines, hosts, ways, levels, whole=whole, partitioned=partitioned, cores=cores, progress=report)


def _answer(comparison: "OvercommitComparison", html: Path | None, *, as_json: bool) -> None:
    if as_json:
        from stallwise.report.views.overcommit import document

        answer(lambda: document(comparison), lambda: None, as_json=True)
    else:
        from stallwise.report.views.overcommit import draw

        answer(lambda: None, lambda: draw(comparison), as_json=False)
    if html is not None:
        from stallwise.report.views.overcommit import page

        save_page(page(comparison), html)
