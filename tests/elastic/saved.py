"""Checkpoints for tests: one of a single file, in a folder or an object store."""

from pathlib import Path

from stallwise.elastic._manifest import (
    MANIFEST_FORMAT,
    CheckpointManifest,
    checkpoint_name,
    checksum_algorithm,
    file_fact,
)
from stallwise.elastic._ownership import RoundIdentity
from stallwise.elastic._storage import FolderStore
from stallwise.elastic.remote import RemoteStore

ROUND = RoundIdentity("tests", "coordinator", 0)
FILE = "rank-00000.safetensors"


def write_checkpoint(folder: Path, step: int, content: bytes) -> FolderStore:
    store = FolderStore(folder)
    store.claim(ROUND)
    commit(store, step, content)
    return store


def commit(store: FolderStore, step: int, content: bytes = b"content") -> None:
    draft = store.draft(f"{checkpoint_name(step)}@0.1")
    draft.mkdir()
    (draft / FILE).write_bytes(content)
    store.commit(draft, manifest_of(draft, step))


def upload_checkpoint(store: RemoteStore, step: int, content: bytes) -> str:
    draft = store.draft(f"{checkpoint_name(step)}@1.{step}")
    draft.mkdir()
    (draft / FILE).write_bytes(content)
    store.deliver(draft, [FILE])
    store.commit(draft, manifest_of(draft, step))
    return draft.name.removeprefix(".partial-")


def manifest_of(draft: Path, step: int) -> CheckpointManifest:
    kind = checksum_algorithm()
    files = {path.name: file_fact(path, kind) for path in draft.iterdir()}
    return CheckpointManifest(
        format=MANIFEST_FORMAT, step=step, saved_at=0.0, world=1, algorithm=kind, files=files, facts={}
    )
