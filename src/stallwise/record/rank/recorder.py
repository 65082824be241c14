"""The recorder of one rank: is told of fetches and optimizer steps, counts steps, and switches phases on schedule."""

import contextlib
import functools
import math
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import msgspec
import torch
from torch import distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stallwise.record.ablate._ddp import GradientExchange
from stallwise.record.ablate._replay import ReplayRing, batch_counts
from stallwise.record.ablate._snapshot import TrainingSnapshot
from stallwise.record.ablate.loader import BatchSource, Loaders
from stallwise.record.observe import _unsupported as unsupported
from stallwise.record.observe._attribution import ObservePhase
from stallwise.record.observe._collectives import CollectiveWait, ScriptCollectives, collective_rows
from stallwise.record.observe._contained import ContainedObserver, PhaseObserver
from stallwise.record.observe._layers import LayerPhase
from stallwise.record.observe._noise import NoisePhase
from stallwise.record.observe._torch_trace import TracePhase
from stallwise.record.observe.worker import WorkerControl, reads_files
from stallwise.record.processes import keep_garbage_in_the_parent
from stallwise.record.rank._by_hand import BackwardSteps
from stallwise.record.rank._schedule import PhaseScheduler, PhaseSegment, Round
from stallwise.record.rank._steps import CycleTracker, StepClock, TimeMark, elapsed_s, is_past
from stallwise.record.rank.environment import PROGRESS_NAME, RecordSettings
from stallwise.run import phases
from stallwise.run.atomic import write_atomically
from stallwise.run.manifest import ENDED_ITSELF, LoaderRecord
from stallwise.run.schema import EventRow, StepRow
from stallwise.run.writer import RankWriter
from stallwise.sentences import Sentence

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_WRITE_STEPS = 64

# What a killed rank may lose in light mode.
_LIGHT_FLUSH_S = 20.0

# In light mode steps shorter than this are watched a stretch at a time, so that watching costs next to nothing.
_ALWAYS_WATCHED_S = 0.02
_STRETCH = 16
_LEAST_WATCHED = 256
_MOST_APART = 32


class ProfileDone(BaseException):
    """Raised in the script when everything has been measured."""


AtEnd = Literal["raise", "raise once", "detach"]
"""What the recorder does when everything has been measured: raise `ProfileDone` at this and every later step (a script
may catch it and go on), raise it once and stop recording, or stop recording without a word."""


class _EndedStep(NamedTuple):
    """A step that ended on the host; the GPU may not have reached its end yet."""

    number: int
    begin: TimeMark
    end: TimeMark
    phase: str
    block: int
    kept: bool
    data_wait_s: float
    samples: int | None
    tokens: int | None
    fetches: int | None
    collectives: tuple[CollectiveWait, ...]


