"""Azure's machines of 2017 (Cortez et al., SOSP 2017): arrivals by flavour, binned lifetimes, and use of the CPU.

Arrivals are the test split of huaweicloud/trace_generation_rnn: `*.txt` names flavours, its partner `*.c<second>.txt`
the bin of each lifetime, `U` ended, `C` still running at that second. `flav_map.txt` and `*.interval_map.txt` beside
them say what letters and bins are. Neither what machines use nor which are of low priority is said: `drawing.py`.
"""

import math
import re
from pathlib import Path

import numpy as np

from stallwise.cluster.deflation.resources import Amounts, Machines
from stallwise.errors import InputError

_SLOT_S = 300.0
"""Azure's clock ticks every five minutes."""
_GIB = 1024


def read_arrivals(path: Path) -> Machines:
    """All machines of a flavour trace with its partner and maps beside it; nobody is low-priority yet."""
    partner, until_s = _partner(path)
    flavours, bins = _flavours(path.parent / "flav_map.txt"), _bins(path.parent)
    arrival: list[float] = []
    end: list[float] = []
    sizes: list[Amounts] = []
    machines, lifetimes = _lines(path), _lines(partner)
    if len(machines) != len(lifetimes):
        raise InputError(
            f"{path.name} has {len(machines):,} lines and {partner.name} {len(lifetimes):,}: one of them is cut off."
        )
    for number, (what, how_long) in enumerate(zip(machines, lifetimes, strict=True), 1):
        at, letters = _row(what, path, number)
        same, lives = _row(how_long, partner, number)
        if at != same or len(letters) != len(lives):
            raise InputError(f"{partner.name}, line {number} does not belong to that line of {path.name}.")
        for letter, life in zip(letters, lives, strict=True):
            if letter not in flavours or life[1:] not in bins or life[0] not in "UC":
                raise InputError(f"{path.name}, line {number}: {letter!r} living {life!r} is in no map beside it.")
            sizes.append(flavours[letter])
            arrival.append(at)
            end.append(until_s if life[0] == "C" else at + bins[life[1:]])
    size = np.array(sizes, dtype=np.int64)
    count = len(size)
    return Machines(
        source=path.name,
        format="Azure V1",
        arrival_s=np.array(arrival) - (arrival[0] if arrival else 0.0),
        end_s=np.array(end) - (arrival[0] if arrival else 0.0),
        size=size,
        least=np.zeros_like(size),
        low=np.zeros(count, dtype=bool),
        priority=np.full(count, 0.5),
        series=np.full(count, -1, dtype=np.int64),
        offset=np.zeros(count, dtype=np.int64),
    )


def _partner(path: Path) -> tuple[Path, float]:
    found = sorted(path.parent.glob(f"{path.stem}.c*.txt"))
    match = re.fullmatch(r".*\.c(\d+)\.txt", found[0].name) if found else None
    if match is None:
        raise InputError(f"{path.name} names flavours; the lifetimes {path.stem}.c<second>.txt are not beside it.")
    return found[0], float(match[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{path} cannot be read ({reason}).") from None


def _row(line: str, path: Path, number: int) -> tuple[float, list[str]]:
    at, _, rest = line.partition(" ")
    if not at.isdigit():
        raise InputError(f"{path.name}, line {number} has no second in front: {line[:30]!r}.")
    return float(at), [one for one in rest.split(",") if one and one != "|"]


def _flavours(path: Path) -> dict[str, Amounts]:
    """`2,3.5 g`: two cores and 3.5 GiB."""
    found = {}
    for number, line in enumerate(_lines(path), 1):
        size, _, letter = line.partition(" ")
        cores, _, gib = size.partition(",")
        milli, mib = (round(unit * _number(text, path, number)) for unit, text in ((1000, cores), (_GIB, gib)))
        found[letter.strip()] = Amounts(cpu_milli=milli, memory_mib=mib)
    return found


def _number(text: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"{path.name}, line {line}: {text[:30]!r} is no number from 0. Is the file whole?")
    return value


def _bins(folder: Path) -> dict[str, float]:
    """The mean of the lifetimes in each bin, in the middle of their five minutes."""
    found = sorted(folder.glob("*.interval_map.txt"))
    if not found:
        raise InputError(f"No *.interval_map.txt in {folder}: it says how long the bins of lifetimes are.")
    lives: dict[str, list[float]] = {}
    for line, text in enumerate(_lines(found[0]), 1):
        life, _, number = text.partition(" ")
        lives.setdefault(number.strip(), []).append(_number(life, found[0], line))
    return {number: sum(each) / len(each) + _SLOT_S / 2 for number, each in lives.items()}
