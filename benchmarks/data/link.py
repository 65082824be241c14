"""A bucket behind 30 ms and 200 Mbit/s: raw objects of 100 KB, batches of 32, 4 and 1.

Every raw peer runs at its best setting: workers, threads or requests in flight and prefetch are swept first, one run
each, ours is left alone with two workers. Everybody's whole first epoch (start-up included) and steady pace (the second
epoch, with the same workers) are measured. boto3 and s3torchconnector read a part of the set, because their pace does
not change over it. Packed formats are shown for orientation; somebody has to pack first.
"""

import contextlib
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.data.race import Outcome, Spread, Turn, at_their_best, quick, run, spread, take_turns
from benchmarks.data.spec import Spec
from benchmarks.data.stock import Stock, put_mds, put_raw, put_tar
from benchmarks.harness import Result
from tests.data.testbed.link import Link, slow_link
from tests.data.testbed.seaweed import Seaweed, seaweed

LINK_BYTES_PER_S = 200e6 / 8
OF_LINK, OVER_RAW_32, OVER_RAW_4, WIRE = 0.82, 0.97, 1.4, 1.05  # 0.97: three per cent of noise
STEP_S, WAIT_S = 0.2, 0.5
Outcomes = dict[str, list[Outcome]]


@dataclass(frozen=True)
class Bench:
    """The server behind the link and what it holds."""

    server: Seaweed
    link: Link
    stock: Stock
    urls: list[str]
    serial_samples: int

    def turn(self, loader: str, source: str = "raw", samples: int | None = None, **more: object) -> Turn:
        """One contestant over all samples, or over the first so many of a shuffled order."""
        count = samples or self.stock.count
        spec = Spec(loader=loader, source=source, endpoint=self.server.endpoint, samples=count)
        return Turn(replace(spec, **more), self.server, count * self.stock.size_bytes, self.link)  # type: ignore[arg-type]

    def ours(self, batch: int, **more: object) -> Turn:
        """Two epochs: the first with start-up, the second without."""
        return self.turn("ours", batch=batch, **{"epochs": 2, **more})

    def peers(self) -> dict[str, list[Turn]]:
        """Every raw peer with the settings that its users would try: workers, threads, prefetch."""
        serial = {"samples": self.serial_samples, "epochs": 2}
        counts = (2, 16) if quick() else (2, 8, 16, 32)
        spdl = [self.turn("spdl_pipeline", epochs=2, extra={"concurrency": n}) for n in (16, 64)]
        threads = [
            self.turn("boto3_map", epochs=2, workers=n, prefetch=4, extra={"threads": 16})
            for n in ((2,) if quick() else (2, 4))
        ]
        return {
            "boto3": [self.turn("boto3_map", workers=n, prefetch=p, **serial) for n in counts for p in (2, 8)],
            "boto3, threads": threads,
            "s3torchconnector": [self.turn("s3torch", workers=n, prefetch=p, **serial) for n in counts for p in (2, 8)],
            "litdata": [self.litdata(32, workers=n) for n in ((2,) if quick() else (2, 4, 8))],
            "SPDL": spdl,
        }

    def litdata(self, batch: int, **more: object) -> Turn:
        """Forked: it starts ten times faster than spawned, as its manual advises, and reads as fast."""
        return self.turn("litdata_raw", batch=batch, extra={"start": "fork"}, **{"epochs": 2, **more})


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """2,000 samples of 100 KB as objects, tar shards and MDS shards."""
    stock = Stock(400 if quick() else 2000, 100_000)
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_link(30, "200mbit") as link,
        seaweed(Path(folder) / "weed", link.address, link.namespace) as server,
    ):
        put_raw(server, stock)
        put_mds(server, stock)
        yield Bench(server, link, stock, put_tar(server, stock), 128 if quick() else 256)


def measure() -> Iterator[Result]:
    """All claims behind the link."""
    rounds = 1 if quick() else 3
    with bench() as ground:
        peers = at_their_best(ground.peers())
        at_32 = take_turns(_all(ground, peers), rounds)
        yield from _at_32(ground, at_32, peers)
        for batch, more in ((4, {}), (1, {"samples": min(500, ground.stock.count)})):
            runs = {"ours": ground.ours(batch), "litdata": ground.litdata(batch, **more)}
            yield from _at_smaller(ground, batch, take_turns(runs, rounds))
        yield _steps(ground)


