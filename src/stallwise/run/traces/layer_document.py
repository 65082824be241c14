"""Stallwise's own layer file: one GPU's step, layer by layer, as JSON that other programs can simulate from.

docs/trace.md describes it. The structs are the schema: `stallwise trace export --layers` writes them, `read_layers` and
`stallwise trace import` read them.
"""

from pathlib import Path
from typing import Literal

import msgspec

from stallwise.errors import InputError
from stallwise.run.traces.inputs import MOST_RANKS, MOST_WORKERS, count, shown, text_of
from stallwise.workload.layers import Layer, LayerTrace

FORMAT, VERSION = "stallwise-layers", 1
_NUMBERS = (
    "prepare_s", "blocked_s", "copy_s", "update_s", "step_s", "inside_s", "between_s", "samples", "flops_per_step",
    "element_bytes",
)  # fmt: skip
_MOST_BYTES = 2**50
_MOST_PASSES = 10_000
_COUNTS = {"gpus": (1, MOST_RANKS), "gpus_per_node": (1, MOST_RANKS), "workers": (0, MOST_WORKERS)}


class LayerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One layer; `id` counts in forward order."""

    id: int
    name: str
    forward_s: float
    backward_s: float
    comm_s: float | None = None
    gradient_bytes: int


class OverlapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How gradients are exchanged."""

    scheme: str = "ddp"
    bucket_bytes: int | None = None
    first_bucket_bytes: int | None = None
    accumulate: int = 1


class LayerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. Times are seconds of one GPU's step; null means unknown."""

    format: Literal["stallwise-layers"]
    version: int
    source: str
    model: str | None = None
    times: str = "measured"
    iterations: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    backend: str | None = None
    precision: str | None = None
    element_bytes: float | None = None
    flops_per_step: float | None = None
    samples: float | None = None
    step_s: float | None = None
    prepare_s: float | None = None
    blocked_s: float | None = None
    workers: int | None = None
    copy_s: float = 0.0
    update_s: float = 0.0
    inside_s: float | None = None
    between_s: float | None = None
    overlap: OverlapEntry = OverlapEntry()
    layers: list[LayerEntry]


def looks_like_layer_file(text: str) -> bool:
    """Whether it says that it is one."""
    return FORMAT in text[:4096]


def read_layer_file(path: Path) -> LayerDocument:
    """The document; an `InputError` says which key is wrong."""
    try:
        document = msgspec.json.decode(text_of(path), type=LayerDocument)
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be a layer file.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no usable layer file: {error}.") from None
    if document.version > VERSION:
        raise InputError(f"{path} has version {document.version}; this Stallwise reads up to {VERSION}. Upgrade it.")
    for name in _NUMBERS:
        value = getattr(document, name)
        if value is not None and not 0 <= value < 1e18:
            raise InputError(f"{path}: {name} is {shown(value)}; it must be a number of at least 0.")
    for name, (least, most) in _COUNTS.items():
        if getattr(document, name) is not None:
            count(getattr(document, name), name, str(path), least=least, most=most)
    if document.element_bytes == 0:
        raise InputError(f"{path}: element_bytes is 0; leave it out where it is not known.")
    if not document.layers:
        raise InputError(f"{path} holds no layers.")
    count(document.overlap.accumulate, "overlap.accumulate", str(path), most=_MOST_PASSES)
    for name in ("bucket_bytes", "first_bucket_bytes"):
        size = getattr(document.overlap, name)
        if size is not None:
            count(size, f"overlap.{name}", str(path), most=_MOST_BYTES)
    for entry in document.layers:
        count(entry.gradient_bytes, f"gradient_bytes of {entry.name[:80]!r}", str(path), least=0, most=_MOST_BYTES)
    if [entry.id for entry in document.layers] != list(range(len(document.layers))):
        raise InputError(f"{path}: layer ids must count from 0 in forward order, each once.")
    trace_of(document, path)  # says which layer has a time that cannot be
    return document


def trace_of(document: LayerDocument, path: Path) -> LayerTrace:
    """The layers as every model takes them."""
    return LayerTrace(
        layers=tuple(
            Layer(
                name=entry.name,
                forward_s=entry.forward_s,
                backward_s=entry.backward_s,
                gradient_bytes=entry.gradient_bytes,
                exchange_s=entry.comm_s,
            )
            for entry in document.layers
        ),
        source=str(path),
        samples=None if document.samples is None else round(document.samples),
        read_s=((document.prepare_s or 0.0) + (document.blocked_s or 0.0)) / max(1, document.workers or 1),
        copy_s=document.copy_s,
        update_s=document.update_s,
        times=document.times,
    )
