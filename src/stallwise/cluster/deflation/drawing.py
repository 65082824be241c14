"""What a trace does not say is drawn by lot: what machines use, which are of low priority, how much they matter.

Azure published use for other machines than arrivals, so each machine follows some series from some moment in it; its
priority comes from that series, as in the paper: four levels by the 95th percentile of use.
"""

from dataclasses import replace

import numpy as np

from stallwise.cluster.deflation.resources import Counts, Floats, Machines, Use

LEVELS = ((0.33, 0.2), (0.66, 0.4), (0.80, 0.6), (1.01, 0.8))
"""Priority by the 95th percentile of use: busier machines have less to give (the paper's four levels; borders ours)."""
LOW = 0.5
"""Part of the machines that may be shrunk where nothing says which: interactive ones were about half of Azure's."""


def priorities(use: Use) -> Floats:
    """Of each series, by its 95th percentile."""
    borders = np.array([border for border, _ in LEVELS])
    values = np.array([value for _, value in LEVELS])
    return values[np.searchsorted(borders, use.p95(), side="right")]


def sample(machines: Machines, count: int | None, *, seed: int) -> Machines:
    """So many of them, by lot."""
    if count is None or count >= len(machines):
        return machines
    return machines.take(np.random.default_rng(seed).choice(len(machines), count, replace=False))


def equipped(machines: Machines, use: Use | None, *, low: float | None, seed: int) -> Machines:
    """Give machines what the trace does not say, and notes that tell so."""
    rng = np.random.default_rng(seed)
    count, notes = len(machines), list(machines.notes)
    series: Counts = rng.integers(0, 1 if use is None else len(use.part), count)
    offset: Counts = rng.integers(0, 1 if use is None else use.part.shape[1], count)
    chosen, priority = machines.low, machines.priority
    unsaid = not machines.low.any()
    if use is None:
        series = np.full(count, -1, dtype=np.int64)
        notes.append("Nothing is known about use: machines use all they ask for, so any shrinking costs. Give --use.")
    else:
        notes.append(f"Each machine follows one of {len(use.part):,} series of {use.source} by lot.")
    if unsaid or low is not None:
        chosen = rng.random(count) < (LOW if low is None else low)
        notes.append(f"{chosen.mean():.0%} of the machines are of low priority, by lot.")
        levels = [value for _, value in LEVELS]
        priority = rng.choice(levels, count) if use is None else priorities(use)[series]
        notes.append(f"Priorities are {'drawn' if use is None else 'by the 95th percentile of use'}: {levels}.")
    made = machines if use is None else replace(machines, use=use)
    return replace(made, series=series, offset=offset, low=chosen, priority=priority, notes=tuple(notes))
