"""The manager of a fleet: observe, decide, write down, act; until nothing runs any more.

Each look is one pass. What the back end reports is compared with what is written down (`state`); what follows is
written in one transaction before anything is ordered or stopped. So a manager that was killed goes on from its database
and the back end's list alone. What the back end does wrong has a name, stands in the events and is worked around:

    error, timeout     a call failed or did not end: repeated at the next look, under the same name
    no-capacity        no machine is to be had: asked again after a while
    half-created       ordered, but not running in time: stopped, another one ordered
    vanished           not in the list any more: counted as lost
    returned           ended or vanished, and running again: stopped
    orphan             has our token, but was never written down: stopped
    duplicate          two machines of one name: the first stays
    stuck              told to stop, and still there: told again until it is gone
    silent             reported as running, but does not take part in the job: replaced
    ended-early        its command ended while the job went on: replaced
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from stallwise.fleet._backend import BackendError, MachineBackend, MachineOrder, Market, ReportedMachine
from stallwise.fleet._forecast import (
    FleetForecast,
    budget_reached,
    forecast,
    must_switch,
    replacement_pays,
    work_left_s,
)
from stallwise.fleet.jobs import FleetJob, FleetProgress
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import FleetState, MachineRow
from stallwise.units import SECONDS_PER_HOUR

FleetOutcome = Literal["done", "budget", "down", "failed"]
FAULTS = (
    *("error", "timeout", "no-capacity", "name-taken", "half-created", "vanished", "returned", "orphan", "duplicate"),
    *("stuck", "silent", "ended-early"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerTiming:
    """Seconds of the back end's clock, and numbers of looks."""

    poll_s: float = 2.0
    boot_limit_s: float = 900.0
    stop_limit_s: float = 120.0
    silent_s: float = 300.0
    capacity_wait_s: float = 60.0
    bill_s: float = 60.0
    reserve_s: float = 60.0
    """Of the fleet's cost, kept of the budget for saving and stopping."""
    looks: int = 3
    """In a row, before a machine that is not listed counts as gone."""
    early_ends: int = 10
    """Machines in a row whose command ended without progress, before the job is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """What is known of a fleet at a look."""

    name: str
    phase: str
    """running, ending, or how it ended: done, budget, down, failed."""
    why: str
    elapsed_s: float
    machines: int
    training: int
    running: int
    pending: int
    fraction: float | None
    market: Market
    spent_usd: float
    forecast: FleetForecast | None
    losses: int
    faults: dict[str, int]


class FleetManager:
    """Runs one fleet. `look` is one pass, `run` all of them."""

    def __init__(
        self,
        plan: FleetPlan,
        state: FleetState,
        backend: MachineBackend,
        job: FleetJob,
        timing: ManagerTiming | None = None,
        report: Callable[[FleetStatus], None] | None = None,
    ) -> None:
        self._plan, self._state, self._backend, self._job = plan, state, backend, job
        self._timing = timing or ManagerTiming()
        self._report = report
        self._missing: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._failing: dict[str, str] = {}
        self._not_before_s = -math.inf
        self._empty_looks = 0
        self._progress = FleetProgress()
        self._price: dict[Market, float] = {}
        self._listed: list[ReportedMachine] = []

    def run(self) -> FleetOutcome:
        """Look until the fleet is closed."""
        while not self.look():
            self._backend.clock.sleep(self._timing.poll_s)
        outcome: FleetOutcome = self._state.fact("ending")
        return outcome

    def look(self) -> bool:
        """Make one pass; True: everything has ended and is settled."""
        if self._state.fact("closed"):
            return True
        now_s = self._backend.clock.now_s()
        self._begin(now_s)
        reported = self._list(now_s)
        if reported is not None:
            self._listed = reported
            self._reconcile(reported, now_s)
            hosts = self._hosts(reported)
            self._progress = self._job.progress(now_s, hosts)
            self._find_silent(reported, now_s)
        self._decide(now_s)
        self._act(now_s)
        closed = reported is not None and self._close(reported, now_s)
        self._tell(now_s)
        return closed

    def end(self, why: FleetOutcome, sentence: str = "") -> None:
        """Stop everything; `look` brings it about."""
        now_s = self._backend.clock.now_s()
        with self._state.transaction():
            if self._state.fact("ending") is None:
                self._state.set_facts(ending=why, why=sentence, ending_s=now_s)
                self._state.note(now_s, "ending", outcome=why, why=sentence)
            for row in self._rows():
                if row.phase not in ("stopping", "ended"):
                    self._state.change(row, now_s, "stopping", phase="stopping", why=why)

    # What is there

    def _begin(self, now_s: float) -> None:
        if self._state.fact("begin_s") is None:
            with self._state.transaction():
                self._state.set_facts(begin_s=now_s, market=self._plan.market, size=self._plan.machines)
                self._state.note(now_s, "began", machines=self._plan.machines, market=self._plan.market)

    def _list(self, now_s: float) -> list[ReportedMachine] | None:
        try:
            reported = self._backend.machines(self._state.token)
            for market in ("spot", "on-demand"):
                self._price[market] = self._backend.usd_per_h(market)
        except BackendError as error:
            self._fault("list", error, now_s)
            return None
        self._failing.pop("list", None)
        return reported

    def _fault(self, what: str, error: BackendError, now_s: float) -> None:
        """Note a fault once as long as it lasts."""
        if self._failing.get(what) != error.code:
            self._failing[what] = error.code
            self._state.note(now_s, error.code, None, call=what, message=str(error)[:300])

    def _reconcile(self, reported: Sequence[ReportedMachine], now_s: float) -> None:
        """Bring what is written down to what is reported."""
        rows = self._state.machines()
        by_name: dict[str, ReportedMachine] = {}
        surplus: list[ReportedMachine] = []
        with self._state.transaction():
            for one in sorted(reported, key=lambda one: (one.state == "ended", one.ordered_s)):
                if one.name in by_name and one.state != "ended":
                    self._name_once("duplicate", one, now_s)
                    surplus.append(one)
                elif one.name not in by_name:
                    by_name[one.name] = one
                    if one.state != "ended" and (one.name not in rows or rows[one.name].phase == "ended"):
                        self._name_once("returned" if one.name in rows else "orphan", one, now_s)
                        surplus.append(one)
            for row in rows.values():
                if row.phase != "ended":
                    self._follow(row, by_name.get(row.name), now_s)
        for one in surplus:
            self._stop(one.key, now_s)

    def _name_once(self, kind: str, one: ReportedMachine, now_s: float) -> None:
        mark = f"{kind} {one.key}"
        if mark not in self._since:
            self._since[mark] = now_s
            self._state.note(now_s, kind, one.name)

    def _follow(self, row: MachineRow, one: ReportedMachine | None, now_s: float) -> None:
        if one is None:
            self._follow_missing(row, now_s)
            return
        self._missing.pop(row.name, None)
        if row.ready_s is None and one.ready_s is not None:
            event = None if row.phase == "stopping" else "running"
            phase = "stopping" if row.phase == "stopping" else "running"
            row = self._state.change(row, now_s, event, phase=phase, ready_s=one.ready_s, billed_s=one.ready_s)
        row = self._bill(row, min(now_s, one.ended_s or now_s), at_once=one.state == "ended")
        if one.state == "ended":
            why = one.why if one.why in ("preempted", "lost") else row.why or one.why or "lost"
            self._ended(row, one.ended_s or now_s, why, now_s)
        elif row.phase == "ordering":
            row = self._state.change(row, now_s, "ordered", phase="ordered")
        if row.phase == "running" and one.notice:
            self._state.change(row, now_s, "noticed", phase="noticed")
        elif row.phase == "running" and _ended_early(row, one):
            self._replace(row, "ended-early", now_s)
        elif row.phase == "ordered" and now_s - row.ordered_s > self._timing.boot_limit_s:
            self._replace(row, "half-created", now_s)

    def _follow_missing(self, row: MachineRow, now_s: float) -> None:
        if row.phase == "ordering":
            return
        self._missing[row.name] = looks = self._missing.get(row.name, 0) + 1
        if looks < self._timing.looks:
            return
        if row.phase == "stopping":
            self._ended(row, now_s, row.why, now_s)
        else:
            self._state.note(now_s, "vanished", row.name)
            self._ended(row, now_s, "vanished", now_s)

    def _replace(self, row: MachineRow, fault: str, now_s: float) -> None:
        self._state.note(now_s, fault, row.name)
        self._state.change(row, now_s, None, phase="stopping", why=fault)

    def _ended(self, row: MachineRow, ended_s: float, why: str, now_s: float) -> None:
        self._missing.pop(row.name, None)
        row = self._bill(row, ended_s, at_once=True)
        self._state.change(row, now_s, "ended", phase="ended", ended_s=ended_s, why=why)

    def _bill(self, row: MachineRow, until_s: float, *, at_once: bool = False) -> MachineRow:
        """Add the cost since the last bill at the present price."""
        if not row.costs or row.billed_s is None:
            return row
        since_s = until_s - row.billed_s
        if since_s <= 0 or (since_s < self._timing.bill_s and not at_once):
            return row
        usd = row.usd + since_s * self._price.get(row.market, 0.0) / SECONDS_PER_HOUR
        return self._state.change(row, until_s, usd=usd, billed_s=until_s)

    def _find_silent(self, reported: Sequence[ReportedMachine], now_s: float) -> None:
        """Replace machines that are reported as running and do not take part."""
        members = self._progress.members
        if members is None or self._progress.training == 0:
            return
        rows = self._state.machines()
        with self._state.transaction():
            for one in reported:
                row = rows.get(one.name)
                if row is None or row.role != "host" or row.phase != "running" or one.exit_code is not None:
                    continue
                if one.name in members:
                    self._since[f"heard {one.name}"] = now_s
                    continue
                heard_s = max(row.ready_s or now_s, self._since.setdefault(f"heard {one.name}", now_s))
                if now_s - heard_s > self._timing.silent_s:
                    self._replace(row, "silent", now_s)

    # What is to be

    def _decide(self, now_s: float) -> None:
        if self._state.fact("ending") is not None:
            self.end(self._state.fact("ending"))  # machines that were written down by a manager that was killed
            return
        progress = self._progress
        early = self._early_ends()
        if progress.done:
            self.end("done")
        elif progress.failure:
            self.end("failed", progress.failure)
        elif early >= self._timing.early_ends:
            self.end("failed", f"the command ended on {early} machines in a row")
        elif self._state.fact("request") == "down":
            self.end("down")
        elif self._over_budget(now_s):
            self.end("budget")
        else:
            self._size(now_s)

    def _early_ends(self) -> int:
        count = 0
        for row in reversed(self._state.machines().values()):
            if row.role == "host" and row.phase in ("ended", "stopping"):
                if row.why != "ended-early":
                    break
                count += 1
        return count

    def _over_budget(self, now_s: float) -> bool:
        rate = sum(self._price.get(row.market, 0.0) for row in self._rows() if row.costs)
        ahead_s = self._timing.reserve_s + self._timing.poll_s
        return budget_reached(self._plan, spent_usd=self.spent_usd(now_s), usd_per_h=rate, ahead_s=ahead_s)

    def _market(self, now_s: float, left_s: float | None) -> Market:
        """The market to order from: on-demand from the moment at which the deadline asks for it."""
        market: Market = self._state.fact("market", self._plan.market)
        if market == "on-demand" or left_s is None:
            return market
        begin_s = self._state.fact("begin_s")
        if must_switch(self._plan, now_s=now_s - begin_s, left_s=left_s, margin_s=2 * self._timing.poll_s):
            market = "on-demand"
            with self._state.transaction():
                self._state.set_facts(market=market, switched_s=now_s)
                self._state.note(now_s, "switched", left_s=left_s)
        return market

    def _size(self, now_s: float) -> None:
        """Order what is missing, release what is too much, go to on-demand in time."""
        size = int(self._state.fact("size", self._plan.machines))
        left_s = self._left_s()
        market = self._market(now_s, left_s)
        hosts = [row for row in self._rows() if row.role == "host"]
        held = [row for row in hosts if row.market == market and row.phase in ("ordering", "ordered", "running")]
        with self._state.transaction():
            if self._job.coordinated and not any(
                row.role == "coordinator" and row.phase in ("ordering", "ordered", "running") for row in self._rows()
            ):
                self._state.add("coordinator", "on-demand", now_s, name=self._plan.name, paid=False)
            for present in range(len(held), size):
                if self._worth_ordering(market, size, present, left_s, now_s):
                    self._state.add("host", market, now_s, name=self._plan.name)
            for row in held[size:]:
                self._state.change(row, now_s, "stopping", phase="stopping", why="resized")
            if market == "on-demand" and sum(row.phase == "running" for row in held) >= size:
                for row in hosts:
                    if row.market == "spot" and row.phase in ("ordering", "ordered", "running"):
                        self._state.change(row, now_s, "stopping", phase="stopping", why="switched")

    def _worth_ordering(self, market: Market, size: int, present: int, left_s: float | None, now_s: float) -> bool:
        if now_s < self._not_before_s:
            return False
        spot, other = self._price.get("spot"), self._plan.on_demand_usd_per_h
        if market == "spot" and spot is not None and other is not None and spot > other:
            return False
        if left_s is None:
            return True
        boot_s, pause_s = self._plan.provision_s + self._plan.restart_s, self._plan.restart_s
        return replacement_pays(left_s, size, present, boot_s, pause_s)

    def _left_s(self) -> float | None:
        return work_left_s(self._plan, self._progress.fraction, self._progress.full_rate)

    # What is done

    def _act(self, now_s: float) -> None:
        for row in self._rows():
            if row.phase == "ordering":
                self._order(row, now_s)
            elif row.phase == "stopping":
                keys = [one.key for one in self._listed if one.name == row.name and one.state != "ended"]
                for key in keys or [row.name]:
                    self._stop(key, now_s)
                begun_s = self._since.setdefault(f"stop {row.name}", now_s)
                if keys and now_s - begun_s > self._timing.stop_limit_s and f"stuck {row.name}" not in self._since:
                    self._since[f"stuck {row.name}"] = now_s
                    self._state.note(now_s, "stuck", row.name)

    def _order(self, row: MachineRow, now_s: float) -> None:
        command, environment = self._job.command(row.role, row.name)
        order = MachineOrder(
            name=row.name,
            token=self._state.token,
            market=row.market,
            command=command,
            environment=tuple(environment.items()),
        )
        try:
            self._backend.start(order)
        except BackendError as error:
            self._fault(f"order {row.market}", error, now_s)
            if error.code in ("no-capacity", "name-taken"):
                self._not_before_s = now_s + self._timing.capacity_wait_s
                with self._state.transaction():
                    self._state.forget(row)
            elif now_s - row.ordered_s > self._timing.boot_limit_s:
                with self._state.transaction():
                    self._replace(row, "half-created", now_s)
            return
        with self._state.transaction():
            self._state.change(row, now_s, "ordered", phase="ordered")
        self._failing.pop(f"order {row.market}", None)

    def _stop(self, key: str, now_s: float) -> None:
        try:
            self._backend.stop(key)
        except BackendError as error:
            self._fault(f"stop {key}", error, now_s)

    def _close(self, reported: Sequence[ReportedMachine], now_s: float) -> bool:
        """Settle when nothing of this fleet has been seen for some looks."""
        if self._state.fact("ending") is None or self._rows() or any(one.state != "ended" for one in reported):
            self._empty_looks = 0
            return False
        self._empty_looks += 1
        if self._empty_looks < self._timing.looks:
            return False
        with self._state.transaction():
            self._state.set_facts(closed=True, closed_s=now_s)
            self._state.note(now_s, "closed")
        return True

    # What is told

    def _rows(self) -> list[MachineRow]:
        """Machines that have not ended."""
        return [row for row in self._state.machines().values() if row.phase != "ended"]

    def _hosts(self, reported: Sequence[ReportedMachine]) -> list[ReportedMachine]:
        rows = self._state.machines()
        return [one for one in reported if one.name in rows and rows[one.name].role == "host"]

    def spent_usd(self, now_s: float) -> float:
        """Dollars so far, with what is not billed yet."""
        total = 0.0
        for row in self._state.machines().values():
            total += row.usd
            if row.costs and row.billed_s is not None:
                total += max(0.0, now_s - row.billed_s) * self._price.get(row.market, 0.0) / SECONDS_PER_HOUR
        return total

    def status(self) -> FleetStatus:
        """The state of things as of the last look."""
        state, progress, now_s = self._state, self._progress, self._backend.clock.now_s()
        rows = [row for row in self._rows() if row.role == "host"]
        elapsed_s = now_s - (state.fact("begin_s") or now_s)
        market: Market = state.fact("market", self._plan.market)
        spent_usd, left_s, ahead = self.spent_usd(now_s), self._left_s(), None
        ending = state.fact("ending")
        if left_s is not None and ending is None:
            ahead = forecast(
                replace(self._plan, machines=int(state.fact("size", self._plan.machines))),
                now_s=elapsed_s,
                left_s=left_s,
                training=progress.training,
                spent_usd=spent_usd,
                market=market,
                usd_per_h=self._price.get(market, self._plan.usd_per_h(market) or 0.0),
            )
        faults = state.count_events(FAULTS)
        return FleetStatus(
            name=self._plan.name,
            phase=("ending" if not state.fact("closed") else ending) if ending else "running",
            why=state.fact("why", ""),
            elapsed_s=elapsed_s,
            machines=int(state.fact("size", self._plan.machines)),
            training=progress.training,
            running=sum(row.phase in ("running", "noticed") for row in rows),
            pending=sum(row.phase in ("ordering", "ordered") for row in rows),
            fraction=progress.fraction,
            market=market,
            spent_usd=spent_usd,
            forecast=ahead,
            losses=sum(row.why in ("preempted", "lost", "vanished") for row in state.machines().values()),
            faults=faults,
        )

    def _tell(self, now_s: float) -> None:
        """Keep the progress for other processes, and report it."""
        progress = self._progress
        first_s = self._state.fact("first_s")
        facts = {"redone_s": progress.redone_s, "fraction": progress.fraction}
        if progress.full_rate:
            facts["full_rate"] = progress.full_rate
        if first_s is None and progress.first_s is not None:
            facts["first_s"] = progress.first_s
        if progress.done:
            facts["done_s"] = progress.done_s or self._state.fact("done_s") or now_s
        known = self._since.get("told", -math.inf)
        if self._report is not None or now_s - known >= self._timing.bill_s or self._state.fact("ending"):
            self._since["told"] = now_s
            status = self.status()
            with self._state.transaction():
                self._state.set_facts(**facts, status=asdict(status))
            if self._report is not None:
                self._report(status)


def _ended_early(row: MachineRow, one: ReportedMachine) -> bool:
    """Whether the command ended while the job went on; a host that ends with 0 says that the job is done."""
    return one.exit_code is not None and (one.exit_code != 0 or row.role == "coordinator")
