"""Traces of other tools: what they recorded, as `LayerTrace` (layer by layer) or `DeviceTrace` (kernel by kernel).

    files           which files are traces, and the reader for each by its content
    _layer_files    B-Caffe logs, PipeDream profiles, DreamDDP times, cluster-sim layers
    layer_document  Stallwise's own layer file
    _kineto         traces of torch.profiler; `kineto_events` decodes their JSON piece by piece
    _chakra         Chakra execution traces
    device_trace    the device work of one rank as arrays, which Kineto and Chakra files become
    inputs          text and numbers of any input file, plain or gzip

Formats load when they are first used: reading a small trace takes no longer than importing all of them. `read_layers`
recognises the format. What a format does not hold is named in the trace's `times`. `analysis.traces` turns them into
runs.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.run.traces._layer_files import read_bcaffe
    from stallwise.run.traces.files import read_layers

__all__ = ["read_bcaffe", "read_layers"]

__getattr__ = loader(
    __name__,
    {"read_bcaffe": "_layer_files", "read_layers": "files"},
)
