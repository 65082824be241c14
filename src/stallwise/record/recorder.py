"""The recorder of one rank: hears of fetches and optimizer steps, counts steps, and walks through the plan."""

import os
import resource
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stallwise.record import plan, unsupported
from stallwise.record.anatomy import Anatomy
from stallwise.record.clock import Clock, Mark, elapsed_s, is_past
from stallwise.record.costs import reads_files
from stallwise.record.cycle import CycleTracker
from stallwise.record.director import Director
from stallwise.record.exchange import Exchange
from stallwise.record.loader import Loaders, Source
from stallwise.record.own_collectives import OwnCollectives, Waited, rows
from stallwise.record.ring import Ring, batch_counts
from stallwise.record.safety import Snapshot
from stallwise.record.settings import PROGRESS_NAME, Settings
from stallwise.record.tracing import Tracer
from stallwise.record.worker import Control
from stallwise.run.atomic import write_atomically
from stallwise.run.schema import EventRow, StepRow
from stallwise.run.writer import RankWriter

_WRITE_STEPS = 64

# What a killed rank may lose in light mode.
_LIGHT_FLUSH_S = 20.0


class ProfileDone(BaseException):
    """Raised in the script when everything has been measured."""


class _Pending(NamedTuple):
    """A finished step whose GPU time may not have come in yet."""

    begin: Mark
    end: Mark
    phase: str
    block: int
    kept: bool
    data_wait_s: float
    samples: int | None
    tokens: int | None
    waited: tuple[Waited, ...]


