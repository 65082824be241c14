"""Fleets of several kinds, and zones."""

from dataclasses import replace

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.lifetimes.models import Exponential, Lifetime
from stallwise.spot.plan.fleet import MachineKind, SpotFleet, follow_zones, uniform_fleet

H = 3600.0


def kind(life: Lifetime, **changes: float) -> MachineKind:
    return replace(MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def steady(counts: list[int], tick_s: float = 300.0) -> AvailabilityTrace:
    return AvailabilityTrace(np.arange(len(counts)) * tick_s, np.array(counts), len(counts) * tick_s)


def test_zones() -> None:
    east, west = steady([1, 1, 0, 0, 1, 1, 0]), steady([0, 0, 1, 1, 1, 0, 0])
    assert east.availability(1) == pytest.approx(4 / 7)
    both = follow_zones([east, west], 1)
    assert both.availability(1) == pytest.approx(6 / 7, abs=0.01)
    moves = sum(1 for a, b in zip(both.counts, both.counts[1:], strict=False) if b < a)
    assert moves == 3, "east to west, west to east, and the end"
    apart = AvailabilityTrace(np.array([1e6]), np.array([1]), 2e6)
    with pytest.raises(InputError, match="do not overlap"):
        follow_zones([east, apart], 1)


def test_a_fleet_needs_machines() -> None:
    with pytest.raises(InputError, match="at least one machine"):
        SpotFleet(groups=())
    with pytest.raises(InputError, match="do not fit"):
        uniform_fleet(kind(Exponential(H)), 2, on_demand=3)
