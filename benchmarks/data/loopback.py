"""No link in the way: the processor time per object decides. Objects of 100 KB, batches of 32, two cores.

Server and clients share the cores, so only ratios within one run mean anything, and they depend on how many cores
are free. Every peer runs with the workers, threads or requests in flight that suit it best, ours with two workers.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data.race import Turn, at_their_best, quick, spread, take_turns
from benchmarks.data.spec import Spec
from benchmarks.data.stock import Stock, put_mds, put_raw, put_tar
from benchmarks.harness import Result
from tests.data.testbed.seaweed import Seaweed, seaweed

OVER_S3TORCH, GOAL_PACKED = 1.2, 0.8


def measure() -> Iterator[Result]:
    """Against the fastest raw client and against packed shards."""
    stock = Stock(400 if quick() else 3000, 100_000)
    with tempfile.TemporaryDirectory() as folder, seaweed(Path(folder) / "weed") as server:
        put_raw(server, stock)
        put_mds(server, stock)
        peers = at_their_best(_peers(server, stock, put_tar(server, stock)))
        outcomes = take_turns({"ours": _turn(server, stock, "ours"), **peers}, 1 if quick() else 5)
    steady = {name: spread(runs, "steady_per_s") for name, runs in outcomes.items()}
    for name, pace in steady.items():
        whole, cpu = spread(outcomes[name], "whole_per_s"), [one.report.cpu_s for one in outcomes[name]]
        print(f"       {name}: whole {whole:.0f}, steady {pace:.0f} samples/s, CPU {min(cpu):.1f} s", flush=True)
    ours = steady["ours"].median
    for name in ("boto3", "litdata", "SPDL"):
        if name in steady:
            yield Result(
                claim=f"loopback: {name} at its best setting, raw",
                measured=f"{ours / steady[name].median:.2f}×: {steady['ours']:.0f} against "
                f"{steady[name]:.0f} samples/s",
            )
    yield Result(
        claim=f"loopback: ≥ {OVER_S3TORCH}× s3torchconnector at its best setting, raw",
        measured=f"{ours / steady['s3torchconnector'].median:.2f}×: {steady['ours']:.0f} against "
        f"{steady['s3torchconnector']:.0f} samples/s",
        held=ours >= OVER_S3TORCH * steady["s3torchconnector"].median,
    )
    yield Result(
        claim=f"loopback: share of WebDataset's packed shards ≥ {GOAL_PACKED}",
        measured=f"{ours / steady['webdataset, packed'].median:.2f}×",
        held=ours >= GOAL_PACKED * steady["webdataset, packed"].median,
    )


def _turn(server: Seaweed, stock: Stock, loader: str, source: str = "raw", **more: Any) -> Turn:
    spec = Spec(loader=loader, source=source, endpoint=server.endpoint, samples=stock.count, **{"epochs": 3, **more})
    return Turn(spec, server, stock.total_bytes)


def _peers(server: Seaweed, stock: Stock, urls: list[str]) -> dict[str, list[Turn]]:
    make = partial(_turn, server, stock)
    counts = (2,) if quick() else (1, 2, 4)
    return {
        "s3torchconnector": [make("s3torch", workers=n) for n in counts],
        "boto3": [
            make("boto3_map", epochs=1, workers=n, extra={"threads": threads}) for n in counts for threads in (1, 4)
        ],
        "litdata": [make("litdata_raw", workers=n, extra={"start": "fork"}) for n in counts],
        "SPDL": [make("spdl_pipeline", extra={"concurrency": n}) for n in (8, 32)],
        "webdataset, packed": [make("webdataset_tar", "tar", workers=n, extra={"urls": urls}) for n in counts],
        # A second epoch of Streaming comes from its local copy.
        "streaming, packed": [make("streaming_mds", "mds", epochs=1, workers=n) for n in counts],
    }
