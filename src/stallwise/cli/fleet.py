"""`stallwise fleet …` and `stallwise ledger`: machines rented for a job, watched, replaced, settled."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options
from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Exit, Json, PeriodicReporter, ProgressReporter, answer, fail, save_page, warn
from stallwise.cli.profile import CONTEXT
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.fleet.control import FleetFolder
    from stallwise.fleet.ledger import FleetReceipt
    from stallwise.fleet.manager import FleetStatus
    from stallwise.fleet.market import MarketTrace
    from stallwise.fleet.plan import FleetPlan
    from stallwise.spot.lifetimes.log import AvailabilityTrace

app = CommandApp(help="Rent machines for an elastic job, replace what is lost, settle at the end.")

_FOLDER = Path("fleets")
_LOCAL_START_S = 15.0
"""Until a rank on this computer trains, where no plan says so."""
Folder = Annotated[Path, typer.Argument(metavar="FLEET", help="The folder of a fleet.")]
Plan = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="The JSON document of `stallwise recommend`.")
]
Machines = Annotated[int | None, typer.Option("--machines", help="Machines, without a plan or instead of its number.")]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="Time in which the job has to be done; on-demand comes in time."),
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="What the job may cost; then all machines are stopped.")
]
Price = Annotated[str | None, typer.Option("--price", metavar="USD", help="Dollars per hour of one on-demand machine.")]
SpotPrice = Annotated[
    str | None, typer.Option("--spot-price", metavar="USD", help="Dollars per hour of one spot machine.")
]
Samples = Annotated[
    float | None, typer.Option("--samples", help="Samples of the whole job, so that its end can be predicted.")
]
Interval = Annotated[
    str | None, typer.Option("--interval", metavar="TIME", help="Time between checkpoints. Default: the plan's.")
]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="LOG", help="How many spot machines there are over time; default: always enough."),
]
Begin = Annotated[str, typer.Option("--begin", metavar="TIME", help="Where in the trace to begin.")]
Boot = Annotated[str, typer.Option("--boot", metavar="TIME", help="Time from an order to a machine that runs.")]
Grace = Annotated[str, typer.Option("--grace", metavar="TIME", help="Time between notice and loss of a spot machine.")]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", metavar="FILE", help="The ledger; default: one among the user's own data.")
]


@app.command("run", context_settings=CONTEXT)
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="The training script. Its arguments follow it.")],
    *,
    plan: Plan = None,
    machines: Machines = None,
    nproc_per_node: Annotated[
        int | None, typer.Option("--nproc-per-node", help="Training processes on each machine.")
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    samples: Samples = None,
    interval: Interval = None,
    price: Price = None,
    spot_price: SpotPrice = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FLEET", help="Folder of the fleet; default: fleets/SCRIPT.")
    ] = None,
    trace: TraceFile = None,
    begin: Begin = "0s",
    speed_up: Annotated[float, typer.Option("--speed-up", help="Seconds of the trace that pass in one.")] = 1.0,
    boot: Boot = "0s",
    grace: Grace = "30s",
    ledger: LedgerFile = None,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Run an elastic job on machines: start them, replace what is lost, stay within deadline and budget, settle.

    Machines are processes on this computer that are there and taken away as a trace says. If this program is killed
    they go on; the same command takes them over. Ctrl-C stops all of them.

    Exit code 0: done, and the deadline met. 1: budget reached, deadline missed, or ended. 2: bad input. 3: the job
    failed.
    """
    from dataclasses import replace

    from stallwise.fleet.control import is_fleet, make_fleet, open_fleet
    from stallwise.fleet.plan import fleet_name
    from stallwise.units import parse_seconds

    place = folder or _FOLDER / fleet_name(script)
    if is_fleet(place):
        fleet = open_fleet(place)
        if fleet.closed:
            raise InputError(f"The fleet in {place} has ended. Give another --folder, or remove this one.")
        warn(f"Going on with the fleet in {place}, as it was planned.")
    else:
        if not Path(script).is_file():
            raise InputError(f"There is no script {script}. Check the path.")
        planned = _plan(
            plan,
            fleet_name(script),
            machines=machines,
            deadline=deadline,
            budget=budget,
            price=price,
            spot_price=spot_price,
            interval=interval,
            samples=samples,
            ledger=ledger,
        )
        planned = _with_ranks(planned, nproc_per_node)
        if plan is None:
            planned = replace(planned, provision_s=parse_seconds(boot), restart_s=_LOCAL_START_S)
        market = _market(planned, trace, begin, parse_seconds(boot), parse_seconds(grace))
        if not 0 < speed_up <= 1e6:
            raise InputError(f"--speed-up takes a number above 0, up to 1,000,000, not {speed_up:g}.")
        fleet = make_fleet(place, planned, (script, *context.args), market, speed_up)
    receipt = _managed(fleet, ledger)
    _settle(receipt, html, as_json=as_json)


