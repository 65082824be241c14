"""Where checkpoints are kept: a folder that all machines share, or an object store (`remote`).

Both implement the same small interface (`CheckpointStore`). Files of a checkpoint are always written to a folder first;
a folder becomes a checkpoint by one rename, an object store's by one conditional put of the list of checkpoints. Either
succeeds only for the round that has the claim (`ownership`).

FOLDER/.owner.json              whose the folder is; FOLDER/.owner.lock is held while it or a checkpoint's name changes
FOLDER/.damaged-step-…          a checkpoint that was found damaged: never read, never counted
FOLDER/.replaced-step-…         a checkpoint while another of the same step takes its place
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from stallwise.elastic._manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    checkpoint_name,
    checkpoint_names,
    checkpoint_step,
    encode_manifest,
)
from stallwise.elastic._ownership import (
    MAX_OWNER_BYTES,
    RoundIdentity,
    StoreOwner,
    check_claim,
    claimed,
    decode_owner,
    names_to_remove,
)
from stallwise.errors import InputError
from stallwise.run.atomic import flush_folder, replace_file

log = logging.getLogger("stallwise")

PARTIAL_PREFIX = ".partial-"
DAMAGED_PREFIX = ".damaged-"
_REPLACED_PREFIX = ".replaced-"
OWNER_FILE = ".owner.json"
_OWNER_LOCK = ".owner.lock"
_LOCK_PATIENCE_S = 120.0
"""A process that holds the lock may be stopped for a while."""
_LOCK_POLL_S = 0.05
SCRATCH_PREFIX = "stallwise-scratch-"
_LOCK = "lock"


def is_full(error: BaseException) -> bool:
    """Tell whether a disk, or its user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class CheckpointStore(Protocol):
    """What a session needs of the place its checkpoints are in."""

    shown: str

    def claim(self, identity: RoundIdentity) -> int:
        """Make it this round's and return the fence. Called once per round, by rank 0 alone, before anything else.

        InputError where it is another job's, SupersededError where a later round has it.
        """
        ...

    def tidy(self) -> None:
        """Remove what earlier rounds left half-written. Called by rank 0 alone, as are all that need the claim."""
        ...

    def draft(self, name: str) -> Path:
        """Return the folder this rank writes its files of a checkpoint to."""
        ...

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """Upload this rank's files, which are written."""
        ...

    def commit(self, draft: Path, manifest: CheckpointManifest) -> None:
        """Make the checkpoint visible, after all ranks have delivered; SupersededError where the claim is lost."""
        ...

    def drop(self, draft: Path) -> None:
        """Remove the files of a draft."""
        ...

    def mark_whole(self, name: str) -> None:
        """Note that a checkpoint was checked, and is not damaged."""
        ...

    def set_aside(self, name: str) -> None:
        """Rename a checkpoint that was found damaged."""
        ...

    def prune(self, keep: int) -> None:
        """Remove all but the newest `keep` that are whole."""
        ...

    def make_room(self) -> None:
        """Remove what can be spared: the disk is full."""
        ...

    def names(self) -> list[str]:
        """List visible checkpoints, newest first."""
        ...

    def fetch(self, name: str) -> Path:
        """Return a folder with the files of a checkpoint, for this rank to read; ValueError where it is damaged."""
        ...

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """Return the files whose contents this rank checks, so that together all copies are checked."""
        ...

    def release(self, name: str) -> None:
        """Remove what `fetch` has downloaded."""
        ...

    def close(self) -> None:
        """Remove temporary files from this machine."""
        ...


