"""`Table` against the same in plain Python, and its file against damage."""

import io
import math
import pickle
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.analysis.analysis import open_run
from stallwise.errors import RunError
from stallwise.run import Run, join
from stallwise.run.manifest import MANIFEST_NAME
from stallwise.run.schema import TABLES
from stallwise.run.table import DTYPES, Table, TableColumn, concatenate
from stallwise.run.table_file import check_table_size, read_table_file, write_table
from tests.report.made_runs import make_full_run

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "examples" / "runs" / "images"

FLOATS = st.floats(-1e6, 1e6)
COLUMNS = {
    "rank": (st.integers(0, 3), "Int32"),
    "step": (st.none() | st.integers(-(2**62), 2**62), "Int64"),
    "phase": (st.none() | st.sampled_from(["as is", "cold", "", "é\0"]) | st.text(max_size=3), "String"),
    "s": (st.none() | FLOATS, "Float64"),
    "kept": (st.none() | st.booleans(), "Boolean"),
}
ROWS = st.lists(st.tuples(*(values for values, _ in COLUMNS.values())), max_size=30)
Rows = list[tuple[Any, ...]]


def table_of(rows: Rows) -> Table:
    values = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
    named = zip(COLUMNS.items(), values, strict=True)
    return Table({name: TableColumn.of(list(column), DTYPES[kind]) for (name, (_, kind)), column in named})


def grouped(rows: Rows, *places: int) -> dict[tuple[Any, ...], Rows]:
    found: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        found.setdefault(tuple(row[at] for at in places), []).append(row)
    return found


def known(rows: Rows, at: int) -> list[Any]:
    return [row[at] for row in rows if row[at] is not None]


def none_of(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: function(values) if values else None


AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "sum": math.fsum,
    "mean": none_of(statistics.fmean),
    "min": none_of(min),
    "max": none_of(max),
    "median": none_of(statistics.median),
    "count": len,
    "n_unique": lambda values: len(set(values)),
}


@given(ROWS)
def test_rows_come_back(rows: Rows) -> None:
    table = table_of(rows)
    assert list(table.rows()) == rows
    assert [tuple(row.values()) for row in table.dicts()] == rows
    assert table.height == len(rows)


@given(ROWS, st.sampled_from([(0,), (2,), (0, 2), (1, 4)]))
def test_groups_are_those_of_plain_python(rows: Rows, places: tuple[int, ...]) -> None:
    names = [list(COLUMNS)[at] for at in places]
    groups, naive = table_of(rows).group_by(*names), grouped(rows, *places)
    assert list(groups.keys.rows()) == list(naive), "in the order in which they first appear"
    assert groups.size().to_list() == [len(found) for found in naive.values()]
    assert groups.null_count("s").to_list() == [len(found) - len(known(found, 3)) for found in naive.values()]
    assert [(key, list(part.rows())) for key, part in groups.parts()] == list(naive.items())
    for name, function in AGGREGATES.items():
        expected = [function(known(found, 3)) for found in naive.values()]
        found = getattr(groups, name)("s").to_list()
        assert [value is None for value in found] == [value is None for value in expected]
        assert [v for v in found if v is not None] == pytest.approx([v for v in expected if v is not None], abs=1e-6)
    for at, name in ((2, "phase"), (4, "kept"), (1, "step")):
        assert groups.n_unique(name).to_list() == [len(set(known(found, at))) for found in naive.values()]


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(-(2**40), 2**40))))
def test_sums_of_integers_are_exact(rows: list[tuple[int, int | None]]) -> None:
    groups = Table({
        "rank": TableColumn.of([rank for rank, _ in rows], np.int32),
        "bytes": TableColumn.of([b for _, b in rows], np.int64),
    }).group_by("rank")  # fmt: skip
    naive = grouped(rows, 0)
    assert groups.sum("bytes").to_list() == [sum(known(found, 1)) for found in naive.values()]
    assert groups.max("bytes").to_list() == [max(known(found, 1), default=None) for found in naive.values()]
    assert groups.table["rank"].sum() == sum(rank for rank, _ in rows)


def test_small_integers_do_not_overflow_in_a_sum() -> None:
    ranks = TableColumn.of([2**31 - 1] * 4, np.int32)
    assert ranks.sum() == Table({"r": ranks, "g": ranks}).group_by("g").sum("r").to_list()[0] == 4 * (2**31 - 1)


@given(ROWS)
def test_a_column_alone(rows: Rows) -> None:
    column, values = table_of(rows)["s"], known(rows, 3)
    assert column.null_count == len(rows) - len(values)
    assert column.valid.tolist() == values
    assert column.sum() == pytest.approx(math.fsum(values), abs=1e-6)
    assert column.mean() == (pytest.approx(statistics.fmean(values), abs=1e-6) if values else None)
    assert (column.min(), column.max()) == (min(values, default=None), max(values, default=None))
    assert column.quantile(0.5) == (pytest.approx(statistics.median(values), abs=1e-6) if values else None)
    assert column.n_unique() == len(set(values))
    assert column.filled(7.0).to_list() == [7.0 if row[3] is None else row[3] for row in rows]
    assert table_of(rows)["phase"].unique() == list(dict.fromkeys(known(rows, 2)))


