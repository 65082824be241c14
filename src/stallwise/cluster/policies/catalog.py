"""The policies by name. Each is a choice of seams; `base.py` says what they mean.

Leases last an hour unless said otherwise. Dally's variants are the paper's (arXiv 2401.16492): leases end on time, and
running jobs do not bid, which the released allocator forgets. In the released simulator a gang keeps its GPUs until a
chunk of iterations is done, whatever its lease: `dally:chunk=1000`; how long it was in the paper is not known. Tiresias
is NSDI 2019's two-dimensional attained service with consolidation by tensor skew, Gandiva (OSDI 2018) slices time in
turns, packs and migrates.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from stallwise.cluster.policies._tuner import Tuning
from stallwise.cluster.policies._user import UserPolicy, declared, is_file, load_policy
from stallwise.cluster.policies.base import Fit, Order, Patience, Placement, Policy, Preemption, Rounds
from stallwise.errors import InputError, UnknownNameError

TIRESIAS_LIMITS_GPU_S = (3250.0, 7200.0)
"""Queue borders of the released Tiresias simulator."""


def fifo(*, strict: bool = True) -> Policy:
    """First come, first served; `strict` forbids overtaking."""
    return Policy(name="fifo" if strict else "fifo-skip", order=Order(by="arrival", strict=strict), placement=_best())


def sjf() -> Policy:
    """Shortest job first; knows durations."""
    return Policy(name="sjf", order=Order(by="work"), placement=_best())


def srtf() -> Policy:
    """Shortest remaining time first, preempting at once; knows durations."""
    return Policy(name="srtf", order=Order(by="remaining work"), placement=_best(), preemption=_now())


def srsf() -> Policy:
    """Shortest remaining service (time times GPUs) first, preempting at once; knows durations."""
    return Policy(name="srsf", order=Order(by="remaining service"), placement=_best(), preemption=_now())


def las() -> Policy:
    """Least attained service first, by leases; the tightest placement there is, without waiting for a better one."""
    return Policy(name="las", order=Order(by="attained service"), preemption=_leased())


def las_2d(limits_gpu_s: tuple[float, ...] = TIRESIAS_LIMITS_GPU_S, promote: float = 0.0) -> Policy:
    """Attained service in queues, preempting at once; `promote` returns a job after that many times what it ran."""
    order = Order(by="queues", limits_gpu_s=limits_gpu_s, promote=promote)
    return Policy(name="2d-las", order=order, placement=_best(), preemption=_now())


def gittins(history_gpu_s: tuple[float, ...] = (), delta_gpu_s: float = 3250.0) -> Policy:
    """By the odds to end soon, from the service of past jobs (by default those of this trace that ended)."""
    order = Order(by="gittins", history_gpu_s=history_gpu_s, delta_gpu_s=delta_gpu_s)
    return Policy(name="gittins", order=order, placement=_best(), preemption=_leased())


def tiresias() -> Policy:
    """Least attained service first, by leases; models with a dominant tensor stay within a rack."""
    placement = Placement(fit="first", reach="skew")
    return Policy(name="tiresias", order=Order(by="attained service"), placement=placement, preemption=_leased())


def gandiva() -> Policy:
    """Time slices of a minute, aligned; two jobs to a GPU where both leave it idle; moves to tighter GPUs."""
    preemption = Preemption(kind="lease", lease_s=60.0, renew=True, aligned=True, migrate=True, pack=1.0)
    return Policy(name="gandiva", order=Order(by="turns"), placement=Placement(fit="best"), preemption=preemption)


def dally_no_wait() -> Policy:
    """Worst placed first, by leases; takes any placement."""
    return _dally("dally-no-wait", Patience())


def dally_manual(machine_leases: float = 12.0, rack_leases: float = 24.0) -> Policy:
    """Dally with fixed patience, in leases."""
    return _dally("dally-manual", Patience(kind="timers", machine_leases=machine_leases, rack_leases=rack_leases))


def dally_full() -> Policy:
    """Dally that never takes less than full consolidation."""
    return _dally("dally-full", Patience(kind="timers", machine_leases=math.inf, rack_leases=math.inf))


def dally_auto() -> Policy:
    """Dally with patience learned from past waits."""
    return _dally("dally", Patience(kind="auto", tuning=Tuning()))


def _dally(name: str, patience: Patience) -> Policy:
    return Policy(name=name, order=Order(by="efficiency"), patience=patience, preemption=_leased())


def patient() -> Policy:
    """Our own policy (docs/policies.md). Never reads durations.

    Least attained service first; best fit; leases of half an hour, after which every job is placed anew; waits for a
    tight place for 60 leases times what the looser one would slow it down by, and time waited counts on after a
    preemption; a job that waited ten days goes first and is not overtaken. Tuned on batch_500 and the first one-week
    Poisson set (`python -m validation.policies --tuning`).
    """
    return Policy(
        name="patient",
        order=Order(by="attained service", age_s=10 * 86_400.0),
        placement=Placement(fit="best", avoid_sharing=True),
        patience=Patience(kind="sensitivity", factor=60.0, survives=True, wakes=True),
        preemption=Preemption(kind="lease", lease_s=1800.0),
    )


def _best() -> Placement:
    return Placement(fit="best")


def _now() -> Preemption:
    return Preemption(kind="now")


def _leased() -> Preemption:
    return Preemption(kind="lease", lease_s=3600.0)


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": fifo,
    "fifo-skip": lambda: fifo(strict=False),
    "sjf": sjf,
    "srtf": srtf,
    "srsf": srsf,
    "las": las,
    "2d-las": las_2d,
    "gittins": gittins,
    "tiresias": tiresias,
    "gandiva": gandiva,
    "dally": dally_auto,
    "dally-manual": dally_manual,
    "dally-no-wait": dally_no_wait,
    "dally-full": dally_full,
    "patient": patient,
}

_ROUNDS = {
    "gavel": Rounds(by="max-min"),
    "gavel-unaware": Rounds(by="max-min", aware=False),
    "gavel-makespan": Rounds(by="makespan"),
    "gavel-ftf": Rounds(by="finish-time"),
    "themis": Rounds(by="auction"),
    "ada-srsf": Rounds(by="links"),
    "srsf-1": Rounds(by="links", link="turns"),
    "srsf-n": Rounds(by="links", link="share"),
    "optimus": Rounds(by="marginal-gain", round_s=60.0),
    "pollux": Rounds(by="goodput", round_s=60.0),
    "sia": Rounds(by="configurations", round_s=60.0, power=-0.5),
    "elasticflow": Rounds(by="minimum-share", round_s=60.0),
    "edf": Rounds(by="earliest-deadline", round_s=60.0),
}
ROUND_POLICIES: dict[str, Policy] = {name: Policy(name=name, rounds=rounds) for name, rounds in _ROUNDS.items()}
"""Policies that compute an allocation every round; docs/schedulers.md says how, and what each knows."""
GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(POLICIES),
    "rounds": tuple(name for name, it in _ROUNDS.items() if not it.elastic and not it.serves_deadlines),
    "elastic": tuple(name for name, it in _ROUNDS.items() if it.elastic),
    "deadlines": tuple(name for name, it in _ROUNDS.items() if it.serves_deadlines),
}
"""Words for many policies: those that decide at every event, fixed gangs in rounds, jobs that grow and shrink, and
those that do so by deadlines."""
CLAIRVOYANT = frozenset(
    [name for name, make in POLICIES.items() if make().clairvoyant]
    + [name for name, policy in ROUND_POLICIES.items() if policy.clairvoyant]
)

KNOWS: dict[str, str] = {
    "fifo": "arrivals",
    "fifo-skip": "arrivals",
    "sjf": "durations",
    "srtf": "durations",
    "srsf": "durations",
    "las": "service had",
    "2d-las": "service had",
    "gittins": "service of ended jobs",
    "tiresias": "service had, tensor skew",
    "gandiva": "GPU use",
    "dally": "own speed so far",
    "dally-manual": "own speed so far",
    "dally-no-wait": "own speed so far",
    "dally-full": "own speed so far",
    "patient": "service had, speed by placement",
    "gavel": "speed by kind of GPU",
    "gavel-unaware": "nothing",
    "gavel-makespan": "speed by kind, durations",
    "gavel-ftf": "speed by kind, durations",
    "themis": "speed by kind, durations",
    "ada-srsf": "durations, exchanges",
    "srsf-1": "durations, exchanges",
    "srsf-n": "durations, exchanges",
    "optimus": "step times by GPUs, updates left",
    "pollux": "goodput by GPUs",
    "sia": "goodput by GPUs and kind",
    "elasticflow": "deadline, speed by GPUs, work left",
    "edf": "deadline, speed by GPUs",
}
"""What a policy reads of a job besides its gang."""

_OPTIONS: dict[str, tuple[str, str]] = {
    "deflate": ("deflation", "to"),
    "slack": ("deflation", "slack"),
    "resize": ("deflation", "resize_s"),
    "lease": ("preemption", "lease_s"),
    "chunk": ("preemption", "chunk_iterations"),
    "quantum": ("preemption", "quantum_s"),
    "rack": ("patience", "machine_leases"),
    "net": ("patience", "rack_leases"),
    "factor": ("patience", "factor"),
    "cap": ("patience", "cap_s"),
    "promote": ("order", "promote"),
    "age": ("order", "age_s"),
    "delta": ("order", "delta_gpu_s"),
    "admit": ("admission", "demand"),
    "margin": ("preemption", "margin"),
    "force": ("preemption", "force"),
}
"""What can follow a name: `dally-manual:rack=12,net=24`. rack: leases waited before a rack is taken instead of a
machine; net: before GPUs of several racks are."""

_ROUND_OPTIONS: dict[str, tuple[str, str]] = {
    "round": ("rounds", "round_s"),
    "worst": ("rounds", "worst_part"),
    "restart": ("rounds", "restart_s"),
}
"""Of policies in rounds: `themis:worst=0.5,round=600`."""
_READ_BY = {"worst": ("auction",), "restart": ("goodput", "configurations")}
"""Options that not all policies in rounds read."""


def _options(policy: Policy) -> dict[str, tuple[str, str]]:
    """Return the options that the policy reads."""
    if policy.rounds is None:
        return _OPTIONS
    by = policy.rounds.by
    return {key: field for key, field in _ROUND_OPTIONS.items() if by in _READ_BY.get(key, (by,))}


def policy_of(user: UserPolicy | type) -> Policy:
    """Return the policy that orders jobs by a user's class."""
    user = user if isinstance(user, UserPolicy) else declared(user, user.__name__)
    fit = cast("Fit", user.fit)
    return Policy(
        name=user.label,
        order=Order(by="user", strict=user.strict),
        placement=Placement(fit=fit),
        preemption=_user_preemption(user),
        user=user,
    )