class Recorder:
    """Watches one rank. Hooks call in; everything else follows from the order of their calls."""

    def __init__(self, settings: Settings, writer: RankWriter, worker_folder: str) -> None:
        self.settings = settings
        self.writer = writer
        self.tracker = CycleTracker()
        self.exchange = Exchange()
        self.loaders = Loaders(self, worker_folder)
        self.clock = Clock()
        self.own_collectives = OwnCollectives(self.clock, self.exchange.sharded.skips)
        self.director = Director(settings)
        self.director.reads_files = lambda: reads_files(self._worker_folder)
        self.last_beat_s = time.monotonic()
        self._zero_s = writer.clock_zero_s
        self._here = True
        os.register_at_fork(after_in_child=self._forked)  # a child that trains too is not this rank
        self._written_s = 0.0
        self._worker_folder = Path(worker_folder)
        self._control = Control(worker_folder)
        self._optimizers: dict[int, Optimizer] = {}
        self._sources: dict[int, Source] = {}
        self._rings: dict[int, Ring] = {}
        self._snapshot: Snapshot | None = None
        self._guest: Anatomy | Tracer | None = None  # watches the phase that is on
        self._segment: plan.Segment | None = None  # None while warming up
        self._replaying = False
        self._replaying_on_device = False
        self._queue: deque[plan.Segment] = deque()
        self._pending: deque[_Pending] = deque()
        self._begin: Mark | None = None
        self._cycles_in_step = 0
        self._steps = 0
        self._steps_in_segment = 0
        self._data_wait_s = 0.0
        self._samples: int | None = None
        self._tokens: int | None = None
        self._spoiled = False
        self._evaluation_since_s: float | None = None

    # ---- what the hooks tell -------------------------------------------------------------------------------

    def watch(self) -> None:
        """Install every hook of this process."""
        self.loaders.watch()
        self.exchange.watch()
        if not self.settings.light and self.director.world.size > 1:
            self.own_collectives.watch()
        if not self.settings.light:
            register_optimizer_step_pre_hook(self._optimizer_begins)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        unsupported.count_graph_replays()

    def _forked(self) -> None:
        self._here = False

    def wants(self, source: Source) -> Any | None:
        """A fetch begins: maybe a step does too. In replay phases, the batch to hand out."""
        if not self._here:
            return None
        self.last_beat_s = time.monotonic()
        if self.tracker.fetch(source.key, grad_enabled=torch.is_grad_enabled()):
            self._cycle_opened()
        if self.tracker.evaluating is not None:
            self._spoiled = True
            if self._evaluation_since_s is None:
                self._evaluation_since_s = self.last_beat_s
            return None
        self._sources[source.key] = source
        if self._replaying:
            ring = self._rings.get(source.key)
            if ring:
                return ring.take(on_device=self._replaying_on_device)
        return None

    def fetched(self, source: Source, batch: Any, start_s: float, end_s: float) -> None:
        """A fetch ended."""
        if not self._here or self._evaluation_since_s is not None or source.key not in self._sources:
            return
        self._data_wait_s += end_s - start_s
        if len(self._sources) == 1 or source.key == min(self._sources):
            samples, tokens = batch_counts(batch)
            self._samples = _plus(self._samples, samples)
            self._tokens = _plus(self._tokens, tokens)
        if source.given == 1:
            self._spoiled = True
            self.event("first_batch", start_s, end_s - start_s)
        if self._capturing:
            self._rings.setdefault(source.key, Ring(self.settings.ring_bytes)).add(batch)

    def ended(self, source: Source) -> None:
        """An epoch of this source is over."""
        self.tracker.nothing_fetched(source.key)
        if source.key in self._sources:
            self._spoiled = True

    def started(self, source: Source, start_s: float, end_s: float) -> None:
        """An iterator was made; with workers that starts processes."""
        if source.workers:
            self.event("worker_startup", start_s, end_s - start_s, f"{source.workers} workers")

    def _optimizer_begins(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._guest is not None:
            self._guest.update_begins()

    def _optimizer_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._here:
            return
        self.last_beat_s = time.monotonic()
        self._optimizers.setdefault(id(optimizer), optimizer)
        if self._guest is not None:
            self._guest.update_ends()
        if self.clock.device is None:
            self.clock.device = _device_of(optimizer)
        if self.tracker.optimizer(id(optimizer)):
            self._cycle_opened()

    def step_marked(self) -> None:
        """`stallwise.step()`: the script says that a step begins."""
        self.last_beat_s = time.monotonic()
        self.tracker.mark()
        self._cycle_opened()

    def spoil(self, kind: str, start_s: float, duration_s: float, detail: str | None = None) -> None:
        """Something that is no steady step happened inside this one: a checkpoint was saved, for example."""
        self._spoiled = True
        self.event(kind, start_s, duration_s, detail)

    def event(self, kind: str, start_s: float, duration_s: float | None, detail: str | None = None) -> None:
        """Record something that takes time."""
        row = EventRow(self.writer.rank, kind, start_s - self._zero_s, duration_s, self._steps, detail)
        self.writer.append("events", row)

    def script_ended(self) -> None:
        """The script came to its own end, or left by sys.exit, before the profile did."""
        if self.settings.light:
            return
        self._write_past()
        rounds = min((len(self.director.means.get(phase, ())) for phase in self.director.phases), default=0)
        self.writer.note(
            f"The script ended by itself after {self._steps} steps and {rounds} rounds of all phases, before the "
            "profile was complete; intervals may be wide. Give it more epochs or steps for tighter ones."
        )

    def close(self, *, exit_code: int, reason: str | None) -> None:
        """Write everything that is left."""
        if self._guest is not None:
            self._guest.abandon()
        self.clock.wait()
        self._write_past()
        if self.director.ended_because:
            self.writer.note(f"The profile ended because {self.director.ended_because}.")
        self.writer.close(reason=reason, exit_code=exit_code, peak_memory_bytes=self._peak_memory_bytes())

    def _peak_memory_bytes(self) -> int:
        if self.clock.on_gpu:
            return torch.cuda.max_memory_allocated(self.clock.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _put_on_disk(self) -> None:
        """Between blocks a pause does no harm; light mode has no such place and writes seldom."""
        now_s = time.monotonic()
        if self.settings.light and now_s - self._written_s < _LIGHT_FLUSH_S:
            return
        self._written_s = now_s
        self.writer.flush()
        if self.writer.rank == 0:
            phase = self._queue[0].phase if self._queue else plan.AS_IS
            document = msgspec.json.encode({"phase": phase, **self.director.progress()})
            write_atomically(self.writer.folder / PROGRESS_NAME, document)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _cycle_opened(self) -> None:
        if self._evaluation_since_s is not None:
            self.event("validation", self._evaluation_since_s, self.last_beat_s - self._evaluation_since_s)
            self._evaluation_since_s = None
        self._cycles_in_step += 1
        if self._begin is not None and self._segment is not None and self._cycles_in_step < self.tracker.period:
            return
        self._cycles_in_step = 0
        now = self.clock.mark()
        if self._begin is not None:
            self._end_step(self._begin, now)
        self._begin = now
        self._reset_step()
        if self._turn_page():
            # Switching takes time that belongs to no step.
            self._begin = self.clock.mark()

    def _reset_step(self) -> None:
        self._data_wait_s, self._samples, self._tokens, self._spoiled = 0.0, None, None, False

    def _end_step(self, begin: Mark, end: Mark) -> None:
        segment = self._segment
        step = _Pending(
            begin,
            end,
            segment.phase if segment else plan.WARMUP,
            self.director.block(segment.phase) if segment else 0,
            segment is not None and self._steps_in_segment >= segment.settle and not self._spoiled,
            self._data_wait_s,
            self._samples,
            self._tokens,
            self.own_collectives.take(),
        )
        self._steps_in_segment += 1
        if self._guest is not None:
            self._guest.step_ended(kept=step.kept)
        self._pending.append(step)
        # Written many at a time: the code for it is then warm, and the GPU has long passed most of them.
        if len(self._pending) >= _WRITE_STEPS:
            self._write_past()

    def _write_past(self) -> None:
        while self._pending and is_past(self._pending[0].end):
            self._write(self._pending.popleft())

    def _write(self, step: _Pending) -> None:
        duration_s = elapsed_s(step.begin, step.end)
        self.clock.done_with(step.begin)  # the step before, whose end it was, is written already
        row = StepRow(
            rank=self.writer.rank,
            step=self._steps,
            phase=step.phase,
            block=step.block,
            start_s=step.begin.wall_s - self._zero_s,
            duration_s=duration_s,
            data_wait_s=step.data_wait_s if self._sources else None,
            samples=step.samples,
            kept=step.kept,
            tokens=step.tokens,
            cpu_s=step.end.cpu_s - step.begin.cpu_s,
        )
        self.writer.append("steps", row)
        for collective in rows(self.writer.rank, self._steps, step.waited, self.clock):
            self.writer.append("collectives", collective)
        self._steps += 1
        self.director.add(step.phase, duration_s, kept=step.kept)

    # ---- phases --------------------------------------------------------------------------------------------

    @property
    def _capturing(self) -> bool:
        if self.settings.light or self._segment is None or self._segment.phase != plan.AS_IS:
            return False
        return self._steps_in_segment >= self._segment.settle

    def _turn_page(self) -> bool:
        """Move on to the next segment or round where it is time; True when something was switched."""
        if self._segment is None:
            if not self._warmed_up():
                return False
            self.tracker.settle()
        elif self._steps_in_segment < self._segment.settle + self._segment.steps:
            return False
        if not self.settings.light:
            self.clock.wait()
        self._write_past()
        if self._segment is not None:
            self.director.close_block(self._segment.phase)
            self._guest_leaves(self._segment)
        if not self._queue:
            self._queue.extend(self._next_round().segments())
        self._put_on_disk()
        if not self._queue:
            self._leave()
            raise ProfileDone
        self._enter(self._queue.popleft())
        return True

    def _warmed_up(self) -> bool:
        period = self.tracker.period
        return self.tracker.cycles > max(self.settings.warmup_steps, 2 * period + 1) and self.tracker.repeats

    def _next_round(self) -> plan.Round:
        if self.director.rounds == 0:
            self._describe_job()
        round_ = self.director.next_round()
        if plan.NODE in round_.phases and self.director.rounds == 1:
            self.exchange.prepare_node_only(self.director.world.local_size)
        return round_

    def _describe_job(self) -> None:
        self.exchange.look()
        fetches = max(self.tracker.fetches_per_cycle * self.tracker.period, 1e-9)
        queued = max((source.queued for source in self._sources.values()), default=0)
        workers = max((source.workers for source in self._sources.values()), default=0)
        self.director.describe(
            has_loader=bool(self._sources),
            on_device=self.clock.on_gpu,
            has_exchange=self.exchange.found,
            can_split=self.exchange.can_split,
            workers_steps=workers / fetches,
            queue_steps=queued / fetches,
        )
        if dist.is_available() and dist.is_initialized():
            self.writer.backend(str(dist.get_backend()))
        remarks = unsupported.remarks(self._optimizers.values(), fsdp2=self.exchange.sharded.found)
        for note in (*self.director.notes, *remarks, *self.own_collectives.remarks()):
            self.writer.note(note)
        for phase in self.director.phases:
            self.writer.phase(phase, plan.DIFFERS[phase])

    def _enter(self, segment: plan.Segment) -> None:
        self._segment = segment
        self._replaying = segment.phase not in plan.REAL_LOADER
        self._replaying_on_device = self._replaying and segment.phase != plan.HOST and self.clock.on_gpu
        self._steps_in_segment = 0
        self._control.cold = segment.phase == plan.COLD
        if self.settings.light:
            return
        self.writer.phase(segment.phase, plan.DIFFERS[segment.phase])
        if segment.phase == plan.AS_IS:
            for ring in self._rings.values():
                ring.clear()
        if segment.phase in plan.REAL_LOADER:
            for source in self._sources.values():
                if source.replayed:
                    source.drop_queue()
            self._restore()
        elif self._snapshot is None:
            self._snapshot = Snapshot(self._optimizers.values())
        if segment.phase == plan.DEVICE and self.clock.device is not None:
            for ring in self._rings.values():
                ring.move_to(self.clock.device)
        self.exchange.use(segment.phase)
        if segment.phase == plan.LAYERS:
            self._guest = Anatomy(self._optimizers.values(), self.clock, self.writer)
        elif segment.phase == plan.TRACE:
            self._guest = Tracer(self.clock, self.writer, settle=segment.settle)
        if self._guest is not None:
            self._guest.begin(segment.settle + segment.steps)

    def _guest_leaves(self, segment: plan.Segment) -> None:
        """The phase it watched is over, and the device has passed its steps."""
        if self._guest is not None:
            step_s = self.director.means.get(segment.phase, {}).get(0)
            self._guest.leave(first_step=self._steps - segment.steps, step_s=step_s, zero_s=self._zero_s)
            self._guest = None

    def _leave(self) -> None:
        self._control.cold = False
        self._restore()
        self.exchange.use(plan.AS_IS)

    def _restore(self) -> None:
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _device_of(optimizer: Optimizer) -> torch.device | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return torch.device(parameter.device)
    return None
