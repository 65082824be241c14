"""Which phase runs when: rounds of blocks, the same on every rank.

A *round* holds one block of every phase, so that drift hits all phases alike. A *segment* is a stretch of steps
under one phase; its first steps live on what the phase before left over (full queues, work still on the GPU)
and are not kept. All ranks follow the same segments by counting steps. What changes while the job runs (the
block length, whether another round follows) is decided by rank 0 and read by the others at the same step.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import distributed as dist

from stallwise.record.rank.environment import RecordSettings, rank_place
from stallwise.run import phases
from stallwise.run.manifest import NO_LOADER
from stallwise.sentences import Sentence


@dataclass(frozen=True, slots=True)
class PhaseSegment:
    """`settle + steps` steps under one phase; only the last `steps` are kept."""

    phase: str
    settle: int
    steps: int


class Round(msgspec.Struct, frozen=True):
    """What rank 0 announces before each round; no phases means that the profile ends here."""

    phases: tuple[str, ...]
    block_steps: int
    settle_steps: int
    queue_steps: int
    loader_steps: int = 0
    """Length of a block that uses the real loader, where it differs: whole epochs where epochs are short."""

    def segments(self) -> tuple[PhaseSegment, ...]:
        """The stretches of this round in order.

        A phase that uses the real loader follows one that did not, so the batches already queued must be used up
        before its steps count.
        """
        return tuple(
            PhaseSegment(
                phase,
                self.settle_steps + (self.queue_steps if phase in phases.REAL_LOADER else 0),
                self.loader_steps or self.block_steps if phase in phases.REAL_LOADER else self.block_steps,
            )
            for phase in self.phases
        )


def block_steps(step_s: float, block_s: float, quantum: int) -> int:
    """The length of a block: at least `block_s`, and a whole multiple of `quantum` (loader workers × depth).

    Loaders deliver in bursts of that size; a block that cuts a burst measures luck.
    """
    steps = max(1, math.ceil(block_s / step_s)) if step_s > 0 else 1
    return math.ceil(max(steps, 4) / quantum) * quantum


def phases_for(
    *, has_loader: bool, on_device: bool, world_size: int, nodes: int, has_exchange: bool
) -> tuple[str, ...]:
    """The phases that mean something for this job, in the order of the ladder."""
    local = world_size // nodes
    return (
        phases.AS_IS,
        *((phases.HOST,) if has_loader else ()),
        *((phases.DEVICE,) if has_loader and on_device else ()),
        *((phases.NODE,) if has_exchange and nodes > 1 and local > 1 else ()),
        *((phases.ALONE,) if has_exchange and world_size > 1 else ()),
    )


LEAD_STEPS = 1
"""Watched steps before and after a window on a GPU: its bounds are where the device begins a step's work."""

_END = Round(phases=(), block_steps=0, settle_steps=0, queue_steps=0)
_COLD_ROUNDS = 4
_SETTLE_STEPS = 2
# Layer times are medians over steps; hundreds of marks a step are kept until the phase ends.
_LAYER_STEPS = (8, 24)
_SHORT_EPOCH = 6  # queues
# Above the 90 % of a verdict: it is looked at after every round, and each look is another chance to be wrong.
_CERTAIN = 0.98
_LEAST_LAYER_STEPS = 4
_LAYERS_SHARE = 0.2
"""The fraction of the time budget that the layers phase may take, where steps are long."""
_TRACE_STEPS = 3
_BRIEF_SHARE = 0.05
"""The fraction of the time budget of a brief profile that a phase may take which tells no stalls apart."""
_NOISE_STEPS = (6, 12)
_OVERTIME, _OVERTIME_S = 0.1, 5.0
"""What may follow when the time budget is spent: this fraction of it, or so many seconds."""
# Windows of the observe phase: few on a GPU, where each costs a second and says much; where the stack is all there is,
# and nothing can be ablated, one a round.
_WINDOWS = 3
_SAMPLED_WINDOWS = 8
_WINDOW_S = 0.3
_WINDOW_STEPS = (3, 20)
_SAMPLED_S = 1.0
_SAMPLED_STEPS = 4


