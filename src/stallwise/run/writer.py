"""Writing a run while the job runs.

The launcher calls `start_run`, every rank opens a `RankWriter` and appends rows, the launcher calls `join` at
the end. Every file takes its name only when it is whole, so a process killed at any moment leaves either no
run (no manifest yet) or one that reads as partial.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from stallwise.errors import RunError
from stallwise.run.atomic import flush_folder, make_folder, write_atomically
from stallwise.run.join import RANK_NAME, RankParts, RankReport, encode_part, part_path, rank_folder
from stallwise.run.manifest import (
    MANIFEST_NAME,
    LoaderRecord,
    Manifest,
    ModelRecord,
    NodeRecord,
    PhaseRecord,
    RankRecord,
    encode,
    read_manifest,
)
from stallwise.run.schema import TABLES
from stallwise.sentences import Sentence

# A flush costs about a millisecond plus the disk's own flush; over this many rows that is next to nothing.
FLUSH_ROWS = 2048


def start_run(folder: Path, manifest: Manifest) -> None:
    """Create the run: its folder and a manifest in state `recording`. A run is never overwritten."""
    if (folder / MANIFEST_NAME).exists():
        raise RunError(f"{folder} already holds a run. Choose another folder, or remove it first.")
    make_folder(folder, mode=0o700)  # arguments, paths, and what the script writes are nobody else's business
    write_atomically(folder / MANIFEST_NAME, encode(manifest))


class RankWriter:
    """One rank's side of a run. Appending costs a list append; files are written every `flush_rows` rows.

    Nothing heavy is imported. Flush where a pause does no harm, between blocks. Use it from the rank's own process
    and one thread only: a forked loader worker inherits the object, and there `flush` and `close` do nothing, so that
    it cannot write over its parent's files.
    """

    def __init__(self, folder: Path, report: RankReport, flush_rows: int) -> None:
        self._folder = rank_folder(folder, report.record.rank)
        self._report = report
        self._flush_rows = flush_rows
        self._process = os.getpid()
        self._rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
        self._next = {name: _next_number(self._folder, report.record.rank, name) for name in TABLES}

    @classmethod
    def open(
        cls,
        folder: Path,
        rank: int,
        *,
        node: int = 0,
        hardware: NodeRecord | None = None,
        software: dict[str, str] | None = None,
        backend: str | None = None,
        phases: tuple[PhaseRecord, ...] = (),
        clock_zero_s: float = 0.0,
        flush_rows: int = FLUSH_ROWS,
    ) -> Self:
        """Begin (or, after a restart of the rank, continue) the part of `rank` in the run at `folder`."""
        if read_manifest(folder).state != "recording":
            raise RunError(f"The run at {folder} is already joined. Start a new one to record more.")
        make_folder(rank_folder(folder, rank))
        flush_folder(rank_folder(folder, rank).parent)
        report = RankReport(
            record=RankRecord(rank=rank, node=node, clock_zero_s=clock_zero_s),
            clock_zero_s=clock_zero_s,
            hardware=hardware,
            software=software or {},
            backend=backend,
            phases=phases,
        )
        writer = cls(folder, report, flush_rows)
        writer._write_report()
        return writer

    @property
    def rank(self) -> int:
        """The rank whose part this is."""
        return self._report.record.rank

    @property
    def folder(self) -> Path:
        """Where this rank's parts lie."""
        return self._folder

    @property
    def clock_zero_s(self) -> float:
        """What the machine's monotonic clock showed when the run began here."""
        return self._report.clock_zero_s

    def backend(self, name: str) -> None:
        """Say which back end the ranks talk through, once that is known."""
        self._change_report(backend=name)

    def append(self, table: str, row: tuple[Any, ...]) -> None:
        """Add one row, a `StepRow`, `BatchRow`, `EventRow` or any tuple in the table's column order."""
        rows = self._rows[table]
        rows.append(row)
        if len(rows) >= self._flush_rows:
            self._flush_table(table)

    def note(self, sentence: Sentence) -> None:
        """Leave an honest remark for the reader of the run; on disk with the next flush."""
        if sentence not in self._report.notes:
            self._change_report(notes=(*self._report.notes, sentence))

    def phase(self, name: str, differs: str) -> None:
        """Say what differs in a phase that was not announced on opening."""
        if all(phases.name != name for phases in self._report.phases):
            self._change_report(phases=(*self._report.phases, PhaseRecord(name=name, differs=differs)))

    def epoch(self, samples: int) -> None:
        """Say how many samples an epoch of the training data has, over all ranks."""
        self._change_report(epoch_samples=samples)

    def model(self, record: ModelRecord) -> None:
        """Say what is being trained."""
        self._change_report(model=record)

    def loader(self, record: LoaderRecord) -> None:
        """Record the settings of the loader that feeds the steps."""
        self._change_report(loader=record)

    def light(self, light: bool) -> None:
        """Record whether the profile only observes."""
        self._change_report(light=light)

    def batch_seen(self, samples_per_step: float, tokens_per_step: float | None) -> None:
        """Say how much this rank trains on in a step, where no loader could tell."""
        if self._report.model is not None:
            changed = msgspec.structs.replace(
                self._report.model, samples_per_step=samples_per_step, tokens_per_step=tokens_per_step
            )
            self._change_report(model=changed)

    def flush(self) -> None:
        """Put everything appended so far on disk."""
        for table in self._rows:
            self._flush_table(table)
        self._write_report()

    def close(
        self, *, reason: str | None = None, exit_code: int | None = None, peak_memory_bytes: int | None = None
    ) -> None:
        """Flush and say that this rank is done; with a `reason`, that it ended before its time and why."""
        record = msgspec.structs.replace(
            self._report.record,
            finished=reason is None,
            reason=reason,
            exit_code=exit_code,
            peak_memory_bytes=peak_memory_bytes,
        )
        self._change_report(record=record)
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The type alone: an exception's text may hold paths or secrets.
        self.close(reason=None if kind is None else f"it ended with {kind.__name__}")

    def _flush_table(self, table: str) -> None:
        rows = self._rows[table]
        if not rows or os.getpid() != self._process:
            return
        path = part_path(self._folder, table, self._next[table])
        write_atomically(path, encode_part(TABLES[table], rows))
        self._next[table] += 1
        self._rows[table] = []

    def _change_report(self, **changes: Any) -> None:
        self._report = msgspec.structs.replace(self._report, **changes)

    def _write_report(self) -> None:
        if os.getpid() == self._process:
            write_atomically(self._folder / RANK_NAME, encode(self._report))


def write_part(part: RankParts, table: str, rows: list[tuple[Any, ...]]) -> None:
    """Add rows to what a rank left behind, from another process after the rank has ended."""
    number = _next_number(part.folder, part.rank, table)
    write_atomically(part_path(part.folder, table, number), encode_part(TABLES[table], rows))


def _next_number(folder: Path, rank: int, table: str) -> int:
    return max((int(path.stem.rpartition("-")[2]) + 1 for path in RankParts(rank, folder).files(table)), default=0)
