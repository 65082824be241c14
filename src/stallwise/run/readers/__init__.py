"""Other people's step traces as `LayerTrace`: B-Caffe logs, PipeDream profiles, DreamDDP times, cluster-sim layers,
and our own layer files. What ran on a device, kernel by kernel, is read by `trace_files`.

Formats load when they are first used: reading a small trace takes no longer than importing all of them.
`read_layers` finds out which it is. What a format does not hold is said in the trace's `times`, never made up silently.
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.run.readers.any_layers import read_layers
    from stallwise.run.readers.bcaffe import read_bcaffe
    from stallwise.run.readers.cluster_sim import read_cluster_sim
    from stallwise.run.readers.dreamddp import read_dreamddp
    from stallwise.run.readers.pipedream import PipedreamProfile, read_pipedream

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
        "PipedreamProfile": "pipedream",
        "read_bcaffe": "bcaffe",
        "read_cluster_sim": "cluster_sim",
        "read_dreamddp": "dreamddp",
        "read_layers": "any_layers",
        "read_pipedream": "pipedream",
    },
)
