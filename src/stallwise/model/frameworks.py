"""The frameworks of the DAG paper as sets of edges (Shi et al., arXiv 1805.03812).

| framework  | reading   | copy to the GPU         | exchange                                                    |
| caffe-mpi  | ahead     | hidden (buffer on GPU)  | all-reduce of every layer, beside backward                  |
| cntk       | ahead     | waits with compute      | all-reduce of every layer, after backward                   |
| mxnet      | ahead     | waits with compute      | push and pull of every layer, beside backward               |
| tensorflow | ahead     | waits with compute      | push and pull of every layer, beside backward               |

As they were in 2018, from recollection of the paper (its full text could not be read again): a starting point for
reading old measurements, not a statement about today's releases. Servers run on the workers' machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stallwise.errors import UnknownNameError
from stallwise.model.overlap import Overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How a framework exchanges, and where it copies batches."""

    name: str
    overlap: Overlap
    copy: Literal["inline", "engine"]


FRAMEWORKS: Mapping[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(name="caffe-mpi", overlap=Overlap(scheme="wfbp"), copy="engine"),
        Framework(name="cntk", overlap=Overlap(scheme="none"), copy="inline"),
        Framework(name="mxnet", overlap=Overlap(scheme="wfbp", through="servers"), copy="inline"),
        Framework(name="tensorflow", overlap=Overlap(scheme="wfbp", through="servers"), copy="inline"),
    )
}


def framework(name: str) -> Framework:
    """By name; an error that names them where there is none."""
    found = FRAMEWORKS.get(name.lower())
    if found is None:
        raise UnknownNameError("framework", name, tuple(FRAMEWORKS))
    return found
