"""The laws of collectives: formulas against message-by-message schedules, bounds, and what changes with ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.exchange.collectives import (
    Algorithm,
    AlphaBeta,
    Segments,
    Wire,
    all_gather,
    all_reduce,
    bus_factor,
    contended,
    parameter_server,
    reduce_scatter,
    rescale,
    wire_of_ring,
)

ALGORITHMS: tuple[Algorithm, ...] = ("ring", "recursive doubling", "halving and doubling", "tree", "double tree")
any_algorithm = st.sampled_from(ALGORITHMS)
wires = st.builds(
    Wire,
    latency_s=st.floats(0, 1e-2),
    s_per_byte=st.floats(1e-12, 1e-7),
    reduce_s_per_byte=st.floats(0, 1e-8),
)
any_ranks = st.integers(1, 1024)
any_bytes = st.floats(1, 1e10)
PLAIN = Wire(latency_s=1e-4, s_per_byte=1e-9, reduce_s_per_byte=1e-10)


def scheduled_ring_s(wire: Wire, ranks: int, size: float) -> float:
    """The ring played through: in each of 2(N-1) rounds every rank sends one of N pieces to its neighbour."""
    ready = [0.0] * ranks
    for round_number in range(2 * (ranks - 1)):
        sent = [t + wire.latency_s + wire.s_per_byte * size / ranks for t in ready]
        added = wire.reduce_s_per_byte * size / ranks if round_number < ranks - 1 else 0.0
        ready = [max(ready[r], sent[r - 1] + added) for r in range(ranks)]
    return max(ready)


def scheduled_pairs_s(wire: Wire, ranks: int, size: float, *, halving: bool) -> float:
    """Exchanges between pairs at distance 1, 2, 4 …; with halving, half as much each time and all of it back."""
    spent, piece = 0.0, size
    for _ in range(round(math.log2(ranks))):
        piece = piece / 2 if halving else piece
        spent += wire.latency_s + (wire.s_per_byte + wire.reduce_s_per_byte) * piece
    for _ in range(round(math.log2(ranks)) if halving else 0):
        spent += wire.latency_s + wire.s_per_byte * piece
        piece *= 2
    return spent


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 64])
@pytest.mark.parametrize("size", [4.0, 1e6, 1e9])
def test_the_ring_formula_is_the_ring_played_through(ranks: int, size: float) -> None:
    assert all_reduce("ring", PLAIN, ranks).time_s(size) == pytest.approx(scheduled_ring_s(PLAIN, ranks, size))


@pytest.mark.parametrize("ranks", [2, 4, 32])
@pytest.mark.parametrize(("algorithm", "halving"), [("recursive doubling", False), ("halving and doubling", True)])
def test_pairwise_formulas_are_the_exchanges_played_through(ranks: int, algorithm: Algorithm, halving: bool) -> None:
    played_s = scheduled_pairs_s(PLAIN, ranks, 3e6, halving=halving)
    assert all_reduce(algorithm, PLAIN, ranks).time_s(3e6) == pytest.approx(played_s)


@given(any_algorithm, wires, any_ranks, any_bytes)
def test_no_all_reduce_beats_the_bandwidth_bound(algorithm: Algorithm, wire: Wire, ranks: int, size: float) -> None:
    bound_s = bus_factor(ranks) * wire.s_per_byte * size
    assert all_reduce(algorithm, wire, ranks).time_s(size) >= bound_s * (1 - 1e-9)


@given(any_algorithm, wires, any_ranks, any_bytes, st.floats(0, 1))
def test_a_better_link_is_never_slower(a: Algorithm, wire: Wire, ranks: int, size: float, part: float) -> None:
    better = Wire(
        latency_s=wire.latency_s * part,
        s_per_byte=wire.s_per_byte * part,
        reduce_s_per_byte=wire.reduce_s_per_byte * part,
    )
    assert all_reduce(a, better, ranks).time_s(size) <= all_reduce(a, wire, ranks).time_s(size) * (1 + 1e-12)


@given(any_algorithm, wires, any_bytes, any_bytes, st.integers(2, 256))
def test_merging_two_messages_saves_one_start(a: Algorithm, wire: Wire, m1: float, m2: float, ranks: int) -> None:
    cost = all_reduce(a, wire, ranks)
    assert cost.time_s(m1 + m2) == pytest.approx(cost.time_s(m1) + cost.time_s(m2) - cost.latency_s)


@given(wires, any_ranks, any_bytes)
def test_reduce_scatter_and_all_gather_make_a_ring(wire: Wire, ranks: int, size: float) -> None:
    both = reduce_scatter(wire, ranks) + all_gather(wire, ranks)
    assert both.time_s(size) == pytest.approx(all_reduce("ring", wire, ranks).time_s(size))


def test_surplus_ranks_are_folded_in_at_the_price_of_two_messages() -> None:
    for algorithm in ("recursive doubling", "halving and doubling"):
        four, five = (all_reduce(algorithm, PLAIN, n) for n in (4, 5))
        assert five.latency_s == pytest.approx(four.latency_s + 2 * PLAIN.latency_s)
        assert five.s_per_byte == pytest.approx(four.s_per_byte + 2 * PLAIN.s_per_byte + PLAIN.reduce_s_per_byte)


def test_one_rank_and_no_bytes_cost_nothing() -> None:
    for algorithm in ALGORITHMS:
        assert all_reduce(algorithm, PLAIN, 1).time_s(1e9) == 0
        assert all_reduce(algorithm, PLAIN, 8).time_s(0) == 0
    assert parameter_server(PLAIN, 1, 1, colocated=True).time_s(1e9) == 0


def test_servers_on_the_workers_machines_move_as_much_as_a_ring() -> None:
    for workers in (2, 8):
        servers = parameter_server(Wire(latency_s=0, s_per_byte=1e-9), workers, workers, colocated=True)
        assert servers.s_per_byte == pytest.approx(all_reduce("ring", PLAIN, workers).s_per_byte, rel=0.06)
    assert parameter_server(PLAIN, 8, 1).s_per_byte == pytest.approx(16e-9 + 8e-10)
    with pytest.raises(InputError, match="at most 2"):
        parameter_server(PLAIN, 2, 3, colocated=True)


def test_jobs_on_one_link_share_its_rate_and_not_its_latency() -> None:
    shared = contended(AlphaBeta(1e-3, 1e-9), 4, penalty_s_per_byte=1e-10)
    assert shared.latency_s == 1e-3
    assert shared.s_per_byte == pytest.approx(4.3e-9)
    # Two concurrent streams that do not fill the link: a + 1.5 b M.
    assert contended(AlphaBeta(1e-3, 1e-9), 2, -0.5e-9).s_per_byte == pytest.approx(1.5e-9)


@given(wires, st.integers(2, 64), st.integers(1, 1024), any_bytes)
def test_a_ring_measured_on_some_ranks_tells_of_others(wire: Wire, seen: int, asked: int, size: float) -> None:
    line = all_reduce("ring", wire, seen)
    told = rescale(Segments(line, line), seen, asked).time_s(size)
    assert told == pytest.approx(all_reduce("ring", wire, asked).time_s(size), rel=1e-9)


def test_rescaling_keeps_lines_that_meet_meeting() -> None:
    measured = Segments(AlphaBeta(1e-4, 3e-9), AlphaBeta(3e-4, 1e-9), break_bytes=1e5)
    assert measured.small.time_s(1e5) == pytest.approx(measured.large.time_s(1e5))
    moved = rescale(measured, 2, 8)
    assert moved.break_bytes == pytest.approx(4e5)
    assert moved.small.time_s(4e5) == pytest.approx(moved.large.time_s(4e5))


def test_the_stated_formula_of_rescaling() -> None:
    measured = AlphaBeta(2e-4, 1e-9)
    told = rescale(Segments(measured, measured), 2, 8).large
    assert told.latency_s == pytest.approx(2e-4 * 7)
    assert told.s_per_byte == pytest.approx(1e-9 * (7 / 8) / (1 / 2))


@given(
    st.builds(AlphaBeta, st.floats(0, 1), st.floats(0, 1e-6)),
    st.builds(AlphaBeta, st.floats(0, 1), st.floats(0, 1e-6)),
    any_bytes,
    any_bytes,
    any_bytes,
)
def test_more_bytes_are_never_quicker(a: AlphaBeta, b: AlphaBeta, at: float, m1: float, m2: float) -> None:
    cost = Segments(a, b, at)
    few, many = sorted((m1, m2))
    assert cost.time_s(few) <= cost.time_s(many)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_a_link_with_impossible_numbers_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="finite and not negative"):
        AlphaBeta(bad, 1e-9)
    with pytest.raises(InputError, match="finite and not negative"):
        AlphaBeta(0.0, bad)


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        all_reduce("ring", PLAIN, 0)
    with pytest.raises(InputError, match="two ranks or more"):
        wire_of_ring(AlphaBeta(1e-3, 1e-9), 1)
