"""One machine's agent: starts its ranks in every round, and keeps count of why they ended.

A machine that is no member of the coordinator's present round kills its ranks at once, without a save, and joins again.

torchrun's agent counts every end of a rank against one budget, the loss of somebody else's machine included. This one
tells three causes apart by the ranks' exit codes (`protocol.RankExit`) and counts them at the coordinator, over all
machines:

    crash    a rank ended by itself: an exception, a signal nobody announced, out of memory; or ranks say that a peer is
             gone, and nobody is: what looks like a lost connection is then an error of the job's own
    loss     a machine is gone, with notice or without
    change   machines joined, or all ranks are to start again
"""

import logging
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwise.elastic._membership import JobClosedError, JobRendezvous
from stallwise.elastic.forkserver import RankProcesses
from stallwise.elastic.protocol import (
    CAUSE,
    COORDINATOR,
    COORDINATOR_IDENTITY,
    EXPECTED_EXITS,
    GRACE,
    IGNORED_NOTICES,
    ROUND,
    RankExit,
)
from stallwise.elastic.wire import MembershipStatus

log = logging.getLogger("stallwise")

_MONITOR_S = 0.05
_AFTER_LOSS_S = 2.0
"""Time for ranks of a round that has lost a machine to end by themselves."""
_JOIN_S = 600.0
"""Patience when a machine joins: nothing is lost then, and a save may take longer than a grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Crashes and machine losses that a job may have; None: any number."""

    crashes: int = 3
    losses: int | None = None


@dataclass(slots=True)
class AgentResult:
    """How the agent ended; `kind` is done, leaving, or stopped (by a budget)."""

    kind: str
    why: str = ""
    codes: dict[int, int] = field(default_factory=dict)


class BudgetSpentError(Exception):
    """The job has had more crashes or losses than its budget allows."""


