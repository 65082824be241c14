"""Quantities as people read them. Base units come in, three digits and the unit that fits come out."""

from stallwise.units import SECONDS_PER_HOUR


def show_seconds(value_s: float) -> str:
    """Three digits and the unit that fits: 1.25 s, 38.2 ms, 410 µs; hours and minutes above 100 s."""
    size = abs(value_s)
    if size >= SECONDS_PER_HOUR:
        return f"{value_s / SECONDS_PER_HOUR:.2f} h"
    if size >= 100:
        return f"{value_s / 60:.1f} min"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if size >= scale or unit == "µs":
            return f"{_three_digits(value_s / scale)} {unit}"
    raise AssertionError("unreachable")


def show_bytes(value_bytes: float) -> str:
    """Decimal units, three digits: 1.22 GB, 640 MB, 12 B."""
    return _scaled(value_bytes, (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def show_memory(value_bytes: float) -> str:
    """Binary units, as memory is sold: 61 GiB, 1.5 TiB."""
    return _scaled(value_bytes, (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20)), "B")


def show_rate(value_bytes_per_s: float) -> str:
    """Bytes per second, decimal."""
    return show_bytes(value_bytes_per_s) + "/s"


def _scaled(value: float, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    for unit, scale in units:
        if abs(value) >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value:.0f} {smallest}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.3g}"
