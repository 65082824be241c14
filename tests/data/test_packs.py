"""A cache of many small objects in few files keeps the same promises in less room: killed, cut, flipped, cleared."""

import errno
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stallwise.data import NodeCache
from stallwise.data.cache import _locks as locks
from stallwise.data.cache import _packs as packs
from stallwise.data.cache._packs import MOST_BYTES
from stallwise.errors import CacheError
from tests.data.cache_box import bytes_of, key_of, kill, load, process, wait_until

SIZES = (1, 15, 16, 17, 80, 1000, 4000, 4100, 60_000)


def packed(folder: Path, limit_bytes: int = 10**8) -> NodeCache:
    return NodeCache(folder / "cache", limit_bytes, "packed")


def pack_files(cache: NodeCache) -> list[Path]:
    return sorted((cache.folder / "packs").iterdir())


def disk_bytes(cache: NodeCache) -> int:
    return sum(512 * path.lstat().st_blocks for path in cache.folder.rglob("*") if path.is_file())


def size_of(number: int) -> int:
    return SIZES[number % len(SIZES)]


def test_what_goes_in_comes_out_and_takes_little_room(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    for number in range(500):
        assert load(cache, number, size_of(number)) == "store"
    assert len(pack_files(cache)) == 1
    stat = cache.stat()
    data = sum(size_of(number) for number in range(500))
    assert stat.entries == 500
    assert data < stat.used_bytes < data + 500 * (48 + 64)
    again = packed(tmp_path)
    order = list(range(500))
    random.Random(1).shuffle(order)
    assert {load(again, number, size_of(number)) for number in order} == {"cache"}
    assert again.read(key_of(1000)) is None
    assert again.contains(key_of(3))
    assert not again.contains(key_of(1000))


def test_large_objects_are_files_of_their_own(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    assert load(cache, 0, MOST_BYTES + 1) == "store"
    assert load(cache, 1, 100) == "store"
    assert [load(cache, number, size) for number, size in ((0, MOST_BYTES + 1), (1, 100))] == ["cache", "cache"]
    assert len([path for path in (cache.folder / "entries").rglob("*") if path.is_file()]) == 1
    assert cache.verify().bad == 0


def test_the_limit_holds_and_nothing_leaves(tmp_path: Path) -> None:
    cache = packed(tmp_path, 200_000)
    for number in range(400):
        load(cache, number, 1000)
    stat = cache.stat()
    assert stat.used_bytes <= 200_000
    assert stat.entries == 200_000 // 1088
    assert stat.evictions == 0
    assert sum(512 * path.lstat().st_blocks for path in pack_files(cache)) <= 200_000 + 4096
    assert [load(cache, number, 1000) for number in range(stat.entries)] == ["cache"] * stat.entries


def test_a_lost_ledger_is_made_anew_from_the_packs(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    for number in range(100):
        load(cache, number, size_of(number))
    used = cache.stat().used_bytes
    cache.close()
    (cache.folder / "ledger").unlink()
    again = packed(tmp_path)
    assert {load(again, number, size_of(number)) for number in range(100)} == {"cache"}
    assert again.stat().used_bytes == used
    assert load(again, 100, 1000) == "store", "behind what was there"
    assert {load(again, number, size_of(number)) for number in range(100)} == {"cache"}


def test_flipped_bytes_are_noticed_and_fetched_again(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    for number in range(20):
        load(cache, number, 1000)
    [pack] = pack_files(cache)
    with pack.open("r+b") as file:
        file.seek(5 * 1088 + 500)
        file.write(b"\xff\xff\xff\xff")
    sources = [load(cache, number, 1000) for number in range(20)]
    assert [number for number, source in enumerate(sources) if source == "store"] == [5]
    assert cache.stat().healed == 1
    assert load(cache, 5, 1000) == "cache"
    assert cache.verify().bad == 0


def test_a_pack_that_was_cut_short_or_removed_is_a_miss(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    for number in range(20):
        load(cache, number, 1000)
    [pack] = pack_files(cache)
    os.truncate(pack, 10 * 1088 + 100)
    assert [load(cache, number, 1000) for number in range(20)] == ["cache"] * 10 + ["store"] * 10
    cache.close()
    pack.unlink()
    again = packed(tmp_path)
    assert {load(again, number, 1000) for number in range(20)} == {"store"}
    assert {load(again, number, 1000) for number in range(20)} == {"cache"}


def _fill(folder: Path, first: int, count: int) -> None:
    cache = packed(folder)
    for number in range(first, first + count):
        load(cache, number, size_of(number))


def test_several_processes_fill_one_cache(tmp_path: Path) -> None:
    with (
        process(_fill, tmp_path, 0, 300) as one,
        process(_fill, tmp_path, 100, 300) as two,
        process(_fill, tmp_path, 200, 300) as three,
    ):
        for child in (one, two, three):
            child.join(60)
            assert child.exitcode == 0
    cache = packed(tmp_path)
    assert {load(cache, number, size_of(number)) for number in range(500)} == {"cache"}
    assert cache.stat().inserted == 500, "each once"
    assert cache.verify().bad == 0


def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    dice = random.Random(4)
    for round_number in range(8):
        with process(_fill, tmp_path, 1000 * round_number, 100_000) as child:
            exists = (tmp_path / "cache" / "packs" / "000000").exists
            wait_until(exists)
            child.join(dice.uniform(0.05, 0.25))
            kill(child)
        cache = packed(tmp_path)
        assert load(cache, 10**6 + round_number, 500) == "store"
        assert load(cache, 10**6 + round_number, 500) == "cache"
        assert cache.verify().bad == 0
        assert cache.stat().used_bytes >= sum(512 * path.lstat().st_blocks for path in pack_files(cache)) - 10**6
        cache.close()


def test_a_lower_limit_drops_the_oldest_and_gives_their_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "PACK_UNITS", 1024)  # 64 KB
    cache = packed(tmp_path)
    for number in range(300):
        load(cache, number, 1000)
    assert len(pack_files(cache)) == 5
    cache.close()
    small = packed(tmp_path, 100_000)
    assert small.stat().used_bytes <= 100_000
    kept = [number for number in range(300) if small.contains(key_of(number))]
    assert kept == list(range(300 - len(kept), 300)), "the youngest"
    assert len(kept) == 100_000 // 1088
    assert disk_bytes(small) < 100_000 + 2 * 65_536 + 2**18, "with the ledger"
    assert all(small.read(key_of(number)) == bytes_of(number, 1000) for number in kept)


def test_cleared_it_takes_no_more_room_than_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_UNITS", 1024)
    cache = packed(tmp_path)
    for number in range(300):
        load(cache, number, 1000)
    cache.clear()
    assert cache.stat().used_bytes == cache.stat().entries == 0
    assert len(pack_files(cache)) == 1
    assert [load(cache, number, 1000) for number in (0, 0)] == ["store", "cache"]


def test_a_folder_is_packed_or_not(tmp_path: Path) -> None:
    cache = packed(tmp_path)
    load(cache, 0)
    cache.close()
    with pytest.raises(CacheError, match="is packed"):
        NodeCache(cache.folder, 10**6).stat()
    assert NodeCache.existing(cache.folder).policy == "packed"


def test_a_mistaken_open_does_a_cache_no_harm(tmp_path: Path) -> None:
    files = NodeCache(tmp_path / "cache", 10**8)
    files.stat()
    with pytest.raises(CacheError, match="in use with policy 'no-evict'"):
        packed(tmp_path).stat()
    assert not (files.folder / "packs").exists()
    load(files, 0)
    files.close()
    with pytest.raises(CacheError, match="cannot become a packed one"):
        packed(tmp_path).stat()
    again = NodeCache(files.folder, 10**8)
    assert load(again, 0) == "cache"
    again.clear()
    again.close()
    empty = packed(tmp_path)
    assert [load(empty, 0), load(empty, 0)] == ["store", "cache"]


def test_what_was_not_kept_leaves_no_hole(tmp_path: Path) -> None:
    cache = packed(tmp_path, 10_000)
    for number in range(50):
        load(cache, number, 1000)
    head = cache._hold().cache_folder._index.peek()
    assert head is not None
    assert head.number == cache.stat().used_bytes // packs.UNIT_BYTES


@pytest.mark.parametrize(("code", "healed"), [(errno.EIO, 1), (errno.ESTALE, 0), (errno.EMFILE, 0)])
def test_a_disk_that_fails_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, healed: int) -> None:
    cache = packed(tmp_path)
    load(cache, 0, 1000)
    real = os.pread
    pack_inodes = {path.stat().st_ino for path in pack_files(cache)}

    def failing(handle: int, count: int, at: int) -> bytes:
        if os.fstat(handle).st_ino in pack_inodes:
            raise OSError(code, os.strerror(code))
        return real(handle, count, at)

    monkeypatch.setattr(os, "pread", failing)
    assert cache.read(key_of(0)) is None
    monkeypatch.undo()
    assert cache.stat().healed == healed
    assert load(cache, 0, 1000) == ("store" if healed else "cache")


def test_a_read_only_file_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = packed(tmp_path)
    load(cache, 0, 1000)
    cache.close()
    real = locks.open_here

    def refusing(path: Path, flags: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags)

    monkeypatch.setattr(packs, "open_here", refusing)
    again = packed(tmp_path)
    assert load(again, 0, 1000) == "cache"
    assert load(again, 1, 1000) == "store", "not kept, and nothing is raised"


def test_threads_read_more_packs_than_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK_UNITS", 64)  # 4 KB
    monkeypatch.setattr(packs, "_MOST_OPEN", 2)
    cache = packed(tmp_path)
    for number in range(60):
        load(cache, number, 1000)
    assert len(pack_files(cache)) == 20
    dice = random.Random(2)
    with ThreadPoolExecutor(4) as pool:
        numbers = [dice.randrange(60) for _ in range(4000)]
        assert set(pool.map(lambda number: load(cache, number, 1000), numbers)) == {"cache"}
    assert cache.stat().healed == 0
    assert cache.verify().bad == 0
    assert len(cache._hold().cache_folder._entries._open) <= 2  # type: ignore[union-attr]
