"""What runs on each machine, and on the one that is not preemptible.

    python -m stallwise.elastic coordinator --port 29400
    python -m stallwise.elastic host --coordinator ADDRESS:29400 --nnodes 1:4 --nproc-per-node 8 train.py …

Exit codes of a host: 0 the job is done; 1 it was stopped by a budget; 2 bad usage; 3 the coordinator stayed away;
143 this machine was told to go (SIGTERM, or the cloud's notice) and its ranks have saved.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from stallwise.errors import InputError, StallwiseError

if TYPE_CHECKING:
    from stallwise.elastic.ranks import Ranks
    from stallwise.elastic.rendezvous import Meeting

DONE, STOPPED, USAGE, ALONE, GONE = 0, 1, 2, 3, 143
_LOOK_S = 0.5
_FALSE_ALARM_S = 60.0


class _ToldError(Exception):
    """SIGTERM or SIGINT."""


def main(arguments: Sequence[str]) -> int:
    """Parse and run."""
    options = _parser().parse_args(arguments)
    # A lost peer or coordinator is said in one sentence; torch's C++ would add pages of frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        with _signals():
            return int(options.run(options))
    except _ToldError:
        return GONE
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stallwise.elastic", description=__doc__.split("\n")[0])
    inside = parser.add_subparsers(required=True)
    store = inside.add_parser("coordinator", help="keep the store machines meet at; run it where nothing is preempted")
    store.add_argument("--port", type=int, default=29400)
    store.set_defaults(run=_coordinate)
    host = inside.add_parser("host", help="run this machine's ranks of a job")
    host.add_argument("--coordinator", required=True, metavar="ADDRESS:PORT")
    host.add_argument("--nnodes", default="1:64", metavar="LEAST:MOST", help="machines the job takes (1:64)")
    host.add_argument("--nproc-per-node", type=int, default=1, help="ranks on this machine (1)")
    host.add_argument("--job", default="job", help="name of the job at the coordinator")
    host.add_argument("--grace", type=float, default=30.0, help="seconds between notice and end (30)")
    host.add_argument("--max-crashes", type=int, default=3, help="crashes of ranks over the whole job (3)")
    host.add_argument("--max-losses", type=int, default=None, help="losses of machines over the whole job (any)")
    host.add_argument("--patience", type=float, default=300.0, help="seconds to look for a lost coordinator (300)")
    host.add_argument("--last-call", type=float, default=1.0, help="seconds to wait for more than the least (1)")
    host.add_argument("--heartbeat", type=float, default=0.5, help="seconds between beats; eight missed: lost (0.5)")
    host.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py …")
    host.set_defaults(run=_host)
    return parser


def _coordinate(options: argparse.Namespace) -> int:
    from stallwise.elastic.rendezvous import serve

    try:
        store = serve(options.port)
    except (RuntimeError, OSError) as error:
        raise InputError(f"Port {options.port} cannot be served: {str(error).splitlines()[0]}") from None
    sys.stdout.write(f"coordinator listens on port {store.port}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600.0)


def _host(options: argparse.Namespace) -> int:
    """Attend the job; where the coordinator is lost, ranks save and all begin again when it is back."""
    from stallwise.elastic.ranks import Ranks

    if not options.command:
        raise InputError("Which script? Name it after the options: host --coordinator … train.py.")
    _span(options.nnodes)
    heard: list[str] = []
    lost_s: float | None = None
    with contextlib.closing(Ranks(options.command)) as ranks:
        # Torch is imported here while the nursery imports it, too.
        from torch.distributed import DistNetworkError, DistStoreError
        from torch.distributed.elastic.rendezvous import RendezvousError

        ranks.ready()
        while True:
            try:
                meeting = _meet(options)
                lost_s = None
                code = _attend(options, meeting, ranks, heard)
                if code is not None:
                    return code
            except (RendezvousError, DistNetworkError, DistStoreError, ConnectionError) as error:
                if lost_s is None:
                    _say(f"the coordinator {options.coordinator} does not answer ({type(error).__name__})")
                lost_s = lost_s or time.monotonic()
                if time.monotonic() - lost_s > options.patience:
                    return ALONE
                time.sleep(_LOOK_S)


def _meet(options: argparse.Namespace) -> "Meeting":
    """A connection to the coordinator."""
    from stallwise.elastic.rendezvous import Meeting, Timing

    address, _, port = options.coordinator.rpartition(":")
    if not port.isdigit():
        raise InputError(f"--coordinator takes ADDRESS:PORT, not {options.coordinator!r}.")
    timing = Timing(last_call_s=options.last_call, heartbeat_s=options.heartbeat)
    return Meeting.at(address or "127.0.0.1", int(port), options.job, *_span(options.nnodes), timing)


def _attend(options: argparse.Namespace, meeting: "Meeting", ranks: "Ranks", heard: list[str]) -> int | None:
    """One stay with the coordinator; None: join again."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    from stallwise.elastic.agent import Agent, Budgets

    spec = WorkerSpec(
        role="rank",
        local_world_size=options.nproc_per_node,
        entrypoint=sys.executable,
        rdzv_handler=meeting,
        max_restarts=0,
    )
    budgets = Budgets(crashes=options.max_crashes, losses=options.max_losses)
    agent = Agent(spec, meeting, ranks, budgets, options.grace)
    agent.heard = heard
    try:
        ended = agent.attend()
    except _ToldError:
        with contextlib.suppress(RuntimeError, OSError):  # the coordinator's connection
            agent.leave()
        meeting.go()
        _say("told to go; ranks have left")
        raise
    if ended.kind == "leaving":
        meeting.go()
        return _stay_or_go(heard)
    if ended.kind == "stopped":
        _say(f"stopped: {ended.why}")
        return STOPPED
    if ended.why:
        _say(f"{ended.why}; to go on with it give it another --job, or start the coordinator anew")
    return DONE


def _stay_or_go(heard: list[str]) -> int | None:
    """The cloud said this machine goes. If it is still here a minute later, that was not so: join again."""
    from stallwise.elastic.clouds import endpoints

    marks = [f"{told.cloud} {told.mark}" for endpoint in endpoints() if (told := endpoint.ask()) is not None]
    _say("the cloud takes this machine; ranks have left")
    time.sleep(float(os.environ.get("STALLWISE_FALSE_ALARM_S", _FALSE_ALARM_S)))
    heard += marks
    _say("still here: a false alarm; joining again")
    return None


def _span(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = 0, 0
    if not 1 <= found[0] <= found[1]:
        raise InputError(f"--nnodes takes LEAST:MOST, like 1:4, not {text!r}.")
    return found


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def told(_signal: int, _frame: FrameType | None) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)  # once is enough: the ranks are being given their time
        raise _ToldError

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, told)
    yield


def _say(sentence: str) -> None:
    sys.stderr.write(f"stallwise: {sentence}\n")
    sys.stderr.flush()
