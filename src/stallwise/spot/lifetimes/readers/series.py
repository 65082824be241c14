"""SkyPilot's spot traces: how many instances were obtained at each tick (Wu et al., NSDI 2024).

`{"metadata": {"gap_seconds": 195}, "data": [0, 0, 1, …]}`. Names like `us-east-1a_v100_1.json` give zone and GPU.
"""

from pathlib import Path

import numpy as np

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Log, Trace, lives_of_counts
from stallwise.spot.lifetimes.readers.counts import assumed


def read_series(document: object, path: Path) -> Log:
    """The series as a trace, and lives as the stretches in which instances were there."""
    gap_s, data = _parts(document, path)
    counts = np.array(data, dtype=np.int64)
    trace = Trace(np.arange(len(counts), dtype=np.float64) * gap_s, counts, len(counts) * gap_s)
    zone, gpu = _labels(path.stem)
    lives, unseen = lives_of_counts(trace, region=zone, gpu=gpu)
    said = f"Ticks of {gap_s:g} s: a life is known to that."
    return Log(source=path.name, lives=lives, trace=trace, notes=(said, *assumed(trace, unseen)))


def _parts(document: object, path: Path) -> tuple[float, list[int]]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap_s = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(gap_s, (int, float)) or gap_s <= 0 or not isinstance(data, list) or not data:
        raise InputError(
            f"{path} is JSON without metadata.gap_seconds and data, so it is no availability series. Check the file."
        )
    for place, value in enumerate(data):
        if not isinstance(value, (int, float)) or value < 0 or value != int(value):
            raise InputError(f"{path}: value {place} of data is {value!r}, not a count of instances. Correct it.")
    return float(gap_s), [int(value) for value in data]


def _labels(stem: str) -> tuple[str | None, str | None]:
    parts = stem.split("_")
    return (parts[0], parts[1]) if len(parts) == 3 else (None, None)
