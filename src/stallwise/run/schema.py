"""The tables of a record. A row type is the table: its fields are the columns, in order.

A field `name: Annotated[type, Column(dtype, text)]` is one column; `| None` makes it nullable, and null means
"could not be measured". A table is added by writing a row type and one entry in `TABLES`; a nullable column
may be added to a table without a new version, because readers fill it with nulls.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from stallwise.run.table import Table, TableColumn

_MOST_S, _MOST_COUNT = 1e12, 1 << 60
_COUNTS = {"samples", "tokens", "fetches", "hits", "requests", "retries", "elements", "calls", "steps"}
DataType = Literal["Boolean", "Float64", "Int32", "Int64", "String"]


@dataclass(frozen=True)
class Column:
    """A column's type and its meaning."""

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
    start_s: Annotated[float, Column("Float64", "begin, in seconds of the node's monotonic clock since the rank began")]
    duration_s: Annotated[float, Column("Float64", "begin of this step to begin of the next")]
    data_wait_s: Annotated[float | None, Column("Float64", "part of it spent waiting for the next batch")] = None
    samples: Annotated[int | None, Column("Int64", "samples this rank trained on in this step")] = None
    tokens: Annotated[int | None, Column("Int64", "tokens this rank trained on in this step")] = None
    kept: Annotated[
        bool,
        Column("Boolean", "false for warm-up steps and for steps that lived on leftovers of the last phase"),
    ] = True
    cpu_s: Annotated[
        float | None, Column("Float64", "processor time of the rank's own process, all its threads, without workers")
    ] = None
    fetches: Annotated[int | None, Column("Int64", "batches fetched in this step, of all loaders")] = None


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


class LoadRow(NamedTuple):
    """One batch that came from a bucket, as the process that loaded it saw it."""

    rank: Annotated[int, Column("Int32", "rank the batch was loaded for")]
    worker: Annotated[int | None, Column("Int32", "loader worker; null where the rank loads its own data")]
    start_s: Annotated[float, Column("Float64", "begin, on the same clock as steps.start_s")]
    wall_s: Annotated[float, Column("Float64", "wall-clock time from being asked to the decoded samples")]
    samples: Annotated[int, Column("Int64", "samples in the batch")]
    data_bytes: Annotated[int, Column("Int64", "bytes of their objects")]
    hits: Annotated[int, Column("Int64", "samples from the node's cache")]
    requests: Annotated[int, Column("Int64", "requests that ended since the last batch, those made ahead included")]
    retries: Annotated[int, Column("Int64", "of them, second and later tries")]
    fetched_bytes: Annotated[int, Column("Int64", "bytes that came from the store since the last batch")]
    network_s: Annotated[float, Column("Float64", "part of wall_s spent waiting for the store")]
    cache_s: Annotated[float, Column("Float64", "part of wall_s spent reading the node's cache")]
    decode_s: Annotated[float, Column("Float64", "part of wall_s spent in the decode function")]
    queue_s: Annotated[float | None, Column("Float64", "how long the batch lay in the worker's queue before")] = None
    phase: Annotated[str | None, Column("String", "phase the rank was in when the batch was loaded")] = None


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


class LayerRow(NamedTuple):
    """One module of the model in one step, medians over the steps of the *layers* phase; modules in forward order."""

    rank: Annotated[int, Column("Int32", "rank it was measured on")]
    layer: Annotated[int, Column("Int32", "place in forward order, from 0")]
    name: Annotated[str, Column("String", "the module's name in the model")]
    kind: Annotated[str, Column("String", "its class")]
    calls: Annotated[int, Column("Int32", "forward calls in a step")]
    forward_start_s: Annotated[float | None, Column("Float64", "begin of its first call, since forward began")] = None
    forward_s: Annotated[float | None, Column("Float64", "its forward time, all calls of a step")] = None
    backward_start_s: Annotated[float | None, Column("Float64", "begin of its backward, since backward began")] = None
    backward_s: Annotated[float | None, Column("Float64", "its backward time, up to the next layer's begin")] = None
    parameter_bytes: Annotated[int, Column("Int64", "bytes of its own parameters")] = 0
    output_bytes: Annotated[int | None, Column("Int64", "bytes of what its forward returned, all calls")] = None


class GradientRow(NamedTuple):
    """One gradient tensor, in the order in which backward makes them ready."""

    rank: Annotated[int, Column("Int32", "rank it was measured on")]
    order: Annotated[int, Column("Int32", "place in ready order, from 0")]
    name: Annotated[str, Column("String", "the parameter's name in the model")]
    elements: Annotated[int, Column("Int64", "numbers in it")]
    bytes: Annotated[int, Column("Int64", "bytes of the gradient")]
    ready_s: Annotated[
        float | None, Column("Float64", "moment it was ready, since backward began; null where not observable")
    ] = None
    bucket: Annotated[int | None, Column("Int32", "DDP's bucket as torch built it; null without DDP")] = None


class SpanRow(NamedTuple):
    """Something one rank did in one stretch of time, in a few traced steps: for timelines."""

    rank: Annotated[int, Column("Int32", "rank it happened on")]
    step: Annotated[int | None, Column("Int64", "step it happened in")]
    track: Annotated[
        str,
        Column(
            "String",
            "where it ran: step, forward, backward, optimizer, copy, collective, layer; of an imported trace kernel, "
            "copy, collective, device wait, critical path",
        ),
    ]
    name: Annotated[str, Column("String", "what it was")]
    start_s: Annotated[float, Column("Float64", "begin, on the same clock as steps.start_s")]
    duration_s: Annotated[float, Column("Float64", "how long it took")]
    bytes: Annotated[int | None, Column("Int64", "bytes moved, where known")] = None


