"""Two jobs over one cache folder. Not a figure of a paper but a property, judged exactly.

Two processes begin at once and read the same objects, each in its own order, through one `NodeCache`; what they fetch
is noted in a file. A fetch takes a millisecond, so that the two meet at many objects.
"""

import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path

from stallwise.data.cache.cache import NodeCache
from validation.harness import Case

_OBJECTS, _BYTES, _JOBS = 200, 2000, 2


def _job(folder: str, seed: int) -> None:
    cache, numbers = NodeCache(f"{folder}/cache", 10_000_000), list(range(_OBJECTS))
    random.Random(seed).shuffle(numbers)  # noqa: S311 - no secret
    for number in numbers:
        data = cache.load(number.to_bytes(16, "big"), _BYTES, lambda number=number: _fetch(folder, number)).data  # type: ignore[misc]
        if data != bytes([number % 256]) * _BYTES:
            raise SystemExit(f"object {number} has wrong bytes")


def _fetch(folder: str, number: int) -> bytes:
    log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, b"x")
    os.close(log)
    time.sleep(0.001)
    return bytes([number % 256]) * _BYTES


def _fetches_per_object(_: Path) -> float:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        jobs = [context.Process(target=_job, args=(folder, seed)) for seed in range(_JOBS)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join(60)
        if [job.exitcode for job in jobs] != [0] * _JOBS:
            raise RuntimeError("a job of loading-13 failed")
        return Path(f"{folder}/log").stat().st_size / _OBJECTS


CASES = (
    Case(
        id="loading-13",
        case="fetches of an object by two jobs that share a cache folder",
        source="loading.md section 6, V13",
        method="Two processes read 200 objects in orders of their own through one NodeCache; fetches are counted.",
        published=1.0,
        unit="",
        tolerance=0.0,
        compute=_fetches_per_object,
    ),
)
