"""Three ways to charge for a machine that may shrink (HPDC 2020, 5.3), beside the price on demand.

Money is in parts of what machines on demand would pay: a machine on demand pays 1 for what it asks for.
"""

from dataclasses import dataclass

from stallwise.cluster.deflation.resources import Floats, Machines

WAYS_TO_CHARGE = ("static", "priority", "allocation")
STATIC = 0.2
"""Part of the price on demand that a low-priority machine pays under the static way: spot prices of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revenue:
    """Of one fleet over one trace."""

    on_demand: float
    """Of machines nobody shrinks, at the full price of their size while they stayed."""
    static: float
    """Of low-priority machines: 0.2 of the price of their size."""
    priority: float
    """… their priority times the price of their size."""
    allocation: float
    """… the full price of what they held, moment by moment."""


def revenue(machines: Machines, value: Floats, stayed_s: Floats, paid: Floats) -> Revenue:
    """What machines bring that stayed so long, where a unit of each resource is worth `value` a second on demand.

    `paid` is the worth of what each held, over time.
    """
    low = machines.low
    priced = stayed_s * (machines.size @ value)
    return Revenue(
        on_demand=float(paid[~low].sum()),
        static=STATIC * float(priced[low].sum()),
        priority=float((machines.priority * priced)[low].sum()),
        allocation=float(paid[low].sum()),
    )
