"""The tables of record version 1. A row type is the table: its fields are the columns, in order.

A field `name: Annotated[type, Column(dtype, text)]` is one column; `| None` makes it nullable, and null means
"could not be measured". A table is added by writing a row type and one entry in `TABLES`; a nullable column
may be added to a table without a new version, because readers fill it with nulls.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    import polars

DataType = Literal["Boolean", "Float64", "Int32", "Int64", "String"]


@dataclass(frozen=True)
class Column:
    """A column's polars type and its meaning."""

    dtype: DataType
    text: str


class StepRow(NamedTuple):
    """One step on one rank."""

    rank: Annotated[int, Column("Int32", "training process, 0 to world_size - 1")]
    step: Annotated[int, Column("Int64", "step of the job, counted from 0 over all phases; the same on all ranks")]
    phase: Annotated[str, Column("String", "name of the phase it was measured in")]
    block: Annotated[
        int,
        Column(
            "Int32",
            "block within its phase, from 0; blocks of one number in all phases are neighbours in time",
        ),
    ]
    start_s: Annotated[
        float, Column("Float64", "begin, in seconds of the node's monotonic clock since the run began there")
    ]
    duration_s: Annotated[float, Column("Float64", "begin of this step to begin of the next")]
    data_wait_s: Annotated[float | None, Column("Float64", "part of it spent waiting for the next batch")] = None
    samples: Annotated[int | None, Column("Int64", "samples this rank trained on in this step")] = None
    tokens: Annotated[int | None, Column("Int64", "tokens this rank trained on in this step")] = None
    kept: Annotated[
        bool,
        Column("Boolean", "false for warm-up steps and for steps that lived on leftovers of the last phase"),
    ] = True


class BatchRow(NamedTuple):
    """One batch as prepared by a loader worker (or by the rank itself)."""

    rank: Annotated[int, Column("Int32", "rank the batch was prepared for")]
    worker: Annotated[int | None, Column("Int32", "loader worker; null where the rank loads its own data")]
    batch: Annotated[int, Column("Int64", "batch index as the loader counts within its rank, from 0")]
    wall_s: Annotated[float, Column("Float64", "wall-clock time from asking for the samples to the finished batch")]
    start_s: Annotated[float | None, Column("Float64", "begin, on the same clock as steps.start_s")] = None
    cpu_s: Annotated[float | None, Column("Float64", "processor time of the whole process, all its threads")] = None
    runqueue_wait_s: Annotated[float | None, Column("Float64", "time ready to run with no core free")] = None
    blocked_s: Annotated[float | None, Column("Float64", "time blocked on input or output")] = None
    read_bytes: Annotated[int | None, Column("Int64", "bytes read, from the page cache or from storage")] = None
    samples: Annotated[int | None, Column("Int64", "samples in the batch")] = None
    phase: Annotated[str | None, Column("String", "phase the rank was in when the batch was prepared")] = None
    block: Annotated[int | None, Column("Int32", "block the rank was in when the batch was prepared")] = None


class EventRow(NamedTuple):
    """Something that takes time and is no steady step: checkpoint, validation, epoch boundary, start-up."""

    rank: Annotated[int, Column("Int32", "rank it happened on")]
    kind: Annotated[
        str,
        Column("String", "checkpoint, validation, epoch_boundary, worker_startup, first_batch, phase_switch, …"),
    ]
    start_s: Annotated[float, Column("Float64", "begin, on the same clock as steps.start_s")]
    duration_s: Annotated[float | None, Column("Float64", "how long it took")] = None
    step: Annotated[int | None, Column("Int64", "step during or before which it happened")] = None
    detail: Annotated[str | None, Column("String", "anything a reader should know, in words")] = None


@dataclass(frozen=True)
class Table:
    """A table by name, with its columns and which of them may be null."""

    name: str
    text: str
    columns: dict[str, Column]
    nullable: frozenset[str]

    def dtypes(self) -> "dict[str, polars.DataType]":
        """Column names to polars types."""
        import polars

        return {name: getattr(polars, column.dtype)() for name, column in self.columns.items()}

    def empty(self) -> "polars.DataFrame":
        """The table without rows."""
        import polars

        return polars.DataFrame(schema=self.dtypes())


def table_of(name: str, row: type[tuple[Any, ...]]) -> Table:
    """The table whose rows are `row`, read from its annotations."""
    columns: dict[str, Column] = {}
    nullable: set[str] = set()
    for field, hint in get_type_hints(row, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, column = get_args(hint)[:2]
            columns[field] = column
            if type(None) in get_args(kind):
                nullable.add(field)
    return Table(name, (row.__doc__ or "").strip(), columns, frozenset(nullable))


TABLES: dict[str, Table] = {
    "steps": table_of("steps", StepRow),
    "batches": table_of("batches", BatchRow),
    "events": table_of("events", EventRow),
}
