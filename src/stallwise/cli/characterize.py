"""`stallwise characterize`: what decides training on this machine; or records side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli.output import Json, answer, no
from stallwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from stallwise.hardware.machine import MachineRecord


def characterize(
    out: Annotated[Path, typer.Option("-o", "--out", help="File of the machine record.")] = Path("machine.json"),
    disk: Annotated[Path, typer.Option("--disk", help="A folder on the disk to be measured.")] = Path(),
    disk_size: Annotated[str, typer.Option("--disk-size", help="Size of the file that is read.")] = "1GiB",
    store: Annotated[str | None, typer.Option("--store", help="Also a bucket: s3://bucket/prefix.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Of a store that is not the cloud's own.")] = None,
    network_time_s: Annotated[float, typer.Option("--network-time", help="Seconds for each network.")] = 8.0,
    links_time_s: Annotated[float, typer.Option("--links-time", help="Seconds for the all-reduce.")] = 30.0,
    networks: Annotated[
        str | None, typer.Option("--networks", help="Only these: resnet18,resnet50,vgg11,bert-base.")
    ] = None,
    skip: Annotated[str | None, typer.Option("--skip", help="Leave out: device,links,disk,decode.")] = None,
    compare: Annotated[
        list[Path] | None, typer.Option("--compare", help="Measure nothing; put these records side by side.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option("--price", help="With --compare: NAME=USD per hour, or NAME=INSTANCE.")
    ] = None,
    epoch_samples: Annotated[float, typer.Option("--epoch-samples", help="With --compare.")] = 1_281_167,
    as_json: Json = False,
) -> None:
    """Measure what decides training on this machine and save it as a machine record; or compare records.

    Host to GPU with all GPUs at once, GPU to GPU, all-reduce over sizes, disk and bucket, decoding per core, and how
    fast a few standard networks train. What the machine lacks is left out and said. Exit code 0: measured. 1:
    interrupted, nothing is written. 2: it could not be measured.
    """
    if compare:
        _compare(compare, price or [], epoch_samples, as_json=as_json)
        return
    from stallwise.record.characterize import PARTS, Characterize, characterize_machine
    from stallwise.report.characterize import draw_characterized
    from stallwise.units import parse_bytes

    for name, value_s in (("--network-time", network_time_s), ("--links-time", links_time_s)):
        if not 0.5 <= value_s <= 600:
            raise InputError(f"{name} takes seconds from 0.5 to 600, not {value_s:g}.")
    asked = Characterize(
        out=out,
        disk=disk,
        network_s=network_time_s,
        links_s=links_time_s,
        networks=_known("network", networks, _network_names()),
        skip=frozenset(_known("part", skip, PARTS)),
        disk_bytes=int(parse_bytes(disk_size)),
        decode_s=min(3.0, network_time_s),
    )
    try:
        record = characterize_machine(asked, lambda words: typer.echo(f"stallwise: {words}", err=True))
        if store is not None:
            record = _with_store(record, store, endpoint, out)
    except KeyboardInterrupt:
        raise no("stallwise: Interrupted; nothing was written.") from None
    answer(lambda: record, lambda: draw_characterized(record), as_json=as_json)
    typer.echo(f"\nThe machine record is {out}", err=True)


def _network_names() -> tuple[str, ...]:
    return ("resnet18", "resnet50", "vgg11", "bert-base")


def _known(kind: str, text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UnknownNameError(f"{kind} ({', '.join(known)})", word, known)
    return tuple(words)


def _with_store(record: "MachineRecord", url: str, endpoint: str | None, out: Path) -> "MachineRecord":
    """The record with what a bucket gives to this machine."""
    import msgspec

    from stallwise.cli.data_input import bucket_of
    from stallwise.data.benching import Benching
    from stallwise.hardware.machine import StorageRecord, encode_machine
    from stallwise.run.atomic import write_atomically

    typer.echo("stallwise: reading the bucket", err=True)
    found = Benching(bucket_of(url, endpoint, None, 30.0), max_s=20.0).run()
    read = StorageRecord(
        kind="store",
        bytes_per_s=found.link_bytes_per_s,
        readers=found.best.concurrency,
        object_bytes=int(found.object_bytes),
        note=found.bound,
    )
    more = msgspec.structs.replace(record, storage=(*record.storage, read))
    write_atomically(out, encode_machine(more))
    return more


def _compare(paths: Sequence[Path], prices: Sequence[str], samples: float, *, as_json: bool) -> None:
    from stallwise.cloud.study import machine_names, study
    from stallwise.hardware.machine import read_machine
    from stallwise.report.characterize import draw_study

    names = machine_names([str(path) for path in paths])
    records = {name: read_machine(path) for name, path in zip(names, paths, strict=True)}
    rows = study(records, samples=samples, usd_per_h=_prices(prices, names))
    if not rows:
        raise InputError("None of these records holds a standard network. Measure with stallwise characterize.")
    answer(lambda: {"epoch_samples": samples, "rows": rows}, lambda: draw_study(rows, samples), as_json=as_json)


def _prices(given: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    from stallwise.hardware.catalog import load_catalog
    from stallwise.hardware.offer import by_price

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--price takes NAME=USD or NAME=INSTANCE, like h200=3.79, not {text!r}.")
        if name not in names:
            raise UnknownNameError("record", name, names)
        try:
            found[name] = float(value)
        except ValueError:
            catalog = load_catalog()
            offers = catalog.find(catalog.query(instance=value, market="on-demand", retired=True))
            if not offers:
                raise InputError(f"The catalog lists no on-demand price of {value}.") from None
            found[name] = min(offers, key=by_price).usd_per_h
    return found
