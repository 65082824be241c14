"""A policy: which job gets which GPUs, put together from five seams.

| seam       | decides                                                                        |
| admission  | which arrivals may queue at all                                                |
| order      | which job is served first                                                      |
| placement  | which free GPUs a job is given                                                 |
| patience   | how long a job declines looser placements, hoping for a tighter one            |
| preemption | which running jobs return GPUs, and when                                        |

(The cut is Blox's, EuroSys 2024.) Seams are facts, not code: `engine/` decides from them over arrays of state, in the
simulator's loop and in `live.Scheduler`, which a real cluster drives. So both make the same decisions. A policy written
in Python (`user.py`) replaces the order only.
"""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from stallwise.cluster.policies._tuner import Tuning
from stallwise.cluster.policies._user import UserPolicy
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
    "user",
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
    "max-min",
    "makespan",
    "finish-time",
    "auction",
    "links",
    "marginal-gain",
    "goodput",
    "configurations",
    "minimum-share",
    "earliest-deadline",
]
ELASTIC_BYS = ("marginal-gain", "goodput", "configurations")
DEADLINE_BYS = ("minimum-share", "earliest-deadline")
READS_DURATIONS = ("makespan", "finish-time", "auction", "links", "marginal-gain", "minimum-share")

Preempting = Literal["never", "lease", "now", "rounds"]
PREEMPTINGS: tuple[str, ...] = get_args(Preempting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admission of arrivals while the gangs of all unfinished jobs stay within `demand` times the cluster."""

    demand: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which job is served first.

    `arrival` first come first served; `work` shortest first; `remaining work` and `remaining service` (times GPUs)
    the same with what is left; `attained time` and `attained service` least first; `queues` by attained service in
    steps of `limits_gpu_s`, in a queue running jobs first, then in order of joining; `gittins` by the odds of ending
    within `delta_gpu_s` (from `history_gpu_s`, or from the jobs that ended so far); `efficiency` Dally's S, worst
    placed first; `turns` longest wait since the last run first; `user` as a policy written in Python says (`user.py`).
    """

    by: By = "arrival"
    strict: bool = False
    """No job overtakes the first that does not fit; otherwise the next that fits is started."""
    limits_gpu_s: tuple[float, ...] = ()
    running_first: bool = True
    """In a queue, running jobs come before waiting ones (Tiresias); else only the order of joining counts."""
    promote: float = 0.0
    """A job that waited this many times its time with GPUs returns to the first queue; 0: never."""
    delta_gpu_s: float = 3250.0
    history_gpu_s: tuple[float, ...] = ()
    age_s: float = math.inf
    """A job that waited this long in one go is served before all others, oldest first, and is not overtaken."""

    def __post_init__(self) -> None:
        if list(self.limits_gpu_s) != sorted(self.limits_gpu_s) or any(limit <= 0 for limit in self.limits_gpu_s):
            raise InputError(f"Queue limits must rise and be above 0, not {self.limits_gpu_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which GPUs a job gets. Domains are tried from the tightest level that can hold the gang outwards.

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
    """How long a job waits for a machine, then for a rack, before it takes any GPUs.

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
    """When running jobs return their GPUs.

    `never`; `lease`: after `lease_s`, between chunks of `chunk_iterations`; `now`: at any event, for jobs that
    come before in the order; `rounds`: the same, but decisions are only made every `lease_s`.
    With `renew` a lease goes on while no job that comes before needs its GPUs; with `now` it also makes decisions at
    least every `lease_s`.
    """

    kind: Preempting = "never"
    lease_s: float = 3600.0
    renew: bool = False
    aligned: bool = False
    """All leases end at the same moments, multiples of `lease_s`, so that a large gang finds its GPUs together."""
    chunk_iterations: float = 0.0
    quantum_s: float = 0.0
    """With `now`: seconds a job keeps its GPUs at least."""
    margin: float = 1.0
    """With `now` by attained service: a running job gives way only with this many times the service of the other."""
    migrate: bool = False
    """Running jobs move to a tighter placement when one is free."""
    migrate_gain: float = 1.1
    """… and run at least this many times faster there."""
    force: float = 0.0
    """A job that comes first may push later ones that may be stopped off the machines it wants, where it runs this many
    times faster there than on what is free; 0: never."""
    pack: float = 0.0
    """Two jobs of equal gang share GPUs while their utilisations sum to at most this; 0: never."""
    packed_rate: float = 0.9
    """Speed of each of two packed jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Instead of the seams: every `round_s` an optimiser allocates GPUs (`engine/_rounds.py`, docs/schedulers.md).

    `max-min`, `makespan` and `finish-time` are Gavel's linear programs, `auction` is Themis', `links` serves the least
    remaining service and lets exchanges take turns on shared links (AdaDUAL). On jobs that may grow and shrink:
    `marginal-gain` is Optimus', `goodput` Pollux', `configurations` Sia's; with deadlines, `minimum-share` is
    ElasticFlow's and `earliest-deadline` its baseline (`engine/_deadlines.py`).
    """

    by: RoundsBy
    round_s: float = 360.0
    aware: bool = True
    """Of the speed of a job on each kind of GPU; otherwise all kinds are taken to be alike."""
    worst_part: float = 0.2
    """Of an auction: GPUs are offered to this fraction of the jobs, the worst off (1 - f in the paper)."""
    power: float = -1.0
    """Of goodput and configurations: the power mean of speedups that is made largest."""
    restart_s: float = 30.0
    """Of both: seconds that the optimiser takes a change of GPUs to cost."""

    link: Literal["share", "turns", "adadual"] = "adadual"
    """Of links: when an exchange starts that finds another on its link (`adadual.py`)."""

    @property
    def elastic(self) -> bool:
        """Whether it decides how many GPUs a job gets, which takes measured speeds for every number."""
        return self.by in ELASTIC_BYS

    @property
    def serves_deadlines(self) -> bool:
        """Whether it decides how many GPUs a job gets by when it should be done."""
        return self.by in DEADLINE_BYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Deflation:
    """Where a policy would preempt, running jobs give up GPUs instead, down to a fraction of their gang.

    A shrunk job trains on with the same global batch; what it keeps of its speed is flat down to its slack and then in
    proportion (`model.deflation.speed_kept`). When GPUs are free that no job waits for, it takes them back.
    """

    to: float = 1.0
    """No gang falls below this fraction of its GPUs, nor below one; 1: jobs do not shrink."""
    slack: float = math.nan
    """Fraction of its GPUs a job leaves idle; NaN: what the trace says of each job's utilisation, else nothing."""
    resize_s: float = 0.0
    """Seconds without progress after every change of its GPUs."""

    def __post_init__(self) -> None:
        if not 0 < self.to <= 1:
            raise InputError(f"deflate must be a fraction of the GPUs above 0 and at most 1, not {self.to:g}.")
        if self.slack < 0 or self.slack >= 1:
            raise InputError(f"slack must be a fraction from 0 to under 1, not {self.slack:g}.")
        if not 0 <= self.resize_s < math.inf:
            raise InputError(f"resize must be 0 s or more, not {self.resize_s:g} s.")

    def least(self, gpus: int) -> int:
        """Return the fewest GPUs a gang works with."""
        return max(1, math.ceil(gpus * self.to - 1e-9))

    def slack_of(self, utilisation: float | None) -> float:
        """Return the slack of a job that keeps such a fraction of its GPUs busy."""
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
    user: UserPolicy | None = None
    """Where it is given, a class of the user's orders the jobs (`order.by` is `user`)."""

    @property
    def shrinking(self) -> Deflation | None:
        """How jobs shrink instead of being stopped; None: they are stopped, or never have to be."""
        return None if self.deflation.to == 1 or self.preemption.kind == "never" else self.deflation

    @property
    def clairvoyant(self) -> bool:
        """Whether it reads how long jobs will run, which is unknown on a real cluster."""
        if self.rounds is not None:
            return self.rounds.by in READS_DURATIONS
        if self.user is not None:
            return self.user.clairvoyant
        return self.order.by in CLAIRVOYANT_BYS
