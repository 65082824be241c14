"""What `stallwise data plan` predicts against what a job then does, on a link of 20 ms and 100 Mbit/s, and a real run.

Bar, written beforehand: the wait of an epoch within 25 % of the prediction or within its interval, for no cache and for
half of the data cached; measured on an idle machine. The prediction takes link and latency from `stallwise data bench`
over the same link and knows nothing else of it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.data.made_loads import make_bucket_run
from tests.data.testbed.link import slow_link
from tests.data.testbed.seaweed import Seaweed, objects, seaweed
from tests.figures import Figures

COUNT, SIZE, BATCH = 192, 100_000, 16
STEP_S = BATCH / 500  # the link brings about 120 samples a second


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A store behind a slow link, with a bucket `data`."""
    folder = tmp_path_factory.mktemp("far")
    with slow_link(20, "100mbit") as link, seaweed(folder, link.address, link.namespace) as server:
        server.fill("data", objects(COUNT, SIZE), at_once=8)
        yield server


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))


def _epochs(server: Seaweed, cache_bytes: int, folder: Path, epochs: int) -> list[float]:
    """Seconds beyond its steps that each epoch of a job that sleeps through them takes."""
    from torch.utils.data import DataLoader, RandomSampler

    from stallwise.data import BucketDataset, Lookahead, NodeCache

    cache = NodeCache(folder, cache_bytes) if cache_bytes else None
    dataset = BucketDataset("s3://data/", endpoint=server.endpoint, options=server.options, cache=cache)
    loader = DataLoader(dataset, BATCH, sampler=Lookahead(RandomSampler(dataset)), collate_fn=len)
    waits = []
    for _ in range(epochs):
        start, slept = time.monotonic(), 0.0
        for size in loader:
            assert size == BATCH
            began = time.monotonic()
            time.sleep(STEP_S)
            slept += time.monotonic() - began
        waits.append(time.monotonic() - start - slept)
    return waits


