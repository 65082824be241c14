"""`stallwise whatif RUN`: the step under another set-up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stallwise.cli.output import Json, answer
from stallwise.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stallwise.buckets.best import Best
    from stallwise.model.overlap import Overlap
    from stallwise.model.whatif import Change, Job
    from stallwise.record.against import Against
    from stallwise.record.setup import Asked

_HALVED = ("fp16", "bf16")
_DENSITY = 0.001


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
    here_machine: Annotated[
        Path | None,
        typer.Option(
            "--here-machine",
            help="Record of the run's own machine: with --machine also compute, preparing, disk as measured on both.",
        ),
    ] = None,
    bucket: Annotated[
        str | None, typer.Option("--bucket", help="DDP's buckets, FSDP's units, Horovod's fusion, P3's slices: 50MiB.")
    ] = None,
    best_buckets: Annotated[
        Path | None,
        typer.Option("--best-buckets", metavar="FILE", help="Find the buckets with the shortest step; write the plan."),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option("--overlap", help="How gradients are exchanged: ddp, none, wfbp, zero3, hybrid, horovod, p3 …"),
    ] = None,
    cycle: Annotated[str | None, typer.Option("--cycle", help="Horovod's cycle time: 5ms.")] = None,
    framework: Annotated[
        str | None,
        typer.Option("--framework", help="Exchange and copy as caffe-mpi, cntk, mxnet or tensorflow did in 2018."),
    ] = None,
    compress: Annotated[
        str | None, typer.Option("--compress", help="Exchange gradients as fp16, bf16, topk:0.1% or gtopk:0.1%.")
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option("--accumulate", help="Forward and backward passes per update; local SGD: per average.")
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
    from dataclasses import replace

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
        overlap=_overlap(job, framework, overlap, bucket, cycle, compress, accumulate),
        copy=_copy(framework),
        workers=workers,
        cached=None if cache is None else parse_share(cache),
        storage_speed=1.0 if storage is None else parse_factor(storage),
        cores_per_node=_cores(asked),
    )
    if here_machine is not None:
        against = _against(run, asked, here_machine)
        job, change = _as_measured(job, change, against, compute=compute, storage=storage)
        said = f"{asked.machine_name} against {here_machine.name}: {against.said or 'nothing that both measured'}."
        job = replace(job, assumptions=(*job.assumptions, said))
    found = outlook_of(job, change, asked, curve=curve)
    from stallwise.report.whatif import draw
    from stallwise.report.whatif_json import document

    best = None if best_buckets is None else _best(job, change, asked, best_buckets)
    answer(
        lambda: document(found) if best is None else document(found) | {"best_buckets": _best_document(best)},
        lambda: draw(found) if best is None else _with_best(draw(found), best),
        as_json=as_json,
    )
    if best is not None:
        typer.echo(f"\nThe plan is {best_buckets}; stallwise.buckets.planned_ddp carries it out", err=True)
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


def _cores(asked: "Asked") -> int | None:
    """Of a node: as in the machine record, else as listed."""
    host = next(iter(asked.machine.hosts), None) if asked.machine else None
    if host is not None and host.cores:
        return host.cores
    return asked.instance.vcpus if asked.instance else None


def _against(run: Path, asked: "Asked", here: Path) -> "Against":
    """The machine to go to held against the run's own, in the job's precision."""
    from stallwise.hardware.machine import read_machine
    from stallwise.record.against import against
    from stallwise.run.manifest import read_manifest

    if asked.machine is None:
        raise InputError("--here-machine is held against the machine to go to: give its record with --machine.")
    model = read_manifest(run).model if run.is_dir() else None
    precision = None if model is None else model.precision or "fp32"
    return against(asked.machine, read_machine(here), precision)


def _as_measured(
    job: "Job", change: "Change", known: "Against", *, compute: str | None, storage: str | None
) -> "tuple[Job, Change]":
    """Compute, preparing and disk as two machine records have them; what the user said goes first.

    Networks differ in what a machine does to them: by so much compute may be off either way.
    """
    from dataclasses import replace

    if compute is None and known.compute:
        low, high = job.compute_factors or (1.0, 1.0)
        job = replace(job, compute_factors=(low * known.compute_low, high * known.compute_high))
        change = replace(change, compute_speed=1 / known.compute)
    if job.work is None:
        return job, change
    if known.decode:
        change = replace(change, prepare_speed=1 / known.decode)
    if storage is None and known.disk:
        change = replace(change, storage_speed=1 / known.disk)
    return job, change


def _best(job: "Job", change: "Change", asked: "Asked", path: Path) -> "Best":
    from stallwise.buckets.best import best_for
    from stallwise.buckets.plan import write_plan

    if job.step is None:
        raise InputError(
            f"{job.trace.source} is a layer file: its layers are not the parameters of a module. "
            "--best-buckets takes a run."
        )
    best = best_for(job, change, asked)
    write_plan(best.plan, path)
    return best


def _best_document(best: "Best") -> dict[str, object]:
    from stallwise.report.buckets import document

    return document(best)


def _with_best(drawn: "RenderableType", best: "Best") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from stallwise.report.buckets import draw

    return Group(drawn, Text(), draw(best))


def _copy(framework_name: str | None) -> Literal["inline", "engine"]:
    from stallwise.model.frameworks import framework

    return "inline" if framework_name is None else framework(framework_name).copy


_SIZED = {
    **dict.fromkeys(("zero1", "zero2", "shard-grad-op", "zero3", "dear", "hybrid", "local-sgd"), ("bucket_bytes",)),
    # torch gives up its small first bucket once a size is set.
    "ddp": ("bucket_bytes", "first_bucket_bytes"),
    "horovod": ("fusion_bytes",),
    "p3": ("slice_bytes",),
    "bytescheduler": ("slice_bytes",),
}


def _overlap(
    job: "Job",
    framework_name: str | None,
    scheme: str | None,
    bucket: str | None,
    cycle: str | None,
    compress: str | None,
    accumulate: int | None,
) -> "Overlap | None":
    """The job's way of exchanging with what was said; None where nothing was."""
    from dataclasses import replace

    from stallwise.model.frameworks import framework

    if all(word is None for word in (framework_name, scheme, bucket, cycle, compress, accumulate)):
        return None
    found = job.overlap
    if framework_name is not None:
        found = replace(framework(framework_name).overlap, accumulate=found.accumulate)
    if scheme is not None:
        found = replace(found, scheme=scheme)  # type: ignore[arg-type]  # checked where it is made
    if bucket is not None:
        found = _sized(found, bucket)
    if cycle is not None:
        found = _cycled(found, cycle)
    if accumulate is not None:
        found = replace(found, accumulate=accumulate)
    return found if compress is None else _compressed(job, found, compress)


