"""Tables of set-ups to predict: recognised by their header, read cell by cell, and turned into what a model takes.

Only the columns named in `FORMATS` are ever read. What was measured, or predicted by others, may be in the table; it is
returned unchanged and never read. Every error carries the row number.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from stallwise.analysis.compute import device_of, find_gpu
from stallwise.errors import InputError, nearest_names
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.processors import cpu_class, usual_cpu_class
from stallwise.inputs import bounded_rows, read_text
from stallwise.model.compute.cluster_job import ClusterJobSetup
from stallwise.model.compute.image import ImageSetup
from stallwise.model.compute.known_jobs import PARAMETERS_M, NetworkSetup, ScalingSetup
from stallwise.model.compute.llm import UPDATE_BYTES, LlmSetup, parallel
from stallwise.model.compute.roofline import Device
from stallwise.workload.shapes import LANGUAGE_MODELS, TOTALS
from stallwise.workload.zoo import ImageNetwork, branch, family, similar_network


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """One kind of table."""

    name: str
    marks: tuple[str, ...]
    """Columns that only this kind has."""
    required: tuple[str, ...]
    optional: tuple[str, ...]
    predicts: str
    """The column whose quantity and unit the answer has."""


_REFERENCE = ("ref_gpu", "ref_throughput")
_IMAGE = ("precision", "layout", "torch", "params_m", "fwd_gmacs", "macts", "cpu", "optimizer")
FORMATS = (
    TableFormat(
        name="llm",
        marks=("seqlen",),
        required=("model", "seqlen", "batch", "gpu"),
        optional=("mode", "option", "precision", "attention", "optimizer", "compiled", "cpu", *_REFERENCE),
        predicts="measured_ms",
    ),
    TableFormat(
        name="gavel",
        marks=("placement",),
        required=("gpu", "model"),
        optional=("table", "placement", "batch_size", "n_gpus", "precision", *_REFERENCE),
        predicts="steps_per_s",
    ),
    TableFormat(
        name="image_train",
        marks=("img_size", "mode"),
        required=("model", "gpu", "img_size", "batch"),
        optional=(*_IMAGE, "mode", "compiled", *_REFERENCE),
        predicts="samples_per_s",
    ),
    TableFormat(
        name="image_infer",
        marks=("img_size", "compiled"),
        required=("model", "gpu", "img_size", "batch"),
        optional=(*_IMAGE, "compiled", *_REFERENCE),
        predicts="samples_per_s",
    ),
    TableFormat(
        name="image_train",
        marks=("img_size",),
        required=("model", "gpu", "img_size", "batch"),
        optional=(*_IMAGE, *_REFERENCE),
        predicts="samples_per_s",
    ),
    TableFormat(
        name="network",
        marks=("precision", "n_gpus"),
        required=("gpu", "precision", "model"),
        optional=("n_gpus", "nvlink_bridge", "era", "batch_per_gpu", *_REFERENCE),
        predicts="throughput",
    ),
)

# Column: lowest and highest value that makes sense, and its unit for the complaint.
_RANGES: Mapping[str, tuple[float, float, str]] = {
    "seqlen": (1, 1e7, "tokens"),
    "batch": (1e-3, 1e7, "samples"),
    "batch_size": (1e-3, 1e9, "samples"),
    "batch_per_gpu": (0, 1e10, "samples"),
    "n_gpus": (1, 1e5, "GPUs"),
    "img_size": (8, 8192, "pixels"),
    "params_m": (1e-4, 1e7, "millions of parameters"),
    "fwd_gmacs": (1e-5, 1e6, "10⁹ multiply-accumulates"),
    "macts": (1e-4, 1e6, "10⁶ activations"),
    "ref_throughput": (1e-12, 1e15, "a speed"),
}


# What data frames write where they have nothing.
_BLANK = frozenset(("nan", "na", "n/a", "<na>", "none", "null"))


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `number` counts data rows from 1, as people do below a header."""

    cells: Mapping[str, str]
    number: int

    def error(self, message: str) -> InputError:
        """The error for this row, with its number."""
        return InputError(f"Row {self.number}: {message}")

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks; what stands for nothing (`nan`, `None` …) is blank."""
        cell = (self.cells.get(column) or "").strip()
        return default if not cell or cell.lower() in _BLANK else cell

    def name(self, column: str) -> str:
        """A cell that must not be blank."""
        text = self.text(column)
        if not text:
            raise self.error(f"column {column} is blank. Give a name.")
        return text

    def number_of(self, column: str) -> float | None:
        """A number within what makes sense, or None when blank."""
        text = self.text(column)
        if not text:
            return None
        low, high, unit = _RANGES[column]
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"column {column} holds {text[:40]!r}, expected a number ({unit}).") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(
                f"column {column} holds {text[:40]}, expected {low:g} to {high:g} ({unit}). Check its unit."
            )
        return value

    def required(self, column: str) -> float:
        """A number that must not be blank."""
        value = self.number_of(column)
        if value is None:
            raise self.error(f"column {column} is blank. Give a number ({_RANGES[column][2]}).")
        return value

    def count(self, column: str, default: int) -> int:
        """A whole number, or the default when blank."""
        value = self.number_of(column)
        if value is None:
            return default
        if value != int(value):
            raise self.error(f"column {column} holds {value:g}, expected a whole number.")
        return int(value)

    def flag(self, column: str) -> bool:
        """Yes or no; blank is no."""
        text = self.text(column, "false").lower()
        if text in ("true", "yes", "1", "1.0"):
            return True
        if text in ("false", "no", "0", "0.0"):
            return False
        raise self.error(f"column {column} holds {text[:40]!r}, expected True or False.")


def read_table(path: Path, formats: Sequence[TableFormat] = FORMATS) -> tuple[TableFormat, list[str], list[TableRow]]:
    """The format, all columns in order, and the rows."""
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file. Give a CSV file in UTF-8.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
    try:
        lines = list(bounded_rows(csv.reader(io.StringIO(text, newline="")), path))
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file ({error}). Check its quotes.") from None
    header = [column.strip() for column in lines[0]] if lines else []
    if not any(header):
        raise InputError(f"{path} is empty. Its first line must name the columns.")
    twice = next((column for column in header if column and header.count(column) > 1), None)
    if twice:
        raise InputError(f"{path}, row 0 (the header): column {twice} is there twice. Keep one.")
    table_format = recognised(header, str(path), formats)
    rows = []
    for number, cells in enumerate((cells for cells in lines[1:] if any(cells)), start=1):
        if len(cells) != len(header):
            raise InputError(f"Row {number}: found {len(cells)} cells, expected {len(header)} as in the first line.")
        rows.append(TableRow(dict(zip(header, cells, strict=True)), number))
    if not rows:
        raise InputError(f"{path} has no rows below its header.")
    return table_format, header, rows


def recognised(header: Sequence[str], file: str, known: Sequence[TableFormat] = FORMATS) -> TableFormat:
    """The format whose marks are all there and that lacks no required column."""
    for table_format in known:
        if not all(mark in header for mark in table_format.marks):
            continue
        missing = [column for column in table_format.required if column not in header]
        if not missing:
            return table_format
        near = nearest_names(missing[0], header, limit=1)
        hint = f" Is it {near[0]}?" if near else f" Found: {', '.join(header)}."
        raise InputError(f"{file}, row 0 (the header): column {missing[0]} is missing.{hint}")
    formats = "; ".join(
        f"{table_format.name}: {', '.join(dict.fromkeys((*table_format.required, *table_format.marks)))}"
        for table_format in known
    )
    raise InputError(f"{file}, row 0 (the header): no kind of table has these columns. Known are {formats}.")


_PRECISIONS = ("amp", "fp16", "bf16", "fp32", "tf32")
_SPELLINGS = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32"}
FIRST_FOREACH = 2.0
"""The version of torch since which optimizers update all parameters with few kernels."""


def _listed(name: str, names: Iterable[str]) -> str | None:
    """The known name that `name` spells: case and punctuation do not matter, 2.7B is 27 as in `gpt3_27`."""
    plain = _plain(re.sub(r"(\d)\.(\d)b\b", r"\1\2", name.lower()))
    return next((other for other in names if _plain(other) == plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# `8x A100 SXM4 80GB`, `8 × H100`, `RTX 3090 x2`.
_COUNTED = re.compile(r"(\d{1,5})\s*[x×*]\s*(\D.*)|(.+?)\s*[x×*]\s*(\d{1,5})", re.I)


def gpu_of(row: TableRow, catalog: Catalog, column: str = "gpu") -> Gpu:
    """The GPU a row names, in any of its spellings."""
    return fleet_of(row, catalog, column)[0]


def fleet_of(row: TableRow, catalog: Catalog, column: str = "gpu") -> tuple[Gpu, int | None]:
    """The GPU, and how many of it a name such as `8x A100` speaks of; None where it does not say."""
    name = row.name(column)
    gpu = _gpu(name, catalog)
    if gpu is not None:
        return gpu, None
    counted = _COUNTED.fullmatch(name)
    one = _gpu(counted[2] or counted[3], catalog) if counted else None
    if one is not None and counted is not None:
        return one, int(counted[1] or counted[4])
    try:
        return catalog.gpu(name), None
    except InputError as error:
        hint = "" if "Did you mean" in str(error) else " `stallwise catalog gpus` lists them; add your own there."
        raise row.error(f"{error}{hint}") from None


@lru_cache(maxsize=4096)  # looking for a name nobody knows takes milliseconds; tables repeat theirs
def _gpu(name: str, catalog: Catalog) -> Gpu | None:
    try:
        return catalog.gpu(name)
    except InputError:  # unknown, or a family
        return catalog.gpu_of_driver_name(name) or find_gpu(name, catalog)


def counted(row: TableRow, catalog: Catalog, *, takes_several: bool) -> TableRow:
    """The row with the number of GPUs that its name speaks of in `n_gpus`, where it belongs."""
    _, count = fleet_of(row, catalog)
    if count is None:
        return row
    if not takes_several:
        remedy = "Name one GPU; several are said by `option` (dp4)." if "seqlen" in row.cells else "Name one GPU."
        if count == 1 or count == parallel(row.text("option").lower())[1]:
            return row
        raise row.error(f"column gpu speaks of {count} GPUs, which this kind of table does not have. {remedy}")
    column_count = row.count("n_gpus", count)
    if column_count != count:
        raise row.error(f"column gpu speaks of {count} GPUs, column n_gpus of {column_count}. Keep one of the two.")
    return TableRow({**row.cells, "n_gpus": str(count)}, row.number)


def image_setup(row: TableRow, gpu: Gpu, *, training: bool) -> ImageSetup:
    """An image network, counted or by its kin, at the row's image size."""
    gmacs, macts, params = row.number_of("fwd_gmacs"), row.number_of("macts"), row.number_of("params_m")
    macs, outputs = (None if gmacs is None else gmacs * 1e9), (None if macts is None else macts * 1e6)
    name = row.name("model")
    network = similar_network(name, macs, outputs)
    if network is None:
        raise row.error(
            f"no image network is like {name!r} in name. Give fwd_gmacs and macts, from which it can be judged."
        )
    precision = _precision(row, "amp")
    if training and row.text("mode", "train").lower() not in ("train", "training"):
        raise row.error("mode is not train. Forward passes are another table: one with compiled and without mode.")
    compiled = row.flag("compiled")
    device = _device(gpu, precision)
    torch = row.text("torch", "2.4")
    return replace(
        _sized(row, device, network, name, macs, outputs),
        parameters=network.parameters if params is None else params * 1e6,
        training=training,
        precision=precision,
        layout=row.text("layout", "nchw").lower(),
        software=f"{torch}|compiled" if compiled and not training else torch,
        compiled=compiled,
        looped_update=version_of(torch) < FIRST_FOREACH,
        adam=_optimizer(row, "momentum") in ("adam", "adamw"),
        cpu_speed=_cpu_speed(row, gpu, device),
    )


