"""`stallwise spot chaos`: a revocation trace lived through by a real job of several agents, beside its plan."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit, Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.elastic.chaos import Costs, Outcome, Told, Trial


def chaos(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE", help="A log with a trace of machines (see stallwise spot fit); default: drawn."
        ),
    ] = None,
    machines: Annotated[int, typer.Option("--machines", help="Machines at most; each is a local agent.")] = 3,
    work: Annotated[str, typer.Option("--work", help="The job without a loss, on all machines.")] = "20s",
    interval: Annotated[str, typer.Option("--interval", help="Between checkpoints.")] = "3s",
    kill: Annotated[bool, typer.Option("--kill", help="SIGKILL without a word instead of a notice.")] = False,
    speed_up: Annotated[float, typer.Option("--speed-up", help="Seconds of the trace that pass in one.")] = 600.0,
    begin: Annotated[str, typer.Option("--begin", help="Where in the trace to begin.")] = "0s",
    mean_life: Annotated[str, typer.Option("--mean-life", help="Of a machine of a drawn trace.")] = "60s",
    away: Annotated[str, typer.Option("--away", help="Until another comes, in a drawn trace.")] = "10s",
    runs: Annotated[int, typer.Option("--runs", help="How often, each through another drawn trace.")] = 1,
    price: Annotated[float, typer.Option("--price", help="Dollars per machine-hour.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of traces and victims.")] = 1,
    limit: Annotated[
        float | None, typer.Option("--limit", help="Exit with 1 where the plan's mean error is larger: 0.1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Live through losses here, with real processes, and compare with the plan.

    The job is a stand-in: real ranks, exchange, checkpoints and restarts, but an accelerator that sleeps. The trace's
    time is accelerated, start-up is not. Ctrl-C shows the runs that are done. Exit code 0: lived through. 1: the plan
    was off by more than --limit. 2: it could not be done.
    """
    from stallwise.cli.progress import Teller
    from stallwise.elastic.chaos import calibrate, mean_error
    from stallwise.report.spot_chaos import document, draw
    from stallwise.units import parse_seconds

    if machines < 1 or runs < 1 or speed_up <= 0:
        raise InputError("--machines and --runs take whole numbers from 1, --speed-up a number above 0.")
    times = {name: parse_seconds(text) for name, text in (("work", work), ("interval", interval))}
    drawing = (parse_seconds(mean_life), parse_seconds(away))
    trials = [
        _trial(trace, machines, times, drawing, speed_up, parse_seconds(begin), price, seed + number, notice=not kill)
        for number in range(runs)
    ]
    with Teller() as teller:
        costs = calibrate(machines, trials[0].step_s, times["interval"], teller.tell)
        outcomes = _lived(trials, costs, teller.tell)
    answer(lambda: document(costs, outcomes), lambda: draw(costs, outcomes), as_json=as_json)
    if limit is not None and mean_error(outcomes) > limit:
        raise typer.Exit(Exit.NO)


def _lived(trials: "Sequence[Trial]", costs: "Costs", told: "Told") -> "list[Outcome]":
    """One after another; Ctrl-C ends with those that were lived through, where there are any."""
    from stallwise.elastic.chaos import live

    outcomes: list[Outcome] = []
    try:
        for trial in trials:
            outcomes.append(live(trial, costs, told))  # noqa: PERF401 - those so far are wanted
    except KeyboardInterrupt:
        if not outcomes:
            raise
        sys.stderr.write(f"stallwise: interrupted after {len(outcomes)} of {len(trials)} runs\n")
    return outcomes


def _trial(
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
) -> "Trial":
    from stallwise.elastic.chaos import Trial, drawn, shortened
    from stallwise.spot.lifetimes.readers import read_log

    if path is None:
        found = drawn(machines, *drawing, 20 * times["work"], seed)
    else:
        log = read_log(path)
        if log.trace is None:
            raise InputError(
                f"{path} has no trace (how many machines there were, over time). Leave it out to draw one."
            )
        found = shortened(log.trace, speed_up, machines, begin_s)
    return Trial(
        trace=found,
        machines=machines,
        work_s=times["work"],
        interval_s=times["interval"],
        notice=notice,
        usd_per_h=price,
        seed=seed,
    )
