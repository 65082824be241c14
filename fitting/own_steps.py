"""Training steps that we measured on one GPU: what the constants of launching and of plain precisions rest on.

`own_steps.csv` is what `python -m benchmarks.gpu.predicted --seed SEED` measured on an H200 in a virtual machine that
hides its CPU (torch 2.11; a job whose kernels are blank was measured by an earlier run of the same command). Constants
set by seed 101: the launching speed of the class `virtual machine`, the part of Adam's update, what FP32 and matrix
units take by their peak. Seed 20261 was predicted with these before it was measured (16 of 20 jobs: median 17.9 %, 75 %
inside; eager 12.6 %, all inside); what a compiled step launches was set by its rows afterwards, and is not tested on
others yet.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fitting.study import Study
from stallwise.analysis.table_forecast import RowForecast, forecast_rows
from stallwise.analysis.tables import FORMATS, TableRow
from stallwise.hardware.catalog import Catalog, load_catalog

_ZOO = {
    "mobilenet_v3_large": "mobilenetv3_large_100",
    "vit_b_16": "vit_base_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
}
_WORDS = {"bert_base": 128, "gpt2": 512, "llama_1b": 512}
_ADAMW = (*_WORDS, "vit_b_16", "swin_t")
CPU = "Intel(R) Xeon(R) Processor"


@dataclass(frozen=True)
class OwnStep:
    """A row beside what the model says of it, in ms."""

    job: str
    step_ms: float
    forecast: RowForecast


def own_steps_rows() -> list[OwnStep]:
    """Every row."""
    catalog = load_catalog()
    rows = csv.DictReader(io.StringIO(Path(__file__).with_name("own_steps.csv").read_text()))
    return [
        OwnStep(
            f"{row['network']} × {row['batch']}, {row['precision']}, {row['mode']}",
            float(row["step_ms"]),
            predicted(row, catalog),
        )
        for row in rows
    ]


def own_steps_study(_: Path) -> Study:
    """What the model says of every row, beside what was measured. Printed only; nothing is shipped."""
    study, off, inside = Study(), [], []
    for one in own_steps_rows():
        off.append(one.forecast.predicted / one.step_ms - 1)
        inside.append(one.forecast.low <= one.step_ms <= one.forecast.high)
        study.lines.append(
            f"own steps: {one.job:<44} {one.step_ms:8.2f} ms, predicted {one.forecast.predicted:8.2f}, {off[-1]:+.1%}"
        )
    study.lines.append(
        f"own steps, fitted on: {len(off)} rows, median {np.median(np.abs(off)):.1%}, covered {np.mean(inside):.0%}"
    )
    return study


def predicted(row: Mapping[str, str], catalog: Catalog, cpu: str = CPU) -> RowForecast:
    """What `predict --table` says of a row, in ms of a step."""
    network, batch = row["network"], row["batch"]
    cells = {
        "model": _ZOO.get(network, network),
        "gpu": "H200",
        "batch": batch,
        "precision": row["precision"],
        "compiled": str(row["mode"] == "compiled"),
        "cpu": cpu,
        "mode": "train",
        "optimizer": "adamw" if network in _ADAMW else "momentum",
    }
    if network in _WORDS:
        cells |= {"seqlen": str(_WORDS[network]), "attention": "flash"}
    else:
        cells |= {"img_size": "224", "torch": "2.11"}
    kind = "llm" if network in _WORDS else "image_train"
    table_format = next(one for one in FORMATS if one.name == kind)
    (forecast,) = forecast_rows(table_format, [TableRow(cells, 1)], catalog)
    if kind == "llm":
        return forecast
    ms = 1e3 * float(batch)
    return RowForecast(predicted=ms / forecast.predicted, low=ms / forecast.high, high=ms / forecast.low)
