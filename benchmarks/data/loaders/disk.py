"""The same files on local disk, read by a plain DataLoader: what a bucket should feel like once it is cached."""

from pathlib import Path
from typing import Any

from benchmarks.data.loaders.common import kept, shuffled
from benchmarks.data.spec import Spec


class Files:
    """A folder of files, one sample each."""

    def __init__(self, spec: Spec) -> None:
        self._decode = spec.decode
        self.paths = sorted(str(path) for path in Path(spec.source).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[int, int]:
        with open(self.paths[number], "rb") as file:  # noqa: PTH123 - the shortest way to the bytes
            return kept(file.read(), self._decode)


def make(spec: Spec) -> Any:
    """Shuffled, as all raw loaders here."""
    return shuffled(Files(spec), spec)
