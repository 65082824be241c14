"""Measured against predicted speed while a job trains, and what to do about a shortfall. Pure arithmetic.

After CM-DARE (Li, Walls & Guo, ICDCS 2020): predict the cluster's speed as the sum of its workers', compare with what
is measured, and name a bottleneck where the shortfall passes a threshold (theirs: 6.7 %). With one threshold and speeds
from another day's table, three near misses of theirs are false alarms; so here

    * a worker's speed is calibrated on the current run (its fewest workers, or its best window), and
    * an alarm begins above `RAISE` and ends below `CLEAR`, each held for a few windows (hysteresis).

Which bottleneck is read off the ranks' own times: one rank slower than the rest, waiting for data, all slower than
before, or else the exchange (a parameter server or a network that is saturated).
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

RAISE = 0.10
CLEAR = 0.067
"""CM-DARE's threshold: what is under it is no shortfall."""
HELD = 3
_SLOWER = 0.15
_RECENT = 5

Bottleneck = Literal["slow worker", "data", "compute", "exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One second of a job: its speed, and per rank the milliseconds for data, forward, backward, exchange."""

    at_s: float
    workers: int
    per_s: float
    """Work per second of all workers: samples, or steps where a batch has no size."""
    step_s: float = 0.0
    times_ms: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What binds, what would help, and what it would bring: speed after over speed now."""

    bottleneck: Bottleneck
    what: str
    do: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One window judged."""

    window: Window
    predicted_per_s: float | None
    shortfall: float
    alarm: bool
    advice: Advice | None = None
    """None without an alarm, and in its first windows while what binds is not clear."""


def shortfall(measured: float, workers: int, each: float) -> float:
    """1 - measured / (n sp); negative where it is faster than predicted."""
    return 1.0 - measured / (workers * each)


@dataclass
class Watch:
    """Feeds on windows; remembers what a worker of this run can do, and whether an alarm is on."""

    each: float | None = None
    """Work per second of one worker; None: learnt from this run."""
    warm_up: int = 3
    _fewest: int = 0
    _seen: int = 0
    _best: list[float] = field(default_factory=list)
    _own_ms: float | None = None
    _recent: deque[tuple[tuple[float, ...], ...]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _alarm: bool = False
    _held: int = 0
    _advice: Advice | None = None

    def judge(self, window: Window) -> Verdict:
        """This window against the sum of workers."""
        self._seen += 1
        if self._seen <= self.warm_up:
            return Verdict(window=window, predicted_per_s=None, shortfall=0.0, alarm=False)
        times = self._settled(window)
        self._calibrate(window, times)
        assert self.each is not None  # noqa: S101 - just done
        found = shortfall(window.per_s, window.workers, self.each)
        self._hold(found)
        if self._held == 1:  # something changes: times from before say nothing about it
            self._recent.clear()
            times = self._settled(window)
        if not self._alarm:
            self._advice = None
        elif self._held == 0 or self._advice is None:  # else it may be over, and there is nothing new to name
            self._advice = self._named(advise(window, times, found, self._own_ms))
        return Verdict(
            window=window,
            predicted_per_s=window.workers * self.each,
            shortfall=found,
            alarm=self._alarm,
            advice=self._advice,
        )

    def _named(self, advice: Advice) -> Advice | None:
        """What is left when no rank's times explain it waits until these can be no older than the shortfall."""
        return None if advice.bottleneck == "exchange" and len(self._recent) < _RECENT else advice

    def _settled(self, window: Window) -> tuple[tuple[float, ...], ...]:
        """Every rank's times, as the middle of a few windows: one reading is one step's, and steps differ."""
        if self._recent and len(self._recent[-1]) != len(window.times_ms):
            self._recent.clear()
        self._recent.append(window.times_ms)
        ranks = zip(*self._recent, strict=True)
        return tuple(tuple(statistics.median(part) for part in zip(*rank, strict=True)) for rank in ranks)

    def _calibrate(self, window: Window, times: tuple[tuple[float, ...], ...]) -> None:
        """A worker's speed is the best this run has shown, at its fewest workers: there little is shared."""
        if self.each is not None and not self._best:
            return  # given
        if self._fewest == 0 or window.workers < self._fewest:
            self._fewest, self._best, self._own_ms = window.workers, [], None
        if window.workers == self._fewest:
            self._best = sorted([*self._best, window.per_s / window.workers])[-2 * HELD :]
            self.each = statistics.median(self._best)
            own_ms = min((forward + backward for _, forward, backward, _ in times), default=0.0)
            self._own_ms = own_ms if not self._own_ms else min(self._own_ms, own_ms or self._own_ms)

    def _hold(self, found: float) -> None:
        """An alarm changes only after a few windows that say so."""
        changes = found > RAISE if not self._alarm else found < CLEAR
        self._held = self._held + 1 if changes else 0
        if self._held >= HELD:
            self._alarm, self._held = not self._alarm, 0


def advise(window: Window, times: Sequence[Sequence[float]], found: float, usual_ms: float | None = None) -> Advice:
    """The bottleneck by the ranks' times, and the gain of removing it.

    A suspect must explain at least half of what a step takes too long: slower compute of one rank, waiting for data,
    slower compute of all against `usual_ms`. What none of them explains is the exchange.
    """
    step_ms = 1e3 * window.step_s
    missing_ms = max(found, 0.0) * step_ms
    own_ms = [forward + backward for _, forward, backward, _ in times]
    middle_ms = statistics.median_low(own_ms) if own_ms else 0.0

    def gain(removed_ms: float) -> float:
        return step_ms / (step_ms - min(removed_ms, missing_ms)) if missing_ms < step_ms else 1.0

    def explains(excess_ms: float) -> bool:
        return missing_ms > 0 and excess_ms >= missing_ms / 2

    if len(own_ms) > 1 and explains(max(own_ms) - middle_ms) and max(own_ms) > (1 + _SLOWER) * middle_ms:
        rank = own_ms.index(max(own_ms))
        return Advice(
            bottleneck="slow worker",
            what=f"rank {rank} computes {max(own_ms):.1f} ms a step, the others {middle_ms:.1f} ms",
            do=f"replace the machine of rank {rank}, or give it a smaller share of the batch",
            gain=gain(max(own_ms) - middle_ms),
        )
    data_ms = max((rank_times[0] for rank_times in times), default=0.0)
    if explains(data_ms):
        return Advice(
            bottleneck="data",
            what=f"{data_ms:.1f} ms of a {step_ms:.1f} ms step is waiting for data",
            do="more loader workers, a cache on the node, look-ahead (stallwise data plan says which)",
            gain=gain(data_ms),
        )
    if usual_ms and explains(middle_ms - usual_ms):
        return Advice(
            bottleneck="compute",
            what=f"all ranks compute {middle_ms:.1f} ms a step, {usual_ms:.1f} ms before",
            do="see what else runs on these machines, and whether they are throttled",
            gain=gain(middle_ms - usual_ms),
        )
    return Advice(
        bottleneck="exchange",
        what="workers compute as before and do not wait for data: a parameter server or the network is saturated",
        do="with parameter servers add one; else send fewer bytes (fp16, accumulation) or use a faster network",
        gain=gain(missing_ms),
    )
