"""`stallwise spot`: how long machines live, and what a job takes and costs on machines that may vanish."""

import enum
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options, spot_inputs
from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Exit, Json, answer, save_page
from stallwise.errors import InputError, MeasurementError
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.spot.plan.request import SpotPlan


class BatchShares(enum.StrEnum):
    """How machines of several kinds share a batch."""

    EQUAL = "equal"
    BY_SPEED = "by-speed"


class LossResponse(enum.StrEnum):
    """What a job does when it loses a machine."""

    WAIT = "wait"
    SHRINK = "shrink"
    CARRY_ON = "carry-on"


_MAX_NODES = 1024

app = CommandApp(help="Machines that may vanish: how long they live, what a job costs on them.")


@app.command("fit")
def fit(
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG",
            help="An event log, or GPU/REGION of a published table (K80/us-east1); `published` lists them.",
        ),
    ],
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this GPU or machine type.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Only this region or zone.")] = None,
    as_json: Json = False,
) -> None:
    """Fit lifetimes to an event log: survival with bands, exponential, Weibull, bathtub; by GPU, region, hour of day.

    Machines that their owner stopped are censored, not lost. Exit code 0: fitted. 2: no fit is possible; stderr says
    why.
    """
    from stallwise.report.views.spot import draw_lifetimes, draw_published, lifetimes_document, published_document
    from stallwise.spot.lifetimes.fit import fit_log
    from stallwise.spot.lifetimes.log import select

    if log == "published":
        answer(published_document, draw_published, as_json=as_json)
        return
    fitted = fit_log(select(spot_inputs.log(log), gpu=gpu, region=region))
    answer(lambda: lifetimes_document(fitted), lambda: draw_lifetimes(fitted), as_json=as_json)


