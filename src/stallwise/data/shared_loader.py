"""`SharedLoader`: several jobs of a node that read the same data in the same order prepare every batch once.

    loader = SharedLoader(dataset, 64, group="sweep", jobs=8, num_workers=1, staging_bytes=2 << 30, seed=0)
    for epoch in range(10):
        for batch in loader: ...

In a search over hyper-parameters, eight jobs decode and augment every sample eight times. Here each job's workers
prepare a part of the batches, all jobs take all of them, and a batch is freed when the last has taken it (CoorDL's
coordinated prep: Mohan et al., VLDB 2021). All jobs see the same batches: the same order, and the same augmented
samples. Jobs that would not (another transform, dataset, batch size, seed …) are refused by name.

Jobs may die, lag behind, come late and end early; `staging` says by which rules nobody else is held up.
"""

import hashlib
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, Sampler, default_collate

from stallwise.data import batch_file
from stallwise.data.dataset import BucketDataset
from stallwise.data.likeness import Fact, fact
from stallwise.data.preparing import Preparation, work
from stallwise.data.staging_client import GoneError, Link, connect
from stallwise.data.staging_wire import AskStat, Begin, Done, Hello, Want
from stallwise.errors import InputError, StallwiseError

STAGING_BYTES = 1 << 30
PATIENCE_S = 2.0
_CHECK_S = 5.0
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


