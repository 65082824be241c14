"""`python -m benchmarks.data.write_mds FOLDER COUNT SIZE_BYTES`, in Streaming's environment: MDS shards of 8 MB."""

import random
import sys

from benchmarks.data.spec import mark

SHARD_BYTES = 8_000_000


def main(folder: str, count: int, size_bytes: int) -> None:
    """The same samples as `stock.Stock`, which this environment cannot import."""
    from streaming import MDSWriter

    dice = random.Random(count)
    with MDSWriter(out=folder, columns={"sample": "bytes"}, size_limit=SHARD_BYTES) as writer:
        for number in range(count):
            writer.write({"sample": mark(number, dice.randbytes(size_bytes))})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