@app.command("plan")
def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    *,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of the whole job.")] = None,
    samples: Annotated[
        float | None, typer.Option("--samples", metavar="N", help="Samples of the whole job, instead of --steps.")
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(
            "--work", metavar="TIME", help="Time of the whole job on these machines, as recommend predicts it: 5h."
        ),
    ] = None,
    lifetimes: Annotated[
        list[str] | None,
        typer.Option(
            "--lifetimes",
            metavar="LOG",
            help="An event log, or GPU/REGION of a published table; given again: other zones to compare with.",
        ),
    ] = None,
    mean_life: Annotated[
        str | None,
        typer.Option("--mean-life", metavar="TIME", help="Mean life of a machine, instead of --lifetimes: 12h."),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Machines of the job. Default: as recorded.")] = None,
    on_demand: Annotated[int, typer.Option("--on-demand", help="How many of them are not spot.")] = 0,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="KIND",
            help="Machines of another kind besides: count=3,on-demand=1,speed=0.4,lifetimes=K80/us-west1,price=0.7,"
            "spot-price=0.26 (or instance=, mean-life=). May be repeated.",
        ),
    ] = None,
    shares: Annotated[
        BatchShares | None,
        typer.Option("--shares", help="With --mix: shares of the batch; where equal, all wait for the slowest."),
    ] = None,
    age: Annotated[
        str | None,
        typer.Option("--age", metavar="TIME", help="Age of the spot machines that are already there: 6h."),
    ] = None,
    instance: options.InstanceName = None,
    region: Annotated[str | None, typer.Option("--region", metavar="NAME", help="Region of the prices.")] = None,
    price: Annotated[
        str | None, typer.Option("--price", metavar="USD", help="Dollars per machine-hour on demand: 3.06.")
    ] = None,
    spot_price: Annotated[
        str | None, typer.Option("--spot-price", metavar="USD", help="Dollars per machine-hour on spot: 0.92.")
    ] = None,
    price_history: Annotated[
        Path | None,
        typer.Option("--price-history", metavar="FILE", help="Spot prices over time: CSV, Parquet, or AWS's JSON."),
    ] = None,
    price_zone: Annotated[
        str | None, typer.Option("--price-zone", metavar="NAME", help="Zone of these prices.")
    ] = None,
    price_cap: Annotated[
        str | None,
        typer.Option(
            "--price-cap", metavar="USD", help="Hold no spot machine while one costs more dollars per hour than this."
        ),
    ] = None,
    spend: Annotated[
        str | None,
        typer.Option("--spend", metavar="USD", help="Hold as many spot machines as this many dollars per hour buy."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Time in which the job has to be done: 24h.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="What the job may cost: 100usd.")
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="TIME|none", help="Work between checkpoints: 20min. Default: the best."),
    ] = None,
    checkpoint_time: options.CheckpointTime = None,
    checkpoint_size: Annotated[
        str | None,
        typer.Option(
            "--checkpoint-size", metavar="SIZE", help="Size of a checkpoint, where its time is not known: 3GB."
        ),
    ] = None,
    provision: Annotated[
        str | None, typer.Option("--provision", metavar="TIME", help="Time until another machine is there: 90s.")
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option("--restart", metavar="TIME", help="Time from a new machine until training goes on: 60s."),
    ] = None,
    on_loss: Annotated[
        LossResponse, typer.Option("--on-loss", help="What the job does when it loses a machine.")
    ] = LossResponse.WAIT,
    switch: Annotated[bool, typer.Option("--switch", help="Move to on-demand in time for the deadline.")] = False,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Switch whenever behind uniform progress; needs a log with a trace.")
    ] = False,
    replays: Annotated[
        int, typer.Option("--replays", min=1, max=1_000_000, help="How often the job is replayed.")
    ] = 10_000,
    seed: options.Seed = 1,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Plan a job on spot machines: distribution of finish and cost, how often to save, what each lever is worth.

    Exit code 0: planned, and the limits are met in at least 90 % of cases (or there are none). 1: they are not. 2: it
    cannot be planned; stderr names the missing option.
    """
    from stallwise.analysis.analysis import open_run
    from stallwise.spot.plan.planner import make_plan
    from stallwise.spot.plan.request import SpotRequest
    from stallwise.spot.plan.times import work_s
    from stallwise.units import parse_seconds

    analysis = open_run(run)
    job = spot_inputs.measured(analysis)
    count = job.machines if nodes is None else nodes
    if not 1 <= count <= _MAX_NODES:
        raise InputError(f"--nodes takes a whole number from 1 to {_MAX_NODES:,}, not {count}.")
    given_s = None if work is None else parse_seconds(work)
    gain, notes = spot_inputs.speed_on(analysis, count, instance) if given_s is None else (1.0, [])
    needed_s = work_s(job, gain, steps=steps, samples=samples, given_s=given_s)
    if (switch or uniform) and deadline is None:
        raise InputError("--switch needs --deadline: without one there is no moment to switch at.")
    history = spot_inputs.spot_price_history(
        price_history, instance, price_zone, options.usd(price_cap), options.usd(spend)
    )
    spot_usd_per_h = options.usd(spot_price)
    if history.prices is not None and spot_usd_per_h is None:
        spot_usd_per_h = history.prices.mean_usd_per_h
    rates = spot_inputs.prices(instance, region, options.usd(price), spot_usd_per_h)
    age_s = spot_inputs.age_s(age)
    zones = spot_inputs.zones(lifetimes or [], mean_life, rates[:2], count, age_s)
    times = spot_inputs.times(job, checkpoint_time, checkpoint_size, provision, restart)
    others, other_notes = spot_inputs.other_kinds(mix or [], count)
    first_name, kind, trace = zones[0]
    if uniform and (trace is None or others or on_demand):
        raise InputError("--uniform needs --lifetimes with a trace of three days and a fleet that is all spot.")
    question = SpotRequest(
        name=job.name,
        work_s=needed_s,
        save_s=times[0],
        provision_s=times[1],
        restart_s=times[2],
        kind=kind,
        machines=count,
        on_demand=on_demand,
        others=tuple(others),
        lock_step=bool(others) and spot_inputs.equal_shares(shares, on_loss.value),
        on_loss=spot_inputs.on_loss(on_loss.value),
        interval_s=spot_inputs.interval_s(interval),
        deadline_s=None if deadline is None else parse_seconds(deadline),
        budget_usd=options.usd(budget),
        switch=switch or uniform,
        uniform=uniform,
        trace=trace,
        prices=history.prices,
        rule=history.rule,
        replays=replays,
        seed=seed,
        zones=tuple(zones[1:]),
        assumptions=(
            *notes,
            *history.notes,
            *rates[2],
            *other_notes,
            *times[3],
            Sentence("spot.lifetimes", f"Lifetimes: {first_name}."),
        ),
    )
    # So far the work is that of --nodes alone; other kinds share it.
    question = replace(question, work_s=needed_s * count / question.fleet.speed)
    _answer(make_plan(question), html, as_json=as_json)


def _answer(spot_plan: "SpotPlan", html: Path | None, *, as_json: bool) -> None:
    from stallwise.report.views.spot_plan import document, draw
    from stallwise.spot.plan.request import CONFIDENCE

    answer(lambda: document(spot_plan), lambda: draw(spot_plan), as_json=as_json)
    if html is not None:
        from stallwise.report.views.spot_plan import page

        save_page(page(spot_plan), html)
    if spot_plan.request.limited and spot_plan.result.within < CONFIDENCE:
        raise typer.Exit(Exit.NO)


if TYPE_CHECKING:
    from stallwise.elastic.chaos import ChaosOutcome, ChaosTrial, ProgressCallback, RecoveryCosts


@app.command("chaos")
def chaos(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE", help="A log with a trace of machines (see stallwise spot fit); default: drawn."
        ),
    ] = None,
    *,
    nodes: Annotated[int, typer.Option("--nodes", help="Largest number of machines; each is a local agent.")] = 3,
    work: Annotated[
        str, typer.Option("--work", metavar="TIME", help="Time of the job without a loss, on all machines.")
    ] = "20s",
    interval: Annotated[str, typer.Option("--interval", metavar="TIME", help="Time between checkpoints.")] = "3s",
    kill: Annotated[bool, typer.Option("--kill", help="Kill without a preemption notice (SIGKILL).")] = False,
    speed_up: Annotated[float, typer.Option("--speed-up", help="Seconds of the trace that pass in one.")] = 600.0,
    begin: Annotated[str, typer.Option("--begin", metavar="TIME", help="Where in the trace to begin.")] = "0s",
    mean_life: Annotated[
        str, typer.Option("--mean-life", metavar="TIME", help="Mean life of a machine of a drawn trace.")
    ] = "60s",
    away: Annotated[
        str, typer.Option("--away", metavar="TIME", help="Time until another machine comes, in a drawn trace.")
    ] = "10s",
    runs: Annotated[int, typer.Option("--runs", help="How often, each time through another drawn trace.")] = 1,
    price: Annotated[str, typer.Option("--price", metavar="USD", help="Dollars per machine-hour.")] = "1",
    seed: options.Seed = 1,
    limit: Annotated[
        str | None,
        typer.Option(
            "--max-error", metavar="PERCENT", help="Exit with code 1 where the plan's mean error is larger: 10%."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Inject losses into a real job on this machine and compare it with its plan.

    The job is a stand-in: real ranks, exchange, checkpoints and restarts, but an accelerator that sleeps. The trace's
    time is accelerated, start-up is not. Ctrl-C shows the runs that are done. Exit code 0: lived through. 1: the plan
    was off by more than --max-error. 2: bad input. 3: it could not be done.
    """
    from stallwise.cli.output import ProgressReporter
    from stallwise.elastic.chaos import calibrate, mean_error
    from stallwise.report.views.spot import chaos_document, draw_chaos
    from stallwise.units import parse_seconds, parse_share

    if not 1 <= nodes <= 64 or runs < 1 or not 0 < speed_up < 1e9:
        raise InputError("--nodes takes a number from 1 to 64, --runs from 1, --speed-up a number above 0.")
    largest_error = None if limit is None else parse_share(limit)
    usd_per_h = options.usd(price) or 0.0
    times = {
        name: options.seconds(text, f"--{name}", least_s=0.1) for name, text in (("work", work), ("interval", interval))
    }
    drawing = (options.seconds(mean_life, "--mean-life"), parse_seconds(away))
    trials = [
        _chaos_trial(
            trace, nodes, times, drawing, speed_up, parse_seconds(begin), usd_per_h, seed + number, notice=not kill
        )
        for number in range(runs)
    ]
    with ProgressReporter() as progress:
        costs = calibrate(nodes, trials[0].step_s, times["interval"], progress.report)
        outcomes = _run_trials(trials, costs, progress.report)
    answer(lambda: chaos_document(costs, outcomes), lambda: draw_chaos(costs, outcomes), as_json=as_json)
    if largest_error is not None and mean_error(outcomes) > largest_error:
        raise typer.Exit(Exit.NO)


