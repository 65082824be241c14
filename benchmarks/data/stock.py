"""What the buckets hold: the same samples as plain objects, as tar shards and as MDS shards."""

import io
import itertools
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from benchmarks.data.peers import ROOT, STREAMING, python_of
from benchmarks.data.spec import mark
from tests.data.testbed.seaweed import Seaweed

SHARD_BYTES = 8_000_000


@dataclass(frozen=True)
class Stock:
    """`count` samples of `size_bytes` random bytes, each with its number in it."""

    count: int
    size_bytes: int

    @property
    def total_bytes(self) -> int:
        """All samples."""
        return self.count * self.size_bytes

    def samples(self) -> Iterator[tuple[str, bytes]]:
        """Name and content; made again each time, never kept."""
        dice = random.Random(self.count)
        for number in range(self.count):
            yield f"{number:06d}.bin", mark(number, dice.randbytes(self.size_bytes))

    def shards(self) -> Iterator[tuple[str, bytes]]:
        """Tar files of about `SHARD_BYTES`, as WebDataset reads them."""
        samples, per_shard = self.samples(), max(1, SHARD_BYTES // self.size_bytes)
        for shard in itertools.count():
            inside = list(itertools.islice(samples, per_shard))
            if not inside:
                return
            yield f"{shard:05d}.tar", _tar(inside)


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def put_raw(server: Seaweed, stock: Stock, bucket: str = "raw") -> str:
    """Plain objects; the bucket's name."""
    server.fill(bucket, stock.samples())
    return bucket


def put_tar(server: Seaweed, stock: Stock, bucket: str = "tar") -> list[str]:
    """Tar shards; their signed addresses."""
    import obstore

    names = []

    def named() -> Iterator[tuple[str, bytes]]:
        for name, data in stock.shards():
            names.append(name)
            yield name, data

    server.fill(bucket, named())
    return list(obstore.sign(server.store(bucket), "GET", names, timedelta(hours=6)))


def put_mds(server: Seaweed, stock: Stock, bucket: str = "mds") -> str:
    """MDS shards, written by Streaming itself in its own environment; the bucket's name."""
    with tempfile.TemporaryDirectory() as folder:
        words = [folder, str(stock.count), str(stock.size_bytes)]
        subprocess.run([python_of(STREAMING), "-m", "benchmarks.data.write_mds", *words], cwd=ROOT, check=True)
        server.fill(bucket, ((f"mds/{path.name}", path.read_bytes()) for path in sorted(Path(folder).iterdir())))
    return bucket
