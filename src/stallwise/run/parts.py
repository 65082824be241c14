"""What the ranks leave behind while a job runs, and how it is put together.

    parts/rank-00003/rank.json          who wrote here and whether it got to its end
    parts/rank-00003/steps-00000.json   rows in the order they were appended; one more file per flush

Parts are JSON, not Parquet, so that polars never runs inside a training process: once its thread pool has
started there, a loader worker forked later that uses polars itself hangs for ever. `join` makes the Parquet.

One rule decides where a rank's rows are: in its parts folder where there is one, else in the joined tables.
The reader and `join` share it, so a run reads the same before, during and after joining.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.errors import RunError
from stallwise.run.manifest import Manifest, ModelRecord, NodeRecord, PhaseRecord, RankRecord
from stallwise.run.schema import TABLES, Table

if TYPE_CHECKING:
    import polars

PARTS_NAME = "parts"
RANK_NAME = "rank.json"
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
    notes: tuple[str, ...] = ()


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
            return msgspec.json.decode((self.folder / RANK_NAME).read_bytes(), type=RankReport)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return RankReport(record=RankRecord(rank=self.rank, reason="its report cannot be read"))

    def rows(self, table: str) -> "polars.DataFrame":
        """All rows of one table that can be read, in the order they were written."""
        return read_table((), table, (self,)).frame

    def files(self, table: str) -> tuple[Path, ...]:
        """The part files of one table, in the order they were written."""
        return tuple(path for name, _, path in self._found() if name == table)

    def tables(self) -> set[str]:
        """The tables this rank has parts of, also ones this version does not know."""
        return {name for name, _, _ in self._found()}

    def _found(self) -> list[tuple[str, int, Path]]:
        try:
            found = [(_PART_FILE.fullmatch(path.name), path) for path in self.folder.iterdir()]
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be listed ({error.strerror}): was the run joined just now? Try again."
            ) from None
        return sorted((match["table"], int(match["number"]), path) for match, path in found if match)


@dataclass(frozen=True)
class Source:
    """A run folder rows are taken from, with its manifest."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class TableRead:
    """A table as found on disk, and a sentence for each part that had to be left out."""

    frame: "polars.DataFrame"
    damage: tuple[str, ...] = ()


def rank_folder(folder: Path, rank: int) -> Path:
    """Where `rank` of the run in `folder` writes its parts."""
    return folder / PARTS_NAME / f"rank-{rank:05d}"


def part_path(folder: Path, table: str, number: int) -> Path:
    """The file of part `number` of a table in a rank's folder."""
    return folder / f"{table}-{number:05d}.json"


