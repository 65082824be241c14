"""What time costs."""

from stallwise.units import SECONDS_PER_HOUR


def cost_usd(duration_s: float, usd_per_h: float, machines: int = 1) -> float:
    """`machines` machines at `usd_per_h` each, held for `duration_s`: n · t · price / 3600."""
    return machines * duration_s * usd_per_h / SECONDS_PER_HOUR


def increase(value: float, base: float) -> float:
    """How much larger `value` is than `base`, as a fraction of `base`.

    The Stash paper's network stall is this with the single machine's time as the base, so it is not bounded by 1.
    """
    return (value - base) / base
