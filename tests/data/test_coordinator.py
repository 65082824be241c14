"""The coordinator without processes: whichever job dies, lags or comes late, the others get their batches."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stallwise.data.shared._coordinator import MOST_BATCHES, BatchId, Coordinator, GiveBatch, GrantRoom, LeaseBatch
from stallwise.data.shared._worker import order_in

SIZE = 10


@dataclass
class Player:
    """A job in the play: how long a step takes it, when it comes and when it dies."""

    name: str
    step_s: float
    begins_s: float = 0.0
    dies_s: float = 1e9
    prepares: bool = True
    batches_taken: list[BatchId] = field(default_factory=list)
    state: str = "out"
    until_s: float = 0.0
    making: BatchId | None = None
    made_s: float = 0.0


class Play:
    """Virtual time; every job has one worker that takes `make_s` for a batch."""

    def __init__(
        self,
        players: list[Player],
        batches: int,
        limit: int,
        epochs: int = 1,
        make_s: float = 0.1,
        most: int = MOST_BATCHES,
    ) -> None:
        self.players = {player.name: player for player in players}
        self.batches, self.epochs, self.make_s = batches, epochs, make_s
        self.books = Coordinator(limit, patience_s=1.0, most=most)
        self.now_s, self.peak_bytes = 0.0, 0

    def run(self, until_s: float = 500.0) -> "Play":
        while self.now_s < until_s and any(p.state not in ("dead", "over") for p in self.players.values()):
            for player in self.players.values():
                self._step(player)
            self._settle()
            self.peak_bytes = max(self.peak_bytes, self.books.used_bytes)
            self.now_s += 0.05
        return self

    def _step(self, player: Player) -> None:
        books, name = self.books, player.name
        if player.state not in ("dead", "out", "over") and self.now_s >= player.dies_s:
            player.state = "dead"
            books.leave(name)
            books.leave_worker(f"w{name}")
        elif player.state == "out" and self.now_s >= player.begins_s:
            books.join(name)
            books.join_worker(f"w{name}", name)
            books.begin(name, 0, self.batches, 0, self.now_s)
            if player.prepares:
                books.request_work(f"w{name}", wait=True)
            player.state = "idle"
        if player.state == "idle" and self.now_s >= player.until_s:
            self._next(player)
        if player.making is not None and self.now_s >= player.made_s and player.state != "dead":
            books.request_room(f"w{name}", player.making, SIZE)
            player.making = None

    def _next(self, player: Player) -> None:
        number = len(player.batches_taken)
        epoch, batch = divmod(number, self.batches)
        if epoch == self.epochs:
            player.state = "over"
            self.books.leave(player.name)
            self.books.leave_worker(f"w{player.name}")
            return
        if batch == 0 and epoch:
            self.books.begin(player.name, epoch, self.batches, 0, self.now_s)
        self.books.want(player.name, (epoch, batch), self.now_s)
        player.state = "waits"

    def _settle(self) -> None:
        books = self.books
        for action in list(books.settle(self.now_s)):
            if isinstance(action, GiveBatch):
                player = self.players[action.job]
                player.batches_taken.append(action.batch_id)
                books.done(action.job, action.batch_id)
                player.state, player.until_s = "idle", self.now_s + player.step_s
            elif isinstance(action, LeaseBatch):
                player = self.players[str(action.worker)[1:]]
                assert action.batch_id is not None
                player.making, player.made_s = action.batch_id, self.now_s + self.make_s
            elif isinstance(action, GrantRoom):
                if action.is_wanted:
                    assert books.put(action.worker, action.batch_id, object(), self.now_s)
                books.request_work(action.worker, wait=True)
        books.freed.clear()

    def whole(self, name: str) -> bool:
        every = [divmod(number, self.batches) for number in range(self.epochs * self.batches)]
        return self.players[name].batches_taken == every


def test_every_batch_is_prepared_once_for_all() -> None:
    play = Play([Player(str(n), 0.1) for n in range(8)], batches=20, limit=6 * SIZE, epochs=2).run()
    assert all(play.whole(str(n)) for n in range(8))
    assert play.books.counts.prepared == 40
    assert play.books.counts.given == 8 * 40
    assert play.peak_bytes <= 6 * SIZE
    assert not play.books.batches
    assert not play.books.leases


def test_a_slower_job_is_left_behind_and_still_gets_everything() -> None:
    fast = [Player(str(n), 0.1) for n in range(3)]
    alone = Play([Player(str(n), 0.1) for n in range(3)], batches=60, limit=5 * SIZE).run()
    play = Play([*fast, Player("slow", 2.0)], batches=60, limit=5 * SIZE).run()
    assert all(play.whole(str(n)) for n in (0, 1, 2, "slow"))
    assert play.books.counts.dropped > 0
    assert play.peak_bytes <= 5 * SIZE
    done_s = [max(p.until_s for p in one.players.values() if p.name != "slow") for one in (play, alone)]
    assert done_s[0] <= done_s[1] + 2 * play.books.patience_s, "one patience, not one per batch"


def test_a_late_job_gets_everything_and_holds_nobody_up() -> None:
    play = Play([Player("a", 0.2), Player("b", 0.2), Player("late", 0.2, begins_s=5.0)], 50, limit=4 * SIZE).run()
    assert all(play.whole(name) for name in ("a", "b", "late"))
    assert play.players["a"].until_s < 50 * 0.25 + 3
    assert play.peak_bytes <= 4 * SIZE


def test_a_worker_that_shows_nothing_is_not_waited_for() -> None:
    """Its job was stopped, not killed: the lease goes to another."""
    books = Coordinator(10 * SIZE, patience_s=1.0)
    for name in "ab":
        books.join(name)
        books.join_worker(f"w{name}", name)
        books.begin(name, 0, 3, 0, 0.0)
    books.request_work("wa", wait=True)
    assert [a.batch_id for a in books.settle(0.0) if isinstance(a, LeaseBatch)] == [(0, 0)]
    books.request_work("wb", wait=True)
    assert list(books.settle(0.1)) == [], "nobody knows yet how large a batch is: one at a time"
    books.want("b", (0, 0), 0.1)
    assert list(books.settle(3.0)) == []
    assert list(books.settle(6.0)) == [LeaseBatch("wb", (0, 0))]
    books.request_room("wb", (0, 0), SIZE)
    assert list(books.settle(6.1)) == [GrantRoom("wb", (0, 0), is_wanted=True)]
    assert books.put("wb", (0, 0), "data", 6.2)
    assert [a.job for a in books.settle(6.3) if isinstance(a, GiveBatch)] == ["b"]
    books.request_room("wa", (0, 0), SIZE)
    assert GrantRoom("wa", (0, 0), is_wanted=False) in list(books.settle(7.0)), "it wakes up: too late"


def _two(limit: int = 10 * SIZE, **options: int) -> Coordinator:
    books = Coordinator(limit, patience_s=1.0, **options)
    for name in "ab":
        books.join(name)
        books.join_worker(f"w{name}", name)
        books.begin(name, 0, 3, 0, 0.0)
    return books


def test_both_who_have_a_batch_ready_are_answered() -> None:
    """The first was given up too early; its request must not vanish under the second's."""
    books = _two()
    books.request_work("wa", wait=True)
    books.want("b", (0, 0), 0.0)
    assert list(books.settle(0.0)) == [LeaseBatch("wa", (0, 0))]
    books.request_work("wb", wait=True)
    assert list(books.settle(6.0)) == [LeaseBatch("wb", (0, 0))]
    books.request_room("wa", (0, 0), SIZE)
    books.request_room("wb", (0, 0), SIZE)
    grants = [action for action in books.settle(6.1) if isinstance(action, GrantRoom)]
    assert sorted((str(grant.worker), grant.is_wanted) for grant in grants) == [("wa", False), ("wb", True)]


