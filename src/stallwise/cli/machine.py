"""`stallwise doctor`, `probe`, `characterize` and `study`: what a machine has and what it can do."""

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options
from stallwise.cli.options import (
    MasterAddr,
    MasterPort,
    Nnodes,
    NodeRank,
    NprocPerNode,
    RdzvBackend,
    RdzvEndpoint,
    RdzvId,
    seconds,
)
from stallwise.cli.output import Json, PeriodicReporter, answer, interrupted, save_page
from stallwise.errors import InputError, UnknownNameError
from stallwise.units import GIB, MIB, parse_bytes


def doctor(as_json: Json = False) -> None:
    """Show what this machine has and what is missing for which feature."""
    from pathlib import Path

    from stallwise.machine.doctor import diagnose
    from stallwise.report.views.machine import draw_diagnosis

    diagnosis = diagnose(Path.cwd())
    answer(lambda: diagnosis, lambda: draw_diagnosis(diagnosis), as_json=as_json)


if TYPE_CHECKING:
    from stallwise.machine.links import ProbeProgress


class Backend(enum.StrEnum):
    """torch.distributed's back ends that can be probed."""

    GLOO = "gloo"
    NCCL = "nccl"


def probe(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the machine record.")] = Path("machine.json"),
    backend: Annotated[
        Backend | None, typer.Option("--backend", help="Default: nccl where every process has a GPU, else gloo.")
    ] = None,
    max_time: Annotated[str, typer.Option("--max-time", metavar="TIME", help="Time to measure at most.")] = "45s",
    wait: Annotated[
        str, typer.Option("--wait", metavar="TIME", help="Time to wait for the ranks of the other nodes.")
    ] = "2min",
    max_message: Annotated[
        str, typer.Option("--max-message", metavar="SIZE", help="Largest message: 64MiB.")
    ] = "64MiB",
    nproc_per_node: NprocPerNode = None,
    nnodes: Nnodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    rdzv_backend: RdzvBackend = None,
    rdzv_endpoint: RdzvEndpoint = None,
    rdzv_id: RdzvId = None,
    as_json: Json = False,
) -> None:
    """Measure how long an all-reduce takes between your ranks, and save it as a machine record.

    Messages from 4 KiB up, inside nodes and between them. Give the options you give torchrun, on every node; node 0
    shows the result. Exit code 0: measured. 2: bad input. 3: it could not be measured. 130: interrupted; nothing is
    written.
    """
    from stallwise.machine.links import LinkProbe, run_probe
    from stallwise.record.launch import TorchrunOptions

    max_time_s = seconds(max_time, "--max-time", least_s=1.0)
    wait_s = seconds(wait, "--wait", least_s=1.0)
    max_bytes = int(parse_bytes(max_message))
    if not MIB <= max_bytes <= 16 * GIB:
        raise InputError(f"--max-message takes a size from 1MiB to 16GiB, not {max_message!r}.")
    torchrun_options = TorchrunOptions(
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        rdzv_backend=rdzv_backend,
        rdzv_endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
    )
    torchrun = torchrun_options.arguments()
    if torchrun_options.world().world_size < 2:
        raise InputError("An all-reduce takes at least two ranks. Give --nproc-per-node 2 or more, or --nnodes.")
    link_probe = LinkProbe(
        torchrun=torchrun,
        node_rank=node_rank,
        out=out,
        backend=None if backend is None else backend.value,
        max_s=max_time_s,
        max_bytes=max_bytes,
        join_s=wait_s,
    )
    typer.echo(f"stallwise: waiting for {torchrun_options.world().world_size} ranks", err=True)
    try:
        record = run_probe(link_probe, PeriodicReporter(_probe_sentence, lambda progress: progress.doing))
    except KeyboardInterrupt:
        raise interrupted("stallwise: The probe was interrupted; nothing was written.") from None
    if record is None:
        typer.echo("stallwise: This node has done its part; node 0 shows the result.", err=True)
        return
    from stallwise.report.views.machine import draw_machine

    answer(lambda: record, lambda: draw_machine(record), as_json=as_json)
    typer.echo(f"\nThe machine record is {out}", err=True)


if TYPE_CHECKING:
    from stallwise.hardware.machine import MachineRecord