def _run_trials(
    trials: "Sequence[ChaosTrial]", costs: "RecoveryCosts", report: "ProgressCallback"
) -> "list[ChaosOutcome]":
    """Run the trials one after another; after Ctrl-C return those that are complete."""
    from stallwise.elastic.chaos import run_trial

    outcomes: list[ChaosOutcome] = []
    try:
        for trial in trials:
            outcomes.append(run_trial(trial, costs, report))  # noqa: PERF401 - those so far are wanted
    except KeyboardInterrupt:
        if not outcomes:
            raise
        sys.stderr.write(f"stallwise: interrupted after {len(outcomes)} of {len(trials)} runs\n")
    return outcomes


def _chaos_trial(
    path: Path | None,
    machines: int,
    times: dict[str, float],
    drawing: tuple[float, float],
    speed_up: float,
    begin_s: float,
    price: float,
    seed: int,
    *,
    notice: bool,
) -> "ChaosTrial":
    from stallwise.elastic.chaos import ChaosTrial, compressed_trace, random_trace
    from stallwise.spot.lifetimes.readers import read_log

    if path is None:
        availability = random_trace(machines, *drawing, 20 * times["work"], seed)
    else:
        log = read_log(path)
        if log.trace is None:
            raise InputError(
                f"{path} has no trace (how many machines there were, over time). Leave it out to draw one."
            )
        availability = compressed_trace(log.trace, speed_up, machines, begin_s)
    return ChaosTrial(
        trace=availability,
        machines=machines,
        work_s=times["work"],
        interval_s=times["interval"],
        notice=notice,
        usd_per_h=price,
        seed=seed,
    )


