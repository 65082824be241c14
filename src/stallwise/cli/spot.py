"""`stallwise spot`: how long machines live, and what a job takes and costs on machines that may vanish."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import spot_chaos, spot_inputs, spot_watch
from stallwise.cli.output import Exit, Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.spot.plan.outlook import Plan

app = typer.Typer(no_args_is_help=True, help="Machines that may vanish: how long they live, what a job costs on them.")
app.command("chaos")(spot_chaos.chaos)
app.command("watch")(spot_watch.watch)


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

    Machines that their owner stopped are censored, not lost. Exit code 0: fitted. 2: it cannot be, and one sentence
    says why.
    """
    from stallwise.report.spot_fit import document, draw, draw_published, published_document
    from stallwise.spot.lifetimes.log import select
    from stallwise.spot.lifetimes.summary import fitted_log

    if log == "published":
        answer(published_document, draw_published, as_json=as_json)
        return
    found = fitted_log(select(spot_inputs.log(log), gpu=gpu, region=region))
    answer(lambda: document(found), lambda: draw(found), as_json=as_json)


@app.command("plan")
def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of the whole job.")] = None,
    samples: Annotated[float | None, typer.Option("--samples", help="Samples of the whole job, instead.")] = None,
    work: Annotated[
        str | None,
        typer.Option("--work", help="Time of the whole job on these machines, as recommend predicts it: 5h."),
    ] = None,
    lifetimes: Annotated[
        list[str] | None,
        typer.Option(
            "--lifetimes", help="An event log, or GPU/REGION of a published table; more of them: other zones."
        ),
    ] = None,
    mean_life: Annotated[str | None, typer.Option("--mean-life", help="Mean life of a machine, instead: 12h.")] = None,
    machines: Annotated[int | None, typer.Option("--machines", help="Machines; default: as recorded.")] = None,
    on_demand: Annotated[int, typer.Option("--on-demand", help="How many of them are not spot.")] = 0,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="KIND",
            help="Machines of another kind besides: count=3,on-demand=1,speed=0.4,lifetimes=K80/us-west1,price=0.7,"
            "spot-price=0.26 (or instance=, mean-life=); may be given again.",
        ),
    ] = None,
    shares: Annotated[
        str | None, typer.Option("--shares", help="With --mix: equal (all wait for the slowest) or by-speed.")
    ] = None,
    age: Annotated[
        str | None, typer.Option("--age", help="Age of the spot machines that are already there: 6h.")
    ] = None,
    instance: Annotated[str | None, typer.Option("--instance", help="Instance type: prices from the catalog.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Region of the prices.")] = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars per machine-hour on-demand.")] = None,
    spot_price: Annotated[float | None, typer.Option("--spot-price", help="Dollars per machine-hour on spot.")] = None,
    price_history: Annotated[
        Path | None, typer.Option("--price-history", help="Spot prices over time: CSV, Parquet, or AWS's JSON.")
    ] = None,
    price_zone: Annotated[str | None, typer.Option("--price-zone", help="Zone of these prices.")] = None,
    price_cap: Annotated[
        float | None, typer.Option("--price-cap", help="Hold no spot machine while one costs more dollars per hour.")
    ] = None,
    spend: Annotated[
        float | None, typer.Option("--spend", help="Hold as many spot machines as so many dollars per hour buy.")
    ] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", help="When it has to be done: 24h.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="Dollars it may cost.")] = None,
    interval: Annotated[
        str | None, typer.Option("--interval", help="Work between checkpoints: 20min; default: the best.")
    ] = None,
    checkpoint_time: Annotated[str | None, typer.Option("--checkpoint-time", help="Time to save one: 30s.")] = None,
    checkpoint_size: Annotated[
        str | None, typer.Option("--checkpoint-size", help="Size of one, where its time is not known: 3GB.")
    ] = None,
    provision: Annotated[str | None, typer.Option("--provision", help="Until another machine is there: 90s.")] = None,
    restart: Annotated[str | None, typer.Option("--restart", help="From there until training goes on: 60s.")] = None,
    on_loss: Annotated[str, typer.Option("--on-loss", help="wait, shrink or carry-on.")] = "wait",
    switch: Annotated[bool, typer.Option("--switch", help="Move to on-demand in time for the deadline.")] = False,
    uniform: Annotated[
        bool, typer.Option("--uniform", help="Switch whenever behind uniform progress; needs a log with a trace.")
    ] = False,
    replays: Annotated[int, typer.Option("--replays", help="How often the job is replayed.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the random numbers.")] = 1,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page here.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a job on spot machines: distribution of finish and cost, how often to save, what each lever is worth.

    Exit code 0: planned, and the limits are met in at least 90 % of cases (or there are none). 1: they are not. 2: it
    cannot be planned, and one sentence says what to give.
    """
    from stallwise.spot.plan.measured import work_s
    from stallwise.spot.plan.outlook import Question, make_plan
    from stallwise.units import parse_seconds

    job = spot_inputs.measured(run)
    count = job.machines if machines is None else machines
    if count < 1 or replays < 1:
        raise InputError("--machines and --replays take whole numbers from 1.")
    given_s = None if work is None else parse_seconds(work)
    needed_s, said = work_s(job, count, steps=steps, samples=samples, given_s=given_s)
    if (switch or uniform) and deadline is None:
        raise InputError("--switch needs --deadline: without one there is no moment to switch at.")
    moving = spot_inputs.moving_prices(price_history, instance, price_zone, price_cap, spend)
    if moving.prices is not None and spot_price is None:
        spot_price = moving.prices.mean_usd_per_h
    rates = spot_inputs.prices(instance, region, price, spot_price)
    age_s = spot_inputs.age_s(age)
    zones = spot_inputs.zones(lifetimes or [], mean_life, rates[:2], count, age_s)
    times = spot_inputs.times(job, checkpoint_time, checkpoint_size, provision, restart)
    others, said_of_others = spot_inputs.other_kinds(mix or [], count)
    first_name, kind, trace = zones[0]
    if uniform and (trace is None or others or on_demand):
        raise InputError("--uniform needs --lifetimes with a trace of three days and a fleet that is all spot.")
    question = Question(
        name=job.name,
        work_s=needed_s,
        save_s=times[0],
        provision_s=times[1],
        restart_s=times[2],
        kind=kind,
        machines=count,
        on_demand=on_demand,
        others=tuple(others),
        lock_step=bool(others) and spot_inputs.equal_shares(shares, on_loss),
        on_loss=spot_inputs.on_loss(on_loss),
        interval_s=spot_inputs.interval_s(interval),
        deadline_s=None if deadline is None else parse_seconds(deadline),
        budget_usd=budget,
        switch=switch or uniform,
        uniform=uniform,
        trace=trace,
        prices=moving.prices,
        rule=moving.rule,
        replays=replays,
        seed=seed,
        zones=tuple(zones[1:]),
        assumptions=(*said, *moving.said, *rates[2], *said_of_others, *times[3], f"Lifetimes: {first_name}."),
    )
    # So far the work is that of --machines alone; other kinds share it.
    question = replace(question, work_s=needed_s * count / question.fleet.speed)
    _answer(make_plan(question), html, as_json=as_json)


def _answer(found: "Plan", html: Path | None, *, as_json: bool) -> None:
    from stallwise.report.spot_plan import document, draw
    from stallwise.spot.plan.outlook import SURE

    answer(lambda: document(found), lambda: draw(found), as_json=as_json)
    if html is not None:
        from stallwise.report.spot_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)
    if found.question.limited and found.result.within < SURE:
        raise typer.Exit(Exit.NO)