def _sized(overlap: "Overlap", bucket: str) -> "Overlap":
    from dataclasses import replace

    from stallwise.units import parse_bytes

    if overlap.scheme not in _SIZED:
        raise InputError(f"--bucket means nothing with --overlap {overlap.scheme}, which has no buckets.")
    size = int(parse_bytes(bucket))
    if size < 1:
        raise InputError(f"--bucket takes a size above 0, not {bucket!r}.")
    sizes: dict[str, Any] = dict.fromkeys(_SIZED[overlap.scheme], size)
    return replace(overlap, **sizes)


def _cycled(overlap: "Overlap", cycle: str) -> "Overlap":
    from dataclasses import replace

    from stallwise.units import parse_seconds

    if overlap.scheme != "horovod":
        raise InputError(f"--cycle is Horovod's; with --overlap {overlap.scheme} it means nothing.")
    return replace(overlap, cycle_s=parse_seconds(cycle))


def _compressed(job: "Job", overlap: "Overlap", compress: str) -> "Overlap":
    from dataclasses import replace

    from stallwise.model.overlap import FP16
    from stallwise.model.sparse import Sparse
    from stallwise.units import parse_share

    kind, _, density = compress.partition(":")
    if kind in ("topk", "gtopk"):
        part = parse_share(density) if density else _DENSITY
        return replace(overlap, sparse=Sparse(kind=kind, density=part))  # type: ignore[arg-type]  # looked at above
    _check_compress(job, compress)
    return replace(overlap, compression=FP16)


def _check_compress(job: "Job", compress: str) -> None:
    if compress not in _HALVED:
        raise InputError(f"--compress takes fp16, bf16, topk:0.1% or gtopk:0.1%, not {compress!r}.")
    if job.element_bytes is not None and job.element_bytes <= 2:
        raise InputError(
            f"The gradients of {job.name} have {job.element_bytes:g} bytes each already; {compress} saves none."
        )