def encode_part(table: Table, rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Rows as a part file. NumPy scalars are welcome; a number that is not finite becomes null."""
    part = PartRows(tuple(table.columns), tuple(rows))
    return msgspec.json.encode(part, enc_hook=lambda value: value.item())


def find_parts(folders: Iterable[Path]) -> tuple[RankParts, ...]:
    """The ranks that left parts in any of the run folders; the first folder that has a rank counts."""
    found: dict[int, RankParts] = {}
    for folder in folders:
        for path in (folder / PARTS_NAME).glob("rank-*"):
            match = _RANK_FOLDER.fullmatch(path.name)
            if match and path.is_dir():
                found.setdefault(int(match[1]), RankParts(int(match[1]), path))
    return tuple(found[rank] for rank in sorted(found))


def read_table(sources: tuple[Source, ...], name: str, parts: tuple[RankParts, ...]) -> TableRead:
    """All rows of a table: joined ones, except of ranks that have parts, and those parts; ordered by rank."""
    import polars

    frames = _read_joined(sources, name, taken={part.rank for part in parts})
    damage: list[str] = []
    for rank in parts:
        for path in rank.files(name):
            try:
                frames.append(read_part(path, TABLES.get(name)))
            except RunError:
                damage.append(f"{_short(path)} is cut off or damaged and was left out.")
    if not frames:
        return TableRead(_empty(name, sources), tuple(damage))
    whole = polars.concat(frames, how="diagonal_relaxed")
    return TableRead(whole.sort("rank", maintain_order=True), tuple(damage))


def read_part(path: Path, table: Table | None) -> "polars.DataFrame":
    """One part file as a data frame with the columns of `table`, like `read_parquet`."""
    import polars

    dtypes = table.dtypes() if table else {}
    try:
        part = msgspec.json.decode(path.read_bytes(), type=PartRows)
        values = zip(*part.rows, strict=True) if part.rows else [()] * len(part.columns)
        named = zip(part.columns, values, strict=True)
        frame = polars.DataFrame([polars.Series(name, list(v), dtypes.get(name)) for name, v in named])
        return _conform(frame, table) if table else frame
    except (polars.exceptions.PolarsError, OSError, ValueError, TypeError, OverflowError) as error:
        raise RunError(f"{path} is cut off or damaged ({error}).") from None


def read_parquet(path: Path, table: Table | None) -> "polars.DataFrame":
    """One Parquet file with the columns of `table`; nullable ones it lacks are null, further ones stay."""
    import polars

    # A damaged file can also make the Parquet decoder panic, which is not an Exception.
    unreadable = (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError)
    try:
        frame = polars.read_parquet(path, glob=False)
        return _conform(frame, table) if table else frame
    except unreadable as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path} is cut off or damaged ({reason}). Restore it from a copy, or profile the job again."
        ) from None


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
    backend = manifest.world.backend or next((r.backend for r in reports if r.backend), None)
    return msgspec.structs.replace(
        manifest,
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        nodes=tuple(nodes[node] for node in sorted(nodes)),
        phases=tuple(phases[name] for name in order),
        software=software | manifest.software,
        world=msgspec.structs.replace(manifest.world, backend=backend),
        model=manifest.model or next((r.model for r in reports if r.model), None),
        counts=msgspec.structs.replace(manifest.counts, ranks_seen=len(ranks)),
        notes=tuple(dict.fromkeys([*manifest.notes, *(note for r in reports for note in r.notes)])),
    )


def _read_joined(sources: tuple[Source, ...], name: str, taken: set[int]) -> "list[polars.DataFrame]":
    """The joined tables of the sources, each without the ranks taken from parts or from an earlier source."""
    import polars

    frames = []
    for source in sources:
        path = source.folder / f"{name}.parquet"
        if path.exists():
            frame = read_parquet(path, TABLES.get(name))
            frames.append(frame.filter(~polars.col("rank").is_in(sorted(taken))))
            taken = taken | set(frame.get_column("rank").to_list())
        taken = taken | {rank.rank for rank in source.manifest.ranks}
    return frames


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
        losses=tuple(dict.fromkeys([*manifest.losses, *other.losses])),
        notes=tuple(dict.fromkeys([*manifest.notes, *other.notes])),
        tables=other.tables | manifest.tables,
    )


def _conform(frame: "polars.DataFrame", table: Table) -> "polars.DataFrame":
    import polars

    dtypes = table.dtypes()
    absent = [name for name in dtypes if name in table.nullable and name not in frame.columns]
    filled = frame.with_columns(polars.lit(None).alias(name) for name in absent)
    extra = [name for name in frame.columns if name not in dtypes]
    return filled.select([*(polars.col(name).cast(dtype) for name, dtype in dtypes.items()), *extra])


def _empty(name: str, sources: tuple[Source, ...]) -> "polars.DataFrame":
    if name not in TABLES:
        where = f"The run at {sources[0].folder}" if sources else "This rank"
        raise RunError(f"{where} has no table {name!r}. Known tables: {', '.join(TABLES)}.")
    return TABLES[name].empty()


def _short(path: Path) -> str:
    return "/".join(path.parts[-3:])
