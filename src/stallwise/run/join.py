"""What the ranks leave behind while a job runs, and joining it into one table each.

    parts/rank-00003/rank.json          who wrote here and whether it got to its end
    parts/rank-00003/steps-00000.json   rows in the order they were appended; one more file per flush

Parts are JSON, so that writing them needs nothing that a training process has not loaded; `join` makes the tables. One
rule decides where a rank's rows are: in its parts folder where there is one, else in the joined tables. The reader and
`join` share it, so a run reads the same before, during and after joining.

Order on disk when joining: tables, then the manifest, then the parts leave in one rename. Stopped anywhere in between,
the parts are still all there and win over the joined rows, so joining again ends the same.
"""

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stallwise.errors import InputError, RunError
from stallwise.inputs import read_bytes
from stallwise.run.atomic import flush_folder, unwritable, write_atomically
from stallwise.run.manifest import (
    MANIFEST_NAME,
    MOST_BYTES,
    CountsRecord,
    LoaderRecord,
    Manifest,
    ModelRecord,
    NodeRecord,
    PhaseRecord,
    RankRecord,
    encode,
    read_manifest,
)
from stallwise.run.schema import TABLES, TableSchema
from stallwise.sentences import Sentence, read_sentence

if TYPE_CHECKING:
    from stallwise.run.table import Table

PARTS_NAME = "parts"
RANK_NAME = "rank.json"
TABLE_SUFFIX = ".npz"
OLD_TABLE_SUFFIX = ".parquet"
"""Of record version 1."""
_PART_BYTES = 256 << 20
_RANK_FOLDER = re.compile(r"rank-(\d{5,})")
_PART_FILE = re.compile(r"(?P<table>[a-z_]+)-(?P<number>\d{5,})\.json")


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """`rank.json`: what one rank knows that the launcher does not."""

    record: RankRecord
    # What the machine's monotonic clock showed when the run began: loader workers write that clock's times.
    clock_zero_s: float = 0.0
    hardware: NodeRecord | None = None
    software: dict[str, str] = {}
    backend: str | None = None
    phases: tuple[PhaseRecord, ...] = ()
    model: ModelRecord | None = None
    loader: LoaderRecord | None = None
    light: bool | None = None
    epoch_samples: int | None = None
    notes: tuple[Sentence, ...] = ()


class PartRows(msgspec.Struct, frozen=True):
    """A part file: rows, each in the order of the columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class RankParts:
    """One rank's folder of parts."""

    rank: int
    folder: Path

    def report(self) -> RankReport:
        """What the rank said of itself; a report that is absent or unreadable means it never finished."""
        try:
            return msgspec.json.decode(
                read_bytes(self.folder / RANK_NAME, MOST_BYTES), type=RankReport, dec_hook=read_sentence
            )
        except (OSError, InputError, RecursionError, msgspec.DecodeError, UnicodeDecodeError):
            return RankReport(record=RankRecord(rank=self.rank, reason="its report cannot be read"))

    def rows(self, table: str) -> "Table":
        """All rows of one table that can be read, in the order they were written."""
        return read_table((), table, (self,)).table

    def files(self, table: str) -> tuple[Path, ...]:
        """The part files of one table, in the order they were written."""
        return tuple(path for name, _, path in self._part_files() if name == table)

    def tables(self) -> set[str]:
        """The tables this rank has parts of, also ones this version does not know."""
        return {name for name, _, _ in self._part_files()}

    def _part_files(self) -> list[tuple[str, int, Path]]:
        try:
            files = [(_PART_FILE.fullmatch(path.name), path) for path in self.folder.iterdir()]
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be listed ({error.strerror}): was the run joined just now? Try again."
            ) from None
        return sorted((match["table"], int(match["number"]), path) for match, path in files if match)


@dataclass(frozen=True)
class RunSource:
    """A run folder rows are taken from, with its manifest."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class TableRead:
    """A table as found on disk, and a sentence for each part that had to be left out."""

    table: "Table"
    damage: tuple[Sentence, ...] = ()


def rank_folder(folder: Path, rank: int) -> Path:
    """Where `rank` of the run in `folder` writes its parts."""
    return folder / PARTS_NAME / f"rank-{rank:05d}"


def part_path(folder: Path, table: str, number: int) -> Path:
    """The file of part `number` of a table in a rank's folder."""
    return folder / f"{table}-{number:05d}.json"


