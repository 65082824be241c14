"""Where the time of a step goes on each rank, and an alarm when a job is slower than its workers should make it.

`StepTimer` measures in the ranks, cheaply and all the time. Waiting for data is measured around the loader. Forward,
backward and exchange are DDP's own timers (CUDA events on a GPU), which it reads every hundred steps; with long steps
that is too rare, so here it is about once a second. Ranks exchange the times with the step's agreement; rank 0 appends
one line a second to the event log.

`ThroughputWatch` judges them (`stallwise spot watch`), after CM-DARE (Li, Walls & Guo, ICDCS 2020):
predict the cluster's speed as the sum of its workers', compare it with the measured one, and name a bottleneck where
the shortfall passes a threshold (theirs: 6.7 %). With one threshold and speeds from another day's table, three near
misses of theirs are false alarms; so here

    * a worker's speed is calibrated on the current run (its fewest workers, or its best window), and
    * an alarm begins above `RAISE` and ends below `CLEAR`, each held for a few windows (hysteresis).

Which bottleneck is read off the ranks' own times: one rank slower than the rest, waiting for data, all slower than
before, or else the exchange (a parameter server or a network that is saturated).
"""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from stallwise.elastic.protocol import EventLog

if TYPE_CHECKING:  # watching a job needs no torch
    from torch import nn

    from stallwise.elastic._rendezvous import Consensus

RAISE = 0.10
CLEAR = 0.067
"""CM-DARE's threshold for a shortfall."""
HOLD_WINDOWS = 3
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


class _PaceEvent(msgspec.Struct, frozen=True):
    """What rank 0 writes once a second, as far as a window needs it."""

    at: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    world: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    step_s: Annotated[float, msgspec.Meta(ge=1e-9, le=1e9)]
    times_ms: list[Annotated[list[Annotated[float, msgspec.Meta(ge=0, le=1e12)]], msgspec.Meta(min_length=4)]]
    samples_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e15)] | None = None


