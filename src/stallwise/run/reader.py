"""Reading a run: whole, partial, or still being recorded."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.run.join import missing_sentence
from stallwise.run.manifest import Manifest, read_manifest
from stallwise.run.parts import RankParts, Source, TableRead, find_parts, fold, read_table

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class Run:
    """A run on disk. The manifest already holds what ranks reported whose parts are not joined yet."""

    path: Path
    manifest: Manifest
    parts: tuple[RankParts, ...] = ()

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open the run at `path`; a `RunError` says in one sentence why it cannot be."""
        manifest = read_manifest(path)
        parts = find_parts([path])
        return cls(path, fold(manifest, parts) if parts else manifest, parts)

    @property
    def is_partial(self) -> bool:
        """Whether anything may be missing; `partial_reason` says what."""
        return self.manifest.state != "complete"

    @cached_property
    def partial_reason(self) -> str | None:
        """Why the record is not whole, or None when it is."""
        if self.manifest.state != "recording":
            return self.manifest.partial_reason
        missing = missing_sentence(self.manifest)
        return " ".join(s for s in ("It is still being recorded, or its launcher was killed.", missing) if s)

    def table(self, name: str) -> "polars.DataFrame":
        """A table by name (`steps`, `batches`, `events`); a known one that nobody wrote is empty."""
        return self.read(name).frame

    def read(self, name: str) -> TableRead:
        """A table, and a sentence for each damaged part that was left out of it."""
        return read_table((Source(self.path, self.manifest),), name, self.parts)

    def __repr__(self) -> str:
        known = self.manifest
        return f"<Run {known.run_id} ({known.state}) of {known.job.script!r} at {self.path}>"
