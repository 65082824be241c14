"""Many processes and one cache: one fetch per object, and kills at every point."""

import contextlib
import fcntl
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwise.data.cache._index import POLICIES, CachePolicy
from stallwise.data.cache.cache import NodeCache
from tests.data.cache_box import (
    BLOCK,
    IN_FILES,
    assert_sound,
    bytes_of,
    disk_bytes,
    disk_bytes_at_once,
    key_of,
    kill,
    load,
    process,
    wait_until,
)
from tests.waiting import PATIENCE_S


def note(log: Path, text: str) -> None:
    """A line in a file that many processes write."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


def noted(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def slowly(log: Path, number: int, size: int, seconds: float) -> Callable[[], bytes]:
    def fetch() -> bytes:
        note(log, str(number))
        time.sleep(seconds)
        return bytes_of(number, size)

    return fetch


def read_all(cache: NodeCache, log: Path, numbers: list[int], size: int = 20_000) -> None:
    for number in numbers:
        loaded = cache.load(key_of(number), size, slowly(log, number, size, 0.001))
        assert loaded.data == bytes_of(number, size)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_four_processes_fetch_each_object_once(tmp_path: Path, method: str) -> None:
    """Two jobs of two workers, all over the same objects in the same order: the hardest case for claims."""
    cache, log = NodeCache(tmp_path / "cache", 10_000_000), tmp_path / "log"
    if method == "fork":
        load(cache, 1000)  # the children inherit an open cache
    start = multiprocessing.get_context(method)
    numbers = list(range(60))
    children = [start.Process(target=read_all, args=(cache, log, numbers)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert sorted(map(int, noted(log))) == numbers
    stat = cache.stat()
    assert stat.misses == len(numbers) + (method == "fork")
    assert stat.hits + stat.waited == 3 * len(numbers)
    assert_sound(cache)


def claim_and_hang(cache: NodeCache, log: Path) -> None:
    cache.load(key_of(1), 5000, slowly(log, 1, 5000, 100))


def test_when_the_claimant_is_killed_the_waiter_takes_over(tmp_path: Path) -> None:
    cache, log = NodeCache(tmp_path / "cache", 1_000_000), tmp_path / "log"
    with process(claim_and_hang, cache, log) as claimant:
        wait_until(lambda: noted(log))
        sources: list[str] = []
        waiter = threading.Thread(target=lambda: sources.append(load(cache, 1)))
        waiter.start()
        time.sleep(0.1)
        assert not sources
        kill(claimant)
        waiter.join(PATIENCE_S)
    assert sources == ["store"]
    assert load(cache, 1) == "cache"


def hold_and_fork(cache: NodeCache, log: Path, pids: Path) -> None:
    """Fetch in a thread, and meanwhile fork a child that lives on."""
    thread = threading.Thread(target=claim_and_hang, args=(cache, log), daemon=True)
    thread.start()
    wait_until(lambda: noted(log))
    child = os.fork()
    if child == 0:
        time.sleep(100)
        os._exit(0)
    note(pids, str(child))
    time.sleep(100)


def test_a_child_forked_during_a_fetch_does_not_keep_the_claim_of_its_dead_parent(tmp_path: Path) -> None:
    cache, log, pids = NodeCache(tmp_path / "cache", 1_000_000), tmp_path / "log", tmp_path / "pids"
    with process(hold_and_fork, cache, log, pids) as parent:
        wait_until(lambda: noted(pids))
        kill(parent)
        began_s = time.monotonic()
        assert load(cache, 1) == "store"
        assert time.monotonic() - began_s < 90, "not the child's 100 s"
        os.kill(int(noted(pids)[0]), signal.SIGKILL)


def test_nobody_waits_for_ever_for_a_stopped_claimant(tmp_path: Path) -> None:
    cache, log = NodeCache(tmp_path / "cache", 1_000_000, patience_s=0.3), tmp_path / "log"
    with process(claim_and_hang, cache, log) as claimant:
        wait_until(lambda: noted(log))
        assert claimant.pid
        os.kill(claimant.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        assert load(cache, 1) == "store"
        assert 0.3 <= time.monotonic() - began_s < 90
        assert cache.stat().bypassed == 1


def hold_the_ledger(cache: NodeCache, log: Path) -> None:
    with cache._hold().cache_folder._index.changing():
        note(log, "held")
        time.sleep(100)


def test_a_process_stopped_with_the_ledger_in_hand_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stallwise.data.cache._index._PATIENCE_S", 1.0)
    cache, log = NodeCache(tmp_path / "cache", 1_000_000, "lru"), tmp_path / "log"
    load(cache, 1)
    with process(hold_the_ledger, cache, log) as holder:
        wait_until(lambda: noted(log))
        assert [load(cache, number) for number in (1, 2, 2, 3, 1)] == ["cache", "store", "store", "store", "cache"]
        assert len(caplog.records) == 1, "waited for once"
        kill(holder)
    cache.close()
    assert [load(cache, 2), load(cache, 2)] == ["store", "cache"]
    assert_sound(cache)


def test_what_will_not_be_kept_is_not_waited_for(tmp_path: Path) -> None:
    cache, log = NodeCache(tmp_path / "cache", 4 * BLOCK), tmp_path / "log"
    load(cache, 0, 3 * BLOCK)
    with process(claim_and_hang, cache, log):
        wait_until(lambda: noted(log))
        assert load(cache, 1) == "store"


def read_in_thread(cache: NodeCache, results: Any) -> None:
    results.put(sum(load(cache, number) == "cache" for number in range(20)))


def test_a_fork_in_the_midst_of_threads_that_use_the_cache(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 10_000_000, "lru")
    for number in range(20):
        load(cache, number)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            load(cache, random.randrange(100, 200))

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for thread in threads:
        thread.start()
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    children = [fork.Process(target=read_in_thread, args=(cache, results)) for _ in range(10)]
    for child in children:
        child.start()
        time.sleep(0.005)
    assert [results.get(timeout=250) for _ in children] == [20] * 10
    for child in children:
        child.join(PATIENCE_S)
    stop.set()
    for thread in threads:
        thread.join()
    assert [child.exitcode for child in children] == [0] * 10
    assert_sound(cache)


def count_and_end(cache: NodeCache) -> None:
    for _ in range(7):
        load(cache, 1)


def test_counts_of_processes_that_end_are_exact(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000, "lru")
    load(cache, 1)
    for _ in range(3):
        with process(count_and_end, cache) as child:
            child.join(PATIENCE_S)
            assert child.exitcode == 0
    assert (cache.stat().hits, cache.stat().misses) == (21, 1)


def write_when_told(cache: NodeCache, log: Path, go: Path) -> None:
    def writev(handle: int, data: Any) -> int:
        note(log, "begun")
        wait_until(go.exists)
        return write(handle, data)

    write, os.writev = os.writev, writev
    load(cache, 9, 2 * BLOCK - 48)


def test_a_part_that_is_being_written_counts_whole_when_the_ledger_is_rebuilt(tmp_path: Path) -> None:
    cache, log, go = NodeCache(tmp_path / "cache", 4 * BLOCK, "lru"), tmp_path / "log", tmp_path / "go"
    cache.stat()
    with process(write_when_told, cache, log, go) as writer:
        wait_until(lambda: noted(log))
        with (cache.folder / "ledger").open("r+b") as ledger:
            ledger.write(b"nonsense" * 10)
        for number in range(4):
            load(cache, number, 100)
        assert disk_bytes(cache) == 2 * BLOCK
        go.touch()
        writer.join(PATIENCE_S)
        assert disk_bytes(cache) == 4 * BLOCK
    assert load(cache, 9, 2 * BLOCK - 48) == "cache"
    assert_sound(cache)


# Every call that leaves a trace outside the process.
CALLS = [
    (os, name) for name in ("open", "pwrite", "writev", "truncate", "replace", "unlink", "mkdir", "posix_fallocate")
] + [(fcntl, "fcntl")]


def die_at(call: int, work: Callable[[], object]) -> None:
    """Do `work`, and be killed right before the `call`-th call."""
    left = [call]

    def deadly(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return called

    for module, name in CALLS:
        setattr(module, name, deadly(getattr(module, name)))
    work()
    os._exit(0)


def survivor_of(call: int, work: Callable[[], object]) -> bool:
    """Whether a process that is to die at that call came through."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            die_at(call, work)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


