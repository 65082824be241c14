"""A table on disk: one compressed `.npz`, an archive of plain arrays that NumPy reads by itself. Nothing is pickled.

    duration_s           a column of numbers or booleans
    data_wait_s.null     where it is null; absent where it never is
    phase                a column of words: for each row the number of its word, -1 for null
    phase.utf8           its words, each once, one after the other in UTF-8
    phase.ends           where each of them ends, in bytes

Files come from elsewhere and are not trusted: an array is read only when its header agrees with the archive's own
account of its size, so memory is taken for what is there and not for what is claimed. How much that may be follows from
the size of the file: times and sizes of real steps hardly shrink (`_check_size`).
"""

import io
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stallwise.errors import RunError
from stallwise.run.atomic import write_atomically
from stallwise.run.table import DTYPES, Table, TableColumn

_MEMBER = ".npy"
_NULL, _UTF8, _ENDS = ".null", ".utf8", ".ends"
# The names that savez_compressed uses itself.
_TAKEN = ("file", "allow_pickle")
_MOST_BYTES, _MOST_ROWS = 4 << 30, 50_000_000
_FREE_CELLS, _CELLS_PER_BYTE = 4_000_000, 100
# What a damaged archive or array header makes their decoders raise.
_DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, OverflowError, MemoryError, RuntimeError,
    IndexError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip


def write_table(path: Path, table: Table) -> None:
    """Write `table` to `path`, wholly or not at all."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, column in table.columns.items():
        arrays |= _word_arrays(name, column) if column.values.dtype == object else _number_arrays(name, column)
    buffer = io.BytesIO()
    # As np.savez_compressed writes it, which before NumPy 2.1 took allow_pickle=False for another array.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(name + _MEMBER), member.getvalue(), zipfile.ZIP_DEFLATED)
    write_atomically(path, buffer.getvalue())


def read_table_file(path: Path) -> Table:
    """The table at `path`; a `RunError` says in one sentence why it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, *_size_of(archive))
            arrays = {info.filename.removesuffix(_MEMBER): _array(archive, info) for info in archive.infolist()}
        return Table({name: _column(name, arrays) for name in arrays if "." not in name})
    except _DAMAGE as error:
        raise damaged(path, error) from None


def check_table_size(path: Path) -> None:
    """Raise a `RunError` where a table of either format is larger than any record, or is damaged."""
    if path.suffix == ".parquet":
        _check_size(path, *_size_of_parquet(path))
        return
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, *_size_of(archive))
    except _DAMAGE as error:
        raise damaged(path, error) from None


def _size_of(archive: zipfile.ZipFile) -> tuple[int, int]:
    """Rows and columns that the file would unpack to, by its own account, which reading holds it to."""
    members = archive.infolist()
    if sum(info.file_size for info in members) > _MOST_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_BYTES >> 20:,} MiB")
    rows = [_header(archive, info)[1] for info in members if "." not in _stem(info)]
    return max(rows, default=0), len(rows)


def _check_size(path: Path, rows: int, columns: int) -> None:
    if rows > _MOST_ROWS:
        raise RunError(f"{path} has {rows:,} rows; up to {_MOST_ROWS:,} are read.")
    if rows * columns > _FREE_CELLS + _CELLS_PER_BYTE * path.stat().st_size:
        raise RunError(f"{path} unpacks to {rows:,} rows of {columns:,} columns, which no record of its size holds.")


def may_be_column(name: str) -> bool:
    """Whether a column can have this name in a file."""
    return name.isidentifier() and name not in _TAKEN


