"""Quantities in words."""

import math

import pytest

from stallwise.report.format import show_bounds, show_count, show_flops, show_number, show_percent


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.102, 0.113, "102 to 113 ms"),
        (0.0, 0.0012, "0 to 1.2 ms"),
        (-0.001, 0.002, "0 to 2 ms"),
        (0.00091, 0.0012, "910 µs to 1.2 ms"),
        (0.9, 1.1, "900 ms to 1.1 s"),
        (0.0, math.inf, "interval unknown"),
        (-math.inf, math.inf, "interval unknown"),
    ],
)
def test_bounds(low: float, high: float, shown: str) -> None:
    assert show_bounds(low, high) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (4.284, "4.28"), (273.8, "274"), (999.7, "1,000"), (52181.3, "52,200"), (1_310_720, "1,310,000")],
)
def test_numbers(value: float, shown: str) -> None:
    assert show_number(value) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.0, "0 %"), (0.0038, "0.38 %"), (0.085, "8.5 %"), (0.1268, "13 %"), (1.5, "150 %")]
)
def test_percent(fraction: float, shown: str) -> None:
    assert show_percent(fraction) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(5, "5"), (12_345, "12,345"), (124_439_808, "124 million"), (7_615_616_512, "7.62 billion")]
)
def test_counts(value: int, shown: str) -> None:
    assert show_count(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(32.0, "32 FLOP"), (3.5e11, "350 GFLOP"), (2.4e13, "24 TFLOP")])
def test_operations(value: float, shown: str) -> None:
    assert show_flops(value) == shown
