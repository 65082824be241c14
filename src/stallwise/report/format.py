"""Quantities as people read them (the functions are in `stallwise.units`, where every layer reaches them), and text."""

import functools
import unicodedata

from stallwise.units import (
    plural,
    show_bit_rate,
    show_bounds,
    show_bytes,
    show_count,
    show_factor,
    show_flops,
    show_memory,
    show_number,
    show_percent,
    show_percent_bounds,
    show_probability,
    show_rate,
    show_seconds,
    show_signed,
    show_signed_percent,
    show_usd,
    show_usd_bounds,
)

__all__ = [
    "plural",
    "printable",
    "show_bit_rate",
    "show_bounds",
    "show_bytes",
    "show_count",
    "show_factor",
    "show_flops",
    "show_memory",
    "show_number",
    "show_percent",
    "show_percent_bounds",
    "show_probability",
    "show_rate",
    "show_seconds",
    "show_signed",
    "show_signed_percent",
    "show_usd",
    "show_usd_bounds",
]


def printable(text: str) -> str:
    """The text with everything that does not print as one visible character written as an escape: `\\x1b`."""
    return text if text.isprintable() else "".join(map(_printable_letter, text))


@functools.lru_cache(maxsize=1024)
def _printable_letter(letter: str) -> str:
    if letter.isprintable() or unicodedata.category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode("ascii")
