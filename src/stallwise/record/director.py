"""Decides which round comes next: on rank 0 from what was measured, on the other ranks by reading that decision."""

import itertools
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import distributed as dist

from stallwise.record import plan
from stallwise.record.place import place
from stallwise.record.settings import Settings

_END = plan.Round(phases=(), block_steps=0, settle_steps=0, queue_steps=0)
_COLD_ROUNDS = 4
_SETTLE_STEPS = 2
# Layer times are medians over steps; hundreds of marks a step are kept until the phase ends.
_LAYER_STEPS = (8, 24)
_TRACE_STEPS = 3


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
    told = place()
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
        return World(dist.get_rank(), size, told.local_size or size)
    return World(told.rank, told.size, told.local_size or told.size)


class Director:
    """Keeps block means, and plans rounds until the intervals are tight or a budget is spent."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.world = this_world()
        self.rounds = 0
        self.phases: tuple[str, ...] = (plan.AS_IS,)
        self.notes: list[str] = []
        self.reads_files: Callable[[], bool] = lambda: False
        self.ended_because = ""
        self.means: dict[str, dict[int, float]] = {}  # phase -> block -> mean step
        self._open: dict[str, list[float]] = {}
        self._warmup: list[float] = []
        self._blocks: dict[str, int] = {}
        self._workers_steps = 0.0
        self._queue_steps = 0.0
        self._began_s = time.monotonic()
        self._steps = 0
        self._cold_rounds = 0
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
    ) -> None:
        """What warm-up showed of the job; decides which phases it gets."""
        self.world = this_world()
        self._began_s = time.monotonic()
        self._workers_steps, self._queue_steps = workers_steps, queue_steps
        if self.settings.light:
            return
        self.phases = plan.phases_for(
            has_loader=has_loader,
            on_device=on_device,
            world_size=self.world.size,
            nodes=self.world.nodes if can_split else 1,
            has_exchange=has_exchange,
        )
        if not has_loader:
            self.notes.append(
                "No DataLoader was seen, so fetch and prep are unknown. Wrap the loop's iterable in "
                "stallwise.batches(...) to have them measured."
            )
        if self.world.size > 1 and not has_exchange:
            self.notes.append(
                "No DistributedDataParallel or FSDP2 model was seen. Collectives that the script calls itself are "
                "timed; any other exchange between ranks is part of compute."
            )
        if has_exchange and not can_split and self.world.nodes > 1:
            self.notes.append(
                "The script has a communication hook of its own, so traffic inside a node and between nodes "
                "cannot be told apart; all of it is shown as network."
            )

    def add(self, phase: str, duration_s: float, *, kept: bool) -> None:
        """A step ended."""
        self._steps += 1
        if phase == plan.WARMUP:
            self._warmup.append(duration_s)
        elif kept:
            self._open.setdefault(phase, []).append(duration_s)

    def block(self, phase: str) -> int:
        """The number of the block that is being measured."""
        return self._blocks.get(phase, 0)

    def close_block(self, phase: str) -> None:
        """The block's steps are complete: keep their mean."""
        number = self.block(phase)
        self._blocks[phase] = number + 1
        durations = self._open.pop(phase, [])
        if durations:
            self.means.setdefault(phase, {})[number] = sum(durations) / len(durations)

    def next_round(self) -> plan.Round:
        """The same answer on every rank: rank 0 decides and announces, the others read."""
        number, self.rounds = self.rounds, self.rounds + 1
        # Light mode must not make ranks wait for each other, nor assume that they take the same steps.
        store = _store() if self.world.size > 1 and not self.settings.light else None
        key = f"stallwise/round/{number}"
        if store is not None and self.world.rank != 0:
            return msgspec.json.decode(store.get(key), type=plan.Round)
        decided = self._decide()
        if store is not None:
            store.set(key, msgspec.json.encode(decided))
        return decided

    def progress(self) -> dict[str, Any]:
        """What a person waiting wants to know."""
        return {"round": self.rounds, "steps": self._steps, "elapsed_s": time.monotonic() - self._began_s}

    def _decide(self) -> plan.Round:
        if self.settings.light:
            return self._round((plan.AS_IS,))
        full = min((len(self.means.get(phase, ())) for phase in self.phases), default=0)
        if full and plan.LAYERS not in self._once:
            # Early: a script that ends soon must still leave what predictions are made from.
            return self._single(plan.LAYERS)
        if not self.ended_because:
            why = self._enough(full)
            if why is None:
                return self._round(self.phases)
            self.ended_because = why
        if plan.TRACE not in self._once:
            return self._single(plan.TRACE)
        if self.settings.cold and self._cold_rounds < _COLD_ROUNDS and self.reads_files():
            self._cold_rounds += 1
            return self._round((plan.COLD,))
        return _END

    def _single(self, phase: str) -> plan.Round:
        """One short block of a phase that runs once."""
        self._once.add(phase)
        few, many = _LAYER_STEPS
        wanted = math.ceil(self.settings.block_s / self._step_s()) if phase == plan.LAYERS else _TRACE_STEPS
        return plan.Round(
            phases=(phase,),
            block_steps=min(max(wanted, few), many) if phase == plan.LAYERS else wanted,
            settle_steps=_SETTLE_STEPS,
            queue_steps=math.ceil(self._queue_steps),
        )

    def _step_s(self) -> float:
        known = list(self.means.get(plan.AS_IS, {}).values()) or self._warmup[len(self._warmup) // 2 :]
        return statistics.median(known) if known else self.settings.block_s

    def _enough(self, rounds: int) -> str | None:
        """Why no further round is needed, or None."""
        if time.monotonic() - self._began_s >= self.settings.max_s:
            return "the time budget was spent"
        if self.settings.max_steps is not None and self._steps >= self.settings.max_steps:
            return "the step budget was spent"
        if rounds >= self.settings.min_rounds and self._tight():
            return "the intervals are tight"
        return None

    def _tight(self) -> bool:
        from stallwise.model.intervals import median_of_block_means, paired_difference

        ladder = [self.means[phase] for phase in self.phases]
        step = median_of_block_means(list(ladder[0].values()))
        widths = [step.high - step.low] if len(ladder) == 1 else []
        for upper, lower in itertools.pairwise(ladder):
            rounds = sorted(upper.keys() & lower.keys())
            difference = paired_difference([lower[r] for r in rounds], [upper[r] for r in rounds])
            widths.append(difference.high - difference.low)
        return max(widths) / 2 <= self.settings.tightness * step.value

    def _round(self, phases: tuple[str, ...]) -> plan.Round:
        step_s = self._step_s()
        quantum = max(1, round(max(self._queue_steps, self._workers_steps)))
        if quantum * step_s > 4 * self.settings.block_s:
            quantum = max(1, round(self._workers_steps))
        return plan.Round(
            phases=phases,
            block_steps=plan.block_steps(step_s, self.settings.block_s, quantum),
            settle_steps=0 if self.settings.light else _SETTLE_STEPS,
            queue_steps=0 if self.settings.light else math.ceil(self._queue_steps),
        )


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()
