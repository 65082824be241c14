"""The command that runs on each machine, and on the one that is not preemptible.

    python -m stallwise.elastic coordinator --address 10.0.0.2 --port 29400
    python -m stallwise.elastic host --coordinator ADDRESS:29400 --nnodes 1:4 --nproc-per-node 8 train.py …

Exit codes of a host: 0 the job is done; 1 it was stopped by a budget; 2 bad usage; 3 the coordinator stayed away;
143 this machine is revoked (SIGTERM, or the cloud's notice) and its ranks have saved.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from stallwise.elastic._agent import Agent, Budgets
from stallwise.elastic._membership import JobRendezvous, JobTerms, RendezvousTiming
from stallwise.elastic.wire import SECRET_VARIABLE, CoordinatorLostError, job_secret
from stallwise.errors import InputError, StallwiseError

if TYPE_CHECKING:
    from stallwise.elastic.forkserver import RankProcesses

DONE, STOPPED, USAGE, ALONE, GONE = 0, 1, 2, 3, 143
_LOOK_S = 0.5
_FALSE_ALARM_S = 60.0


class _SignalError(Exception):
    """SIGTERM or SIGINT has come."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    # A lost peer or coordinator is reported in one sentence; torch's C++ would add pages of frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        with _signals():
            return int(options.run(options))
    except _SignalError:
        return GONE
    except StallwiseError as error:
        flags = ", ".join("--" + field.replace("_", "-") for field in error.fields)
        _say(f"{error} Options: {flags}." if flags else str(error))
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stallwise.elastic", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    secret = argparse.ArgumentParser(add_help=False)
    secret.add_argument(
        "--secret-file", type=Path, default=None, metavar="FILE",
        help=f"the job secret, the same on all machines; else {SECRET_VARIABLE}, else a file of this user's",
    )  # fmt: skip
    store = commands.add_parser(
        "coordinator", parents=[secret], help="where machines meet; run it where nothing is revoked"
    )
    store.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    store.add_argument("--port", type=int, default=29400)
    store.set_defaults(run=_coordinate)
    host = commands.add_parser("host", parents=[secret], help="run this machine's ranks of a job")
    host.add_argument("--coordinator", required=True, metavar="ADDRESS:PORT")
    host.add_argument(
        "--nnodes", default="1:64", metavar="LEAST:MOST",
        help="machines the job takes (1:64); with fewer than LEAST it waits",
    )  # fmt: skip
    host.add_argument("--nproc-per-node", type=int, default=1, help="ranks on this machine (1)")
    host.add_argument("--job", default=None, help="name of the job (that of its script)")
    host.add_argument("--again", action="store_true", help="begin the job anew where it has ended at this coordinator")
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
    from stallwise.elastic._coordinator import serve

    if not 0 <= options.port <= 65535:
        raise InputError(f"There is no port {options.port}.", fields=("port",))

    def report(port: int) -> None:
        sys.stdout.write(f"coordinator listens on {options.address}, port {port}\n")
        sys.stdout.flush()

    try:
        serve(options.address, options.port, job_secret(options.secret_file), report)
    except (OSError, OverflowError) as error:
        raise InputError(f"{options.address}, port {options.port} cannot be served: {error}.") from None
    return DONE


def _host(options: argparse.Namespace) -> int:
    """Take part in the job; where the coordinator is lost, ranks save and all begin again when it is back."""
    from stallwise.elastic.forkserver import RankProcesses

    if not options.command:
        raise InputError("The command of host has no script: name it after the options, like train.py.")
    _span(options.nnodes)
    # Ranks, too, meet at the coordinator: they take the secret from the environment.
    os.environ[SECRET_VARIABLE] = job_secret(options.secret_file).decode()
    ignored: list[str] = []
    lost_s: float | None = None
    with contextlib.closing(RankProcesses(options.command)) as ranks:
        ranks.ready()
        while True:
            try:
                rendezvous = _rendezvous(options)
                lost_s = None
                with contextlib.closing(rendezvous):
                    code = _attend(options, rendezvous, ranks, ignored)
                if code is not None:
                    return code
            except CoordinatorLostError as error:
                if lost_s is None:
                    _say(f"the coordinator {options.coordinator} does not answer ({error})")
                lost_s = lost_s or time.monotonic()
                if time.monotonic() - lost_s > options.patience:
                    return ALONE
                time.sleep(_LOOK_S)


def _rendezvous(options: argparse.Namespace) -> JobRendezvous:
    """Connect to the coordinator."""
    address, _, port = options.coordinator.rpartition(":")
    if not port.isdigit():
        raise InputError(
            f"The coordinator is named ADDRESS:PORT, not {options.coordinator!r}.", fields=("coordinator",)
        )
    least, most = _span(options.nnodes)
    program = _program(options.command)
    terms = JobTerms(job=options.job or program, least=least, most=most, program=program, again=options.again)
    timing = RendezvousTiming(last_call_s=options.last_call, heartbeat_s=options.heartbeat)
    return JobRendezvous(
        address.strip("[]") or "127.0.0.1", int(port), job_secret(), terms, options.nproc_per_node, timing
    )


def _program(command: Sequence[str]) -> str:
    """Return the name of the script or module: arguments and paths may differ between machines."""
    return command[1] if command[0] == "-m" and len(command) > 1 else Path(command[0]).stem


def _attend(
    options: argparse.Namespace, rendezvous: JobRendezvous, ranks: "RankProcesses", ignored: list[str]
) -> int | None:
    """Run the agent until it ends; returns the exit code, None: join again."""
    budgets = Budgets(crashes=options.max_crashes, losses=options.max_losses)
    agent = Agent(rendezvous, ranks, options.nproc_per_node, budgets, options.grace)
    agent.ignored_notices = ignored
    try:
        ended = agent.attend()
    except _SignalError:
        with contextlib.suppress(OSError, StallwiseError):  # the coordinator's connection
            agent.leave()
        rendezvous.leave()
        _say("revoked; ranks have left")
        raise
    if ended.kind == "leaving":
        rendezvous.leave()
        return _wait_for_revocation(ignored)
    rendezvous.leave()
    if ended.kind == "stopped":
        _say(f"stopped: {ended.why}")
        return STOPPED
    if ended.why:
        _say(f"{ended.why}; to go on with it, start its hosts with the option `again`, or the coordinator anew")
    return DONE


def _wait_for_revocation(ignored: list[str]) -> int | None:
    """Wait for the revocation that the cloud has announced; after a minute it is a false alarm: join again."""
    from stallwise.elastic._notices import metadata_endpoints

    marks = [f"{one.cloud} {one.mark}" for endpoint in metadata_endpoints() if (one := endpoint.query()) is not None]
    _say("the cloud takes this machine; ranks have left")
    time.sleep(float(os.environ.get("STALLWISE_FALSE_ALARM_S", _FALSE_ALARM_S)))
    ignored += marks
    _say("still here: a false alarm; joining again")
    return None


def _span(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        span = int(least), int(most or least)
    except ValueError:
        span = 0, 0
    if not 1 <= span[0] <= span[1]:
        raise InputError(f"The number of machines is LEAST:MOST, like 1:4, not {text!r}.", fields=("nnodes",))
    return span


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # once is enough: the ranks are being given their time
        raise _SignalError

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    yield


def _say(sentence: str) -> None:
    sys.stderr.write(f"stallwise: {sentence}\n")
    sys.stderr.flush()
