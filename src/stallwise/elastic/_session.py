"""`Session`: a training loop that survives losing machines, in a few lines of the script.

    me = elastic.join()
    model = DistributedDataParallel(network.to(me.device))
    with elastic.Session(model, optimizer, folder="/shared/run", scheduler=scheduler, interval_s=300) as session:
        for epoch in session.epochs(90):
            for batch in session.steps(loader):
                ...

Entering restores the newest whole checkpoint. After every step the ranks agree on what comes: go on, save, or save and
stop. A rank that stops exits at once, with a code that its agent understands
(`protocol.RankExit`); what stands after the session in the script is for the end of the job.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from stallwise.deflate.requests import RequestListener
from stallwise.elastic._batches import (
    SAMPLER,
    BatchParts,
    Scaling,
    begin_epoch,
    loader_position,
    rate_factor,
    rescale_rates,
)
from stallwise.elastic._checkpoints import (
    SHARED,
    CheckpointReader,
    CheckpointSaver,
    GradientOrder,
    StagingBuffers,
    State,
    buffer_names,
    flattened,
    from_bytes,
    gradient_entry,
    load_module_state,
    module_state,
    newest_valid,
    own_entry,
    random_state,
    restore_gradient_order,
    set_random_state,
    share_of_rank,
    to_bytes,
)
from stallwise.elastic._exchange import on_rank_0
from stallwise.elastic._interval import SaveSchedule, save_interval
from stallwise.elastic._manifest import CheckpointFault
from stallwise.elastic._notices import NoticeWatcher, metadata_endpoints
from stallwise.elastic._ownership import SupersededError
from stallwise.elastic._rendezvous import (
    AGAIN,
    FLAGS,
    LEAVE,
    SAVE,
    Agreement,
    Consensus,
    exit_now,
    mark_finished,
    note_progress,
    peer_lost,
    round_identity,
    round_number,
)
from stallwise.elastic._storage import FolderStore
from stallwise.elastic.protocol import CAUSE, CHECKPOINTS, EVENTS_FILE, EventLog, RankExit
from stallwise.elastic.remote import open_store
from stallwise.elastic.throughput import StepTimer
from stallwise.errors import InputError

log = logging.getLogger("stallwise")

_GROUP_TIMEOUT_S = 600.0


class Session:
    """Model, optimizer and the rest of a job, saved in `folder`: one that all machines share, or an object store's URL;
    by default what the variable STALLWISE_CHECKPOINTS names.

    How often: `interval_steps`, `interval_s` (default STALLWISE_INTERVAL_S, else 600), `mean_life_s` of a machine (then
    √(2 δ M) with the measured cost of a save), or `plan`, the JSON document of `stallwise spot plan`. `scaling` says
    how the learning rate follows the number of ranks when it changes. `metadata`: which cloud to ask for notices
    (`notices.metadata_endpoints`). `largest_batch`: the samples that fit a rank, where `stallwise deflate` moves a
    share of the batch to the others.
    `job`: whose the folder is, where not the job's name at its coordinator (torchrun: the script's name); another job
    is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        folder: str | os.PathLike[str] | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        interval_steps: int | None = None,
        interval_s: float | None = None,
        mean_life_s: float | None = None,
        plan: str | Path | None = None,
        scaling: Scaling = "linear",
        keep: int = 2,
        metadata: str | None = None,
        endpoint: str | None = None,
        asynchronous: bool = True,
        largest_batch: int | None = None,
        job: str | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise InputError("A session needs torch.distributed: call stallwise.elastic.join() first.")
        folder = folder or os.environ.get(CHECKPOINTS)
        if folder is None:
            raise InputError(f"A session needs a folder for its checkpoints, or the variable {CHECKPOINTS}.")
        if keep < 1:
            raise InputError("keep, the number of checkpoints that stay, must be at least 1.")
        self._model, self._optimizer, self._scheduler, self._scaler = model, optimizer, scheduler, scaler
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._scaling, self._asynchronous = scaling, asynchronous
        machines = max(1, self._world // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._interval = save_interval(interval_steps, interval_s, mean_life_s, plan, machines)
        self._store = open_store(folder, endpoint)
        writes_log = self._rank == 0 and isinstance(self._store, FolderStore)
        self._events = EventLog(Path(self._store.shown) / EVENTS_FILE if writes_log else None, round_number())
        timeout = timedelta(seconds=_GROUP_TIMEOUT_S)
        # Two groups of their own: the thread that saves and the steps' agreement must not meet, nor training either.
        self._save_group = dist.new_group(backend="gloo", timeout=timeout)
        self._agree_group = dist.new_group(backend="gloo", timeout=timeout)
        self._agreement = Agreement(self._agree_group)
        self._saver = CheckpointSaver(self._store, self._save_group, keep)
        self._identity = round_identity(job)
        self._updates = OptimizerUpdates(optimizer)
        self._stage = StagingBuffers()
        first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self._watcher = NoticeWatcher(metadata_endpoints(metadata) if first else ())
        self._timer = StepTimer(model)
        self._gradient_order = GradientOrder(model)
        self._parts = BatchParts(model, self._rank, self._world, largest_batch)
        self._listener = RequestListener(self._rank, self._world)
        self._gradients: dict[str, torch.Tensor] = {}
        self._parts_changed = False
        self.step = 0
        """Steps made since the job began, over all rounds."""
        self.epoch = 0
        self.samples = 0
        """Samples trained on by all ranks together, where the loader says its batch size."""
        self._ready_order: list[str] = []
        self._pending: dict[str, Any] | None = None
        self._random: State | None = None
        self._loader: Any = None
        self._batches = self._skipped = 0
        self._schedule = SaveSchedule(self._interval, 0, time.monotonic())

    @property
    def world(self) -> int:
        """Number of ranks of this round."""
        return self._world

    @property
    def weight(self) -> float:
        """Factor of this rank's gradient in this step: 1 unless the ranks' parts of the global batch differ."""
        return self._parts.weight

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saver.busy

    def __enter__(self) -> "Session":
        try:
            self._saver.fence = on_rank_0(self._claim, self._save_group)
            self._random = self._restore()
            from_bytes(to_bytes(self._shared()))  # what could not be restored is refused before it is saved
        except SupersededError as error:
            self._superseded(str(error))
        if self.step > 0:
            self._gradient_order.close()
            restore_gradient_order(self._model, self._ready_order)
            self._restore_gradients()
            if self._random is not None:
                set_random_state(self._random)
        self._schedule = SaveSchedule(self._interval, self.step, time.monotonic())
        cause = os.environ.get(CAUSE, "")
        self._events.write(
            "began", step=self.step, world=self._world, samples=self.samples, cause=cause, pid=os.getpid()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()
        self._listener.close()
        self._parts.close()
        if error is None:
            self._finish()
        self._store.close()
        if error is None:
            return
        if isinstance(error, SystemExit) and error.code in (RankExit.AGAIN, RankExit.LEAVING):
            exit_now(int(error.code))
        elif peer_lost(error):
            self._events.write("left", why="peer lost", step=self.step)
            log.warning("A peer is gone (%s); this rank ends and is started again.", str(error).splitlines()[0][:120])
            exit_now(RankExit.PEER_LOST)

    def _claim(self) -> int:
        fence = self._store.claim(self._identity)
        self._store.tidy()
        return fence

    def _superseded(self, why: str) -> NoReturn:
        """Exit: a later round is the job, and nothing that this one does counts."""
        log.warning("This round is over (%s); this rank ends without a save.", why)
        exit_now(RankExit.SUPERSEDED)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of `count`, from the one that was under way."""
        while (now := self.epoch) < count:
            yield now
            if self.epoch == now:  # the loop over its steps was left early
                self.epoch, self._loader, self._batches, self._skipped = now + 1, None, 0, 0

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of this epoch that are left; each pass of the loop's body is a step."""
        self._loader = loader
        # No name here holds a loader's iterator: with its last step it goes, and its workers do.
        yield from self._train(self._start(loader))
        while self._parts_changed:
            yield from self._train(self._redistribute(loader))
        self.epoch += 1
        self._loader, self._batches, self._skipped = None, 0, 0

    def _start(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Start this epoch, from where it was interrupted."""
        resumed = self._pending is not None
        self._skipped = begin_epoch(loader, self.epoch, self._pending)
        self._pending, self._batches = None, 0
        why_not = self._parts.why_not(loader)
        self._listener.open(None if why_not else getattr(loader, "batch_size", None), why_not)
        self._parts.take(loader)
        batches = iter(loader)
        for _ in range(self._skipped):
            next(batches, None)
        if resumed and self._random is not None:
            # A loader draws a seed when it begins, which it had done before the interruption, too.
            set_random_state(self._random)
        self._random = None
        self._timer.begin()
        return batches

    def _train(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Make steps until the batches end or are to be distributed anew."""
        self._parts_changed = False
        for batch in batches:
            self._timer.fetched()
            self._parts.begin(self._loader, self._batches)
            yield batch
            self._stepped()
            if self._parts_changed:
                return
            self._timer.begin()

    def _redistribute(self, loader: Any) -> Iterator[Any]:
        """Continue the epoch with the parts of the global batch that all ranks have agreed on."""
        position, state = loader_position(loader, self.epoch, self._batches, self._skipped), random_state()
        begin_epoch(loader, self.epoch, position)
        parts = self._parts.take(loader)
        self._batches = 0
        self._events.write("parts", step=self.step, parts=parts)
        self._timer.begin()
        batches: Iterator[Any] = iter(loader)
        set_random_state(state)  # as after an interruption: beginning draws a seed
        return batches

    def save(self, *, wait: bool = True) -> None:
        """Save a checkpoint of this step. All ranks must call it at the same step."""
        self._begin_save()
        if wait:
            self._saver.wait()
            self._note_save()

    def _stepped(self) -> None:
        """End a step: act on what all ranks contributed a step ago, then contribute what is known now."""
        self.step += 1
        self._batches += 1
        self._updates.stepped()
        self.samples += self._world * int(getattr(self._loader, "batch_size", None) or 0)
        if self.step == 1:
            self._ready_order = list(self._gradient_order.names)
            self._gradient_order.close()
        now_s = time.monotonic()
        self._schedule.stepped(self.step, now_s)
        note_progress()
        self._note_save()
        consensus = self._agreement.receive()
        self._timer.stepped(consensus, self._events, self.step, self._world, self.samples)
        if consensus.has(LEAVE) or consensus.has(AGAIN):
            self._stop(consensus)
        if consensus.has(SAVE):
            self._begin_save()
        if self._saver.busy and self._schedule.overdue(self.step, now_s):
            self._saver.wait()
            self._note_save()
        self._parts_changed = self._parts.changed(consensus.speeds, self._loader)
        request = self._listener.strictest()
        speed = request.speed if request else 0.0
        self._agreement.contribute(self._flags(time.monotonic()), self._timer.times_ms, speed)

    def _flags(self, now_s: float) -> list[float]:
        flags = [0.0] * FLAGS
        notice = self._watcher.notice
        if notice is not None:
            flags[LEAVE if notice.of_machine else AGAIN] = 1.0
        if self._rank == 0 and not self._saver.busy and self._schedule.due(self.step, now_s):
            flags[SAVE] = 1.0
        return flags

    def _begin_save(self) -> None:
        self._saver.wait()
        self._note_save()
        begin_s = time.monotonic()
        mine, facts = self._state()
        self._saver.start(self.step, self._stage.copy(mine), facts)
        if not self._asynchronous:
            self._saver.wait()
        cost_s = time.monotonic() - begin_s
        self._schedule.began(self.step, begin_s, cost_s)
        self._save_cost_s = cost_s

    def _note_save(self) -> None:
        """Log a save that has ended since, and schedule the next by its time."""
        saved = self._saver.take_result()
        if saved is None:
            return
        if saved.superseded:
            self._superseded(str(saved.error))
        if saved.error is not None:
            self._events.write("failed", step=saved.step, why=saved.error)
            if self._rank == 0:
                log.warning("No checkpoint of step %d: %s. Training goes on.", saved.step, saved.error)
            return
        self._schedule.saved(saved.step, saved.write_s)
        self._events.write(
            "saved",
            step=saved.step,
            held_s=self._save_cost_s,
            write_s=saved.write_s,
            bytes=saved.bytes,
            world=self._world,
        )

    def _stop(self, consensus: Consensus) -> None:
        """Save at this step, on all ranks, and exit."""
        notice = self._watcher.notice
        if notice is not None:
            left_s = notice.deadline_s - time.monotonic()
            log.warning("Notice (%s): saving step %d, %.0f s left.", notice.source, self.step, left_s)
        self._events.write("notice", step=self.step, source=notice.source if notice else "another rank")
        self.save()
        leaving = consensus.has(LEAVE) and notice is not None and notice.of_machine
        self._events.write("left", why="notice", step=self.step)
        raise SystemExit(RankExit.LEAVING if leaving else RankExit.AGAIN)

    def _state(self) -> tuple[State, dict[str, Any]]:
        """Collect this rank's share of the state, and the facts for the manifest."""
        state = module_state(self._model, self._optimizer)
        mine = share_of_rank(flattened(state), buffer_names(self._model), self._rank, self._world)
        position = None
        if self._loader is not None:
            position = loader_position(self._loader, self.epoch, self._batches, self._skipped)
        mine[own_entry(self._rank)] = to_bytes({"random": random_state(), "position": position})
        if self._rank == 0:
            mine[SHARED] = to_bytes(self._shared())
        if self._updates.pending:  # gradients are accumulated: those of steps that no update has used yet
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:
                    mine[gradient_entry(self._rank, name)] = _local(parameter.grad)
        facts = {"epoch": self.epoch, "samples": self.samples, "ready_order": self._ready_order}
        return mine, facts

    def _restore(self) -> State | None:
        """Continue from the newest valid checkpoint; returns this rank's random state, None where there is none."""
        checkpoint = newest_valid(self._store, self._save_group, self._pass_over)
        if checkpoint is None:
            return None
        name, folder, manifest = checkpoint
        reader = CheckpointReader(folder, manifest)
        state = reader.load(module_state(self._model, self._optimizer))
        load_module_state(self._model, self._optimizer, state, has_updates=reader.has_updates)
        own = reader.small(own_entry(self._rank if self._rank < manifest.world else 0))
        extra = reader.small(SHARED)
        self._gradients = reader.gradients(self._model, self._rank, self._world)
        self._store.release(name)
        self.step, self.epoch = manifest.step, int(manifest.facts["epoch"])
        self.samples, self._ready_order = int(manifest.facts["samples"]), list(manifest.facts["ready_order"])
        for part, state in zip((self._scheduler, self._scaler), extra, strict=True):
            if part is not None and state is not None:
                part.load_state_dict(state)
        rescale_rates(self._optimizer, self._scheduler, rate_factor(manifest.world, self._world, self._scaling))
        self._take_position(own["position"], manifest.world)
        return own["random"] if manifest.world == self._world else None

    def _restore_gradients(self) -> None:
        """Continue to accumulate where the job was interrupted."""
        parameters = dict(self._model.named_parameters())
        for name, gradient in self._gradients.items():
            parameter = parameters[name]
            local = gradient.to(_local(parameter).device, parameter.dtype)
            if isinstance(parameter, DTensor):
                local = DTensor.from_local(local, parameter.device_mesh, parameter.placements)
            parameter.grad = local
        self._gradients = {}

    def _shared(self) -> list[Any]:
        return [None if part is None else part.state_dict() for part in (self._scheduler, self._scaler)]

    def _take_position(self, position: dict[str, Any] | None, before: int) -> None:
        by_sampler = position is not None and position["kind"] == SAMPLER
        if position is not None and before != self._world and not (by_sampler and _any_world(position)):
            log.warning(
                "The position in the data was saved by %d ranks and there are %d: this epoch begins anew. "
                "stallwise.elastic.Resumable(DistributedSampler(…)) can go on with any number.",
                before,
                self._world,
            )
            position = None
        self._pending = position

    def _pass_over(self, fault: CheckpointFault) -> None:
        log.warning("Checkpoint %s is passed over: %s.", fault.name, fault.why)
        self._events.write("passed", name=fault.name, why=fault.why)

    def _finish(self) -> None:
        """Save the last state: the loop has ended by itself."""
        self._agreement.finish()
        self._saver.wait()
        self._note_save()
        if self._schedule.visible != self.step:
            self.save()
        self._events.write("done", step=self.step, samples=self.samples)
        dist.barrier(group=self._save_group)
        mark_finished()
        for group in (self._save_group, self._agree_group):
            dist.destroy_process_group(group)


class OptimizerUpdates:
    """Whether steps were made since the last update: their gradients are accumulated, and part of the state."""

    def __init__(self, optimizer: Any) -> None:
        self._updated = self.pending = False
        optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
        hooks = [getattr(one, "register_step_post_hook", None) for one in optimizers]
        self._known = all(hooks)
        for hook in filter(None, hooks):
            hook(self._note)

    def _note(self, *_: Any) -> None:
        self._updated = True

    def stepped(self) -> None:
        """End a step of the session."""
        self.pending, self._updated = self._known and not self._updated, False


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _any_world(position: dict[str, Any]) -> bool:
    state = position["state"]
    return bool(state.get("kind") == "distributed")