def version_of(text: str) -> float:
    """A version of torch as a number in the order of versions."""
    parts = text.split(".")
    try:
        return float(parts[0]) + float(parts[1]) / 100 if len(parts) > 1 else float(parts[0])
    except ValueError:
        return 2.04


def _precision(row: TableRow, default: str) -> str:
    """The row's precision in its usual spelling."""
    text = row.text("precision", default).lower()
    precision = _SPELLINGS.get(text, text)
    if precision not in _PRECISIONS:
        raise row.error(f"precision {text!r} is not known. Give amp, fp16, bf16, tf32 or fp32.")
    return precision


def _optimizer(row: TableRow, default: str) -> str:
    optimizer = row.text("optimizer", default).lower()
    if optimizer not in UPDATE_BYTES:
        raise row.error(f"optimizer {optimizer!r} is not known. Give {', '.join(UPDATE_BYTES)}.")
    return optimizer


def _device(gpu: Gpu, precision: str) -> Device:
    """The GPU as torch computes on it: FP32 where it has no TF32, and bfloat16 on FP32 units where it has none."""
    lacking = precision == "bf16" and gpu.bf16_flop_per_s is None
    return device_of(gpu, "ieee" if precision == "fp32" or lacking else precision)


def _cpu_speed(row: TableRow, gpu: Gpu, device: Device) -> float:
    """How fast the host launches: by its CPU's name, else by what hosts GPUs of that year."""
    known = cpu_class(row.text("cpu"))
    return (known or usual_cpu_class(gpu.year, consumer=device.consumer)).launch_speed


