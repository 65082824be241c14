"""The bucket's client, in a process of its own: `python -m stallwise.elastic.bucket URL ENDPOINT DO …`.

obstore's threads do not live through a fork, and a rank forks its loader workers.

    names                       checkpoints that have a manifest, newest first
    put FOLDER NAME FILE …      files of a folder under NAME/
    get NAME FOLDER             all files of NAME that its manifest lists, the manifest last
    prune KEEP                  only the newest KEEP stay: manifests go first
    tidy                        remove files that no manifest names
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.elastic import manifest
from stallwise.elastic.codes import DAMAGED
from stallwise.errors import StallwiseError
from stallwise.record.processes import die_with_parent

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_TIMEOUT_S = 600.0
_CHUNK_BYTES = 8 << 20


def main(arguments: Sequence[str]) -> int:
    """Do one thing; what goes wrong is one line on stderr and exit code 2, or 3 where a checkpoint is damaged."""
    die_with_parent()
    url, endpoint, what, *rest = arguments
    try:
        from stallwise.data.store import Bucket

        where = Bucket(url, endpoint or None, timeout_s=_TIMEOUT_S)
        store = where.open()
        try:
            _DO[what](store, rest)
        except StallwiseError:
            raise
        except ValueError as error:  # of a manifest
            sys.stderr.write(f"{error}\n")
            return DAMAGED
        except Exception as error:  # obstore has many
            sys.stderr.write(f"{where.said(error)}\n")
            return 2
    except StallwiseError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _listed(store: "ObjectStore") -> dict[str, list[str]]:
    """Objects by checkpoint."""
    import obstore

    found: dict[str, list[str]] = {}
    for batch in obstore.list(store):
        for one in batch:
            # Objects of a checkpoint may lie in folders of it; a checkpoint deeper down is another session's.
            name, _, rest = str(one["path"]).partition("/")
            if rest and manifest.step_of(name) is not None:
                found.setdefault(name, []).append(rest)
    return found


def _names(store: "ObjectStore", _: Sequence[str]) -> None:
    whole = [name for name, files in _listed(store).items() if manifest.NAME in files]
    sys.stdout.write("\n".join(sorted(whole, reverse=True)))


def _put(store: "ObjectStore", rest: Sequence[str]) -> None:
    import obstore

    folder, name, *files = rest
    for file in files:
        obstore.put(store, f"{name}/{file}", Path(folder) / file, chunk_size=_CHUNK_BYTES)


def _get(store: "ObjectStore", rest: Sequence[str]) -> None:
    import obstore
    from obstore.exceptions import NotFoundError

    name, into = rest[0], Path(rest[1])
    into.mkdir(parents=True, exist_ok=True)
    said = bytes(obstore.get(store, f"{name}/{manifest.NAME}").bytes())
    for file in manifest.decode(said).files:
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise ValueError(f"its manifest names {file}, which is no part of it")
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            with (into / file).open("wb") as out:
                for chunk in obstore.get(store, f"{name}/{file}").stream(min_chunk_size=_CHUNK_BYTES):
                    out.write(chunk)
        except (NotFoundError, FileNotFoundError):
            raise ValueError(f"{file} is not in the bucket") from None
    (into / manifest.NAME).write_bytes(said)


def _prune(store: "ObjectStore", rest: Sequence[str]) -> None:
    found = _listed(store)
    whole = sorted(name for name, files in found.items() if manifest.NAME in files)
    for name in whole[: -int(rest[0])]:
        _remove(store, name, found[name])


def _tidy(store: "ObjectStore", _: Sequence[str]) -> None:
    for name, files in _listed(store).items():
        if manifest.NAME not in files:
            _remove(store, name, files)


def _remove(store: "ObjectStore", name: str, files: Sequence[str]) -> None:
    import obstore

    for file in sorted(files, key=lambda file: file != manifest.NAME):
        obstore.delete(store, f"{name}/{file}")


_DO = {"names": _names, "put": _put, "get": _get, "prune": _prune, "tidy": _tidy}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