def _all(ground: Bench, peers: dict[str, Turn]) -> dict[str, Turn]:
    return {
        "ours": ground.ours(32),
        **peers,
        "webdataset, packed": ground.turn("webdataset_tar", "tar", epochs=2, extra={"urls": ground.urls}),
        "streaming, packed": ground.turn("streaming_mds", "mds"),
    }


def _at_32(ground: Bench, outcomes: Outcomes, peers: Collection[str]) -> Iterator[Result]:
    for name, runs in outcomes.items():
        print(_line(name, runs), flush=True)
    yield from _pace(ground, 32, outcomes["ours"])
    steady = {name: spread(outcomes[name], "steady_per_s") for name in peers if name in outcomes}
    for name, pace in steady.items():
        yield _ratio(f"batch 32: {name} at its best setting, start-up apart", outcomes["ours"], name, pace, None)
    best = max(steady, key=lambda name: steady[name].median)
    yield _ratio("batch 32: best raw peer's pace, start-up apart", outcomes["ours"], best, steady[best], OVER_RAW_32)
    first = {name: spread(runs, "first_batch_s") for name, runs in outcomes.items()}
    ours = first.pop("ours")
    fastest = min(first, key=lambda name: first[name].median)
    yield Result(
        claim="batch 32: seconds from making the dataset to the first batch, at most the fastest peer's",
        measured=f"{ours:.2f} against {first[fastest]:.2f} ({fastest})",
        held=ours.median <= first[fastest].median,
    )


def _at_smaller(ground: Bench, batch: int, outcomes: Outcomes) -> Iterator[Result]:
    for name, runs in outcomes.items():
        print(_line(f"{name}, batch {batch}", runs), flush=True)
    yield from _pace(ground, batch, outcomes["ours"])
    steady = spread(outcomes["litdata"], "steady_per_s")
    yield _ratio(f"batch {batch}: litdata's pace, start-up apart", outcomes["ours"], "litdata", steady, OVER_RAW_4)


def _pace(ground: Bench, batch: int, ours: list[Outcome]) -> Iterator[Result]:
    whole, wire = spread(ours, "whole_per_s"), spread(ours, "wire_ratio")
    share = whole.median * ground.stock.size_bytes / LINK_BYTES_PER_S
    yield Result(
        claim=f"batch {batch}: share of the link over a whole first epoch ≥ {OF_LINK:.0%}",
        measured=f"{share:.0%}, {whole:.0f} samples/s",
        held=share >= OF_LINK,
    )
    yield Result(
        claim=f"batch {batch}: bytes on the wire ≤ {WIRE}× the data",
        measured=f"{wire:.3f}×",
        held=max(wire.values) <= WIRE,
    )


def _ratio(what: str, ours: list[Outcome], name: str, peer: Spread, bar: float | None) -> Result:
    """Our pace over the peer's; without a bar it is shown."""
    own = spread(ours, "steady_per_s")
    return Result(
        claim=what if bar is None else f"{what}: ≥ {bar}×",
        measured=f"{own.median / peer.median:.2f}×: {own:.0f} against {name} {peer:.0f} samples/s",
        held=None if bar is None else own.median >= bar * peer.median,
    )


def _steps(ground: Bench) -> Result:
    turn = ground.ours(32, epochs=1, step_s=STEP_S)
    epoch = run(turn.spec, turn.server, turn.total_bytes, turn.link).first
    waited_s = epoch.wait_s - epoch.first_wait_s
    return Result(
        claim=f"steps of {STEP_S} s: waits after the first batch ≤ {WAIT_S} s in an epoch",
        measured=f"{waited_s:.2f} s (first batch {epoch.first_wait_s:.2f} s)",
        held=waited_s <= WAIT_S,
    )


def _line(name: str, runs: list[Outcome]) -> str:
    whole, steady = spread(runs, "whole_per_s"), spread(runs, "steady_per_s")
    first, wire = spread(runs, "first_batch_s"), spread(runs, "wire_ratio")
    pace = f"whole {whole:.0f}, steady {steady:.0f} samples/s"
    return f"       {name}: {pace}, first batch {first:.2f} s, wire {wire:.3f}×"
