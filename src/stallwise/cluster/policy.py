"""A policy: which job gets which GPUs, put together from five seams.

| seam       | decides                                                                        |
| admission  | which arrivals may queue at all                                                |
| order      | who is served first                                                            |
| placement  | which free GPUs a job is given                                                 |
| patience   | how long a job declines looser placements, hoping for a tighter one            |
| preemption | who gives GPUs back, and when                                                  |

(The cut is Blox's, EuroSys 2024.) Seams are facts, not code: `kernels/` decides from them over arrays of state, in the
simulator's loop and in `scheduler.Scheduler`, which a real cluster drives. So both make the same decisions.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from stallwise.cluster.tuner import Tuning
from stallwise.errors import InputError

By = Literal[
    "arrival",
    "work",
    "remaining work",
    "remaining service",
    "attained time",
    "attained service",
    "queues",
    "gittins",
    "efficiency",
    "turns",
]
BYS: tuple[str, ...] = get_args(By)
CLAIRVOYANT_BYS = ("work", "remaining work", "remaining service")

Fit = Literal["first", "best", "random", "emptiest"]
FITS: tuple[str, ...] = get_args(Fit)

Reach = Literal["anywhere", "skew"]
REACHES: tuple[str, ...] = get_args(Reach)

Waiting = Literal["none", "timers", "auto", "sensitivity"]
WAITINGS: tuple[str, ...] = get_args(Waiting)

RoundsBy = Literal[
    "max-min", "makespan", "finish-time", "auction", "links", "marginal-gain", "goodput", "configurations"
]
ELASTIC_BYS = ("marginal-gain", "goodput", "configurations")
READS_DURATIONS = ("makespan", "finish-time", "auction", "links", "marginal-gain")

Preempting = Literal["never", "lease", "now", "rounds"]
PREEMPTINGS: tuple[str, ...] = get_args(Preempting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Arrivals are let in while the gangs of all unfinished jobs stay within `demand` times the cluster."""

    demand: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who is served first.

    `arrival` first come first served; `work` shortest first; `remaining work` and `remaining service` (times GPUs)
    likewise with what is left; `attained time` and `attained service` least first; `queues` by attained service in
    steps of `limits_gpu_s`, in a queue running jobs first, then in order of joining; `gittins` by the odds of ending
    within `delta_gpu_s` (from `history_gpu_s`, or from the jobs that ended so far); `efficiency` Dally's S, worst
    placed first; `turns` who waited longest since it last ran.
    """

    by: By = "arrival"
    strict: bool = False
    """Nobody overtakes the first who does not fit; otherwise the next that fits is started."""
    limits_gpu_s: tuple[float, ...] = ()
    running_first: bool = True
    """In a queue, whoever runs comes before whoever waits (Tiresias); else only the order of joining counts."""
    promote: float = 0.0
    """A job that waited this many times its time with GPUs returns to the first queue; 0: never."""
    delta_gpu_s: float = 3250.0
    history_gpu_s: tuple[float, ...] = ()
    age_s: float = math.inf
    """A job that waited this long in one go is served before all others, oldest first, and nobody overtakes it."""

    def __post_init__(self) -> None:
        if list(self.limits_gpu_s) != sorted(self.limits_gpu_s) or any(limit <= 0 for limit in self.limits_gpu_s):
            raise InputError(f"Queue limits must rise and be above 0, not {self.limits_gpu_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which GPUs. Domains are tried from the tightest level that can hold the gang outwards.

    `fit` picks among the domains of a level that have room: the first, the fullest (best fit), any, the emptiest.
    `reach` says how far out a job may go: anywhere, or by tensor skew (Tiresias): a skewed model never crosses the
    border of a rack that could hold it. `localities=False` skips the search: any free GPUs in order (counting).
    """

    fit: Fit = "first"
    reach: Reach = "anywhere"
    localities: bool = True
    avoid_sharing: bool = False
    """Among equal domains prefer those whose links fewer other jobs use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a job holds out for a machine, then for a rack, before it takes what there is.

    `timers`: `machine_leases` and `rack_leases` of waiting; `auto`: the same from past waits (`tuning`, `tuner.py`);
    `sensitivity`: `factor` · a lease · (speed in the tightest domain / speed in the looser one - 1), at most `cap_s`:
    what the looser placement would cost this job over a lease.
    """

    kind: Waiting = "none"
    machine_leases: float = 0.0
    rack_leases: float = 0.0
    tuning: Tuning = field(default_factory=Tuning)
    factor: float = 1.0
    cap_s: float = math.inf
    wakes: bool = False
    """Offers are looked at again the moment patience ends, not only at the next event."""
    survives: bool = False
    """Time already waited counts on after a preemption; otherwise the clock starts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Who gives GPUs back.

    `never`; `lease`: after `lease_s`, between chunks of `chunk_iterations`; `now`: at any event, to whoever comes
    before in the order; `rounds`: likewise, but decisions are only taken every `lease_s`.
    With `renew` a lease goes on while nobody who comes before needs its GPUs; with `now` it also makes decisions at
    least every `lease_s`.
    """

    kind: Preempting = "never"
    lease_s: float = 3600.0
    renew: bool = False
    aligned: bool = False
    """All leases end at the same moments, multiples of `lease_s`, so that a large gang finds its GPUs together."""
    chunk_iterations: float = 0.0
    quantum_s: float = 0.0
    """With `now`: a job keeps its GPUs at least so long."""
    margin: float = 1.0
    """With `now` by attained service: only who has this many times the service of the other gives way."""
    migrate: bool = False
    """Running jobs move to a tighter placement when one is free."""
    migrate_gain: float = 1.1
    """… and run so many times faster there."""
    force: float = 0.0
    """A job that comes first may push later ones that may be stopped off the machines it wants, where it runs this many
    times faster there than on what is free; 0: never."""
    pack: float = 0.0
    """Two jobs of equal gang share GPUs while their utilisations sum to at most this; 0: never."""
    packed_rate: float = 0.9
    """Speed of each of two packed jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Instead of the seams: every `round_s` an optimiser says who gets what (`rounds/`, docs/schedulers.md).

    `max-min`, `makespan` and `finish-time` are Gavel's linear programs, `auction` is Themis', `links` serves the least
    remaining service and lets exchanges take turns on shared links (AdaDUAL). On jobs that may grow and shrink:
    `marginal-gain` is Optimus', `goodput` Pollux', `configurations` Sia's.
    """

    by: RoundsBy
    round_s: float = 360.0
    aware: bool = True
    """Of the speed of a job on each kind of GPU; otherwise all kinds are taken to be alike."""
    worst_part: float = 0.2
    """Of an auction: GPUs are offered to this part of the jobs, the worst off (1 - f in the paper)."""
    power: float = -1.0
    """Of goodput and configurations: the power mean of speedups that is made largest."""
    restart_s: float = 30.0
    """Likewise: what the optimiser takes a change of GPUs to cost."""

    link: Literal["share", "turns", "adadual"] = "adadual"
    """Of links: when an exchange starts that finds another on its link (`rounds/links.py`)."""

    @property
    def elastic(self) -> bool:
        """Whether it decides how many GPUs a job gets, which takes measured speeds for every number."""
        return self.by in ELASTIC_BYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Deflation:
    """Where a policy would preempt, running jobs give GPUs instead, down to a part of their gang.

    A shrunk job trains on with the same global batch; what it keeps of its speed is flat down to its slack and then in
    proportion (`model.deflation.speed_kept`). When GPUs are free that nobody waits for, it takes them back.
    """

    to: float = 1.0
    """No gang falls below this part of its GPUs, nor below one; 1: jobs do not shrink."""
    slack: float = math.nan
    """Part of its GPUs a job leaves idle; not given: what the trace says of each job's utilisation, else nothing."""
    resize_s: float = 0.0
    """Without progress after every change of its GPUs."""

    def __post_init__(self) -> None:
        if not 0 < self.to <= 1:
            raise InputError(f"Jobs are deflated to a part of their GPUs above 0 and at most 1, not to {self.to:g}.")
        if self.slack < 0 or self.slack >= 1:
            raise InputError(f"A slack is a part from 0 to under 1, not {self.slack:g}.")
        if not 0 <= self.resize_s < math.inf:
            raise InputError(f"A change of GPUs takes 0 s or more, not {self.resize_s:g} s.")

    def least(self, gpus: int) -> int:
        """The fewest GPUs a gang works with."""
        return max(1, math.ceil(gpus * self.to - 1e-9))

    def slack_of(self, utilisation: float | None) -> float:
        """Of a job that keeps such a part of its GPUs busy."""
        if not math.isnan(self.slack):
            return self.slack
        return 0.0 if utilisation is None else min(0.99, max(0.0, 1.0 - utilisation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A name and five seams, or rounds."""

    name: str
    admission: Admission = field(default_factory=Admission)
    order: Order = field(default_factory=Order)
    placement: Placement = field(default_factory=Placement)
    patience: Patience = field(default_factory=Patience)
    preemption: Preemption = field(default_factory=Preemption)
    deflation: Deflation = field(default_factory=Deflation)
    """What happens instead of a preemption; only the simulator can do that."""
    rounds: Rounds | None = None
    """Where it is given, the seams are not looked at, and only the simulator can run the policy."""

    @property
    def shrinking(self) -> Deflation | None:
        """How jobs give way; None: they are stopped, or nobody has to."""
        return None if self.deflation.to == 1 or self.preemption.kind == "never" else self.deflation

    @property
    def clairvoyant(self) -> bool:
        """Whether it reads how long jobs will run, which nobody knows on a real cluster."""
        if self.rounds is not None:
            return self.rounds.by in READS_DURATIONS
        return self.order.by in CLAIRVOYANT_BYS