def _sized(
    row: TableRow, device: Device, network: ImageNetwork, name: str, macs: float | None, outputs: float | None
) -> ImageSetup:
    """Counts at the row's image size: by area for a counted network, by the row's own totals for one of its kin."""
    size = row.required("img_size")
    area = (size / network.image_size) ** 2
    counted = network.name == name
    work = area if counted or macs is None else macs / network.all_macs
    moved = area if counted or outputs is None else outputs / network.outputs
    return ImageSetup(
        device=device,
        network=name,
        family=family(name),
        branch=branch(name),
        is_counted=counted,
        # Attention grows with the square of the number of tokens.
        macs={kind: value * work * (area if kind == "attention" else 1) for kind, value in network.macs.items()},
        narrow_macs=network.narrow_macs * work,
        elements={
            kind: value * moved * (area if kind == "attention" else 1) for kind, value in network.elements.items()
        },
        kernels=network.kernels,
        tensors=network.tensors,
        parameters=network.parameters,
        batch=row.required("batch"),
        image_size=size,
        training=True,
    )


def network_setup(row: TableRow, gpu: Gpu) -> NetworkSetup:
    """A known job on one GPU of the row's kind."""
    row.name("precision")
    precision = "fp32" if _precision(row, "") in ("fp32", "tf32") else "amp"
    return NetworkSetup(
        device=device_of(gpu, precision),
        network=_listed(row.name("model"), PARAMETERS_M) or row.name("model"),
        precision=precision,
        software=row.text("era", "ngc22"),
    )


