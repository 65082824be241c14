"""`stallwise data` against a real object store: every byte in the cache right, every request counted, nothing lost."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stallwise.data.cache.cache import NodeCache
from stallwise.data.objects.index import index_of
from stallwise.data.objects.store import ObjectBucket
from tests.conftest import Cli
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.figures import Figures
from tests.sentences import coded
from tests.waiting import until

COUNT, SIZE = 60, 20_000
NewBucket = Callable[..., str]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, seaweed: Seaweed, tmp_path: Path) -> None:
    """Credentials where obstore looks for them, and no index of another test."""
    for name, value in (seaweed.environment | {"XDG_CACHE_HOME": str(tmp_path / "cache-home")}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(new_bucket: NewBucket) -> str:
    return new_bucket(objects(COUNT, SIZE))


@pytest.fixture
def say(ask: Cli, proxy: Proxy) -> Callable[..., Any]:
    """A command about the store, by way of the counting proxy; its document, or its sentence."""

    def run(command: str, *arguments: str | Path, code: int = 0) -> Any:
        where = ("--endpoint", proxy.endpoint) if command != "stat" else ()
        done = ask("data", command, *map(str, arguments), *where, "--json", code=code)
        return coded(done.stdout) if done.stdout else done.stderr

    return run


Say = Callable[..., Any]


def _cached(folder: Path, bucket: str, proxy: Proxy) -> dict[str, bytes | None]:
    """What the cache gives for every object of the bucket as it was last listed."""
    index = index_of(ObjectBucket(f"s3://{bucket}/", proxy.endpoint)).index
    cache = NodeCache.existing(folder)
    return {index[number].name: cache.read(index.key(number)) for number in range(len(index))}


def test_warm_brings_every_object_once_and_lists_once(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    result = say("warm", f"s3://{bucket}/", "--cache", tmp_path / "cache", "--cache-size", "10MB")
    traffic = proxy.traffic()
    assert traffic.requests == {"list": 1, "get": COUNT}
    assert set(traffic.objects.values()) == {1}
    assert result["warmed"] | {"seconds": 0} == {
        "url": f"s3://{bucket}/", "objects": COUNT, "bytes": COUNT * SIZE, "present": 0, "fetched": COUNT,
        "fetched_bytes": COUNT * SIZE, "dropped": 0, "no_room": 0, "no_room_bytes": 0, "failed": [], "left": 0,
        "requests": COUNT, "lists": 1, "retries": 0, "seconds": 0, "usd": pytest.approx(COUNT * 0.4e-6 + 5e-6),
        "interrupted": False, "stopped_because": None,
    }  # fmt: skip
    assert _cached(tmp_path / "cache", bucket, proxy) == dict(objects(COUNT, SIZE))

    proxy.reset()
    again = say("warm", f"s3://{bucket}/", "--cache", tmp_path / "cache")
    assert again["warmed"]["present"] == COUNT
    assert proxy.traffic().requests == {}, "the index is kept, and nothing is missing"


def test_warm_fetches_only_what_there_is_room_for(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    limit = COUNT * SIZE // 2
    result = say("warm", f"s3://{bucket}/", "--cache", tmp_path / "cache", "--cache-size", f"{limit}B")
    kept = result["cache"]["entries"]
    assert result["cache"]["used_bytes"] <= limit
    assert 0.8 * limit / SIZE <= kept <= limit / SIZE
    assert proxy.traffic().requests["get"] == kept == result["warmed"]["fetched"]
    assert result["warmed"]["no_room"] == COUNT - kept


def test_an_interrupted_warm_goes_on_where_it_stopped(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    proxy.set(latency_s=0.5)
    folder = tmp_path / "cache"
    command = [
        *(sys.executable, "-m", "stallwise", "data", "warm", f"s3://{bucket}/", "--cache", str(folder)),
        *("--cache-size", "10MB", "--concurrency", "2", "--endpoint", proxy.endpoint, "--json"),
    ]
    work = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: proxy.traffic().requests.get("get", 0) >= 4)
    proxy.set(latency_s=5.0)  # else it may be done before a busy machine interrupts it
    work.send_signal(signal.SIGINT)
    out, message = work.communicate(timeout=250)
    assert (work.returncode, "Traceback" in message) == (130, False)
    assert "Run it again to go on" in message
    before = json.loads(out)["warmed"]
    assert before["interrupted"]
    assert 0 < before["fetched"] < COUNT

    proxy.set()
    rest = say("warm", f"s3://{bucket}/", "--cache", folder)["warmed"]
    assert rest["present"] >= before["fetched"], "what arrived was kept"
    assert rest["fetched"] == COUNT - rest["present"]
    assert say("verify", "--cache", folder)["removed"] == 0
    assert _cached(folder, bucket, proxy) == dict(objects(COUNT, SIZE))


def test_what_changed_in_the_bucket_is_named(
    cli: Cli, say: Say, bucket: str, proxy: Proxy, seaweed: Seaweed, tmp_path: Path
) -> None:
    import obstore

    say("warm", f"s3://{bucket}/", "--cache", tmp_path / "old", "--cache-size", "10MB")
    obstore.put(seaweed.store(bucket), "000003.bin", content("another", SIZE), use_multipart=False)
    obstore.delete(seaweed.store(bucket), "000007.bin")
    obstore.put(seaweed.store(bucket), "new.bin", b"new", use_multipart=False)
    arguments = ("data", "warm", f"s3://{bucket}/", "--cache", str(tmp_path / "new"), "--cache-size", "10MB")
    done = cli(*arguments, "--endpoint", proxy.endpoint, code=3)
    assert f"2 of {COUNT} objects could not be fetched" in done.stderr
    assert "000003.bin has changed" in done.stderr
    assert "000007.bin is gone" in done.stderr
    assert f"{COUNT - 2} objects" in done.stdout

    result = say("verify", "--cache", tmp_path / "old", f"s3://{bucket}/")
    (one,) = result["buckets"]
    assert (one["changed"], one["gone"], one["new"]) == (1, 1, 1)
    assert (one["cached"], one["missing"], result["extra"]) == (COUNT - 2, 2, 2)
    assert say("warm", f"s3://{bucket}/", "--cache", tmp_path / "old")["warmed"]["fetched"] == 2


def test_verify_removes_a_flipped_bit_and_warm_heals_it(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    say("warm", f"s3://{bucket}/", "--cache", folder, "--cache-size", "10MB")
    entry = max(folder.glob("entries/*/*"), key=lambda path: path.stat().st_size)
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    result = say("verify", "--cache", folder)
    assert (result["entries"], result["removed"]) == (COUNT, 1)
    assert say("verify", "--cache", folder)["removed"] == 0
    assert say("warm", f"s3://{bucket}/", "--cache", folder)["warmed"]["fetched"] == 1
    assert _cached(folder, bucket, proxy) == dict(objects(COUNT, SIZE))


def test_warm_survives_a_bad_store(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    proxy.set(slow_down=0.05, truncate=0.05, shorten=0.05, reset_late=0.05, seed=3)
    result = say("warm", f"s3://{bucket}/", "--cache", tmp_path / "cache", "--cache-size", "10MB")["warmed"]
    assert result["failed"] == []
    assert result["retries"] == sum(proxy.traffic().faults.values()) > 0
    assert result["requests"] == COUNT + result["retries"] == proxy.traffic().requests["get"]
    assert _cached(tmp_path / "cache", bucket, proxy) == dict(objects(COUNT, SIZE))


def test_a_budget_that_is_too_small_costs_nothing(say: Say, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    message = say(
        "warm", f"s3://{bucket}/", "--cache", tmp_path / "cache", "--cache-size", "10MB", "--budget", "0.00001", code=2
    )
    assert "more than the budget of 1e-05" in message["error"]["message"]
    assert "get" not in proxy.traffic().requests


def test_a_secret_given_as_an_option_is_nowhere_in_the_answer(
    cli: Cli, say: Say, bucket: str, proxy: Proxy, tmp_path: Path
) -> None:
    secret = "hush" * 6
    done = cli(
        *("data", "warm", f"s3://{bucket}/", "--cache", str(tmp_path / "cache"), "--cache-size", "1MB"),
        *("--endpoint", proxy.endpoint, "--option", f"secret_access_key={secret}"),
        code=2,
    )
    assert "cannot be listed" in done.stderr
    assert secret not in done.stdout + done.stderr
    assert secret not in say("bench", f"s3://{bucket}/", "--option", secret, code=2)


def test_bench_counts_and_bounds_itself(say: Say, bucket: str, proxy: Proxy) -> None:
    proxy.set(latency_s=0.05)
    result = say("bench", f"s3://{bucket}/", "--max-time", "5s", "--max-concurrency", "4")
    # A busy machine may not come to the last level within its time.
    assert [level["concurrency"] for level in result["levels"]] == [1, 2, 4][: len(result["levels"])] != []
    assert result["requests"] == proxy.traffic().requests["get"]
    assert result["lists"] == proxy.traffic().requests["list"] == 1
    assert result["object_bytes"] == SIZE
    # The proxy waits 50 ms before it answers; what comes on top is this machine's.
    assert result["latency_s"] >= 0.05
    for level in result["levels"]:
        assert level["objects_per_s"] <= level["concurrency"] / 0.05


@pytest.mark.truth
def test_bench_finds_the_latency_and_what_concurrency_gives(
    say: Say, bucket: str, proxy: Proxy, figures: Figures
) -> None:
    proxy.set(latency_s=0.05)
    result = say("bench", f"s3://{bucket}/", "--max-time", "5s", "--max-concurrency", "4")
    alone, _, four = (level["objects_per_s"] for level in result["levels"])
    figures.judge("data bench: latency", result["latency_s"], 0.05, rel=0.6)
    figures.judge("data bench: four requests at once over one", four / alone, 4.0, rel=0.25, unit="x")
    assert result["seconds"] < 8


def test_bench_keeps_to_its_budget(say: Say, bucket: str, proxy: Proxy) -> None:
    result = say("bench", f"s3://{bucket}/", "--max-time", "5s", "--budget", "0.0001")
    assert result["usd"] < 0.0001 + 64 * 0.4e-6
    assert result["requests"] == proxy.traffic().requests["get"] < 400


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    """A plain web server over a folder with three objects."""
    folder = tmp_path / "site" / "data"
    folder.mkdir(parents=True)
    for name, data in objects(3, SIZE):
        (folder / name).write_bytes(data)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/data/"
        server.shutdown()


def test_a_web_server_is_read_by_names(ask: Cli, website: str, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"{name}\n" for name, _ in objects(3, SIZE)))
    arguments = ("data", "warm", website, "--cache", str(tmp_path / "cache"), "--cache-size", "1MB")
    assert "needs its objects' names" in ask(*arguments, code=2).stderr
    result = json.loads(ask(*arguments, "--keys", str(names), "--json").stdout)["warmed"]
    assert (result["fetched"], result["fetched_bytes"], result["usd"]) == (3, 3 * SIZE, 0.0)
    benched = json.loads(ask("data", "bench", website, "--keys", str(names), "--max-time", "1s", "--json").stdout)
    assert benched["listing"] is None
    assert benched["object_bytes"] == SIZE


def test_a_folder_is_a_bucket_too(ask: Cli, say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for name, data in objects(5, 1000):
        (folder / name).write_bytes(data)
    cache = tmp_path / "cache"
    text = ask("data", "warm", f"file://{folder}", "--cache", str(cache), "--cache-size", "1MB").stdout
    assert "5 objects, 5 kB" in text
    assert "$0" in text
    assert "5 entries" in ask("data", "stat", "--cache", str(cache)).stdout
    result = say("stat", "--cache", cache)
    assert (result["entries"], result["policy"], result["misses"]) == (5, "no-evict", 5)
    assert len(list(folder.iterdir())) == 5, "nothing is written to a bucket"