def test_a_job_that_breaks_an_epoch_off_leaves_nothing_staged_for_it() -> None:
    books = _two()
    for number in range(2):
        books.request_work("wa", wait=True)
        assert list(books.settle(0.1)) == [LeaseBatch("wa", (0, number))]
        books.request_room("wa", (0, number), SIZE)
        assert list(books.settle(0.2)) == [GrantRoom("wa", (0, number), is_wanted=True)]
        assert books.put("wa", (0, number), "data", 0.3)
        books.want("a", (0, number), 0.4)
        assert [action.job for action in books.settle(0.5) if isinstance(action, GiveBatch)] == ["a"]
        books.done("a", (0, number))
    assert sorted(books.batches) == [(0, 0), (0, 1)], "both wait for b"
    books.begin("b", 1, 3, 0, 1.0)
    assert books.batches == {}, "b has gone on to the next epoch: nobody is left who wants them"
    books.begin("b", 0, 3, 2, 1.0)
    books.join("late")
    books.begin("late", 0, 3, 2, 1.1)
    assert books.used_bytes == 0


def test_however_small_batches_are_only_so_many_are_staged() -> None:
    play = Play([Player("fast", 0.05), Player("slow", 0.4)], batches=60, limit=10_000 * SIZE, most=8)
    most = 0
    while play.now_s < 200 and not (play.whole("fast") and play.whole("slow")):
        play.run(play.now_s + 0.05)
        most = max(most, len(play.books.batches))
    assert play.whole("fast")
    assert play.whole("slow")
    assert 4 <= most <= 8