def characterize(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the machine record.")] = Path("machine.json"),
    disk: Annotated[Path, typer.Option("--disk", help="A folder on the disk to be measured.")] = Path(),
    disk_size: Annotated[
        str, typer.Option("--disk-size", metavar="SIZE", help="Size of the file that is read, from 64MiB.")
    ] = "1GiB",
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Also measure a bucket: s3://bucket/prefix.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", metavar="URL", help="Address of the store, where it is not the cloud's own."),
    ] = None,
    model_time: Annotated[
        str, typer.Option("--model-time", metavar="TIME", help="Time for each standard model, 0.5s to 10min.")
    ] = "8s",
    links_time: Annotated[
        str, typer.Option("--links-time", metavar="TIME", help="Time for the all-reduce, 0.5s to 10min.")
    ] = "30s",
    models: Annotated[
        str | None,
        typer.Option(
            "--models", metavar="NAMES", help="Only these standard models: resnet18,resnet50,vgg11,bert-base."
        ),
    ] = None,
    skip: Annotated[
        str | None, typer.Option("--skip", metavar="PARTS", help="Parts to leave out: device,links,disk,decode.")
    ] = None,
    compare: Annotated[
        list[Path] | None, typer.Option("--compare", help="Measure nothing; put these records side by side.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option("--price", help="With --compare: NAME=USD per hour, or NAME=INSTANCE.")
    ] = None,
    epoch_samples: Annotated[
        float, typer.Option("--epoch-samples", metavar="N", help="With --compare: samples of one epoch.")
    ] = 1_281_167,
    as_json: Json = False,
) -> None:
    """Measure what decides training on this machine and save it as a machine record; or compare records.

    Host to GPU with all GPUs at once, GPU to GPU, all-reduce over sizes, disk and bucket, decoding per core, and how
    fast a few standard models train. What the machine lacks is left out and said. Exit code 0: measured. 2: bad
    input. 3: it could not be measured. 130: interrupted; nothing is written.
    """
    if compare:
        _compare_records(compare, price or [], epoch_samples, as_json=as_json)
        return
    from stallwise.machine.characterize import PARTS, CharacterizeRequest, characterize_machine
    from stallwise.report.views.machine import draw_characterized

    model_time_s = seconds(model_time, "--model-time", least_s=0.5, most_s=600.0)
    links_time_s = seconds(links_time, "--links-time", least_s=0.5, most_s=600.0)
    request = CharacterizeRequest(
        out=out,
        disk=disk,
        network_s=model_time_s,
        links_s=links_time_s,
        networks=_known_names("model", models, _network_names()),
        skip=frozenset(_known_names("part", skip, PARTS)),
        disk_bytes=int(parse_bytes(disk_size)),
        decode_s=min(3.0, model_time_s),
    )
    try:
        record = characterize_machine(request, lambda words: typer.echo(f"stallwise: {words}", err=True))
        if store is not None:
            record = _with_store(record, store, endpoint, out)
    except KeyboardInterrupt:
        raise interrupted("stallwise: Interrupted; nothing was written.") from None
    answer(lambda: record, lambda: draw_characterized(record), as_json=as_json)
    typer.echo(f"\nThe machine record is {out}", err=True)


def _network_names() -> tuple[str, ...]:
    return ("resnet18", "resnet50", "vgg11", "bert-base")


def _known_names(kind: str, text: str | None, choices: Sequence[str]) -> tuple[str, ...]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word not in choices:
            raise UnknownNameError(f"{kind} ({', '.join(choices)})", word, choices)
    return tuple(words)


def _with_store(record: "MachineRecord", url: str, endpoint: str | None, out: Path) -> "MachineRecord":
    """The record with what a bucket gives to this machine."""
    import msgspec

    from stallwise.cli.data import bucket_of
    from stallwise.data.tools.bench import StoreBenchmark
    from stallwise.hardware.machine import StorageRecord, encode_machine
    from stallwise.run.atomic import write_atomically

    typer.echo("stallwise: reading the bucket", err=True)
    bench = StoreBenchmark(bucket_of(url, endpoint, None, 30.0), max_s=20.0).run()
    read = StorageRecord(
        kind="store",
        bytes_per_s=bench.link_bytes_per_s,
        readers=bench.best.concurrency,
        object_bytes=int(bench.object_bytes),
        note=bench.bound,
    )
    more = msgspec.structs.replace(record, storage=(*record.storage, read))
    write_atomically(out, encode_machine(more))
    return more