def window_of(event: dict[str, Any]) -> Window | None:
    """Return the window that an event of the log describes; None for other events, and for what cannot be."""
    try:
        pace = msgspec.convert(event, _PaceEvent)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None
    per_s = pace.samples_per_s or pace.world / pace.step_s
    times = tuple(tuple(part[:4]) for part in pace.times_ms)
    if event.get("kind") != "pace" or not all(map(math.isfinite, (pace.at, per_s, *itertools.chain(*times)))):
        return None
    return Window(at_s=pace.at, workers=pace.world, per_s=per_s, step_s=pace.step_s, times_ms=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckAdvice:
    """The bottleneck, what would remove it, and the gain: speed after over speed now."""

    bottleneck: Bottleneck
    what: str
    do: str
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputCheck:
    """Measured against predicted speed in one window."""

    window: Window
    predicted_per_s: float | None
    shortfall: float
    alarm: bool
    advice: BottleneckAdvice | None = None
    """None without an alarm, and in its first windows while the bottleneck is not clear."""


def shortfall(measured: float, workers: int, each: float) -> float:
    """Return 1 - measured / (workers each); negative where it is faster than predicted."""
    return 1.0 - measured / (workers * each)


@dataclass
class ThroughputWatch:
    """Checks windows one by one; keeps the calibrated speed of a worker and whether an alarm is on."""

    each: float | None = None
    """Work per second of one worker; None: calibrated on this job."""
    warm_up: int = 3
    _fewest: int = 0
    _windows: int = 0
    _best: list[float] = field(default_factory=list)
    _own_ms: float | None = None
    _recent: deque[tuple[tuple[float, ...], ...]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _alarm: bool = False
    _held_windows: int = 0
    _advice: BottleneckAdvice | None = None

    def judge(self, window: Window) -> ThroughputCheck:
        """Compare this window with the sum of its workers' speeds."""
        self._windows += 1
        if self._windows <= self.warm_up:
            return ThroughputCheck(window=window, predicted_per_s=None, shortfall=0.0, alarm=False)
        times = self._settled(window)
        self._calibrate(window, times)
        assert self.each is not None  # noqa: S101 - just done
        missing = shortfall(window.per_s, window.workers, self.each)
        self._hold(missing)
        if self._held_windows == 1:  # something changes: times from before say nothing about it
            self._recent.clear()
            times = self._settled(window)
        if not self._alarm:
            self._advice = None
        elif self._held_windows == 0 or self._advice is None:  # else it may be over, and there is no new advice
            self._advice = self._confirmed(advise(window, times, missing, self._own_ms))
        return ThroughputCheck(
            window=window,
            predicted_per_s=window.workers * self.each,
            shortfall=missing,
            alarm=self._alarm,
            advice=self._advice,
        )

    def _confirmed(self, advice: BottleneckAdvice) -> BottleneckAdvice | None:
        """Withhold "exchange", which no rank's times explain, until these cannot be older than the shortfall."""
        return None if advice.bottleneck == "exchange" and len(self._recent) < _RECENT else advice

    def _settled(self, window: Window) -> tuple[tuple[float, ...], ...]:
        """Return every rank's times as medians of a few windows: one reading is one step's, and steps differ."""
        if self._recent and len(self._recent[-1]) != len(window.times_ms):
            self._recent.clear()
        self._recent.append(window.times_ms)
        ranks = zip(*self._recent, strict=True)
        return tuple(tuple(statistics.median(part) for part in zip(*rank, strict=True)) for rank in ranks)

    def _calibrate(self, window: Window, times: tuple[tuple[float, ...], ...]) -> None:
        """Take a worker's speed as the best so far with the fewest workers, where little is shared."""
        if self.each is not None and not self._best:
            return  # set by the caller
        if self._fewest == 0 or window.workers < self._fewest:
            self._fewest, self._best, self._own_ms = window.workers, [], None
        if window.workers == self._fewest:
            self._best = sorted([*self._best, window.per_s / window.workers])[-2 * HOLD_WINDOWS :]
            self.each = statistics.median(self._best)
            own_ms = min((forward + backward for _, forward, backward, _ in times), default=0.0)
            self._own_ms = own_ms if not self._own_ms else min(self._own_ms, own_ms or self._own_ms)

    def _hold(self, missing: float) -> None:
        """Switch the alarm only after a few windows in a row beyond its threshold."""
        changes = missing > RAISE if not self._alarm else missing < CLEAR
        self._held_windows = self._held_windows + 1 if changes else 0
        if self._held_windows >= HOLD_WINDOWS:
            self._alarm, self._held_windows = not self._alarm, 0


def advise(
    window: Window, times: Sequence[Sequence[float]], missing: float, usual_ms: float | None = None
) -> BottleneckAdvice:
    """Return the bottleneck by the ranks' times, and the gain of removing it.

    A cause must explain at least half of a step's excess: slower compute of one rank, waiting for data, slower compute
    of all against `usual_ms`. What none of them explains is the exchange.
    """
    step_ms = 1e3 * window.step_s
    missing_ms = max(missing, 0.0) * step_ms
    own_ms = [forward + backward for _, forward, backward, _ in times]
    middle_ms = statistics.median_low(own_ms) if own_ms else 0.0

    def gain(removed_ms: float) -> float:
        return step_ms / (step_ms - min(removed_ms, missing_ms)) if missing_ms < step_ms else 1.0

    def explains(excess_ms: float) -> bool:
        return missing_ms > 0 and excess_ms >= missing_ms / 2

    if len(own_ms) > 1 and explains(max(own_ms) - middle_ms) and max(own_ms) > (1 + _SLOWER) * middle_ms:
        rank = own_ms.index(max(own_ms))
        return BottleneckAdvice(
            bottleneck="slow worker",
            what=f"rank {rank} computes {max(own_ms):.1f} ms a step, the others {middle_ms:.1f} ms",
            do=f"replace the machine of rank {rank}, or give it a smaller share of the batch",
            gain=gain(max(own_ms) - middle_ms),
        )
    data_ms = max((rank_times[0] for rank_times in times), default=0.0)
    if explains(data_ms):
        return BottleneckAdvice(
            bottleneck="data",
            what=f"{data_ms:.1f} ms of a {step_ms:.1f} ms step is waiting for data",
            do="more loader workers, a cache on the node, look-ahead (stallwise data plan says which)",
            gain=gain(data_ms),
        )
    if usual_ms and explains(middle_ms - usual_ms):
        return BottleneckAdvice(
            bottleneck="compute",
            what=f"all ranks compute {middle_ms:.1f} ms a step, {usual_ms:.1f} ms before",
            do="see what else runs on these machines, and whether they are throttled",
            gain=gain(middle_ms - usual_ms),
        )
    return BottleneckAdvice(
        bottleneck="exchange",
        what="workers compute as before and do not wait for data: a parameter server or the network is saturated",
        do="with parameter servers add one; else send fewer bytes (fp16, accumulation) or use a faster network",
        gain=gain(missing_ms),
    )


_EVERY_S = 1.0
_READ_S = 0.25
"""DDP's readings are up to a second old already; reading them costs microseconds."""
_NS_PER_MS = 1e6
_DDP_EVERY = 100


class StepTimer:
    """One rank's times: data, forward, backward, exchange; means since the last line of the log, in milliseconds."""

    def __init__(self, model: "nn.Module") -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._begun_s = self._data_s = 0.0
        self._steps = 0
        self._data_ms = 0.0
        self._read_s = 0.0
        self._ddp_ms = (0.0, 0.0, 0.0)
        self._written = (time.monotonic(), 0, 0)
        self._every = _DDP_EVERY

    @property
    def times_ms(self) -> tuple[float, float, float, float]:
        """Times in the order of the agreement's slots."""
        now_s = time.monotonic()
        if now_s - self._read_s >= _READ_S:
            self._read_s, self._ddp_ms = now_s, self._ddp_times_ms()
        return self._data_ms, *self._ddp_ms

    def _ddp_times_ms(self) -> tuple[float, float, float]:
        timings: dict[str, Any] = self._ddp._get_ddp_logging_data() if self._ddp else {}  # type: ignore[no-untyped-call]

        def milliseconds(name: str) -> float:
            return max(0.0, float(timings.get(name, 0)) / _NS_PER_MS)

        exchange = milliseconds("backward_comm_time") - milliseconds("backward_compute_comm_overlap_time")
        return milliseconds("forward_compute_time"), milliseconds("backward_compute_time"), max(0.0, exchange)

    def _sample(self, every: int) -> None:
        """Set how often DDP reads its events, for which it waits for the GPU: no more often than needed."""
        every = max(1, min(every, _DDP_EVERY))
        if self._ddp is not None and not self._every / 2 < every < self._every * 2:
            self._ddp._set_ddp_runtime_logging_sample_rate(every)  # type: ignore[no-untyped-call]
            self._every = every

    def begin(self) -> None:
        """Start timing a fetch."""
        self._begun_s = time.perf_counter()

    def fetched(self) -> None:
        """End timing a fetch."""
        waited_ms = 1e3 * (time.perf_counter() - self._begun_s)
        self._data_ms = waited_ms if self._steps == 0 else 0.9 * self._data_ms + 0.1 * waited_ms
        self._steps += 1

    def stepped(self, consensus: "Consensus", events: EventLog, step: int, world: int, samples: int) -> None:
        """Log the times of all ranks once a second."""
        now_s = time.monotonic()
        then_s, steps, trained = self._written
        if steps == 0:
            self._written = now_s, step, samples
        elif now_s - then_s >= _EVERY_S and consensus.times_ms:
            step_s = (now_s - then_s) / max(1, step - steps)
            rate = (samples - trained) / (now_s - then_s)
            self._sample(round(_EVERY_S / step_s))
            times_ms = consensus.times_ms
            events.write(
                "pace", step=step, world=world, step_s=step_s, samples=samples, samples_per_s=rate, times_ms=times_ms
            )
            self._written = now_s, step, samples
