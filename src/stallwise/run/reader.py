"""Reading a run: whole, partial, or still being recorded."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.run.join import RankParts, RunSource, TableRead, find_parts, fold, missing_sentence, read_table
from stallwise.run.manifest import Manifest, read_manifest
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.run.table import Table


@dataclass(frozen=True)
class Run:
    """A run on disk. The manifest already holds what ranks reported whose parts are not joined yet."""

    path: Path
    manifest: Manifest
    parts: tuple[RankParts, ...] = ()
    _reads: dict[str, TableRead] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open the run at `path`; a `RunError` says in one sentence why it cannot be."""
        manifest = read_manifest(path)
        parts = find_parts([path])
        return cls(path, fold(manifest, parts) if parts else manifest, parts)

    @cached_property
    def partial_reason(self) -> Sentence | None:
        """Why the record is not whole, or None when it is."""
        if self.manifest.state != "recording":
            return self.manifest.partial_reason
        missing = missing_sentence(self.manifest)
        open_ended = "It is still being recorded, or its launcher was killed."
        return Sentence("run.recording", " ".join(filter(None, (open_ended, missing))))

    def table(self, name: str) -> "Table":
        """A table by name (`steps`, `batches`, `events`); a known one that nobody wrote is empty."""
        return self.read(name).table

    def read(self, name: str) -> TableRead:
        """A table, and a sentence for each damaged part that was left out of it; from disk only once."""
        if name not in self._reads:
            self._reads[name] = read_table((RunSource(self.path, self.manifest),), name, self.parts)
        return self._reads[name]

    def __repr__(self) -> str:
        manifest = self.manifest
        return f"<Run {manifest.run_id} ({manifest.state}) of {manifest.job.script!r} at {self.path}>"