@pytest.mark.truth
def test_the_predicted_wait_is_the_measured_one(
    ask: Cli, far: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    for name, value in far.environment.items():
        monkeypatch.setenv(name, value)
    benched = ask(
        "data",
        "bench",
        "s3://data/",
        "--endpoint",
        far.endpoint,
        "--max-time",
        "8s",
        "--max-concurrency",
        "8",
        "--json",
    ).stdout
    (tmp_path / "bench.json").write_text(benched)
    run = make_bucket_run(tmp_path / "run", ranks=1, step_s=STEP_S * 2, wait_s=0.0)  # 32 samples a step
    half = COUNT * SIZE // 2
    options = ("--bench", "bench.json", "--epoch-samples", str(COUNT), "--epochs", "2", "--cache", str(half))
    result = json.loads(ask("data", "plan", str(run), *options, "--json").stdout)
    rows: dict[str, Any] = {row["name"]: row for row in result["alternatives"]}

    (none,) = _epochs(far, 0, tmp_path, 1)
    # Entries take whole blocks of the disk; so the cache holds a little less than half.
    empty, settled = _epochs(far, half, tmp_path / "cache", 2)
    pairs = {
        "no cache": (rows["no cache"]["first"], none),
        "half, first epoch": (rows["this cache"]["first"], empty),
        "half, second epoch": (rows["this cache"]["last"], settled),
    }
    for what, (predicted, measured) in pairs.items():
        low, high = (
            min(predicted["low_s"], 0.75 * predicted["wait_s"]),
            max(predicted["high_s"], 1.25 * predicted["wait_s"]),
        )
        name = f"data plan, {what}: wait, predicted {predicted['wait_s']:.2f} s"
        figures.at_least(name, measured, low)
        figures.at_most(name, measured, high)


JOB = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from stallwise.data import BucketDataset, Lookahead, NodeCache

def decode(data, name):
    return torch.frombuffer(bytearray(data[:256]), dtype=torch.uint8).float()

cache = NodeCache(sys.argv[3], 600_000)
dataset = BucketDataset("s3://" + sys.argv[1] + "/", decode, endpoint=sys.argv[2], cache=cache)
order = RandomSampler(dataset, generator=torch.Generator().manual_seed(0))
loader = DataLoader(dataset, 4, num_workers=1, sampler=Lookahead(order), persistent_workers=True)
net = nn.Linear(256, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    for batch in loader:
        net(batch).sum().backward()
        optimizer.step()
        time.sleep(0.003)
"""


def test_a_profiled_job_tells_its_bucket(
    ask: Cli, seaweed: Seaweed, new_bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = new_bucket(objects(60, 20_000))
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "job.py").write_text(JOB)
    ask(
        "data", "warm", f"s3://{bucket}/", "--endpoint", seaweed.endpoint, "--cache", "cache", "--cache-size", "600000B"
    )
    arguments = ("job.py", bucket, seaweed.endpoint, str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-m", "stallwise", "profile", "--max-time", "1s", "--no-cold", "-o", "run", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "\nbucket " in done.stdout
    result = json.loads(ask("data", "stat", "run", "--json").stdout)
    total, store = result["use"]["total"], result["use"]["store"]
    assert (store["url"], store["objects"], store["bytes"]) == (f"s3://{bucket}/", 60, 60 * 20_000)
    assert (store["policy"], store["cache_bytes"]) == ("no-evict", 600_000)
    assert total["data_bytes"] == total["samples"] * 20_000
    assert 0 < total["hits"] < total["samples"]
    assert total["fetched_bytes"] == (total["requests"] - total["retries"]) * 20_000 > 0
    assert result["epoch_usd"] > 0
    assert seaweed.secret_key not in (tmp_path / "run" / "manifest.json").read_text() + done.stdout + done.stderr
    planned = json.loads(ask("data", "plan", "run", "--cache-size", "1MB", "--store-link", "1gbit", "--json").stdout)
    assert planned["facts"]["samples"] == 60
    assert planned["measured"]["miss"] == pytest.approx(1 - total["hits"] / total["samples"])


SHARING_LINK = ("--store-link", "8mbit", "--latency", "10ms", "--epoch-samples", "1000", "--sample-size", "20KB")


def planned(ask: Cli, folder: Path, *words: str) -> dict[str, Any]:
    run = make_bucket_run(folder / "run", ranks=1, step_s=0.1, wait_s=0.0)
    plan: dict[str, Any] = json.loads(ask("data", "plan", str(run), *SHARING_LINK, *words, "--json").stdout)
    return plan


def test_nodes_that_share_caches_read_the_bucket_once(ask: Cli, tmp_path: Path) -> None:
    plan = planned(ask, tmp_path, "--cache-size", "13MB", "--nodes", "2", "--epochs", "3", "--peer-link", "1gbit")
    rows = {(row["name"], row["sticky"]): row for row in plan["alternatives"]}
    assert rows["this cache, shared", False]["misses"] == [1.0, 0.0, 0.0]
    assert rows["this cache", False]["misses"] == pytest.approx([1.0, 0.5, 0.35])
    assert rows["this cache, shared", False]["requests_last"] == 0
    assert rows["this cache, shared", False]["epochs_s"] < rows["this cache", False]["epochs_s"]
    slow = planned(
        ask, tmp_path / "slow", "--cache-size", "13MB", "--nodes", "2", "--epochs", "3", "--peer-link", "80kbit"
    )
    again = {row["name"]: row for row in slow["alternatives"]}
    assert again["this cache, shared"]["epochs_s"] > rows["this cache, shared", False]["epochs_s"]


def test_one_node_has_nobody_to_share_with(ask: Cli, tmp_path: Path) -> None:
    plan = planned(ask, tmp_path, "--cache-size", "13MB", "--nodes", "1")
    assert not any("shared" in row["name"] for row in plan["alternatives"])
    assert plan["jobs"] is None


def test_jobs_that_prepare_together(ask: Cli, tmp_path: Path) -> None:
    jobs = planned(ask, tmp_path, "--cache-size", "20MB", "--nodes", "1", "--jobs", "8")["jobs"]
    assert jobs["jobs"] == 8
    assert 1 <= jobs["gain"] <= 8 + 1e-9
    assert jobs["apart"]["reads"] >= jobs["together"]["reads"] == 0
    run = make_bucket_run(tmp_path / "shown", ranks=1, step_s=0.1, wait_s=0.0)
    shown = ask("data", "plan", str(run), *SHARING_LINK, "--cache-size", "20MB", "--jobs", "8").stdout
    assert "prepared together (SharedLoader)" in shown