@pytest.mark.parametrize(
    "policy",
    ["farthest", pytest.param("lru", marks=pytest.mark.soak), pytest.param("no-evict", marks=pytest.mark.soak)],
)
def test_a_kill_at_any_call_leaves_a_cache_that_works(tmp_path: Path, policy: CachePolicy) -> None:
    """Opening a new folder, a first insert, a full cache that evicts two for one: killed before every single call."""

    def work() -> None:
        cache = NodeCache(folder, 2 * BLOCK, policy)
        for number, size in enumerate([100, 100, 5000]):
            load(cache, number, size, 4e9 - number)

    for call in range(1, 1000):
        folder = tmp_path / f"{call}"
        is_through = survivor_of(call, work)
        cache = NodeCache(folder, 2 * BLOCK, policy)
        for number, size in enumerate([100, 100, 5000]):
            load(cache, number, size, 4e9 - number)
            assert disk_bytes(cache) <= 2 * BLOCK, f"killed at call {call}"
        assert_sound(cache)
        assert cache.stat().entries == (2 if policy == "no-evict" else 1)
        cache.close()
        shutil.rmtree(folder)
        if is_through:
            break
    assert call > 60
    assert is_through


def test_a_live_neighbour_repairs_what_a_killed_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a cache that stays open: no reopening helps it, only what it finds when it needs the room."""
    monkeypatch.setattr("stallwise.data.cache._eviction._TIDY_S", 0.0)
    cache = NodeCache(tmp_path / "cache", 4 * BLOCK, "lru")

    def work() -> None:
        for number in range(10, 14):
            load(NodeCache(cache.folder, 4 * BLOCK, "lru"), number, 5000)

    for call in range(1, 60):
        survivor_of(call, work)
        for number in range(3):
            load(cache, number, 5000)
            assert disk_bytes(cache) <= 4 * BLOCK, f"killed at call {call}"
        assert [load(cache, number, 5000) for number in (1, 2)] == ["cache"] * 2, f"killed at call {call}"
    cache.close()
    assert_sound(cache)


def storm(cache: NodeCache, seed: int, log: Path) -> None:
    """Read at random for ever, from three threads."""
    random.seed(seed)

    def churn() -> None:
        for _ in range(1_000_000):
            number = random.randrange(120)
            size = 1000 + 997 * (number % 60)
            loaded = cache.load(key_of(number), size, lambda: bytes_of(number, size), time.time() + random.random())  # noqa: B023
            if loaded.data != bytes_of(number, size):
                note(log, f"wrong:{number}")

    threads = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    note(log, "ended")


def kill_storm(tmp_path: Path, policy: CachePolicy, kills: int, seed: int) -> None:
    cache = NodeCache(tmp_path / policy, 1_000_000, policy, patience_s=20)
    log, dice = tmp_path / "log", random.Random(seed)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(process(storm, cache, seed + n, log)) for n in range(3)]
        for round_ in range(kills):
            until_s = time.monotonic() + dice.uniform(0.02, 0.15)
            while time.monotonic() < until_s:
                assert disk_bytes_at_once(cache) <= 1_000_000
                time.sleep(0.002)
            kill(children.pop(dice.randrange(3)))
            children.append(stack.enter_context(process(storm, cache, seed + 3 + round_, log)))
        before = cache.stat()
        wait_until(lambda: cache.stat().hits > before.hits + 100)  # nobody is stuck
    assert noted(log) == []
    cache.close()
    assert_sound(cache)


@pytest.mark.parametrize("policy", IN_FILES)
def test_kills_at_random_moments(tmp_path: Path, policy: CachePolicy) -> None:
    kill_storm(tmp_path, policy, kills=5, seed=POLICIES.index(policy))


@pytest.mark.soak
@pytest.mark.parametrize("policy", IN_FILES)
def test_a_hundred_kills_at_random_moments(tmp_path: Path, policy: CachePolicy) -> None:
    kill_storm(tmp_path, policy, kills=100, seed=100 + POLICIES.index(policy))
