"""`stallwise instances`: listed instance types under networks or a measured job."""

from pathlib import Path
from typing import Annotated

import typer

from stallwise.cli import options
from stallwise.cli.output import Json, answer, save_page


def instances(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="The folder of a run, instead of networks by name.")
    ] = None,
    *,
    networks: Annotated[
        str, typer.Option("--networks", metavar="NAMES", help="Image networks by name: resnet18,resnet50,vgg11.")
    ] = "resnet18,resnet50,vgg11",
    family: Annotated[
        str | None,
        typer.Option("--family", metavar="NAMES", help="Only instance types whose names begin like this: p3,g5,a2-."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", metavar="MODEL", help="Only this GPU or family: H100.", autocompletion=options.complete_gpu
        ),
    ] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="aws, gcp, azure, lambda or your own.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Only offers of this region.")] = None,
    batch: Annotated[
        float | None, typer.Option("--batch", metavar="N", help="Samples per GPU of networks by name. Default: 64.")
    ] = None,
    epoch_samples: Annotated[
        float | None, typer.Option("--epoch-samples", metavar="N", help="Samples of an epoch. Default: ImageNet's.")
    ] = None,
    dataset_size: options.DatasetSize = None,
    include_retired: Annotated[
        bool, typer.Option("--include-retired", help="Also instance types that are no longer sold.")
    ] = False,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Study listed instance types: stalls, speed, cost of an epoch, and what rules of thumb would have cost.

    Nothing is measured or rented. Compute of networks by name is predicted like rows of a table, that of a run like
    another set-up of it; links, cores, memory and storage are those of the catalog.
    """
    from stallwise.analysis import open_run
    from stallwise.cloud.instances import IMAGENET_BYTES, IMAGENET_SAMPLES, InstanceStudyRequest, study_instances
    from stallwise.hardware import load_catalog
    from stallwise.report.views import instances as report
    from stallwise.units import parse_bytes

    analysis = None if run is None else open_run(run)
    size = parse_bytes(dataset_size) if dataset_size else (IMAGENET_BYTES if run is None else None)
    request = InstanceStudyRequest(
        networks=_names(networks),
        batch=64.0 if batch is None else batch,
        families=_names(family or ""),
        gpu=gpu,
        cloud=cloud,
        region=region,
        retired=include_retired,
        samples=IMAGENET_SAMPLES if epoch_samples is None else epoch_samples,
        dataset_bytes=size,
    )
    study = study_instances(load_catalog(), request, [] if analysis is None else [analysis.model()])
    if html is not None:
        save_page(report.page(study), html)
    answer(lambda: study, lambda: report.draw(study), as_json=as_json)


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