@given(ROWS, st.sampled_from([(0,), (2,), (3, 0), (0, 1, 2)]))
def test_sorting_is_stable_and_puts_nulls_first(rows: Rows, places: tuple[int, ...]) -> None:
    def key(row: tuple[Any, ...]) -> list[Any]:
        return [(False,) if row[at] is None else (True, row[at]) for at in places]

    assert list(table_of(rows).sort(*(list(COLUMNS)[at] for at in places)).rows()) == sorted(rows, key=key)


@given(ROWS)
def test_filters_never_match_null(rows: Rows) -> None:
    table = table_of(rows)
    assert list(table.filter(table["kept"].is_true()).rows()) == [row for row in rows if row[4]]
    assert list(table.filter(table["phase"].equals("")).rows()) == [row for row in rows if row[2] == ""]
    assert list(table.filter(table["step"].equals(0)).rows()) == [row for row in rows if row[1] == 0]
    assert list(table.filter(table["rank"].is_in({1, 3})).rows()) == [row for row in rows if row[0] in (1, 3)]
    assert list(table.filter(~table["rank"].is_in([])).rows()) == rows


@given(ROWS, ROWS)
def test_one_after_the_other_what_is_missing_is_null(first: Rows, second: Rows) -> None:
    short = table_of(second).select("rank", "s")
    whole = concatenate([table_of(first), short, TABLES["steps"].empty().select("rank", "tokens")])
    expected = [(*row, None) for row in first] + [(row[0], None, None, row[3], None, None) for row in second]
    assert list(whole.rows()) == expected
    assert [whole[name].values.dtype for name in COLUMNS] == [DTYPES[kind] for _, kind in COLUMNS.values()]


def test_columns_that_do_not_go_together() -> None:
    words, numbers, halves = (Table({"x": TableColumn.of([one])}) for one in ("a", 1, 0.5))
    with pytest.raises(TypeError):
        concatenate([words, numbers])
    assert list(concatenate([numbers, halves]).rows()) == [(1.0,), (0.5,)]
    with pytest.raises(ValueError, match="one length"):
        Table({"a": TableColumn.of([1]), "b": TableColumn.of([1, 2])})


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.5], "Int64"), ([True], "Int64"), ([1], "Boolean"), ([1], "String"), (["1"], "Float64"), ([[1]], "String")],
)
def test_values_of_another_type_are_refused(values: list[Any], kind: str) -> None:
    with pytest.raises(TypeError):
        TableColumn.of(values, DTYPES[kind])
    for large in (2**31, -(2**31) - 1, 2**70):
        with pytest.raises(OverflowError):
            TableColumn.of([large], np.int32)
    with pytest.raises(TypeError):
        TableColumn.of([2**31]).cast(np.int32)
    with pytest.raises(TypeError):
        TableColumn.of(["a", 1])


