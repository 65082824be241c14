"""Everything cached: an epoch over 2 GB of JPEGs, decoded, two workers, batches of 32.

The cache of each loader is filled once; then they take turns, one epoch in a new process each, beside a plain
DataLoader that reads the same files from a local folder. All of it fits the page cache: what is compared is the
loaders' own work.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.data.race import Turn, quick, run, spread, take_turns
from benchmarks.data.spec import MARK_BYTES, Spec
from benchmarks.harness import Result
from tests.data.testbed.seaweed import Seaweed, seaweed

SIZE_BYTES, PICTURES = 100_000, 40
OVER_RAW, OF_DISK = 0.97, 0.95  # 0.97: three per cent of noise
LEAST_BYTES, LEAST_S = 2e9, 10


@dataclass(frozen=True)
class Pictures:
    """`count` JPEGs of exactly 100 KB: a few pictures of noise, each copy with its number after the end."""

    count: int

    def samples(self) -> Iterator[tuple[str, bytes]]:
        """Name and content."""
        made = [_picture(seed) for seed in range(PICTURES)]
        for number in range(self.count):
            yield f"{number:06d}.jpg", made[number % PICTURES] + number.to_bytes(MARK_BYTES, "big")


def _picture(seed: int) -> bytes:
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 256, (22, 28, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((448, 352), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(seed).normal(0, 18, (352, 448, 3))
    image = Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=88)
    assert file.tell() <= SIZE_BYTES - MARK_BYTES, file.tell()
    return file.getvalue().ljust(SIZE_BYTES - MARK_BYTES, b"\0")


def measure() -> Iterator[Result]:
    """Against the best raw peer with a cache, and against local files."""
    pictures = Pictures(1000 if quick() else 20_000)
    with tempfile.TemporaryDirectory() as folder, seaweed(Path(folder) / "weed") as server:
        server.fill("raw", pictures.samples())
        turns = _turns(server, pictures, Path(folder))
        for turn in turns.values():  # fills the caches, and the page cache
            run(replace(turn.spec, decode="mark"), server, turn.total_bytes)
        outcomes = take_turns(turns, 1 if quick() else 3)
    pace = {name: spread(runs, "whole_per_s") for name, runs in outcomes.items()}
    shown = ", ".join(f"{name} {values:.0f}" for name, values in pace.items())
    seconds = min(one.first.seconds for runs in outcomes.values() for one in runs)
    big = quick() or (pictures.count * SIZE_BYTES >= LEAST_BYTES and seconds >= LEAST_S)
    ours = pace["ours"].median
    yield Result(
        claim=f"cached epoch of {pictures.count * SIZE_BYTES / 1e9:.1f} GB: ≥ {OVER_RAW}× litdata raw with its cache",
        measured=f"{ours / pace['litdata'].median:.2f}×; samples/s: {shown}; shortest epoch {seconds:.0f} s",
        held=big and ours >= OVER_RAW * pace["litdata"].median,
    )
    yield Result(
        claim=f"cached epoch: ≥ {OF_DISK:.0%} of a plain DataLoader over the same files on local disk",
        measured=f"{ours / pace['local files'].median:.0%}",
        held=big and ours >= OF_DISK * pace["local files"].median,
    )


def _turns(server: Seaweed, pictures: Pictures, folder: Path) -> dict[str, Turn]:
    local = folder / "local"
    local.mkdir()
    for name, data in pictures.samples():
        (local / name).write_bytes(data)
    total = pictures.count * SIZE_BYTES
    common = Spec(loader="", source="raw", endpoint=server.endpoint, samples=pictures.count, decode="jpeg")
    specs = {
        "ours": replace(common, loader="ours", cache=_made(folder / "ours"), extra={"limit_bytes": 2 * total}),
        "litdata": replace(
            common,
            loader="litdata_raw",
            cache=_made(folder / "litdata"),
            extra={"start": "fork", "cache_files": True},
        ),
        "local files": replace(common, loader="disk", source=os.fspath(local), cache="-"),
    }
    return {name: Turn(spec, server, total) for name, spec in specs.items()}


def _made(folder: Path) -> str:
    folder.mkdir()
    return os.fspath(folder)
