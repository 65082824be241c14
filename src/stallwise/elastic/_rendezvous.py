"""How ranks meet, agree and part.

Ranks (`join`): under our agent the ranks of a round meet at the coordinator's store (`CoordinatorStore`), under a
prefix of that round, so that nothing left over from an earlier round is met and no store lives on a machine that may
vanish. Under plain torchrun it is torch's own way.

Steps (`Agreement`): all ranks come to the same decision at the same step, without waiting for each other. At each
step's end every rank contributes what it knows to one small all-reduce (MAX) on a group of its own, and reads what all
had contributed one step *earlier*, which has long arrived. So ranks act on the same values at the same step: a notice
that any rank receives during step k ends all of them after step k + 1, at the latest k + 2. The vector holds the flags,
then a few times of every rank and the speed it is requested to run at, each in a slot of its own (the others leave zero
there).
"""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from stallwise.elastic._coordinator import begun_key
from stallwise.elastic._notices import catch_signal
from stallwise.elastic._ownership import RoundIdentity
from stallwise.elastic.protocol import COORDINATOR, COORDINATOR_IDENTITY, ROUND, RankExit
from stallwise.elastic.wire import (
    AddValue,
    CompareSet,
    CoordinatorClient,
    CoordinatorLostError,
    CountKeys,
    DeleteKey,
    GetValue,
    Reply,
    Request,
    SetValue,
    WaitKeys,
    job_secret,
)
from stallwise.errors import InputError
from stallwise.record.processes import die_with_parent
from stallwise.torch_private import PrefixStore, Store

DEFAULT_TIMEOUT_S = 600.0
_STORE_TIMEOUT_S = 60.0
_ROUND_POLL_S = 1.0
_STUCK_S = 5.0
_TURN_S = 0.2


_kept_stores: list[Store] = []
"""C++ keeps a store of Python's without the Python object, which its calls need."""


@dataclass(frozen=True, slots=True)
class Member:
    """This rank's identity in the round."""

    rank: int
    world: int
    local_rank: int
    round: int
    device: torch.device


