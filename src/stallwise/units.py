"""Units: the constants, and quantities as people write them.

Inside the package everything is in base units (seconds, bytes, bytes/s, flop/s, dollars/hour) and the unit is
in the name. A bit rate is decimal (1 Gb/s = 1e9 bit/s), a memory size given in GiB is binary.
"""

import re

from stallwise.errors import InputError

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
    """Gb/s to bytes/s."""
    return rate * 1e9 / BITS_PER_BYTE


_BYTES = {"b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB, "gib": GIB}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([^\s0-9]*)\s*", re.IGNORECASE)


def parse_bytes(text: str) -> float:
    """`25MB`, `25 MiB`, `1e6` (bytes)."""
    number, unit = _parts(text, "a size like 25MB or 25MiB")
    return number * _unit(text, unit.lower() or "b", _BYTES, "a size like 25MB or 25MiB")


def parse_seconds(text: str) -> float:
    """`20us`, `1.5 ms`, `12h`; a bare number is seconds."""
    number, unit = _parts(text, "a time like 20us, 1.5ms or 12h")
    return number * _unit(text, unit.lower() or "s", _SECONDS, "a time like 20us, 1.5ms or 12h")


def parse_rate(text: str) -> float:
    """Bytes/s of `25gbit`, `25Gb/s` (bits: small b), `300GB/s` (bytes: large B), `1.2GiB/s`."""
    wanted = "a rate like 25gbit, 25Gb/s or 300GB/s"
    number, unit = _parts(text, wanted)
    plain = unit.removesuffix("/s").removesuffix("ps")
    if plain.lower() in _BITS:
        return number * _BITS[plain.lower()] / BITS_PER_BYTE
    if plain.endswith("b") and len(plain) == 2:
        return number * _unit(text, plain.lower(), _BYTES, wanted) / BITS_PER_BYTE
    return number * _unit(text, plain.lower(), _BYTES, wanted)


def parse_share(text: str) -> float:
    """`80%` or `0.8`, between 0 and 1."""
    number, unit = _parts(text, "a share like 80% or 0.8")
    share = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 <= share <= 1:
        raise InputError(f"{text!r} is not a share like 80% or 0.8.")
    return share


def parse_factor(text: str) -> float:
    """`2x`, `0.5`: more than 0."""
    number, unit = _parts(text, "a factor like 2x or 0.5")
    if unit.lower() not in ("", "x", "×") or number <= 0:
        raise InputError(f"{text!r} is not a factor like 2x or 0.5.")
    return number


def _parts(text: str, wanted: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text)
    try:
        return float(found.group(1)), found.group(2)  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        raise InputError(f"{text!r} is not {wanted}.") from None


def _unit(text: str, unit: str, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    if unit not in units:
        raise InputError(f"{text!r} is not {wanted}.")
    return units[unit]