def _contained(hook: "Callable[Concatenate[Recorder, _Arguments], _Result]") -> Any:
    """Keep an error of our own in a hook from the script: the recorder gives up, and the record says why."""

    @functools.wraps(hook)
    def contained(recorder: "Recorder", /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result | None:
        try:
            return hook(recorder, *args, **kwargs)
        except Exception as error:
            if _is_the_jobs(error):
                raise
            recorder.give_up(error)
            return None

    return contained


class Recorder:
    """Records one rank. Hooks call it; everything else follows from the order of their calls."""

    def __init__(
        self, settings: RecordSettings, writer: RankWriter, worker_folder: str, *, at_end: AtEnd = "raise"
    ) -> None:
        self.settings = settings
        self.writer = writer
        self.tracker = CycleTracker()
        self.exchange = GradientExchange()
        self.loaders = Loaders(self, worker_folder)
        self.clock = StepClock()
        self.collectives = ScriptCollectives(self.clock, self.exchange.sharded.skips)
        self._worker_folder: Path = Path(worker_folder)
        self.schedule = PhaseScheduler(settings)
        self.schedule.reads_files = lambda: reads_files(self._worker_folder)
        self.last_beat_s = time.monotonic()
        self._zero_s = writer.clock_zero_s
        self.done = False
        self._at_end = at_end
        self._listening = True
        keep_garbage_in_the_parent()
        os.register_at_fork(after_in_child=self._forked)  # a child that trains too is not this rank
        self._written_s = 0.0
        self._control = WorkerControl(worker_folder)
        self._optimizers: dict[int, Optimizer] = {}
        self._by_hand = BackwardSteps(self._backward_stepped)
        self._sources: dict[int, BatchSource] = {}
        self._rings: dict[int, ReplayRing] = {}
        self._snapshot: TrainingSnapshot | None = None
        self._observer: ContainedObserver | None = None  # of the current phase
        self.failure: str | None = None
        """The error of our own because of which the recorder gave up."""
        self._training_thread: int | None = None  # known with the first optimizer step
        self._reader = _BatchReader()
        self._peak_bytes: int | None = None
        self._segment: PhaseSegment | None = None  # None while warming up
        self._replaying = False
        self._replaying_on_device = False
        self._queue: deque[PhaseSegment] = deque()
        self._ended_steps: deque[_EndedStep] = deque()
        self._begin: TimeMark | None = None
        self._cycles_in_step = 0
        self._steps = 0
        self._ended = 0  # steps, the unwatched ones too
        self.resting = 0
        """Optimizer steps that are still to pass unwatched; light mode alone."""
        self._stretch = (0, 0.0)  # steps ended, and when
        self._apart = 1  # stretches from one watched one to the next
        self._steps_in_segment = 0
        self._data_wait_s = 0.0
        self._samples: int | None = None
        self._tokens: int | None = None
        self._fetches = 0
        self._irregular = False
        self._evaluation_since_s: float | None = None

    # ---- called by hooks -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Install every hook in this process."""
        self.loaders.watch()
        self.exchange.watch()
        if not self.settings.light and self.schedule.world.size > 1:
            self.collectives.watch()
        if not self.settings.light:
            register_optimizer_step_pre_hook(self._optimizer_begins)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        self._by_hand.watch()
        unsupported.count_graph_replays()

    def _forked(self) -> None:
        self._listening = False

    @_contained
    def fetch_begins(self, source: BatchSource) -> Any | None:
        """Note a fetch, which may begin a step; in replay phases return the batch to hand out."""
        if not self._listening:
            return None
        if self.resting:  # an epoch begins: its first batches are always watched
            self._wake()
        self.last_beat_s = time.monotonic()
        if self._reads_ahead():
            self._sources[source.key] = source
            return self._replayed(source)
        if self.tracker.fetch(source.key, grad_enabled=torch.is_grad_enabled()):
            self._cycle_opened()
            if self.done:
                return None
        if self.tracker.evaluating is not None:
            self._irregular = True
            if self._evaluation_since_s is None:
                self._evaluation_since_s = self.last_beat_s
            return None
        self._sources[source.key] = source
        return self._replayed(source)

    def _replayed(self, source: BatchSource) -> Any | None:
        ring = self._rings.get(source.key) if self._replaying else None
        return ring.take(on_device=self._replaying_on_device) if ring else None

    def _reads_ahead(self) -> bool:
        """Whether this thread reads batches for the one that trains, which must then begin steps and phases itself."""
        thread = threading.get_ident()
        if self._training_thread is None:
            self._reader.thread = thread
        return self._training_thread not in (None, thread)

    @_contained
    def fetch_ended(self, source: BatchSource, batch: Any, start_s: float, end_s: float) -> None:
        """Count the samples of a batch and, in as-is blocks, keep it for replay."""
        if not self._listening or self._evaluation_since_s is not None or source.key not in self._sources:
            return
        if self._reads_ahead():
            self._reader.fetched(*batch_counts(batch))
        else:
            self._count_fetch(source, batch, start_s, end_s)
        if self._capturing:
            self._rings.setdefault(source.key, ReplayRing(self.settings.ring_bytes)).add(batch)

    def _count_fetch(self, source: BatchSource, batch: Any, start_s: float, end_s: float) -> None:
        self._reader.fetches += 1
        self._data_wait_s += end_s - start_s
        if len(self._sources) == 1 or source.key == min(self._sources):
            samples, tokens = batch_counts(batch)
            self._samples = _plus(self._samples, samples)
            self._tokens = _plus(self._tokens, tokens)
        self._fetches += 1
        # Where an epoch is one batch, beginning one is part of every step.
        if source.delivered == 1 and not (source.is_single and self._segment is not None):
            self.event("first_batch", start_s, end_s - start_s)
        if not source.steady:
            self._irregular = True

    @_contained
    def epoch_ended(self, source: BatchSource) -> None:
        """Leave the step at the end of an epoch out of the statistics, unless there is none without such an end."""
        if self._reads_ahead():
            return
        self.tracker.nothing_fetched(source.key)
        if source.key in self._sources and source.steady_batches != 0:
            self._irregular = True

    @_contained
    def iterator_created(self, source: BatchSource, start_s: float, end_s: float) -> None:
        """Record how long an iterator took to start its worker processes."""
        if source.workers:
            self.event("worker_startup", start_s, end_s - start_s, f"{source.workers} workers")

    @_contained
    def _optimizer_begins(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._observer is not None:
            self._observer.update_begins()

    @_contained
    def _backward_stepped(self, device: torch.device | None) -> None:
        """Take a backward pass for the step of an optimizer that the script does not have."""
        if not self._listening:
            return
        self._training_noted()
        if self.clock.device is None:
            self.clock.device = device
        if self.tracker.optimizer(0):
            self._cycle_opened()

    def _training_noted(self) -> None:
        self.last_beat_s = time.monotonic()
        if self._training_thread is None:
            self._training_thread = threading.get_ident()
            self._reader.training_begins(self._training_thread)
            if self._reader.is_apart:
                self.tracker = CycleTracker()  # what another thread fetched says nothing about steps

    @_contained
    def _optimizer_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self.resting:
            self.resting -= 1
            if not self.resting:
                self.tracker.wake()
            return
        if not self._listening:
            return
        if not self._optimizers:
            self._by_hand.release()
        self._training_noted()
        self._optimizers.setdefault(id(optimizer), optimizer)
        if self._observer is not None:
            self._observer.update_ends()
        if self.clock.device is None:
            self.clock.device = _device_of(optimizer)
        if self.tracker.optimizer(id(optimizer)):
            self._cycle_opened()

    @_contained
    def step_marked(self) -> None:
        """Begin a step because the script called `stallwise.step()`."""
        if not self._listening:
            return
        self.last_beat_s = time.monotonic()
        self.tracker.mark()
        self._cycle_opened()

    @_contained
    def exclude_step(self, kind: str, start_s: float, duration_s: float, detail: str | None = None) -> None:
        """Record an event (a saved checkpoint, for example) and leave the step it happened in out of the statistics."""
        self._irregular = True
        self.event(kind, start_s, duration_s, detail)

    def event(self, kind: str, start_s: float, duration_s: float | None, detail: str | None = None) -> None:
        """Append a row to the events table; times are of `time.monotonic()`."""
        row = EventRow(self.writer.rank, kind, start_s - self._zero_s, duration_s, self._steps, detail)
        self.writer.append("events", row)

    def script_ended(self) -> None:
        """Note that the script ended, or called sys.exit, before the profile was complete."""
        if self.settings.light:
            return
        self._write_past()
        rounds = min((len(self.schedule.means.get(phase, ())) for phase in self.schedule.phases), default=0)
        self.writer.note(
            Sentence(
                "run.ended-early",
                f"{ENDED_ITSELF} after {self._steps} steps and {rounds} rounds of all phases, before the "
                "profile was complete; intervals may be wide. Give it more epochs or steps for tighter ones.",
                _steps=self._steps,
            )
        )

    def close(self, *, exit_code: int, reason: str | None) -> None:
        """Write every row that is left, and how this rank ended."""
        if self._observer is not None:
            self._observer.abandon()
        self.clock.wait()
        self._write_past()
        if self.schedule.ended_because:
            self.writer.note(Sentence("run.ended", f"The profile ended because {self.schedule.ended_because}."))
        self.writer.close(reason=reason, exit_code=exit_code, peak_memory_bytes=self._peak_memory_bytes())

    def give_up(self, error: Exception) -> None:
        """Stop recording after an error of our own, with everything put back; a full profile then ends the job."""
        self._listening = False
        self.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
        with contextlib.suppress(Exception):
            self.writer.note(
                Sentence(
                    "run.internal-error",
                    f"An error of Stallwise itself ended the recording ({self.failure}). Please report it.",
                )
            )
        with contextlib.suppress(Exception):
            if self._observer is not None:
                self._observer.abandon()
        with contextlib.suppress(Exception):
            self.detach()
        if self._at_end == "detach" or self.settings.light:
            return
        self.done = True
        raise ProfileDone

    def _peak_memory_bytes(self) -> int:
        """The job's own peak: up to the first replay, after which the profile's own copies would be in it."""
        if self._peak_bytes is not None:
            return self._peak_bytes
        if self.clock.on_gpu:
            return torch.cuda.max_memory_allocated(self.clock.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _flush(self) -> None:
        """Write rows and progress: between blocks, where a pause does no harm, or seldom in light mode."""
        now_s = time.monotonic()
        if self.settings.light and now_s - self._written_s < _LIGHT_FLUSH_S:
            return
        self._written_s = now_s
        self.writer.flush()
        if self.writer.rank == 0:
            phase = self._queue[0].phase if self._queue else phases.AS_IS
            document = msgspec.json.encode({"phase": phase, **self.schedule.progress()})
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
        if self._rests(now.wall_s):
            self._begin = None
            return
        if self._advance():
            # Switching takes time that belongs to no step.
            self._begin = self.clock.mark()

    def _rests(self, now_s: float) -> bool:
        """Leave the next steps unwatched where they are short: in light mode, once many like them were watched.

        Stretches begin at multiples of their length, and lie a power of two of them apart, so that ranks whose steps
        take unlike times still watch the same ones.
        """
        seen = self._ended
        if seen % _STRETCH or not self.settings.light or self.settings.trial:
            return False
        before, self._stretch = self._stretch, (seen, now_s)
        if before[0] == seen - _STRETCH:
            ratio = _ALWAYS_WATCHED_S * _STRETCH / max(now_s - before[1], 1e-9)
            self._apart = min(_MOST_APART, 2 ** math.ceil(math.log2(max(1.0, ratio))))
        if seen < _LEAST_WATCHED or not self._optimizers or self.tracker.is_explicit or self._reader.is_apart:
            return False
        stretches = -(seen // _STRETCH) % self._apart
        self.resting = stretches * _STRETCH * self.tracker.optimizer_steps
        self._ended += stretches * _STRETCH
        return bool(stretches)

    def _wake(self) -> None:
        """Watch the next step again, before its turn."""
        self._ended -= self.resting // self.tracker.optimizer_steps
        self.resting = 0
        self.tracker.wake()

    def _reset_step(self) -> None:
        self._data_wait_s, self._samples, self._tokens, self._irregular = 0.0, None, None, False
        self._fetches = 0

    def _end_step(self, begin: TimeMark, end: TimeMark) -> None:
        segment = self._segment
        step = _EndedStep(
            self._ended,
            begin,
            end,
            segment.phase if segment else phases.WARMUP,
            self.schedule.block(segment.phase) if segment else 0,
            segment is not None and self._steps_in_segment >= segment.settle and not self._irregular,
            self._data_wait_s,
            *((self._samples, self._tokens) if not self._reader.is_apart else self._reader.per_step()),
            self._fetches if self._sources and not self._reader.is_apart else None,
            self.collectives.take(),
        )
        self._ended += 1
        self._steps_in_segment += 1
        if self._observer is not None:
            self._observer.step_ended(kept=step.kept)
        self._ended_steps.append(step)
        self._drop_changed_batches()
        # Written many at a time: the code for it is then warm, and the GPU has long passed most of them.
        if len(self._ended_steps) >= _WRITE_STEPS:
            self._write_past()

    def _drop_changed_batches(self) -> None:
        """Keep whole copies of batches from now on where the script changes their values."""
        changed = [ring.check() for ring in self._rings.values()] if self._capturing else []
        if any(changed):
            self.writer.note(
                Sentence(
                    "batches.copied",
                    "The script changes batches in place: they are copied whole, which is part of the step.",
                )
            )

    def _write_past(self) -> None:
        while self._ended_steps and is_past(self._ended_steps[0].end):
            self._write(self._ended_steps.popleft())

    def _write(self, step: _EndedStep) -> None:
        duration_s = elapsed_s(step.begin, step.end)
        self.clock.recycle(step.begin)  # the step before, whose end it was, is written already
        row = StepRow(
            rank=self.writer.rank,
            step=step.number,
            phase=step.phase,
            block=step.block,
            start_s=step.begin.wall_s - self._zero_s,
            duration_s=duration_s,
            data_wait_s=step.data_wait_s if self._sources else None,
            samples=step.samples,
            kept=step.kept,
            tokens=step.tokens,
            cpu_s=step.end.cpu_s - step.begin.cpu_s,
            fetches=step.fetches,
        )
        self.writer.append("steps", row)
        for collective in collective_rows(self.writer.rank, step.number, step.collectives, self.clock):
            self.writer.append("collectives", collective)
        self._steps = step.number + 1
        self.schedule.add(step.phase, duration_s, kept=step.kept)

    # ---- phases --------------------------------------------------------------------------------------------

    @property
    def _capturing(self) -> bool:
        if self.settings.light or self._segment is None or self._segment.phase != phases.AS_IS:
            return False
        return self._steps_in_segment >= self._segment.settle

    def _advance(self) -> bool:
        """Move on to the next segment or round where this one is complete; True when the phase was switched."""
        if self._segment is None:
            if not self._warmed_up():
                return False
            self.tracker.settle()
            if not self.clock.on_gpu and not self.settings.light:
                self._peak_bytes = self._peak_memory_bytes()
        elif self._steps_in_segment < self._segment.settle + self._segment.steps:
            return False
        if not self.settings.light:
            self.clock.wait()
        self._write_past()
        if self._segment is not None:
            self.schedule.close_block(self._segment.phase)
            self._end_observation(self._segment)
        if not self._queue:
            self._queue.extend(self._next_round().segments())
        self._flush()
        if not self._queue:
            self._finish()
            return False
        self._enter(self._queue.popleft())
        return True

    def _warmed_up(self) -> bool:
        period = self.tracker.period
        return self.tracker.cycles > max(self.settings.warmup_steps, 2 * period + 1) and self.tracker.repeats

    def _next_round(self) -> Round:
        if self.schedule.rounds == 0:
            self._describe_job()
        round_ = self.schedule.next_round()
        if phases.NODE in round_.phases and self.schedule.rounds == 1:
            self.exchange.prepare_node_only(self.schedule.world.local_size)
        return round_

    def _describe_job(self) -> None:
        self.exchange.look()
        fetches = max(self.tracker.fetches_per_cycle * self.tracker.period, 1e-9)
        queued = max((source.queued for source in self._sources.values()), default=0)
        if self._reader.is_apart:
            fetches = self._reader.fetches_per_step * self.tracker.period
            queued += self._reader.ahead
            self.writer.note(
                Sentence(
                    "batches.other-thread",
                    "Batches are read by another thread than the one that trains; what a step waits for them is not "
                    "timed.",
                )
            )
        workers = max((source.workers for source in self._sources.values()), default=0)
        self._describe_loader()
        self.schedule.describe(
            has_loader=bool(self._sources),
            on_device=self.clock.on_gpu,
            has_exchange=self.exchange.exists,
            can_split=self.exchange.can_split,
            workers_steps=workers / fetches,
            queue_steps=queued / fetches,
            epoch_steps=min((s.length / fetches for s in self._sources.values() if s.length), default=None),
            has_noise=self._has_noise(),
        )
        if dist.is_available() and dist.is_initialized():
            self.writer.backend(str(dist.get_backend()))
        if self._sources:
            epoch_samples = self._sources[min(self._sources)].epoch_samples(self.schedule.world.size)
            if epoch_samples:
                self.writer.epoch(epoch_samples)
        remarks = unsupported.remarks(self._optimizers.values(), fsdp2=self.exchange.sharded.exists)
        for note in (*self.schedule.notes, *remarks, *self.collectives.remarks()):
            self.writer.note(note)
        for phase in self.schedule.phases:
            self.writer.phase(phase, phases.DIFFERS[phase])

    def _has_noise(self) -> bool:
        """Whether a step has gradients of batches of two sizes: of ranks and their mean, or of micro-batches."""
        if len(self._optimizers) != 1 or self.tracker.period != 1 or self.exchange.sharded.exists:
            return False
        if self.schedule.world.size > 1:
            return self.exchange.averages_all_ranks(self.schedule.world.size)
        return self.tracker.fetches_per_cycle >= 2

    def _describe_loader(self) -> None:
        """Record the settings of the loader with the most workers; of loaders alike, the first's."""
        self.writer.light(self.settings.light)
        if not self._sources:
            return
        source = max(self._sources.values(), key=lambda source: source.workers)
        self.writer.loader(
            LoaderRecord(
                num_workers=source.workers,
                prefetch_factor=source.prefetch_factor,
                batch_size=source.batch_size,
                batches=source.length,
            )
        )

    def _enter(self, segment: PhaseSegment) -> None:
        self._segment = segment
        self._replaying = segment.phase not in phases.REAL_LOADER
        self._replaying_on_device = self._replaying and segment.phase != phases.HOST and self.clock.on_gpu
        self._steps_in_segment = 0
        self._control.cold = segment.phase == phases.COLD
        if self.settings.light:
            return
        self.writer.phase(segment.phase, phases.DIFFERS[segment.phase])
        if segment.phase == phases.AS_IS:
            for ring in self._rings.values():
                ring.clear()
        if segment.phase in phases.REAL_LOADER:
            for source in self._sources.values():
                if source.replayed:
                    source.drop_queue()
            self._restore()
        elif self._snapshot is None or segment.phase == phases.NOISE:
            self._restore()  # the noise is that of weights which all ranks share
            if self._peak_bytes is None:
                self._peak_bytes = self._peak_memory_bytes()
            self._take_snapshot()
        if segment.phase == phases.DEVICE and self.clock.device is not None:
            for ring in self._rings.values():
                ring.move_to(self.clock.device)
        self.exchange.use(segment.phase)
        self._begin_observation(segment)

    def _begin_observation(self, segment: PhaseSegment) -> None:
        """Let the phase's own observer look on, where it has one."""
        if segment.phase == phases.LAYERS:
            optimizers = list(self._optimizers.values())
            self._observe(segment, lambda: LayerPhase(optimizers, self.clock, self.writer))
        elif segment.phase == phases.NOISE:
            models = self.exchange.models if self.schedule.world.size > 1 else ()
            self._observe(segment, lambda: NoisePhase(self._optimizers.values(), models, self.writer))
        elif segment.phase == phases.TRACE:
            self._observe(segment, lambda: TracePhase(self.clock, self.writer, settle=segment.settle))
        elif segment.phase == phases.OBSERVE:
            window = self.schedule.block(phases.OBSERVE)
            self._observe(segment, lambda: ObservePhase(self.clock, self.writer, window=window, settle=segment.settle))
        if self._observer is not None:
            self._observer.begin(segment.settle + segment.steps)

    def _take_snapshot(self) -> None:
        self._snapshot = TrainingSnapshot(self._optimizers.values(), processes=self.schedule.world.local_size)
        if self._snapshot.place == "host":
            self.writer.note(
                Sentence(
                    "state.on-host",
                    "The GPU had little memory left, so the state of the training was kept on the host.",
                )
            )
        elif self._snapshot.place == "nowhere":
            self.writer.note(
                Sentence(
                    "state.not-restored",
                    "There was no memory for a copy of the weights: what replayed batches and steps without exchange "
                    "did to them was not undone.",
                )
            )

    def _observe(self, segment: PhaseSegment, create: "Callable[[], PhaseObserver]") -> None:
        self._observer = ContainedObserver(create, self.writer, segment.phase)

    def _end_observation(self, segment: PhaseSegment) -> None:
        """Let the observer of a phase write its rows; the device has passed the steps of the phase."""
        if self._observer is not None:
            step_s = self.schedule.means.get(segment.phase, {}).get(0)
            self._observer.finish(first_step=self._steps - segment.steps, step_s=step_s, zero_s=self._zero_s)
            self._observer = None

    def _finish(self) -> None:
        self._undo_phase()
        self.done = True
        if self._at_end != "raise":
            self._listening = False
        if self._at_end != "detach":
            raise ProfileDone

    def detach(self) -> None:
        """Put everything back as a step would find it without the recorder, and stop recording."""
        if not self.settings.light and not self.done:
            self._undo_phase()
        self._listening = False
        self.loaders.release()

    def _undo_phase(self) -> None:
        self._control.cold = False
        self._restore()
        self.exchange.use(phases.AS_IS)

    def _restore(self) -> None:
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None


class _BatchReader:
    """Counts what is fetched, and whether a thread of its own reads batches ahead of the one that trains."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.is_apart = False
        self.fetches = 0
        self._first = 0
        self._steps = 0
        self._counts: tuple[int | None, int | None] = (None, None)

    def training_begins(self, thread: int) -> None:
        """Note which thread makes optimizer steps."""
        self.is_apart = self.thread not in (None, thread)
        self._first = self.fetches

    def fetched(self, samples: int | None, tokens: int | None) -> None:
        """Note a batch that the reading thread fetched."""
        self.fetches += 1
        self._counts = samples, tokens

    def per_step(self) -> tuple[int | None, int | None]:
        """Samples and tokens of a step: of the last batch, for as many batches as a step uses on average."""
        self._steps += 1
        batches = self.fetches_per_step
        samples, tokens = (None if count is None else round(count * batches) for count in self._counts)
        return samples, tokens

    @property
    def fetches_per_step(self) -> float:
        """Batches a step uses: at least one."""
        return max(1.0, float(round((self.fetches - self._first) / max(1, self._steps))))

    @property
    def ahead(self) -> int:
        """Batches that the reading thread keeps in stock."""
        return self._first + 1


def _is_the_jobs(error: Exception) -> bool:
    """Whether an error that shows in a hook of ours is the job's own: a lost peer, an error of the GPU."""
    lost_peer = isinstance(error, getattr(dist, "DistError", ()))
    return lost_peer or "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError"


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _device_of(optimizer: Optimizer) -> torch.device | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return torch.device(parameter.device)
    return None
