"""Quantities as people read them. Base units come in, three digits and the unit that fits come out."""

import math

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


def show_bounds(low_s: float, high_s: float) -> str:
    """An interval of times: 102 to 113 ms, 0 to 510 µs; a word where it is unbounded."""
    if not (math.isfinite(low_s) and math.isfinite(high_s)):
        return "interval unknown"
    # Few blocks can give a bound below zero, which no time has.
    low, high = show_seconds(max(0.0, low_s)), show_seconds(high_s)
    number, unit = low.split(" ")
    return f"{number if low_s <= 0 or high.endswith(f' {unit}') else low} to {high}"


def show_number(value: float) -> str:
    """A count or a rate without its unit, three digits: 4.28, 274, 52,200."""
    if abs(value) < 999.5:
        return _three_digits(value)
    whole = round(value, 2 - math.floor(math.log10(abs(value))))
    return f"{whole:,.0f}"


def show_percent(fraction: float) -> str:
    """A part of a whole: 79 %, 8.5 %, 0.38 %."""
    value = fraction * 100
    digits = 0 if abs(value) >= 9.95 or value == 0 else 1 if abs(value) >= 0.95 else 2
    return f"{value:.{digits}f} %"


def show_bytes(value_bytes: float) -> str:
    """Decimal units, three digits: 1.22 GB, 640 MB, 12 B."""
    return _scaled(value_bytes, (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), "B")


def show_flops(value_flop: float) -> str:
    """Operations, decimal, three digits: 350 GFLOP, 24 TFLOP, 32 FLOP."""
    units = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6))
    return _scaled(value_flop, units, "FLOP")


def show_count(value: int) -> str:
    """How many of something, three digits where there are very many: 12,345, 124 million, 7.62 billion."""
    for scale, word in ((10**9, "billion"), (10**6, "million")):
        if value >= scale:
            return f"{_three_digits(value / scale)} {word}"
    return f"{value:,}"


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
