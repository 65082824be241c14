"""`SharedLoader`: several jobs of a node that read the same data in the same order prepare every batch once.

    loader = SharedLoader(dataset, 64, group="sweep", jobs=8, num_workers=1, staging_bytes=2 << 30, seed=0)
    for epoch in range(10):
        for batch in loader: ...

In a search over hyper-parameters, eight jobs decode and augment every sample eight times. Here each job's workers
prepare a share of the batches, all jobs take all of them, and a batch is freed when the last has taken it (CoorDL's
coordinated prep: Mohan et al., VLDB 2021). All jobs see the same batches: the same order, and the same augmented
samples. A job that differs (other files or labels, another transform, batch size, seed …) is refused, and the
difference is named.

Jobs may die, lag behind, start late and end early; `coordinator` has the rules that keep others from being held up.
"""

import hashlib
import multiprocessing
import multiprocessing.connection
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

from stallwise.data.shared._client import StagingConnection, connect
from stallwise.data.shared._identity import collate_fact, dataset_facts, fact, is_versioned
from stallwise.data.shared._memory import read_batch
from stallwise.data.shared._protocol import (
    BatchReceipt,
    BatchRequest,
    DisconnectedError,
    EpochStart,
    StagingHello,
    StatRequest,
)
from stallwise.data.shared._worker import Preparation, run_worker
from stallwise.errors import InputError, StallwiseError

STAGING_BYTES = 1 << 30
PATIENCE_S = 2.0
_CHECK_S = 5.0
_POLL_S = 0.2
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


