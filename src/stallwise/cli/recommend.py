"""`stallwise recommend RUN`: what to rent, or to stay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import recommend_inputs as inputs
from stallwise.cli.output import Exit, Json, answer, warn
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.cloud.recommend import Recommendation
    from stallwise.cloud.subject import Subject
    from stallwise.cloud.wish import Wish
    from stallwise.hardware.catalog import Catalog
    from stallwise.run.manifest import JobRecord

_EVERYTHING = "Comma-separated, or repeated."
_READ_FROM = ("trace", "layer file")
"""Launchers of runs that were read from another tool's file: how their job is started is not known."""


def recommend(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Epochs; with --epoch-samples.")] = None,
    epoch_samples: Annotated[float | None, typer.Option("--epoch-samples", help="Samples of one epoch.")] = None,
    samples: Annotated[float | None, typer.Option("--samples", help="Samples of the whole job, instead.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", help="When it has to be done: 12h.")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="What it may cost: 500usd.")] = None,
    sure: Annotated[str, typer.Option("--sure", help="How likely limits have to be kept.")] = "90%",
    clouds: Annotated[list[str] | None, typer.Option("--clouds", help=f"Only these clouds. {_EVERYTHING}")] = None,
    regions: Annotated[list[str] | None, typer.Option("--regions", help="Only these regions.")] = None,
    gpus: Annotated[list[str] | None, typer.Option("--gpus", help="Only these GPUs or families.")] = None,
    instances: Annotated[list[str] | None, typer.Option("--instances", help="Only these instance types.")] = None,
    max_nodes: Annotated[int, typer.Option("--max-nodes", help="Machines at most.")] = 64,
    retired: Annotated[bool, typer.Option("--retired", help="Also what is no longer sold.")] = False,
    arm: Annotated[bool, typer.Option("--arm", help="Also ARM machines; your image has to fit them.")] = False,
    spot: Annotated[bool, typer.Option("--spot", help="Also spot machines; needs --mean-life or --lifetimes.")] = False,
    spot_only: Annotated[bool, typer.Option("--spot-only", help="Only spot machines.")] = False,
    mean_life: Annotated[str | None, typer.Option("--mean-life", help="Mean life of a spot machine: 12h.")] = None,
    lifetimes: Annotated[
        str | None, typer.Option("--lifetimes", help="An event log, or GPU/REGION of a published table, instead.")
    ] = None,
    keep_global_batch: Annotated[
        bool,
        typer.Option(
            "--keep-global-batch/--scale-batch",
            help="Keep the batch of all GPUs together, or that of each GPU (epochs to accuracy change).",
        ),
    ] = True,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Loader workers of each GPU. Default: as its vCPUs allow.")
    ] = None,
    data_in: Annotated[str | None, typer.Option("--data-in", help="Region the data lies in: adds egress.")] = None,
    data_size: Annotated[
        str | None, typer.Option("--data-size", help="Of the data set: 140GB. Default: bytes read × samples.")
    ] = None,
    discount: Annotated[
        list[str] | None, typer.Option("--discount", help="aws/p4d.24xlarge=30%; may be repeated.")
    ] = None,
    quota: Annotated[list[str] | None, typer.Option("--quota", help="GPUs: aws/us-east-1=16; may be repeated.")] = None,
    terms: Annotated[Path | None, typer.Option("--terms", help="YAML with `discounts:` and `quotas:`.")] = None,
    machine: Annotated[
        list[str] | None, typer.Option("--machine", help="INSTANCE=FILE: a machine record goes before listed values.")
    ] = None,
    here_machine: Annotated[
        Path | None,
        typer.Option("--here-machine", help="Machine record of the run's own machine, to hold theirs against."),
    ] = None,
    here_price: Annotated[
        float | None, typer.Option("--here-price", help="Dollars per hour of one machine of the run's own.")
    ] = None,
    startup: Annotated[str | None, typer.Option("--startup", help="Machines there to first step: 3min.")] = None,
    provision: Annotated[str | None, typer.Option("--provision", help="Until machines are there: 90s.")] = None,
    evaluation: Annotated[str | None, typer.Option("--evaluation", help="After every epoch: 40s.")] = None,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", help="One checkpoint stops it for: 5s.")] = None,
    checkpoint_every: Annotated[str | None, typer.Option("--checkpoint-every", help="Between them: 10min.")] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="For memory: sgd, momentum or adam.")] = "adam",
    parameters: Annotated[
        str | None, typer.Option("--parameters", help="Of the model, where the run has no layers: 25.6M.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Stash's way: a CSV of measured configurations, no prediction.")
    ] = None,
    skypilot: Annotated[Path | None, typer.Option("--skypilot", help="Write a SkyPilot task here.")] = None,
    slurm: Annotated[Path | None, typer.Option("--slurm", help="Write a Slurm batch file here.")] = None,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="Also print the torchrun line of the pick.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page here.")] = None,
    as_json: Json = False,
) -> None:
    """Recommend what to rent for a measured job: the cheapest in time, or the quickest for the money; or to stay.

    Exit code 0: recommended. 1: nothing keeps the limits; what would is said. 2: it cannot be judged, and one sentence
    says what to give.
    """
    from stallwise.hardware.catalog import load_catalog

    catalog = load_catalog()
    if measured is not None:
        _measured(measured, catalog, epochs, deadline, budget, as_json=as_json)
        return
    if run is None:
        raise InputError("Give the folder of a run, or --measured TABLE.csv.")
    from stallwise.cloud.subject import subject_of
    from stallwise.run.reader import Run

    if optimizer not in ("sgd", "momentum", "adam"):
        raise InputError(f"--optimizer takes sgd, momentum or adam, not {optimizer!r}.")
    counted = inputs.count(parameters)
    subject = subject_of(Run.open(run), catalog, optimizer=optimizer, parameters=counted)
    begins = inputs.starting(provision, startup)
    losses = None
    if spot or spot_only:
        losses = inputs.spot_terms(run, mean_life, lifetimes, begins, checkpoint, counted)
    elif mean_life is not None or lifetimes is not None:
        raise InputError("--mean-life and --lifetimes are of spot machines: give --spot or --spot-only as well.")
    work = inputs.work(epochs, epoch_samples, samples)
    from stallwise.cloud.terms import terms_of
    from stallwise.cloud.wish import Wish

    wish = Wish(
        samples=work[0],
        epochs=work[1],
        deadline_s=inputs.seconds(deadline),
        budget_usd=inputs.usd(budget),
        sure=inputs.share(sure),
        clouds=inputs.names("cloud", clouds, catalog.clouds),
        regions=inputs.regions(regions, clouds, catalog),
        gpus=inputs.gpus(gpus, catalog),
        instances=inputs.instances(instances, catalog),
        max_nodes=max_nodes,
        retired=retired,
        arm=arm,
        on_demand=not spot_only,
        spot=losses,
        scale_batch=not keep_global_batch,
        workers=inputs.workers(workers),
        data_in=inputs.place(data_in, catalog),
        data_bytes=inputs.data_bytes(data_size, subject, epoch_samples, needed=data_in is not None),
        provision_s=begins.provision_s,
        startup_s=begins.startup_s,
        said=begins.said,
        evaluation_s=inputs.seconds(evaluation) or 0.0,
        checkpoint_s=inputs.seconds(checkpoint) or 0.0,
        checkpoint_every_s=inputs.seconds(checkpoint_every),
        terms=terms_of(catalog, discount or (), quota or (), terms),
        machines=inputs.machines(machine or [], catalog),
        here=inputs.machine(here_machine),
        here_usd_per_h=inputs.price(here_price),
    )
    _answer(subject, wish, catalog, run, html, skypilot, slurm, torchrun=torchrun, as_json=as_json)


