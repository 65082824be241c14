"""Checkpoints in an object store.

PREFIX/owner.json                     whose the prefix is, the fence, and the list of visible checkpoints
PREFIX/step-000000001200@5.2/…        files of a checkpoint: of the round with fence 5, its second

A checkpoint is visible when the list names it. The list changes by conditional put alone (If-Match): whoever has read
an older one does not get through, so that a round that was superseded can neither add a checkpoint nor remove one.
Names contain the fence, so that it cannot overwrite files of another round either.

The object store's client runs in a process of its own, because obstore's threads do not survive a fork, and a rank
forks its loader workers: `python -m stallwise.elastic.remote`, with one `RemoteCommand` as JSON on its standard input
(an argument could be read by everybody on the machine, and an address may have a user or a signature in it).

    claim                       make the prefix this round's; prints the fence
    names                       visible checkpoints, newest first
    put FOLDER NAME FILE …      files of a folder under NAME/
    commit NAME                 add NAME to the list
    get NAME FOLDER             all files of NAME that its manifest lists, the manifest last
    damaged NAME                take NAME from the list of visible ones to that of damaged ones
    prune KEEP WHOLE …          only the newest KEEP of those that are whole stay: the list changes first
    tidy                        remove files of checkpoints that the list does not name
"""

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallwise.elastic._manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    checkpoint_step,
    decode_manifest,
    encode_manifest,
)
from stallwise.elastic._ownership import (
    MAX_OWNER_BYTES,
    RoundIdentity,
    StoreOwner,
    SupersededError,
    check_claim,
    claimed,
    decode_owner,
    names_to_remove,
)
from stallwise.elastic._storage import PARTIAL_PREFIX, CheckpointStore, FolderStore, StagingFolder
from stallwise.elastic.protocol import EXIT_DAMAGED
from stallwise.errors import InputError, StallwiseError
from stallwise.record.processes import die_with_parent
from stallwise.run.atomic import replace_file

if TYPE_CHECKING:
    from obstore.store import ObjectStore

OWNER_OBJECT = "owner.json"
_EXIT_SUPERSEDED = 4
_EXIT_REFUSED = 5
_TIMEOUT_S = 600.0
_CHUNK_BYTES = 8 << 20
_TRIES, _GENERIC_TRIES = 20, 4


class RemoteCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What the client process is to do."""

    url: str
    endpoint: str | None
    command: str
    arguments: list[str]
    fence: int = 0
    claim: RoundIdentity | None = None


class RemoteStore:
    """A prefix of an object store."""

    def __init__(self, url: str, endpoint: str | None = None, scratch: Path | None = None) -> None:
        from stallwise.data.objects.store import shown_url

        self._url, self._endpoint = url.rstrip("/"), endpoint
        self._fence = 0
        self._whole: set[str] = set()
        self.shown = shown_url(url)
        self._staging = StagingFolder(scratch)

    def claim(self, identity: RoundIdentity) -> int:
        self._fence = int(self._client("claim", claim=identity))
        return self._fence

    def tidy(self) -> None:
        """Remove files of checkpoints that the list does not name."""
        self._client("tidy")

    def draft(self, name: str) -> Path:
        """Return a folder on this machine's disk."""
        return self._staging.path / f"{PARTIAL_PREFIX}{name}"

    def deliver(self, draft: Path, files: Sequence[str]) -> None:
        """Upload this rank's files under the checkpoint's name."""
        self._client("put", str(draft), self._name(draft), *files)

    def commit(self, draft: Path, manifest: CheckpointManifest) -> None:
        """Upload the manifest, after everything else, and add the checkpoint to the list."""
        replace_file(draft / MANIFEST_FILE, encode_manifest(manifest))
        name = self._name(draft)
        self._client("put", str(draft), name, MANIFEST_FILE)
        self._client("commit", name)
        self._whole.add(name)
        shutil.rmtree(draft, ignore_errors=True)

    def drop(self, draft: Path) -> None:
        """Remove the local draft; what was uploaded is in no list."""
        shutil.rmtree(draft, ignore_errors=True)

    def mark_whole(self, name: str) -> None:
        self._whole.add(name)

    def set_aside(self, name: str) -> None:
        """Take it from the list of visible ones to that of damaged ones."""
        self._client("damaged", name)

    def prune(self, keep: int) -> None:
        """Remove all but the newest that are whole: from the list first."""
        self._client("prune", str(keep), *self._whole)

    def make_room(self) -> None:
        """No-op: this machine's disk is full, drafts are removed already, and what is uploaded stays."""

    def names(self) -> list[str]:
        return self._client("names").split()

    def fetch(self, name: str) -> Path:
        """Download all files of a checkpoint."""
        folder = self._staging.path / name
        self.release(name)  # one of that name may have been put there since
        self._client("get", name, str(folder))
        return folder

    def mine(self, files: Sequence[str], rank: int, world: int) -> Sequence[str]:
        """Return all files: each rank has a copy of its own."""
        return files

    def release(self, name: str) -> None:
        shutil.rmtree(self._staging.path / name, ignore_errors=True)

    def close(self) -> None:
        """Remove drafts and downloads."""
        self._staging.close()

    @staticmethod
    def _name(draft: Path) -> str:
        return draft.name.removeprefix(PARTIAL_PREFIX)

    def _client(self, command: str, *arguments: str, claim: RoundIdentity | None = None) -> str:
        request = RemoteCommand(
            url=self._url,
            endpoint=self._endpoint,
            command=command,
            arguments=list(arguments),
            fence=self._fence,
            claim=claim,
        )
        process = subprocess.run(
            [sys.executable, "-m", "stallwise.elastic.remote"],
            input=msgspec.json.encode(request).decode(),
            capture_output=True,
            text=True,
        )
        if process.returncode:
            lines = process.stderr.strip().splitlines()
            why = lines[-1] if lines else "the client died"
            if process.returncode == EXIT_DAMAGED:
                raise ValueError(why)
            if process.returncode == _EXIT_SUPERSEDED:
                raise SupersededError(why)
            if process.returncode == _EXIT_REFUSED:
                raise InputError(why)
            raise OSError(errno.EIO, f"{self.shown}: {why}")
        return process.stdout


