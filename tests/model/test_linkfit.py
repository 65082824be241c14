"""Fits find what was put in, through noise and outliers."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.model.exchange.collectives import AlphaBeta, Segments
from stallwise.model.exchange.linkfit import fit_alpha_beta, fit_segments

SIZES = [4096 << n for n in range(15)]


def noisy(cost: Segments, seed: int, spread: float) -> list[tuple[float, float]]:
    factors = np.exp(np.random.default_rng(seed).normal(0, spread, len(SIZES)))
    return [(size, cost.time_s(size) * float(f)) for size, f in zip(SIZES, factors, strict=True)]


def line(latency_s: float, s_per_byte: float) -> Segments:
    one = AlphaBeta(latency_s, s_per_byte)
    return Segments(one, one)


@pytest.mark.parametrize("seed", range(5))
def test_a_line_is_found_through_noise(seed: int) -> None:
    found = fit_alpha_beta(noisy(line(3e-4, 2e-9), seed, 0.03))
    assert found.latency_s == pytest.approx(3e-4, rel=0.05)
    assert found.s_per_byte == pytest.approx(2e-9, rel=0.05)


def test_one_line_is_enough_for_one_line() -> None:
    assert fit_segments(noisy(line(3e-4, 2e-9), 0, 0.0)).cost.break_bytes is None


@pytest.mark.parametrize("seed", range(5))
def test_two_lines_and_their_break_are_found(seed: int) -> None:
    put_in = Segments(AlphaBeta(1e-4, 2e-8), AlphaBeta(2e-3, 1e-9), break_bytes=1e5)
    found = fit_segments(noisy(put_in, seed, 0.02))
    assert found.cost.break_bytes is not None
    assert 65536 < found.cost.break_bytes <= 131072
    assert found.cost.small.s_per_byte == pytest.approx(2e-8, rel=0.1)
    assert found.cost.large.s_per_byte == pytest.approx(1e-9, rel=0.05)
    assert found.cost.large.latency_s == pytest.approx(2e-3, rel=0.1)


def test_an_outlier_does_not_move_the_line() -> None:
    points = noisy(line(3e-4, 2e-9), 1, 0.01)
    points[7] = (points[7][0], 10 * points[7][1])
    found = fit_alpha_beta(points)
    assert found.latency_s == pytest.approx(3e-4, rel=0.05)
    assert found.s_per_byte == pytest.approx(2e-9, rel=0.05)


def test_a_vague_point_counts_less() -> None:
    points = noisy(line(3e-4, 2e-9), 0, 0.0)
    wrong = [(size, 2 * time_s if n % 3 == 0 else time_s) for n, (size, time_s) in enumerate(points)]
    errors = [0.5 if n % 3 == 0 else 0.0 for n in range(len(points))]
    found = fit_alpha_beta(wrong, errors=errors)
    assert found.s_per_byte == pytest.approx(2e-9, rel=0.02)


def test_small_messages_count_as_much_as_large_ones() -> None:
    """An ordinary fit misses the small ones by far on data that bend."""
    bent = [(size, 1e-4 + 1e-9 * size + 2e-17 * size**2) for size in SIZES]
    robust, ordinary = fit_alpha_beta(bent), fit_alpha_beta(bent, "absolute")
    assert abs(robust.time_s(4096) / bent[0][1] - 1) < 0.2
    assert abs(ordinary.time_s(4096) / bent[0][1] - 1) > 0.5


def test_nothing_is_negative() -> None:
    falling = [(size, 1.0 / (1 + n)) for n, size in enumerate(SIZES)]
    assert fit_alpha_beta(falling).s_per_byte == 0
    below = [(size, 1e-9 * size**1.2) for size in SIZES]
    assert fit_alpha_beta(below, "absolute").latency_s == 0


def test_the_interval_holds_the_points() -> None:
    points = noisy(line(3e-4, 2e-9), 3, 0.05)
    fit = fit_segments(points)
    held = [low <= time_s <= high for (size, time_s) in points for low, high in [fit.interval_s(size)]]
    assert sum(held) >= 0.8 * len(points)
    low, high = fit.interval_s(1e6)
    assert low <= fit.cost.time_s(1e6) <= high


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (1.0, math.nan), (0.0, 1.0), (1.0, -1.0), (1.0, math.inf)])
def test_impossible_points_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        fit_segments([(1024.0, 1e-3), bad])


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="at least two sizes"):
        fit_alpha_beta([(1024.0, 1e-3), (1024.0, 2e-3)])
    with pytest.raises(InputError, match="no measured message"):
        fit_segments([])


def test_the_protocol_step_of_a_real_cluster_is_found(shared_data: Path) -> None:
    """OSU all-reduce on 8 nodes with 10GbE: times jump between 8 and 12 KB."""
    text = (shared_data / "ssgd_traces/bcaffe_googlenet_k80/allreduce8.log").read_text()
    points = [(float(m[1]), float(m[2]) * 1e-6) for m in re.finditer(r"^8,(\d+)\s+([\d.]+)$", text, re.MULTILINE)]
    assert len(points) > 200
    found = fit_segments(points)
    assert found.cost.break_bytes is not None
    assert 8192 <= found.cost.break_bytes <= 12288