def _answer(
    subject: "Subject",
    wish: "Wish",
    catalog: "Catalog",
    run: Path,
    html: Path | None,
    skypilot: Path | None,
    slurm: Path | None,
    *,
    torchrun: bool,
    as_json: bool,
) -> None:
    import datetime as dt

    from stallwise.cloud.recommend import recommend as decide
    from stallwise.hardware.prices import stale_sentence
    from stallwise.report.recommend import draw
    from stallwise.report.recommend_json import document

    found = decide(subject, wish, catalog.offers, dt.date.today())
    answer(lambda: document(found), lambda: draw(found), as_json=as_json)
    for sentence in found.warnings:
        warn(sentence)
    if found.age is not None and found.age.stale:
        warn(stale_sentence(found.age))
    if html is not None:
        from stallwise.report.recommend_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)
    if found.pick is None and found.stay is None:
        typer.echo(found.impossible or "Nothing keeps the limits.", err=True)
        raise typer.Exit(Exit.NO)
    if found.pick is not None and found.pick.spot is not None and not as_json:
        from stallwise.cloud.handover import spot_plan_line

        typer.echo(f"\nWhat else can be done on spot: {spot_plan_line(found.pick, found)}", err=True)
    _hand_over(found, run, skypilot, slurm, torchrun=torchrun, as_json=as_json)


