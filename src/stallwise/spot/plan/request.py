"""What a spot plan is asked and what it answers: plain facts, no method."""

from dataclasses import dataclass, field

from stallwise.errors import InputError
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.plan.closed import ExpectedTime, JobWork
from stallwise.spot.plan.fleet import MachineKind, OnLoss, Replacement, SpotFleet, uniform_fleet
from stallwise.spot.plan.prices import STATIC, PriceRule, SpotPrices
from stallwise.spot.plan.simulate import OutcomeSpread

CONFIDENCE = 0.9
"""A plan meets a limit when it does so in this fraction of the replays."""


@dataclass(frozen=True, kw_only=True)
class SpotRequest:
    """A job, the machines it is to run on, and the limits it has to meet."""

    name: str
    work_s: float
    """At the full speed of the fleet."""
    save_s: float
    provision_s: float
    restart_s: float
    kind: MachineKind
    machines: int
    on_demand: int = 0
    others: tuple[tuple[MachineKind, int, int], ...] = ()
    """Machines of other kinds: (kind, spot, on-demand)."""
    lock_step: bool = False
    """Kinds do equal shares and wait for the slowest; else each does a share by its speed."""
    on_loss: OnLoss = "wait"
    replacement: Replacement = "spot"
    interval_s: float | None = None
    """Work between checkpoints; None: find the best; infinite: no checkpoints."""
    deadline_s: float | None = None
    budget_usd: float | None = None
    switch: bool = False
    """Move to on-demand in time for the deadline."""
    uniform: bool = False
    """With `switch` and a trace: keep to a line of uniform progress instead of waiting for the last moment."""
    trace: AvailabilityTrace | None = None
    prices: SpotPrices | None = None
    """Spot prices that move; the kind's spot price is then what they are measured against."""
    rule: PriceRule = STATIC
    other_usd_per_h: float = 0.0
    replays: int = 10_000
    seed: int = 1
    zones: tuple[tuple[str, MachineKind, AvailabilityTrace | None], ...] = ()
    assumptions: tuple[Sentence, ...] = ()

    def __post_init__(self) -> None:
        if self.others and self.prices is not None:
            raise InputError("Prices that move are for fleets of one kind of machine.", fields=("mix", "price_history"))
        if self.rule.moves and self.prices is None:
            raise InputError("A price cap or a spend needs prices that move.", fields=("price_history",))

    @property
    def fleet(self) -> SpotFleet:
        own = uniform_fleet(self.kind, self.machines, on_demand=self.on_demand, other_usd_per_h=self.other_usd_per_h)
        return SpotFleet(
            groups=(*own.groups, *self.others), other_usd_per_h=self.other_usd_per_h, lock_step=self.lock_step
        )

    @property
    def replayed(self) -> bool:
        """Whether the answer comes from replays of a trace, and not from lifetimes drawn at random."""
        return self.trace is not None and self.on_demand == 0 and not self.others and self.fleet.spot_machines > 0

    @property
    def limited(self) -> bool:
        """Whether there is a deadline or a budget."""
        return self.deadline_s is not None or self.budget_usd is not None

    def job(self, interval_s: float) -> JobWork:
        """The job with `interval_s` of work between checkpoints."""
        return JobWork(
            work_s=self.work_s,
            interval_s=interval_s,
            save_s=self.save_s,
            provision_s=self.provision_s,
            restart_s=self.restart_s,
            redo=self.on_loss != "carry-on",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """One way of running the job: finish and cost with 80 % intervals, and how often it meets the limits.

    `finished`, `in_time`, `in_budget`, `within` (all limits) and `switched` are fractions of the replays.
    """

    finish_s: OutcomeSpread
    cost_usd: OutcomeSpread
    finished: float
    in_time: float | None
    in_budget: float | None
    within: float
    losses: float
    redone_s: float
    switched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLever:
    """A single change to the plan: its result, and the difference in mean time and cost."""

    name: str
    description: str
    result: PlanResult
    saved_s: float
    saved_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIntervals:
    """How often to save: the interval used and why, beside Young-Daly's and the dynamic programme's."""

    used_s: float
    why: Sentence
    young_daly_s: float
    schedule_s: tuple[float, ...]
    """By dynamic programme, on fresh machines without a loss."""
    tried: tuple[tuple[float, float], ...] = ()
    """(interval, mean finish) of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReuse:
    """Whether to keep machines of some age or ask for fresh ones: both expected times, with at most one loss."""

    age_s: float
    keep: bool
    kept_s: float
    fresh_s: float


@dataclass(frozen=True, kw_only=True)
class SpotPlan:
    """The answer to a `SpotRequest`."""

    request: SpotRequest
    interval: CheckpointIntervals
    result: PlanResult
    on_demand: PlanResult
    closed: ExpectedTime
    levers: tuple[PlanLever, ...]
    verdict: str
    method: str
    finish_quantiles: tuple[tuple[float, float], ...]
    cost_quantiles: tuple[tuple[float, float], ...]
    reuse: MachineReuse | None = None
    best_zone: PlanLever | None = None
    """None where the zone planned for is the best of those compared."""
    assumptions: tuple[Sentence, ...] = field(default=())
