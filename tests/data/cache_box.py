"""What the tests of the cache share: objects whose right bytes anybody can compute, and what lies on the disk."""

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stallwise.data.cache._index import POLICIES
from stallwise.data.cache.cache import NodeCache
from tests.waiting import PATIENCE_S

BLOCK = 4096
IN_FILES = tuple(policy for policy in POLICIES if policy != "packed")
"""A packed cache keeps other promises of disk space; its tests are its own."""


def key_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def bytes_of(number: int, size: int) -> bytes:
    """The one right content of object `number`."""
    return hashlib.shake_128(number.to_bytes(8, "big")).digest(size)


def load(cache: NodeCache, number: int, size: int = 5000, next_use_s: float | None = None) -> str:
    """Get an object through the cache, see that its bytes are right, and say where it came from."""
    loaded = cache.load(
        key_of(number), size, lambda: bytes_of(number, size), next_use_s, fits=lambda d: d == bytes_of(number, size)
    )
    assert loaded.data == bytes_of(number, size), f"object {number} has wrong bytes from {loaded.source}"
    return loaded.source


def entry_files(cache: NodeCache) -> list[Path]:
    return [path for path in (cache.folder / "entries").rglob("*") if path.is_file()]


def entry_file(cache: NodeCache, number: int) -> Path:
    [path] = (cache.folder / "entries").rglob(key_of(number).hex())
    return path


def disk_bytes(cache: NodeCache) -> int:
    """What `du` would say of all entries and parts."""
    total = 0
    for path in (cache.folder / "entries").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            facts = path.lstat()
            total += 0 if path.is_dir() else 512 * facts.st_blocks
    return total


def disk_bytes_at_once(cache: NodeCache) -> int:
    """The same while others work: a walk that sees a file before and its successor after an eviction counts both."""
    with cache._hold().cache_folder._index.holding():
        return disk_bytes(cache)


def assert_sound(cache: NodeCache) -> None:
    """Nobody is writing: no parts, the ledger says what the disk says, within the limit, and every entry is good."""
    stat, files = cache.stat(), entry_files(cache)
    assert [path for path in files if path.suffix] == []
    assert stat.entries == len(files)
    assert disk_bytes(cache) <= stat.used_bytes <= stat.limit_bytes
    assert cache.verify().removed == 0
    assert cache.stat().used_bytes == stat.used_bytes


_fork = multiprocessing.get_context("fork")


@contextlib.contextmanager
def process(target: Callable[..., Any], *arguments: Any) -> Iterator[BaseProcess]:
    """A forked process, killed at the end if it is still there."""
    child = _fork.Process(target=target, args=arguments, daemon=True)
    child.start()
    try:
        yield child
    finally:
        if child.is_alive():
            kill(child)
        child.close()


def kill(child: BaseProcess) -> None:
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_alive())  # join would wait for its children as well


def wait_until(is_true: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.002)
