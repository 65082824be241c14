"""Whatever happens to the files of a cache, the bytes are right, the limit holds, and the next run repairs it."""

import contextlib
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwise.data.cache._index import RANKED, CachePolicy
from stallwise.data.cache.cache import NodeCache
from stallwise.errors import CacheError
from tests.conftest import lacks
from tests.data.cache_box import (
    BLOCK,
    IN_FILES,
    assert_sound,
    bytes_of,
    disk_bytes,
    entry_file,
    entry_files,
    key_of,
    load,
)


@pytest.fixture
def cache(tmp_path: Path) -> NodeCache:
    """Ten objects in a cache that has room for twelve."""
    cache = NodeCache(tmp_path / "cache", 24 * BLOCK, "lru")
    for number in range(10):
        load(cache, number)
    return cache


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of the data": lambda path: flip(path, 2500),
    "a bit of the last byte": lambda path: flip(path, -1),
    "a bit of the magic": lambda path: flip(path, 0),
    "a bit of the key": lambda path: flip(path, 9),
    "a bit of the length": lambda path: flip(path, 26),
    "a bit of the length's last byte": lambda path: flip(path, 31),
    "a bit of the checksum": lambda path: flip(path, 40),
    "no byte left": lambda path: path.write_bytes(b""),
    "cut in the header": lambda path: os.truncate(path, 30),
    "cut after the header": lambda path: os.truncate(path, 48),
    "the last byte missing": lambda path: os.truncate(path, path.stat().st_size - 1),
    "a byte too many": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another object's entry": lambda path: shutil.copy(
        next(p for p in path.parents[1].rglob("*/*") if p != path), path
    ),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_never_served_and_is_fetched_anew(cache: NodeCache, damage: str) -> None:
    DAMAGE[damage](entry_file(cache, 3))
    assert cache.read(key_of(3)) is None
    assert cache.stat().healed == 1
    assert not cache.contains(key_of(3))
    assert [load(cache, 3), load(cache, 3)] == ["store", "cache"]
    assert_sound(cache)


def test_load_repairs_at_once(cache: NodeCache) -> None:
    flip(entry_file(cache, 3), 100)
    assert [load(cache, 3), load(cache, 3)] == ["store", "cache"]
    assert cache.stat().healed == 1


def test_verify_removes_the_bad_and_counts_anew(cache: NodeCache) -> None:
    flip(entry_file(cache, 3), 100)
    entry_file(cache, 5).write_bytes(b"")
    assert cache.verify().removed == 2
    assert cache.stat().entries == 8
    assert_sound(cache)


def test_entries_that_somebody_removed_are_fetched_anew(tmp_path: Path) -> None:
    """Also in a full cache that never evicts: the room is still theirs."""
    cache = NodeCache(tmp_path / "cache", 10 * BLOCK)
    for number in range(12):
        load(cache, number, 100)
    for number in range(5):
        entry_file(cache, number).unlink()
    assert [load(cache, number, 100) for number in range(12)] == ["store"] * 5 + ["cache"] * 5 + ["store"] * 2
    assert [load(cache, number, 100) for number in range(12)] == ["cache"] * 10 + ["store"] * 2
    assert_sound(cache)


def damaged_ledgers() -> Iterator[tuple[str, Callable[[Path], object]]]:
    yield "removed", lambda path: path.unlink()
    yield "empty", lambda path: path.write_bytes(b"")
    yield "cut in the head", lambda path: os.truncate(path, 50)
    yield "cut in the table", lambda path: os.truncate(path, (1 << 17) + 2000)
    yield "nonsense", lambda path: path.write_bytes(random.Random(1).randbytes(path.stat().st_size))
    yield "zeros", lambda path: path.write_bytes(bytes(path.stat().st_size))
    yield "a bit of the head", lambda path: flip(path, 60)
    yield "records lost", lambda path: path.write_bytes(path.read_bytes()[: 1 << 17] + bytes(60_000))
    yield "a file of another program", lambda path: path.write_text("hello\n" * 100_000)


LEDGERS = dict(damaged_ledgers())


@pytest.mark.parametrize("damage", LEDGERS)
@pytest.mark.parametrize("policy", ["lru", "farthest"])
def test_a_damaged_ledger_is_rebuilt_when_the_cache_is_opened(tmp_path: Path, policy: CachePolicy, damage: str) -> None:
    cache = NodeCache(tmp_path / "cache", 24 * BLOCK, policy)
    for number in range(10):
        load(cache, number)
    cache.close()
    LEDGERS[damage](cache.folder / "ledger")
    assert [load(cache, number) for number in range(10)] == ["cache"] * 10
    assert_sound(cache)
    for number in range(30):
        load(cache, number, 5000, 4e9 - number)
        assert disk_bytes(cache) <= cache.limit_bytes
    assert_sound(cache)