class SharedLoader:
    """Batches of a map-style dataset, prepared together with the other jobs of `group` on this node.

    group          what the jobs of one search call themselves
    jobs           how many to wait for before the first batch, `gather_s` at most; others may come later
    num_workers    processes of this job that prepare; all jobs' workers work for all
    staging_bytes  most that prepared batches take in shared memory, for all jobs together (the first job's counts)
    sampler        the order; by default a new permutation every epoch, from `seed`
    patience_s     how long a job may hold up a faster one before its batches are dropped
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        *,
        group: str,
        jobs: int = 1,
        num_workers: int = 1,
        staging_bytes: int = STAGING_BYTES,
        sampler: Sampler[int] | Sequence[int] | None = None,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        patience_s: float = PATIENCE_S,
        gather_s: float = 30.0,
        multiprocessing_context: str | None = None,
    ) -> None:
        _check(group, batch_size=batch_size, jobs=jobs, num_workers=num_workers, staging_bytes=staging_bytes)
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self._sampler, self._seed = sampler, seed
        self._preparation = Preparation(group, dataset, collate_fn, batch_size, seed)
        self._job = f"{os.getpid()}-{secrets.token_hex(4)}"
        facts = [*_dataset_facts(dataset), fact("collate_fn", collate_fn), fact("batch_size", batch_size)]
        facts += [fact("seed", seed), fact("drop_last", drop_last)]
        self._hello = Hello(
            self._job, False, facts, staging_bytes, expected=jobs, patience_s=patience_s, gather_s=gather_s
        )
        self._epoch = self._at = 0
        self._position = (0, 0)
        self._resumed: str | None = None
        self._digest = ""
        self._pid = os.getpid()
        self._link = self._met()
        context = multiprocessing.get_context(multiprocessing_context)
        self._workers: list[BaseProcess] = [
            context.Process(  # type: ignore[attr-defined]
                target=work, args=(self._preparation, self._job, number, num_workers), daemon=True
            )
            for number in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()
        self._end = Finalize(self, _end, (self._pid, self._workers), exitpriority=10)

    def __len__(self) -> int:
        return self._batches(len(self._sampler) if self._sampler is not None else len(self.dataset))  # type: ignore[arg-type]

    @property
    def group(self) -> str:
        """What its jobs call themselves."""
        return self._preparation.group

    def set_epoch(self, epoch: int) -> None:
        """The epoch that begins next; without it they are counted. One that was broken off begins anew."""
        if epoch != self._epoch:
            self._at, self._resumed = 0, None
        self._epoch, self._position = epoch, (epoch, self._at)
        counting = getattr(self._sampler, "set_epoch", None)
        if counting is not None:
            counting(epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch, first, order = self._epoch, self._at, self._order()
        batches = self._batches(len(order))
        self._check_resumed(epoch, order)
        self._begin(epoch, order, batches, first)
        # Only now: what failed before may be tried again, and goes on where it was to go on.
        self._at, self._resumed = 0, None
        self._epoch += 1
        for number in range(first, batches):
            batch = self._take(epoch, number, order, batches)
            self._position = (epoch, number + 1) if number + 1 < batches else (epoch + 1, 0)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands: behind the batch it was given last. For a checkpoint."""
        epoch, batch = self._position
        return {"epoch": epoch, "batch": batch, "seed": self._seed, "order": self._digest if batch else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there: the next iteration begins with the batch that would have come next, bit for bit the same."""
        if state["seed"] != self._seed:
            raise InputError(f"The saved position is of seed {state['seed']}, this loader has {self._seed}.")
        self.set_epoch(int(state["epoch"]))
        self._at, self._resumed = int(state["batch"]), state["order"]
        self._position, self._digest = (self._epoch, self._at), state["order"] or ""

    def _check_resumed(self, epoch: int, order: npt.NDArray[np.int64]) -> None:
        if self._resumed is not None and self._resumed != _digest(order):
            raise InputError(
                f"The order of epoch {epoch} is not the one that the saved position belongs to. A sampler of your own "
                "must draw the same order for an epoch every time."
            )

    def stat(self) -> dict[str, int]:
        """What the group has staged, prepared, given and dropped so far."""
        return self._link.ask(AskStat())[0].stat

    def close(self) -> None:
        """Leave the group; the others go on."""
        self._link.close()
        self._end()

    def _order(self) -> npt.NDArray[np.int64]:
        if self._sampler is not None:
            return np.fromiter(iter(self._sampler), dtype=np.int64)
        drawn = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(len(self.dataset), generator=drawn).numpy()  # type: ignore[arg-type]

    def _batches(self, samples: int) -> int:
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def _met(self) -> Link:
        link = connect(self._preparation.group, start=True)
        answer, _ = link.ask(self._hello)
        if answer.refused is not None:
            link.close()
            raise InputError(
                f"This job cannot prepare batches together with those of the group {self._preparation.group!r}: "
                f"{answer.refused}. Make them the same, or give it another group."
            )
        return link

    def _begin(self, epoch: int, order: npt.NDArray[np.int64], batches: int, at: int) -> None:
        data = np.ascontiguousarray(order).tobytes()
        file = os.memfd_create("stallwise-order", os.MFD_CLOEXEC)
        try:
            os.write(file, data)
            self._digest = _digest(order)
            said = Begin(epoch, batches, self._digest, at)
            try:
                answer, _ = self._link.ask(said, file)
            except GoneError:
                self._link = self._met()  # whoever kept the books was killed: new ones are begun
                answer, _ = self._link.ask(said, file)
        finally:
            os.close(file)
        if answer.refused is not None:
            raise InputError(
                f"This job cannot go on with the group {self._preparation.group!r}: {answer.refused}. Jobs that share "
                "batches draw the same order: give their samplers one seed."
            )

    def _take(self, epoch: int, number: int, order: npt.NDArray[np.int64], batches: int) -> Any:
        while True:
            try:
                return self._taken(epoch, number)
            except GoneError:
                self._begin(epoch, order, batches, number)

    def _taken(self, epoch: int, number: int) -> Any:
        self._link.tell(Want(epoch, number))
        while True:
            try:
                answer, file = self._link.answer(_CHECK_S)
                break
            except TimeoutError:
                self._check_workers()
            except GoneError:
                raise
            except BaseException:
                # Interrupted: the answer that is on its way must not be taken for the next one.
                self._link.close()
                raise
        try:
            if answer.error is not None or file is None:
                raise StallwiseError(f"A batch could not be prepared:\n{answer.error}")
            return batch_file.read(file)
        finally:
            if file is not None:
                os.close(file)
            self._link.tell(Done(epoch, number))

    def _check_workers(self) -> None:
        dead = [worker for worker in self._workers if not worker.is_alive()]
        if len(dead) == len(self._workers):
            raise StallwiseError(
                f"All {len(dead)} workers of this job have died (exit code {dead[0].exitcode}); other jobs of the "
                "group go on. Was it killed for memory?"
            )


def _digest(order: npt.NDArray[np.int64]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(order).tobytes(), digest_size=16).hexdigest()


def _end(pid: int, workers: list[BaseProcess]) -> None:
    if pid != os.getpid():
        return
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(5)


def _dataset_facts(dataset: Dataset[Any]) -> list[Fact]:
    if isinstance(dataset, BucketDataset):
        objects = ("dataset", dataset.index.fingerprint, dataset.shown)
        return [objects, fact("decode", dataset.decode)]
    named = [name for name in ("transform", "target_transform", "transforms") if hasattr(dataset, name)]
    length = len(dataset)  # type: ignore[arg-type]
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__} of {length} samples"
    plain = {
        name: value
        for name, value in getattr(dataset, "__dict__", {}).items()
        if isinstance(value, (str, int, float, os.PathLike))
    }
    settings = repr(sorted(plain.items()))
    inside = [getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())]
    return [
        ("dataset", f"{kind} {settings}", kind),
        *(fact(name, getattr(dataset, name)) for name in named),
        *(known for part in inside if part is not None for known in _dataset_facts(part)),
    ]


def _check(group: str, **counts: int) -> None:
    if not group or any(character not in _NAME for character in group) or len(group) > 64:
        raise InputError(f"A group's name has 1 to 64 letters, digits, '-', '_' and '.', not {group!r}.")
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}.")
