"""The manager on simulated machines: plans carried out, limits kept, and every fault of a back end by its name."""

from dataclasses import replace

import pytest

from stallwise.fleet._backend import BackendError, BoundedBackend, MachineOrder, ReportedMachine
from stallwise.fleet.jobs import FleetProgress, StandInCosts, StandInJob
from stallwise.fleet.ledger import FleetReceipt, receipt
from stallwise.fleet.manager import FleetManager, ManagerTiming
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.rehearsal import SimulatedCloud, rehearse
from stallwise.fleet.state import FleetState
from tests.fleet.faulty import FaultyCloud, hidden, pending

COSTS = StandInCosts(start_s=60.0, join_s=10.0, notice_s=10.0, loss_s=30.0, save_s=2.0)
MARKET = MarketTrace(spot_usd_per_h=1.0, on_demand_usd_per_h=3.0, boot_s=60.0)
PLAN = FleetPlan(
    name="job", machines=2, spot_usd_per_h=1.0, on_demand_usd_per_h=3.0, work_s=7200.0, time_s=7600.0, usd=4.2,
    provision_s=60.0, restart_s=60.0,
)  # fmt: skip
MARK = "t"
TIMING = ManagerTiming(poll_s=15.0, boot_limit_s=300.0, silent_s=300.0, stop_limit_s=60.0)


