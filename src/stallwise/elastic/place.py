"""Where checkpoints are kept: a folder that all machines share, or a bucket.

Both have the same few doings. Files of a checkpoint are always written to a folder first; a folder becomes a checkpoint
by one rename, a bucket's by the manifest, which is put there last and without which nobody looks at the rest.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from stallwise.elastic import manifest
from stallwise.elastic.manifest import Fault, Manifest
from stallwise.errors import InputError

PARTIAL = ".partial-"


class Place(Protocol):
    """What a session does with the place its checkpoints are in."""

    shown: str

    def tidy(self) -> None:
        """Remove what earlier rounds left half-written. Once per round, by the writer alone."""
        ...

    def draft(self, name: str) -> Path:
        """The folder this rank writes its files of a checkpoint to."""
        ...

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """This rank's files are written; bring them where they belong."""
        ...

    def commit(self, draft: Path, written: Manifest) -> None:
        """The writer alone, after all have delivered: make it visible."""
        ...

    def drop(self, draft: Path) -> None:
        """Give up a draft."""
        ...

    def prune(self, keep: int) -> None:
        """Only the newest `keep` stay."""
        ...

    def newest(self, told: Callable[[Fault], None]) -> tuple[str, Manifest] | None:
        """The newest that is whole."""
        ...

    def fetch(self, name: str) -> Path:
        """A folder with the files of a checkpoint, for this rank to read."""
        ...


class Folder:
    """A folder on a disk that all ranks see."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = str(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot hold checkpoints: {error.strerror}. Name another folder.") from None

    def tidy(self) -> None:
        """Drafts of rounds that are over."""
        for draft in self._path.glob(f"{PARTIAL}*"):
            shutil.rmtree(draft, ignore_errors=True)

    def draft(self, name: str) -> Path:
        """The same folder for all ranks."""
        return self._path / f"{PARTIAL}{name}"

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """They are there."""

    def commit(self, draft: Path, written: Manifest) -> None:
        """Manifest, sync, rename, sync."""
        put(draft / manifest.NAME, manifest.encode(written))
        sync_folder(draft)
        final = self._path / manifest.step_name(written.step)
        old = self._path / f"{PARTIAL}old-{final.name}"
        if final.exists():  # a damaged one that was passed over, or the same step again
            final.rename(old)
        draft.rename(final)
        sync_folder(self._path)
        shutil.rmtree(old, ignore_errors=True)

    def drop(self, draft: Path) -> None:
        """Remove it."""
        shutil.rmtree(draft, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """By name, oldest first: each is first made invisible, then removed."""
        for name in manifest.names(self._path)[:-keep]:
            gone = self._path / f"{PARTIAL}old-{name}"
            with contextlib.suppress(OSError):
                (self._path / name).rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def newest(self, told: Callable[[Fault], None]) -> tuple[str, Manifest] | None:
        """Checked file by file."""
        return manifest.newest(self._path, told)

    def fetch(self, name: str) -> Path:
        """Where it lies."""
        return self._path / name


class Bucket:
    """A prefix of an object store. The client runs in a process of its own: ranks fork loader workers, it must not."""

    def __init__(self, url: str, endpoint: str | None = None, scratch: Path | None = None) -> None:
        from stallwise.data.store import shown_url

        self._url, self._endpoint = url.rstrip("/"), endpoint
        self.shown = shown_url(url)
        self._scratch = Path(tempfile.mkdtemp(prefix="stallwise-", dir=scratch))

    def tidy(self) -> None:
        """Files without a manifest."""
        self._client("tidy")

    def draft(self, name: str) -> Path:
        """On this machine's disk."""
        return self._scratch / f"{PARTIAL}{name}"

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """Put this rank's files under the checkpoint's name."""
        self._client("put", str(draft), self._name(draft), *files)

    def commit(self, draft: Path, written: Manifest) -> None:
        """The manifest last."""
        put(draft / manifest.NAME, manifest.encode(written))
        self._client("put", str(draft), self._name(draft), manifest.NAME)
        shutil.rmtree(draft, ignore_errors=True)

    def drop(self, draft: Path) -> None:
        """Here; what is in the bucket has no manifest."""
        shutil.rmtree(draft, ignore_errors=True)

    def prune(self, keep: int) -> None:
        """Manifests first."""
        self._client("prune", str(keep))

    def newest(self, told: Callable[[Fault], None]) -> tuple[str, Manifest] | None:
        """The newest manifest whose files have their sizes; contents are checked when they are fetched."""
        for name in self._client("names").split():
            try:
                found = manifest.check(self.fetch(name))
            except ValueError as error:
                told(Fault(name, str(error)))
            else:
                return name, found
        return None

    def fetch(self, name: str) -> Path:
        """Bring all files of a checkpoint here."""
        folder = self._scratch / name
        if not (folder / manifest.NAME).exists():
            self._client("get", name, str(folder))
        return folder

    @staticmethod
    def _name(draft: Path) -> str:
        return draft.name.removeprefix(PARTIAL).partition("@")[0]

    def _client(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "stallwise.elastic.bucket", self._url, self._endpoint or "", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise OSError(errno.EIO, f"{self.shown}: {said[-1] if said else 'the client died'}")
        return done.stdout


def place_of(where: str | os.PathLike[str], endpoint: str | None = None) -> Place:
    """A folder, or a bucket by its URL."""
    text = os.fspath(where)
    if "://" not in text:
        return Folder(Path(text).absolute())
    if text.startswith("file://"):
        return Folder(Path(text.removeprefix("file://")))
    return Bucket(text, endpoint)


def put(path: Path, data: bytes) -> None:
    """Write a file and see it on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Names in a folder are on the disk, too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
