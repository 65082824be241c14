"""Which files of a folder are traces, and the reader of each by its content."""

from collections.abc import Callable, Sequence
from pathlib import Path

from stallwise.errors import InputError
from stallwise.inputs import read_first
from stallwise.run.traces._chakra import looks_like_chakra, read_chakra, read_chakra_json
from stallwise.run.traces._kineto import read_kineto
from stallwise.run.traces._layer_files import (
    looks_like_bcaffe,
    looks_like_cluster_sim,
    looks_like_dreamddp,
    looks_like_pipedream,
    read_bcaffe,
    read_cluster_sim,
    read_dreamddp,
    read_pipedream,
)
from stallwise.run.traces.device_trace import DeviceTrace
from stallwise.run.traces.inputs import text_of
from stallwise.run.traces.layer_document import looks_like_layer_file, read_layer_file, trace_of
from stallwise.workload.layers import LayerTrace

_SUFFIXES = (".json", ".json.gz", ".et", ".et.gz")
_LOOK_BYTES = 64 << 10


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The files named, and of folders those in them that end like a trace, in order of their names."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_SUFFIXES))
        if not inside:
            raise InputError(f"{path} holds no trace: no file in it ends in {', '.join(_SUFFIXES[:3])} (or .gz).")
        files += inside
    return files


def read_traces(paths: Sequence[Path], done: Callable[[Path], None] = lambda _: None) -> list[DeviceTrace]:
    """One trace per file; `done` is told of each."""
    traces = []
    for path in paths:
        traces.append(read_trace(path))
        done(path)
    return traces


def read_trace(path: Path) -> DeviceTrace:
    """A trace of any kind known here, told by its content."""
    first = read_first(path, _LOOK_BYTES)
    if looks_like_chakra(first):
        return read_chakra(path)
    if b'"workload_graph"' in first:
        return read_chakra_json(path)
    if b'"nodes"' in first and b'"ctrl_deps"' in first and b'"traceEvents"' not in first:
        raise InputError(
            f"{path} is a PyTorch execution trace: it holds operators and what they depend on, but no times. Give the "
            "profiler's trace that was recorded with it."
        )
    text = first.lstrip()
    if text and text[:1] not in b"{[":
        raise InputError(f"{path} is no trace: it is neither JSON nor a Chakra file.")
    return read_kineto(path)


def read_layers(path: Path) -> LayerTrace:
    """The layers in a file of any format known here."""
    text = text_of(path)
    if looks_like_layer_file(text):
        return trace_of(read_layer_file(path), path)
    if looks_like_bcaffe(text):
        return read_bcaffe(path)
    if looks_like_pipedream(text):
        return read_pipedream(path).trace
    if looks_like_dreamddp(path, text):
        return read_dreamddp(path)
    if looks_like_cluster_sim(text):
        return read_cluster_sim(path)
    raise InputError(
        f"{path} is no layer trace known here; it should be a B-Caffe log, a PipeDream graph.txt, "
        "a DreamDDP …bp.json or its CSV, a cluster-sim layer CSV, or a layer file of stallwise trace export."
    )
