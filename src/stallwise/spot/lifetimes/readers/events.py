"""Logs of machines by name: Bamboo's `ms,add,node` and the segments of Parcae, one JSON list per line."""

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Life, Log, Trace

_EVENT = re.compile(r"\s*(-?\d+)\s*,\s*(add|remove)\s*,\s*(\S+)\s*")

Event = tuple[float, str, str]


def is_events(line: str) -> bool:
    """Whether it is `480000,add,node1`."""
    return _EVENT.fullmatch(line) is not None


def is_segment(line: str) -> bool:
    """Whether it is `[0, "add", {"nodes": […]}]`."""
    return line.lstrip().startswith("[") and '"nodes"' in line


def read_events(lines: Sequence[str], source: str) -> Log:
    """Bamboo's event traces."""
    events = []
    for number, line in enumerate(lines, 1):
        found = _EVENT.fullmatch(line)
        if found is None:
            raise InputError(
                f"{source}, line {number}: found {line[:40]!r}, expected milliseconds, add or remove, a name."
            )
        events.append((int(found[1]) / 1000, found[2], found[3]))
    return log_of_events(events, source)


def read_segment(lines: Sequence[str], source: str) -> Log:
    """Parcae's one-hour segments; migrations and ticks without change say nothing about lives."""
    events: list[Event] = []
    end_s = 0.0
    for number, line in enumerate(lines, 1):
        try:
            at_ms, kind, told = json.loads(line)
            nodes, end_s = list(told["nodes"]), (at_ms + told.get("duration", 0)) / 1000
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f'{source}, line {number}: expected [ms, "add", {{"nodes": […]}}]. Check the file.'
            ) from None
        if kind in ("add", "remove"):
            events += [(at_ms / 1000, kind, str(node)) for node in nodes]
    return log_of_events(events, source, end_s)


def log_of_events(events: Iterable[Event], source: str, end_s: float = 0.0) -> Log:
    """Lives and counts; a machine that is added twice or removed without being there is an error."""
    there: dict[str, float] = {}
    lives: list[Life] = []
    counts: dict[float, int] = {}
    last_s = -np.inf
    for at_s, kind, node in events:
        if at_s < last_s:
            raise InputError(f"{source}: time goes back from {last_s:g} to {at_s:g} s at {node}. Sort the log by time.")
        if (kind == "add") == (node in there):
            raise _overlap(source, at_s, kind, node)
        if kind == "add":
            there[node] = at_s
        else:
            lives.append(Life(lived_s=at_s - there.pop(node), lost=True, machine=node))
        last_s = at_s
        counts[at_s] = len(there)
    if not counts:
        raise InputError(f"{source} has no event that adds or removes a machine. Check the file.")
    end_s = max(end_s, float(last_s))
    lives += [Life(lived_s=end_s - began_s, lost=False, machine=node) for node, began_s in there.items()]
    trace = Trace(np.array(list(counts)), np.array(list(counts.values()), dtype=np.int64), end_s)
    still = f"{len(there)} machines were there at the end: censored."
    return Log(source=source, lives=tuple(lives), trace=trace, notes=(still,) if there else ())


def _overlap(source: str, at_s: float, kind: str, node: str) -> InputError:
    what = "is added while it is there already" if kind == "add" else "is removed while it is not there"
    return InputError(
        f"{source}: events overlap: {node} {what}, at {at_s:g} s. Each machine needs a removal between two additions; "
        "give machines that come back another name."
    )
