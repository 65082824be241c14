"""A forecast from what happened: the job replayed from many moments of a zone's own past.

Availability comes in regimes of days. Lives and waits drawn independently forget them and give intervals that are too
narrow; stretches of the past keep them. Only moments like now count: with enough machines to be had, or without.
"""

from dataclasses import dataclass

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Floats, Trace
from stallwise.spot.plan.closed import Work
from stallwise.spot.plan.fleet import OnLoss
from stallwise.spot.plan.simulate import Outcomes, Policy, replay

STARTS = 1000
_FEWEST = 20
# A start so close to the end of the log that a job which lasts this many times its calm time would not fit is left out.
_ROOM = 3.0


@dataclass(frozen=True)
class History:
    """Outcomes of replays from past moments, and how many days of log they come from."""

    outcomes: Outcomes
    days: float
    ready_now: bool


def past(trace: Trace, now_s: float) -> Trace:
    """What was known at a moment."""
    known = trace.at_s < now_s
    return Trace(trace.at_s[known], trace.counts[known], now_s)


def from_history(
    work: Work,
    trace: Trace,
    machines: int,
    *,
    ready_now: bool | None = None,
    usd_per_h: float = 0.0,
    spot_usd_per_h: float = 0.0,
    other_usd_per_h: float = 0.0,
    on_loss: OnLoss = "wait",
    policy: Policy = "spot only",
    deadline_s: float | None = None,
) -> History:
    """Replays from evenly spaced moments of the log that are like now (by default: like its end)."""
    ready = trace.counts[-1] >= machines if ready_now is None else ready_now
    starts_s = starts_like(trace, machines, ready=bool(ready), room_s=_ROOM * work.calm_s)
    if len(starts_s) < _FEWEST:
        days = (trace.end_s - trace.at_s[0]) / 86400
        raise InputError(
            f"The log covers {days:.2g} days, with {len(starts_s)} moments like now from which to start a job of "
            f"{work.calm_s / 3600:.3g} h; {_FEWEST} are needed. Give a longer log, or plan with --mean-life."
        )
    outcomes = replay(
        work,
        trace,
        machines,
        starts_s,
        usd_per_h=usd_per_h,
        spot_usd_per_h=spot_usd_per_h,
        other_usd_per_h=other_usd_per_h,
        on_loss=on_loss,
        policy=policy,
        deadline_s=deadline_s,
    )
    return History(outcomes, float(trace.end_s - trace.at_s[0]) / 86400, bool(ready))


def starts_like(trace: Trace, machines: int, *, ready: bool, room_s: float) -> Floats:
    """Evenly spaced moments at which the fleet could, or could not, be had whole, with room for the job after them."""
    moments_s = np.linspace(trace.at_s[0], trace.end_s - room_s, STARTS) if trace.end_s - room_s > trace.at_s[0] else ()
    moments = np.asarray(moments_s, dtype=np.float64)
    place = np.searchsorted(trace.at_s, moments, side="right") - 1
    return moments[(trace.counts[place] >= machines) == ready] if len(moments) else moments
