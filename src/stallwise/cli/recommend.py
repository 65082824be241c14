"""`stallwise recommend RUN`: what to rent, or to stay."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Exit, Json, answer, warn
from stallwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from stallwise.cloud.recommend import Recommendation
    from stallwise.cloud.subject import Subject
    from stallwise.cloud.wish import SpotTerms, Wish
    from stallwise.hardware.catalog import Catalog
    from stallwise.hardware.machine import MachineRecord
    from stallwise.spot.lifetimes.models import Lifetime

_EVERYTHING = "Comma-separated, or repeated."


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
    subject = subject_of(Run.open(run), catalog, optimizer=optimizer, parameters=_count(parameters))
    losses = _spot(subject, mean_life, lifetimes, provision, startup, checkpoint) if spot or spot_only else None
    work = _work(epochs, epoch_samples, samples)
    from stallwise.cloud.terms import terms_of
    from stallwise.cloud.wish import Wish

    wish = Wish(
        samples=work[0],
        epochs=work[1],
        deadline_s=_seconds(deadline),
        budget_usd=_usd(budget),
        sure=_share(sure),
        clouds=_names("cloud", clouds, catalog.clouds),
        regions=_regions(regions, clouds, catalog),
        gpus=_gpus(gpus, catalog),
        instances=_instances(instances, catalog),
        max_nodes=max_nodes,
        retired=retired,
        arm=arm,
        on_demand=not spot_only,
        spot=losses,
        scale_batch=not keep_global_batch,
        workers=_workers(workers),
        data_in=_place(data_in, catalog),
        data_bytes=_data_bytes(data_size, subject, epoch_samples, needed=data_in is not None),
        provision_s=losses.provision_s if losses else _seconds(provision) or 0.0,
        startup_s=losses.restart_s if losses else _seconds(startup) or 0.0,
        evaluation_s=_seconds(evaluation) or 0.0,
        checkpoint_s=_seconds(checkpoint) or 0.0,
        checkpoint_every_s=_seconds(checkpoint_every),
        terms=terms_of(catalog, discount or (), quota or (), terms),
        machines=_machines(machine or [], catalog),
        here_usd_per_h=here_price,
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
    _hand_over(found, run, skypilot, slurm, torchrun=torchrun, as_json=as_json)


def _hand_over(
    found: "Recommendation", run: Path, skypilot: Path | None, slurm: Path | None, *, torchrun: bool, as_json: bool
) -> None:
    from stallwise.run.manifest import read_manifest

    if not (skypilot or slurm or torchrun):
        return
    from stallwise.cloud.handover import ranked, skypilot_yaml, slurm_batch, torchrun_line
    from stallwise.report.recommend import show_settings
    from stallwise.run.redact import MASK

    job = read_manifest(run).job
    # A job profiled with -m has a module's name for its script.
    command = [*([] if job.script.endswith(".py") else ["-m"]), job.script, *job.arguments]
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
    deadline_s, budget_usd = _seconds(deadline), _usd(budget)
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


def _work(epochs: float | None, epoch_samples: float | None, samples: float | None) -> tuple[float, float]:
    """Samples of an epoch, and epochs."""
    if samples is not None:
        if epochs is not None:
            raise InputError("Give --samples of the whole job, or --epochs with --epoch-samples.")
        return (samples, 1.0) if epoch_samples is None else (epoch_samples, samples / epoch_samples)
    if epochs is None:
        raise InputError("Say how long the job is: --samples of the whole job, or --epochs with --epoch-samples.")
    if epoch_samples is None:
        raise InputError("A run does not know how large the data set is: give --epoch-samples with --epochs.")
    return epoch_samples, epochs


def _split(given: Sequence[str] | None) -> list[str]:
    return [word.strip() for text in given or () for word in text.split(",") if word.strip()]


def _names(kind: str, given: Sequence[str] | None, known: Sequence[str]) -> frozenset[str] | None:
    words = _split(given)
    by_lower = {name.lower(): name for name in known}
    for word in words:
        if word.lower() not in by_lower:
            raise UnknownNameError(kind, word, known)
    return frozenset(by_lower[word.lower()] for word in words) or None


def _regions(given: Sequence[str] | None, clouds: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    found = _names("region with prices", given, catalog.regions())
    wanted = _names("cloud", clouds, catalog.clouds)
    for region in found or ():
        if wanted and not any(region in catalog.regions(cloud) for cloud in wanted):
            raise InputError(
                f"No price is listed for {region} in {', '.join(sorted(wanted))}. Leave --clouds out, or import prices "
                "with stallwise catalog import."
            )
    return found


def _gpus(given: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    return frozenset(name for word in _split(given) for name in catalog.gpu_names(word)) or None


def _instances(given: Sequence[str] | None, catalog: "Catalog") -> frozenset[str] | None:
    return frozenset(catalog.instance(word).name for word in _split(given)) or None


def _place(text: str | None, catalog: "Catalog") -> tuple[str, str] | None:
    """`us-east-1` or `aws/us-east-1`."""
    if text is None:
        return None
    cloud, slash, region = text.partition("/")
    name = region if slash else cloud
    for one in catalog.clouds:
        if slash and one.lower() != cloud.lower():
            continue
        for known in catalog.regions(one):
            if known.lower() == name.lower():
                return one, known
    raise UnknownNameError("region with prices", name, catalog.regions())


def _data_bytes(text: str | None, subject: "Subject", epoch_samples: float | None, *, needed: bool) -> float | None:
    """Of the data set: as given, or an epoch of what the run read per sample."""
    from stallwise.units import parse_bytes

    if text is not None:
        return parse_bytes(text)
    if epoch_samples is not None and subject.bytes_per_sample is not None:
        return subject.bytes_per_sample * epoch_samples
    if needed:
        raise InputError("How large the data set is is not known here: give --data-size with --data-in.")
    return None


def _machines(given: Sequence[str], catalog: "Catalog") -> "dict[str, MachineRecord]":
    from stallwise.hardware.machine import read_machine

    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            raise InputError(f"--machine takes INSTANCE=FILE, like p4d.24xlarge=machine.json, not {text!r}.")
        found[catalog.instance(name).name] = read_machine(Path(path))
    return found


def _spot(
    subject: "Subject",
    mean_life: str | None,
    lifetimes: str | None,
    provision: str | None,
    startup: str | None,
    checkpoint: str | None,
) -> "SpotTerms":
    from stallwise.cloud.wish import SpotTerms
    from stallwise.spot.plan.regress import checkpoint_time, machine_start, worker_start

    life, name = _life(mean_life, lifetimes)
    said = []
    save_s = _seconds(checkpoint)
    if save_s is None:
        if subject.checkpoint_bytes is None:
            raise InputError("How long one checkpoint takes is not known. Give --checkpoint 30s.")
        guess = checkpoint_time(subject.checkpoint_bytes)
        save_s = guess.s
        said.append(guess.said.replace("--checkpoint-time", "--checkpoint"))
    times = []
    for given, guessed in ((provision, machine_start()), (startup, worker_start())):
        times.append(guessed.s if given is None else _seconds(given) or 0.0)
        if given is None:
            said.append(guessed.said.replace("--restart", "--startup"))
    return SpotTerms(life=life, name=name, save_s=save_s, provision_s=times[0], restart_s=times[1], said=tuple(said))


def _life(mean_life: str | None, lifetimes: str | None) -> "tuple[Lifetime, str]":
    if (mean_life is None) == (lifetimes is None):
        raise InputError(
            "How long do spot machines live? A price does not say. Give --mean-life 12h, or --lifetimes (an event log, "
            "or GPU/REGION of a published table; see stallwise spot fit published)."
        )
    if mean_life is not None:
        from stallwise.spot.lifetimes.models import Exponential

        mean_s = _seconds(mean_life) or 0.0
        if mean_s <= 0:
            raise InputError(f"--mean-life takes a time above 0, not {mean_life!r}.")
        return Exponential(mean_s), f"a mean life of {mean_life}, whatever the age"
    assert lifetimes is not None  # noqa: S101 - one of the two is given
    from stallwise.spot.lifetimes.fit import estimate
    from stallwise.spot.lifetimes.published import watched_in
    from stallwise.spot.lifetimes.readers import read_log

    gpu, slash, region = lifetimes.partition("/")
    if slash and not Path(lifetimes).exists():
        table = watched_in(gpu, region)
        return table.life(), f"{table.gpu} in {table.region}, {table.machines} machines watched in 2019, 24 h limit"
    log = read_log(Path(lifetimes))
    found = estimate(log.lives, log.source)
    return found.curve, f"{log.source}, {found.machines:,} machines, {found.losses:,} lost"


def _seconds(text: str | None) -> float | None:
    from stallwise.units import parse_seconds

    return None if text is None else parse_seconds(text)


def _share(text: str) -> float:
    from stallwise.units import parse_share

    return parse_share(text)


def _usd(text: str | None) -> float | None:
    """`500usd`, `$500` or `500`."""
    if text is None:
        return None
    plain = text.lower().strip().removeprefix("$").removesuffix("usd").replace(",", "").strip()
    try:
        return float(plain)
    except ValueError:
        raise InputError(f"{text!r} is not an amount like 500usd.") from None


def _count(text: str | None) -> float | None:
    """`25.6M`, `7B` or a number."""
    if text is None:
        return None
    scales = {"k": 1e3, "m": 1e6, "b": 1e9}
    scale = scales.get(text[-1:].lower(), 1.0)
    try:
        found = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        found = 0.0
    if found <= 0:
        raise InputError(f"{text!r} is not a number of parameters like 25.6M.")
    return found


def _workers(count: int | None) -> int | None:
    if count is not None and count < 1:
        raise InputError(f"--workers takes a whole number from 1, not {count}.")
    return count