def main() -> int:
    """Run one command of the client; a failure is one line on stderr, and an exit code that says which kind."""
    die_with_parent()
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=RemoteCommand)
    try:
        from stallwise.data.objects.store import ObjectBucket

        bucket = ObjectBucket(request.url, request.endpoint, timeout_s=_TIMEOUT_S)
        store = bucket.open()
        try:
            _COMMANDS[request.command](store, request)
        except (StallwiseError, SupersededError):
            raise
        except ValueError as error:  # of a manifest
            sys.stderr.write(f"{error}\n")
            return EXIT_DAMAGED
        except Exception as error:  # obstore has many
            sys.stderr.write(f"{bucket.error_text(error)}\n")
            return 2
    except SupersededError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_SUPERSEDED
    except StallwiseError as error:
        sys.stderr.write(f"{error}\n")
        return _EXIT_REFUSED
    return 0


def _owner(store: "ObjectStore", shown: str) -> tuple[StoreOwner | None, str | None]:
    """Return the record and its version; None where there is none."""
    import obstore
    from obstore.exceptions import NotFoundError

    try:
        answer = obstore.get(store, OWNER_OBJECT)
        if answer.meta["size"] > MAX_OWNER_BYTES:
            raise InputError(f"{OWNER_OBJECT} in {shown} is no record of a job: it has {answer.meta['size']} bytes.")
        return decode_owner(bytes(answer.bytes()), shown), answer.meta["e_tag"]
    except (NotFoundError, FileNotFoundError):
        return None, None


def _change(
    store: "ObjectStore", request: RemoteCommand, change: Callable[[StoreOwner | None], StoreOwner]
) -> tuple[StoreOwner | None, StoreOwner]:
    """Change the record by conditional put; returns it before and after. `change` is called anew for each try.

    A put whose reply was lost may have succeeded: the next try then finds its own change made, and makes it again.
    """
    import obstore
    from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, PreconditionError

    from stallwise.data.objects.store import shown_url

    for number in range(_TRIES):
        try:
            before, version = _owner(store, shown_url(request.url))
            after = change(before)
            mode = "create" if before is None else {"e_tag": version}
            obstore.put(store, OWNER_OBJECT, msgspec.json.encode(after), mode=mode)  # type: ignore[arg-type]
        except (AlreadyExistsError, PreconditionError):
            continue
        except GenericError:  # a connection, or the server
            if number >= _GENERIC_TRIES:
                raise
            time.sleep(0.5 * 2**number)
            continue
        except (NotSupportedError, NotImplementedError):
            raise InputError(
                f"{shown_url(request.url)} has no conditional puts, by which rounds of a job are told apart."
            ) from None
        return before, after
    raise OSError(errno.EAGAIN, "the record of the checkpoints changes all the time")


def _changed(store: "ObjectStore", request: RemoteCommand, **lists: Callable[[StoreOwner], list[str]]) -> StoreOwner:
    """Change lists of the record, if this round still has the claim; returns the record after."""

    def change(owner: StoreOwner | None) -> StoreOwner:
        check_claim(owner, request.fence)
        assert owner is not None  # noqa: S101 - check_claim has raised
        return msgspec.structs.replace(owner, **{name: of(owner) for name, of in lists.items()})

    return _change(store, request, change)[1]


