"""What is kept: only what was faster in every round, by enough; of near equals the one with fewer workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.tune.judge import Attempt, best_of
from stallwise.tune.knobs import Knobs, Loader
from stallwise.tune.propose import Proposal, rebased
from stallwise.tune.trial import Tried, blocks_of, rounds_of

LOADER = Loader(
    site="train.py:1",
    steps=8,
    num_workers=2,
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    length=100,
    dataset="Images",
    iterable=False,
    sampler="RandomSampler",
    fixed_order=False,
    switchable=True,
)
BASE = (1.0, 1.1, 0.9)


def attempt(workers: int, *rounds: float, predicted: float = 0.3) -> Attempt:
    proposal = Proposal(knobs=Knobs(num_workers=workers), gain=predicted, low=0.0, high=0.5, because="")
    return Attempt(
        proposal=proposal,
        before=Tried(knobs=Knobs(), rounds=BASE),
        after=Tried(knobs=proposal.knobs, rounds=rounds),
    )


@pytest.mark.parametrize(
    ("rounds", "helps"),
    [
        ((0.5, 0.5, 0.5), True),
        ((0.5, 0.5, 0.95), False),  # slower once: may be luck
        ((0.99, 1.09, 0.89), False),  # faster every time, but by 1 %
        ((1.5, 1.5, 1.5), False),
    ],
)
def test_only_what_is_beyond_noise_helps(rounds: tuple[float, ...], helps: bool) -> None:
    assert attempt(4, *rounds).helps is helps


def test_a_large_prediction_does_not_keep_what_measured_slower() -> None:
    assert best_of([attempt(4, 1.2, 1.2, 1.2, predicted=0.9), attempt(8, 1.0, 1.2, 1.0, predicted=0.9)]) is None


gains = st.lists(st.floats(0.2, 3.0), min_size=3, max_size=3)


@given(st.lists(gains, min_size=1, max_size=5))
def test_nothing_that_measured_slower_in_any_round_is_ever_kept(tried: list[list[float]]) -> None:
    best = best_of([attempt(number + 1, *rounds) for number, rounds in enumerate(tried)])
    if best is not None:
        assert all(after < before for before, after in zip(BASE, best.after.rounds, strict=True))


def test_one_round_is_no_evidence() -> None:
    one = Attempt(
        proposal=attempt(4, 0.5, 0.5, 0.5).proposal,
        before=Tried(knobs=Knobs(), rounds=(1.0,)),
        after=Tried(knobs=Knobs(num_workers=4), rounds=(0.1,)),
    )
    assert best_of([one]) is None


def test_what_two_settings_both_hide_is_hidden_once() -> None:
    workers = attempt(4, 0.5, 0.5, 0.5, predicted=0.6).proposal
    assert rebased(workers, 0.6).gain == pytest.approx(0.0)
    buckets = Proposal(knobs=Knobs(bucket_cap_mb=50.0), gain=0.1, low=0.0, high=0.2, because="")
    assert rebased(buckets, 0.5).gain == pytest.approx(0.2)  # the same seconds of half the step


def test_of_near_equals_the_fewest_workers_are_taken() -> None:
    few, many, best = attempt(4, 0.51, 0.51, 0.51), attempt(16, 0.50, 0.50, 0.50), attempt(8, 0.60, 0.60, 0.60)
    assert best_of([many, best, few]) is few


def test_a_gain_is_that_of_the_same_round() -> None:
    assert attempt(4, 0.5, 0.55, 0.45).gain == pytest.approx(0.5)


def test_rounds_go_forth_and_back_through_whole_queues() -> None:
    arms = (Knobs(), Knobs(num_workers=6), Knobs(num_workers=8, prefetch_factor=4))
    blocks = blocks_of(arms, LOADER, (0.1, 0.05, 0.05), rounds=3, block_s=1.0, fetches=1.0)
    assert [block.arm for block in blocks] == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    for block in blocks:
        assert block.batches % (2, 6, 8)[block.arm] == 0
        assert block.settle >= (4, 12, 32)[block.arm]
    assert blocks[0].settle > blocks[5].settle


def test_a_round_that_some_arm_missed_counts_for_none() -> None:
    arms = (Knobs(), Knobs(num_workers=1))
    assert [one.rounds for one in rounds_of([(1.0, 0), (0.5, 1), (0.6, 1)], arms)] == [(1.0,), (0.5,)]
    assert rounds_of([(1.0, 0)], arms) == ()
