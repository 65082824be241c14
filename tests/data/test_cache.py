"""One process and one cache: what goes in comes out, within the limit."""

import os
import pickle
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.data.cache._index import POLICIES, CachePolicy
from stallwise.data.cache.cache import NodeCache
from stallwise.errors import CacheError, InputError
from tests.data.cache_box import BLOCK, IN_FILES, assert_sound, bytes_of, disk_bytes, entry_files, key_of, load
from tests.waiting import PATIENCE_S


def test_an_object_is_fetched_once_and_then_read_from_the_cache(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    assert not cache.contains(key_of(1))
    assert cache.read(key_of(1)) is None
    assert load(cache, 1) == "store"
    assert load(cache, 1) == "cache"
    assert cache.contains(key_of(1))
    assert cache.read(key_of(1)) == bytes_of(1, 5000)
    stat = cache.stat()
    assert (stat.hits, stat.misses, stat.inserted, stat.entries, stat.used_bytes) == (2, 2, 1, 1, 2 * BLOCK)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 48, BLOCK - 47, 3_000_000])
def test_any_size_goes_in_and_comes_out(tmp_path: Path, size: int) -> None:
    cache = NodeCache(tmp_path / "cache", 10_000_000)
    assert [load(cache, 7, size), load(cache, 7, size)] == ["store", "cache"]
    assert cache.stat().used_bytes == -(-(size + 48) // BLOCK) * BLOCK
    assert_sound(cache)


def test_fetch_may_return_any_buffer(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    loaded = cache.load(key_of(1), 3, lambda: memoryview(bytearray(b"abc")))
    assert loaded.data == b"abc"
    assert type(loaded.data) is bytes
    assert cache.read(key_of(1)) == b"abc"


@pytest.mark.parametrize("policy", POLICIES)
def test_what_does_not_fit_is_served_and_not_kept(tmp_path: Path, policy: CachePolicy) -> None:
    cache = NodeCache(tmp_path / "cache", 3 * BLOCK, policy)
    assert load(cache, 1, 3 * BLOCK) == "store"  # a header too large
    assert load(cache, 1, 3 * BLOCK) == "store"
    assert cache.stat().bypassed == 2
    assert entry_files(cache) == []


def test_a_full_cache_that_does_not_evict_keeps_what_it_has(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 10 * BLOCK)
    assert [load(cache, number, 100) for number in range(20)] == ["store"] * 20
    assert [load(cache, number, 100) for number in range(20)] == ["cache"] * 10 + ["store"] * 10
    assert (cache.stat().evictions, cache.stat().bypassed) == (0, 20)
    assert_sound(cache)


def test_an_error_of_fetch_goes_to_the_caller_and_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)

    def fail() -> bytes:
        raise ConnectionError("no bucket")

    with pytest.raises(ConnectionError, match="no bucket"):
        cache.load(key_of(1), 5000, fail)
    assert load(cache, 1) == "store"
    assert_sound(cache)


def test_clear_empties_it_and_it_goes_on(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000, "lru")
    for number in range(10):
        load(cache, number)
    cache.clear()
    assert (cache.stat().entries, cache.stat().used_bytes, disk_bytes(cache)) == (0, 0, 0)
    assert [load(cache, 3), load(cache, 3)] == ["store", "cache"]
    assert_sound(cache)


def test_verify_reads_everything_and_tells_how_far_it_is(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    for number in range(5):
        load(cache, number)
    calls: list[tuple[int, int]] = []
    verified = cache.verify(lambda done, total: calls.append((done, total)))
    assert (verified.entries, verified.removed) == (5, 0)
    assert calls == [(number, 5) for number in range(1, 6)]


def test_a_pickled_cache_is_its_settings(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000, "lru", patience_s=3)
    load(cache, 1)
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301 - our own
    assert (copy.folder, copy.limit_bytes, copy.policy, copy.patience_s) == (cache.folder, 1_000_000, "lru", 3)
    assert load(copy, 1) == "cache"
    assert repr(copy) == f"NodeCache('{tmp_path}/cache', limit_bytes=1000000, policy='lru')"


def test_an_existing_cache_is_opened_as_it_was_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no cache in"):
        NodeCache.existing(tmp_path / "cache")
    cache = NodeCache(tmp_path / "cache", 1_000_000, "lru")
    load(cache, 1)
    cache.close()
    again = NodeCache.existing(tmp_path / "cache")
    assert (again.limit_bytes, again.policy, again.stat().entries) == (1_000_000, "lru", 1)


def test_counts_go_on_where_the_last_process_stopped(tmp_path: Path) -> None:
    for _ in range(3):
        cache = NodeCache(tmp_path / "cache", 1_000_000)
        load(cache, 1)
        load(cache, 1)
        cache.close()
    stat = NodeCache(tmp_path / "cache", 1_000_000).stat()
    assert (stat.hits, stat.misses) == (5, 1)


def test_wrong_settings_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No cache policy is called 'mru'\. There are no-evict"):
        NodeCache(tmp_path, 1000, "mru")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit of more than 0 bytes"):
        NodeCache(tmp_path, 0)
    with pytest.raises(InputError, match="has 16 bytes, not 3"):
        NodeCache(tmp_path / "cache", 1000).read(b"abc")


def test_threads_share_one_fetch(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    fetched, go, sources = [], threading.Event(), []

    def fetch() -> bytes:
        fetched.append(1)
        go.wait(PATIENCE_S)
        return bytes_of(1, 5000)

    def want() -> None:
        sources.append(cache.load(key_of(1), 5000, fetch).source)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert sources.count("store") == 1
    assert set(sources) <= {"store", "waited", "cache"}


def test_a_thread_takes_over_when_the_fetch_of_another_fails(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    began, go, failed = threading.Event(), threading.Event(), []

    def fail() -> bytes:
        began.set()
        go.wait(PATIENCE_S)
        raise ConnectionError

    def want() -> None:
        try:
            cache.load(key_of(1), 5000, fail)
        except ConnectionError:
            failed.append(1)

    first = threading.Thread(target=want)
    first.start()
    began.wait(PATIENCE_S)
    second: list[str] = []
    waiter = threading.Thread(target=lambda: second.append(load(cache, 1)))
    waiter.start()
    go.set()
    first.join()
    waiter.join()
    assert (failed, second) == ([1], ["store"])


Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["load", "load", "load", "load", "read", "damage", "remove", "reopen", "clear"]),
        st.integers(0, 9),
        st.integers(1, 12),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, policy=st.sampled_from(IN_FILES), sizes=st.lists(st.integers(0, 12_000), min_size=10, max_size=10))
def test_never_above_the_limit_and_never_wrong_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], policy: CachePolicy, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("cache") / "cache"
    cache = NodeCache(folder, 6 * BLOCK, policy)
    cache.stat()
    for what, number, other in steps:
        size = sizes[number]
        if what == "load":
            load(cache, number, size, None if other == 1 else 4e9 + other)
        elif what == "read":
            assert cache.read(key_of(number)) in (None, bytes_of(number, size))
        elif what in {"damage", "remove"}:
            for path in (folder / "entries").rglob(key_of(number).hex()):
                data = bytearray(path.read_bytes())
                data[other * len(data) // 13] ^= 1 << (other % 8)
                path.write_bytes(data) if what == "damage" else path.unlink()
        elif what == "reopen":
            cache.close()
            cache = NodeCache(folder, other * BLOCK, policy)
            cache.stat()
        else:
            cache.clear()
        assert disk_bytes(cache) <= cache.stat().used_bytes <= cache.limit_bytes
    cache.verify()
    assert_sound(cache)
    cache.close()
    shutil.rmtree(folder.parent)


def planted(folder: Path, mode: int = 0o700, owner: int = 0) -> Path:
    """A cache with an entry that somebody else could have put in: its name follows from the object's."""
    cache = NodeCache(folder, 10**6)
    load(cache, 1)
    cache.close()
    folder.chmod(mode)
    os.chown(folder, owner or os.geteuid(), -1)
    return folder


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = planted(tmp_path / "cache", mode)
    for opened in (lambda: NodeCache(folder, 10**6), lambda: NodeCache.existing(folder)):
        with pytest.raises(CacheError, match=r"may be written by other users.*chmod.*shared=True"):
            opened().stat()
    shared = NodeCache(folder, 10**6, shared=True)
    assert load(shared, 1) == "cache"
    assert pickle.loads(pickle.dumps(shared)).shared  # noqa: S301
    folder.chmod(0o755)
    assert load(NodeCache(folder, 10**6), 1) == "cache"


def test_what_lies_inside_counts_where_others_get_there(tmp_path: Path) -> None:
    folder = planted(tmp_path / "cache", 0o755)
    (folder / "entries").chmod(0o777)
    with pytest.raises(CacheError, match=r"cache/entries may be written by other users"):
        NodeCache(folder, 10**6).stat()
    folder.chmod(0o700)
    assert load(NodeCache(folder, 10**6), 1) == "cache"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = planted(tmp_path / "cache", owner=65534)
    with pytest.raises(CacheError, match=r"belongs to another user \(number 65534\)"):
        NodeCache(folder, 10**6).stat()
    assert load(NodeCache(folder, 10**6, shared=True), 1) == "cache"
    os.chown(folder, 0, -1)
    os.chown(folder / "entries" / key_of(1).hex()[0], 65534, -1)
    with pytest.raises(CacheError, match="belongs to another user"):
        NodeCache(folder, 10**6).stat()