class Fleet:
    """A manager on a back end that may do wrong."""

    def __init__(self, plan: FleetPlan = PLAN, market: MarketTrace = MARKET) -> None:
        self.plan, self.cloud, self.state = plan, FaultyCloud(market), FleetState.in_memory()
        self.manager = self.another()

    def another(self) -> FleetManager:
        """A manager that knows only what is written down."""
        job = StandInJob(self.plan, COSTS)
        self.manager = FleetManager(self.plan, self.state, BoundedBackend(self.cloud, 280.0), job, TIMING)
        return self.manager

    def look(self, times: int) -> None:
        for _ in range(times):
            self.manager.look()
            self.cloud.clock.sleep(TIMING.poll_s)

    def finish(self) -> FleetReceipt:
        for _ in range(5000):
            if self.manager.look():
                break
            self.cloud.clock.sleep(TIMING.poll_s)
        assert self.state.fact("closed"), "the fleet did not end"
        assert self.cloud.running(self.state.token) == []
        return receipt(self.plan, self.state)

    def kinds(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, event in self.state.events():
            counts[event.kind] = counts.get(event.kind, 0) + 1
        return counts


def test_a_calm_fleet_takes_its_work_and_costs_its_hours() -> None:
    fleet = Fleet()
    result = fleet.finish()
    assert result.outcome == "done"
    assert fleet.cloud.started == ["job-1", "job-2"]
    # Boot (48 to 72 s), start, join, work and a save every ten minutes.
    assert 7200 + 108 < result.lived.time_s < 7200 + 72 + 60 + 20 + 12 * 2 + 5
    hours = sum(one.lived_s for one in result.machines) / 3600
    assert result.lived.usd == pytest.approx(hours * 1.0, rel=1e-9)
    assert sum(result.lived.parts_s.values()) == pytest.approx(result.lived.time_s, rel=1e-6)


def test_the_budget_is_never_passed() -> None:
    result = Fleet(replace(PLAN, budget_usd=1.5)).finish()
    assert (result.outcome, result.in_budget) == ("budget", True)
    assert 1.2 < result.lived.usd <= 1.5


def test_on_demand_comes_in_time_for_the_deadline() -> None:
    """Spot machines go after half an hour and do not come back."""
    market = replace(MARKET, counts_at_s=(0.0, 1800.0), counts=(2, 0))
    fleet = Fleet(replace(PLAN, deadline_s=3 * 3600.0), market)
    result = fleet.finish()
    assert (result.outcome, result.in_time) == ("done", True)
    assert fleet.kinds()["switched"] == 1
    assert 0 < result.lived.on_demand_usd < 2 * 3.0 * 3
    assert result.lived.losses == 2
    assert fleet.kinds()["no-capacity"] == 1, "a streak is one event"


def test_a_loss_with_notice_is_replaced_before_it_comes() -> None:
    market = replace(MARKET, grace_s=120.0, counts_at_s=(0.0, 1800.0, 1801.0), counts=(2, 1, 2))
    fleet = Fleet(market=market)
    fleet.look(int(1800 / TIMING.poll_s) - 3)
    assert fleet.kinds().get("noticed") == 1
    assert len(fleet.cloud.started) <= 2  # its place is taken until it goes
    result = fleet.finish()
    assert (result.outcome, result.lived.losses, result.lived.parts_s["redone"]) == ("done", 1, 0.0)


def test_nothing_is_ordered_for_the_last_minute() -> None:
    market = replace(MARKET, counts_at_s=(0.0, 7300.0, 7310.0), counts=(2, 1, 2))
    fleet = Fleet(market=market)
    result = fleet.finish()
    assert result.lived.machines == 2
    assert fleet.cloud.started == ["job-1", "job-2"]


@pytest.mark.parametrize("call", ["start", "list", "stop", "price"])
@pytest.mark.parametrize("code", ["error", "timeout"])
def test_a_call_that_fails_is_made_again(call: str, code: str) -> None:
    fleet = Fleet()
    fleet.cloud.faults[call] = [BackendError("not now", code), BackendError("not now", code)]
    result = fleet.finish()
    assert result.outcome == "done"
    assert fleet.cloud.started == ["job-1", "job-2"], "the same names, once each"
    if call != "stop":
        assert fleet.kinds()[code] >= 1


def test_any_exception_of_a_back_end_is_an_error_by_name() -> None:
    class Broken(SimulatedCloud):
        def machines(self, token: str) -> list[ReportedMachine]:
            raise KeyError("region")

    with pytest.raises(BackendError, match=r"failed at 'list' \(KeyError: 'region'\)"):
        BoundedBackend(Broken(MARKET)).machines("x")


def test_a_call_that_does_not_end_is_given_up() -> None:
    import threading

    release = threading.Event()

    class Slow(SimulatedCloud):
        def start(self, order: MachineOrder) -> None:
            release.wait(60)

    with pytest.raises(BackendError) as raised:
        BoundedBackend(Slow(MARKET), 0.05).start(MachineOrder(name="a", token=MARK, market="spot", command=()))
    release.set()
    assert raised.value.code == "timeout"


def test_an_order_that_failed_and_made_a_machine_is_that_machine() -> None:
    fleet = Fleet()
    fleet.cloud.faults["start"] = [BackendError("created, but no answer", "timeout")]
    result = fleet.finish()
    assert (result.outcome, fleet.cloud.started) == ("done", ["job-1", "job-2"])


def test_no_capacity_that_made_a_machine_leaves_an_orphan_that_is_stopped() -> None:
    fleet = Fleet()
    fleet.cloud.faults["start"] = [BackendError("created all the same", "no-capacity")]
    result = fleet.finish()
    assert result.outcome == "done"
    assert fleet.kinds()["orphan"] == 1


def test_a_machine_that_does_not_get_ready_is_replaced() -> None:
    fleet = Fleet()
    fleet.cloud.lie = pending({"job-2"})
    result = fleet.finish()
    assert (result.outcome, fleet.kinds()["half-created"]) == ("done", 1)
    assert fleet.cloud.started == ["job-1", "job-2", "job-3"]


def test_a_machine_that_is_not_listed_for_a_moment_is_not_replaced() -> None:
    fleet = Fleet()
    fleet.cloud.lie = hidden({"job-2"}, 1000.0, 1000.0 + 2 * TIMING.poll_s)
    fleet.finish()
    assert fleet.cloud.started == ["job-1", "job-2"]


def test_a_machine_that_vanished_and_returns_is_stopped() -> None:
    fleet = Fleet()
    fleet.cloud.lie = hidden({"job-2"}, 1000.0, 2000.0)
    result = fleet.finish()
    assert result.outcome == "done"
    assert {kind: count for kind, count in fleet.kinds().items() if kind in ("vanished", "returned")} == {
        "vanished": 1, "returned": 1,
    }  # fmt: skip
    assert fleet.cloud.started == ["job-1", "job-2", "job-3"]


def test_of_two_machines_with_one_name_the_first_stays() -> None:
    fleet = Fleet()
    fleet.look(10)
    twin = MachineOrder(name="job-1-again", token=fleet.state.token, market="spot", command=())
    fleet.cloud.cloud.start(twin)
    fleet.cloud.lie = lambda machines, _: [
        replace(one, name="job-1", ident=one.name) if one.name == "job-1-again" else one for one in machines
    ]
    result = fleet.finish()
    assert (result.outcome, fleet.kinds()["duplicate"]) == ("done", 1)


def test_an_end_that_is_not_carried_out_is_asked_for_until_it_is() -> None:
    fleet = Fleet()
    fleet.cloud.deaf = {"job-2"}
    fleet.look(20)
    fleet.manager.end("down")
    fleet.look(20)
    assert fleet.kinds()["stuck"] == 1
    assert not fleet.state.fact("closed")
    fleet.cloud.deaf = set()
    assert fleet.finish().outcome == "down"


def test_a_machine_that_runs_only_on_paper_is_replaced() -> None:
    class Partly(StandInJob):
        def progress(self, now_s: float, machines: "list[ReportedMachine]") -> FleetProgress:  # type: ignore[override]
            now = super().progress(now_s, [one for one in machines if one.name != "job-2"])
            return replace(now, members=(now.members or frozenset()) - {"job-2"})

    fleet = Fleet()
    job = Partly(fleet.plan, COSTS)
    fleet.manager = FleetManager(fleet.plan, fleet.state, fleet.cloud, job, TIMING)
    result = fleet.finish()
    assert (result.outcome, fleet.kinds()["silent"]) == ("done", 1)
    assert fleet.cloud.started == ["job-1", "job-2", "job-3"]


def test_a_command_that_keeps_ending_is_given_up() -> None:
    fleet = Fleet()
    fleet.cloud.lie = lambda machines, _: [
        replace(one, exit_code=1) if one.state == "running" else one for one in machines
    ]
    result = fleet.finish()
    assert result.outcome == "failed"
    assert "ended on" in result.why
    assert len(fleet.cloud.started) <= TIMING.early_ends + 2


def test_a_manager_that_is_replaced_all_the_time_does_the_same() -> None:
    market = replace(MARKET, counts_at_s=(0.0, 1800.0, 2400.0, 4000.0), counts=(2, 1, 2, 2))
    one, each = Fleet(market=market), Fleet(market=market)
    expected = one.finish()
    for number in range(5000):
        if (each.another() if number % 5 == 0 else each.manager).look():
            break
        each.cloud.clock.sleep(TIMING.poll_s)
    result = receipt(each.plan, each.state)
    # It may ask for a machine earlier than the wait after "no capacity" would have it, and look again before it closes.
    assert abs(result.lived.time_s - expected.lived.time_s) <= TIMING.capacity_wait_s + TIMING.poll_s
    assert abs(result.lived.usd - expected.lived.usd) < 0.05
    assert (result.outcome, result.lived.machines, len(each.cloud.started)) == ("done", 3, 3)
    assert each.cloud.running(each.state.token) == []


def test_another_size_is_followed() -> None:
    fleet = Fleet()
    fleet.look(20)
    with fleet.state.transaction():
        fleet.state.set_facts(size=4)
    fleet.look(20)
    assert len(fleet.cloud.running(fleet.state.token)) == 4
    with fleet.state.transaction():
        fleet.state.set_facts(size=1)
    fleet.look(5)
    assert len(fleet.cloud.running(fleet.state.token)) == 1
    assert fleet.finish().outcome == "done"


def test_rehearsals_depend_on_the_market_alone() -> None:
    markets = [replace(MARKET, counts_at_s=(0.0, 900.0 * (n + 1), 4000.0), counts=(2, 1, 2)) for n in range(2)]
    first, again = (rehearse(PLAN, markets, COSTS, TIMING) for _ in range(2))
    assert [one.lived for one in first.receipts] == [one.lived for one in again.receipts]
    assert first.cost_error is not None
    assert abs(first.cost_error) < 0.1
