"""Objects come in any order they are asked for, within the limit, and nobody waits for what nobody loads."""

import threading
import time
from collections.abc import Callable

import pytest

from stallwise.data.ahead import Ahead, Loaded
from stallwise.data.tuning import Pace
from stallwise.errors import ObjectError


def ahead_of(load: Callable[[int], Loaded], limit_bytes: int = 400, **options: float) -> Ahead:
    return Ahead(load, load, lambda _: 100, limit_bytes, Pace(most=8), **{"patience_s": 5.0, **options})  # type: ignore[arg-type]


def of_size(size_bytes: int) -> Callable[[int], Loaded]:
    return lambda number: Loaded(bytes([number]) * size_bytes, "store", 0.001)


def settled(ahead: Ahead, held_bytes: int) -> bool:
    """Whether the threads come to rest with so much in memory."""
    for _ in range(200):
        if ahead._busy == 0 and ahead._held_bytes == held_bytes:
            return True
        time.sleep(0.01)
    return False


def test_a_sample_drawn_twice_passes_a_full_limit() -> None:
    order = [5, 7, 5, 8, 9, 10, 11, 12, 13, 14]
    ahead = ahead_of(of_size(100))
    ahead.expect(order)
    for number in order:
        # By now all threads rest at the limit; what is asked for must wake one.
        assert settled(ahead, min(400, 100 * len(ahead._slots)))
        loaded, waited_s = ahead.take(number)
        assert loaded.data == bytes([number]) * 100
        assert waited_s < 2
    assert settled(ahead, 0)


def test_objects_larger_than_expected_count_in_full() -> None:
    ahead = ahead_of(of_size(1000), limit_bytes=4000)
    ahead.expect(range(30))
    time.sleep(0.3)
    assert ahead._held_bytes <= 4000 + 4 * 1000, "no more than were under way when their size showed"
    for number in range(30):
        ahead.take(number)
    assert settled(ahead, 0)


def test_what_is_given_up_leaves_nothing_behind() -> None:
    begun, free = threading.Barrier(5), threading.Event()

    def load(number: int) -> Loaded:
        if number < 4:
            begun.wait(10)
            free.wait(20)
        return of_size(100)(number)

    ahead = ahead_of(load, patience_s=0.3, hedge=False)
    ahead.expect(range(6))
    begun.wait(10)
    with pytest.raises(ObjectError, match="Nothing has come of sample 5"):
        ahead.take(5)  # never begun: all threads hang
    free.set()
    assert ahead.take(4)[0].data == bytes([4]) * 100
    ahead.forget()
    assert settled(ahead, 0)
    assert ahead.take(5)[0].data == bytes([5]) * 100


def test_what_is_dropped_makes_room_and_stays_for_who_expects_it_again() -> None:
    ahead = ahead_of(of_size(100))
    ahead.expect([1, 2, 3, 4, 5, 6, 1])
    assert settled(ahead, 400)
    ahead.drop([1, 2, 6, 9])
    assert settled(ahead, 400), "the next has come in its place"
    assert ahead.take(1)[1] == 0, "it lay ready: one of two wishes for it is left"
    assert sorted(ahead._slots) == [3, 4, 5]
    for number in (3, 4, 5):
        ahead.take(number)
    assert settled(ahead, 0)


def test_a_panic_is_an_error_of_its_sample() -> None:
    def load(number: int) -> Loaded:
        raise SystemExit(number)  # as obstore's panics, no Exception

    with pytest.raises(ObjectError, match="Sample 3 could not be read: SystemExit"):
        ahead_of(load).take(3)