@pytest.mark.parametrize("damage", LEDGERS)
def test_a_ledger_damaged_while_it_is_open_is_rebuilt(cache: NodeCache, damage: str) -> None:
    LEDGERS[damage](cache.folder / "ledger")
    for number in range(40):
        load(cache, number)
        assert disk_bytes(cache) <= cache.limit_bytes
    cache.close()
    assert_sound(cache)
    assert cache.stat().entries == 12


def test_every_flipped_bit_of_a_record_is_found(tmp_path: Path) -> None:
    """A record that is wrong would let the limit be exceeded: the sum over all of them tells."""
    cache = NodeCache(tmp_path / "cache", 24 * BLOCK)
    load(cache, 1)
    cache.close()
    good = (cache.folder / "ledger").read_bytes()
    record = good.index(b"\x00\x20\x00\x00\x00\x00\x00\x00", 1 << 17) - 16
    for bit in range(24 * 8):
        data = bytearray(good)
        data[record + bit // 8] ^= 1 << bit % 8
        (cache.folder / "ledger").write_bytes(data)
        assert (cache.stat().entries, cache.stat().used_bytes) == (1, 2 * BLOCK), f"bit {bit}"
        cache.close()


@pytest.mark.parametrize("policy", IN_FILES)
def test_a_lower_limit_shrinks_it_when_it_is_opened(tmp_path: Path, policy: CachePolicy) -> None:
    cache = NodeCache(tmp_path / "cache", 20 * BLOCK, policy)
    for number in range(10):
        load(cache, number, 5000, 4e9 + number)
    cache.close()
    cache = NodeCache(tmp_path / "cache", 7 * BLOCK, policy)
    assert (cache.stat().entries, cache.stat().evictions) == (3, 7)
    assert disk_bytes(cache) == 6 * BLOCK
    assert_sound(cache)
    kept = [number for number in range(10) if cache.contains(key_of(number))]
    assert kept == ([0, 1, 2] if policy in RANKED else [7, 8, 9])


@pytest.mark.parametrize("first", ["small", "large"])
def test_of_two_limits_the_lower_holds_while_both_are_open(tmp_path: Path, first: str) -> None:
    large, small = NodeCache(tmp_path / "cache", 20 * BLOCK), NodeCache(tmp_path / "cache", 8 * BLOCK)
    for cache in (small, large) if first == "small" else (large, small):
        for number in range(10):
            load(cache, number)
    assert disk_bytes(large) == 8 * BLOCK
    assert large.stat().limit_bytes == 8 * BLOCK
    assert [load(large, number) for number in range(20, 23)] == ["store"] * 3
    assert disk_bytes(large) == 8 * BLOCK
    small.close()
    large.close()
    for number in range(30, 40):
        load(large, number)
    assert disk_bytes(large) == 20 * BLOCK


def test_a_limit_rises_again_when_the_modest_job_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwise.data.cache._eviction._TIDY_S", 0.0)
    large, small = NodeCache(tmp_path / "cache", 20 * BLOCK), NodeCache(tmp_path / "cache", 8 * BLOCK)
    for cache in (large, small):
        for number in range(10):
            load(cache, number)
    small.close()
    for number in range(10):
        load(large, number)
    assert disk_bytes(large) == 20 * BLOCK


def test_a_folder_in_use_with_another_policy_is_refused(cache: NodeCache) -> None:
    with pytest.raises(CacheError, match="is in use with policy 'lru' and cannot be opened with 'fifo'"):
        NodeCache(cache.folder, 24 * BLOCK, "fifo").stat()
    assert_sound(cache)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / "entries").mkdir()
    with pytest.raises(CacheError, match=r"holds files that are not of a cache \(thesis.tex\). Choose an empty folder"):
        NodeCache(tmp_path, 1_000_000).stat()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["entries", "thesis.tex"]


