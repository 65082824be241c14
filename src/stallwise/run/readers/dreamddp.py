"""Times of DreamDDP (trl730109/DreamDDP): backward and all-reduce per module, in seconds, forward order.

Either a pair of JSON maps `…bp.json` and `…comm.json` (module to seconds; with LoRA only adapters are exchanged), or
the CSV `layer,backward_s,comm_s`. Neither holds forward times nor sizes. The JSON writes NaN or infinity for what was
not timed; that counts as zero, and how often is said in the trace's `times`.
"""

import json
import math
from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.numbers import number, rows_of, text_of
from stallwise.workload.layers import Layer, LayerTrace

_COLUMNS = ("layer", "backward_s", "comm_s")
_LACKS = "no forward times and no gradient sizes recorded"


def looks_like_dreamddp(path: Path, text: str) -> bool:
    """A CSV with those columns, or one of a pair of JSON maps."""
    return text.startswith(",".join(_COLUMNS)) or path.name.endswith(("bp.json", "comm.json"))


def read_dreamddp(path: Path) -> LayerTrace:
    """Give the CSV, or either file of the JSON pair."""
    return _from_pair(path) if path.suffix == ".json" else _from_csv(path)


def _from_csv(path: Path) -> LayerTrace:
    layers = tuple(
        Layer(
            name=row["layer"],
            forward_s=0.0,
            backward_s=number(row["backward_s"], "backward_s", where),
            gradient_bytes=0,
            exchange_s=number(row["comm_s"], "comm_s", where),
        )
        for where, row in rows_of(path, _COLUMNS)
    )
    return LayerTrace(layers=layers, source=str(path), times=f"backward and exchange measured; {_LACKS}")


def _from_pair(path: Path) -> LayerTrace:
    stem = path.name.removesuffix("bp.json").removesuffix("comm.json")
    if stem == path.name:
        raise InputError(f"{path} is no DreamDDP file; their names end in bp.json and comm.json.")
    backward, untimed = _times(path.with_name(f"{stem}bp.json"))
    exchanged, unsent = _times(path.with_name(f"{stem}comm.json"))
    strangers = exchanged.keys() - backward.keys()
    if strangers:
        raise InputError(f"{path}: {min(strangers)} is exchanged but has no backward time; do the two files belong?")
    layers = tuple(
        Layer(name=name, forward_s=0.0, backward_s=seconds, gradient_bytes=0, exchange_s=exchanged.get(name, 0.0))
        for name, seconds in backward.items()
    )
    unmeasured = f"; {untimed + unsent} times that were NaN or infinite count as zero" if untimed + unsent else ""
    return LayerTrace(
        layers=layers,
        source=str(path.with_name(stem.rstrip("_."))),
        times=f"backward and exchange measured; {_LACKS}{unmeasured}",
    )


def _times(path: Path) -> tuple[dict[str, float], int]:
    """Seconds by module, and how many were not finite."""
    try:
        found = json.loads(text_of(path))
    except json.JSONDecodeError as reason:
        raise InputError(f"{path} is no JSON: {reason}.") from None
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path} is no map of modules to seconds.")
    times, missing = {}, 0
    for name, value in found.items():
        if isinstance(value, float) and not math.isfinite(value):
            missing += 1
            value = 0.0
        times[name] = number(value, name, str(path))
    return times, missing
