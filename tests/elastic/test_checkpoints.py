"""Saving and restoring a job's state: shares of ranks, random state, and damaged checkpoints."""

import errno
import io
import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import ObjectStore
from torch.distributed import ProcessGroup

from stallwise.elastic import _manifest as manifest
from stallwise.elastic._checkpoints import (
    CheckpointSaver,
    from_bytes,
    newest_valid,
    random_state,
    set_random_state,
    share_of_rank,
    to_bytes,
)
from stallwise.elastic._manifest import MANIFEST_FILE, CheckpointFault, checkpoint_name, checkpoint_step
from stallwise.elastic._storage import FolderStore
from stallwise.elastic._tensors import read_parts
from stallwise.elastic.remote import RemoteStore
from stallwise.errors import InputError
from tests.elastic.saved import FILE, ROUND, commit, upload_checkpoint, write_checkpoint


@pytest.fixture(scope="module")
def alone() -> Iterator[ProcessGroup]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@given(place=st.integers(0, 999), damage=st.sampled_from(["cut", "flip", "manifest", "gone"]))
def test_a_damaged_checkpoint_is_passed_over(
    place: int, damage: str, tmp_path_factory: pytest.TempPathFactory, alone: ProcessGroup
) -> None:
    folder = tmp_path_factory.mktemp("place")
    write_checkpoint(folder, 10, b"older" * 200)
    write_checkpoint(folder, 20, b"newer" * 200)
    file = folder / checkpoint_name(20) / ("manifest.json" if damage == "manifest" else FILE)
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:place])
    else:
        data[place % len(data)] ^= 1
        file.write_bytes(data)
    faults: list[CheckpointFault] = []
    store = FolderStore(folder)
    store.claim(ROUND)
    checkpoint = newest_valid(store, alone, faults.append)
    assert checkpoint is not None
    assert checkpoint[2].step == 10
    assert [(fault.name, fault.damaged) for fault in faults] == [(checkpoint_name(20), True)]
    assert (folder / f".damaged-{checkpoint_name(20)}").is_dir()
    assert store.names() == [checkpoint_name(10)]


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("full", [False, True], ids=["saved", "disk full"])
def test_what_is_damaged_is_not_counted_and_the_last_whole_one_stays(
    keep: int, full: bool, tmp_path: Path, alone: ProcessGroup
) -> None:
    """`keep` damaged ones are newer than the whole one."""
    write_checkpoint(tmp_path, 10, b"whole")
    for step in range(20, 20 + 10 * keep, 10):
        write_checkpoint(tmp_path, step, b"content")
        (tmp_path / checkpoint_name(step) / FILE).write_bytes(b"c0ntent")
    store = FolderStore(tmp_path)
    store.claim(ROUND)
    checkpoint = newest_valid(store, alone, lambda _: None)
    assert checkpoint is not None
    if full:
        store.make_room()  # the damaged ones go first
        assert not list(tmp_path.glob(".damaged-*"))
        store.make_room()
    else:
        commit(store, 15)
        store.prune(keep)
    again = newest_valid(store, alone, lambda _: None)
    assert again is not None
    assert again[2].step == (10 if full else 15)
    assert (10 in (int(name[5:]) for name in store.names())) == (full or keep == 2)


