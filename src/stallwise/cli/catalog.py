"""`stallwise catalog`: GPUs, instance types and offers as listed, and the user's own prices."""

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stallwise.cli import options
from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Json, answer, fail, warn

if TYPE_CHECKING:
    from stallwise.hardware.instance import Nearest
    from stallwise.hardware.prices import PriceAge

app = CommandApp(help="GPUs, instance types and prices as listed, and your own beside them.")

_SHOWN_OFFERS = 20
_CHEAPEST = 5


class Market(enum.StrEnum):
    """How a machine is rented."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class Sort(enum.StrEnum):
    """The order of offers."""

    PRICE = "price"
    GPU_PRICE = "gpu-price"


def _complete(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in sorted(set(names)) if name.lower().startswith(incomplete.lower())]


def _complete_cloud(incomplete: str) -> list[str]:
    from stallwise.hardware import load_catalog

    return _complete(load_catalog().clouds, incomplete)


def _complete_name(incomplete: str) -> list[str]:
    from stallwise.hardware import load_catalog

    catalog = load_catalog()
    return _complete([*catalog.gpus, *(name for _, name in catalog.instances)], incomplete)


GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="MODEL",
        help="A GPU model or a family: H100, H100-PCIe, A100-80GB.",
        autocompletion=options.complete_gpu,
    ),
]
CloudOption = Annotated[
    str | None,
    typer.Option("--cloud", help="aws, gcp, azure, lambda or your own.", autocompletion=_complete_cloud),
]
RetiredOption = Annotated[bool, typer.Option("--include-retired", help="Also instance types that are no longer sold.")]


@app.command()
def gpus(gpu: GpuOption = None, as_json: Json = False) -> None:
    """List GPUs: memory, dense peak rates, links, power."""
    from stallwise.hardware import load_catalog
    from stallwise.report.views import catalog as report
    from stallwise.report.views.catalog import gpu_record

    catalog = load_catalog()
    names = catalog.gpu_names(gpu) if gpu else frozenset(catalog.gpus)
    matches = [item for item in catalog.gpus.values() if item.name in names]
    answer(lambda: {"gpus": [gpu_record(g) for g in matches]}, lambda: report.draw_gpus(matches), as_json=as_json)


@app.command()
def instances(
    gpu: GpuOption = None, cloud: CloudOption = None, retired: RetiredOption = False, as_json: Json = False
) -> None:
    """List instance types: GPUs and their links, vCPUs, memory, network, disks."""
    from stallwise.hardware import load_catalog
    from stallwise.report.views import catalog as report
    from stallwise.report.views.catalog import instance_record

    catalog = load_catalog()
    query = catalog.query(gpu=gpu, cloud=cloud)
    alike = [i for i in catalog.instances.values() if query.gpus is None or i.gpu.name in query.gpus]
    matches = [i for i in alike if query.cloud in (None, i.cloud) and (retired or i.retired_on is None)]
    if as_json or matches:
        answer(
            lambda: {"instances": [instance_record(i) for i in matches]},
            lambda: report.draw_instances(matches),
            as_json=as_json,
        )
    if not matches:
        elsewhere = sorted({f"{i.cloud} {i.name}" + (" (retired)" if i.retired_on else "") for i in alike})
        raise fail(f"No instance type matches. Nearest: {', '.join(elsewhere[:5]) or 'none has this GPU'}.")


@app.command()
def offers(
    *,
    gpu: GpuOption = None,
    cloud: CloudOption = None,
    region: Annotated[str | None, typer.Option(help="Region, as its cloud names it.")] = None,
    instance: Annotated[str | None, typer.Option(help="Instance type.", autocompletion=_complete_name)] = None,
    market: Annotated[Market | None, typer.Option(help="On-demand or spot only.")] = None,
    max_price: Annotated[
        str | None, typer.Option("--max-price", metavar="USD", help="Dollars per hour and machine at most: 10.")
    ] = None,
    min_gpus: Annotated[int | None, typer.Option(min=1, help="GPUs in one machine at least.")] = None,
    min_gpu_memory: Annotated[
        str | None, typer.Option("--min-gpu-memory", metavar="SIZE", help="Memory of one GPU at least: 40GiB.")
    ] = None,
    retired: RetiredOption = False,
    sort: Annotated[Sort, typer.Option(help="Cheapest machine or cheapest GPU first.")] = Sort.PRICE,
    limit: Annotated[
        int | None, typer.Option(min=0, help="How many to show; 0: all. Default: 20, all with --json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List what can be rented, cheapest first. Exit code 1: nothing matches; stderr says what is nearest."""
    from stallwise.hardware import load_catalog
    from stallwise.hardware.instance import by_gpu_price, by_price, nearest
    from stallwise.hardware.prices import current_date, price_age
    from stallwise.report.views import catalog as report
    from stallwise.report.views.catalog import offers_document
    from stallwise.units import parse_bytes

    catalog = load_catalog()
    query = catalog.query(
        gpu=gpu,
        cloud=cloud,
        region=region,
        instance=instance,
        market=market.value if market else None,
        max_usd_per_h=options.usd(max_price),
        min_gpu_count=min_gpus,
        min_gpu_memory_bytes=None if min_gpu_memory is None else parse_bytes(min_gpu_memory),
        retired=retired,
    )
    matches = sorted(catalog.find(query), key=by_price if sort is Sort.PRICE else by_gpu_price)
    near = () if matches else nearest(catalog.offers, query)
    most = limit if limit is not None else 0 if as_json else _SHOWN_OFFERS
    shown = matches[:most] if most else matches
    age = price_age(shown or [n.offer for n in near], current_date())
    if as_json or matches:
        answer(
            lambda: offers_document(shown, len(matches), age, near),
            lambda: report.draw_offers(shown, len(matches), age, "; --limit 0 shows all"),
            as_json=as_json,
        )
    _warn_if_stale(age)
    if not matches:
        given = {
            "gpus": f"--gpu {gpu}",
            "cloud": f"--cloud {cloud}",
            "region": f"--region {region}",
            "instance": f"--instance {instance}",
            "market": f"--market {market}",
            "max_usd_per_h": f"--max-price {max_price}",
            "min_gpu_count": f"--min-gpus {min_gpus}",
            "min_gpu_memory_bytes": f"--min-gpu-memory {min_gpu_memory}",
        }
        raise fail(_nothing_matches(near, given))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A GPU, a family or an instance type.", autocompletion=_complete_name)],
    as_json: Json = False,
) -> None:
    """Show every fact about a GPU or an instance type, where it comes from, and its cheapest offers."""
    from stallwise.errors import UnknownNameError
    from stallwise.hardware import load_catalog
    from stallwise.hardware.instance import by_price
    from stallwise.hardware.prices import current_date, price_age
    from stallwise.report.views import catalog as report
    from stallwise.report.views.catalog import facts_document

    catalog = load_catalog()
    types = [i for i in catalog.instances.values() if i.name.lower() == name.lower()]
    try:
        names = frozenset() if types else catalog.gpu_names(name)
    except UnknownNameError:
        all_names = [*catalog.gpus, *(n for _, n in catalog.instances)]
        raise UnknownNameError("GPU or instance type", name, all_names) from None
    cards = [gpu for gpu in catalog.gpus.values() if gpu.name in names]
    matching = [o for o in catalog.offers if o.instance in types or o.instance.gpu.name in names]
    on_sale = [o for o in matching if o.instance.retired_on is None] or matching
    cheapest = sorted(on_sale, key=by_price)[:_CHEAPEST]
    age = price_age(cheapest, current_date())
    origins = [gpu.origin for gpu in cards] + [i.origin for i in types] + [o.origin for o in cheapest]
    used = {key for origin in origins for key in origin.sources}
    sources = {key: text for key, text in catalog.sources.items() if key in used}
    answer(
        lambda: facts_document(cards, types, cheapest, age, sources),
        lambda: report.draw_facts(cards, types, cheapest, age, sources),
        as_json=as_json,
    )
    _warn_if_stale(age)


