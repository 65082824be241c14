"""No link in the way: the processor time per object decides. Objects of 100 KB, two workers, batches of 32, two cores.

Server and clients share the machine, so only ratios within one run mean anything.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data.race import Turn, quick, spread, take_turns
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
        outcomes = take_turns(_turns(server, stock, put_tar(server, stock)), 1 if quick() else 5)
    steady = {name: spread(runs, "steady_per_s") for name, runs in outcomes.items()}
    for name, pace in steady.items():
        whole, cpu = spread(outcomes[name], "whole_per_s"), [one.report.cpu_s for one in outcomes[name]]
        print(f"       {name}: whole {whole:.0f}, steady {pace:.0f} samples/s, CPU {min(cpu):.1f} s", flush=True)
    ours = steady["ours"].median
    yield Result(
        claim=f"loopback: ≥ {OVER_S3TORCH}× s3torchconnector, raw",
        measured=f"{ours / steady['s3torchconnector'].median:.2f}×, {steady['ours']:.0f} samples/s",
        held=ours >= OVER_S3TORCH * steady["s3torchconnector"].median,
    )
    yield Result(
        claim=f"loopback: share of WebDataset's packed shards (no bar; goal {GOAL_PACKED})",
        measured=f"{ours / steady['webdataset, packed'].median:.2f}×",
        held=True,
    )


def _turns(server: Seaweed, stock: Stock, urls: list[str]) -> dict[str, Turn]:
    def turn(loader: str, source: str = "raw", epochs: int = 3, **extra: object) -> Turn:
        spec = Spec(
            loader=loader, source=source, endpoint=server.endpoint, samples=stock.count, epochs=epochs, extra=extra
        )
        return Turn(spec, server, stock.total_bytes)

    return {
        "ours": turn("ours"),
        "s3torchconnector": turn("s3torch"),
        "boto3": turn("boto3_map", epochs=1),
        "litdata": turn("litdata_raw", start="fork"),
        "webdataset, packed": turn("webdataset_tar", "tar", urls=urls),
        # A second epoch of Streaming comes from its local copy.
        "streaming, packed": turn("streaming_mds", "mds", epochs=1),
    }
