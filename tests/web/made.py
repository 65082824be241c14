"""Folders of runs made by hand: ordinary ones, hostile ones, very many, very large."""

import os
from pathlib import Path

import msgspec

from stallwise.run import JobRecord, PhaseRecord, StepRow, WorldRecord
from stallwise.run.manifest import MANIFEST_NAME, NodeRecord, RankRecord, new_manifest, read_manifest
from stallwise.run.table import Table, TableColumn, concatenate
from stallwise.run.table_file import read_table_file, write_table
from tests.report.made_runs import make_full_run

SCRIPT = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'
"""What a hostile record says wherever it may say something."""


def make_cold_run(folder: Path) -> None:
    """One rank whose reading from storage was measured as well: a cache can be judged."""
    make_full_run(folder)
    # Rows of a cold phase, as a profile writes them.
    for name in ("steps", "batches"):
        path = folder / f"{name}.npz"
        table = read_table_file(path)
        cold = table.filter(table["phase"].equals("as is"))
        cold = cold.with_columns(phase=TableColumn.of(["cold"] * cold.height))
        if name == "batches":
            longer = TableColumn.of([0.2] * cold.height)
            cold = cold.with_columns(wall_s=cold["wall_s"].plus(longer), blocked_s=cold["blocked_s"].plus(longer))
        write_table(path, concatenate([table, cold]).sort("rank"))


def make_hostile_run(folder: Path) -> None:
    """A run with markup in every string that its manifest and its tables hold."""
    make_full_run(folder)
    manifest = msgspec.json.decode((folder / MANIFEST_NAME).read_bytes())
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(_poisoned(manifest)))
    for path in folder.glob("*.npz"):
        table = read_table_file(path)
        words = {name: column for name, column in table.columns.items() if column.values.dtype.kind == "O"}
        words.pop("phase", None)  # by these the tables are read
        said = {name: [word and SCRIPT + word for word in column.to_list()] for name, column in words.items()}
        write_table(path, table.with_columns(**{name: TableColumn.of(column, object) for name, column in said.items()}))


def _poisoned(value: object, name: str = "") -> object:
    """Every string, except those that the schema fixes."""
    if isinstance(value, dict):
        return {key: _poisoned(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_poisoned(one, name) for one in value]
    if isinstance(value, str) and name not in ("created", "state", "name", "precision", "backend"):
        return SCRIPT + value
    return value


def make_wide_run(folder: Path, ranks: int) -> None:
    """A profile of very many ranks, each a little slower than the one before; as `join` leaves it."""
    names = ("as is", "no exchange")
    rows = [
        StepRow(rank, 3 * (2 * block + p) + nth, name, block, 0.1 * (3 * (2 * block + p) + nth),
                0.08 + 0.00001 * rank if p else 0.1, 0.001, 32, None, nth > 0)
        for rank in range(ranks) for block in range(2) for p, name in enumerate(names) for nth in range(3)
    ]  # fmt: skip
    manifest = new_manifest(
        JobRecord(script="wide.py", launcher="torchrun"),
        world=WorldRecord(world_size=ranks, nnodes=ranks // 8, backend="nccl"),
        nodes=tuple(NodeRecord(node=n, cores=96, gpus=("NVIDIA H100",) * 8) for n in range(ranks // 8)),
        phases=tuple(PhaseRecord(name=name, steps=4 * ranks, blocks=2) for name in names),
    )
    manifest = msgspec.structs.replace(
        manifest,
        state="complete",
        ranks=tuple(RankRecord(rank=rank, node=rank // 8, finished=True) for rank in range(ranks)),
        tables={"steps": len(rows)},
    )
    folder.mkdir(parents=True)
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    columns = zip(StepRow._fields, zip(*rows, strict=True), strict=True)
    write_table(folder / "steps.npz", Table({name: TableColumn.of(column) for name, column in columns}))


def make_many(folder: Path, count: int) -> None:
    """Copies of one run, by hard links: each a folder of its own."""
    first = folder / "run-0000"
    make_full_run(first)
    manifest = read_manifest(first)
    for number in range(1, count):
        other = folder / f"group-{number % 10}" / f"run-{number:04d}"
        other.mkdir(parents=True)
        for path in first.glob("*.npz"):
            os.link(path, other / path.name)
        renamed = msgspec.structs.replace(manifest, run_id=f"{manifest.run_id}-{number}")
        (other / MANIFEST_NAME).write_bytes(msgspec.json.encode(renamed))