def encode_part(table: TableSchema, rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Rows as a part file. NumPy scalars are welcome; a number that is not finite becomes null."""
    part = PartRows(tuple(table.columns), tuple(rows))
    return msgspec.json.encode(part, enc_hook=lambda value: value.item())


def find_parts(folders: Iterable[Path]) -> tuple[RankParts, ...]:
    """The ranks that left parts in any of the run folders; the first folder that has a rank counts."""
    by_rank: dict[int, RankParts] = {}
    for folder in folders:
        for path in (folder / PARTS_NAME).glob("rank-*"):
            match = _RANK_FOLDER.fullmatch(path.name)
            if match and path.is_dir():
                by_rank.setdefault(int(match[1]), RankParts(int(match[1]), path))
    return tuple(by_rank[rank] for rank in sorted(by_rank))


def read_table(sources: tuple[RunSource, ...], name: str, parts: tuple[RankParts, ...]) -> TableRead:
    """All rows of a table: joined ones, except of ranks that have parts, and those parts; ordered by rank."""
    from stallwise.run.table import concatenate

    tables = _read_joined(sources, name, taken={part.rank for part in parts})
    damage: list[Sentence] = []
    for rank in parts:
        for path in rank.files(name):
            try:
                tables.append(read_part(path, TABLES.get(name)))
            except RunError:
                damage.append(
                    Sentence("run.part-damaged", f"{_short_path(path)} is cut off or damaged and was left out.")
                )
    if not tables:
        return TableRead(_empty(name, sources), tuple(damage))
    try:
        return TableRead(concatenate(tables).sort("rank"), tuple(damage))
    except (TypeError, KeyError) as error:
        raise RunError(f"The pieces of the table {name} do not go together ({error}). Profile the job again.") from None


def read_part(path: Path, schema: TableSchema | None) -> "Table":
    """One part file as a table with the columns of `schema`."""
    from stallwise.run.table import DTYPES, Table, TableColumn
    from stallwise.run.table_file import may_be_column

    try:
        part = msgspec.json.decode(read_bytes(path, _PART_BYTES), type=PartRows)
        if not all(map(may_be_column, part.columns)):
            raise ValueError("a column has no usable name")
        dtypes = {name: DTYPES[column.dtype] for name, column in schema.columns.items()} if schema else {}
        values = list(zip(*part.rows, strict=True)) if part.rows else [()] * len(part.columns)
        named = zip(part.columns, values, strict=True)
        table = Table({name: TableColumn.of(column, dtypes.get(name)) for name, column in named})
        return schema.conform(table) if schema else table
    except (OSError, ValueError, TypeError, OverflowError, RecursionError, InputError) as error:
        raise RunError(f"{path} is cut off or damaged ({error}).") from None


def read_joined(folder: Path, name: str) -> "Table | None":
    """A joined table, of this version or, where there is none, of the first; None where there is neither."""
    from stallwise.run.table_file import damaged, read_parquet, read_table_file

    for suffix, read in ((TABLE_SUFFIX, read_table_file), (OLD_TABLE_SUFFIX, read_parquet)):
        path = folder / f"{name}{suffix}"
        if path.exists():
            schema = TABLES.get(name)
            table = read(path)
            try:
                return schema.conform(table) if schema else table
            except (ValueError, TypeError) as error:
                raise damaged(path, error) from None
    return None


def fold(manifest: Manifest, parts: tuple[RankParts, ...]) -> Manifest:
    """The manifest with what the ranks with parts reported added to it; what it already knows wins."""
    reports = [part.report() for part in parts]
    ranks = {r.rank: r for r in manifest.ranks} | {r.record.rank: r.record for r in reports}
    nodes = {r.hardware.node: r.hardware for r in reports if r.hardware} | {n.node: n for n in manifest.nodes}
    phases = {p.name: p for r in reports for p in r.phases} | {p.name: p for p in manifest.phases}
    order = dict.fromkeys([*(p.name for p in manifest.phases), *phases])
    software: dict[str, str] = {}
    for report in reports:
        software |= report.software
    return msgspec.structs.replace(
        manifest,
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        nodes=tuple(nodes[node] for node in sorted(nodes)),
        phases=tuple(phases[name] for name in order),
        software=software | manifest.software,
        world=msgspec.structs.replace(manifest.world, backend=_first_known([manifest.world, *reports], "backend")),
        model=_first_known([manifest, *reports], "model"),
        loader=_first_known([manifest, *reports], "loader"),
        light=_first_known([manifest, *reports], "light"),
        counts=msgspec.structs.replace(
            manifest.counts,
            ranks_seen=len(ranks),
            epoch_samples=_first_known([manifest.counts, *reports], "epoch_samples"),
        ),
        notes=tuple(dict.fromkeys([*manifest.notes, *(note for r in reports for note in r.notes)])),
    )


def _first_known(records: Sequence[Any], name: str) -> Any:
    """The value of a field in the first record that has one."""
    return next((value for record in records if (value := getattr(record, name)) is not None), None)


def _read_joined(sources: tuple[RunSource, ...], name: str, taken: set[int]) -> "list[Table]":
    """The joined tables of the sources, each without the ranks taken from parts or from an earlier source."""
    tables = []
    for source in sources:
        table = read_joined(source.folder, name)
        if table is not None:
            if "rank" not in table:
                raise RunError(f"The table {name} of the run at {source.folder} has no ranks. Profile the job again.")
            tables.append(table.filter(~table["rank"].is_in(taken)))
            taken = taken | set(table["rank"].unique())
        taken = taken | {rank.rank for rank in source.manifest.ranks}
    return tables


def absorb(manifest: Manifest, other: Manifest) -> Manifest:
    """The manifest with what another machine's manifest of the same run knows added to it."""
    phases = {p.name: p for p in (*other.phases, *manifest.phases)}
    ranks = {r.rank: r for r in (*other.ranks, *manifest.ranks)}
    nodes = {n.node: n for n in (*other.nodes, *manifest.nodes)}
    return msgspec.structs.replace(
        manifest,
        phases=tuple(phases.values()),
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        nodes=tuple(nodes[node] for node in sorted(nodes)),
        software=other.software | manifest.software,
        model=manifest.model or other.model,
        loader=manifest.loader or other.loader,
        light=other.light if manifest.light is None else manifest.light,
        losses=tuple(dict.fromkeys([*manifest.losses, *other.losses])),
        notes=tuple(dict.fromkeys([*manifest.notes, *other.notes])),
        tables=other.tables | manifest.tables,
        counts=msgspec.structs.replace(
            manifest.counts, epoch_samples=manifest.counts.epoch_samples or other.counts.epoch_samples
        ),
    )


def _empty(name: str, sources: tuple[RunSource, ...]) -> "Table":
    if name not in TABLES:
        where = f"The run at {sources[0].folder}" if sources else "This rank"
        raise RunError(f"{where} has no table {name!r}. Known tables: {', '.join(TABLES)}.")
    return TABLES[name].empty()


def _short_path(path: Path) -> str:
    return "/".join(path.parts[-3:])


if TYPE_CHECKING:
    from stallwise.run.table import Table

_JOINED_NAME = ".parts.joined"
_SHOWN = 8


def join(
    folder: Path,
    *,
    others: Iterable[Path] = (),
    exit_code: int | None = None,
    reason: Sentence | None = None,
    notes: Iterable[Sentence] = (),
) -> Manifest:
    """Merge the parts in `folder`, and in `others` (copies of the run from machines with their own disks).

    `exit_code` is the job's, `reason` why the launcher knows the record to be partial, `notes` are added to
    the manifest. With nothing new a joined run is left as it is. The folders in `others` are only read.
    """
    sources = (RunSource(folder, read_manifest(folder)), *(RunSource(o, read_manifest(o)) for o in others))
    manifest = _absorb_all(sources)
    shutil.rmtree(folder / _JOINED_NAME, ignore_errors=True)  # left by a join killed at its very end
    parts = find_parts(source.folder for source in sources)
    if manifest.state != "recording" and not parts and len(sources) == 1:
        return manifest
    # Also tables that this version does not know: joining must not lose what a newer writer added.
    written = {name for part in parts for name in part.tables()}
    names = dict.fromkeys([*TABLES, *manifest.tables, *sorted(written)])
    reads = {name: read_table(sources, name, parts) for name in names}
    damage = tuple(sentence for read in reads.values() for sentence in read.damage)
    for name, read in reads.items():
        _write_table(folder / f"{name}{TABLE_SUFFIX}", read.table)
    joined = _finish(fold(manifest, parts), reads, damage, exit_code=exit_code, reason=reason, notes=tuple(notes))
    write_atomically(folder / MANIFEST_NAME, encode(joined))
    for name in reads:
        (folder / f"{name}{OLD_TABLE_SUFFIX}").unlink(missing_ok=True)
    _put_away_parts(folder, damaged=bool(damage))
    return joined


def missing_sentence(manifest: Manifest) -> Sentence | None:
    """Which ranks left nothing and which stopped early, or None when all of them finished."""
    expected, reported = manifest.counts.ranks_expected, {r.rank for r in manifest.ranks}
    absent = expected - sum(rank < expected for rank in reported)
    first = list(islice((rank for rank in range(expected) if rank not in reported), _SHOWN))
    sentences = [f"{_ranks(first, absent)} of {expected} left no record."] if absent > 0 else []
    for rank in manifest.ranks:
        if not rank.finished:
            why = rank.reason or "its process was killed or lost"
            sentences.append(f"Rank {rank.rank} stopped before its end: {why}.")
    return Sentence("run.ranks-missing", " ".join(sentences)) if sentences else None


def count_phases(steps: "Table", announced: tuple[PhaseRecord, ...]) -> tuple[PhaseRecord, ...]:
    """Kept steps and blocks of each phase, announced ones first and in their order."""
    groups = steps.filter(steps["kept"].is_true()).group_by("phase")
    counts = groups.with_columns(steps=groups.n_unique("step"), blocks=groups.n_unique("block"))
    counted = {row["phase"]: row for row in counts.dicts()}
    phases = {phase.name: phase for phase in announced}
    order = dict.fromkeys([*phases, *steps["phase"].unique()])
    return tuple(
        PhaseRecord(
            name=name,
            differs=phases[name].differs if name in phases else "",
            steps=counted[name]["steps"] if name in counted else 0,
            blocks=counted[name]["blocks"] if name in counted else 0,
        )
        for name in order
    )


def count(steps: "Table", manifest_counts: CountsRecord) -> CountsRecord:
    """Steps of the job and samples over all ranks; samples are unknown where no step says."""
    return CountsRecord(
        steps=steps["step"].n_unique(),
        samples=steps["samples"].sum() if len(steps["samples"].valid) else None,
        ranks_seen=manifest_counts.ranks_seen,
        ranks_expected=manifest_counts.ranks_expected,
        epoch_samples=manifest_counts.epoch_samples,
    )


def _absorb_all(sources: tuple[RunSource, ...]) -> Manifest:
    manifest = sources[0].manifest
    for source in sources[1:]:
        if source.manifest.run_id != manifest.run_id:
            raise RunError(
                f"{source.folder} holds run {source.manifest.run_id}, not {manifest.run_id}. "
                "Only copies of one run can be joined."
            )
        manifest = absorb(manifest, source.manifest)
    return manifest


def _finish(
    manifest: Manifest,
    reads: dict[str, TableRead],
    damage: tuple[Sentence, ...],
    *,
    exit_code: int | None,
    reason: Sentence | None,
    notes: tuple[Sentence, ...],
) -> Manifest:
    steps = reads["steps"].table
    unread = None
    if damage:
        unread = Sentence("run.parts-damaged", f"{len(damage)} of its parts could not be read.", parts=len(damage))
    losses = tuple(dict.fromkeys(filter(None, (*manifest.losses, reason, unread))))
    reasons = [one for one in (*losses, missing_sentence(manifest)) if one]
    why = Sentence(reasons[0].code, " ".join(reasons)) if reasons else None
    state: Literal["partial", "complete"] = "partial" if why else "complete"
    code = manifest.job.exit_code if exit_code is None else exit_code
    return msgspec.structs.replace(
        manifest,
        state=state,
        partial_reason=why,
        losses=losses,
        job=msgspec.structs.replace(manifest.job, exit_code=code),
        phases=count_phases(steps, manifest.phases),
        counts=count(steps, manifest.counts),
        tables={name: read.table.height for name, read in reads.items()},
        notes=tuple(dict.fromkeys([*manifest.notes, *notes, *damage])),
    )


def _write_table(path: Path, table: "Table") -> None:
    from stallwise.run.table_file import write_table

    write_table(path, table)


def _put_away_parts(folder: Path, *, damaged: bool) -> None:
    """Remove the parts; damaged ones are set aside instead, since the disk may give them back another day."""
    parts = folder / PARTS_NAME
    if not parts.exists():
        return
    number = sum(1 for _ in folder.glob("parts.damaged-*"))
    target = folder / (f"parts.damaged-{number}" if damaged else _JOINED_NAME)
    try:
        parts.rename(target)
        flush_folder(folder)
    except OSError as error:
        raise unwritable(parts, error) from None
    shutil.rmtree(folder / _JOINED_NAME, ignore_errors=True)


def _ranks(first: list[int], count: int) -> str:
    if count == 1:
        return f"Rank {first[0]}"
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"Ranks {', '.join(map(str, first))}{more}"