def damaged(path: Path, error: BaseException) -> RunError:
    """The sentence for a table that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return RunError(f"{path} is cut off or damaged ({reason}). Restore it from a copy, or profile the job again.")


def _number_arrays(name: str, column: TableColumn) -> dict[str, NDArray[Any]]:
    return {name: column.values} | ({name + _NULL: column.null} if column.null.any() else {})


def _word_arrays(name: str, column: TableColumn) -> dict[str, NDArray[Any]]:
    numbers: dict[str | None, int] = {None: -1}
    numbers |= {word: number for number, word in enumerate(column.unique())}
    words = [word.encode() for word in numbers if word is not None]
    return {
        name: np.fromiter(map(numbers.__getitem__, column.to_list()), np.int32, len(column)),
        name + _UTF8: np.frombuffer(b"".join(words), np.uint8),
        name + _ENDS: np.cumsum([len(word) for word in words], dtype=np.int64),
    }


def _column(name: str, arrays: dict[str, NDArray[Any]]) -> TableColumn:
    values = arrays[name]
    if name + _ENDS in arrays:
        text, ends = arrays[name + _UTF8].tobytes(), arrays[name + _ENDS].tolist()
        if values.dtype.kind != "i" or ends != sorted(ends) or (ends and (ends[0] < 0 or ends[-1] > len(text))):
            raise ValueError(f"the words of {name} cannot be told apart")
        words = np.empty(len(ends) + 1, object)
        words[:] = [*(text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)), ""]
        if len(values) and not -1 <= values.min() <= values.max() < len(ends):
            raise ValueError(f"{name} has a word that is not there")
        return TableColumn(words[values], values == -1)
    if values.dtype not in (np.bool_, np.float64, np.int32, np.int64):
        raise ValueError(f"{name} holds {values.dtype}")
    null = arrays.get(name + _NULL)
    if null is None:
        return TableColumn.whole(values)
    if null.dtype != np.bool_ or len(null) != len(values):
        raise ValueError(f"the nulls of {name} are not of its length")
    return TableColumn(values, null)


def _stem(info: zipfile.ZipInfo) -> str:
    return info.filename.removesuffix(_MEMBER)


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[np.dtype[Any], int, int]:
    """An array's type, its length, and where its values begin."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        begin = member.tell()
    if version != (1, 0) or len(shape) != 1 or dtype.kind not in "bfiu" or dtype.names:
        raise ValueError(f"{info.filename} is no column")
    if begin + shape[0] * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.filename} is not as long as it says")
    return dtype, int(shape[0]), begin


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    dtype, length, begin = _header(archive, info)
    return np.frombuffer(archive.read(info), dtype, length, begin).astype(dtype.newbyteorder("="), copy=False)


if TYPE_CHECKING:
    import polars


def read_parquet(path: Path) -> Table:
    """One Parquet file; a `RunError` says in one sentence why it cannot be read."""
    try:
        import polars
    except ImportError:
        raise RunError(
            f"{path} was written by an earlier Stallwise, and reading it needs polars: pip install 'stallwise[model]'."
        ) from None
    # A damaged file can also make the Parquet decoder panic, which is not an Exception.
    unreadable = (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError, TypeError, OverflowError)
    try:
        _check_size(path, *_size_of_parquet(path))
        frame = polars.read_parquet(path, glob=False)
        return Table({column.name: _series(column) for column in frame.iter_columns()})
    except unreadable as error:
        raise damaged(path, error) from None


def _size_of_parquet(path: Path) -> tuple[int, int]:
    """Its own count of rows and columns, which is cheap to read; 0 where it cannot be read."""
    try:
        import polars
    except ImportError:
        return 0, 0
    try:
        frame = polars.scan_parquet(path, glob=False)
        return int(frame.select(polars.len()).collect().item()), len(frame.collect_schema())
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError):
        return 0, 0


def _series(column: "polars.Series") -> TableColumn:
    dtype = DTYPES.get(str(column.dtype))
    if dtype is None or dtype.kind == "O":
        return TableColumn.of(column.to_list(), dtype)
    filled = column.fill_null(False if dtype == np.bool_ else 0)
    return TableColumn(filled.to_numpy(), column.is_null().to_numpy())
