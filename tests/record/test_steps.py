"""Where a step begins, for every shape of loop."""

import pytest

from stallwise.record.rank._steps import CycleTracker, period_of


def play(events: str, repeat: int = 6) -> tuple[CycleTracker, int]:
    """Feed a loop written as letters: a, b, v are loaders that are fetched from, 1, 2 optimizers that step."""
    tracker = CycleTracker()
    opened = 0
    for _ in range(repeat):
        for event in events:
            if event.isdigit():
                opened += tracker.optimizer(int(event))
            else:
                opened += tracker.fetch(ord(event))
    return tracker, opened


@pytest.mark.parametrize(
    ("events", "cycles", "period", "fetches"),
    [
        ("a1", 6, 1, 1),  # the plain loop
        ("aaaa1", 6, 1, 4),  # gradient accumulation
        ("a12", 6, 1, 1),  # two optimizers after one batch
        ("ab1", 6, 1, 2),  # two loaders side by side
        ("a1a1a1a12", 24, 4, 1),  # four critic steps, then one of the generator
        ("1", 6, 1, 0),  # no loader at all
        ("12", 6, 1, 0),  # no loader, two optimizers
    ],
)
def test_a_cycle_per_repetition(events: str, cycles: int, period: int, fetches: int) -> None:
    tracker, opened = play(events)
    assert opened == cycles
    assert tracker.period == period
    assert tracker.fetches_per_cycle == pytest.approx(fetches)


def test_an_optimizer_that_stepped_at_first_is_waited_for() -> None:
    """`if step % 5 == 0`: the rare optimizer steps with the first batch, and then not for four."""
    tracker, _ = play("a12a1a1a1a1", repeat=1)
    assert not tracker.repeats
    tracker, _ = play("a12a1a1a1a1", repeat=3)
    assert tracker.repeats
    assert tracker.period == 5
    once, _ = play("a12" + "a1" * 80, repeat=1)
    assert once.repeats
    assert once.period == 1, "a generator that never steps again is not waited for without end"


def test_evaluation_in_between_is_not_training() -> None:
    tracker, _ = play("a1" * 10)
    for event in "vvvv":
        tracker.fetch(ord(event))
    tracker.settle()
    assert tracker.is_evaluation(ord("v"), grad_enabled=True)
    assert not tracker.is_evaluation(ord("a"), grad_enabled=True)
    cycles = tracker.cycles
    assert not tracker.fetch(ord("v"))
    assert tracker.cycles == cycles


def test_before_it_is_settled_a_fetch_without_gradients_is_evaluation() -> None:
    tracker = CycleTracker()
    assert not tracker.fetch(1, grad_enabled=False)
    assert tracker.fetch(2)


def test_the_script_may_say_itself_where_a_step_begins() -> None:
    tracker = CycleTracker()
    assert tracker.mark()
    assert not tracker.fetch(1)
    assert not tracker.optimizer(1)
    assert not tracker.fetch(1)
    assert tracker.mark()
    assert tracker.cycles == 2


def play_ahead(epochs: int, batches: int, accumulate: int = 1) -> CycleTracker:
    """A loop that fetches a batch before it trains on the one before, as Accelerate's loaders do."""
    tracker = CycleTracker()
    for _ in range(epochs):
        tracker.fetch(1)
        for batch in range(1, batches + 1):
            tracker.fetch(1)
            if batch == batches:
                tracker.nothing_fetched(1)
            if batch % accumulate == 0:
                tracker.optimizer(7)
    return tracker


@pytest.mark.parametrize(("batches", "accumulate"), [(4, 1), (9, 1), (12, 3), (2, 1), (8, 4)])
def test_a_loop_that_looks_ahead_has_a_cycle_per_optimizer_step(batches: int, accumulate: int) -> None:
    tracker = play_ahead(6, batches, accumulate)
    assert tracker.cycles == 6 * batches // accumulate
    assert tracker.period == 1
    assert tracker.repeats, "the seams of epochs are no sign of a longer repetition"
    tracker.settle()
    assert not tracker.is_evaluation(1, grad_enabled=True)


@pytest.mark.parametrize(
    ("shapes", "period"),
    [("", 1), ("x", 1), ("xaaaa", 1), ("xabab", 2), ("xabcabcabc", 3), ("xabcd", 1), ("xaab", 1)],
)
def test_period(shapes: str, period: int) -> None:
    assert period_of(shapes) == period


def test_a_loader_that_comes_late_is_learned() -> None:
    tracker, _ = play("a1" * 10)
    tracker.settle()
    for _ in range(3):
        assert not tracker.fetch(ord("c"))
        tracker.optimizer(1)
    assert tracker.fetch(ord("c"))


def test_evaluation_before_a_training_fetch_is_not_learned() -> None:
    tracker, _ = play("a1" * 10)
    tracker.settle()
    for _ in range(5):
        tracker.fetch(ord("v"))
        assert tracker.fetch(ord("a"))
        tracker.optimizer(1)
    assert tracker.is_evaluation(ord("v"), grad_enabled=True)