@given(ROWS)
def test_a_round_trip_through_a_file(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> None:
    path = tmp_path_factory.getbasetemp() / "round.npz"
    table = table_of(rows)
    write_table(path, table)
    back = read_table_file(path)
    assert list(back.columns) == list(table.columns)
    assert list(back.rows()) == rows
    assert [column.values.dtype for column in back.columns.values()] == [
        column.values.dtype for column in table.columns.values()
    ]
    check_table_size(path)


def test_numpy_alone_reads_it() -> None:
    with np.load(IMAGES / "steps.npz", allow_pickle=False) as steps:
        words = np.split(steps["phase.utf8"], steps["phase.ends"])[:-1]
        phases = [word.tobytes().decode() for word in words]
        as_is = steps["kept"] & (steps["phase"] == phases.index("as is"))
        mean_s = steps["duration_s"][as_is].mean()
    table = Run.open(IMAGES).table("steps")
    assert mean_s == table.filter(table["kept"].is_true() & table["phase"].equals("as is"))["duration_s"].mean()


@given(st.data())
def test_any_damage_is_a_sentence_or_a_table(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    whole = bytearray((IMAGES / "events.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    for read in (read_table_file, check_table_size):
        said = _sentence(read, path)
        assert said is None or ("is cut off or damaged" in said and "\n" not in said)


def _sentence(read: Callable[[Path], object], path: Path) -> str | None:
    try:
        read(path)
    except RunError as error:
        return str(error)
    return None


def _array(array: Any, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def _words(code: int, text: list[int], ends: list[int]) -> dict[str, bytes]:
    arrays = {"phase": np.array([code], np.int32), "phase.utf8": np.array(text, np.uint8), "phase.ends": np.array(ends)}
    return {name: _array(array) for name, array in arrays.items()}


class _Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


_LONG = _array(np.zeros(3)).replace(b"(3,)", b"(9" + b"0" * 18 + b",)")
ABSURD: dict[str, dict[str, bytes]] = {
    "pickled": {"rank": _array(np.array([_Trap()], object), allow_pickle=True)},
    "pickled alone": {"rank": pickle.dumps(_Trap())},
    "far too long": {"rank": _LONG[:10] + _LONG[10:128] + bytes(24)},
    "a square": {"rank": _array(np.zeros((2, 2)))},
    "complex": {"rank": _array(np.zeros(2, complex))},
    "half precision": {"rank": _array(np.zeros(2, np.float16))},
    "records": {"rank": _array(np.zeros(2, [("a", int)]))},
    "unequal": {"rank": _array(np.zeros(2)), "step": _array(np.zeros(3))},
    "nulls of another length": {"rank": _array(np.zeros(2)), "rank.null": _array(np.zeros(3, bool))},
    "a word too many": _words(5, [0], [1]),
    "words backwards": _words(0, [0] * 4, [3, 1]),
    "no utf-8": _words(0, [255], [1]),
    "no words": {"phase": _array(np.array([0], np.int32)), "phase.ends": _array(np.array([1]))},
    "not an array": {"rank": b"hello"},
}  # fmt: skip


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_files_are_a_sentence(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "steps.npz", "w") as archive:
        for member, data in ABSURD[name].items():
            archive.writestr(f"{member}.npy", data)
    with pytest.raises(RunError, match=r"steps\.npz is cut off or damaged") as caught:
        read_table_file(tmp_path / "steps.npz")
    assert "\n" not in str(caught.value)


def test_a_file_that_lacks_a_column_that_must_be_there(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    path = tmp_path / "run" / "steps.npz"
    table = read_table_file(path)
    write_table(path, table.select(*(name for name in table.columns if name != "tokens")))
    assert Run.open(tmp_path / "run").table("steps")["tokens"].null.all()
    write_table(path, table.select("rank", "step"))
    with pytest.raises(RunError, match="no column phase"):
        Run.open(tmp_path / "run").table("steps")
    write_table(path, table.with_columns(step=table["duration_s"]))
    with pytest.raises(RunError, match="int64 holds float64"):
        Run.open(tmp_path / "run").table("steps")


def as_version_1(folder: Path) -> None:
    """The run as Stallwise wrote it when tables were Parquet."""
    import polars

    for name, schema in TABLES.items():
        table = read_table_file(folder / f"{name}.npz")
        types = {column: getattr(polars, meaning.dtype) for column, meaning in schema.columns.items()}
        polars.DataFrame(list(table.rows()), types, orient="row").write_parquet(folder / f"{name}.parquet")
        (folder / f"{name}.npz").unlink()
    manifest = folder / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 1'))


def test_a_record_of_the_version_before_opens(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    new = Run.open(tmp_path / "run")
    rows, split = {name: list(new.table(name).rows()) for name in TABLES}, open_run(new).split
    as_version_1(tmp_path / "run")
    old = Run.open(tmp_path / "run")
    assert {name: list(old.table(name).rows()) for name in TABLES} == rows
    assert open_run(tmp_path / "run").split == split
    (tmp_path / "run" / "steps.parquet").write_bytes(b"PAR1 garbage")
    with pytest.raises(RunError, match=r"steps\.parquet is cut off or damaged"):
        Run.open(tmp_path / "run").table("steps")


def test_joining_a_record_of_the_version_before_makes_it_new(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    rows = list(Run.open(tmp_path / "run").table("steps").rows())
    as_version_1(tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"state": "complete"', '"state": "recording"'))
    assert join(tmp_path / "run").schema_version == 2
    assert not list((tmp_path / "run").glob("*.parquet"))
    assert list(Run.open(tmp_path / "run").table("steps").rows()) == rows


def _python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


NO_POLARS = "import sys\nsys.modules['polars'] = None\n"


def test_without_polars_an_old_record_says_what_to_install(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    as_version_1(tmp_path / "run")
    said = _python(
        NO_POLARS + "from pathlib import Path\nfrom stallwise.run import Run\nfrom stallwise.errors import RunError\n"
        "try:\n    Run.open(Path(sys.argv[1])).table('steps')\nexcept RunError as error:\n    print(error)",
        str(tmp_path / "run"),
    )
    assert said.count("\n") == 1
    assert said.endswith("needs polars: pip install 'stallwise[model]'.\n")


def test_profile_and_prediction_need_no_polars() -> None:
    said = _python(
        "import sys\nfrom stallwise.analysis.analysis import open_run\nopened = open_run(sys.argv[1])\n"
        "print(opened.profile.step_s > 0, opened.on().step_s > 0, opened.detail is not None, 'polars' in sys.modules)",
        str(IMAGES),
    )
    assert said == "True True True False\n"


def test_recording_needs_no_polars(tmp_path: Path) -> None:
    said = _python(
        NO_POLARS + "from pathlib import Path\nfrom tests.report.made_runs import make_full_run\n"
        "from stallwise.analysis.analysis import open_run\nmake_full_run(Path(sys.argv[1]))\n"
        "print(open_run(sys.argv[1]).profile.state)",
        str(tmp_path / "run"),
    )
    assert said == "complete\n"
