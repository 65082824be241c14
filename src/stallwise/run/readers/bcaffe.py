"""Layer logs of B-Caffe (shyhuai/B-Caffe), the authors' own for MG-WFBP.

A row ends in `[param_id, elements, backward_us, comm_us(, merged_us)]`, microseconds and float32 elements, in forward
order. A layer owns two rows, weight and bias, which repeat its one backward time. A file may hold several blocks (a
warm-up, then the run), each starting at id 0; the last one counts. With five fields the fourth was measured in the
un-merged benchmark iteration, the fifth during the run, where 0 means sent together with a neighbour.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stallwise.errors import InputError
from stallwise.run.readers.numbers import number, text_of
from stallwise.workload.layers import Layer, LayerTrace

_ROW = re.compile(r"\[\s*(\d+\s*(?:,[^,\[\]]+){3,4})\]\s*$")
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class BcaffeRow:
    """One parameter tensor."""

    bytes: int
    backward_s: float
    benchmark_s: float
    run_s: float | None


def looks_like_bcaffe(text: str) -> bool:
    """Whether the first line that is not empty ends in a row."""
    return bool(_ROW.search(text.lstrip().partition("\n")[0]))


def bcaffe_rows(path: Path) -> list[BcaffeRow]:
    """The tensors of the last block, in forward order."""
    block: list[BcaffeRow] = []
    for count, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        found = _ROW.search(line)
        if not found:
            raise InputError(f"{path}, line {count} is no B-Caffe row `[id, elements, backward_us, comm_us]`.")
        number_in_block, row = _row(found[1].split(","), f"{path}, line {count}")
        if number_in_block == 0:
            block = []
        if number_in_block != len(block):
            raise InputError(f"{path}, line {count}: parameter {len(block)} is missing; is the log complete?")
        block.append(row)
    if not any(row.backward_s for row in block):
        raise InputError(f"{path} holds only warm-up rows without times.")
    return block


def _row(fields: list[str], where: str) -> tuple[int, BcaffeRow]:
    names = ("the parameter id", "the element count", "the backward time", "the exchange time", "the merged time")
    values = [number(field.strip(), name, where) for field, name in zip(fields, names, strict=False)]
    micro = [value * 1e-6 for value in values[2:]]
    return int(values[0]), BcaffeRow(
        int(values[1]) * _FLOAT_BYTES, micro[0], micro[1], micro[2] if len(micro) > 2 else None
    )


def read_bcaffe(path: Path, *, exchange: Literal["benchmark", "run"] = "benchmark") -> LayerTrace:
    """Layers of a B-Caffe log; forward times are not in it and are taken as half of backward, as its authors do."""
    rows = bcaffe_rows(path)
    if len(rows) % 2:
        raise InputError(f"{path} has {len(rows)} rows; weight and bias should come in pairs. Is the log complete?")
    layers = []
    for i in range(0, len(rows), 2):
        weight, bias = rows[i], rows[i + 1]
        if weight.backward_s != bias.backward_s:
            raise InputError(f"{path}: parameters {i} and {i + 1} have different backward times, so are no layer.")
        layers.append(
            Layer(
                name=f"layer {i // 2 + 1}",
                forward_s=weight.backward_s / 2,
                backward_s=weight.backward_s,
                gradient_bytes=weight.bytes + bias.bytes,
                exchange_s=_exchange_s(weight, exchange, path) + _exchange_s(bias, exchange, path),
            )
        )
    return LayerTrace(
        layers=tuple(layers),
        source=str(path),
        times=f"backward and exchange ({exchange}) measured, forward taken as half of backward",
    )


def _exchange_s(row: BcaffeRow, which: str, path: Path) -> float:
    if which == "benchmark":
        return row.benchmark_s
    if row.run_s is None:
        raise InputError(f"{path} has no fifth field, so no exchange times of the run; take those of the benchmark.")
    return row.run_s