@app.command("status")
def status(fleet: Folder, *, as_json: Json = False) -> None:
    """Show how far a fleet is, when it ends and what it costs until then.

    Exit code 0: shown. 1: it ended otherwise than done. 2: there is no such fleet.
    """
    from stallwise.fleet.control import open_fleet
    from stallwise.fleet.state import manager_lock
    from stallwise.report.views.fleet import draw_receipt, draw_status, receipt_document, status_document

    one = open_fleet(fleet)
    if one.closed:
        receipt = one.receipt()
        answer(lambda: receipt_document(receipt), lambda: draw_receipt(receipt), as_json=as_json)
        if receipt.outcome != "done":
            raise typer.Exit(Exit.NO)
        return
    with manager_lock(one.folder) as free:
        managed = not free
    now = _last_status(one)
    answer(lambda: status_document(now, managed=managed), lambda: draw_status(now, managed=managed), as_json=as_json)


@app.command("logs")
def logs(
    fleet: Folder,
    machine: Annotated[str | None, typer.Argument(help="Print what this machine printed, instead of events.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Print the events of a fleet, or the output of one of its machines."""
    from stallwise.fleet.control import open_fleet
    from stallwise.report.views.fleet import draw_events, events_document

    one = open_fleet(fleet)
    if machine is not None:
        path = one.cloud.output(machine) if machine in one.state.machines() else None
        if path is None:
            from stallwise.errors import UnknownNameError

            raise UnknownNameError("machine", machine, one.state.machines())
        typer.echo(path.read_text(errors="replace") if path.exists() else "", nl=False)
        return
    events, begin_s = one.events(), one.state.fact("begin_s") or 0.0
    answer(lambda: events_document(events), lambda: draw_events(events, begin_s), as_json=as_json)


@app.command("resize")
def resize(
    fleet: Folder,
    machines: Annotated[int, typer.Argument(metavar="N", help="Machines from now on.")],
    *,
    as_json: Json = False,
) -> None:
    """Change the number of machines of a running fleet, up to twice the planned number."""
    from stallwise.fleet.control import open_fleet
    from stallwise.fleet.control import resize as ask

    ask(open_fleet(fleet), machines)
    sentence = f"The fleet in {fleet} is to have {machines} machines; its manager brings it about."
    answer(lambda: {"fleet": str(fleet), "machines": machines}, lambda: sentence, as_json=as_json)


@app.command("down")
def down(fleet: Folder, *, ledger: LedgerFile = None, as_json: Json = False) -> None:
    """Stop all machines of a fleet, also those that nobody remembers; ranks save first.

    Exit code 0: nothing runs any more. 3: its manager was told, and has not finished after a minute.
    """
    import time

    from stallwise.cli.output import unmeasured
    from stallwise.fleet.control import open_fleet, take_down
    from stallwise.report.views.fleet import draw_receipt, receipt_document

    one = open_fleet(fleet)
    if take_down(one, ledger or _ledger(), _reporter()) is None:
        until_s = time.monotonic() + 60
        while not one.closed:
            if time.monotonic() > until_s:
                raise unmeasured(f"The manager of {fleet} was told to end it and still works at it.")
            time.sleep(0.5)
    receipt = one.receipt()
    answer(lambda: receipt_document(receipt), lambda: draw_receipt(receipt), as_json=as_json)


@app.command("rehearse")
def rehearse(
    *,
    plan: Plan = None,
    machines: Machines = None,
    work: Annotated[
        str | None,
        typer.Option("--work", metavar="TIME", help="Work on all machines, without losses. Default: the plan's."),
    ] = None,
    deadline: Deadline = None,
    budget: Budget = None,
    interval: Interval = None,
    price: Price = None,
    spot_price: SpotPrice = None,
    trace: TraceFile = None,
    begin: Begin = "0s",
    boot: Boot = "90s",
    grace: Grace = "30s",
    checkpoint_time: options.CheckpointTime = None,
    times: Annotated[int, typer.Option("--times", help="How often, each a day later in the trace.")] = 5,
    as_json: Json = False,
) -> None:
    """Carry out a plan in simulated time, with the real manager on machines of a trace, and compare cost and time.

    Without --plan, what the planner of `spot plan` predicts for the same stretches of the trace is the plan.

    Exit code 0: rehearsed, and the deadline always met. 1: it was missed, or the job was not done.
    """
    from dataclasses import replace

    from stallwise.fleet.jobs import StandInCosts
    from stallwise.fleet.rehearsal import predicted
    from stallwise.fleet.rehearsal import rehearse as carry_out
    from stallwise.report.views.fleet import draw_rehearsal, rehearsal_document
    from stallwise.units import SECONDS_PER_HOUR, parse_seconds

    if not 1 <= times <= 1000:
        raise InputError(f"--times takes a number from 1 to 1,000, not {times}.")
    rehearsed = _plan(
        plan,
        "rehearsal",
        machines=machines,
        deadline=deadline,
        budget=budget,
        price=price,
        spot_price=spot_price,
        interval=interval,
    )
    if work is not None:
        rehearsed = replace(rehearsed, work_s=options.seconds(work, "--work", least_s=1.0))
    if rehearsed.work_s is None:
        raise InputError("The work of the job is not known: give --work, or a --plan.")
    boot_s, grace_s = parse_seconds(boot), parse_seconds(grace)
    rehearsed = replace(rehearsed, provision_s=boot_s)
    markets = [
        _market(rehearsed, trace, f"{parse_seconds(begin) + day * 24 * SECONDS_PER_HOUR}s", boot_s, grace_s)
        for day in range(times if trace is not None else 1)
    ]
    save_s = parse_seconds(checkpoint_time) if checkpoint_time is not None else 0.0
    pause_s = min(rehearsed.restart_s, 30.0)
    costs = StandInCosts(
        start_s=rehearsed.restart_s, join_s=pause_s, notice_s=pause_s, loss_s=rehearsed.restart_s, save_s=save_s
    )
    if plan is None and trace is not None:
        begins_s = [parse_seconds(begin) + day * 24 * SECONDS_PER_HOUR for day in range(times)]
        rehearsed = predicted(rehearsed, _trace(trace), begins_s, costs, notice=grace_s > 0)
    with ProgressReporter() as progress:
        result = carry_out(rehearsed, markets, costs, progress=progress.report)
    answer(lambda: rehearsal_document(result), lambda: draw_rehearsal(result), as_json=as_json)
    if any(one.outcome != "done" or one.in_time is False for one in result.receipts):
        raise typer.Exit(Exit.NO)


def ledger(
    *,
    ledger: LedgerFile = None,
    lifetimes: Annotated[
        Path | None,
        typer.Option("--lifetimes", metavar="FILE", help="Write the lives of all spot machines as a log for spot fit."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every fleet's predicted time and cost beside what came, and how far predictions are off on average.

    Plans of later fleets are moved by that bias, and their intervals hold what was lived.
    """
    from stallwise.fleet.ledger import read_ledger, write_lifetimes
    from stallwise.report.views.fleet import draw_ledger, ledger_document

    book = read_ledger(ledger or _ledger())
    answer(lambda: ledger_document(book), lambda: draw_ledger(book), as_json=as_json)
    if lifetimes is not None:
        count = write_lifetimes(book, lifetimes)
        typer.echo(f"\nThe lives of {count} spot machines are in {lifetimes}", err=True)


def _ledger() -> Path:
    from stallwise.fleet.ledger import ledger_file

    return ledger_file()


def _plan(
    path: Path | None,
    name: str,
    *,
    machines: int | None,
    deadline: str | None,
    budget: str | None,
    price: str | None,
    spot_price: str | None,
    interval: str | None,
    samples: float | None = None,
    ledger: Path | None = None,
) -> "FleetPlan":
    """The plan of a file or of --machines, with what is given besides."""
    from dataclasses import replace

    from stallwise.fleet.ledger import corrected, read_ledger
    from stallwise.fleet.plan import FleetPlan, read_plan

    if path is None and machines is None:
        raise InputError("Give --plan, the JSON document of `stallwise recommend`, or --machines.")
    plan = FleetPlan(name=name, machines=machines or 1) if path is None else read_plan(path, name)
    changes = {
        "machines": machines,
        "deadline_s": None if deadline is None else options.seconds(deadline, "--deadline", least_s=1.0),
        "budget_usd": options.usd(budget),
        "on_demand_usd_per_h": options.usd(price),
        "spot_usd_per_h": options.usd(spot_price),
        "interval_s": None if interval is None else options.seconds(interval, "--interval", least_s=0.1),
        "samples": samples,
    }
    plan = replace(plan, **{key: value for key, value in changes.items() if value is not None})  # type: ignore[arg-type]
    if plan.spot_usd_per_h is None and plan.on_demand_usd_per_h is not None:
        plan = replace(plan, market="on-demand")
    if plan.deadline_s is not None and plan.market == "spot" and plan.on_demand_usd_per_h is None:
        warn("The price of on-demand machines is not known (--price): the fleet cannot go to them for the deadline.")
    book = read_ledger(ledger or _ledger())
    corrected_plan = corrected(plan, book)
    for note in corrected_plan.notes[len(plan.notes) :]:
        warn(note)
    return corrected_plan


def _with_ranks(plan: "FleetPlan", ranks: int | None) -> "FleetPlan":
    from dataclasses import replace

    return plan if ranks is None else replace(plan, ranks=ranks)


def _market(plan: "FleetPlan", trace: Path | None, begin: str, boot_s: float, grace_s: float) -> "MarketTrace":
    from stallwise.fleet.market import MarketTrace, counts_from
    from stallwise.units import parse_seconds

    counts_at_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    if trace is not None:
        counts_at_s, counts = counts_from(_trace(trace), parse_seconds(begin), float("inf"))
    spot, other = plan.spot_usd_per_h, plan.on_demand_usd_per_h
    return MarketTrace(
        spot_usd_per_h=spot if spot is not None else 0.0,
        on_demand_usd_per_h=other if other is not None else 0.0,
        boot_s=boot_s,
        grace_s=grace_s,
        counts_at_s=counts_at_s,
        counts=counts,
    )


def _trace(path: Path) -> "AvailabilityTrace":
    from stallwise.spot.lifetimes.readers import read_log

    trace = read_log(path).trace
    if trace is None:
        raise InputError(f"{path} has no trace (how many machines there were, over time).")
    return trace


def _reporter() -> "PeriodicReporter[FleetStatus]":
    return PeriodicReporter(_status_sentence, lambda now: (now.phase, now.training, now.losses))


def _managed(fleet: "FleetFolder", ledger: Path | None) -> "FleetReceipt":
    from stallwise.fleet.control import run_fleet
    from stallwise.record.processes import interruptible

    with interruptible():
        return run_fleet(fleet, ledger or _ledger(), _reporter())


def _status_sentence(now: "FleetStatus") -> str:
    from stallwise.report.format import show_percent, show_seconds, show_usd

    share = "" if now.fraction is None else f"{show_percent(now.fraction)} done, "
    ahead = now.forecast
    rest = "" if ahead is None else f", end after {show_seconds(ahead.eta_s)} for {show_usd(ahead.usd)}"
    return (
        f"{now.name}, {now.phase}: {share}{now.training} of {now.machines} machines train, {now.losses} lost, "
        f"{show_usd(now.spent_usd)} after {show_seconds(now.elapsed_s)}{rest}"
    )


def _last_status(fleet: "FleetFolder") -> "FleetStatus":
    import msgspec

    from stallwise.fleet.manager import FleetStatus

    stored = fleet.state.fact("status")
    return fleet.manager().status() if stored is None else msgspec.convert(stored, FleetStatus)


def _settle(receipt: "FleetReceipt", html: Path | None, *, as_json: bool) -> None:
    from stallwise.report.views.fleet import draw_receipt, receipt_document, receipt_page

    answer(lambda: receipt_document(receipt), lambda: draw_receipt(receipt), as_json=as_json)
    if html is not None:
        save_page(receipt_page(receipt), html)
    if receipt.outcome == "failed":
        typer.echo(f"The job failed: {receipt.why}. See `stallwise fleet logs`.", err=True)
        raise typer.Exit(Exit.NOT_MEASURED)
    if receipt.outcome != "done":
        raise fail(f"The fleet ended before the job was done ({receipt.outcome}).")
    if receipt.in_time is False:
        raise fail("The job is done, and the deadline was missed.")