@app.command("import")
def import_(
    paths: Annotated[list[Path], typer.Argument(help="SkyPilot catalog folders or CSVs; own CSV or YAML tables.")],
    cloud: Annotated[
        str | None, typer.Option(help="The cloud of a lone SkyPilot CSV; the one to take from a folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take over prices: a SkyPilot catalog (~/.sky/catalogs), or a CSV or YAML file with your own."""
    from stallwise.hardware import load_catalog
    from stallwise.hardware.imports import import_paths
    from stallwise.hardware.prices import current_date
    from stallwise.report.views import catalog as report

    done = import_paths(paths, load_catalog(), today=current_date(), cloud=cloud)
    answer(lambda: done, lambda: report.draw_imported(done), as_json=as_json)


@app.command()
def update(
    cloud: Annotated[list[str] | None, typer.Option(help="Only this cloud; may be repeated.")] = None,
    base_url: Annotated[str | None, typer.Option("--from", help="Base address of a mirror.")] = None,
    as_json: Json = False,
) -> None:
    """Download today's price lists from SkyPilot's published catalog. Nothing is sent but the request."""
    import tempfile

    from stallwise.hardware import load_catalog
    from stallwise.hardware.imports import BASE_URL, CLOUDS, download_lists, import_paths
    from stallwise.hardware.prices import current_date
    from stallwise.report.views import catalog as report

    catalog, today = load_catalog(), current_date()
    with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
        lists = download_lists(Path(folder), cloud or CLOUDS, base_url or BASE_URL)
        done = import_paths([lists], catalog, today=today, as_of=today)
    answer(lambda: done, lambda: report.draw_imported(done), as_json=as_json)


def _warn_if_stale(age: "PriceAge | None") -> None:
    from stallwise.hardware.prices import stale_sentence

    if age and age.stale:
        warn(stale_sentence(age))


def _nothing_matches(near: "Iterable[Nearest]", options: dict[str, str]) -> str:
    from stallwise.report.views.catalog import offer_words

    sentences = ["No offer matches."]
    for item in near:
        given_up = " and ".join(options[side] for side in item.without if side != "retired")
        lead = [f"Without {given_up}"] if given_up else []
        lead += ["with --include-retired"] if "retired" in item.without else []
        words = " and ".join(lead)
        sentences.append(f"{words[0].upper()}{words[1:]}: {offer_words(item.offer)}.")
    return " ".join(sentences)