def test_the_tag_of_another_program_is_respected(tmp_path: Path) -> None:
    (tmp_path / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# made by something else\n")
    with pytest.raises(CacheError, match="not of a cache"):
        NodeCache(tmp_path, 1_000_000).stat()


def test_files_that_are_not_ours_inside_a_cache_stay(cache: NodeCache) -> None:
    strangers = [cache.folder / "notes.txt", cache.folder / "entries/readme", cache.folder / "entries/0/README.md"]
    strangers.append(cache.folder / "entries/0" / ("A" * 32))
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    link = cache.folder / "entries/0" / ("0" * 32)
    link.symlink_to(strangers[0])
    cache.close()
    (cache.folder / "ledger").unlink()
    cache.verify()
    cache.clear()
    assert all(path.read_text() == "mine" for path in [*strangers, link])


def test_another_format_is_refused(cache: NodeCache) -> None:
    cache.close()
    tag = cache.folder / "CACHEDIR.TAG"
    tag.write_text(tag.read_text().replace("format 1", "format 2"))
    with pytest.raises(CacheError, match="has format 2, this Stallwise writes format 1"):
        cache.stat()
    assert len(entry_files(cache)) == 10


@pytest.mark.parametrize("length", [0, 20, 80])
def test_a_tag_that_was_cut_short_is_written_again(cache: NodeCache, length: int) -> None:
    cache.close()
    tag = cache.folder / "CACHEDIR.TAG"
    whole = tag.read_text()
    tag.write_text(whole[:length])
    assert load(cache, 1) == "cache"
    assert tag.read_text() == whole


def test_a_folder_removed_under_a_running_job_is_made_again(cache: NodeCache) -> None:
    shutil.rmtree(cache.folder)
    assert [load(cache, number) for number in (1, 2, 2, 2)][-1] == "cache"
    assert_sound(cache)


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheError, match=r"cannot be used \(File exists\)"):
        NodeCache(tmp_path / "cache", 1_000_000).stat()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)) != 0:
        lacks("the right to mount a small file system (root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True).returncode


def test_a_full_disk_costs_one_warning_and_nothing_else(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = NodeCache(small_disk / "cache", 100_000_000, "lru")
    with caplog.at_level(logging.WARNING):
        sources = [load(cache, number, 100_000) for number in range(40)]
        again = [load(cache, number, 100_000) for number in range(40)]
    assert sources == ["store"] * 40
    assert 10 <= again.count("cache") < 20
    assert [record.getMessage() for record in caplog.records] == [
        f"The cache {cache.folder} cannot keep anything now: No space left on device. Training goes on without."
    ]
    cache.close()
    assert_sound(cache)


def test_a_disk_that_was_full_is_used_again(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stallwise.data.cache._folder._PAUSE_S", 0.0)
    (small_disk / "ballast").write_bytes(bytes(1_850_000))
    cache = NodeCache(small_disk / "cache", 100_000_000, "lru")
    assert [load(cache, number, 100_000) for number in (1, 2, 2)] == ["store"] * 3
    (small_disk / "ballast").unlink()
    assert [load(cache, number, 100_000) for number in (1, 2, 1, 2)] == ["store", "store", "cache", "cache"]
    assert_sound(cache)


def test_a_disk_without_room_for_the_ledger_only_passes_through(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (small_disk / "ballast").write_bytes(bytes(2_000_000))
    cache = NodeCache(small_disk / "cache", 100_000_000)
    assert [load(cache, number) for number in (1, 1, 2)] == ["store"] * 3
    assert len(caplog.records) == 1
    assert (cache.stat().misses, cache.stat().entries) == (3, 0)


def test_a_disk_without_room_for_anything_is_refused(small_disk: Path) -> None:
    with (small_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(CacheError, match="No space left on device"):
        NodeCache(small_disk / "cache", 100_000_000).stat()


def test_a_read_only_cache_is_read(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = NodeCache(small_disk / "cache", 1_000_000)
    load(cache, 1)
    load(cache, 2)
    flip(entry_file(cache, 2), 100)
    cache.close()
    assert _mount("-o", "remount,ro", str(small_disk)) == 0
    assert [load(cache, number) for number in (1, 1, 2, 3)] == ["cache", "cache", "store", "store"]
    assert cache.stat().entries == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"The cache {cache.folder} cannot keep anything now: it is read-only. Training goes on without."
    ]
    with pytest.raises(CacheError, match="Read-only file system"):
        NodeCache(small_disk / "other", 1_000_000).stat()


def test_names_of_objects_never_reach_the_file_system(tmp_path: Path) -> None:
    """Keys are bytes of any kind; what lies on the disk has only names made of them."""
    cache = NodeCache(tmp_path / "cache", 1_000_000)
    for key in (b"../../etc/passwd", b"/etc/passwd\x00\x00\x00\x00\x00", bytes(16), b"\xff" * 16):
        assert cache.load(key, 100, lambda: bytes_of(1, 100)).source == "store"
        assert cache.read(key) == bytes_of(1, 100)
    names = {path.name for path in entry_files(cache)}
    assert len(names) == 4
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
