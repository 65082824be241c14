"""The dataset against a real object store, in the loaders, processes and faults it will meet."""

import hashlib
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, RandomSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache
from stallwise.errors import InputError, ObjectError, StallwiseError
from stallwise.hardware.prices import StorePrices
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.waiting import PATIENCE_S, until

SIZE = 4000
ONCE: dict[str, Any] = {"hedge": False, "timeout_s": PATIENCE_S}
"""A slow answer is no reason to send a request again: requests are counted, on machines of any speed."""


def digest(data: bytes, name: str) -> tuple[str, str]:
    return name, hashlib.sha256(data).hexdigest()


def right(samples: list[tuple[str, str]]) -> bool:
    return all(hashlib.sha256(content(name, SIZE)).hexdigest() == checksum for name, checksum in samples)


def epoch(loader: Any) -> list[tuple[str, str]]:
    return [sample for batch in loader for sample in batch]


@pytest.fixture
def open_bucket(seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path) -> Callable[..., Any]:
    """A dataset over a fresh bucket of `count` objects, by way of the proxy."""

    def make(count: int, **options: Any) -> BucketDataset[tuple[str, str]]:
        name = new_bucket(objects(count, SIZE))
        proxy.reset()
        settings = {
            **ONCE,
            "endpoint": proxy.endpoint,
            "options": seaweed.options,
            "index_folder": tmp_path / "indexes",
        }
        return BucketDataset(f"s3://{name}/", digest, **{**settings, **options})

    return make


def loader_of(dataset: Any, batch: int, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch, sampler=Lookahead(RandomSampler(dataset)), num_workers=workers, collate_fn=list, **options
    )


@pytest.mark.parametrize(
    ("workers", "context", "batch"), [(0, None, 16), (0, None, 1), (2, "fork", 16), (2, "fork", 1), (1, "spawn", 16)]
)
def test_every_object_once_and_right(
    open_bucket: Callable[..., Any], proxy: Proxy, workers: int, context: str | None, batch: int
) -> None:
    dataset = open_bucket(120)
    assert dataset[0][0] == dataset.name(0), "the parent reads before it forks"
    proxy.reset()
    samples = epoch(loader_of(dataset, batch, workers, multiprocessing_context=context))
    assert len({name for name, _ in samples}) == len(samples) == 120
    assert right(samples)
    traffic = proxy.traffic()
    assert traffic.requests.get("get", 0) == 120, "nothing is fetched twice"
    assert traffic.requests.get("list", 0) == 0


