"""`stallwise overcommit`: machines on a fleet smaller than they ask for, shrinking them beside preempting them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.cluster.deflation.overcommitment import Overcommitted
    from stallwise.cluster.deflation.resources import Hosts, Machines

_RULES = "proportional,priority,deterministic,preempt"
_LEVELS = "0%,25%,50%,60%,70%,80%"


def overcommit(
    trace: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Machines or pods that come and go; its format is known by its header."),
    ],
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
        str, typer.Option("--overcommit", help="How much more is asked for than there is, commas between: 0%,50%,80%.")
    ] = _LEVELS,
    hosts: Annotated[
        int | None, typer.Option("--hosts", help="Hosts of the whole fleet; default: the fewest that hold everybody.")
    ] = None,
    use: Annotated[
        Path | None,
        typer.Option("--use", help="CPU use over time in per cent, a column per machine, 5 minutes per row (CSV, gz)."),
    ] = None,
    low: Annotated[
        str | None, typer.Option("--low", help="Part of the machines that may be shrunk, where the trace does not say.")
    ] = None,
    least: Annotated[
        str | None, typer.Option("--least", help="No machine works with less than this part of its size: 20%.")
    ] = None,
    machines: Annotated[int | None, typer.Option("--machines", help="Take so many of the trace, by lot.")] = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Hosts of their own for every level of priority.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of everything drawn by lot.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out lines that are no machine.")] = False,
    cores: Annotated[
        int | None, typer.Option("--cores", help="Simulations at a time; default: as many as there are cores.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with plots here.")] = None,
    as_json: Json = False,
) -> None:
    """Put more machines on hosts than fit: shrink those of low priority, or preempt them, side by side.

    Exit code 0: simulated. 2: it cannot be; bad lines of the trace are listed with their numbers (--skip-bad goes on
    without them).
    """
    ways, over = _ways(rules), _shares(levels)
    if any(number is not None and number < 1 for number in (hosts, machines, cores)):
        raise InputError("--hosts, --machines and --cores take whole numbers from 1.")
    found, fleet = _read(trace, host, use, low, least, machines, seed, skip_bad=skip_bad)
    made = _simulated(found, fleet, ways, over, hosts, cores, partitioned=partitions)
    _answer(made, html, as_json=as_json)


def _ways(text: str) -> tuple[str, ...]:
    from stallwise.cluster.deflation.simulator import WAYS
    from stallwise.errors import UnknownNameError

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
    found = []
    for piece in text.split(","):
        number, per_cent = piece.strip().removesuffix("%"), piece.strip().endswith("%")
        try:
            value = float(number) / (100 if per_cent else 1)
        except ValueError:
            raise InputError(f"--overcommit takes shares with commas between, 0%,50%,80%, not {piece!r}.") from None
        if not 0 <= value <= 100:
            raise InputError(f"--overcommit takes shares from 0%, not {piece.strip()}.")
        found.append(value)
    return tuple(dict.fromkeys(found))


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
) -> "tuple[Machines, Hosts]":
    from stallwise.cluster.deflation.drawing import equipped, sample
    from stallwise.cluster.deflation.traces import read_hosts, read_machines
    from stallwise.cluster.deflation.usage import read_use
    from stallwise.units import parse_share

    hosts = read_hosts(host)
    found = sample(read_machines(path, skip_bad=skip_bad), machines, seed=seed)
    share = None if low is None else parse_share(low)
    found = equipped(found, None if use is None else read_use(use), low=share, seed=seed)
    return (found if least is None else found.with_least(parse_share(least))), hosts


def _simulated(
    machines: "Machines",
    hosts: "Hosts",
    ways: tuple[str, ...],
    levels: tuple[float, ...],
    whole: int | None,
    cores: int | None,
    *,
    partitioned: bool,
) -> "Overcommitted":
    """All of it, with progress on stderr, and a word where the first call of all compiles the simulator."""
    from stallwise.cli.progress import Teller, while_compiling
    from stallwise.cluster.deflation.overcommitment import overcommit as run

    with Teller() as teller, while_compiling() as begun:

        def tell(what: str, done: int, of: int | None) -> None:
            if of is not None:
                begun()
            teller.tell(what, done, of)

        return run(machines, hosts, ways, levels, whole=whole, partitioned=partitioned, cores=cores, tell=tell)


def _answer(found: "Overcommitted", html: Path | None, *, as_json: bool) -> None:
    if as_json:
        from stallwise.report.overcommit_json import document

        answer(lambda: document(found), lambda: None, as_json=True)
    else:
        from stallwise.report.overcommit import draw

        answer(lambda: None, lambda: draw(found), as_json=False)
    if html is not None:
        from stallwise.report.overcommit_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)
