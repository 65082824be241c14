"""Groups of ranks in words."""

import pytest

from stallwise.record.observe._collectives import ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"), [([0, 1, 2, 3], "0-3"), ([2, 0], "0,2"), ([5], "5"), ([8, 0, 1, 9, 4], "0-1,4,8-9"), ([], "")]
)
def test_neighbours_stand_together(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
