"""`stallwise whatif` and `predict`: a measured job on another set-up, or a table of set-ups."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stallwise.cli import layouts, options
from stallwise.cli.output import Json, answer, save_page
from stallwise.errors import InputError


def predict(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The folder of a run.")] = None,
    *,
    gpu: options.GpuName = None,
    gpus: options.Gpus = None,
    nodes: options.Nodes = None,
    gpus_per_node: options.PerNode = None,
    instance: options.InstanceName = None,
    network: options.Network = None,
    link: options.Link = None,
    batch: options.Batch = None,
    global_batch: options.GlobalBatch = None,
    workers: options.WorkersText = None,
    cores: options.Cores = None,
    dataset_size: options.DatasetSize = None,
    optimizer: options.OptimizerName = options.Optimizer.ADAM,
    epochs: options.Epochs = None,
    epoch_samples: options.EpochSamples = None,
    samples: options.JobSamples = None,
    startup: Annotated[
        str | None,
        typer.Option("--startup", metavar="TIME", help="From the order of the machines to the first step: 3min."),
    ] = None,
    evaluation: options.Evaluation = None,
    checkpoint_time: options.CheckpointTime = None,
    checkpoint_every: options.CheckpointEvery = None,
    price: Annotated[
        str | None, typer.Option("--price", metavar="USD", help="Dollars per hour of one machine: 32.77.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--table", help="A CSV file of set-ups instead of a run.")] = None,
    as_json: Json = False,
) -> None:
    """Predict a measured job on another GPU: step, memory, epoch and job, with 80 % intervals; or every row of a table.

    The batch and the loader workers of each GPU stay as measured unless given. Exit code 0: predicted. 2: no
    prediction is possible; stderr names the missing option, for a table with the row number.
    """
    if table is not None:
        if run is not None or gpu is not None:
            raise InputError("A table names its own GPUs; give --table alone, or a run with --gpu.")
        _predict_table(table, as_json=as_json)
        return
    if run is None:
        raise InputError("Give the folder of a run and --gpu, or --table FILE.csv.")
    if gpu is None and instance is None:
        raise InputError("Say which GPU with --gpu (H100, RTX4090 …), or with --instance.")
    values = dict(locals())
    from stallwise.analysis.analysis import open_run
    from stallwise.report.views import predict as report

    job = open_run(run)
    prediction = job.on(options.target_of(job, values))
    whole = None
    if samples is not None or epochs is not None:
        from stallwise.cloud.request import job_length
        from stallwise.model.step.epoch import TrainingPlan

        of_epoch, count = job_length(epochs, epoch_samples, samples, job.epoch_samples)
        whole = prediction.whole(
            TrainingPlan(
                samples=of_epoch,
                batch=prediction.setup.global_batch or job.model().global_batch,
                epochs=count,
                cold_first=samples is None or epoch_samples is not None,
                startup_s=_seconds(startup) or 0.0,
                evaluation_s=_seconds(evaluation) or 0.0,
                checkpoint_s=_seconds(checkpoint_time) or 0.0,
                checkpoint_every_s=_seconds(checkpoint_every),
            )
        )
    usd_per_h = options.usd(price)
    usd = None if whole is None or usd_per_h is None else whole.usd(usd_per_h, prediction.setup.nodes or 1)
    answer(
        lambda: report.document(prediction, whole, usd), lambda: report.draw(prediction, whole, usd), as_json=as_json
    )


def _predict_table(path: Path, *, as_json: bool) -> None:
    from stallwise.analysis.table_forecast import forecast_table
    from stallwise.report.views import predict as predict_table

    forecast = forecast_table(path)
    answer(lambda: predict_table.table_rows(forecast), lambda: predict_table.draw_table(forecast), as_json=as_json)


def _seconds(text: str | None) -> float | None:
    from stallwise.units import parse_seconds

    return None if text is None else parse_seconds(text)


if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.analysis.target import Target
    from stallwise.buckets.search import BestBuckets
    from stallwise.model.exchange.overlap import Overlap
    from stallwise.model.step.job import MeasuredJob
    from stallwise.report.view import View


class OverlapScheme(enum.StrEnum):
    """How gradients are exchanged while a step computes."""

    NONE = "none"
    FUSED = "fused"
    WFBP = "wfbp"
    DDP = "ddp"
    MG_WFBP = "mg-wfbp"
    OPTIMAL = "optimal"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    SHARD_GRAD_OP = "shard-grad-op"
    ZERO3 = "zero3"
    DEAR = "dear"
    HOROVOD = "horovod"
    P3 = "p3"
    BYTESCHEDULER = "bytescheduler"
    HYBRID = "hybrid"
    LOCAL_SGD = "local-sgd"
    P3_IDEAL = "p3-ideal"


class FrameworkName(enum.StrEnum):
    """Frameworks whose exchange and copy of 2018 are modelled."""

    CAFFE_MPI = "caffe-mpi"
    CNTK = "cntk"
    MXNET = "mxnet"
    TENSORFLOW = "tensorflow"


_HALVED = ("fp16", "bf16")
_DENSITY = 0.001


def whatif(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a run, another tool's layer file, or a transformer's config.json."
        ),
    ],
    *,
    gpu: options.GpuName = None,
    gpus: options.Gpus = None,
    nodes: options.Nodes = None,
    gpus_per_node: options.PerNode = None,
    instance: options.InstanceName = None,
    network: options.Network = None,
    link: options.Link = None,
    latency: options.Latency = None,
    machine: options.MachineFile = None,
    here_machine: options.HereMachine = None,
    batch: options.Batch = None,
    global_batch: options.GlobalBatch = None,
    workers: options.WorkersText = None,
    cores: options.Cores = None,
    cached: options.Cached = None,
    memory: options.Memory = None,
    storage: options.Storage = None,
    compute: options.Compute = None,
    dataset_size: options.DatasetSize = None,
    optimizer: options.OptimizerName = options.Optimizer.ADAM,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="SIZE", help="Size of DDP's buckets, FSDP's units, Horovod's fusion: 50MiB."),
    ] = None,
    best_buckets: Annotated[
        Path | None,
        typer.Option("--best-buckets", metavar="FILE", help="Find the buckets with the shortest step; write the plan."),
    ] = None,
    overlap: Annotated[
        OverlapScheme | None,
        typer.Option(
            "--overlap",
            metavar="SCHEME",
            case_sensitive=False,
            help=f"How gradients are exchanged: {', '.join(OverlapScheme)}.",
        ),
    ] = None,
    cycle: Annotated[str | None, typer.Option("--cycle", metavar="TIME", help="Horovod's cycle time: 5ms.")] = None,
    framework: Annotated[
        FrameworkName | None,
        typer.Option(
            "--framework", case_sensitive=False, help="Exchange and copy batches as this framework did in 2018."
        ),
    ] = None,
    compress: Annotated[
        str | None,
        typer.Option(
            "--compress", metavar="HOW", help="Compression of exchanged gradients: fp16, bf16, topk:0.1%, gtopk:0.1%."
        ),
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option("--accumulate", help="Forward and backward passes per update; for local SGD, per average."),
    ] = None,
    curve: Annotated[
        bool | None,
        typer.Option(
            "--curve/--no-curve", help="1 to 1,024 GPUs. Default: as far as links are known.", show_default=False
        ),
    ] = None,
    tp: layouts.Tensor = None,
    pp: layouts.Pipeline = None,
    ep: layouts.Expert = None,
    cp: layouts.Context = None,
    zero: layouts.Zero = None,
    micro_batch: layouts.MicroBatch = None,
    sequence: layouts.Sequence = None,
    activation_checkpointing: layouts.ActivationCheckpointing = None,
    best_layout: layouts.BestLayout = False,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Predict the step of a measured job on another set-up: GPU, machines, links, exchange, batch, loader, storage.

    Each option can be given alone; what is not given stays as measured, per GPU. Exit code 0: predicted. 2: no
    prediction is possible; stderr names the missing option.
    """
    values = dict(locals())
    if layouts.describes_transformer(run):
        layouts.answer_layout(run, values)
        return
    if run.exists():
        layouts.refuse_layout(values)
    from stallwise.analysis.analysis import open_run
    from stallwise.report.views.whatif import document, draw

    job = open_run(run)
    exchange = _overlap(job.model().job, framework, overlap, bucket, cycle, compress, accumulate)
    target = options.target_of(job, values | {"overlap": exchange, "copy": _copy(framework)})
    prediction = job.on(target, curve=curve)
    best = None if best_buckets is None else _best(job, target, best_buckets)
    answer(
        lambda: document(prediction) if best is None else document(prediction) | {"best_buckets": _best_document(best)},
        lambda: draw(prediction) if best is None else _with_best(draw(prediction), best),
        as_json=as_json,
    )
    if best is not None:
        typer.echo(f"\nThe plan is {best_buckets}; stallwise.buckets.planned_ddp carries it out", err=True)
    if html is not None:
        from stallwise.report.views.whatif import page

        save_page(page(prediction), html)


