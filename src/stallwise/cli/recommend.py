"""`stallwise recommend RUN`: what to rent, or to stay; `recommend CONFIG.json`: what to rent, and which layout."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stallwise.cli import layouts, options
from stallwise.cli import recommend_inputs as inputs
from stallwise.cli.output import Exit, Json, answer, save_page, warn
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.analysis.job import JobModel
    from stallwise.cloud.recommend import Recommendation
    from stallwise.cloud.request import RecommendRequest
    from stallwise.hardware.catalog import Catalog
    from stallwise.run.manifest import JobRecord

_EVERYTHING = "Comma-separated, or repeated."
_READ_FROM = ("trace", "layer file")
"""Launchers of runs that were read from another tool's file: how their job is started is not known."""


def recommend(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The folder of a run.")] = None,
    *,
    epochs: options.Epochs = None,
    epoch_samples: options.EpochSamples = None,
    samples: options.JobSamples = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="Time in which the job has to be done: 12h.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="What the job may cost: 500usd.")
    ] = None,
    confidence: Annotated[
        str, typer.Option("--confidence", metavar="PERCENT", help="Probability with which limits have to be kept.")
    ] = "90%",
    clouds: Annotated[
        list[str] | None, typer.Option("--clouds", metavar="NAMES", help=f"Only these clouds. {_EVERYTHING}")
    ] = None,
    regions: Annotated[
        list[str] | None, typer.Option("--regions", metavar="NAMES", help=f"Only these regions. {_EVERYTHING}")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="MODELS",
            help=f"Only these GPU models or families. {_EVERYTHING}",
            autocompletion=options.complete_gpu,
        ),
    ] = None,
    instances: Annotated[
        list[str] | None,
        typer.Option(
            "--instances",
            metavar="TYPES",
            help=f"Only these instance types. {_EVERYTHING}",
            autocompletion=options.complete_instance,
        ),
    ] = None,
    max_nodes: Annotated[int, typer.Option("--max-nodes", help="Largest number of nodes, 1 to 1024.")] = 64,
    include_retired: Annotated[
        bool, typer.Option("--include-retired", help="Also instance types that are no longer sold.")
    ] = False,
    arm: Annotated[
        bool, typer.Option("--arm", help="Also machines with ARM CPUs; your container image has to fit them.")
    ] = False,
    spot: Annotated[bool, typer.Option("--spot", help="Also spot machines; needs --mean-life or --lifetimes.")] = False,
    spot_only: Annotated[bool, typer.Option("--spot-only", help="Only spot machines.")] = False,
    mean_life: Annotated[
        str | None, typer.Option("--mean-life", metavar="TIME", help="Mean life of a spot machine: 12h.")
    ] = None,
    lifetimes: Annotated[
        str | None,
        typer.Option(
            "--lifetimes",
            metavar="LOG",
            help="An event log, or GPU/REGION of a published table, instead of --mean-life.",
        ),
    ] = None,
    global_batch: options.GlobalBatch = None,
    scale_batch: Annotated[
        bool,
        typer.Option(
            "--scale-batch",
            help="Let the global batch grow beyond 8 times the measured one, and count the samples that larger batches "
            "need where the run measured its gradient noise.",
        ),
    ] = False,
    workers: options.WorkersText = None,
    data_in: Annotated[
        str | None, typer.Option("--data-in", metavar="REGION", help="Region of the data; its egress is added.")
    ] = None,
    dataset_size: Annotated[
        str | None,
        typer.Option(
            "--dataset-size",
            metavar="SIZE",
            help="Size of the dataset: 140GB. Default: bytes read per sample × samples.",
        ),
    ] = None,
    discount: Annotated[
        list[str] | None,
        typer.Option("--discount", metavar="WHAT=PERCENT", help="A discount: aws/p4d.24xlarge=30%. May be repeated."),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option("--quota", metavar="WHERE=N", help="A quota of GPUs: aws/us-east-1=16. May be repeated."),
    ] = None,
    terms: Annotated[
        Path | None, typer.Option("--terms", metavar="FILE", help="YAML file with `discounts:` and `quotas:`.")
    ] = None,
    machine_of: Annotated[
        list[str] | None,
        typer.Option(
            "--machine-of",
            metavar="INSTANCE=FILE",
            help="Machine record of an instance type; it goes before listed values. May be repeated.",
        ),
    ] = None,
    here_machine: Annotated[
        Path | None,
        typer.Option(
            "--here-machine",
            metavar="FILE",
            help="Machine record of the run's own machine, with which those of --machine-of are compared.",
        ),
    ] = None,
    here_price: Annotated[
        str | None,
        typer.Option("--here-price", metavar="USD", help="Dollars per hour of one machine of the run's own: 2.50."),
    ] = None,
    startup: Annotated[
        str | None, typer.Option("--startup", metavar="TIME", help="Time from ready machines to the first step: 3min.")
    ] = None,
    provision: Annotated[
        str | None, typer.Option("--provision", metavar="TIME", help="Time until ordered machines are ready: 90s.")
    ] = None,
    evaluation: options.Evaluation = None,
    checkpoint_time: options.CheckpointTime = None,
    checkpoint_every: options.CheckpointEvery = None,
    optimizer: options.OptimizerName = options.Optimizer.ADAM,
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", metavar="N", help="Parameters of the model, where the run has no layers: 25.6M."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="N", help="Tokens to train on, for a transformer's config.json: 15T."),
    ] = None,
    sequence: layouts.Sequence = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="FILE", help="CSV of measured configurations to choose from, instead of a run."
        ),
    ] = None,
    skypilot: Annotated[
        Path | None, typer.Option("--skypilot", metavar="FILE", help="Write a SkyPilot task to this file.")
    ] = None,
    slurm: Annotated[
        Path | None, typer.Option("--slurm", metavar="FILE", help="Write a Slurm batch file to this file.")
    ] = None,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="Also print the torchrun line of the pick.")] = False,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Recommend what to rent for a measured job: the cheapest in time, or the fastest for the money; or to stay.

    For a transformer's config.json: GPUs, their number and the layout to train it with.

    Exit code 0: recommended. 1: nothing keeps the limits; stderr says what would. 2: it cannot be judged; stderr names
    the missing option.
    """
    values = dict(locals())
    from stallwise.hardware.catalog import load_catalog

    catalog = load_catalog()
    if run is not None and layouts.describes_transformer(run):
        _layouts(run, values, catalog)
        return
    if tokens is not None or sequence is not None:
        raise InputError("Tokens are of a transformer's configuration file (config.json).", fields=("tokens",))
    if measured is not None:
        _measured(measured, catalog, epochs, deadline, budget, as_json=as_json)
        return
    if run is None:
        raise InputError("Give the folder of a run, or --measured TABLE.csv.")
    from stallwise.analysis.analysis import open_run
    from stallwise.cloud.request import RecommendRequest, fleet_start, job_length, terms_of

    counted = inputs.count(parameters)
    job = open_run(run, catalog)
    model = job.model(options.optimizer_of(optimizer), counted)
    start = fleet_start(inputs.seconds(provision), inputs.seconds(startup))
    losses = None
    if spot or spot_only:
        losses = inputs.spot_terms(job, mean_life, lifetimes, start, checkpoint_time, counted)
    else:
        _refuse_losses(mean_life, lifetimes)
    epoch_size, epoch_count = job_length(epochs, epoch_samples, samples, job.epoch_samples)
    request = RecommendRequest(
        samples=epoch_size,
        epochs=epoch_count,
        cold_first=samples is None or epoch_samples is not None,
        deadline_s=inputs.seconds(deadline),
        budget_usd=options.usd(budget),
        confidence=inputs.share(confidence),
        clouds=inputs.names("cloud", clouds, catalog.clouds),
        regions=inputs.regions(regions, clouds, catalog),
        gpus=inputs.gpus(gpu, catalog),
        instances=inputs.instances(instances, catalog),
        max_nodes=max_nodes,
        retired=include_retired,
        arm=arm,
        on_demand=not spot_only,
        spot=losses,
        global_batch=None if global_batch is None else float(global_batch),
        scale_batch=scale_batch,
        noise=job.noise if scale_batch else None,
        workers=None if workers is None else options.workers_of(workers),
        data_in=inputs.data_region(data_in, catalog),
        data_bytes=inputs.data_bytes(
            dataset_size, model, epoch_samples or job.epoch_samples, needed=data_in is not None
        ),
        provision_s=start.provision_s,
        startup_s=start.startup_s,
        assumptions=start.assumptions,
        evaluation_s=inputs.seconds(evaluation) or 0.0,
        checkpoint_s=inputs.seconds(checkpoint_time) or 0.0,
        checkpoint_every_s=inputs.seconds(checkpoint_every),
        terms=terms_of(catalog, discount or (), quota or (), terms),
        machines=inputs.machines(machine_of or [], catalog),
        own_record=inputs.machine(here_machine),
        own_usd_per_h=options.usd(here_price),
    )
    _answer(job, model, request, html, skypilot, slurm, torchrun=torchrun, as_json=as_json)


def _refuse_losses(mean_life: str | None, lifetimes: str | None) -> None:
    """Refuse what only spot machines have."""
    if mean_life is not None or lifetimes is not None:
        raise InputError("--mean-life and --lifetimes are of spot machines: give --spot or --spot-only as well.")


_OF_LAYOUTS = (
    *("run", "tokens", "sequence", "global_batch", "deadline", "budget", "confidence", "clouds", "regions", "gpu"),
    *("instances", "max_nodes", "include_retired", "arm", "discount", "quota", "terms", "startup", "provision"),
    *("as_json", "optimizer"),
)
"""Options that mean something for a transformer that was not run."""


def _layouts(path: Path, values: Mapping[str, Any], catalog: "Catalog") -> None:
    """Answer for a transformer that is described by its configuration."""
    from stallwise.cloud.layouts import recommend_layout
    from stallwise.cloud.request import RecommendRequest, fleet_start, terms_of
    from stallwise.report.views import layouts as report

    layouts.refuse_others(path, values, _OF_LAYOUTS, {"confidence": "90%", "max_nodes": 64})
    described = layouts.described(path, values)
    tokens = inputs.count(values["tokens"])
    if tokens is None:
        raise InputError("Say how many tokens the model is trained on.", fields=("tokens",))
    start = fleet_start(inputs.seconds(values["provision"]), inputs.seconds(values["startup"]))
    request = RecommendRequest(
        samples=tokens / described.sequence,
        cold_first=False,
        deadline_s=inputs.seconds(values["deadline"]),
        budget_usd=options.usd(values["budget"]),
        confidence=inputs.share(values["confidence"]),
        clouds=inputs.names("cloud", values["clouds"], catalog.clouds),
        regions=inputs.regions(values["regions"], values["clouds"], catalog),
        gpus=inputs.gpus(values["gpu"], catalog),
        instances=inputs.instances(values["instances"], catalog),
        max_nodes=values["max_nodes"],
        retired=values["include_retired"],
        arm=values["arm"],
        provision_s=start.provision_s,
        startup_s=start.startup_s,
        assumptions=start.assumptions,
        terms=terms_of(catalog, values["discount"] or (), values["quota"] or (), values["terms"]),
    )
    recommendation = recommend_layout(described, request, catalog.offers)
    answer(
        lambda: report.recommendation_document(recommendation),
        lambda: report.draw_recommendation(recommendation),
        as_json=bool(values["as_json"]),
    )
    if recommendation.impossible is not None:
        typer.echo(recommendation.impossible, err=True)
        raise typer.Exit(Exit.NO)


def _answer(
    job: "Analysis",
    model: "JobModel",
    request: "RecommendRequest",
    html: Path | None,
    skypilot: Path | None,
    slurm: Path | None,
    *,
    torchrun: bool,
    as_json: bool,
) -> None:
    from stallwise.cloud.recommend import recommend as decide
    from stallwise.hardware.prices import current_date, stale_sentence
    from stallwise.report.views.recommend import document, draw

    recommendation = decide(model, request, job.catalog.offers, current_date(), job.links)
    answer(lambda: document(recommendation), lambda: draw(recommendation), as_json=as_json)
    for sentence in recommendation.warnings:
        warn(sentence)
    if recommendation.age is not None and recommendation.age.stale:
        warn(stale_sentence(recommendation.age))
    if html is not None:
        from stallwise.report.views.recommend import page

        save_page(page(recommendation), html)
    if recommendation.pick is None and recommendation.stay is None:
        typer.echo(recommendation.impossible or "Nothing keeps the limits.", err=True)
        raise typer.Exit(Exit.NO)
    if recommendation.pick is not None and recommendation.pick.spot is not None and not as_json:
        from stallwise.cloud.handover import spot_plan_line

        typer.echo(f"\nWhat else can be done on spot: {spot_plan_line(recommendation.pick, recommendation)}", err=True)
    _hand_over(recommendation, job.source, skypilot, slurm, torchrun=torchrun, as_json=as_json)


def _hand_over(
    recommendation: "Recommendation",
    run: Path,
    skypilot: Path | None,
    slurm: Path | None,
    *,
    torchrun: bool,
    as_json: bool,
) -> None:
    if not (skypilot or slurm or torchrun):
        return
    from stallwise.cloud.handover import ranked, skypilot_yaml, slurm_batch, torchrun_line
    from stallwise.report.views.recommend import show_settings
    from stallwise.run.manifest import MASK, read_manifest

    job = read_manifest(run).job
    command = _command(job)
    pick = ranked(recommendation)[0]
    typer.echo(f"\nGive the script: {show_settings(pick)}.", err=True)
    if any(MASK in word for word in job.arguments):
        typer.echo(f"Secrets in its arguments were masked ({MASK}); put them back before launching.", err=True)
    if torchrun:
        typer.echo(f"\n{torchrun_line(pick, command)}", err=as_json)
    if skypilot is not None:
        _write(skypilot, skypilot_yaml(recommendation, command), "SkyPilot task")
    if slurm is not None:
        _write(slurm, slurm_batch(recommendation, command), "Slurm batch file")


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
    from stallwise.report.format import show_seconds, show_usd
    from stallwise.report.views.recommend import draw_measured, measured_document

    if epochs is None or not epochs > 0:
        raise InputError("Say how many epochs the job has with --epochs.")
    deadline_s, budget_usd = inputs.seconds(deadline), options.usd(budget)
    choice = choose_measured(read_configurations(table, catalog), epochs, deadline_s=deadline_s, budget_usd=budget_usd)
    answer(lambda: measured_document(choice), lambda: draw_measured(choice), as_json=as_json)
    if choice.infeasible:
        fastest = min(choice.rows, key=lambda row: row[1])
        cheapest = choice.rows[0]
        typer.echo(
            f"No measured configuration keeps the limits. The fastest, {fastest[0].name}, takes "
            f"{show_seconds(fastest[1])}; the cheapest, {cheapest[0].name}, costs {show_usd(cheapest[2])}.",
            err=True,
        )
        raise typer.Exit(Exit.NO)