def join(backend: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> Member:
    """Initialise torch.distributed for this round; `backend` as torch's, default NCCL with GPUs, else gloo.

    From here on the process dies with its parent (the agent), and SIGTERM is a notice.
    """
    die_with_parent()
    catch_signal()
    if "RANK" not in os.environ:
        raise InputError(
            "This process is no rank of a job (RANK is not set). Start the script with python -m stallwise.elastic "
            "host …, or with torchrun."
        )
    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = backend or ("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    timeout = timedelta(seconds=timeout_s)
    store = coordinator_store()
    if store is not None:
        _kept_stores.append(store)
        round_store: Store = PrefixStore(f"ranks/{round_number()}/{os.environ.get(COORDINATOR_IDENTITY)}", store)
        dist.init_process_group(backend, store=round_store, rank=rank, world_size=world, timeout=timeout)
        _StuckRankGuard.start(round_number())
    elif os.environ.get("GROUP_WORLD_SIZE") == "1":
        round_store = _torchrun_store(timeout)
        dist.init_process_group(backend, store=round_store, rank=rank, world_size=world, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)
    return Member(rank, world, local, round_number(), device)


class CoordinatorStore(Store):
    """The job's keys at the coordinator, as a store of torch; C++ calls it, too, from threads of its own."""

    def __init__(self, client: CoordinatorClient, timeout_s: float = _STORE_TIMEOUT_S) -> None:
        super().__init__()
        self._client, self._timeout = client, timedelta(seconds=timeout_s)

    @property
    def timeout(self) -> timedelta:
        """For a key that is not there yet."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        self._call(SetValue(key, value.encode() if isinstance(value, str) else bytes(value)))

    def get(self, key: str) -> bytes:
        """Return the value, once it is there."""
        self.wait([key])
        value = self._call(GetValue(key)).value
        if value is None:
            raise dist.DistStoreError(f"{key} was deleted")
        return value

    def add(self, key: str, amount: int) -> int:
        return self._call(AddValue(key, amount)).number

    def check(self, keys: list[str]) -> bool:
        return bool(self._call(WaitKeys(list(keys))).number)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait in short turns, so that other threads of this process have theirs."""
        until_s = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self._call(WaitKeys(list(keys), min(_TURN_S, max(0.0, until_s - time.monotonic())))).number:
            if time.monotonic() > until_s:
                raise dist.DistStoreError(f"Timed out waiting for {', '.join(keys)[:200]} at the coordinator")

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self._call(CompareSet(key, _as_bytes(expected), _as_bytes(value))).value or b""

    def delete_key(self, key: str) -> bool:
        return bool(self._call(DeleteKey(key)).number)

    def num_keys(self) -> int:
        return self._call(CountKeys()).number

    def _call(self, request: Request) -> Reply:
        try:
            return self._client.call(request)
        except CoordinatorLostError as error:
            raise dist.DistNetworkError(f"The coordinator does not answer: {error}") from None


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def coordinator_store() -> CoordinatorStore | None:
    """Connect to the coordinator's store; None under plain torchrun."""
    address = os.environ.get(COORDINATOR)
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    job = os.environ.get("TORCHELASTIC_RUN_ID", "job")
    try:
        return CoordinatorStore(CoordinatorClient(host, int(port), job_secret(), job))
    except CoordinatorLostError as error:
        raise dist.DistNetworkError(f"The coordinator does not answer: {error}") from None


def _torchrun_store(timeout: timedelta) -> Store:
    """Open torchrun's store under a prefix of the attempt.

    Its agent keeps one store over all attempts: a fast rank finds the address that a peer had before it died,
    and is refused. (Attempts are counted by each machine, so that with several there is no number all share.)
    """
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def round_identity(job: str | None) -> RoundIdentity:
    """Return what the checkpoints need to know of this round; `job` where not the job's own name."""
    if COORDINATOR in os.environ:
        name = job or os.environ.get("TORCHELASTIC_RUN_ID", "job")
        return RoundIdentity(name, os.environ.get(COORDINATOR_IDENTITY, ""), round_number())
    # Torchrun's ids and attempts may repeat: of its processes the one that claims last is the job.
    start = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    return RoundIdentity(job or Path(sys.argv[0]).stem or "job", start, 0)


def round_number() -> int:
    """Number of the job's round; 0 under plain torchrun."""
    return int(os.environ.get(ROUND, "0"))


class _StuckRankGuard:
    """Ends a rank that waits for ever in a collective whose peers are gone, or whose round is no longer the job's.

    Gloo raises at once; NCCL may wait for its time-out. An agent marks a round as over when one of its ranks has ended
    or a machine is lost. A rank that then makes no step for five seconds is stuck. Once the next round has begun a rank
    of this one ends at once: its agent may be stopped while the rank is not.
    """

    last_s = 0.0

    @classmethod
    def start(cls, number: int) -> None:
        cls.last_s = time.monotonic()
        threading.Thread(target=cls._poll, args=(number,), name="stallwise-round", daemon=True).start()

    @classmethod
    def _poll(cls, number: int) -> None:
        over = False
        try:
            store = coordinator_store()
            while store is not None:
                time.sleep(_ROUND_POLL_S)
                if store.check([begun_key(number + 1)]):
                    break
                if not over and store.check([f"over/{number}"]):
                    over, cls.last_s = True, max(cls.last_s, time.monotonic())
                if over and time.monotonic() - cls.last_s > _STUCK_S:
                    break
        except (RuntimeError, OSError):
            return  # the coordinator is gone, which the agent sees, too
        os._exit(RankExit.PEER_LOST)


def mark_finished() -> None:
    """Record that this rank's session has ended well: a later abort is only torch taking down a gloo group."""
    store = coordinator_store()
    if store is not None:
        store.set(f"finished/{round_number()}", "1")


def note_progress() -> None:
    """Record that a step was made."""
    _StuckRankGuard.last_s = time.monotonic()


_PEER_LOST_MESSAGES = ("gloo", "Connection closed by peer", "Connection reset", "Broken pipe", "NCCL", "Socket")


def peer_lost(error: BaseException | None) -> bool:
    """Tell whether torch reports that another rank does not answer any more.

    An error of the job's own may read the same; agents see whether a rank was lost indeed.
    """
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _PEER_LOST_MESSAGES)


def exit_now(code: int) -> NoReturn:
    """Exit at once, without the interpreter's shutdown, in which gloo groups abort or hang now and then."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


FLAGS = 3
LEAVE, AGAIN, SAVE = range(FLAGS)
TIMES = 4
"""Per rank: waiting for data, forward, backward, exchange; milliseconds."""
_SLOT = TIMES + 1
"""The times of a rank and the speed it is requested to run at; 0: no request."""


@dataclass(frozen=True, slots=True)
class Consensus:
    """What all ranks together contributed at one step."""

    flags: tuple[float, ...] = (0.0,) * FLAGS
    times_ms: tuple[tuple[float, ...], ...] = ()
    speeds: tuple[float, ...] = ()

    def has(self, flag: int) -> bool:
        """Whether any rank has set the flag."""
        return self.flags[flag] > 0


class Agreement:
    """The agreement of one process group, carried on from step to step."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._pending: tuple[dist.Work | None, torch.Tensor] | None = None

    def receive(self) -> Consensus:
        """Return what all ranks contributed a step ago."""
        if self._pending is None:
            return Consensus()
        work, vector = self._pending
        self._pending = None
        if work is not None:
            work.wait()
        values = vector.tolist()
        slots = [tuple(values[FLAGS + r * _SLOT : FLAGS + (r + 1) * _SLOT]) for r in range(self._world)]
        return Consensus(
            tuple(values[:FLAGS]), tuple(slot[:TIMES] for slot in slots), tuple(slot[TIMES] for slot in slots)
        )

    def contribute(self, flags: Sequence[float], times_ms: Sequence[float], speed: float = 0.0) -> None:
        """Start the all-reduce with this rank's flags, times and requested speed."""
        vector = torch.zeros(FLAGS + self._world * _SLOT, dtype=torch.float64)
        vector[:FLAGS] = torch.tensor(flags, dtype=torch.float64)
        slot = FLAGS + self._rank * _SLOT
        vector[slot : slot + _SLOT] = torch.tensor([*times_ms, speed], dtype=torch.float64)
        work = dist.all_reduce(vector, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = work, vector

    def finish(self) -> None:
        """Wait for the all-reduce under way, before the group is destroyed."""
        self.receive()
