"""Links as prices: what is needed, what an unknown one says, how intervals come about."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.exchange.collectives import AlphaBeta, Segments, Wire, all_reduce
from stallwise.model.exchange.fabric import GLOO, Fabric, KnownLink, link_of_rate, listed_factors

SLOW = link_of_rate(1.25e9, 30e-6, "given", low=0.5, high=2.0)
FAST = link_of_rate(50e9, 5e-6, "given", low=0.1, high=10.0)
BOTH = Fabric(gpus_per_node=4, inside=FAST, between=SLOW, algorithms=GLOO)

counts = st.integers(min_value=2, max_value=1024)
message_bytes = st.floats(min_value=1.0, max_value=1e9)


@given(counts, message_bytes)
def test_a_rate_is_priced_as_a_ring_over_its_wire(gpus: int, size: float) -> None:
    fabric = Fabric(gpus_per_node=1, between=SLOW, algorithms=GLOO)
    ring = all_reduce("ring", Wire(latency_s=30e-6, s_per_byte=1 / 1.25e9), gpus)
    assert fabric.prices(gpus).all_reduce(size) == pytest.approx(ring.time_s(size))


@given(counts, message_bytes, st.floats(min_value=1.0, max_value=100.0))
def test_more_bandwidth_is_never_slower(gpus: int, size: float, factor: float) -> None:
    faster = link_of_rate(1.25e9 * factor, 30e-6, "given")
    after = Fabric(gpus_per_node=4, inside=FAST, between=faster).prices(gpus).all_reduce(size)
    assert after <= Fabric(gpus_per_node=4, inside=FAST, between=SLOW).prices(gpus).all_reduce(size) * (1 + 1e-12)


def test_within_a_node_its_link_counts_and_across_nodes_the_slowest() -> None:
    inside = Fabric(gpus_per_node=4, inside=FAST, algorithms=GLOO)
    assert BOTH.prices(4).all_reduce(1e8) == inside.prices(4).all_reduce(1e8)
    across = Fabric(gpus_per_node=1, between=SLOW, algorithms=GLOO)
    assert BOTH.prices(8).all_reduce(1e8) == pytest.approx(across.prices(8).all_reduce(1e8))


def test_nccl_is_never_slower_than_its_ring() -> None:
    nccl = Fabric(gpus_per_node=4, inside=FAST, between=SLOW)
    for size in (1e3, 1e6, 1e9):
        assert nccl.prices(512).all_reduce(size) <= BOTH.prices(512).all_reduce(size)
    assert nccl.prices(512).all_reduce(1e3) < BOTH.prices(512).all_reduce(1e3), "a tree starts less often"


def test_one_gpu_needs_no_link_and_exchanges_for_nothing() -> None:
    assert Fabric(gpus_per_node=8).prices(1).all_reduce(1e9) == 0.0
    assert [bound.all_reduce(1e9) for bound in Fabric(gpus_per_node=8).bounds(1)] == [0.0, 0.0]


@pytest.mark.parametrize(("gpus", "wanted"), [(4, "GPUs of a node is not known"), (16, "GPUs of a node is not known")])
def test_an_unknown_inside_link_says_what_to_give(gpus: int, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        Fabric(gpus_per_node=8, between=SLOW).prices(gpus)


def test_an_unknown_network_says_what_to_give() -> None:
    with pytest.raises(InputError, match=r"16 GPUs need more than one node of 8.*network between nodes"):
        Fabric(gpus_per_node=8, inside=FAST).prices(16)


def _factors(fabric: Fabric, gpus: int, size: float) -> tuple[float, float]:
    low, high = (bound.all_reduce(size) / fabric.prices(gpus).all_reduce(size) for bound in fabric.bounds(gpus))
    return low, high


def test_the_interval_is_that_of_the_hop_that_binds() -> None:
    # The fast link may be ten times slower than listed and is still faster than the slow one.
    assert _factors(BOTH, 8, 1e9) == pytest.approx((0.5, 2.0), rel=1e-3)
    assert _factors(BOTH, 4, 1e9) == pytest.approx((0.1, 10.0), rel=1e-3)


def test_the_interval_grows_where_a_fast_link_may_become_the_slowest() -> None:
    doubtful = link_of_rate(2.5e9, 0.0, "given", low=0.2, high=5.0)
    fabric = Fabric(gpus_per_node=4, inside=doubtful, between=SLOW, algorithms=GLOO)
    assert _factors(fabric, 8, 1e9) == pytest.approx((0.5, 2.5), rel=1e-3), "5 times half of it"


def test_a_measured_link_keeps_both_lines_and_its_break_moves_with_the_pieces() -> None:
    cost = Segments(AlphaBeta(1e-4, 2e-9), AlphaBeta(5e-4, 1e-9), break_bytes=1e6)
    link = KnownLink(cost=cost, ranks=2, origin="measured")
    fabric = Fabric(gpus_per_node=8, inside=link, algorithms=GLOO)
    assert fabric.prices(2).all_reduce(1e5) == pytest.approx(cost.time_s(1e5))
    assert fabric.prices(2).all_reduce(1e7) == pytest.approx(cost.time_s(1e7))
    assert link.bytes_per_s == pytest.approx(1e9)
    # On 8 ranks pieces of the same size make a message four times as large.
    eight = all_reduce("ring", link.wires()[0], 8)
    assert fabric.prices(8).all_reduce(3.9e6) == pytest.approx(eight.time_s(3.9e6))


def test_a_link_that_carries_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="must be above 0 bytes/s"):
        link_of_rate(0.0, 0.0, "given")


# ssgd_traces/PROVENANCE.md
_ELEMENTS = {"ResNet-50": 25_557_032, "BERT-Base": 110_111_042, "BERT-Large": 336_232_258}
_LISTED = {"10GbE with TCP/IP": 10e9 / 8, "100GbIB with RDMA": 100e9 / 8, "100GbE with TCP/IP": 100e9 / 8}


def test_listed_factors_hold_every_exchange_that_was_measured(shared_data: Path) -> None:
    """One fused all-reduce after backward: the step of 8 GPUs less that of one, over a ring at the listed rate."""
    with (shared_data / "ssgd_traces/ddl_benchmarks/throughput_1_4_8gpu.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "BSP-A2A"]
    assert len(rows) == 9
    for row in rows:
        batch, listed = float(row["batch_per_gpu"]), _LISTED[row["network"]]
        exchange_s = 8 * batch / float(row["thr_8gpu"]) - batch / float(row["thr_1gpu"])
        fabric = Fabric(gpus_per_node=1, between=link_of_rate(listed, 0.0, "listed"), algorithms=GLOO)
        low, high = listed_factors(listed)
        ratio = exchange_s / fabric.prices(8).all_reduce(4 * _ELEMENTS[row["model"]])
        assert low <= ratio <= high, row