def scaling_setup(row: TableRow, one: NetworkSetup, samples_per_s: float | None) -> ScalingSetup:
    """The same on the row's number of GPUs. The column `batch_per_gpu` holds the batch of all GPUs together."""
    gpus = row.count("n_gpus", 1)
    batch = row.number_of("batch_per_gpu")
    return ScalingSetup(
        device=one.device,
        network=one.network,
        precision=one.precision,
        software=one.software,
        gpus=gpus,
        bridged=row.flag("nvlink_bridge"),
        samples_per_s=samples_per_s,
        batch=batch / gpus if batch else None,
    )


def cluster_job_setup(row: TableRow, gpu: Gpu) -> ClusterJobSetup:
    """A job of a shared cluster."""
    placement = row.text("placement", "packed").lower()
    if placement not in ("packed", "spread"):
        raise row.error(f"placement {placement!r} is not known. Give packed or spread.")
    if _precision(row, "fp32") != "fp32":
        raise row.error("jobs of such tables were measured in fp32 alone. Leave precision blank.")
    name = row.name("model")
    job = _listed(name, TOTALS) or name
    return ClusterJobSetup(
        device=device_of(gpu, "ieee"),
        job=job,
        totals=TOTALS.get(job),
        batch=row.number_of("batch_size"),
        gpus=row.count("n_gpus", 1),
        placement=placement,
        table=row.text("table", "simulation").lower(),
    )


def llm_setup(row: TableRow, gpu: Gpu) -> LlmSetup:
    """A language model; where a column is blank, as such tables are measured: FP32 without TF32, plain attention,
    no update, not compiled."""
    name = row.name("model").lower()
    listed = _listed(name, LANGUAGE_MODELS)
    if listed is None:
        near = nearest_names(name, LANGUAGE_MODELS)
        hint = f" Did you mean {' or '.join(near)}?" if near else f" Known are {', '.join(LANGUAGE_MODELS)}."
        raise row.error(f"no language model is called {name!r}.{hint}")
    mode = row.text("mode", "train").lower()
    if mode not in ("train", "inf"):
        raise row.error(f"mode {mode!r} is not known. Give train or inf.")
    option = row.text("option").lower()
    try:
        parallel(option)
    except InputError as error:
        raise row.error(str(error)) from None
    attention = row.text("attention", "plain").lower()
    if attention not in ("plain", "eager", "flash", "sdpa"):
        raise row.error(f"attention {attention!r} is not known. Give plain or flash.")
    optimizer = _optimizer(row, "none")
    precision = _precision(row, "fp32")
    device = _device(gpu, precision)
    return LlmSetup(
        device=device,
        model=LANGUAGE_MODELS[listed],
        sequence=row.count("seqlen", 0) or int(row.required("seqlen")),
        batch=row.required("batch"),
        training=mode == "train",
        option=option,
        element_bytes=4.0 if precision in ("fp32", "tf32") else 2.0,
        autocast=precision not in ("fp32", "tf32"),
        reduced=precision != "fp32",
        flash=attention in ("flash", "sdpa"),
        optimizer=optimizer if mode == "train" else "none",
        compiled=row.flag("compiled"),
        cpu_speed=_cpu_speed(row, gpu, device),
    )