def test_an_error_reaches_every_job() -> None:
    books = Coordinator(10 * SIZE)
    for name in "ab":
        books.join(name)
        books.begin(name, 0, 1, 0, 0.0)
        books.want(name, (0, 0), 0.0)
    books.join_worker("w", "a")
    books.request_work("w", wait=True)
    list(books.settle(0.0))
    books.fail("w", (0, 0), "ValueError", 0.1)
    assert {(a.job, a.batch.error) for a in books.settle(0.2) if isinstance(a, GiveBatch)} == {
        ("a", "ValueError"),
        ("b", "ValueError"),
    }


@given(st.integers(0, 10**6))
def test_whatever_happens_to_some_the_others_get_theirs(seed: int) -> None:
    """Random paces, deaths and arrivals: survivors get every batch once and in order, and the limit holds."""
    dice = random.Random(seed)
    players = [
        Player(
            str(n),
            step_s=dice.choice((0.05, 0.1, 0.3, 1.5)),
            begins_s=dice.choice((0.0, 0.0, 3.0)),
            dies_s=dice.choice((1e9, 1e9, dice.uniform(0, 8))),
        )
        for n in range(dice.randint(2, 5))
    ]
    players.append(Player("sure", 0.1))
    limit = dice.randint(2, 8) * SIZE
    play = Play(players, batches=dice.randint(1, 15), limit=limit, epochs=dice.randint(1, 3)).run()
    for player in players:
        if player.dies_s > 1e8:
            assert play.whole(player.name), f"{player} stands still"
    assert play.peak_bytes <= limit
    assert not play.books.batches


def test_workers_read_an_order_that_they_share() -> None:
    """A descriptor that was sent has one position for all who have it: read by turns, orders came out empty."""
    order = np.arange(200_000, dtype=np.int64)
    file = os.memfd_create("order")
    os.write(file, order.tobytes())
    with ThreadPoolExecutor(4) as pool:
        orders = list(pool.map(lambda _: order_in(os.dup(file)), range(200)))
    os.close(file)
    assert all(np.array_equal(one, order) for one in orders)


def test_a_stopped_worker_is_waited_for_once() -> None:
    books = Coordinator(100 * SIZE, patience_s=1.0)
    for job in ("a", "b"):
        books.join(job)
        books.join_worker(f"w{job}", job)
        books.begin(job, 0, 20, 0, 0.0)
    books.request_work("wa", wait=True)  # how large a batch is, it shows
    assert list(books.settle(0.0)) == [LeaseBatch("wa", (0, 0))]
    books.request_room("wa", (0, 0), SIZE)
    assert list(books.settle(0.0)) == [GrantRoom("wa", (0, 0), is_wanted=True)]
    assert books.put("wa", (0, 0), object(), 0.0)
    for batch_id in ((0, 1), (0, 2)):
        books.request_work("wa", wait=True)
        assert list(books.settle(0.0)) == [LeaseBatch("wa", batch_id)]
    books.want("b", (0, 1), 0.1)
    books.request_work("wb", wait=True)
    assert list(books.settle(6.0)) == [LeaseBatch("wb", (0, 1))]
    books.request_work("wb", wait=True)
    assert list(books.settle(6.0)) == [LeaseBatch("wb", (0, 2))], "it shows nothing of the other either"