class SharedLoader:
    """Batches of a map-style dataset, prepared together with the other jobs of `group` on this node.

    group          name that the jobs of one search have in common
    jobs           how many to wait for before the first batch, at most `gather_s` seconds; others may join later
    num_workers    processes of this job that prepare batches; all jobs' workers work for all
    staging_bytes  limit of prepared batches in shared memory, for all jobs together (the first job's value counts)
    sampler        the order; by default a new permutation every epoch, from `seed`
    patience_s     how long (seconds) a job may hold up a faster one before its batches are dropped
    identity       a name of your own for the data and its preparation: jobs of one identity are taken to have the same,
                   and their datasets are not compared
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
        identity: str | None = None,
    ) -> None:
        _check(group, batch_size=batch_size, jobs=jobs, num_workers=num_workers, staging_bytes=staging_bytes)
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self._sampler, self._seed = sampler, seed
        self._preparation = Preparation(group, dataset, collate_fn, batch_size, seed)
        self._job = f"{os.getpid()}-{secrets.token_hex(4)}"
        facts = [*dataset_facts(dataset, identity), collate_fact(collate_fn, identity), fact("batch_size", batch_size)]
        facts += [fact("seed", seed), fact("drop_last", drop_last)]
        self._pid = os.getpid()
        self._workers: list[BaseProcess] = []
        self._end = Finalize(self, _end, (self._pid, self._workers), exitpriority=10)
        try:
            # Compared samples are read by a worker: a dataset that opens its files at first use must not do so here.
            digest = self._start_workers(
                num_workers, multiprocessing_context, probes=identity is None and not is_versioned(dataset)
            )
        except BaseException:
            self._end()
            raise
        facts += [("samples", digest, "other than theirs")] if digest else []
        self._hello = StagingHello(
            self._job, False, facts, staging_bytes, expected=jobs, patience_s=patience_s, gather_s=gather_s
        )
        self._epoch = self._at = 0
        self._position = (0, 0)
        self._resumed: str | None = None
        self._digest = ""
        try:
            self._connection = self._join()
        except BaseException:
            self._end()
            raise

    def __len__(self) -> int:
        return self._batches(len(self._sampler) if self._sampler is not None else len(self.dataset))  # type: ignore[arg-type]

    @property
    def group(self) -> str:
        """Name that the jobs have in common."""
        return self._preparation.group

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next (by default they are counted). An abandoned one begins anew."""
        if epoch != self._epoch:
            self._at, self._resumed = 0, None
        self._epoch, self._position = epoch, (epoch, self._at)
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        epoch, first, order = self._epoch, self._at, self._order()
        batches = self._batches(len(order))
        self._check_resumed(epoch, order)
        self._begin(epoch, order, batches, first)
        # Only now: after a failure above, a second attempt must continue at the same position.
        self._at, self._resumed = 0, None
        self._epoch += 1
        for number in range(first, batches):
            batch = self._take(epoch, number, order, batches)
            self._position = (epoch, number + 1) if number + 1 < batches else (epoch + 1, 0)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, for a checkpoint."""
        epoch, batch = self._position
        return {"epoch": epoch, "batch": batch, "seed": self._seed, "order": self._digest if batch else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a saved position: the next iteration begins with the following batch, bit for bit the same."""
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
        """Return what the group has staged now, and prepared, given and dropped so far."""
        return self._connection.ask(StatRequest())[0].stat

    def close(self) -> None:
        """Leave the group; the other jobs continue."""
        self._connection.close()
        self._end()

    def _order(self) -> npt.NDArray[np.int64]:
        if self._sampler is not None:
            return np.fromiter(iter(self._sampler), dtype=np.int64)
        drawn = torch.Generator().manual_seed(self._seed + self._epoch)
        return torch.randperm(len(self.dataset), generator=drawn).numpy()  # type: ignore[arg-type]

    def _batches(self, samples: int) -> int:
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def _start_workers(self, number: int, context_name: str | None, *, probes: bool) -> str:
        """Start the workers; return the digest of the samples that the first one reads for the comparison."""
        context = multiprocessing.get_context(context_name)
        receiver, sender = context.Pipe(duplex=False)
        with receiver, sender:
            for worker in range(number):
                back = sender if probes and worker == 0 else None
                process = context.Process(  # type: ignore[attr-defined]
                    target=run_worker, args=(self._preparation, self._job, worker, number, back), daemon=True
                )
                process.start()
                self._workers.append(process)
            return self._probed(receiver) if probes else ""

    def _probed(self, receiver: "multiprocessing.connection.Connection[Any, Any]") -> str:
        worker = self._workers[0]
        while not receiver.poll(_POLL_S):
            if not worker.is_alive() and not receiver.poll():
                raise StallwiseError(
                    f"The worker that reads a few samples to compare this job with the others of the group has died "
                    f"(exit code {worker.exitcode}). Was it killed for memory?"
                )
        return receiver.recv_bytes().decode()

    def _join(self) -> StagingConnection:
        connection = connect(self._preparation.group, start=True)
        reply, _ = connection.ask(self._hello)
        if reply.refused is not None:
            connection.close()
            raise InputError(
                f"This job cannot prepare batches together with those of the group {self._preparation.group!r}: "
                f"{reply.refused}. Make them the same, give it another group, or, where no sample depends on it, "
                "give all jobs one identity."
            )
        return connection

    def _begin(self, epoch: int, order: npt.NDArray[np.int64], batches: int, at: int) -> None:
        data = np.ascontiguousarray(order).tobytes()
        file = os.memfd_create("stallwise-order", os.MFD_CLOEXEC)
        try:
            os.write(file, data)
            self._digest = _digest(order)
            message = EpochStart(epoch, batches, self._digest, at)
            try:
                reply, _ = self._connection.ask(message, file)
            except DisconnectedError:
                self._connection = self._join()  # the coordinator was killed: another one is started
                reply, _ = self._connection.ask(message, file)
        finally:
            os.close(file)
        if reply.refused is not None:
            raise InputError(
                f"This job cannot go on with the group {self._preparation.group!r}: {reply.refused}. Jobs that share "
                "batches draw the same order: give their samplers one seed."
            )

    def _take(self, epoch: int, number: int, order: npt.NDArray[np.int64], batches: int) -> Any:
        while True:
            try:
                return self._receive(epoch, number)
            except DisconnectedError:
                self._begin(epoch, order, batches, number)

    def _receive(self, epoch: int, number: int) -> Any:
        self._connection.tell(BatchRequest(epoch, number))
        while True:
            try:
                reply, file = self._connection.reply(_CHECK_S)
                break
            except TimeoutError:
                self._check_workers()
            except DisconnectedError:
                raise
            except BaseException:
                # Interrupted: the pending reply must not be taken for the next one.
                self._connection.close()
                raise
        try:
            if reply.error is not None or file is None:
                raise StallwiseError(f"A batch could not be prepared:\n{reply.error}")
            return read_batch(file)
        finally:
            if file is not None:
                os.close(file)
            self._connection.tell(BatchReceipt(epoch, number))

    def _check_workers(self) -> None:
        dead = [worker for worker in self._workers if not worker.is_alive()]
        if len(dead) == len(self._workers):
            raise StallwiseError(
                f"All {len(dead)} workers of this job have died (exit code {dead[0].exitcode}); other jobs of the "
                "group continue. Was it killed for memory?"
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


def _check(group: str, **counts: int) -> None:
    if not group or any(character not in _NAME for character in group) or len(group) > 64:
        raise InputError(f"A group's name has 1 to 64 letters, digits, '-', '_' and '.', not {group!r}.")
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}.")
