"""Traces of other tools: what they recorded, as `LayerTrace` (layer by layer) or `DeviceTrace` (kernel by kernel).

    files           which files are traces, and the reader for each by its content
    layer_files     B-Caffe logs, PipeDream profiles, DreamDDP times, cluster-sim layers
    layer_document  Stallwise's own layer file
    kineto          traces of torch.profiler; `kineto_events` decodes their JSON piece by piece
    chakra          Chakra execution traces
    device_trace    the device work of one rank as arrays, which Kineto and Chakra files become
    inputs          text and numbers of any input file, plain or gzip

Formats load when they are first used: reading a small trace takes no longer than importing all of them. `read_layers`
recognises the format. What a format does not hold is named in the trace's `times`. `analysis.traces` turns them into
runs.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.run.traces._layer_files import (
        PipedreamProfile,
        read_bcaffe,
        read_cluster_sim,
        read_dreamddp,
        read_pipedream,
    )
    from stallwise.run.traces.files import read_layers

__all__ = [
    "PipedreamProfile",
    "read_bcaffe",
    "read_cluster_sim",
    "read_dreamddp",
    "read_layers",
    "read_pipedream",
]

__getattr__ = loader(
    __name__,
    {
        "PipedreamProfile": "_layer_files",
        "read_bcaffe": "_layer_files",
        "read_cluster_sim": "_layer_files",
        "read_dreamddp": "_layer_files",
        "read_layers": "files",
        "read_pipedream": "_layer_files",
    },
)