class FolderStore:
    """A folder on a disk that all ranks share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fence = 0
        self._whole: set[str] = set()
        self.shown = str(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot hold checkpoints: {error.strerror}. Name another folder.") from None

    def claim(self, identity: RoundIdentity) -> int:
        with self._locked():
            owner = claimed(self._owner(), identity, self.shown)
            try:
                replace_file(self._path / OWNER_FILE, msgspec.json.encode(owner))
            except OSError as error:
                if not is_full(error):
                    raise
                self._remove_all(f"{PARTIAL_PREFIX}*", f"{DAMAGED_PREFIX}*")  # of rounds that this one replaces
                replace_file(self._path / OWNER_FILE, msgspec.json.encode(owner))
        self._fence = owner.fence
        return owner.fence

    def tidy(self) -> None:
        """Remove drafts; a checkpoint that was about to be replaced has its name again, unless the other has it."""
        with self._claimed():
            for replaced in self._path.glob(f"{_REPLACED_PREFIX}*"):
                final = self._path / replaced.name.removeprefix(_REPLACED_PREFIX)
                if not final.exists():
                    replaced.rename(final)
            self._remove_all(f"{PARTIAL_PREFIX}*", f"{_REPLACED_PREFIX}*", f".{OWNER_FILE}.*.tmp")

    def draft(self, name: str) -> Path:
        return self._path / f"{PARTIAL_PREFIX}{name}"

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """No-op: files on a shared folder need no upload."""

    def commit(self, draft: Path, manifest: CheckpointManifest) -> None:
        """Write the manifest and rename the draft, both durably."""
        for name, fact in manifest.files.items():
            path = draft / name
            if not path.exists() or path.stat().st_size != fact.bytes:
                raise OSError(errno.ENOENT, f"{name} of another rank is not in {self.shown}: do all machines share it?")
        replace_file(draft / MANIFEST_FILE, encode_manifest(manifest))
        final = self._path / checkpoint_name(manifest.step)
        replaced = self._path / f"{_REPLACED_PREFIX}{final.name}"
        with self._claimed():
            if final.exists():  # of the same step
                final.rename(replaced)
            try:
                draft.rename(final)
            except OSError:
                if replaced.exists():
                    replaced.rename(final)
                raise
            flush_folder(self._path)
        self._whole.add(final.name)
        _remove(replaced)

    def drop(self, draft: Path) -> None:
        _remove(draft)

    def mark_whole(self, name: str) -> None:
        self._whole.add(name)

    def set_aside(self, name: str) -> None:
        aside = self._path / f"{DAMAGED_PREFIX}{name}"
        with self._claimed(), contextlib.suppress(FileNotFoundError):
            _remove(aside)
            (self._path / name).rename(aside)

    def prune(self, keep: int) -> None:
        """Make each invisible first, then remove it; oldest first. Damaged ones go as whole ones of their step do."""
        with self._claimed():
            doomed = names_to_remove(checkpoint_names(self._path), frozenset(self._whole), keep)
            for name in doomed:
                gone = self._path / f"{PARTIAL_PREFIX}old-{name}"
                with contextlib.suppress(OSError):
                    (self._path / name).rename(gone)
                    _remove(gone)
                self._whole.discard(name)
            oldest = min((checkpoint_step(name) or 0 for name in self._whole), default=0)
            for damaged in self._damaged():
                step = checkpoint_step(damaged.name.removeprefix(DAMAGED_PREFIX))
                if step is None or step < oldest:
                    _remove(damaged)

    def make_room(self) -> None:
        """Remove damaged checkpoints; where there are none, all but the newest whole one."""
        damaged = self._damaged()
        if not damaged:
            self.prune(1)
            return
        with self._claimed():
            for one in damaged:
                _remove(one)

    def names(self) -> list[str]:
        return checkpoint_names(self._path)[::-1]

    def fetch(self, name: str) -> Path:
        return self._path / name

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """Split the files: all ranks see the same ones."""
        return files[rank::world]

    def release(self, name: str) -> None:
        """No-op: nothing was downloaded."""

    def close(self) -> None:
        """No-op: there are no temporary files."""

    def _remove_all(self, *patterns: str) -> None:
        for pattern in patterns:
            for left in self._path.glob(pattern):
                _remove(left)

    def _damaged(self) -> list[Path]:
        return list(self._path.glob(f"{DAMAGED_PREFIX}*"))

    def _owner(self) -> StoreOwner | None:
        try:
            with (self._path / OWNER_FILE).open("rb") as file:
                return decode_owner(file.read(MAX_OWNER_BYTES), self.shown)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the lock, and this round's claim; SupersededError where a later round has claimed the folder."""
        with self._locked():
            check_claim(self._owner(), self._fence)
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, which the kernel releases with the process; OSError where a stopped one keeps it."""
        handle = os.open(self._path / _OWNER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(handle, self.shown)
            yield
        finally:
            os.close(handle)


def _lock(handle: int, shown: str) -> None:
    until_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise OSError(errno.EAGAIN, f"the lock of {shown} is held by a process that does not go on") from None
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            log.warning("The file system of %s has no locks: two rounds at once are told apart less surely.", shown)
            return
        else:
            return


def _remove(path: Path) -> None:
    """Remove a file or folder, if it is there; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        path.unlink() if path.is_file() or path.is_symlink() else shutil.rmtree(path, ignore_errors=True)


class StagingFolder:
    """A temporary folder of this process. Those of killed processes are removed by the next process.

    A lock tells them apart: the kernel releases it with the last process that holds it.
    """

    def __init__(self, inside: Path | None = None) -> None:
        root = Path(inside or tempfile.gettempdir())
        for lock in root.glob(f"{SCRATCH_PREFIX}*/{_LOCK}"):
            with contextlib.suppress(OSError):  # it is in use, or was removed meanwhile
                _remove_if_abandoned(lock)
        self.path = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=root))
        # The lock has its name only when it is locked, so that the folder is not taken for an abandoned one.
        self._lock = (self.path / f"{_LOCK}-new").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / f"{_LOCK}-new").rename(self.path / _LOCK)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_if_abandoned(lock: Path) -> None:
    """Remove an unlocked folder of this user; what others put beside it may be a link or a pipe."""
    folder = lock.parent.lstat()
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid():
        return
    handle = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
