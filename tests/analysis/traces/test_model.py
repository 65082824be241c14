"""Bucket limits read off a trace cut the gradients as the traced job did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.analysis.traces._model import BucketLimits, buckets_among, limits_of
from stallwise.model.exchange.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES, MIB, Gradients, ddp_buckets, message_bytes

SIZES = st.lists(st.integers(1, 8 * MIB), min_size=1, max_size=60)


def buckets(sizes: list[int], first: int, later: int) -> list[int]:
    count = range(len(sizes))
    gradients = Gradients(tuple(count), tuple(map(float, count)), tuple(sizes))
    return [
        int(size) for size in message_bytes(gradients, ddp_buckets(gradients, first_bytes=first, bucket_bytes=later))
    ]


@given(SIZES, st.integers(1, 40 * MIB), st.integers(1, 40 * MIB))
def test_limits_make_the_buckets_they_were_read_from(sizes: list[int], first: int, later: int) -> None:
    real = buckets(sizes, first, later)
    found = limits_of(sizes, real)
    assert found is not None
    assert buckets(sizes, found.first_bytes, found.later_bytes) == real


@given(SIZES)
def test_torchs_own_limits_are_found(sizes: list[int]) -> None:
    found = limits_of(sizes, buckets(sizes, DDP_FIRST_BYTES, DDP_BUCKET_BYTES))
    assert found == BucketLimits(DDP_FIRST_BYTES, DDP_BUCKET_BYTES)


def test_a_limit_for_all_is_told_from_torchs() -> None:
    """Bytes of a small network in buckets of 4 MiB, as bucket_cap_mb=4 makes them."""
    sizes = [3 * MIB, 2 * MIB, 1 * MIB, 3 * MIB + 5, 1 * MIB]
    assert limits_of(sizes, buckets(sizes, 4 * MIB, 4 * MIB)) == BucketLimits(4 * MIB, 4 * MIB)


@pytest.mark.parametrize("real", [(), (3, 4), (1, 6), (2, 2, 3)])
def test_other_cuts_have_no_limits(real: tuple[int, ...]) -> None:
    """Of gradients of 2, 2 and 2 bytes: none, too many bytes, a cut within one; and 2, 2, 3 of 7."""
    assert limits_of([2, 2, 2], real) is None


def test_a_plan_follows_no_two_limits() -> None:
    assert limits_of([1] * 9, [2, 5, 2]) == BucketLimits(2, 5)
    assert limits_of([1] * 12, [2, 5, 3, 2]) is None


def test_messages_between_buckets_are_passed_over() -> None:
    assert buckets_among([10, 20, 30], [10, 7, 50]) == (10, 50)
    assert buckets_among([10, 20, 30], [10, 7]) is None
    assert buckets_among([10, 20, 30], []) is None
