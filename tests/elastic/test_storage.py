"""Folders and object stores of checkpoints, and their manifests."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import obstore
import pytest
from obstore.store import ObjectStore

from stallwise.elastic import remote
from stallwise.elastic._manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    FileFact,
    check_checkpoint,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    decode_manifest,
    encode_manifest,
)
from stallwise.elastic._ownership import RoundIdentity, StoreOwner, SupersededError, check_claim
from stallwise.elastic._storage import FolderStore, StagingFolder
from stallwise.elastic.remote import RemoteCommand, RemoteStore
from stallwise.errors import InputError
from tests.elastic.saved import FILE, ROUND, commit, manifest_of, upload_checkpoint, write_checkpoint


def test_each_rank_checks_its_part_of_a_folder(tmp_path: Path) -> None:
    """Two files, two ranks: of a damaged one the rank whose it is says so."""
    store = FolderStore(tmp_path)
    store.claim(ROUND)
    draft = store.draft(checkpoint_name(7))
    draft.mkdir()
    for name in (FILE, "rank-00001.safetensors"):
        (draft / name).write_bytes(b"12345")
    store.commit(draft, manifest_of(draft, 7))
    (folder,) = (store.fetch(name) for name in store.names())
    (folder / "rank-00001.safetensors").write_bytes(b"1x345")
    check_checkpoint(folder, lambda files: store.mine(files, 0, 2))
    with pytest.raises(ValueError, match=r"rank-00001\.safetensors has another content"):
        check_checkpoint(folder, lambda files: store.mine(files, 1, 2))


def test_a_folder_that_is_not_shared_is_said(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.claim(ROUND)
    draft = store.draft(checkpoint_name(7))
    draft.mkdir()
    (draft / FILE).write_bytes(b"12345")
    elsewhere = {"rank-00001.safetensors": FileFact(bytes=5, checksum="x")}
    written = manifest_of(draft, 7)
    with pytest.raises(OSError, match="do all machines share it"):
        store.commit(draft, msgspec.structs.replace(written, files={**written.files, **elsewhere}))
    assert not store.names()


def test_tidying_a_bucket_leaves_other_sessions_alone(
    bucket: RemoteStore, objects_of: Callable[[RemoteStore], ObjectStore]
) -> None:
    bucket.tidy()
    for name in bucket.names():
        bucket.mark_whole(name)
    bucket.prune(2)
    bucket.make_room()
    assert [checkpoint_step(name) for name in bucket.names()] == [30, 20]
    left = {str(entry["path"]) for batch in obstore.list(objects_of(bucket)) for entry in batch}
    names = [f"{checkpoint_name(step)}@1.{step}" for step in (20, 30)]
    names.append(f"other/{checkpoint_name(40)}@1.40")
    assert left == {
        *(f"{name}/{file}" for name in names for file in (MANIFEST_FILE, FILE)), "owner.json", "other/owner.json"
    }  # fmt: skip


def _later(number: int) -> RoundIdentity:
    return RoundIdentity(ROUND.job, ROUND.coordinator, number)


def test_a_lower_round_cannot_commit_to_a_folder(tmp_path: Path) -> None:
    """Nor remove anything, nor begin again; not even where it has passed every check but the last."""
    stale = write_checkpoint(tmp_path, 10, b"content")
    draft = stale.draft("step-000000000020@1.1")
    draft.mkdir()
    (draft / FILE).write_bytes(b"stale")
    late = FolderStore(tmp_path)
    late.claim(_later(3))
    for act in (
        lambda: stale.commit(draft, manifest_of(draft, 20)),
        lambda: stale.prune(1),
        stale.make_room,
        stale.tidy,
        lambda: stale.set_aside(checkpoint_name(10)),
        lambda: FolderStore(tmp_path).claim(_later(2)),
    ):
        with pytest.raises(SupersededError, match="round 3"):
            act()
    assert stale.names() == [checkpoint_name(10)]
    assert late.claim(_later(3)) > 2  # the same round again, as under torchrun
    anew = FolderStore(tmp_path)
    anew.claim(RoundIdentity(ROUND.job, "another coordinator", 0))
    with pytest.raises(SupersededError, match="another coordinator"):
        late.claim(_later(4))
    commit(anew, 20)


def test_a_lower_round_cannot_commit_to_a_bucket(bucket: RemoteStore, tmp_path: Path) -> None:
    late = RemoteStore(bucket._url, bucket._endpoint, tmp_path)
    late.claim(_later(3))
    with pytest.raises(SupersededError, match="round 3"):
        upload_checkpoint(bucket, 60, b"stale")
    with pytest.raises(SupersededError, match="round 3"):
        bucket.prune(1)
    early = RemoteStore(bucket._url, bucket._endpoint, tmp_path)
    with contextlib.closing(early), pytest.raises(SupersededError, match="round 3"):
        early.claim(_later(2))
    assert [checkpoint_step(name) for name in late.names()] == [30, 20, 10]
    late.close()


def test_a_round_that_is_stopped_between_check_and_put_adds_nothing_to_a_bucket(
    bucket: RemoteStore, objects_of: Callable[[RemoteStore], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record that it has read and found to be its own is not the one that is there when it writes."""
    where = {"url": bucket._url, "endpoint": bucket._endpoint}
    claim = RemoteCommand(**where, command="claim", arguments=[], claim=_later(3))
    addition = RemoteCommand(**where, command="commit", arguments=[f"{checkpoint_name(60)}@1.60"], fence=bucket._fence)
    checks: list[int] = []

    def check_and_stop(owner: StoreOwner | None, fence: int) -> None:
        check_claim(owner, fence)
        checks.append(fence)
        remote._claim(objects_of(bucket), claim)  # by another process, while this one is stopped

    monkeypatch.setattr(remote, "check_claim", check_and_stop)
    with pytest.raises(SupersededError, match="round 3"):
        remote._commit(objects_of(bucket), addition)
    assert checks == [bucket._fence], "it passed the check once, and not again"
    assert [checkpoint_step(name) for name in bucket.names()] == [30, 20, 10]


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_another_job_is_refused_by_name(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = write_checkpoint(tmp_path / "run", 10, b"x") if kind == "folder" else request.getfixturevalue("bucket")
    with pytest.raises(InputError, match="has the checkpoints of job 'tests', and this is job 'other'"):
        store.claim(RoundIdentity("other", ROUND.coordinator, 9))


def test_the_lock_of_a_stopped_process_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_checkpoint(tmp_path, 10, b"x")
    monkeypatch.setattr("stallwise.elastic._storage._LOCK_PATIENCE_S", 0.1)
    with FolderStore(tmp_path)._locked(), pytest.raises(OSError, match="does not go on"):
        store.claim(_later(1))


def test_no_address_with_user_or_signature_is_in_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://user:pass@127.0.0.1:9/folder?sig=secret"
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert url in str(options["input"])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    store = RemoteStore(url, scratch=tmp_path)
    assert store.names() == []
    assert commands == [[sys.executable, "-m", "stallwise.elastic.remote"]]
    store.close()


def test_the_same_step_again_is_replaced_and_never_missing(tmp_path: Path) -> None:
    """A process that is killed between the two renames leaves the one that was there."""
    store = write_checkpoint(tmp_path, 10, b"one")
    commit(store, 10, b"two")
    assert (tmp_path / checkpoint_name(10) / FILE).read_bytes() == b"two"
    (tmp_path / checkpoint_name(10)).rename(tmp_path / f".replaced-{checkpoint_name(10)}")
    store.tidy()
    assert (tmp_path / checkpoint_name(10) / FILE).read_bytes() == b"two"


def test_scratch_of_the_dead_is_removed_and_of_the_living_is_not(tmp_path: Path) -> None:
    living = StagingFolder(tmp_path)
    code = "from stallwise.elastic._storage import StagingFolder; from pathlib import Path; import os\n"
    code += f"print(StagingFolder(Path({str(tmp_path)!r})).path, flush=True); os.kill(os.getpid(), 9)"
    dead = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert dead.exists()
    other = StagingFolder(tmp_path)
    assert not dead.exists()
    assert living.path.exists()
    assert len({living.path, other.path}) == 2
    living.close()
    other.close()


def test_drafts_are_invisible_and_old_ones_go(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.claim(ROUND)
    for step in (1, 2, 3):
        commit(store, step)
    store.draft("step-000000000009@0.1").mkdir()
    assert checkpoint_names(tmp_path) == [checkpoint_name(step) for step in (1, 2, 3)]
    store.prune(2)
    store.tidy()
    visible = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".owner"))
    assert visible == [checkpoint_name(step) for step in (2, 3)]


def test_a_newer_format_says_so() -> None:
    new = CheckpointManifest(format=99, step=1, saved_at=0, world=1, algorithm="blake2b", files={}, facts={})
    with pytest.raises(ValueError, match="newer Stallwise"):
        decode_manifest(encode_manifest(new))
    assert FileFact(bytes=1, checksum="x") == FileFact(bytes=1, checksum="x")


def test_scratch_of_others_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "stallwise-scratch-theirs"
    theirs.mkdir()
    os.mkfifo(theirs / "lock")
    (tmp_path / "stallwise-scratch-link").symlink_to(theirs)
    StagingFolder(tmp_path).close()  # and does not hang
    assert (tmp_path / "stallwise-scratch-link").is_symlink()