def _claim(store: "ObjectStore", request: RemoteCommand) -> None:
    from stallwise.data.objects.store import shown_url

    claim = request.claim
    if claim is None:
        raise InputError("A claim names its round.")
    _, after = _change(store, request, lambda owner: claimed(owner, claim, shown_url(request.url)))
    sys.stdout.write(str(after.fence))


def _names(store: "ObjectStore", request: RemoteCommand) -> None:
    owner, _ = _owner(store, request.url)
    sys.stdout.write("\n".join(_newest_first(owner.checkpoints if owner is not None else [])))


def _newest_first(names: Sequence[str]) -> list[str]:
    """Order by step; of two of one step the one that is later in the list is newer."""
    return sorted(names, key=lambda name: checkpoint_step(name) or 0)[::-1]


def _put(store: "ObjectStore", request: RemoteCommand) -> None:
    import obstore

    folder, name, *files = request.arguments
    for file in files:
        obstore.put(store, f"{name}/{file}", Path(folder) / file, chunk_size=_CHUNK_BYTES)


def _commit(store: "ObjectStore", request: RemoteCommand) -> None:
    (name,) = request.arguments
    _changed(store, request, checkpoints=lambda owner: [*(one for one in owner.checkpoints if one != name), name])


def _damaged(store: "ObjectStore", request: RemoteCommand) -> None:
    (name,) = request.arguments
    _changed(
        store,
        request,
        checkpoints=lambda owner: [one for one in owner.checkpoints if one != name],
        damaged=lambda owner: [*(one for one in owner.damaged if one != name), name],
    )


def _get(store: "ObjectStore", request: RemoteCommand) -> None:
    import obstore
    from obstore.exceptions import NotFoundError

    name, into = request.arguments[0], Path(request.arguments[1])
    into.mkdir(parents=True, exist_ok=True)
    try:
        manifest = bytes(obstore.get(store, f"{name}/{MANIFEST_FILE}").bytes())
    except (NotFoundError, FileNotFoundError):
        raise ValueError("its manifest is not in the bucket") from None
    for file in decode_manifest(manifest).files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (into / file).open("wb") as out:
                for chunk in obstore.get(store, f"{name}/{file}").stream(min_chunk_size=_CHUNK_BYTES):
                    out.write(chunk)
        except (NotFoundError, FileNotFoundError):
            raise ValueError(f"{file} is not in the bucket") from None
    (into / MANIFEST_FILE).write_bytes(manifest)


def _prune(store: "ObjectStore", request: RemoteCommand) -> None:
    keep, whole = int(request.arguments[0]), frozenset(request.arguments[1:])

    def kept(owner: StoreOwner) -> list[str]:
        doomed = names_to_remove(owner.checkpoints, whole, keep)
        return [name for name in owner.checkpoints if name not in doomed]

    def damaged(owner: StoreOwner) -> list[str]:
        oldest = min((checkpoint_step(name) or 0 for name in kept(owner) if name in whole), default=0)
        return [name for name in owner.damaged if (checkpoint_step(name) or 0) >= oldest]

    before, _ = _owner(store, request.url)
    after = _changed(store, request, checkpoints=kept, damaged=damaged)
    for name in [*before.checkpoints, *before.damaged] if before is not None else []:
        if name not in after.checkpoints and name not in after.damaged:
            _remove(store, name)


def _tidy(store: "ObjectStore", request: RemoteCommand) -> None:
    """Only of fences below this round's own: what others begin from now on is theirs."""
    import obstore

    owner, _ = _owner(store, request.url)
    check_claim(owner, request.fence)
    listed = {*owner.checkpoints, *owner.damaged} if owner is not None else set()
    left: set[str] = set()
    for batch in obstore.list(store):
        for entry in batch:
            # Objects of a checkpoint may lie in folders of it; a checkpoint deeper down is another session's.
            name, _, rest = str(entry["path"]).partition("/")
            if rest and checkpoint_step(name) is not None and name not in listed and _fence(name) < request.fence:
                left.add(name)
    for name in left:
        _remove(store, name)


def _fence(name: str) -> int:
    digits = name.partition("@")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _remove(store: "ObjectStore", name: str) -> None:
    import obstore

    for batch in obstore.list(store, prefix=f"{name}/"):
        for entry in batch:
            obstore.delete(store, str(entry["path"]))


_COMMANDS = {
    "claim": _claim,
    "names": _names,
    "put": _put,
    "commit": _commit,
    "get": _get,
    "damaged": _damaged,
    "prune": _prune,
    "tidy": _tidy,
}

if __name__ == "__main__":
    sys.exit(main())


def open_store(location: str | os.PathLike[str], endpoint: str | None = None) -> CheckpointStore:
    """Open a folder, or an object store by its URL."""
    text = os.fspath(location)
    if "://" not in text:
        return FolderStore(Path(text).absolute())
    if text.startswith("file://"):
        return FolderStore(Path(text.removeprefix("file://")))
    return RemoteStore(text, endpoint)
