"""A layer trace of any format known here, told by its content."""

from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.bcaffe import looks_like_bcaffe, read_bcaffe
from stallwise.run.readers.cluster_sim import looks_like_cluster_sim, read_cluster_sim
from stallwise.run.readers.dreamddp import looks_like_dreamddp, read_dreamddp
from stallwise.run.readers.layer_file import looks_like_layer_file, read_layer_file, trace_of
from stallwise.run.readers.numbers import text_of
from stallwise.run.readers.pipedream import looks_like_pipedream, read_pipedream
from stallwise.workload.layers import LayerTrace


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
        "a DreamDDP …bp.json or its CSV, a cluster-sim layer CSV, or a layer file of stallwise trace export --layers."
    )
