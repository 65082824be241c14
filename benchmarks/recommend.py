"""Every fleet of the whole imported catalog is judged while one waits: `recommend` on 7,700 offers × 1 to 64 nodes.

The catalog is the public one of 24 clouds (`STALLWISE_DATA`), imported as a user's own tables. Most small clouds list
no network, so their machines are judged alone; the second claim gives every one of them 100 Gb/s, so that each offer
really has 64 fleets.
"""

import csv
import datetime as dt
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Result
from stallwise.analysis.analysis import open_run
from stallwise.analysis.job import JobModel
from stallwise.cloud.recommend import recommend
from stallwise.cloud.request import RecommendRequest
from stallwise.hardware import load_catalog
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Link
from stallwise.hardware.imports import import_paths
from stallwise.hardware.instance import Offer
from stallwise.units import gbit_per_s

BAR_S = 2.0
ROUNDS = 5


def measure() -> Iterator[Result]:
    """Time of the answer after everything is imported and the catalog is read."""
    table = Path(os.environ.get("STALLWISE_DATA", "../shared/data")) / "catalog/gpu_instances.csv"
    if not table.is_file():
        yield Result(claim="recommend on the imported catalog", measured="needs STALLWISE_DATA", held=False)
        return
    with tempfile.TemporaryDirectory() as name:
        catalog = imported(table, Path(name))
        model = made_model(Path(name) / "run", catalog)
        for what, offers in (("as listed", catalog.offers), ("each with a network", networked(catalog.offers))):
            yield _timed(model, offers, what)


def _timed(model: JobModel, offers: tuple[Offer, ...], what: str) -> Result:
    request = RecommendRequest(samples=1_281_167, epochs=90, deadline_s=24 * 3600.0, scale_batch=True, retired=True)
    times, cpu_s, fleets = [], [], 0
    for _ in range(ROUNDS):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        found = recommend(model, request, offers, dt.date.today())
        times.append(time.perf_counter() - began_s)
        cpu_s.append(time.process_time() - began_cpu_s)
        fleets = found.search_counts.fleets
    middle = sorted(times)[ROUNDS // 2]
    spread = f"{min(times):.2f} to {max(times):.2f}"
    return Result(
        claim=f"recommend, {len(offers):,} offers × 1-64 nodes, {what}, in at most {BAR_S:g} s",
        measured=f"{middle:.2f} s ({spread}), {min(cpu_s):.2f} s of processor, {fleets:,} fleets of distinct types",
        held=middle <= BAR_S,
    )


def imported(table: Path, folder: Path) -> Catalog:
    """The public catalog as a user's tables in `folder`."""
    shipped = load_catalog(folder / "config")
    instances: dict[tuple[str, str], dict[str, str]] = {}
    offers: list[dict[str, str]] = []
    with table.open() as lines:
        for row in csv.DictReader(lines):
            gpu = shipped.gpu_of_label(row["gpu"], row["cloud"])
            if gpu is None or not row["instance_type"] or float(row["gpu_count"] or 0) < 1:
                continue
            key = (row["cloud"], row["instance_type"])
            if key not in shipped.instances:
                instances[key] = {
                    "cloud": row["cloud"], "instance": row["instance_type"], "gpu": gpu.name,
                    "gpu_count": str(int(float(row["gpu_count"]))), "vcpus": str(int(float(row["vcpus"] or 8))),
                    "memory_gib": row["memory_gib"] or "64",
                }  # fmt: skip
            offers += _offers(row)
    return _imported(folder, shipped, list(instances.values()), offers)


def _offers(row: dict[str, str]) -> Iterator[dict[str, str]]:
    for market, column in (("on-demand", "price_usd_h"), ("spot", "spot_price_usd_h")):
        if row[column] and float(row[column]) > 0:
            yield {
                "cloud": row["cloud"], "instance": row["instance_type"], "region": row["region"] or "anywhere",
                "zone": row["zone"], "market": market, "usd_per_h": row[column], "as_of": row["as_of"],
            }  # fmt: skip


def _imported(folder: Path, shipped: Catalog, instances: list[dict[str, str]], offers: list[dict[str, str]]) -> Catalog:
    paths = []
    for name, rows in (("instances.csv", instances), ("offers.csv", offers)):
        path = folder / name
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        paths.append(path)
    import_paths(paths, shipped, today=dt.date.today())
    catalog = load_catalog(folder / "config")
    _ = catalog.offers
    return catalog


def networked(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """The same with 100 Gb/s for every instance type that lists no network."""
    link = Link(kind="assumed", bytes_per_s=gbit_per_s(100))
    return tuple(
        offer if offer.instance.network else replace(offer, instance=replace(offer.instance, network=link))
        for offer in offers
    )


def made_model(folder: Path, catalog: Catalog) -> JobModel:
    """A run of four A10G with layers, gradients and a loader."""
    from tests.report.made_runs import make_full_run

    make_full_run(folder)
    return open_run(folder, catalog).model()
