"""Which zone, and moving between them: traces of several zones watched at the same time."""

from collections.abc import Mapping, Sequence

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Trace

# A move is a loss even where another zone has machines at once: the count drops for this long.
_MOVE_S = 1.0


def by_availability(traces: Mapping[str, Trace], machines: int) -> list[tuple[str, float]]:
    """Zones with the part of the time in which the whole fleet could be had, best first."""
    found = [(name, trace.availability(machines)) for name, trace in traces.items()]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def follow(traces: Sequence[Trace], machines: int) -> Trace:
    """The trace of a fleet that stays in its zone while it is whole there and else moves to one that has it whole.

    Each move costs what a loss costs. Where no zone has all machines, the zone with most is taken.
    """
    start_s = max(float(trace.at_s[0]) for trace in traces)
    end_s = min(trace.end_s for trace in traces)
    if start_s >= end_s:
        raise InputError("The logs of the zones do not overlap in time, so no fleet can move between them.")
    moments = np.unique(np.concatenate([[start_s], *(trace.at_s for trace in traces)]))
    moments = moments[(moments >= start_s) & (moments < end_s)]
    counts = np.array([_counts_at(trace, moments) for trace in traces])
    at_s: list[float] = []
    held: list[int] = []
    here = int(counts[:, 0].argmax())
    for at, moment in enumerate(moments.tolist()):
        now = np.minimum(counts[:, at], machines)
        best = int(now.argmax())
        if now[here] < machines and now[best] > now[here]:
            if held and held[-1] > 0:
                at_s.append(moment)
                held.append(0)
                moment += _MOVE_S
            here = best
        if at_s and moment <= at_s[-1]:
            moment = at_s[-1] + 1e-3
        at_s.append(moment)
        held.append(int(now[here]))
    keep = [i for i in range(len(at_s)) if i == 0 or held[i] != held[i - 1]]
    times = np.array([at_s[i] for i in keep])
    return Trace(times, np.array([held[i] for i in keep], dtype=np.int64), max(end_s, float(times[-1])))


def _counts_at(trace: Trace, moments: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    place = np.searchsorted(trace.at_s, moments, side="right") - 1
    return [int(count) for count in trace.counts[np.maximum(place, 0)]]
