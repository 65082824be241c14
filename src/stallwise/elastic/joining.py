"""`join()`: a rank becomes part of the round its agent has agreed on with the others.

Under our agent the ranks of a round meet at the coordinator's store, under a prefix of that round, so that nothing
left over from an earlier round is met and no store lives on a machine that may vanish. Under plain torchrun it is
torch's own way.
"""

import os
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from stallwise.elastic.codes import COORDINATOR, ROUND, Left
from stallwise.elastic.notice import catch_signal
from stallwise.errors import InputError
from stallwise.record.processes import die_with_parent

DEFAULT_TIMEOUT_S = 600.0
_STORE_TIMEOUT_S = 60.0
_LOOK_S = 1.0
_STUCK_S = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """Who this rank is in the round."""

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
    chosen = backend or ("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    timeout = timedelta(seconds=timeout_s)
    store = coordinator_store()
    if store is not None:
        place: Store = PrefixStore(f"ranks/{round_number()}", store)
        dist.init_process_group(chosen, store=place, rank=rank, world_size=world, timeout=timeout)
        _Progress.start(round_number())
    elif os.environ.get("GROUP_WORLD_SIZE") == "1":
        place = _torchrun_store(timeout)
        dist.init_process_group(chosen, store=place, rank=rank, world_size=world, timeout=timeout)
    else:
        dist.init_process_group(chosen, timeout=timeout)
    return Member(rank, world, local, round_number(), device)


def coordinator_store() -> Store | None:
    """A connection to the coordinator; None under plain torchrun."""
    where = os.environ.get(COORDINATOR)
    if where is None:
        return None
    host, _, port = where.rpartition(":")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "job")
    wait = timedelta(seconds=_STORE_TIMEOUT_S)
    return PrefixStore(f"job/{run}", TCPStore(host, int(port), is_master=False, timeout=wait))


def _torchrun_store(timeout: timedelta) -> Store:
    """Torchrun's store, under a prefix of the attempt.

    Its agent keeps one store over all attempts: a rank that is quick finds the address that a peer had before it died,
    and is refused. (Attempts are counted by each machine, so that with several there is no number all share.)
    """
    store, _, _ = next(rendezvous("env://", timeout=timeout))
    return PrefixStore(f"attempt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def round_number() -> int:
    """Which round of the job this is; 0 under plain torchrun."""
    return int(os.environ.get(ROUND, "0"))


class _Progress:
    """Ends a rank that waits for ever in a collective whose peers are gone.

    Gloo says so at once; NCCL may wait for its time-out. An agent marks a round as over when one of its ranks has
    ended or a machine is lost. Who then makes no step for five seconds is stuck.
    """

    last_s = 0.0

    @classmethod
    def start(cls, number: int) -> None:
        cls.last_s = time.monotonic()
        threading.Thread(target=cls._look, args=(number,), name="stallwise-round", daemon=True).start()

    @classmethod
    def _look(cls, number: int) -> None:
        try:
            store = coordinator_store()
            while store is not None:
                time.sleep(_LOOK_S)
                if store.check([f"over/{number}"]):
                    break
        except (RuntimeError, OSError):
            return  # the coordinator is gone, which the agent sees, too
        cls.last_s = max(cls.last_s, time.monotonic())
        while time.monotonic() - cls.last_s < _STUCK_S:
            time.sleep(_LOOK_S)
        os._exit(Left.PEER_LOST)


def tell_finished() -> None:
    """This rank's session has ended well: from here on an abort is only torch taking a gloo group down."""
    store = coordinator_store()
    if store is not None:
        store.set(f"finished/{round_number()}", "1")


def made_progress() -> None:
    """A step was made."""
    _Progress.last_s = time.monotonic()