class Agent:
    """Starts the ranks of this machine in every round, until the job is done or this machine goes."""

    def __init__(
        self, rendezvous: JobRendezvous, ranks: RankProcesses, local_world: int, budgets: Budgets, grace_s: float
    ) -> None:
        self._rendezvous, self._ranks, self._local_world = rendezvous, ranks, local_world
        self._budgets, self._grace_s = budgets, grace_s
        self.ignored_notices: list[str] = []
        self.round: int | None = None
        self._members: frozenset[str] = frozenset()
        self._cause = ""

    def attend(self) -> AgentResult:
        """Run round after round until the job is done, stopped by a budget, or leaves this machine."""
        try:
            self._begin_round()
            while True:
                time.sleep(_MONITOR_S)
                ended = self._look()
                if ended is not None:
                    return ended
        except JobClosedError:
            return self._closed_by_others()
        except BudgetSpentError as spent:
            self._rendezvous.finish("stopped", str(spent))
            return AgentResult("stopped", str(spent), dict(self._ranks.exits))
        finally:
            self._ranks.stop(signal.SIGTERM, self._grace_s)

    def _closed_by_others(self) -> AgentResult:
        """Return how the others closed the job; `why` names the job where that was before this machine came."""
        status = self._rendezvous.look()
        late = "" if self.round is not None else f"job {self._rendezvous.terms.job!r} has ended"
        if status.closed == "done":
            return AgentResult("done", late)
        return AgentResult("stopped", ": ".join(filter(None, (late, status.why))))

    def _look(self) -> AgentResult | None:
        """Look for ranks that have ended, then for machines that were lost or wait to join."""
        exits = self._without_late_aborts(self._ranks.poll())
        status = self._rendezvous.status()
        if not self._is_member(status):
            self._rejoin()
        elif exits and (self._ranks.running or any(exits.values())):
            return self._end_round() if any(exits.values()) else None
        elif exits:
            return self._finish()
        elif status.closed is not None:
            return None  # others have ended already; these have their last lines to do
        elif status.present < len(status.members):
            self._restart("loss", _AFTER_LOSS_S)
        elif status.waiting > 0 and status.present < self._rendezvous.terms.most:
            # (A spare beyond the most that the job takes may wait there, too; it is for the next loss.)
            self._restart("join", max(self._grace_s, _JOIN_S))
        return None

    def _is_member(self, status: MembershipStatus) -> bool:
        return status.place == "member" and status.round == self.round

    def _finish(self) -> AgentResult | None:
        """All ranks have ended well: the job is done, unless others have taken it over meanwhile."""
        status = self._rendezvous.finish("done")
        if status.closed is None:
            self._rejoin()
            return None
        return AgentResult("done")

    def _rejoin(self) -> None:
        """The others took this machine for lost: what its ranks still do must not count. Kill them, and join again."""
        log.warning("This machine was taken for lost: its ranks are killed without a save, and it joins again.")
        self._cause = "loss"
        self._ranks.stop(signal.SIGKILL, 0.0)
        self._begin_round()

    def _without_late_aborts(self, exits: dict[int, int]) -> dict[int, int]:
        """Count aborts after the session as a clean exit: torch aborts about every fiftieth time it takes down gloo."""
        for local, code in exits.items():
            if code == -signal.SIGABRT and self._rendezvous.is_marked(f"finished/{self.round}"):
                exits[local] = 0
        return exits

    def _end_round(self) -> AgentResult | None:
        """End the round for all ranks: one has ended before the job was done."""
        self._mark_over()
        first = {local: code for local, code in self._ranks.exits.items() if code}
        saved = any(code in (RankExit.AGAIN, RankExit.LEAVING) for code in first.values())
        exits = self._ranks.stop(signal.SIGTERM, self._grace_s if saved else _AFTER_LOSS_S)
        if RankExit.LEAVING in exits.values():
            self.leave()
            return AgentResult("leaving", codes=dict(exits))
        if RankExit.SUPERSEDED in first.values() and self._is_member(self._rendezvous.look()):
            # By its coordinator it is the job, and by the checkpoints another is: one of another coordinator.
            raise BudgetSpentError("its folder of checkpoints was taken over by another coordinator's ranks")
        if RankExit.REFUSED in first.values():
            raise BudgetSpentError("a rank does not accept its input; its output says why")
        crashed = [code for code in first.values() if code not in EXPECTED_EXITS]
        if crashed:
            self._count_once("crashed", "crashes")
        elif RankExit.PEER_LOST in first.values():
            self._rendezvous.add(f"blamed/{self.round}", 1)
        lost = {RankExit.PEER_LOST, RankExit.SUPERSEDED} & set(first.values())
        self._cause = "crash" if crashed else "loss" if lost else "change"
        self._begin_round()
        return None

    def _restart(self, cause: str, patience_s: float) -> None:
        if cause == "loss":
            self._mark_over()
        self._cause = cause
        self._ranks.stop(signal.SIGTERM, patience_s, self._lost_meanwhile)
        self._begin_round()

    def _lost_meanwhile(self) -> bool:
        """Tell whether a machine was lost while ranks save for another that joins; then they wait in vain."""
        status = self._rendezvous.status()
        if status.closed is not None or (self._is_member(status) and status.present >= len(status.members)):
            return False
        self._mark_over()
        return True

    def _begin_round(self) -> None:
        """Take part in the next round, and start its ranks."""
        before, members = self.round, self._members
        self._ranks.stop(signal.SIGKILL, 0.0)
        if before is not None:
            self._retract_loss(before)
        status = self._rendezvous.next_round()
        self.round, self._members = status.round, frozenset(name for name, _ in status.members)
        if before is not None:
            self._settle(before, members - self._members)
        self._stop_if_spent()
        self._start(status)

    def _start(self, status: MembershipStatus) -> None:
        host, port = self._rendezvous.coordinator
        names = [name for name, _ in status.members]
        index = names.index(self._rendezvous.name)
        first = sum(ranks for _, ranks in status.members[:index])
        environments: dict[int, Mapping[str, str]] = {}
        for local in range(self._local_world):
            environments[local] = {
                "RANK": str(first + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(sum(ranks for _, ranks in status.members)),
                "LOCAL_WORLD_SIZE": str(self._local_world),
                "GROUP_RANK": str(index),
                "GROUP_WORLD_SIZE": str(len(names)),
                "TORCHELASTIC_RUN_ID": self._rendezvous.terms.job,
                "TORCHELASTIC_RESTART_COUNT": str(self.round),
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                COORDINATOR: f"{host}:{port}",
                COORDINATOR_IDENTITY: status.coordinator,
                ROUND: str(self.round),
                GRACE: f"{self._grace_s:g}",
                IGNORED_NOTICES: "\n".join(self.ignored_notices),
                CAUSE: self._cause,
            }
        self._ranks.start(environments)

    # Counters, at the coordinator.

    def _mark_over(self) -> None:
        self._rendezvous.mark(f"over/{self.round}")

    def leave(self) -> None:
        """Count this machine as lost: it has had notice."""
        if self.round is not None:
            self._count_loss(self.round, self._rendezvous.name)

    def _count_loss(self, number: int, machine: str) -> None:
        """Count a lost machine once: by itself where it had notice, else by the first agent that misses it."""
        if self._rendezvous.add(f"away/{number}/{machine}", 1) == 1:
            self._rendezvous.add(f"gone/{number}", 1)
            self._rendezvous.add("losses", 1)

    def _retract_loss(self, number: int) -> None:
        """Take back the loss of this machine, which was only late; a spare may have its place in the next round."""
        if self._rendezvous.add(f"away/{number}/{self._rendezvous.name}", 1) > 1:
            self._rendezvous.add(f"gone/{number}", -1)
            self._rendezvous.add("losses", -1)

    def _count_once(self, what: str, counter: str) -> None:
        """Increment a counter once per round, however many agents see the event."""
        if self._rendezvous.add(f"{what}/{self.round}", 1) == 1:
            self._rendezvous.add(counter, 1)

    def _settle(self, before: int, missing: frozenset[str]) -> None:
        """Count missing machines as lost; where ranks blamed a peer and none was lost or crashed, count a crash."""
        for machine in missing:
            self._count_loss(before, machine)
        blamed = self._counted(f"blamed/{before}")
        explained = self._counted(f"gone/{before}", f"crashed/{before}")
        if blamed and not explained and self._rendezvous.add(f"settled/{before}", 1) == 1:
            self._rendezvous.add("crashes", 1)

    def _stop_if_spent(self) -> None:
        crashes, losses = self._counted("crashes"), self._counted("losses")
        if crashes > self._budgets.crashes:
            raise BudgetSpentError(f"ranks have crashed {crashes} times, {self._budgets.crashes} are allowed")
        if self._budgets.losses is not None and losses > self._budgets.losses:
            raise BudgetSpentError(f"machines were lost {losses} times, {self._budgets.losses} are allowed")

    def _counted(self, *keys: str) -> int:
        return sum(self._rendezvous.add(key, 0) for key in keys)
