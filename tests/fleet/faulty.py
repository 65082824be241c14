"""A back end in memory that does wrong on request."""

from collections.abc import Callable
from dataclasses import replace

from stallwise.fleet._backend import BackendError, MachineOrder, Market, ReportedMachine
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.rehearsal import SimulatedClock, SimulatedCloud

Lie = Callable[[list[ReportedMachine], float], list[ReportedMachine]]


class FaultyCloud:
    """A simulated cloud; `faults` of a call are raised one by one, `lie` changes what it lists."""

    def __init__(self, market: MarketTrace) -> None:
        self.cloud = SimulatedCloud(market)
        self.faults: dict[str, list[BackendError | None]] = {"start": [], "list": [], "stop": [], "price": []}
        self.half: set[str] = set()
        """Kinds of starts that create a machine and fail: "before" it is ready it never is; "after" it is."""
        self.lie: Lie = lambda machines, now_s: machines
        self.started: list[str] = []
        self.deaf: set[str] = set()
        """Machines that do not hear `stop`."""

    @property
    def clock(self) -> SimulatedClock:
        return self.cloud.clock

    def start(self, order: MachineOrder) -> None:
        error = self.faults["start"].pop(0) if self.faults["start"] else None
        if error is not None and "created" not in str(error):
            raise error
        self.cloud.start(order)
        if order.name not in self.started:
            self.started.append(order.name)
        if error is not None:
            raise error

    def machines(self, token: str) -> list[ReportedMachine]:
        self._raise("list")
        return self.lie(self.cloud.machines(token), self.clock.now_s())

    def stop(self, key: str) -> None:
        self._raise("stop")
        if key not in self.deaf:
            self.cloud.stop(key)

    def usd_per_h(self, market: Market) -> float:
        self._raise("price")
        return self.cloud.usd_per_h(market)

    def running(self, token: str) -> list[str]:
        """What really runs, whatever is listed."""
        return [one.name for one in self.cloud.machines(token) if one.state != "ended"]

    def _raise(self, call: str) -> None:
        if self.faults[call]:
            error = self.faults[call].pop(0)
            if error is not None:
                raise error


def pending(names: set[str]) -> Lie:
    """These machines never get ready."""
    return lambda machines, _: [
        replace(one, state="pending", ready_s=None) if one.name in names and one.state == "running" else one
        for one in machines
    ]


def hidden(names: set[str], from_s: float, until_s: float) -> Lie:
    """These machines are not listed for a while."""
    return lambda machines, now_s: [one for one in machines if one.name not in names or not from_s <= now_s < until_s]
