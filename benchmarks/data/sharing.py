"""Sharing: eight jobs of a search on two cores, two nodes behind shaped links, and what a read from a peer costs.

Only ratios within one run mean anything. The two-node case needs root (network namespaces).
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch.distributed as dist

from benchmarks.data.cached import Pictures
from benchmarks.data.race import quick
from benchmarks.harness import Result
from stallwise.data import NodeCache, Peers
from stallwise.model.data.cache import partitioned
from stallwise.model.data.object_store import EpochReads, ObjectStoreLink, epoch_misses, epoch_wait, partitioned_wait
from tests.data.node_job import Settings
from tests.data.test_peers_nodes import charge, from_bucket, run, total
from tests.data.testbed.nodes import nodes
from tests.data.testbed.seaweed import objects, seaweed

JOBS, GAIN, WITHIN = 8, 3.0, 0.10
SIZE, CACHED = 100_000, 0.65
BUCKET_MBIT, NODE_MBIT = 24, 24


def measure() -> Iterator[Result]:
    """Jobs, nodes, overhead."""
    yield from _jobs()
    yield from _overhead()
    yield from _nodes()


def _jobs() -> Iterator[Result]:
    count, epochs = (96, 1) if quick() else (240, 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        for one, data in Pictures(count).samples():
            (folder / "objects" / one).write_bytes(data)
        apart, _ = _search("apart", folder, epochs)
        together, stats = _search("together", folder, epochs)
    stat = stats[-1]
    yield Result(
        claim=f"{JOBS} jobs on a node: ≥ {GAIN:g}× the aggregate samples/s of {JOBS} loaders of their own",
        measured=f"{together / apart:.2f}×: {together:.0f} against {apart:.0f} samples/s",
        held=together >= GAIN * apart,
    )
    batches = -(-count // 16) * (epochs + 1)
    yield Result(
        claim=f"{JOBS} jobs: each batch prepared once per epoch, staging within its bound",
        measured=f"{stat['prepared']} prepared of {batches}, peak {stat['peak_bytes']:,} of {stat['limit_bytes']:,} B",
        held=stat["prepared"] == batches and stat["peak_bytes"] <= stat["limit_bytes"],
    )


def _search(mode: str, folder: Path, epochs: int) -> tuple[float, list[dict[str, int]]]:
    """Samples/s of all jobs, from the first that begins to the last that ends."""
    for name in ("ready", "done"):
        (folder / name).unlink(missing_ok=True)
    words = [sys.executable, "-m", "benchmarks.data.sharing_job", mode, str(folder)]
    group = f"bench-{time.time_ns()}"
    running = [
        subprocess.Popen([*words, group, str(JOBS), str(epochs)], stdout=subprocess.PIPE, text=True)
        for _ in range(JOBS)
    ]
    told = [json.loads(job.communicate(timeout=280)[0].splitlines()[-1]) for job in running]
    took_s = max(one["end_s"] for one in told) - min(one["start_s"] for one in told)
    return sum(one["samples"] for one in told) / took_s, [one["stat"] for one in told]


def _overhead() -> Iterator[Result]:
    """The same entry read from the own cache, and from a peer over loopback; no bar: it is shown."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as name:
        first = NodeCache(f"{name}/a", 10**9, peers=Peers(store))
        second = NodeCache(f"{name}/b", 10**9, peers=Peers(store))
        peers = first.peers
        if peers is None or second.peers is None:
            raise AssertionError("both were given")
        peers.refresh()
        keys = [number.to_bytes(16, "big") for number in range(200)]
        for key in keys:
            second.load(key, SIZE, lambda key=key: key * (SIZE // 16))  # type: ignore[misc]
        direct_s = [_timed(lambda key=key: second.read(key)) for key in keys if second.contains(key)]  # type: ignore[misc]
        member = next(m for m in peers.members if m.id == second.peers._identity)
        over_s = [
            _timed(lambda key=key: peers._ask(member, key, SIZE, None, 0.0))  # type: ignore[misc]
            for key in keys
            if second.contains(key)
        ]
        peers.leave()
        second.peers.leave()
    direct, over = median(direct_s), median(over_s)
    yield Result(
        claim="a peer's 100 KB over loopback beside a direct read of the same entry (no bar)",
        measured=f"{1e6 * over:.0f} µs against {1e6 * direct:.0f} µs: {1e6 * (over - direct):.0f} µs more",
    )


def _timed(read: "object") -> float:
    start_s = time.perf_counter()
    found = read()  # type: ignore[operator]
    seconds = time.perf_counter() - start_s
    if found is None:
        raise AssertionError("it is there")
    return seconds


def _nodes() -> Iterator[Result]:
    """Two nodes, 65 % each, the bucket's and every node's way limited: the third epoch, apart over shared."""
    count = 160 if quick() else 320
    with (
        tempfile.TemporaryDirectory() as name,
        nodes(2, f"{BUCKET_MBIT}mbit", f"{NODE_MBIT}mbit") as net,
        seaweed(Path(name) / "weed", net.address) as server,
    ):
        for mode in ("true", "false"):
            server.fill(f"train-{mode}", objects(count, SIZE))
        given = Settings(
            bucket="train",
            endpoint=server.endpoint,
            options=server.options,
            folder=name,
            limit_bytes=round(CACHED * count) * charge(SIZE),
            size_bytes=SIZE,
            epochs=3,
            modes=(False, True),
        )
        told = dict(zip(given.modes, run(net, given), strict=True))
    seconds = {mode: max(rank["seconds"][2] for rank in ranks) for mode, ranks in told.items()}
    measured, predicted = seconds[False] / seconds[True], _predicted(count)
    reads = from_bucket(told[False]) / from_bucket(told[True])
    expected, last = sum(epoch_misses("no-evict", CACHED, nodes=2, epochs=3)), total(told[True], "requests")[2]
    yield Result(
        claim=f"two nodes, 65 % each: bucket reads of 3 epochs apart over shared, predicted within {WITHIN:.0%}",
        measured=f"{reads:.3f}, predicted {expected:.3f}; shared, epoch 3: {last:.0f} reads",
        held=abs(reads / expected - 1) <= WITHIN and last == 0,
    )
    yield Result(
        claim=f"two nodes, {BUCKET_MBIT} Mbit/s to the bucket, {NODE_MBIT} between them: epoch 3 apart over shared, "
        f"predicted within {WITHIN:.0%}",
        measured=f"{measured:.2f} ({seconds[False]:.1f} s over {seconds[True]:.1f} s), predicted {predicted:.2f}",
        held=abs(measured / predicted - 1) <= WITHIN,
    )


def _predicted(count: int) -> float:
    """Bound by the links: the job only checks bytes. The bucket's link is shared by both nodes."""
    epoch = EpochReads(samples=count / 2, sample_bytes=SIZE, ready_samples_per_s=2000, first_samples=8)
    bucket = ObjectStoreLink(latency_s=0.001, bytes_per_s=BUCKET_MBIT * 1e6 / 8 / 2, concurrency=64)
    apart = epoch_wait(epoch, bucket, epoch_misses("no-evict", CACHED, nodes=2, epochs=3)[2])
    peer = partitioned(CACHED, 2).peer
    shared = partitioned_wait(epoch, bucket, NODE_MBIT * 1e6 / 8, miss=0.0, peer=peer)
    return (apart.compute_s + apart.wait_s) / (shared.compute_s + shared.wait_s)
