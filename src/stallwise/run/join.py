"""Joining: the ranks' parts become one table each, and the manifest says whether the record is whole.

Order on disk: tables, then the manifest, then the parts leave in one rename. Stopped anywhere in between, the
parts are still all there and win over the joined rows, so joining again ends the same.
"""

import io
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from stallwise.errors import RunError
from stallwise.run.atomic import flush_folder, unwritable, write_atomically
from stallwise.run.manifest import MANIFEST_NAME, CountsRecord, Manifest, PhaseRecord, encode, read_manifest
from stallwise.run.parts import PARTS_NAME, Source, TableRead, absorb, find_parts, fold, read_table
from stallwise.run.schema import TABLES

if TYPE_CHECKING:
    import polars

_JOINED_NAME = ".parts.joined"
_SHOWN = 8


def join(
    folder: Path,
    *,
    others: Iterable[Path] = (),
    exit_code: int | None = None,
    reason: str | None = None,
    notes: Iterable[str] = (),
) -> Manifest:
    """Merge the parts in `folder`, and in `others` (copies of the run from machines with their own disks).

    `exit_code` is the job's, `reason` why the launcher knows the record to be partial, `notes` are added to
    the manifest. With nothing new a joined run is left as it is. The folders in `others` are only read.
    """
    sources = (Source(folder, read_manifest(folder)), *(Source(o, read_manifest(o)) for o in others))
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
        _write_table(folder / f"{name}.parquet", read.frame)
    joined = _finish(fold(manifest, parts), reads, damage, exit_code=exit_code, reason=reason, notes=tuple(notes))
    write_atomically(folder / MANIFEST_NAME, encode(joined))
    _put_away_parts(folder, damaged=bool(damage))
    return joined


def missing_sentence(manifest: Manifest) -> str | None:
    """Which ranks left nothing and which stopped early, or None when all of them finished."""
    expected, seen = manifest.counts.ranks_expected, {r.rank for r in manifest.ranks}
    absent = expected - sum(rank < expected for rank in seen)
    first = list(islice((rank for rank in range(expected) if rank not in seen), _SHOWN))
    sentences = [f"{_ranks(first, absent)} of {expected} left no record."] if absent > 0 else []
    for rank in manifest.ranks:
        if not rank.finished:
            why = rank.reason or "its process was killed or lost"
            sentences.append(f"Rank {rank.rank} stopped before its end: {why}.")
    return " ".join(sentences) or None


def count_phases(steps: "polars.DataFrame", known: tuple[PhaseRecord, ...]) -> tuple[PhaseRecord, ...]:
    """Kept steps and blocks of each phase, announced ones first and in their order."""
    import polars

    kept = steps.filter(polars.col("kept"))
    found = kept.group_by("phase", maintain_order=True).agg(
        polars.col("step").n_unique().alias("steps"), polars.col("block").n_unique().alias("blocks")
    )
    counted = {row["phase"]: row for row in found.iter_rows(named=True)}
    phases = {phase.name: phase for phase in known}
    order = dict.fromkeys([*phases, *steps.get_column("phase").unique(maintain_order=True)])
    return tuple(
        PhaseRecord(
            name=name,
            differs=phases[name].differs if name in phases else "",
            steps=counted[name]["steps"] if name in counted else 0,
            blocks=counted[name]["blocks"] if name in counted else 0,
        )
        for name in order
    )


def count(steps: "polars.DataFrame", known: CountsRecord) -> CountsRecord:
    """Steps of the job and samples over all ranks; samples are unknown where no step says."""
    samples = steps.get_column("samples").drop_nulls()
    return CountsRecord(
        steps=steps.get_column("step").n_unique(),
        samples=int(samples.sum()) if len(samples) else None,
        ranks_seen=known.ranks_seen,
        ranks_expected=known.ranks_expected,
    )


def _absorb_all(sources: tuple[Source, ...]) -> Manifest:
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
    damage: tuple[str, ...],
    *,
    exit_code: int | None,
    reason: str | None,
    notes: tuple[str, ...],
) -> Manifest:
    steps = reads["steps"].frame
    unread = f"{len(damage)} of its parts could not be read." if damage else None
    losses = tuple(dict.fromkeys(filter(None, (*manifest.losses, reason, unread))))
    why = " ".join(filter(None, (*losses, missing_sentence(manifest))))
    state: Literal["partial", "complete"] = "partial" if why else "complete"
    code = manifest.job.exit_code if exit_code is None else exit_code
    return msgspec.structs.replace(
        manifest,
        state=state,
        partial_reason=why or None,
        losses=losses,
        job=msgspec.structs.replace(manifest.job, exit_code=code),
        phases=count_phases(steps, manifest.phases),
        counts=count(steps, manifest.counts),
        tables={name: read.frame.height for name, read in reads.items()},
        notes=tuple(dict.fromkeys([*manifest.notes, *notes, *damage])),
    )


def _write_table(path: Path, frame: "polars.DataFrame") -> None:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_atomically(path, buffer.getvalue())


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
