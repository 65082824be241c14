"""`stallwise predict`: a measured job on another GPU, or a table of set-ups."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.hardware.catalog import Catalog
    from stallwise.record.setup import Asked


def predict(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="The GPU to predict: H100, RTX4090 …")] = None,
    count: Annotated[int | None, typer.Option("--count", help="GPUs in all.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes they are spread over.")] = None,
    instance: Annotated[
        str | None, typer.Option("--instance", help="Nodes of this type; its GPU and links as listed.")
    ] = None,
    network: Annotated[str | None, typer.Option("--network", help="Rate between nodes: 25gbit.")] = None,
    link: Annotated[str | None, typer.Option("--link", help="Rate between the GPUs of a node: 300GB/s.")] = None,
    batch: Annotated[str | None, typer.Option("--batch", help="Batch of each GPU, as a factor: 2x.")] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="For memory: sgd, momentum or adam.")] = "adam",
    samples: Annotated[float | None, typer.Option("--samples", help="Samples of an epoch; adds epoch and job.")] = None,
    epochs: Annotated[float, typer.Option("--epochs", help="Epochs of the job.")] = 1.0,
    startup: Annotated[str | None, typer.Option("--startup", help="From the order to the first step: 3min.")] = None,
    evaluation: Annotated[str | None, typer.Option("--evaluation", help="After every epoch: 40s.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", help="That one checkpoint stops it for: 5s.")
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option("--checkpoint-every", help="Time between them: 10min. Default: every epoch.")
    ] = None,
    price: Annotated[float | None, typer.Option("--price", help="Dollars per hour of one machine.")] = None,
    table: Annotated[Path | None, typer.Option("--table", help="A CSV file of set-ups instead of a run.")] = None,
    as_json: Json = False,
) -> None:
    """Predict a measured job on another GPU: step, memory, epoch and job, with 80 % intervals. Or every row of a table.

    Exit code 0: predicted. 2: it cannot be, and one sentence says what to give, for a table with the row number.
    """
    if table is not None:
        if run is not None or gpu is not None:
            raise InputError("A table names its own GPUs; give --table alone, or a run with --gpu.")
        _table(table, as_json=as_json)
        return
    if run is None:
        raise InputError("Give the folder of a run and --gpu, or --table FILE.csv.")
    from stallwise.hardware.catalog import load_catalog
    from stallwise.record.prediction import Wanted, predict_run
    from stallwise.report import predict as report
    from stallwise.run.reader import Run
    from stallwise.units import parse_factor

    catalog = load_catalog()
    asked = _asked(catalog, instance, count, nodes, network, link)
    if gpu is None and asked.instance is None:
        raise InputError("Say which GPU with --gpu (H100, RTX4090 …), or with --instance.")
    if optimizer not in ("sgd", "momentum", "adam"):
        raise InputError(f"--optimizer takes sgd, momentum or adam, not {optimizer!r}.")
    card = catalog.gpu(gpu) if gpu is not None else asked.instance.gpu if asked.instance else None
    assert card is not None  # noqa: S101 - checked above
    if asked.instance is not None and asked.instance.gpu != card:
        raise InputError(f"{asked.instance.name} has {asked.instance.gpu.name}, not {card.name}. Give one of the two.")
    found = predict_run(
        Run.open(run),
        Wanted(
            gpu=card,
            asked=asked,
            batch=1.0 if batch is None else parse_factor(batch),
            optimizer=optimizer,
            samples=samples,
            epochs=epochs,
            startup_s=_seconds(startup) or 0.0,
            evaluation_s=_seconds(evaluation) or 0.0,
            checkpoint_s=_seconds(checkpoint) or 0.0,
            checkpoint_every_s=_seconds(checkpoint_every),
            usd_per_h=price,
        ),
        catalog,
    )
    answer(lambda: report.document(found), lambda: report.draw(found), as_json=as_json)


def _table(path: Path, *, as_json: bool) -> None:
    from stallwise.record.table_forecast import forecast_table
    from stallwise.report import predict_table

    found = forecast_table(path)
    answer(lambda: predict_table.rows(found), lambda: predict_table.draw(found), as_json=as_json)


def _asked(
    catalog: "Catalog",
    instance: str | None,
    count: int | None,
    nodes: int | None,
    network: str | None,
    link: str | None,
) -> "Asked":
    from stallwise.record.setup import Asked
    from stallwise.units import parse_rate

    listed = None if instance is None else catalog.instance(instance)
    # Without a word on nodes, all GPUs are on one machine.
    return Asked(
        gpus=1 if count is None and nodes is None and listed is None else count,
        nodes=1 if nodes is None and listed is None else nodes,
        network_bytes_per_s=None if network is None else parse_rate(network),
        link_bytes_per_s=None if link is None else parse_rate(link),
        instance=listed,
    )


def _seconds(text: str | None) -> float | None:
    from stallwise.units import parse_seconds

    return None if text is None else parse_seconds(text)
