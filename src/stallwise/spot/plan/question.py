"""A job on machines that may vanish, as asked and as answered: plain facts, no method."""

from dataclasses import dataclass, field

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Trace
from stallwise.spot.plan.closed import Expected, Work
from stallwise.spot.plan.fleet import Fleet, Kind, OnLoss, Replacement, one_kind
from stallwise.spot.plan.price import STATIC, PriceRule, Prices
from stallwise.spot.plan.simulate import Spread

SURE = 0.9
"""A plan is said to meet a limit when it does so in this part of the replays."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A job, the machines it is to run on, and the limits it has to meet."""

    name: str
    work_s: float
    """At the full speed of the fleet."""
    save_s: float
    provision_s: float
    restart_s: float
    kind: Kind
    machines: int
    on_demand: int = 0
    others: tuple[tuple[Kind, int, int], ...] = ()
    """Machines of other kinds: (kind, spot, on-demand)."""
    lock_step: bool = False
    """Kinds do equal shares and wait for the slowest; else each does a share by its speed."""
    on_loss: OnLoss = "wait"
    replacement: Replacement = "spot"
    interval_s: float | None = None
    """None: find the best; infinite: no checkpoints."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    switch: bool = False
    """Move to on-demand in time for the deadline."""
    uniform: bool = False
    """With `switch` and a trace: keep to a line of uniform progress instead of waiting for the last moment."""
    trace: Trace | None = None
    prices: Prices | None = None
    """Spot prices that move; the kind's spot price is then what they are measured against."""
    rule: PriceRule = STATIC
    other_usd_per_h: float = 0.0
    replays: int = 10_000
    seed: int = 1
    zones: tuple[tuple[str, Kind, Trace | None], ...] = ()
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.others and self.prices is not None:
            raise InputError(
                "Prices that move are for fleets of one kind of machine. Leave out --mix or --price-history."
            )
        if self.rule.moves and self.prices is None:
            raise InputError("A price cap or a spend needs prices that move. Give --price-history.")

    @property
    def fleet(self) -> Fleet:
        """The machines."""
        own = one_kind(self.kind, self.machines, on_demand=self.on_demand, other_usd_per_h=self.other_usd_per_h)
        return Fleet(groups=(*own.groups, *self.others), other_usd_per_h=self.other_usd_per_h, lock_step=self.lock_step)

    @property
    def replayed(self) -> bool:
        """Whether the answer comes from replays of a trace, and not from lives drawn at random."""
        return self.trace is not None and self.on_demand == 0 and not self.others and self.fleet.spot_machines > 0

    @property
    def limited(self) -> bool:
        """Whether there is a deadline or a budget."""
        return self.deadline_s is not None or self.budget_usd is not None

    def job(self, interval_s: float) -> Work:
        """The job with checkpoints so far apart."""
        return Work(
            work_s=self.work_s,
            interval_s=interval_s,
            save_s=self.save_s,
            provision_s=self.provision_s,
            restart_s=self.restart_s,
            redo=self.on_loss != "carry-on",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One way of running the job: finish and cost with 80 % intervals, and how often it meets the limits."""

    finish_s: Spread
    cost_usd: Spread
    finished: float
    in_time: float | None
    in_budget: float | None
    within: float
    losses: float
    redone_s: float
    switched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """Something that can be done, alone: what comes out, and the difference in mean time and cost to the plan."""

    name: str
    said: str
    result: Result
    saved_s: float
    saved_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """How often to save: what is used and why, beside the two rules."""

    used_s: float
    why: str
    young_daly_s: float
    schedule_s: tuple[float, ...]
    """By dynamic programme, on fresh machines without a loss."""
    tried: tuple[tuple[float, float], ...] = ()
    """(interval, mean finish) of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Machines that are already there and have some age: the rule's two expected times, with at most one loss."""

    age_s: float
    keep: bool
    kept_s: float
    fresh_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to a question."""

    question: Question
    interval: Intervals
    result: Result
    on_demand: Result
    closed: Expected
    levers: tuple[Lever, ...]
    verdict: str
    method: str
    finish_quantiles: tuple[tuple[float, float], ...]
    cost_quantiles: tuple[tuple[float, float], ...]
    reuse: Reuse | None = None
    best_zone: Lever | None = None
    """None where the zone planned for is the best of those looked at."""
    assumptions: tuple[str, ...] = field(default=())
