from pathlib import Path

import pytest

from stallwise.run.manifest import Manifest
from stallwise.run.schema import TABLES, BatchRow, EventRow, StepRow

DOCUMENT = (Path(__file__).parents[2] / "docs" / "run-record.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_documented(name: str) -> None:
    assert f"| `{name}` |" in DOCUMENT
    assert all(meaning.text for meaning in TABLES[name].columns.values())


@pytest.mark.parametrize("key", Manifest.__struct_fields__)
def test_every_manifest_key_is_documented(key: str) -> None:
    section = DOCUMENT.partition("## manifest.json")[2].partition("\n## ")[0]
    assert f"`{key}`" in section


@pytest.mark.parametrize("row", [StepRow, BatchRow, EventRow])
def test_row_types_are_the_tables(row: type[StepRow | BatchRow | EventRow]) -> None:
    (table,) = [t for t in TABLES.values() if list(t.columns) == list(row._fields)]
    assert list(table.empty().columns) == list(row._fields)
    assert set(row._field_defaults) >= {c for c in table.nullable if c != "worker"}