if TYPE_CHECKING:
    from stallwise.elastic.throughput import ThroughputCheck, Window

_LOOK_S = 0.5


@app.command("watch")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a session's checkpoints.")],
    samples_per_worker: Annotated[
        float | None,
        typer.Option(
            "--samples-per-worker", help="Predicted samples per second of one worker. Default: learnt from this run."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Stay until the job is done; or judge what is there.")
    ] = True,
    all_lines: Annotated[
        bool, typer.Option("--all", help="A line every second, not only when something changes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch a training job: is it as fast as its workers should be, and if not, what binds?

    Predicted is the sum of the workers' speeds, learnt from this run at its fewest workers. An alarm begins at 10 %
    below that, held for three seconds, and ends under 6.7 %. Exit code 0: no alarm at the end. 1: there is one. 2: bad
    input. 3: there is nothing to judge yet.
    """
    from stallwise.elastic.protocol import EVENTS_FILE
    from stallwise.elastic.throughput import ThroughputWatch

    path = folder / EVENTS_FILE
    if not path.exists():
        raise InputError(f"{folder} has no {EVENTS_FILE}: no session of stallwise.elastic has written there.")
    watching, last = ThroughputWatch(each=samples_per_worker), None
    for window in _windows(path, follow=follow):
        verdict = watching.judge(window)
        if as_json or all_lines or last is None or _changed(last, verdict):
            _show(verdict, as_json=as_json)
        last = verdict
    if last is None:
        raise MeasurementError(
            f"{path} says nothing of the job's speed yet. Wait until it has trained for some seconds."
        )
    if not as_json and not all_lines:
        _show(last, as_json=False)
    if last.alarm:
        raise typer.Exit(Exit.NO)


def _changed(last: "ThroughputCheck", now: "ThroughputCheck") -> bool:
    bottlenecks = [one.advice.bottleneck if one.advice else None for one in (last, now)]
    unpredicted = [one.predicted_per_s is None for one in (last, now)]
    if bottlenecks[0] != bottlenecks[1] or unpredicted[0] != unpredicted[1]:
        return True
    return last.alarm != now.alarm or last.window.workers != now.window.workers


def _show(verdict: "ThroughputCheck", *, as_json: bool) -> None:
    from stallwise.report.views.spot import draw_window, window_document

    if as_json:
        from stallwise.report.json import to_json

        sys.stdout.write(" ".join(to_json(window_document(verdict)).split()) + "\n")
    else:
        from stallwise.report import terminal

        terminal.console().print(terminal.draw(draw_window(verdict)))
    sys.stdout.flush()


def _windows(path: Path, *, follow: bool) -> Iterator["Window"]:
    """The windows of the event file, as they are written."""
    from stallwise.elastic.protocol import read_events
    from stallwise.elastic.throughput import window_of

    count = 0
    while True:
        events = list(read_events(path))
        yield from filter(None, map(window_of, events[count:]))
        count = len(events)
        if not follow or (events and events[-1]["kind"] == "done"):
            return
        time.sleep(_LOOK_S)