def test_one_listing_for_all_ranks_and_restarts(
    open_bucket: Callable[..., Any], seaweed: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    dataset = open_bucket(1500)
    assert len(dataset) == 1500
    pages = proxy.traffic().requests["list"]
    assert pages == 2, "1,000 objects a page"
    assert dataset.account().lists == 2
    again = open_like(dataset, seaweed, proxy, tmp_path)
    assert again.index.fingerprint == dataset.index.fingerprint
    assert proxy.traffic().requests["list"] == pages
    open_like(dataset, seaweed, proxy, tmp_path, refresh=True)
    assert proxy.traffic().requests["list"] == 2 * pages


def open_like(dataset: Any, seaweed: Seaweed, proxy: Proxy, folder: Path, **options: Any) -> BucketDataset[Any]:
    url = dataset._fetcher.bucket.url
    settings = {**ONCE, "endpoint": proxy.endpoint, "options": seaweed.options, "index_folder": folder / "indexes"}
    return BucketDataset(url, digest, **{**settings, **options})


def _read_many(dataset: Any, count: int, back: Any) -> None:
    back.send([dataset[number % len(dataset)] for number in range(count)])


def test_a_parent_that_has_read_forks_readers(open_bucket: Callable[..., Any]) -> None:
    """V12: with clients that are inherited, 156 of 160 such reads fail or are another process's bytes."""
    dataset = open_bucket(20)
    assert right([dataset[number] for number in range(20)])
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    readers = [context.Process(target=_read_many, args=(dataset, 80, back)) for _, back in pipes]
    for reader in readers:
        reader.start()
    samples = [sample for pipe, _ in pipes for sample in (pipe.recv() if pipe.poll(PATIENCE_S) else [])]
    for reader in readers:
        reader.join(PATIENCE_S)
    assert len(samples) == 160
    assert right(samples)
    assert right([dataset[3]])


def test_a_cache_serves_the_second_epoch_and_other_jobs(
    open_bucket: Callable[..., Any], seaweed: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    cache = NodeCache(tmp_path / "cache", limit_bytes=10_000_000)
    dataset = open_bucket(100, cache=cache)
    for _ in range(2):
        assert right(epoch(loader_of(dataset, 8, 2)))
    other = open_like(dataset, seaweed, proxy, tmp_path, cache=tmp_path / "cache", cache_bytes=10_000_000)
    assert right(epoch(loader_of(other, 8, 0)))
    assert proxy.traffic().requests["get"] == 100
    assert dataset.account().hits == 100
    assert other.account().requests == 0


def test_two_jobs_at_once_fetch_each_object_once(
    open_bucket: Callable[..., Any], seaweed: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    """V13. The proxy's latency makes both want the same objects at the same time."""
    dataset = open_bucket(60, cache=NodeCache(tmp_path / "cache", limit_bytes=10_000_000))
    other = open_like(dataset, seaweed, proxy, tmp_path, cache=tmp_path / "cache", cache_bytes=10_000_000)
    proxy.set(latency_s=0.05)
    ours, theirs = iter(loader_of(dataset, 4, 1)), iter(loader_of(other, 4, 1))
    samples = [sample for pair in zip(ours, theirs, strict=True) for batch in pair for sample in batch]
    assert len(samples) == 120
    assert right(samples)
    assert proxy.traffic().requests["get"] == 60


def test_faults_in_passing_are_tried_again(open_bucket: Callable[..., Any], proxy: Proxy) -> None:
    dataset = open_bucket(150)
    proxy.set(slow_down=0.06, internal=0.03, reset_early=0.03, reset_late=0.03, truncate=0.05, shorten=0.05, seed=3)
    samples = epoch(loader_of(dataset, 8, 2))
    assert len({name for name, _ in samples}) == 150
    assert right(samples)
    faults = sum(proxy.traffic().faults.values())
    assert faults > 15
    assert dataset.account().retries == faults


def test_a_stalled_request_is_hedged(open_bucket: Callable[..., Any], proxy: Proxy) -> None:
    dataset = open_bucket(80, timeout_s=20.0, hedge=True)
    proxy.set(stall=0.05, stall_s=15.0, seed=6)
    samples = epoch(loader_of(dataset, 8, 0))
    proxy.set()
    assert right(samples)
    assert dataset.account().hedged > 0


def test_the_last_try_names_the_object(open_bucket: Callable[..., Any], proxy: Proxy) -> None:
    dataset = open_bucket(3, retries=1)
    proxy.set(internal=1.0)
    with pytest.raises(ObjectError, match=rf"{dataset.name(1)} could not be read, tried 2 times"):
        dataset[1]
    assert dataset.account().samples == 0


def test_credentials_are_nowhere(open_bucket: Callable[..., Any], seaweed: Seaweed, tmp_path: Path) -> None:
    secret = seaweed.options["secret_access_key"]
    wrong = {**seaweed.options, "secret_access_key": "not-the-secret-at-all"}
    dataset = open_bucket(2)
    with pytest.raises((InputError, ObjectError)) as caught:
        open_bucket(2, options=wrong, refresh=True)
    assert "not-the-secret-at-all" not in f"{caught.value}"
    assert secret not in repr(dataset._fetcher.bucket)
    for path in (tmp_path / "indexes").iterdir():
        assert secret.encode() not in path.read_bytes()
    helper = dataset._helper
    dataset[0]
    command = Path(f"/proc/{helper._running.process.pid}/cmdline").read_bytes()
    assert secret.encode() not in command


HOSTILE = ("../../escape", "/absolute", "a/../../b", "n" * 4096, "tab\tand\x1b[31mred", "no\0end", ".")


def test_hostile_names_stay_in_the_cache(seaweed: Seaweed, new_bucket: Callable[..., str], tmp_path: Path) -> None:
    """Whatever can be stored is read by its name; whatever cannot be asked for is refused; nothing leaves the cache."""
    bucket = new_bucket([(name, content(name, SIZE)) for name in ("spa ce", "ünï", "%2e%2e/x", "n" * 200)])
    cache = tmp_path / "inner" / "cache"
    options = {"endpoint": seaweed.endpoint, "options": seaweed.options, "index_folder": tmp_path / "indexes"}
    listed = BucketDataset(f"s3://{bucket}/", digest, cache=cache, cache_bytes=10**6, **options)
    assert right([listed[number] for number in range(4)])
    names = BucketDataset(f"s3://{bucket}/", digest, keys=HOSTILE, cache=cache, cache_bytes=10**6, retries=0, **options)
    for number in range(len(HOSTILE)):
        # None of them is there, whatever name it is asked for by.
        with pytest.raises(ObjectError) as caught:
            names[number]
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 800
    outside = {path.name for path in tmp_path.iterdir()} | {path.name for path in (tmp_path / "inner").iterdir()}
    assert outside == {"inner", "indexes", "cache"}
    assert not Path("/absolute").exists()


def test_a_plain_web_server_and_a_folder(tmp_path: Path) -> None:
    import http.server
    import threading

    (tmp_path / "web").mkdir()
    names = [f"{number}.bin" for number in range(12)]
    for name in names:
        (tmp_path / "web" / name).write_bytes(content(name, SIZE))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "web"))

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = BucketDataset(f"http://127.0.0.1:{server.server_port}/", digest, keys=names)
        assert right(epoch(loader_of(web, 4, 2)))
        server.shutdown()
    folder = BucketDataset(f"file://{tmp_path}/web", digest, match="1*.bin", index_folder=tmp_path / "indexes")
    assert [folder.name(number) for number in range(len(folder))] == ["1.bin", "10.bin", "11.bin"]
    assert right(epoch(loader_of(folder, 2, 0)))


def test_a_budget_ends_the_job(open_bucket: Callable[..., Any]) -> None:
    dear = StorePrices(get_usd=0.01, list_usd=0.1, egress_usd_per_byte=0.0, as_of="", source="a test")
    dataset = open_bucket(50, prices=dear, budget_usd=0.3)
    with pytest.raises(StallwiseError, match=r"budget of 0\.3 dollars"):
        epoch(loader_of(dataset, 5, 0))
    assert 0.3 < (dataset.cost_usd() or 0) < 0.8


def test_it_is_pickled_without_its_process(open_bucket: Callable[..., Any]) -> None:
    dataset = open_bucket(4)
    dataset[0]
    assert right([pickle.loads(pickle.dumps(dataset))[1]])  # noqa: S301


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://x"}, "must begin with one of"),
        ({"cache": "/tmp/x"}, "needs a limit"),  # noqa: S108
        ({"lookahead_bytes": 0}, "lookahead_bytes must be at least 1"),
        ({"on_error": "ignore"}, "'raise' or 'skip'"),
        ({"url": "file:///no/such/folder"}, "not a folder"),
        ({"keys": ["a", ""]}, "one has no name"),
        ({"retries": -1}, "retries must be 0 or more"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    (tmp_path / "one.bin").write_bytes(b"x")
    url = settings.pop("url", f"file://{tmp_path}")
    with pytest.raises(InputError, match=message):
        BucketDataset(url, index_folder=tmp_path / "indexes", **settings)


def test_the_helper_ends_with_its_rank(open_bucket: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a").write_bytes(b"x")
    script = (
        "import os, signal, sys; from stallwise.data import BucketDataset; from pathlib import Path\n"
        f"d = BucketDataset('file://{tmp_path}/web', index_folder=Path({str(tmp_path)!r}) / 'i'); d[0]\n"
        "print(d._helper._running.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    helper = int(done.stdout)
    assert os.getpid() != helper
    until(lambda: not Path(f"/proc/{helper}").exists())
