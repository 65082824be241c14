"""What is written reads back the same, and a broken cell is named by file, line and column."""

import datetime as dt

import pytest
from hypothesis import given, settings

from stallwise.errors import CatalogError
from stallwise.hardware import Gpu, Instance, Offer
from stallwise.hardware import _tables as tables
from stallwise.hardware._tables import CatalogRow, csv_rows
from tests.hardware.strategies import GPUS, INSTANCES, OFFERS

TODAY = dt.date(2026, 11, 15)


def reread(columns: tuple[str, ...], cells: dict[str, str]) -> CatalogRow:
    (row,) = csv_rows(tables.to_csv(columns, [cells]), "t.csv")
    return row


@settings(deadline=None, max_examples=60)
@given(GPUS)
def test_gpu_round_trip(gpu: Gpu) -> None:
    assert tables.gpu_from(reread(tables.GPU_COLUMNS, tables.gpu_cells(gpu)), TODAY) == gpu


@settings(deadline=None, max_examples=60)
@given(INSTANCES)
def test_instance_round_trip(instance: Instance) -> None:
    row = reread(tables.INSTANCE_COLUMNS, tables.instance_cells(instance))
    boards = {instance.board.name: instance.board} if instance.board else {}
    assert tables.instance_from(row, {instance.gpu.name: instance.gpu}, boards, TODAY) == instance


@settings(deadline=None, max_examples=60)
@given(OFFERS)
def test_offer_round_trip(offer: Offer) -> None:
    row = reread(tables.OFFER_COLUMNS, tables.offer_cells(offer))
    key = (offer.instance.cloud, offer.instance.name)
    assert tables.offer_from(row, {key: offer.instance}, TODAY) == offer


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        ("memory_gib", "eighty", "a number"),
        ("memory_gib", "", "a number"),
        ("memory_gib", "-1", "above 0"),
        ("fp32_tflops", "0", "leave it blank where it is unknown"),
        ("fp32_tflops", "nan", "above 0"),
        ("year", "2020.5", "a whole number"),
        ("as_of", "22.8.2026", "a date like 2026-08-22"),
        ("confidence", "sure", "one of high, medium, low"),
        ("pcie_generation", "9", "a PCIe generation"),
        ("gpu", " ", "a name"),
    ],
)
def test_a_broken_cell_is_named(column: str, cell: str, expected: str) -> None:
    good = {"gpu": "X1", "memory_gib": "80", "pcie_lanes": "16", "pcie_generation": "4"}
    row = CatalogRow(good | {column: cell}, "own.csv", 7)
    with pytest.raises(CatalogError, match=rf"own\.csv, line 7, column {column}: found .*expected.*{expected}"):
        tables.gpu_from(row, TODAY)
