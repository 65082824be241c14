"""`stallwise whatif RUN`: the step under another set-up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.model.overlap import Overlap
    from stallwise.model.whatif import Job
    from stallwise.record.setup import Asked

_HALVED = ("fp16", "bf16")


def whatif(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or another tool's layer file.")],
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs in all.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes they are spread over.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="GPUs of one node.")] = None,
    network: Annotated[str | None, typer.Option("--network", help="Rate between nodes: 25gbit.")] = None,
    latency: Annotated[str | None, typer.Option("--latency", help="Start-up time of a message: 20us.")] = None,
    link: Annotated[str | None, typer.Option("--link", help="Rate between the GPUs of a node: 300GB/s.")] = None,
    instance: Annotated[
        str | None, typer.Option("--instance", help="Nodes of this type; GPUs and links as listed in the catalog.")
    ] = None,
    machine: Annotated[
        Path | None, typer.Option("--machine", help="Links as measured by stallwise probe; goes before listed ones.")
    ] = None,
    bucket: Annotated[str | None, typer.Option("--bucket", help="DDP's buckets: 50MiB.")] = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", help="How gradients are exchanged: ddp, none, wfbp, zero3 …")
    ] = None,
    compress: Annotated[str | None, typer.Option("--compress", help="Exchange gradients as fp16 or bf16.")] = None,
    accumulate: Annotated[
        int | None, typer.Option("--accumulate", help="Forward and backward passes per update.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", help="Batch of each GPU, as a factor: 2x.")] = None,
    compute: Annotated[str | None, typer.Option("--compute", help="Speed of compute, as a factor: 2x.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Loader workers of each GPU.")] = None,
    cache: Annotated[str | None, typer.Option("--cache", help="Part of the data found in memory: 80%.")] = None,
    storage: Annotated[str | None, typer.Option("--storage", help="Speed of storage, as a factor: 2x.")] = None,
    curve: Annotated[
        bool | None,
        typer.Option(
            "--curve/--no-curve", help="1 to 1,024 GPUs. Default: as far as links are known.", show_default=False
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page here.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the step of a measured job with other GPUs, links, buckets, overlap, batch, compute or data path.

    Each option can be given alone; what is not said stays as measured. Exit code 0: predicted. 2: it cannot be, and one
    sentence says what to give.
    """
    from stallwise.model.whatif import Change
    from stallwise.record.outlook import outlook_of
    from stallwise.units import parse_factor, parse_share

    job = _job(run)
    asked = _asked(gpus, nodes, gpus_per_node, network, link, latency, instance, machine)
    if workers is not None and workers < 0:
        raise InputError(f"--workers takes a whole number from 0, not {workers}.")
    change = Change(
        compute_speed=1.0 if compute is None else parse_factor(compute),
        batch=1.0 if batch is None else parse_factor(batch),
        overlap=_overlap(job, overlap, bucket, compress, accumulate),
        workers=workers,
        cached=None if cache is None else parse_share(cache),
        storage_speed=1.0 if storage is None else parse_factor(storage),
        cores_per_node=asked.instance.vcpus if asked.instance else None,
    )
    found = outlook_of(job, change, asked, curve=curve)
    from stallwise.report.whatif import draw
    from stallwise.report.whatif_json import document

    answer(lambda: document(found), lambda: draw(found), as_json=as_json)
    if html is not None:
        from stallwise.report.whatif_html import write_page

        typer.echo(f"\nThe page is {write_page(found, html)}", err=True)


def _job(path: Path) -> "Job":
    from stallwise.record.job import job_of, job_of_layers

    if path.is_file():
        from stallwise.run.readers import read_layers

        return job_of_layers(read_layers(path))
    from stallwise.run.reader import Run

    return job_of(Run.open(path))


def _asked(
    gpus: int | None,
    nodes: int | None,
    gpus_per_node: int | None,
    network: str | None,
    link: str | None,
    latency: str | None,
    instance: str | None,
    machine: Path | None,
) -> "Asked":
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.machine import read_machine
    from stallwise.record.setup import Asked
    from stallwise.units import parse_rate, parse_seconds

    return Asked(
        gpus=gpus,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        network_bytes_per_s=None if network is None else parse_rate(network),
        link_bytes_per_s=None if link is None else parse_rate(link),
        latency_s=None if latency is None else parse_seconds(latency),
        instance=None if instance is None else load_catalog().instance(instance),
        machine=None if machine is None else read_machine(machine),
        machine_name="" if machine is None else machine.name,
    )


def _overlap(
    job: "Job", scheme: str | None, bucket: str | None, compress: str | None, accumulate: int | None
) -> "Overlap | None":
    """The job's way of exchanging with what was said; None where nothing was."""
    from dataclasses import replace

    from stallwise.model.overlap import FP16
    from stallwise.units import parse_bytes

    if scheme is None and bucket is None and compress is None and accumulate is None:
        return None
    found = job.overlap
    if scheme is not None:
        found = replace(found, scheme=scheme)  # type: ignore[arg-type]  # checked where it is made
    if bucket is not None:
        if found.scheme not in ("ddp", "zero1", "zero2", "shard-grad-op", "zero3", "dear"):
            raise InputError(f"--bucket means nothing with --overlap {found.scheme}, which has no buckets.")
        # torch gives up its small first bucket once a size is set.
        size = int(parse_bytes(bucket))
        if size < 1:
            raise InputError(f"--bucket takes a size above 0, not {bucket!r}.")
        found = replace(found, bucket_bytes=size, first_bucket_bytes=size)
    if compress is not None:
        _check_compress(job, compress)
        found = replace(found, compression=FP16)
    return found if accumulate is None else replace(found, accumulate=accumulate)


def _check_compress(job: "Job", compress: str) -> None:
    if compress not in _HALVED:
        raise InputError(f"--compress takes fp16 or bf16, not {compress!r}.")
    if job.element_bytes is not None and job.element_bytes <= 2:
        raise InputError(
            f"The gradients of {job.name} have {job.element_bytes:g} bytes each already; {compress} saves none."
        )