class CollectiveRow(NamedTuple):
    """A collective that the script calls itself, summed over one step."""

    rank: Annotated[int, Column("Int32", "rank that called it")]
    step: Annotated[int, Column("Int64", "step it was called in")]
    name: Annotated[str, Column("String", "all_reduce, all_gather, broadcast, barrier, …; send, recv between stages")]
    calls: Annotated[int, Column("Int32", "calls in the step")]
    bytes: Annotated[int, Column("Int64", "bytes handed to it, all calls")]
    waited_s: Annotated[float, Column("Float64", "time the rank's compute waited for it, all calls")]
    group: Annotated[str | None, Column("String", "ranks of its process group: 0-3, or 0,2")] = None


class NoiseRow(NamedTuple):
    """Squared norms of one step's gradient over a small and over a large batch: what the noise scale comes from."""

    rank: Annotated[int, Column("Int32", "rank it was measured on")]
    step: Annotated[int, Column("Int64", "step it was measured in")]
    small: Annotated[float, Column("Float64", "squared norm over the rank's own batch, or its first micro-batch")]
    large: Annotated[float, Column("Float64", "squared norm of the mean over all ranks, or over all micro-batches")]
    parts: Annotated[int, Column("Int32", "small batches in the large one")]


MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Names of collectives that go between two ranks: the stages of a pipeline."""


class ObservedRow(NamedTuple):
    """What one window of the *observe* phase attributes to one cause; the causes of a window add up to its time."""

    rank: Annotated[int, Column("Int32", "rank it was observed on")]
    window: Annotated[int, Column("Int32", "window, from 0")]
    steps: Annotated[int, Column("Int64", "steps in the window")]
    cause: Annotated[
        str,
        Column(
            "String",
            "compute, copy, exchange, or what the device (without one: the step) waited for: loader, data code, "
            "rollout, launch, synchronise, allocate, gc, python",
        ),
    ]
    s: Annotated[float, Column("Float64", "seconds of the whole window")]
    calls: Annotated[int, Column("Int64", "calls, or stretches of time, in the window")] = 0
    where: Annotated[str | None, Column("String", "source line or function that most of it belongs to")] = None


@dataclass(frozen=True)
class TableSchema:
    """A table by name, with its columns and which of them may be null."""

    name: str
    text: str
    columns: dict[str, Column]
    nullable: frozenset[str]

    def empty(self) -> "Table":
        """The table without rows."""
        from stallwise.run.table import DTYPES, Table, TableColumn

        return Table({name: TableColumn.nulls(0, DTYPES[column.dtype]) for name, column in self.columns.items()})

    def conform(self, table: "Table") -> "Table":
        """`table` with these columns; nullable ones it lacks are null, further ones stay.

        A `TypeError` or `ValueError` where another one is absent or holds what its type cannot.
        """
        from stallwise.run.table import DTYPES, Table, TableColumn

        columns: dict[str, TableColumn] = {}
        for name, column in self.columns.items():
            dtype = DTYPES[column.dtype]
            if name in table:
                columns[name] = _checked(name, table[name].cast(dtype), nullable=name in self.nullable)
            elif name in self.nullable:
                columns[name] = TableColumn.nulls(table.height, dtype)
            else:
                raise ValueError(f"it has no column {name}")
        return Table(columns | {name: series for name, series in table.columns.items() if name not in columns})


def _checked(name: str, column: "TableColumn", *, nullable: bool) -> "TableColumn":
    """`column`, if its values can have been measured; arithmetic on others ends in overflow or divides by zero."""
    values, kind = column.values, column.values.dtype.kind
    most = {"f": _MOST_S, "i": _MOST_COUNT}.get(kind)
    # What is not a number is within no bounds.
    if most is not None and not ((values >= -most) & (values <= most) | column.null).all():
        raise ValueError(f"{name} holds a number beyond {most:g}")
    if (name in _COUNTS or name.endswith("bytes")) and (values < 0).any():
        raise ValueError(f"{name} holds a negative number")
    if kind == "O" and not nullable and column.null.any():
        raise ValueError(f"{name} is missing in some rows")
    return column


def table_of(name: str, row: type[tuple[Any, ...]]) -> TableSchema:
    """The table whose rows are `row`, read from its annotations."""
    columns: dict[str, Column] = {}
    nullable: set[str] = set()
    for field, hint in get_type_hints(row, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, column = get_args(hint)[:2]
            columns[field] = column
            if type(None) in get_args(kind):
                nullable.add(field)
    return TableSchema(name, (row.__doc__ or "").strip(), columns, frozenset(nullable))


TABLES: dict[str, TableSchema] = {
    "steps": table_of("steps", StepRow),
    "batches": table_of("batches", BatchRow),
    "loads": table_of("loads", LoadRow),
    "events": table_of("events", EventRow),
    "layers": table_of("layers", LayerRow),
    "gradients": table_of("gradients", GradientRow),
    "spans": table_of("spans", SpanRow),
    "collectives": table_of("collectives", CollectiveRow),
    "noise": table_of("noise", NoiseRow),
    "observed": table_of("observed", ObservedRow),
}
