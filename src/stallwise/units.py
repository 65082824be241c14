"""Units: the constants, quantities as people write them (`parse_…`), and quantities as people read them (`show_…`).

Inside the package everything is in base units (seconds, bytes, bytes/s, flop/s, dollars/hour) and the unit is
in the name. A bit rate is decimal (1 Gb/s = 1e9 bit/s), a memory size given in GiB is binary.

All output is written by these functions: three digits and the unit that fits, never an exponent; `n/a` for what is not
a number, `no end` for an infinite time or cost.
"""

import math
import re

from stallwise.errors import QuantityError

KIB = 2**10
MIB = 2**20
GIB = 2**30
KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
TERA = 10**12

BITS_PER_BYTE = 8
SECONDS_PER_HOUR = 3600


def gbit_per_s(rate: float) -> float:
    """Bytes/s of a rate in Gb/s."""
    return rate * 1e9 / BITS_PER_BYTE


_BYTES = {"b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> float:
    """`25MB`, `25 MiB`, `1e6B`; a bare number is refused, except 0."""
    expected = "a size like 25MB or 25MiB"
    number, unit = _parts(text, expected)
    return number * _unit(text, unit.lower(), _BYTES, expected, ("MB", "GB"))


def parse_seconds(text: str) -> float:
    """`20us`, `1.5 ms`, `12h`; a bare number is refused, except 0."""
    expected = "a time like 20us, 1.5ms or 12h"
    number, unit = _parts(text, expected)
    return number * _unit(text, unit.lower(), _SECONDS, expected, ("s", "min", "h"))


def parse_rate(text: str) -> float:
    """Bytes/s of `25gbit`, `25Gb/s` (bits: small b), `300GB/s` (bytes: large B), `1.2GiB/s`."""
    expected = "a rate like 25gbit, 25Gb/s or 300GB/s"
    number, unit = _parts(text, expected)
    plain = unit.removesuffix("/s").removesuffix("ps")
    if plain.lower() in _BITS:
        return number * _BITS[plain.lower()] / BITS_PER_BYTE
    if plain.endswith("b") and len(plain) == 2:
        return number * _unit(text, plain.lower(), _BYTES, expected) / BITS_PER_BYTE
    return number * _unit(text, plain.lower(), _BYTES, expected, ("gbit", "GB/s"))


def parse_share(text: str) -> float:
    """`80%` or `0.8`, between 0 and 1; a bare 1 is refused: it may be meant as 1 %."""
    expected = "a fraction like 80% or 0.8"
    number, unit = _parts(text, expected)
    if not unit and number >= 1:
        raise QuantityError(f"{text!r} has no unit. Type {_plain(number)}%.", text)
    share = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 <= share <= 1:
        raise QuantityError(f"{text!r} is not {expected}, at most 100%.", text)
    return share


def parse_factor(text: str) -> float:
    """`2x`, `0.5x`: more than 0."""
    expected = "a factor like 2x or 0.5x"
    number, unit = _parts(text, expected)
    if not unit and number > 0:
        raise QuantityError(f"{text!r} has no unit. Type {_plain(number)}x for that factor.", text)
    if unit.lower() not in ("x", "×") or number <= 0:
        raise QuantityError(f"{text!r} is not {expected}.", text)
    return number


def parse_usd(text: str) -> float:
    """Dollars: `500`, `500usd` or `$500`, from 0."""
    plain = text.lower().strip().removeprefix("$").removesuffix("usd").replace(",", "")
    number, unit = _parts(plain, "an amount of dollars from 0 like 500usd", text)
    if unit:
        raise QuantityError(f"{text!r} is not an amount of dollars from 0 like 500usd.", text)
    return number


def _parts(text: str, expected: str, given: str | None = None) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    try:
        number, unit = float(match.group(1)), match.group(2)  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        raise QuantityError(f"{(given or text)!r} is not {expected}.", given or text) from None
    if number > _LARGEST:
        raise QuantityError(f"{(given or text)!r} is larger than anything that can be meant.", given or text)
    return number, unit


_LARGEST = 1e24


def _unit(
    text: str,
    unit: str,
    units: dict[str, float] | dict[str, int],
    expected: str,
    offers: tuple[str, ...] = (),
) -> float:
    """The unit's factor. Where there is none, the sentence says what to type."""
    number = text.strip()
    if not unit and offers:
        if float(number) == 0:
            return 1.0
        choices = [f"{number}{offer}" for offer in offers]
        raise QuantityError(f"{text!r} has no unit. Type {', '.join(choices[:-1])} or {choices[-1]}.", text)
    if unit not in units:
        raise QuantityError(f"{text!r} is not {expected}.", text)
    return units[unit]


def show_seconds(value_s: float) -> str:
    """410 µs, 38.2 ms, 1.25 s; minutes above 100 s, hours from one hour, days above 100 h."""
    if not math.isfinite(value_s):
        return _not_finite(value_s, "no end")
    size = abs(value_s)
    if size > _YEARS_1000_S:
        return "over 1,000 years"
    for least, scale, unit in (
        (99.95 * 3600, 86400.0, "d"),
        (0.9995 * 3600, 3600.0, "h"),
        (99.95, 60.0, "min"),
        (0.9995, 1.0, "s"),
        (0.9995e-3, 1e-3, "ms"),
    ):
        if size >= least:
            return f"{show_number(value_s / scale)} {unit}"
    return f"{show_number(value_s / 1e-6)} µs" if size >= 5e-16 else "0 s"


def show_bounds(low_s: float, high_s: float) -> str:
    """An interval of times: 102 to 113 ms, 0 to 510 µs; `interval unknown` where it is unbounded."""
    if not (math.isfinite(low_s) and math.isfinite(high_s)):
        return "interval unknown"
    # Few blocks can give a bound below zero, which no time has.
    low, high = show_seconds(max(0.0, low_s)), show_seconds(high_s)
    number, _, unit = low.rpartition(" ")
    return f"{number if low_s <= 0 or high.endswith(f' {unit}') else low} to {high}"


def show_number(value: float) -> str:
    """A number without its unit, three digits: 0.00012, 4.28, 274, 52,200."""
    if not math.isfinite(value):
        return _not_finite(value, "unbounded")
    size = abs(value)
    if size < 5e-10:
        return "0"
    if size >= _TOO_MANY:
        return f"{'−' if value < 0 else ''}over 10^15"
    if size >= 99.95:
        whole = round(value, 2 - math.floor(math.log10(size))) if size >= 999.5 else value
        return f"{whole:,.0f}"
    decimals = 2 - math.floor(math.log10(size))
    if float(f"{size:.{decimals}f}") >= 10.0 ** (3 - decimals):
        decimals -= 1  # 9.996 is 10, not 10.00
    shown = f"{value:.{max(0, decimals)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def show_signed(value: float) -> str:
    """A difference with its sign: +4.28, −0.5, 0."""
    shown = show_number(abs(value))
    return shown if shown == "0" or not math.isfinite(value) else f"{'+' if value > 0 else '−'}{shown}"


def show_percent(fraction: float) -> str:
    """A fraction: 79 %, 8.5 %, 0.38 %, 0 %."""
    if not math.isfinite(fraction):
        return _not_finite(fraction, "unbounded")
    if abs(fraction) >= _TOO_MANY:
        return f"{show_number(fraction)} %"
    value = fraction * 100
    size = abs(value)
    digits = 0 if size >= 9.95 or size < 0.005 else 1 if size >= 0.95 else 2
    # Adding zero turns a rounded −0 into 0.
    return f"{round(value, digits) + 0.0:,.{digits}f} %"


def show_signed_percent(fraction: float) -> str:
    """A relative difference with its sign: +4.2 %, −13 %, 0 %."""
    shown = show_percent(abs(fraction))
    return shown if shown == "0 %" or not math.isfinite(fraction) else f"{'+' if fraction > 0 else '−'}{shown}"


def show_percent_bounds(low: float, high: float) -> str:
    """An interval of fractions: 7.2 to 12 %."""
    return f"{show_percent(low).removesuffix(' %')} to {show_percent(high)}"


def show_probability(probability: float) -> str:
    """A probability, which is never certain: over 99 %, 65 %, under 1 %."""
    if 0.01 <= probability <= 0.99:
        return show_percent(probability)
    return "over 99 %" if probability > 0.5 else "under 1 %"


def show_factor(value: float) -> str:
    """How many times: 1.8 ×, 1,520 ×."""
    return f"{show_number(value)} ×"


def show_usd(value: float | None) -> str:
    """Dollars: $0, $0.0008, $12.50, $1,230."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return _not_finite(value, "no end")
    size = abs(value)
    sign = "−" if value < 0 else ""
    if size < 5e-10:
        return "$0"
    if size >= _TOO_MANY:
        return f"{sign}over $10^15"
    if size < 0.0995:
        whole, _, digits = f"{size:.{1 - math.floor(math.log10(size))}f}".partition(".")
        return f"{sign}${whole}.{digits.rstrip('0'):0<2}"
    return f"{sign}${size:,.0f}" if size >= 999.5 else f"{sign}${size:.2f}"


def show_usd_bounds(low: float, high: float) -> str:
    """An interval of costs: $67 to $136, $0.69 to $1.44."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{show_usd(low)} to {show_usd(high)}"
    return f"${low:,.0f} to ${high:,.0f}" if low >= 10 and high < _TOO_MANY else f"{show_usd(low)} to {show_usd(high)}"


def show_bytes(value_bytes: float) -> str:
    """Decimal units, three digits: 1.22 GB, 640 MB, 12 B."""
    return _scaled(value_bytes, _DECIMAL, "B")


def show_flops(value_flop: float) -> str:
    """Operations, decimal, three digits: 350 GFLOP, 24 TFLOP, 32 FLOP."""
    return _scaled(value_flop, (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)), "FLOP")


