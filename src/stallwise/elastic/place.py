"""Where checkpoints are kept: a folder that all machines share, or a bucket.

Both have the same few doings. Files of a checkpoint are always written to a folder first; a folder becomes a checkpoint
by one rename, a bucket's by the manifest, which is put there last and without which nobody looks at the rest.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from stallwise.elastic import manifest
from stallwise.elastic.codes import DAMAGED
from stallwise.elastic.manifest import Manifest
from stallwise.errors import InputError

PARTIAL = ".partial-"
SCRATCH = "stallwise-scratch-"
_LOCK = "lock"


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

    def make_room(self) -> None:
        """The disk is full: remove what can be spared. The writer alone."""
        ...

    def names(self) -> list[str]:
        """Checkpoints that can be seen, newest first."""
        ...

    def fetch(self, name: str) -> Path:
        """A folder with the files of a checkpoint, for this rank to read; ValueError where it is damaged."""
        ...

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """The files whose contents this rank checks, so that together all copies are checked."""
        ...

    def release(self, name: str) -> None:
        """What `fetch` brought is not needed any more."""
        ...

    def close(self) -> None:
        """Nothing is left on this machine but what belongs there."""
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
        for name, fact in written.files.items():
            found = draft / name
            if not found.exists() or found.stat().st_size != fact.bytes:
                raise OSError(errno.ENOENT, f"{name} of another rank is not in {self.shown}: do all machines share it?")
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

    def make_room(self) -> None:
        """One to go back to stays."""
        self.prune(1)

    def names(self) -> list[str]:
        """By name."""
        return manifest.names(self._path)[::-1]

    def fetch(self, name: str) -> Path:
        """Where it lies."""
        return self._path / name

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """All see the same files: each checks some."""
        return files[rank::world]

    def release(self, name: str) -> None:
        """It lies where it belongs."""

    def close(self) -> None:
        """Nothing lies elsewhere."""


class Bucket:
    """A prefix of an object store. The client runs in a process of its own: ranks fork loader workers, it must not."""

    def __init__(self, url: str, endpoint: str | None = None, scratch: Path | None = None) -> None:
        from stallwise.data.store import shown_url

        self._url, self._endpoint = url.rstrip("/"), endpoint
        self.shown = shown_url(url)
        self._scratch = Scratch(scratch)

    def tidy(self) -> None:
        """Files without a manifest."""
        self._client("tidy")

    def draft(self, name: str) -> Path:
        """On this machine's disk."""
        return self._scratch.path / f"{PARTIAL}{name}"

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

    def make_room(self) -> None:
        """It is this machine's disk that is full; drafts are gone already, and what is in the bucket stays."""

    def names(self) -> list[str]:
        """Those with a manifest."""
        return self._client("names").split()

    def fetch(self, name: str) -> Path:
        """Bring all files of a checkpoint here."""
        folder = self._scratch.path / name
        self.release(name)  # one of that name may have been put there since
        self._client("get", name, str(folder))
        return folder

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """Each rank has a copy of its own."""
        return files

    def release(self, name: str) -> None:
        """Remove the copy."""
        shutil.rmtree(self._scratch.path / name, ignore_errors=True)

    def close(self) -> None:
        """Drafts and copies."""
        self._scratch.close()

    @staticmethod
    def _name(draft: Path) -> str:
        return draft.name.removeprefix(PARTIAL).partition("@")[0]

    def _client(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "stallwise.elastic.bucket", self._url, self._endpoint or "", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = done.stderr.strip().splitlines()
            if done.returncode == DAMAGED:
                raise ValueError(said[-1])
            raise OSError(errno.EIO, f"{self.shown}: {said[-1] if said else 'the client died'}")
        return done.stdout


class Scratch:
    """A folder of this process on its machine's disk. What killed processes have left there is removed by the next.

    A lock tells: the kernel gives it up with the last process that holds it.
    """

    def __init__(self, inside: Path | None = None) -> None:
        root = Path(inside or tempfile.gettempdir())
        for left in root.glob(f"{SCRATCH}*/{_LOCK}"):
            with contextlib.suppress(OSError):  # it is in use, or was removed meanwhile
                _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=root))
        # It has its name only when it is locked, so that nobody takes it for one that was left.
        self._lock = (self.path / f"{_LOCK}-new").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / f"{_LOCK}-new").rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_left(lock: Path) -> None:
    """A folder of this user only; what others put into the folder for temporary files may be a link or a pipe."""
    folder = lock.parent.lstat()
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid():
        return
    handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)


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
