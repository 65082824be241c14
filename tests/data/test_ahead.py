"""Objects come in any order they are asked for, within the limit, and nobody waits for what nobody loads."""

import threading
import time
from collections.abc import Callable

import pytest

from stallwise.data.prefetch._ahead import PrefetchedObject, Prefetcher
from stallwise.data.prefetch._pace import FetchPace
from stallwise.errors import ObjectError
from tests.waiting import PATIENCE_S, until


def ahead_of(load: Callable[[int], PrefetchedObject], limit_bytes: int = 400, **options: float) -> Prefetcher:
    return Prefetcher(load, load, lambda _: 100, limit_bytes, FetchPace(most=8), **{"patience_s": 5.0, **options})  # type: ignore[arg-type]


def of_size(size_bytes: int) -> Callable[[int], PrefetchedObject]:
    return lambda number: PrefetchedObject(bytes([number]) * size_bytes, "store", 0.001)


def settled(ahead: Prefetcher, held_bytes: int) -> bool:
    """Whether the threads come to rest with so much in memory."""
    return until(lambda: ahead._busy == 0 and ahead._reserved_bytes == held_bytes)


def test_a_sample_drawn_twice_passes_a_full_limit() -> None:
    order = [5, 7, 5, 8, 9, 10, 11, 12, 13, 14]
    ahead = ahead_of(of_size(100))
    ahead.expect(order)
    for number in order:
        # By now all threads rest at the limit; what is asked for must wake one.
        assert settled(ahead, min(400, 100 * len(ahead._slots)))
        loaded, waited_s = ahead.take(number)
        assert loaded.data == bytes([number]) * 100
        assert waited_s < 60, "woken, not timed out"
    assert settled(ahead, 0)


def test_objects_larger_than_expected_count_in_full() -> None:
    ahead = ahead_of(of_size(1000), limit_bytes=4000)
    ahead.expect(range(30))
    time.sleep(0.3)
    assert ahead._reserved_bytes <= 4000 + 4 * 1000, "no more than were under way when their size showed"
    for number in range(30):
        ahead.take(number)
    assert settled(ahead, 0)


def test_what_is_given_up_leaves_nothing_behind() -> None:
    begun, free = threading.Barrier(5), threading.Event()

    def load(number: int) -> PrefetchedObject:
        if number < 4:
            begun.wait(PATIENCE_S)
            free.wait(PATIENCE_S)
        return of_size(100)(number)

    ahead = ahead_of(load, patience_s=0.3, hedge=False)
    ahead.expect(range(6))
    begun.wait(PATIENCE_S)
    with pytest.raises(ObjectError, match="Nothing of sample 5 has arrived"):
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
    def load(number: int) -> PrefetchedObject:
        raise SystemExit(number)  # as obstore's panics, no Exception

    with pytest.raises(ObjectError, match="Sample 3 could not be read: SystemExit"):
        ahead_of(load).take(3)