@pytest.mark.parametrize(("number", "left"), [(errno.ENOSPC, [20]), (errno.EDQUOT, [20]), (errno.EIO, [20, 10])])
def test_a_full_disk_and_a_spent_quota_make_room_for_the_next_save(
    number: int, left: list[int], tmp_path: Path, alone: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    saver = CheckpointSaver(store, None, keep=2)
    saver.fence = store.claim(ROUND)
    for step in (10, 20):
        commit(store, step)

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("stallwise.elastic._checkpoints.write_tensors", fails)
    saver._run(30, {"model.weight": torch.zeros(3)}, {})
    result = saver.take_result()
    assert result is not None
    assert os.strerror(number) in str(result.error)
    assert [checkpoint_step(name) for name in store.names()] == left


def test_a_bucket_keeps_its_last_whole_checkpoint(
    bucket: RemoteStore, objects_of: Callable[[RemoteStore], ObjectStore], alone: ProcessGroup
) -> None:
    """The two newest are damaged, and two are kept."""
    for name in bucket.names()[:2]:
        obstore.put(objects_of(bucket), f"{name}/{FILE}", b"damage" * 10)
    checkpoint = newest_valid(bucket, alone, lambda _: None)
    assert checkpoint is not None
    assert checkpoint[2].step == 10
    upload_checkpoint(bucket, 15, b"whole")
    bucket.prune(2)
    assert [checkpoint_step(name) for name in bucket.names()] == [15, 10]
    upload_checkpoint(bucket, 40, b"whole")
    upload_checkpoint(bucket, 50, b"whole")
    bucket.prune(2)
    assert [checkpoint_step(name) for name in bucket.names()] == [50, 40]
    left = {str(entry["path"]).split("/")[0] for batch in obstore.list(objects_of(bucket)) for entry in batch}
    assert {checkpoint_step(name) for name in left} - {None} == {40, 50}  # damaged ones go with older whole ones


@pytest.mark.parametrize("damage", ["gone", "manifest", "flip"])
def test_a_damaged_bucket_is_passed_over(
    bucket: RemoteStore,
    objects_of: Callable[[RemoteStore], ObjectStore],
    damage: str,
    tmp_path: Path,
    alone: ProcessGroup,
) -> None:
    """And nothing that was fetched stays."""
    newest, older = bucket.names()[:2]
    store, name = objects_of(bucket), f"{newest}/{MANIFEST_FILE if damage == 'manifest' else FILE}"
    data = bytes(obstore.get(store, name).bytes())
    obstore.delete(store, name)
    if damage != "gone":
        obstore.put(store, name, bytes([data[0] ^ 1]) + data[1:])
    faults: list[CheckpointFault] = []
    checkpoint = newest_valid(bucket, alone, faults.append)
    assert checkpoint is not None
    assert checkpoint[2].step == 20
    assert [fault.name for fault in faults] == [newest]
    scratch = next(path for path in tmp_path.glob("stallwise-scratch-*") if (path / older).exists())
    assert {path.name for path in scratch.iterdir()} == {"lock", older}
    bucket.release(checkpoint[0])
    assert {path.name for path in scratch.iterdir()} == {"lock"}
    bucket.close()
    assert not scratch.exists()


def test_an_unreadable_checkpoint_is_passed_over_and_keeps_its_name(
    tmp_path: Path, alone: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not answer, or a newer format, is no damage."""
    for step in (10, 20):
        store = write_checkpoint(tmp_path, step, b"content")
    plain = manifest.file_fact

    def fails(path: Path, algorithm: str) -> manifest.FileFact:
        if checkpoint_name(20) in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(path, algorithm)

    monkeypatch.setattr(manifest, "file_fact", fails)
    faults: list[CheckpointFault] = []
    checkpoint = newest_valid(store, alone, faults.append)
    assert checkpoint is not None
    assert checkpoint[2].step == 10
    assert not faults[0].damaged
    assert checkpoint_name(20) in store.names()


class Payload:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('code of a checkpoint has run')",)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    out = io.BytesIO()
    torch.save({"state": Payload()}, out)
    with pytest.raises(InputError, match="A checkpoint cannot hold objects of"):
        from_bytes(out.getvalue())
    (tmp_path / FILE).write_bytes(pickle.dumps(Payload()))
    with pytest.raises(InputError, match="no file of tensors"):
        read_parts([tmp_path / FILE])


def test_random_states_are_restored() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    state = from_bytes(to_bytes(random_state()))
    first = draw()
    assert draw() != first
    set_random_state(state)
    assert draw() == first


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=30),
    world=st.integers(1, 6),
)
def test_each_tensor_is_one_ranks_to_write(sizes: list[int], world: int) -> None:
    whole = {f"model.{i}": torch.zeros(size) for i, size in enumerate(sizes)}
    parts = [share_of_rank(whole, frozenset({"model.0"}), rank, world) for rank in range(world)]
    assert Counter(name for part in parts for name in part) == Counter(whole.keys())
    assert "model.0" in parts[0]
    loads = [sum(value.numel() for name, value in part.items() if name != "model.0") for part in parts]
    assert max(loads) - min(loads) <= max(sizes) + sizes[0]