def show_count(value: float) -> str:
    """How many of something, three digits where there are very many: 2.5, 12,345, 124 million, 7.62 billion."""
    if abs(value) < 1000 and value != round(value):
        return show_number(value)
    for scale, word in ((10**9, "billion"), (10**6, "million")):
        if 0.9995 * scale <= value < _TOO_MANY:
            return f"{show_number(value / scale)} {word}"
    return f"{value:,.0f}" if abs(value) < _TOO_MANY else show_number(value)


def show_memory(value_bytes: float) -> str:
    """Binary units, as memory is sold: 304 KiB, 61 GiB, 1.5 TiB."""
    return _scaled(value_bytes, (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)), "B")


def show_rate(value_bytes_per_s: float) -> str:
    """Bytes per second, decimal: 11.8 MB/s, 300 GB/s."""
    return f"{show_bytes(value_bytes_per_s)}/s"


def show_bit_rate(value_bytes_per_s: float) -> str:
    """The same in bits, as networks are sold: 25 Gb/s, 94.4 Mb/s."""
    units = (("Tb/s", 1e12), ("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3))
    return _scaled(value_bytes_per_s * BITS_PER_BYTE, units, "b/s")


def plural(count: int, noun: str) -> str:
    """1 node, 1,024 GPUs, 2 processes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


_YEARS_1000_S = 1000 * 365.25 * 86400.0
_TOO_MANY = 1e15  # more is no answer, and its digits mean nothing
_DECIMAL = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def _scaled(value: float, units: tuple[tuple[str, float], ...], smallest: str) -> str:
    if not math.isfinite(value):
        return _not_finite(value, "unbounded")
    for unit, scale in units:
        if abs(value) >= 0.9995 * scale:
            return f"{show_number(value / scale)} {unit}"
    if 0 < abs(value) < 0.01:
        return f"under 0.01 {smallest}"
    return f"{show_number(value) if abs(value) < 1 else format(value, ',.0f')} {smallest}"


def _not_finite(value: float, infinite: str) -> str:
    return "n/a" if math.isnan(value) else infinite


def _plain(number: float) -> str:
    return f"{number:.6g}"