def _hand_over(
    found: "Recommendation", run: Path, skypilot: Path | None, slurm: Path | None, *, torchrun: bool, as_json: bool
) -> None:
    if not (skypilot or slurm or torchrun):
        return
    from stallwise.cloud.handover import ranked, skypilot_yaml, slurm_batch, torchrun_line
    from stallwise.report.recommend import show_settings
    from stallwise.run.manifest import read_manifest
    from stallwise.run.redact import MASK

    job = read_manifest(run).job
    command = _command(job)
    pick = ranked(found)[0]
    typer.echo(f"\nGive the script: {show_settings(pick)}.", err=True)
    if any(MASK in word for word in job.arguments):
        typer.echo(f"Secrets in its arguments were masked ({MASK}); put them back before launching.", err=True)
    if torchrun:
        typer.echo(f"\n{torchrun_line(pick, command)}", err=as_json)
    if skypilot is not None:
        _write(skypilot, skypilot_yaml(found, command), "SkyPilot task")
    if slurm is not None:
        _write(slurm, slurm_batch(found, command), "Slurm batch file")


def _command(job: "JobRecord") -> list[str]:
    """What torchrun is to run: the script, or -m and the module, with the arguments of the run."""
    if job.launcher in _READ_FROM:
        warn("The run was read from another tool's file and does not say how its job is started: put it for train.py.")
        return ["train.py"]
    return [*(["-m"] if job.module else []), job.script, *job.arguments]


def _write(path: Path, text: str, what: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"The {what} cannot be written to {path} ({error.strerror}).") from None
    typer.echo(f"\nThe {what} is {path}", err=True)


def _measured(
    table: Path, catalog: "Catalog", epochs: float | None, deadline: str | None, budget: str | None, *, as_json: bool
) -> None:
    from stallwise.cloud.measured import choose_measured, read_configurations
    from stallwise.report.recommend import draw_measured
    from stallwise.report.recommend_json import measured_document

    if epochs is None or not epochs > 0:
        raise InputError("Say how many epochs the job has with --epochs.")
    deadline_s, budget_usd = inputs.seconds(deadline), inputs.usd(budget)
    found = choose_measured(read_configurations(table, catalog), epochs, deadline_s=deadline_s, budget_usd=budget_usd)
    answer(lambda: measured_document(found), lambda: draw_measured(found), as_json=as_json)
    if found.infeasible:
        quickest = min(found.rows, key=lambda row: row[1])
        cheapest = found.rows[0]
        typer.echo(
            f"No measured configuration keeps the limits. The quickest, {quickest[0].name}, takes "
            f"{quickest[1] / 3600:.3g} h; the cheapest, {cheapest[0].name}, costs ${cheapest[2]:,.2f}.",
            err=True,
        )
        raise typer.Exit(Exit.NO)