def _user_preemption(user: UserPolicy) -> Preemption:
    if user.lease_s:
        return Preemption(kind="lease", lease_s=user.lease_s)
    if user.interval_s:  # ends of leases that are always renewed bring decisions
        quantum_s = 0.0 if user.preemptive else math.inf
        return Preemption(kind="now", lease_s=user.interval_s, renew=True, quantum_s=quantum_s)
    return Preemption(kind="now" if user.preemptive else "never")


def policy_named(text: str, sources: Mapping[str, str] | None = None) -> Policy:
    """Return a policy by its name, with options after a colon: `dally-manual:rack=12,net=24,lease=1800`.

    `my_policy.py` and `my_policy.py:ClassName` are the user's own (`user.py`); `sources` has the texts of such files
    by name for a process that cannot read them.
    """
    if is_file(text):
        return policy_of(load_policy(text, (sources or {}).get(text)))
    name, _, options = text.partition(":")
    if name not in POLICIES and name not in ROUND_POLICIES:
        raise UnknownNameError("policy", name, [*POLICIES, *ROUND_POLICIES])
    policy = ROUND_POLICIES[name] if name in ROUND_POLICIES else POLICIES[name]()
    options_read = _options(policy)
    for option in filter(None, options.split(",")):
        policy = _with(policy, option, options_read)
    return replace(policy, name=text) if options else policy


_ABOVE_ZERO = ("lease", "margin", "round", "worst")


def _with(policy: Policy, option: str, options_read: dict[str, tuple[str, str]]) -> Policy:
    key, _, value = option.partition("=")
    if key not in options_read:
        raise UnknownNameError("policy option", key, options_read)
    try:
        number = float(value)
    except ValueError:
        raise InputError(f"The option {option!r} of a policy needs a number, as in {key}=1.") from None
    if not number >= 0:
        raise InputError(f"The option {option!r} of a policy must not be negative.")
    if key in _ABOVE_ZERO and number == 0:
        raise InputError(f"The option {option!r} of a policy must be above 0, or time would stand still.")
    if key == "worst" and number > 1:
        raise InputError(f"The option {option!r} of a policy is a fraction of the jobs: above 0 and at most 1.")
    seam, field = options_read[key]
    changed: Any = replace(getattr(policy, seam), **{field: number})
    return replace(policy, **{seam: changed})
