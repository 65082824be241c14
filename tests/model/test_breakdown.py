"""Splitting a device's time: the laws that hold for any pieces, against a count of single moments."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.breakdown import breakdown, common, length, union, without

PIECES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=25)


def moments(pieces: list[tuple[int, int, int]], *kinds: int) -> set[int]:
    return {t for start, size, kind in pieces if kind in kinds for t in range(start, start + size)}


def arrays(pieces: list[tuple[int, int, int]], *kinds: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = [(start, start + size) for start, size, kind in pieces if kind in kinds]
    return np.array([a for a, _ in chosen], dtype=np.int64), np.array([b for _, b in chosen], dtype=np.int64)


@given(PIECES)
def test_every_part_is_the_count_of_its_moments(pieces: list[tuple[int, int, int]]) -> None:
    start, end = arrays(pieces, 0, 1, 2)
    kind = np.array([kind for _, _, kind in pieces])
    found = breakdown(start, end, compute=kind == 0, sends=kind == 1, memory=kind == 2)
    computing, sending = moments(pieces, 0), moments(pieces, 1)
    busy = moments(pieces, 0, 1, 2)
    assert found.compute == len(computing)
    assert found.communication == len(sending)
    assert found.overlap == len(computing & sending)
    assert found.memory == len(moments(pieces, 2))
    assert found.idle == end.max() - start.min() - len(busy)
    assert found.compute + found.non_compute + found.idle == found.kernel_time
    assert found.overlap_ratio == (len(computing & sending) / len(sending) if sending else None)


@given(PIECES)
def test_unions_meet_and_are_cut_as_sets_are(pieces: list[tuple[int, int, int]]) -> None:
    one, other = union(*arrays(pieces, 0)), union(*arrays(pieces, 1))
    assert (one[0][1:] > one[1][:-1]).all()
    assert length(common(one, other)) == len(moments(pieces, 0) & moments(pieces, 1))
    assert without(one, other) == len(moments(pieces, 0) - moments(pieces, 1))