@dataclass(frozen=True, slots=True)
class World:
    """The distributed job as this rank sees it."""

    rank: int
    size: int
    local_size: int

    @property
    def nodes(self) -> int:
        """Machines in the job; ranks per machine are taken to be equal, as torchrun makes them."""
        return max(1, self.size // self.local_size)


def this_world() -> World:
    """Rank and sizes: from the process group once there is one, before that from the launcher's variables."""
    place = rank_place()
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
        return World(dist.get_rank(), size, place.local_size or size)
    return World(place.rank, place.size, place.local_size or place.size)


class PhaseScheduler:
    """Decides which round comes next: on rank 0 from what was measured, on other ranks by reading that decision.

    Rounds follow each other until the intervals are tight or a budget is spent.
    """

    def __init__(self, settings: RecordSettings) -> None:
        self.settings = settings
        self.world = this_world()
        self.rounds = 0
        self.phases: tuple[str, ...] = (phases.AS_IS,)
        self.notes: list[Sentence] = []
        self.reads_files: Callable[[], bool] = lambda: False
        self.ended_because = ""
        self.means: dict[str, dict[int, float]] = {}  # phase -> block -> mean step
        self._open: dict[str, list[float]] = {}
        self._warmup: list[float] = []
        self._blocks: dict[str, int] = {}
        self._workers_steps = 0.0
        self._queue_steps = 0.0
        self._epoch_steps: float | None = None
        self._began_s = time.monotonic()
        self._steps = 0
        self._cold_rounds = 0
        self._windows = 0  # of the observe phase, so far
        self._most_windows = _WINDOWS
        self._on_device = False
        self._has_noise = False
        self._once: set[str] = set()  # phases that run one block only, and have

    def describe(
        self,
        *,
        has_loader: bool,
        on_device: bool,
        has_exchange: bool,
        can_split: bool,
        workers_steps: float,
        queue_steps: float,
        epoch_steps: float | None = None,
        has_noise: bool = False,
    ) -> None:
        """Choose the phases from what warm-up showed of the job."""
        self.world = this_world()
        self._on_device, self._has_noise = on_device, has_noise
        self._most_windows = _WINDOWS if has_loader or on_device else _SAMPLED_WINDOWS
        self._began_s = time.monotonic()
        self._workers_steps, self._queue_steps, self._epoch_steps = workers_steps, queue_steps, epoch_steps
        if self.settings.light:
            return
        self.phases = phases_for(
            has_loader=has_loader,
            on_device=on_device,
            world_size=self.world.size,
            nodes=self.world.nodes if can_split else 1,
            has_exchange=has_exchange,
        )
        if not has_loader:
            self.notes.append(
                Sentence(
                    "phase.no-loader",
                    f"{NO_LOADER}, so what the step waits for is observed, not ablated. Wrap the loop's iterable in "
                    "stallwise.batches(...) to have its stalls ablated.",
                )
            )
        if self.world.size > 1 and not has_exchange:
            self.notes.append(
                Sentence(
                    "phase.no-exchange",
                    "No DistributedDataParallel or FSDP2 model was seen. Collectives that the script calls itself are "
                    "timed; any other exchange between ranks is part of compute.",
                )
            )
        if has_exchange and not can_split and self.world.nodes > 1:
            self.notes.append(
                Sentence(
                    "phase.own-hook",
                    "The script has a communication hook of its own, so traffic inside a node and between nodes "
                    "cannot be told apart; all of it is shown as network.",
                )
            )

    def add(self, phase: str, duration_s: float, *, kept: bool) -> None:
        """Count a step that took `duration_s` seconds; `kept` steps enter their block's mean."""
        self._steps += 1
        if phase == phases.WARMUP:
            self._warmup.append(duration_s)
        elif kept:
            self._open.setdefault(phase, []).append(duration_s)

    def block(self, phase: str) -> int:
        """The number of the block that is being measured."""
        return self._blocks.get(phase, 0)

    def close_block(self, phase: str) -> None:
        """Keep the mean of a complete block."""
        number = self.block(phase)
        self._blocks[phase] = number + 1
        durations = self._open.pop(phase, [])
        if durations:
            self.means.setdefault(phase, {})[number] = sum(durations) / len(durations)

    def next_round(self) -> Round:
        """The next round, the same on every rank: rank 0 decides and announces it, the others read it."""
        number, self.rounds = self.rounds, self.rounds + 1
        # Light mode must not make ranks wait for each other, nor assume that they take the same steps.
        store = _store() if self.world.size > 1 and not self.settings.light else None
        key = f"stallwise/round/{number}"
        if store is not None and self.world.rank != 0:
            return msgspec.json.decode(store.get(key), type=Round)
        round_ = self._decide()
        if store is not None:
            store.set(key, msgspec.json.encode(round_))
        return round_

    def progress(self) -> dict[str, Any]:
        """Round, steps and elapsed seconds so far."""
        return {"round": self.rounds, "steps": self._steps, "elapsed_s": time.monotonic() - self._began_s}

    def _decide(self) -> Round:
        if self.settings.light:
            return self._round((phases.AS_IS,))
        full = min((len(self.means.get(phase, ())) for phase in self.phases), default=0)
        if full and phases.LAYERS not in self._once:
            # Early: a script that ends soon must still leave what predictions are made from.
            layers = self._single(phases.LAYERS)
            if self._allows(layers):
                return layers
        if full and self._has_noise and phases.NOISE not in self._once and not self._is_brief:
            self._once.add(phases.NOISE)
            few, many = _NOISE_STEPS
            steps = many if self._affords(_SETTLE_STEPS + many) else few
            if self._affords(_SETTLE_STEPS + steps):
                return Round(phases=(phases.NOISE,), block_steps=steps, settle_steps=_SETTLE_STEPS, queue_steps=0)
        if self._windows < min(full, self._most_windows):
            self._windows += 1
            window = self._observed()
            if self._allows(window):
                return window
        if not self.ended_because:
            reason = self._end_reason(full)
            if reason is None:
                return self._round(self.phases)
            self.ended_because = reason
        if phases.TRACE not in self._once and self._affords(_SETTLE_STEPS + self._queue_steps + _TRACE_STEPS):
            trace = self._single(phases.TRACE)
            if self._allows(trace):
                return trace
        if self._has_cold_round():
            self._cold_rounds += 1
            return self._round((phases.COLD,))
        return _END

    def _affords(self, steps: float) -> bool:
        """Whether so many steps after the budget are few enough; where steps are long they are not."""
        return steps * self.step_s() <= max(_OVERTIME_S, _OVERTIME * self.settings.max_s)

    @property
    def _is_brief(self) -> bool:
        return self.settings.brief and self.world.size == 1

    def _allows(self, extra: Round) -> bool:
        """Whether a phase that tells no stalls apart is short enough for a brief profile."""
        steps = extra.settle_steps + extra.queue_steps + extra.block_steps
        return not self._is_brief or steps * self.step_s() <= _BRIEF_SHARE * self.settings.max_s

    def _has_cold_round(self) -> bool:
        affords = self._affords(_SETTLE_STEPS + 2 * self._queue_steps)
        return self.settings.cold and affords and self._cold_rounds < _COLD_ROUNDS and self.reads_files()

    def _observed(self) -> Round:
        """One window: on a GPU short, because the profiler's events are many, with a step more at either end."""
        if self._on_device:
            few, many = _WINDOW_STEPS
            steps = min(max(math.ceil(_WINDOW_S / self.step_s()), few), many) + 2 * LEAD_STEPS
        else:
            steps = max(math.ceil(_SAMPLED_S / self.step_s()), _SAMPLED_STEPS)
        return Round(phases=(phases.OBSERVE,), block_steps=steps, settle_steps=_SETTLE_STEPS, queue_steps=0)

    def _single(self, phase: str) -> Round:
        """One short block of a phase that runs once."""
        self._once.add(phase)
        few, many = _LAYER_STEPS
        few = min(few, max(_LEAST_LAYER_STEPS, int(_LAYERS_SHARE * self.settings.max_s / self.step_s())))
        steps = math.ceil(self.settings.block_s / self.step_s()) if phase == phases.LAYERS else _TRACE_STEPS
        return Round(
            phases=(phase,),
            block_steps=min(max(steps, few), many) if phase == phases.LAYERS else steps,
            settle_steps=_SETTLE_STEPS,
            queue_steps=math.ceil(self._queue_steps),
        )

    def step_s(self) -> float:
        """Seconds of a step so far: of whole blocks, else of the later half of warm-up."""
        durations_s = list(self.means.get(phases.AS_IS, {}).values()) or self._warmup[len(self._warmup) // 2 :]
        return statistics.median(durations_s) if durations_s else self.settings.block_s

    def _end_reason(self, rounds: int) -> str | None:
        """Why no further round is needed, or None."""
        # Not before the first round: on a machine that just stood still nothing would be measured at all.
        if self.rounds > 1 and time.monotonic() - self._began_s >= self.settings.max_s:
            return "the time budget was spent"
        if self.settings.max_steps is not None and self._steps >= self.settings.max_steps:
            return "the step budget was spent"
        if rounds >= self.settings.min_rounds and self._tight():
            return "the intervals are tight"
        if self.settings.until_certain and rounds >= self.settings.min_rounds and self._certain():
            return "the bottleneck is certain"
        return None

    def _tight(self) -> bool:
        from stallwise.model.statistics.intervals import median_of_block_means, paired_difference

        ladder = [self.means[phase] for phase in self.phases]
        step = median_of_block_means(list(ladder[0].values()))
        widths = [step.high - step.low] if len(ladder) == 1 else []
        for upper, lower in itertools.pairwise(ladder):
            rounds = sorted(upper.keys() & lower.keys())
            difference = paired_difference([lower[r] for r in rounds], [upper[r] for r in rounds])
            widths.append(difference.high - difference.low)
        return max(widths) / 2 <= self.settings.tightness * step.value

    def _certain(self) -> bool:
        """Whether one stall between neighbouring phases is the largest for certain, or all of them are small."""
        import numpy as np

        from stallwise.model.statistics.stalls import SMALL, WORTH_IT, drawn_stalls

        ladder = [self.means[phase] for phase in self.phases]
        drawn = drawn_stalls(ladder)
        if drawn is None:
            return False
        step_s = statistics.median(ladder[0].values())
        if np.quantile(drawn.max(axis=0), _CERTAIN) <= SMALL * step_s:
            return True
        worth_it = drawn.max(axis=0) >= WORTH_IT * step_s
        wins = [float(np.mean((drawn.argmax(axis=0) == number) & worth_it)) for number in range(len(drawn))]
        return max(wins) >= _CERTAIN

    def _round(self, phases: tuple[str, ...]) -> Round:
        step_s = self.step_s()
        quantum = max(1, round(max(self._queue_steps, self._workers_steps)))
        if quantum * step_s > 4 * self.settings.block_s:
            quantum = max(1, round(self._workers_steps))
        steps = block_steps(step_s, self.settings.block_s, quantum)
        return Round(
            phases=phases,
            block_steps=steps,
            loader_steps=self._whole_epochs(steps),
            settle_steps=0 if self.settings.light else _SETTLE_STEPS,
            queue_steps=0 if self.settings.light else math.ceil(self._queue_steps),
        )

    def _whole_epochs(self, steps: int) -> int:
        """The steps of a block in whole epochs, where the start of an epoch is a good part of it; else `steps`.

        The first steps of an epoch live on the queue that starting workers fill. Blocks that begin anywhere in a short
        epoch would keep few steps, and other ones each time.
        """
        if self._epoch_steps is None or self._epoch_steps > _SHORT_EPOCH * max(1.0, self._queue_steps):
            return steps
        return math.ceil(math.ceil(steps / self._epoch_steps) * self._epoch_steps)


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
