"""`Session`: a training loop that survives losing machines, in a few lines of the script.

    me = elastic.join()
    model = DistributedDataParallel(network.to(me.device))
    with elastic.Session(model, optimizer, folder="/shared/run", scheduler=scheduler, interval_s=300) as session:
        for epoch in session.epochs(90):
            for batch in session.steps(loader):
                ...

Entering restores the newest whole checkpoint. After every step the ranks agree on what comes: go on, save, or save and
stop. A rank that stops leaves at once, with an exit code that its agent understands
(`codes.Left`); what stands after the session in the script is for the end of the job.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from stallwise.deflate.door import Door
from stallwise.elastic import order
from stallwise.elastic.agreement import AGAIN, FLAGS, LEAVE, SAVE, Agreement, Word
from stallwise.elastic.clouds import endpoints
from stallwise.elastic.codes import CAUSE, Left
from stallwise.elastic.events import NAME as EVENTS
from stallwise.elastic.events import Diary
from stallwise.elastic.joining import made_progress, round_number, tell_finished
from stallwise.elastic.leaving import leave_now, peer_lost
from stallwise.elastic.manifest import Fault, Manifest
from stallwise.elastic.notice import Watcher
from stallwise.elastic.pace import Pace, interval_of
from stallwise.elastic.place import Folder, place_of
from stallwise.elastic.rebuild import ReadyOrder, show_order
from stallwise.elastic.rescale import Scaling, factor, rescale
from stallwise.elastic.restoring import newest_whole
from stallwise.elastic.saver import Saver
from stallwise.elastic.shares import Parts
from stallwise.elastic.state import (
    Stage,
    State,
    buffer_names,
    flat,
    load_module_state,
    module_state,
    packed,
    random_state,
    set_random_state,
    share,
    unpacked,
)
from stallwise.elastic.tempo import Tempo
from stallwise.errors import InputError

log = logging.getLogger("stallwise")

_GROUP_TIMEOUT_S = 600.0


class Session:
    """Model, optimizer and what else makes a run, kept in `folder`: a folder all machines share, or a bucket's URL.

    How often: `interval_steps`, `interval_s` (default 600), `mean_life_s` of a machine (then √(2 δ M) with the measured
    cost of a save), or `plan`, a file of `stallwise spot plan --json`. `scaling` says how the learning rate follows the
    number of ranks when that is another than before. `metadata`: which cloud to ask for notices (`clouds.endpoints`).
    `largest_batch`: the most samples that fit a rank, where `stallwise deflate` has the others take over a part.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        folder: str | os.PathLike[str],
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
    ) -> None:
        if not dist.is_initialized():
            raise InputError("A session needs torch.distributed: call stallwise.elastic.join() first.")
        if keep < 1:
            raise InputError("keep, how many checkpoints stay, is at least 1.")
        self._model, self._optimizer, self._scheduler, self._scaler = model, optimizer, scheduler, scaler
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._scaling, self._asynchronous = scaling, asynchronous
        machines = max(1, self._world // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._interval = interval_of(interval_steps, interval_s, mean_life_s, plan, machines)
        self._place = place_of(folder, endpoint)
        own = self._rank == 0 and isinstance(self._place, Folder)
        self._diary = Diary(Path(self._place.shown) / EVENTS if own else None, round_number())
        timeout = timedelta(seconds=_GROUP_TIMEOUT_S)
        # Two groups of their own: the thread that saves and the steps' agreement must not meet, nor training either.
        self._save_group = dist.new_group(backend="gloo", timeout=timeout)
        self._agree_group = dist.new_group(backend="gloo", timeout=timeout)
        self._agreement = Agreement(self._agree_group)
        self._saver = Saver(self._place, self._save_group, keep, f"{round_number()}")
        self._stage = Stage()
        first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self._watcher = Watcher(endpoints(metadata) if first else ())
        self._tempo = Tempo(model)
        self._ready = ReadyOrder(model)
        self._parts = Parts(model, self._rank, self._world, largest_batch)
        self._door = Door(self._rank, self._world)
        self._anew = False
        self.step = 0
        """Steps made since the job began, over all rounds."""
        self.epoch = 0
        self.samples = 0
        """Samples trained on by all ranks together, where the loader says its batch size."""
        self._order: list[str] = []
        self._pending: dict[str, Any] | None = None
        self._random: State | None = None
        self._loader: Any = None
        self._batches = self._left_out = 0
        self._pace = Pace(self._interval, 0, time.monotonic())

    @property
    def world(self) -> int:
        """Ranks that are active now."""
        return self._world

    @property
    def weight(self) -> float:
        """By what this rank's gradient is multiplied in this step: 1 unless the parts of the global batch differ."""
        return self._parts.weight

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._saver.busy

    def __enter__(self) -> "Session":
        if self._rank == 0:
            self._place.tidy()
        self._random = self._restore()
        if self.step > 0:
            self._ready.close()
            show_order(self._model, self._order)
            if self._random is not None:
                set_random_state(self._random)
        self._pace = Pace(self._interval, self.step, time.monotonic())
        cause = os.environ.get(CAUSE, "")
        self._diary.write(
            "began", step=self.step, world=self._world, samples=self.samples, cause=cause, pid=os.getpid()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()
        self._door.close()
        self._parts.close()
        if error is None:
            self._finish()
        self._place.close()
        if error is None:
            return
        if isinstance(error, SystemExit) and error.code in (Left.AGAIN, Left.LEAVING):
            leave_now(int(error.code))
        elif peer_lost(error):
            self._diary.write("left", why="peer lost", step=self.step)
            log.warning("A peer is gone (%s); this rank ends and is started again.", str(error).splitlines()[0][:120])
            leave_now(Left.PEER_LOST)

    def epochs(self, count: int) -> Iterator[int]:
        """Epochs that are left of `count`, from the one that was under way."""
        while (now := self.epoch) < count:
            yield now
            if self.epoch == now:  # the loop over its steps was left early
                self.epoch, self._loader, self._batches, self._left_out = now + 1, None, 0, 0

    def steps(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The batches of this epoch that are left; each pass of the loop's body is a step."""
        self._loader = loader
        # No name here holds a loader's iterator: with its last step it goes, and its workers do.
        yield from self._made(self._begun(loader))
        while self._anew:
            yield from self._made(self._dealt_anew(loader))
        self.epoch += 1
        self._loader, self._batches, self._left_out = None, 0, 0

    def _begun(self, loader: Iterable[Any]) -> Iterator[Any]:
        """This epoch, from where it was interrupted."""
        resumed = self._pending is not None
        self._left_out = order.begin_epoch(loader, self.epoch, self._pending)
        self._pending, self._batches = None, 0
        why_not = self._parts.why_not(loader)
        self._door.open(None if why_not else getattr(loader, "batch_size", None), why_not)
        self._parts.take(loader)
        batches = iter(loader)
        for _ in range(self._left_out):
            next(batches, None)
        if resumed and self._random is not None:
            # A loader draws a seed when it begins, which it had done before the interruption, too.
            set_random_state(self._random)
        self._random = None
        self._tempo.begin()
        return batches

    def _made(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Steps, until the batches end or are to be dealt out anew."""
        self._anew = False
        for batch in batches:
            self._tempo.fetched()
            self._parts.begin(self._loader, self._batches)
            yield batch
            self._stepped()
            if self._anew:
                return
            self._tempo.begin()

    def _dealt_anew(self, loader: Any) -> Iterator[Any]:
        """What is left of the epoch, in the parts that all ranks have agreed on."""
        where, state = order.position(loader, self.epoch, self._batches, self._left_out), random_state()
        order.begin_epoch(loader, self.epoch, where)
        parts = self._parts.take(loader)
        self._batches = 0
        self._diary.write("parts", step=self.step, parts=parts)
        self._tempo.begin()
        batches: Iterator[Any] = iter(loader)
        set_random_state(state)  # as after an interruption: beginning draws a seed
        return batches

    def save(self, *, wait: bool = True) -> None:
        """A checkpoint of this moment. All ranks must call it at the same step."""
        self._begin_save()
        if wait:
            self._saver.wait()
            self._look_at_save()

    def _stepped(self) -> None:
        """One step is over: decide by what all said a step ago, then say what is known now."""
        self.step += 1
        self._batches += 1
        self.samples += self._world * int(getattr(self._loader, "batch_size", None) or 0)
        if self.step == 1:
            self._order = list(self._ready.names)
            self._ready.close()
        now_s = time.monotonic()
        self._pace.stepped(self.step, now_s)
        made_progress()
        self._look_at_save()
        word = self._agreement.heard()
        self._tempo.stepped(word, self._diary, self.step, self._world, self.samples)
        if word.says(LEAVE) or word.says(AGAIN):
            self._stop(word)
        if word.says(SAVE):
            self._begin_save()
        if self._saver.busy and self._pace.overdue(self.step, now_s):
            self._saver.wait()
            self._look_at_save()
        self._anew = self._parts.changed(word.speeds, self._loader)
        asked = self._door.asked()
        self._agreement.say(self._flags(time.monotonic()), self._tempo.times_ms, asked.speed if asked else 0.0)

    def _flags(self, now_s: float) -> list[float]:
        flags = [0.0] * FLAGS
        notice = self._watcher.notice
        if notice is not None:
            flags[LEAVE if notice.of_machine else AGAIN] = 1.0
        if self._rank == 0 and not self._saver.busy and self._pace.due(self.step, now_s):
            flags[SAVE] = 1.0
        return flags

    def _begin_save(self) -> None:
        self._saver.wait()
        self._look_at_save()
        begin_s = time.monotonic()
        mine, facts = self._collected()
        self._saver.start(self.step, self._stage.copy(mine), facts)
        if not self._asynchronous:
            self._saver.wait()
        cost_s = time.monotonic() - begin_s
        self._pace.began(self.step, begin_s, cost_s)
        self._held_s = cost_s

    def _look_at_save(self) -> None:
        """Take note of a save that has ended since."""
        saved = self._saver.ended()
        if saved is None:
            return
        if saved.error is not None:
            self._diary.write("failed", step=saved.step, why=saved.error)
            if self._rank == 0:
                log.warning("No checkpoint of step %d: %s. Training goes on.", saved.step, saved.error)
            return
        self._pace.saved(saved.step, saved.write_s)
        self._diary.write(
            "saved", step=saved.step, held_s=self._held_s, write_s=saved.write_s, bytes=saved.bytes, world=self._world
        )

    def _stop(self, word: Word) -> None:
        """Save at this step, on all ranks, and leave."""
        notice = self._watcher.notice
        if notice is not None:
            left_s = notice.deadline_s - time.monotonic()
            log.warning("Notice (%s): saving step %d, %.0f s left.", notice.source, self.step, left_s)
        self._diary.write("notice", step=self.step, source=notice.source if notice else "another rank")
        self.save()
        leaving = word.says(LEAVE) and notice is not None and notice.of_machine
        self._diary.write("left", why="notice", step=self.step)
        raise SystemExit(Left.LEAVING if leaving else Left.AGAIN)

    def _collected(self) -> tuple[State, dict[str, Any]]:
        """This rank's part of the state, and the facts for the manifest."""
        state = module_state(self._model, self._optimizer)
        mine = share(flat(state), buffer_names(self._model), self._rank, self._world)
        where = None
        if self._loader is not None:
            where = order.position(self._loader, self.epoch, self._batches, self._left_out)
        mine[f"ranks.{self._rank}"] = packed({"random": random_state(), "position": where})
        if self._rank == 0:
            extra = [None if part is None else part.state_dict() for part in (self._scheduler, self._scaler)]
            mine["shared"] = packed(extra)
        facts = {"epoch": self.epoch, "samples": self.samples, "ready_order": self._order}
        return mine, facts

    def _restore(self) -> State | None:
        """Go on from the newest whole checkpoint; returns this rank's random state, None where there is none."""
        found = newest_whole(self._place, self._save_group, self._passed_over)
        if found is None:
            return None
        name, folder, written = found
        own, extra = self._load(folder, written)
        self._place.release(name)
        self.step, self.epoch = written.step, int(written.facts["epoch"])
        self.samples, self._order = int(written.facts["samples"]), list(written.facts["ready_order"])
        for part, state in zip((self._scheduler, self._scaler), extra, strict=True):
            if part is not None and state is not None:
                part.load_state_dict(state)
        rescale(self._optimizer, self._scheduler, factor(written.world, self._world, self._scaling))
        self._take_position(own["position"], written.world)
        return own["random"] if written.world == self._world else None

    def _load(self, folder: Path, written: Manifest) -> tuple[State, list[Any]]:
        own = self._rank if self._rank < written.world else 0
        state = module_state(self._model, self._optimizer)
        wanted = {**state, "shared": b"", "ranks": {str(own): b""}}
        dcp_load(wanted, checkpoint_id=folder, process_group=self._save_group)
        load_module_state(self._model, self._optimizer, wanted)
        return unpacked(wanted["ranks"][str(own)]), unpacked(wanted["shared"])

    def _take_position(self, position: dict[str, Any] | None, before: int) -> None:
        dealt = position is not None and position["kind"] == order.SAMPLER
        if position is not None and before != self._world and not (dealt and _any_world(position)):
            log.warning(
                "The position in the data was saved by %d ranks and there are %d: this epoch begins anew. "
                "stallwise.elastic.Resumable(DistributedSampler(…)) can go on with any number.",
                before,
                self._world,
            )
            position = None
        self._pending = position

    def _passed_over(self, fault: Fault) -> None:
        log.warning("Checkpoint %s is passed over: %s.", fault.name, fault.why)
        self._diary.write("passed", name=fault.name, why=fault.why)

    def _finish(self) -> None:
        """The loop has ended by itself: the last state is kept, too."""
        self._agreement.finish()
        self._saver.wait()
        self._look_at_save()
        if self._pace.visible != self.step:
            self.save()
        self._diary.write("done", step=self.step, samples=self.samples)
        dist.barrier(group=self._save_group)
        tell_finished()
        for group in (self._save_group, self._agree_group):
            dist.destroy_process_group(group)


def _any_world(position: dict[str, Any]) -> bool:
    state = position["state"]
    return bool(state.get("kind") == "distributed")