def _best(job: "Analysis", target: "Target", path: Path) -> "BestBuckets":
    from stallwise.buckets.plan import write_plan
    from stallwise.buckets.search import best_for

    if job.model().job.step is None:
        raise InputError(f"{job.source} is a layer file: its layers are not the parameters of a module. Give a run.")
    best = best_for(job, target)
    write_plan(best.plan, path)
    return best


def _best_document(best: "BestBuckets") -> dict[str, object]:
    from stallwise.report.views.tune import bucket_plan_document

    return bucket_plan_document(best)


def _with_best(drawn: "View", best: "BestBuckets") -> "View":
    from dataclasses import replace

    from stallwise.report.view import section
    from stallwise.report.views.tune import draw_bucket_plan

    plan = section("Best buckets", "buckets", *draw_bucket_plan(best).parts())
    return replace(drawn, sections=(*drawn.sections, plan))


def _copy(framework_name: str | None) -> Literal["inline", "engine"]:
    from stallwise.model.exchange.overlap import framework

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
    job: "MeasuredJob",
    framework_name: str | None,
    scheme: str | None,
    bucket: str | None,
    cycle: str | None,
    compress: str | None,
    accumulate: int | None,
) -> "Overlap | None":
    """The job's exchange changed by the options; None without any."""
    from dataclasses import replace

    from stallwise.model.exchange.overlap import framework

    if all(word is None for word in (framework_name, scheme, bucket, cycle, compress, accumulate)):
        return None
    exchange = job.overlap
    if framework_name is not None:
        exchange = replace(framework(framework_name).overlap, accumulate=exchange.accumulate)
    if scheme is not None:
        exchange = replace(exchange, scheme=scheme)  # type: ignore[arg-type]  # checked where it is made
    if bucket is not None:
        exchange = _sized(exchange, bucket)
    if cycle is not None:
        exchange = _cycled(exchange, cycle)
    if accumulate is not None:
        exchange = replace(exchange, accumulate=accumulate)
    return exchange if compress is None else _compressed(job, exchange, compress)


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


def _compressed(job: "MeasuredJob", overlap: "Overlap", compress: str) -> "Overlap":
    from dataclasses import replace

    from stallwise.model.exchange.collectives import Sparse
    from stallwise.model.exchange.overlap import FP16
    from stallwise.units import parse_share

    kind, _, density = compress.partition(":")
    if kind in ("topk", "gtopk"):
        part = parse_share(density) if density else _DENSITY
        return replace(overlap, sparse=Sparse(kind=kind, density=part))  # type: ignore[arg-type]  # looked at above
    _check_compress(job, compress)
    return replace(overlap, compression=FP16)


def _check_compress(job: "MeasuredJob", compress: str) -> None:
    if compress not in _HALVED:
        raise InputError(f"--compress takes fp16, bf16, topk:0.1% or gtopk:0.1%, not {compress!r}.")
    if job.element_bytes is not None and job.element_bytes <= 2:
        raise InputError(
            f"The gradients of {job.name} have {job.element_bytes:g} bytes each already; {compress} saves none."
        )
