"""Layer files of cluster-sim (aakash-sharma/cluster-sim, the Dally simulator; ASTRA-sim workloads) as CSV.

Nanoseconds of compute per phase (forward, gradient of the input, gradient of the weights) and the bytes all-reduced per
layer, in forward order. The batch stands in the file name (`resnet50_b512.csv`). A file may be shorter than the network
it describes; nothing in it says so.
"""

import re
from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.numbers import number, rows_of
from stallwise.workload.layers import Layer, LayerTrace

_COLUMNS = (
    "layer",
    "fwd_compute_ns",
    "input_grad_compute_ns",
    "weight_grad_compute_ns",
    "weight_grad_collective",
    "weight_grad_bytes",
)


def looks_like_cluster_sim(text: str) -> bool:
    """Whether the header is theirs."""
    return text.startswith(",".join(_COLUMNS))


def read_cluster_sim(path: Path) -> LayerTrace:
    """Backward of a layer is the gradient of its input and of its weights."""
    batch = re.search(r"_b(\d+)$", path.stem)
    return LayerTrace(
        layers=tuple(_layer(row, where) for where, row in rows_of(path, _COLUMNS)),
        source=str(path),
        samples=int(batch[1]) if batch else None,
    )


def _layer(row: dict[str, str], where: str) -> Layer:
    if row["weight_grad_collective"] not in ("ALLREDUCE", "NONE"):
        raise InputError(f"{where}: collective {row['weight_grad_collective']!r} is not known here, only ALLREDUCE.")
    seconds = {
        name: number(row[name], name, where) * 1e-9
        for name in ("fwd_compute_ns", "input_grad_compute_ns", "weight_grad_compute_ns")
    }
    size = number(row["weight_grad_bytes"], "weight_grad_bytes", where)
    return Layer(
        name=row["layer"],
        forward_s=seconds["fwd_compute_ns"],
        backward_s=seconds["input_grad_compute_ns"] + seconds["weight_grad_compute_ns"],
        gradient_bytes=int(size) if row["weight_grad_collective"] == "ALLREDUCE" else 0,
    )
