"""A table in memory: named columns of equal length, each a NumPy array and a mask of its nulls.

Only what readers of a run need: filter, sort, concatenate, group. Aggregates ignore nulls; of nothing but nulls a sum
is 0 and everything else is null (None). Nothing is changed in place, so tables can be shared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
DTYPES: dict[str, Any] = {
    "Boolean": np.dtype(bool),
    "Float64": np.dtype(np.float64),
    "Int32": np.dtype(np.int32),
    "Int64": np.dtype(np.int64),
    "String": np.dtype(object),
}
"""Array types by the names that the schema uses. Strings are Python's, in an array of objects."""
_PYTHON: dict[str, tuple[type, ...]] = {"b": (bool,), "f": (float, int), "i": (int,), "O": (str,)}
_AT_NULL: dict[str, Any] = {"b": False, "f": 0.0, "i": 0, "O": ""}


@dataclass(frozen=True, eq=False)
class TableColumn:
    """One column. `values` holds something harmless (0, False, "") where `null` is true."""

    values: NDArray[Any]
    null: Mask

    @classmethod
    def of(cls, values: Sequence[Any], dtype: Any = None) -> Self:
        """From Python values, None for null; a `TypeError` or `OverflowError` where one does not fit `dtype`."""
        null = np.fromiter((value is None for value in values), bool, len(values))
        types = set(map(type, values)) - {type(None)}
        kind = _common(types) if dtype is None else np.dtype(dtype)
        if not types <= set(_PYTHON[kind.kind]):
            raise TypeError(f"a column of {kind.name} holds {', '.join(sorted(one.__name__ for one in types))}")
        filler = _AT_NULL[kind.kind]
        array = np.empty(len(values), kind)
        array[:] = [filler if value is None else value for value in values] if null.any() else values
        return cls(array, null)

    @classmethod
    def whole(cls, values: NDArray[Any]) -> Self:
        """From an array without nulls."""
        return cls(values, np.zeros(len(values), bool))

    @classmethod
    def nulls(cls, length: int, dtype: Any) -> Self:
        """A column of nulls."""
        kind = np.dtype(dtype)
        return cls(np.full(length, _AT_NULL[kind.kind], kind), np.ones(length, bool))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def valid(self) -> NDArray[Any]:
        """The values that are not null."""
        return self.values[~self.null]

    @property
    def null_count(self) -> int:
        return int(self.null.sum())

    def is_true(self) -> Mask:
        """Where a column of booleans is true."""
        return np.asarray(self.values & ~self.null, bool)

    def is_in(self, choices: Iterable[Any]) -> Mask:
        """Where it has one of these values; null never does."""
        if self.values.dtype == object:
            chosen = set(choices)
            return np.fromiter((value in chosen for value in self.values.tolist()), bool, len(self)) & ~self.null
        return np.isin(self.values, list(choices)) & ~self.null

    def starts_with(self, prefix: str) -> Mask:
        """Where a column of strings starts with `prefix`."""
        return np.fromiter((word.startswith(prefix) for word in self.values.tolist()), bool, len(self)) & ~self.null

    def equals(self, value: Any) -> Mask:
        """Where it has this value; null never does."""
        return self.is_in((value,))

    def filled(self, value: Any) -> "TableColumn":
        """With `value` in place of nulls."""
        return TableColumn.whole(np.where(self.null, value, self.values).astype(self.values.dtype))

    def plus(self, other: "TableColumn") -> "TableColumn":
        """Another column added; null where one of them is."""
        return TableColumn(self.values + other.values, self.null | other.null)

    def less(self, other: "TableColumn") -> "TableColumn":
        """Another column subtracted; null where one of them is."""
        return TableColumn(self.values - other.values, self.null | other.null)

    def over(self, other: "TableColumn") -> "TableColumn":
        """Divided by another column; null where one of them is, infinite or not a number over zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return TableColumn(np.divide(self.values, other.values), self.null | other.null)

    def cast(self, dtype: Any) -> "TableColumn":
        """As another type of number; a `TypeError` where a value would change or is no number."""
        current, target = self.values.dtype, np.dtype(dtype)
        if current == target:
            return self
        if self.null.all():
            return TableColumn.nulls(len(self), target)
        if (current.kind, target.kind) not in (("i", "f"), ("i", "i")):
            raise TypeError(f"a column of {target.name} holds {current.name}")
        values = self.values.astype(target)
        if target.kind == "i" and (values != self.values).any():
            raise TypeError(f"a column of {target.name} holds a number too large for it")
        return TableColumn(values, self.null)

    def take(self, places: NDArray[Any]) -> "TableColumn":
        """The values at these places, or where a mask is true."""
        return TableColumn(self.values[places], self.null[places])

    def to_list(self) -> list[Any]:
        """As Python values, None for null."""
        values: list[Any] = self.values.tolist()
        return [None if null else value for value, null in zip(values, self.null.tolist(), strict=True)]

    def sum(self) -> Any:
        """Over the values that are not null, as a Python number."""
        return self.valid.sum(dtype=_wide(self.values)).item()

    def mean(self) -> float | None:
        """Over the values that are not null."""
        return float(self.valid.mean()) if len(self.valid) else None

    def min(self) -> Any:
        """Over the values that are not null, as a Python number."""
        return self.valid.min().item() if len(self.valid) else None

    def max(self) -> Any:
        """Over the values that are not null, as a Python number."""
        return self.valid.max().item() if len(self.valid) else None

    def quantile(self, level: float) -> float | None:
        """Over the values that are not null, interpolated; level 0.5 is the median."""
        return float(np.quantile(self.valid, level)) if len(self.valid) else None

    def unique(self) -> list[Any]:
        """The values that are not null, each once, in the order in which they first appear."""
        return list(dict.fromkeys(self.valid.tolist()))

    def n_unique(self) -> int:
        """Number of different values that are not null."""
        return len(self.unique()) if self.values.dtype == object else len(np.unique(self.valid))


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, in order."""

    columns: Mapping[str, TableColumn]

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError("its columns are not of one length")

    def __getitem__(self, name: str) -> TableColumn:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def height(self) -> int:
        return next((len(column) for column in self.columns.values()), 0)

    def filter(self, mask: Mask) -> "Table":
        """The rows where `mask` is true."""
        return self._take(mask)

    def sort(self, *names: str) -> "Table":
        """By columns, the first one most; nulls come first, rows that are alike stay in their order."""
        keys = [key for name in reversed(names) for key in (_ranked(self[name]), ~self[name].null)]
        return self._take(np.lexsort(keys))

    def select(self, *names: str) -> "Table":
        """Only these columns, in this order."""
        return Table({name: self[name] for name in names})

    def with_columns(self, **columns: TableColumn) -> "Table":
        """With columns added or replaced."""
        return Table({**self.columns, **columns})

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Its rows as tuples of Python values, None for null."""
        return zip(*(column.to_list() for column in self.columns.values()), strict=True)

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Its rows as dictionaries by column."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows())

    def group_by(self, *names: str) -> "Groups":
        """Rows that are alike in these columns together, groups in the order in which they first appear."""
        return Groups(self, names)

    def _take(self, places: NDArray[Any]) -> "Table":
        return Table({name: column.take(places) for name, column in self.columns.items()})


@dataclass(frozen=True, eq=False)
class Groups:
    """A table's rows in groups. Each aggregate has one value per group, in the order of `keys`."""

    table: Table
    names: tuple[str, ...]

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The number of each row's group."""
        codes = np.zeros(self.table.height, np.int64)
        for name in self.names:
            column = self.table[name]
            codes = np.unique(codes, return_inverse=True)[1]
            ranks = np.where(column.null, -1, np.unique(_ranked(column), return_inverse=True)[1])
            codes = codes * (len(ranks) + 1) + ranks + 1
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        return np.asarray(np.argsort(np.argsort(first))[inverse], np.int64)

    @cached_property
    def keys(self) -> Table:
        """What is alike within each group."""
        return self.table.select(*self.names)._take(np.unique(self.codes, return_index=True)[1])

    def with_columns(self, **columns: TableColumn) -> Table:
        """The keys, and aggregates beside them."""
        return self.keys.with_columns(**columns)

    def parts(self) -> Iterator[tuple[tuple[Any, ...], Table]]:
        """Each group's key and its rows."""
        for number, key in enumerate(self.keys.rows()):
            yield key, self.table.filter(self.codes == number)

    def size(self) -> TableColumn:
        """Rows in each group."""
        return TableColumn.whole(np.bincount(self.codes, minlength=self.keys.height))

    def count(self, name: str) -> TableColumn:
        """Number of values that are not null."""
        return TableColumn.whole(np.bincount(self.codes[~self.table[name].null], minlength=self.keys.height))

    def null_count(self, name: str) -> TableColumn:
        """Number of values that are null."""
        return TableColumn.whole(self.size().values - self.count(name).values)

    def sum(self, name: str) -> TableColumn:
        """Sums; integers stay integers."""
        total = self._reduced(name, np.add.reduceat, _wide(self.table[name].values))
        return TableColumn.whole(total.values)

    def mean(self, name: str) -> TableColumn:
        total = self._reduced(name, np.add.reduceat, np.dtype(np.float64))
        return TableColumn(total.values / np.maximum(1, self.count(name).values), total.null)

    def min(self, name: str) -> TableColumn:
        return self._reduced(name, np.minimum.reduceat, self.table[name].values.dtype)

    def max(self, name: str) -> TableColumn:
        return self._reduced(name, np.maximum.reduceat, self.table[name].values.dtype)

    def median(self, name: str) -> TableColumn:
        """Middle values; of an even number, the mean of the middle two."""
        codes, values = self._valid(name)
        ordered = values[np.lexsort((values, codes))].astype(np.float64)
        groups, starts, counts = np.unique(codes, return_index=True, return_counts=True)
        middle = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
        return self._placed(groups, middle)

    def n_unique(self, name: str) -> TableColumn:
        """Number of different values that are not null."""
        codes, values = self._valid(name)
        ranks = np.unique(_ranked(TableColumn.whole(values)), return_inverse=True)[1]
        pairs = np.unique(np.stack((codes, ranks)), axis=1)
        return TableColumn.whole(np.bincount(pairs[0], minlength=self.keys.height))

    def _valid(self, name: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Group and value of each row that has one, by group, else in order."""
        valid = ~self.table[name].null
        codes, values = self.codes[valid], self.table[name].values[valid]
        order = np.argsort(codes, kind="stable")
        return codes[order], values[order]

    def _reduced(self, name: str, reduce: Callable[..., NDArray[Any]], dtype: Any) -> TableColumn:
        codes, values = self._valid(name)
        groups, starts = np.unique(codes, return_index=True)
        reduced = reduce(values.astype(dtype), starts) if len(starts) else np.zeros(0, dtype)
        return self._placed(groups, reduced)

    def _placed(self, groups: NDArray[np.int64], values: NDArray[Any]) -> TableColumn:
        """One value per group, null where nothing was known."""
        whole = TableColumn.nulls(self.keys.height, values.dtype)
        whole.values[groups], whole.null[groups] = values, False
        return whole


def concatenate(tables: Sequence[Table]) -> Table:
    """One after the other; a column that one of them lacks is null there.

    A `TypeError` where columns of one name hold what does not go together.
    """
    columns: dict[str, TableColumn] = {}
    for name in dict.fromkeys(name for table in tables for name in table.columns):
        # Nothing but nulls takes any type.
        having = [t[name] for t in tables if name in t]
        dtype = _shared([column.values.dtype for column in having if not column.null.all()] or [having[0].values.dtype])
        pieces = [
            t[name] if name in t and not t[name].null.all() else TableColumn.nulls(t.height, dtype) for t in tables
        ]
        values = np.concatenate([piece.values.astype(dtype) for piece in pieces])
        columns[name] = TableColumn(values, np.concatenate([piece.null for piece in pieces]))
    return Table(columns)


def _shared(dtypes: Sequence[Any]) -> Any:
    """The type that holds all of them: words and booleans go only with their like."""
    if len(set(dtypes)) > 1 and not {dtype.kind for dtype in dtypes} <= {"i", "f"}:
        raise TypeError("columns of one name hold different kinds of values")
    return np.result_type(*dtypes)


def _common(types: set[type]) -> Any:
    """The type of an array that holds Python values of these types."""
    for name in ("Boolean", "Int64", "Float64", "String"):
        if types <= set(_PYTHON[DTYPES[name].kind]):
            return DTYPES[name]
    raise TypeError(f"no column holds {', '.join(sorted(one.__name__ for one in types))} together")


def _ranked(column: TableColumn) -> NDArray[Any]:
    """Numbers in the order of the values, nulls alike: words cannot be sorted by more than one column as they are."""
    values = np.where(column.null, _AT_NULL[column.values.dtype.kind], column.values)
    if column.values.dtype != object:
        return values
    number = {word: place for place, word in enumerate(sorted(set(values.tolist())))}
    return np.fromiter(map(number.__getitem__, values.tolist()), np.int64, len(values))


def _wide(values: NDArray[Any]) -> Any:
    """The type in which values are summed."""
    return np.dtype(np.float64 if values.dtype.kind == "f" else np.int64)
