"""The Trace Event Format, as strictly as a file can be checked without a viewer."""

import gzip
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"} | {
    "thread_sort_index": "sort_index"
}


def read(path: Path) -> dict[str, Any]:
    """The document, which must be strict JSON."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: dict[str, Any] = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    return found


def check(document: dict[str, Any]) -> None:
    """Fail with the first thing that is wrong."""
    assert document.keys() == {"displayTimeUnit", "otherData", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    for event in events:
        _check_event(event)
    timed = [event for event in events if event["ph"] != "M"]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed), "not sorted"
    _check_names(events, timed)
    tracks = defaultdict(list)
    for event in timed:
        tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        _check_nesting(track)


def _check_event(event: dict[str, Any]) -> None:
    assert event["ph"] in ("M", "X", "i"), event
    assert isinstance(event["name"], str), event
    assert event["name"], event
    assert isinstance(event["args"], dict), event
    assert type(event["pid"]) is type(event["tid"]) is int, event
    assert event["pid"] > 0, event
    for value in (event["ts"], event.get("dur", 0)):
        assert isinstance(value, int | float), event
        assert math.isfinite(value), event
        assert value >= 0, event
    assert ("dur" in event) == (event["ph"] == "X"), event
    if event["ph"] == "i":
        assert event["s"] in ("t", "p", "g"), event
    if event["ph"] == "M":
        assert METADATA[event["name"]] in event["args"], event
    else:
        assert isinstance(event["cat"], str), event


def _check_names(events: list[dict[str, Any]], timed: list[dict[str, Any]]) -> None:
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["pid"] for e in timed} <= processes.keys(), "a process without a name"
    assert {(e["pid"], e["tid"]) for e in timed} == threads.keys(), "a thread without a name"
    assert len(set(processes.values())) == len(processes), "two processes of one name"
    assert len({(pid, name) for (pid, _), name in threads.items()}) == len(threads), "two tracks of one name"
    assert len({tid for _, tid in threads}) == len(threads), "a thread's number is used twice"


def _check_nesting(track: list[dict[str, Any]]) -> None:
    """Every slice lies inside the open one or after it. In whole nanoseconds, as viewers compute."""
    stack: list[int] = []
    for event in track:
        start_ns = round(event["ts"] * 1000)
        end_ns = start_ns + round(event.get("dur", 0) * 1000)
        while stack and stack[-1] <= start_ns:
            stack.pop()
        assert not stack or end_ns <= stack[-1], f"crosses another slice: {event}"
        stack.append(end_ns)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
