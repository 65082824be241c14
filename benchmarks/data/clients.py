"""Processor time of one GET of 100 KB, eight at once, on loopback: our fetcher against other clients.

`python -m benchmarks.data.clients CLIENT BUCKET ENDPOINT COUNT` is one contestant: it prints milliseconds of CPU per
object (user and system time of its whole process, without start-up).
"""

import concurrent.futures
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.data.peers import ROOT
from benchmarks.data.race import quick
from benchmarks.data.stock import Stock, put_raw
from benchmarks.harness import Result
from tests.data.testbed.seaweed import Seaweed, seaweed

AT_ONCE, SIZE_BYTES = 8, 100_000
MOST_MS, UNDER_BOTO3 = 0.30, 5.0
Get = Callable[[str], bytes]


def measure() -> Iterator[Result]:
    """Contestants take turns; medians of five."""
    stock = Stock(300 if quick() else 1000, SIZE_BYTES)
    samples: dict[str, list[float]] = {name: [] for name in CLIENTS}
    with tempfile.TemporaryDirectory() as folder, seaweed(Path(folder) / "weed") as server:
        put_raw(server, stock)
        for _ in range(1 if quick() else 5):
            for name, values in samples.items():
                values.append(_run(name, server, stock.count))
    ms = {name: statistics.median(values) for name, values in samples.items()}
    shown = ", ".join(f"{name} {ms[name]:.3f} ({min(v):.3f} to {max(v):.3f})" for name, v in samples.items())
    yield Result(
        claim=f"CPU per GET of 100 KB, {AT_ONCE} at once ≤ {MOST_MS} ms",
        measured=f"ms: {shown}",
        held=ms["ours"] <= MOST_MS,
    )
    yield Result(
        claim=f"CPU per GET: at least {UNDER_BOTO3:.0f}× below boto3",
        measured=f"{ms['boto3'] / ms['ours']:.1f}×",
        held=ms["boto3"] >= UNDER_BOTO3 * ms["ours"],
    )


def _run(name: str, server: Seaweed, count: int) -> float:
    environment = os.environ | server.reader().environment | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.data.clients", name, "raw", server.endpoint, str(count)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.strip().splitlines()[-1])


def _ours(bucket: str, endpoint: str) -> Get:
    from stallwise.data.objects._fetch import Fetcher
    from stallwise.data.objects.index import ObjectRef
    from stallwise.data.objects.store import ObjectBucket

    options = {
        "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    fetcher = Fetcher(ObjectBucket(f"s3://{bucket}/", endpoint, options))
    return lambda name: fetcher.get(ObjectRef(name, SIZE_BYTES)).data


def _boto3(bucket: str, endpoint: str) -> Get:
    from benchmarks.data.loaders.boto3_map import client

    opened = client(endpoint)
    return lambda name: opened.get_object(Bucket=bucket, Key=name)["Body"].read()  # type: ignore[no-any-return]


def _s3torch(bucket: str, endpoint: str) -> Get:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    opened = S3Client("us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True))
    return lambda name: opened.get_object(bucket, name).read()  # type: ignore[no-any-return]


CLIENTS = {"ours": _ours, "boto3": _boto3, "s3torchconnector": _s3torch}


def one(name: str, bucket: str, endpoint: str, count: int) -> float:
    """Milliseconds of CPU per object, after some that warm up connections and threads."""
    get = CLIENTS[name](bucket, endpoint)
    names = [f"{number:06d}.bin" for number in range(count)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(get, names[: 8 * AT_ONCE]))
        before = _cpu_s()
        lengths = set(pool.map(lambda each: len(get(each)), names))
        used_s = _cpu_s() - before
    assert lengths == {SIZE_BYTES}, lengths
    return 1e3 * used_s / count


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(one(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