def _compare_records(paths: Sequence[Path], prices: Sequence[str], samples: float, *, as_json: bool) -> None:
    from stallwise.cloud.study import machine_names, study
    from stallwise.hardware.machine import read_machine
    from stallwise.report.views.machine import draw_study

    names = machine_names([str(path) for path in paths])
    records = {name: read_machine(path) for name, path in zip(names, paths, strict=True)}
    rows = study(records, samples=samples, usd_per_h=_record_prices(prices, names))
    if not rows:
        raise InputError("None of these records holds a standard network. Measure with stallwise characterize.")
    answer(lambda: {"epoch_samples": samples, "rows": rows}, lambda: draw_study(rows, samples), as_json=as_json)


def _record_prices(texts: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.instance import by_price

    prices = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--price takes NAME=USD or NAME=INSTANCE, like h200=3.79, not {text!r}.")
        if name not in names:
            raise UnknownNameError("record", name, names)
        try:
            prices[name] = float(value)
        except ValueError:
            catalog = load_catalog()
            offers = catalog.find(catalog.query(instance=value, market="on-demand", retired=True))
            if not offers:
                raise InputError(f"The catalog lists no on-demand price of {value}.") from None
            prices[name] = min(offers, key=by_price).usd_per_h
    return prices


if TYPE_CHECKING:
    from stallwise.machine import study as studies


def study(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the study; one that was stopped goes on.")] = Path(
        "study"
    ),
    models: Annotated[
        str | None,
        typer.Option(
            "--models", metavar="NAMES", help="Models to measure: resnet18,vgg16. Default: 20 of seven families."
        ),
    ] = None,
    rates: Annotated[
        str,
        typer.Option("--rates", metavar="RATES", help="Link rates to shape; as-is: between processes here, unshaped."),
    ] = "250mbit,500mbit,1gbit",
    processes: Annotated[str, typer.Option("--processes", help="Numbers of processes, each a host: 2,4.")] = "2",
    scale: Annotated[
        int,
        typer.Option("--scale", help="Use one in N elements of each gradient, and buckets as much smaller."),
    ] = 8,
    batch: Annotated[int, typer.Option("--batch", help="Images a step computes for, on a GPU of 10 TFLOP/s.")] = 16,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            help="Turns of steps with and without exchange; up to five times as many where stalls are small.",
        ),
    ] = 3,
    steps: Annotated[int, typer.Option("--steps", help="Steps of a turn that count.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Eight networks, one turn: to see that it works.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Measure nothing; show what the folder holds.")] = False,
    html: options.Html = None,
    as_json: Json = False,
) -> None:
    """Measure the communication stall of many networks, and fit it to their tensors, layers and bytes, link by link.

    Networks run on the stand-in accelerator: their layers sleep as long as a GPU would compute, their gradients are
    exchanged for real by DDP over gloo, between hosts on this machine whose links are shaped (needs root). Families
    are held out one by one and predicted from the others. Exit code 0: done. 2: bad input. 3: it could not be
    measured. 130: stopped before the end; the same command goes on.
    """
    from stallwise.machine import study as studies
    from stallwise.report.views.study import document, draw

    if show:
        result = studies.read_study(out)
    else:
        settings = studies.StudySettings(
            networks=_comma_words(models) if models else (studies.QUICK if quick else studies.FULL),
            rates=_comma_words(rates),
            processes=_process_counts(processes),
            scale=scale,
            batch=batch,
            rounds=1 if quick else rounds,
            steps=steps,
        )
        result = _run_study(settings, out)
    answer(lambda: document(result), lambda: draw(result), as_json=as_json)
    if html is not None:
        from stallwise.report.views.study import page

        save_page(page(result), html)


def _run_study(settings: "studies.StudySettings", out: Path) -> "studies.Study":
    from stallwise.cli.output import ProgressReporter
    from stallwise.machine.study import run_study

    try:
        with ProgressReporter() as progress:
            return run_study(settings, out, progress.report)
    except KeyboardInterrupt:
        raise interrupted(f"Stopped. What was measured is in {out}; the same command goes on from there.") from None


def _comma_words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise InputError(f"{text!r} names nothing; give words with commas between them.")
    return tuple(dict.fromkeys(words))


def _process_counts(text: str) -> tuple[int, ...]:
    words = _comma_words(text)
    if not all(word.isdigit() for word in words):
        raise InputError(f"--processes takes whole numbers such as 2,4, not {text!r}.")
    return tuple(int(word) for word in words)


def _probe_sentence(progress: "ProbeProgress") -> str:
    return f"{progress.doing}, {progress.done:.0%} done"
