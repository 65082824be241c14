"""`stallwise spot`: how long machines live, and what a job takes and costs on machines that may vanish."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit, Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.spot.lifetimes.log import Log, Trace
    from stallwise.spot.lifetimes.models import Lifetime
    from stallwise.spot.plan.fleet import Kind, OnLoss
    from stallwise.spot.plan.measured import Measured
    from stallwise.spot.plan.outlook import Plan

app = typer.Typer(no_args_is_help=True, help="Machines that may vanish: how long they live, what a job costs on them.")

_FEW_DAYS_S = 3 * 86400.0


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
    found = fitted_log(select(_log(log), gpu=gpu, region=region))
    answer(lambda: document(found), lambda: draw(found), as_json=as_json)


@app.command("plan")
def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of the whole job.")] = None,
    samples: Annotated[float | None, typer.Option("--samples", help="Samples of the whole job, instead.")] = None,
    lifetimes: Annotated[
        list[str] | None,
        typer.Option(
            "--lifetimes", help="An event log, or GPU/REGION of a published table; more of them: other zones."
        ),
    ] = None,
    mean_life: Annotated[str | None, typer.Option("--mean-life", help="Mean life of a machine, instead: 12h.")] = None,
    machines: Annotated[int | None, typer.Option("--machines", help="Machines; default: as recorded.")] = None,
    on_demand: Annotated[int, typer.Option("--on-demand", help="How many of them are not spot.")] = 0,
    instance: Annotated[str | None, typer.Option("--instance", help="Instance type: prices from the catalog.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Region of the prices.")] = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars per machine-hour on-demand.")] = None,
    spot_price: Annotated[float | None, typer.Option("--spot-price", help="Dollars per machine-hour on spot.")] = None,
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

    job = _measured(run)
    count = job.machines if machines is None else machines
    if count < 1 or replays < 1:
        raise InputError("--machines and --replays take whole numbers from 1.")
    needed_s, said = work_s(job, count, steps=steps, samples=samples)
    if switch and deadline is None:
        raise InputError("--switch needs --deadline: without one there is no moment to switch at.")
    rates = _prices(instance, region, price, spot_price)
    zones = _zones(lifetimes or [], mean_life, rates[:2], count)
    times = _times(job, checkpoint_time, checkpoint_size, provision, restart, on_loss)
    first_name, kind, trace = zones[0]
    question = Question(
        name=job.name,
        work_s=needed_s,
        save_s=times[0],
        provision_s=times[1],
        restart_s=times[2],
        kind=kind,
        machines=count,
        on_demand=on_demand,
        on_loss=_on_loss(on_loss),
        interval_s=_interval_s(interval),
        deadline_s=None if deadline is None else parse_seconds(deadline),
        budget_usd=budget,
        switch=switch,
        trace=trace,
        replays=replays,
        seed=seed,
        zones=tuple(zones[1:]),
        assumptions=(*said, *rates[2], *times[3], f"Lifetimes: {first_name}."),
    )
    _answer(make_plan(question), html, as_json=as_json)


def _answer(found: "Plan", html: Path | None, *, as_json: bool) -> None:
    from stallwise.report.spot_plan import document, draw
    from stallwise.spot.plan.outlook import SURE

    answer(lambda: document(found), lambda: draw(found), as_json=as_json)
    if html is not None:
        from stallwise.report.spot_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)
    limited = found.question.deadline_s is not None or found.question.budget_usd is not None
    if limited and found.result.within < SURE:
        raise typer.Exit(Exit.NO)


def _log(text: str) -> "Log":
    """A file, or a published table."""
    from stallwise.spot.lifetimes.published import watched_in
    from stallwise.spot.lifetimes.readers import read_log

    path = Path(text)
    gpu, slash, region = text.partition("/")
    if slash and not path.exists() and "/" not in region and "." not in region:
        return watched_in(gpu, region).log()
    return read_log(path)


def _measured(path: Path) -> "Measured":
    from stallwise.record.summary import summarise
    from stallwise.run.reader import Run
    from stallwise.spot.plan.measured import measured_of

    run = Run.open(path)
    phases = [phase for phase in summarise(run).phases if phase.step_s is not None]
    if not phases:
        raise InputError(f"The run at {path} has no steps that were kept. Profile the job again, for longer.")
    chosen = next((phase for phase in phases if phase.name == "as is"), phases[0])
    if chosen.step_s is None:
        raise InputError(f"The run at {path} has no steps that were kept. Profile the job again, for longer.")
    return measured_of(run, chosen.step_s, chosen.samples_per_s.value if chosen.samples_per_s else None)


def _prices(
    instance: str | None, region: str | None, price: float | None, spot_price: float | None
) -> tuple[float, float, list[str]]:
    """On-demand and spot dollars per machine-hour, and where they come from."""
    if instance is None:
        if price is None or spot_price is None:
            raise InputError(
                "Prices are needed: --price and --spot-price per machine-hour, or --instance (and --region)."
            )
        return price, spot_price, []
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.offer import by_price

    catalog = load_catalog()
    found, said = {}, []
    for market, given in (("on-demand", price), ("spot", spot_price)):
        if given is not None:
            found[market] = given
            continue
        offers = catalog.find(catalog.query(instance=instance, region=region, market=market, retired=True))  # type: ignore[arg-type]
        if not offers:
            where = f" in {region}" if region else ""
            option = "--price" if market == "on-demand" else "--spot-price"
            raise InputError(
                f"The catalog lists no {market} price of {instance}{where}. Give {option}, or another --region."
            )
        offer = min(offers, key=by_price)
        found[market] = offer.usd_per_h
        said.append(f"{market.capitalize()} price of {instance} in {offer.region}: ${offer.usd_per_h:.4g}/h, listed.")
    return found["on-demand"], found["spot"], said


def _zones(
    lifetimes: list[str], mean_life: str | None, prices: tuple[float, float], machines: int
) -> "list[tuple[str, Kind, Trace | None]]":
    """The zone planned for, and others to compare with."""
    from stallwise.spot.lifetimes.models import Exponential
    from stallwise.spot.plan.fleet import Kind
    from stallwise.units import parse_seconds

    if bool(lifetimes) == (mean_life is not None):
        raise InputError(
            "How long do machines live? Give --lifetimes (an event log, or GPU/REGION of a published table; see "
            "stallwise spot fit published) or --mean-life 12h."
        )

    def kind(name: str, life: "Lifetime") -> Kind:
        return Kind(name=name, usd_per_h=prices[0], spot_usd_per_h=prices[1], life=life)

    if mean_life is not None:
        mean_s = parse_seconds(mean_life)
        if mean_s <= 0:
            raise InputError(f"--mean-life takes a time above 0, not {mean_life!r}.")
        name = f"a mean life of {mean_life}, whatever the age"
        return [(name, kind(name, Exponential(mean_s)), None)]
    found = []
    for text in _with_neighbours(lifetimes):
        name, life, trace = _zone(text, machines)
        found.append((name, kind(name, life), trace))
    return found


def _with_neighbours(lifetimes: list[str]) -> list[str]:
    """One published table brings the other regions of its GPU along, to compare with."""
    from stallwise.spot.lifetimes.published import watched

    gpu, _, region = lifetimes[0].partition("/")
    others = [one for one in watched() if one.gpu.lower() == gpu.lower() and one.region.lower() != region.lower()]
    if len(lifetimes) > 1 or Path(lifetimes[0]).exists():
        return lifetimes
    return [*lifetimes, *(f"{one.gpu}/{one.region}" for one in others)]


def _zone(text: str, machines: int) -> "tuple[str, Lifetime, Trace | None]":
    from stallwise.spot.lifetimes.fit import estimate
    from stallwise.spot.lifetimes.published import watched_in

    log = _log(text)
    if not Path(text).exists():
        gpu, _, region = text.partition("/")
        table = watched_in(gpu, region)
        name = f"{table.gpu} in {table.region}, {table.machines} machines watched in 2019, 24 h limit"
        return name, table.life(), None
    found = estimate(log.lives, log.source)
    name = f"{log.source}, {found.machines:,} machines, {found.losses:,} lost"
    trace = log.trace
    usable = trace is not None and trace.most >= machines and trace.end_s - trace.at_s[0] >= _FEW_DAYS_S
    return name, found.curve, trace if usable else None


def _times(
    job: "Measured",
    checkpoint_time: str | None,
    checkpoint_size: str | None,
    provision: str | None,
    restart: str | None,
    on_loss: str,
) -> tuple[float, float, float, list[str]]:
    """Seconds to save, to get a machine, to go on; with a sentence for each that was neither given nor measured."""
    from stallwise.spot.plan.regress import checkpoint_time as guess_save
    from stallwise.spot.plan.regress import machine_start, worker_start
    from stallwise.units import parse_bytes, parse_seconds

    said: list[str] = []
    size = parse_bytes(checkpoint_size) if checkpoint_size is not None else None
    if checkpoint_time is not None:
        save_s = parse_seconds(checkpoint_time)
    elif size is None and job.checkpoint_s is not None:
        save_s = job.checkpoint_s
        said.append(
            f"Saving takes {save_s:.3g} s, the mean of those in the record ({job.checkpoints}). A profile saves to a "
            "scratch folder; to storage that outlives the machine it may take longer: --checkpoint-time."
        )
    elif size is not None or job.checkpoint_bytes is not None:
        if size is None:
            said.append("A checkpoint holds 12 bytes per parameter, weights and two moments. Give --checkpoint-size.")
        guess = guess_save(size or job.checkpoint_bytes or 0)
        save_s = guess.s
        said.append(guess.said)
    else:
        raise InputError(
            f"The run {job.source} says nothing about checkpoints or the size of the model. Give --checkpoint-time."
        )
    guesses = []
    for given, guess in ((provision, machine_start()), (restart, worker_start())):
        guesses.append(guess.s if given is None else parse_seconds(given))
        if given is None:
            said.append(guess.said)
    return save_s, guesses[0], guesses[1], said


def _interval_s(text: str | None) -> float | None:
    from stallwise.units import parse_seconds

    if text is None:
        return None
    if text == "none":
        return math.inf
    found = parse_seconds(text)
    if found <= 0:
        raise InputError(f"--interval takes a time above 0, or none, not {text!r}.")
    return found


def _on_loss(text: str) -> "OnLoss":
    from stallwise.errors import UnknownNameError
    from stallwise.spot.plan.fleet import ON_LOSS

    for way in ON_LOSS:
        if way == text:
            return way
    raise UnknownNameError("way to take a loss (wait, shrink, carry-on)", text, ON_LOSS)
