"""Job speed from one's own measurements: the record of a run, or a layer file, as the profile of a model.

Gradients travel as that job sends them: where DDP puts several into a bucket, they are one message that leaves after
the backward of the last of them. Passes that send nothing (accumulation) and the optimizer are compute that no
exchange hides behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.errors import InputError
from stallwise.workload.layers import Layer, LayerTrace

if TYPE_CHECKING:
    from stallwise.model.overlap import Overlap
    from stallwise.model.whatif import Job


@dataclass(frozen=True, slots=True)
class OwnProfile:
    """A step by its gradients, and by the messages they are sent in."""

    gradients: LayerTrace
    messages: LayerTrace


def own_profile(path: Path) -> OwnProfile:
    """The step in a run's folder or in a layer file of any tool that `stallwise whatif` reads."""
    job = _job(path)
    if job.gpus is None or not job.trace.gradient_bytes:
        raise InputError(
            f"{path} says nothing about the sizes of gradients, so nobody can say what an exchange costs elsewhere. "
            "Give the folder of a run, or a layer file with sizes."
        )
    return OwnProfile(job.trace, messages(job.trace, job.overlap))


def _job(path: Path) -> "Job":
    from stallwise.record.job import job_of, job_of_layers

    if path.is_file():
        from stallwise.run.readers import read_layers

        return job_of_layers(read_layers(path))
    from stallwise.run.reader import Run

    return job_of(Run.open(path))


def messages(trace: LayerTrace, overlap: "Overlap") -> LayerTrace:
    """One layer per message: what is computed until it leaves, and its bytes."""
    from stallwise.model.merge import ddp_buckets, each_alone, gradients_of

    gradients = gradients_of(trace)
    merge = each_alone(gradients)
    if overlap.scheme == "ddp":
        merge = ddp_buckets(gradients, first_bytes=overlap.first_bucket_bytes, bucket_bytes=overlap.bucket_bytes)
    merged, stop = [], len(trace.layers)
    for run in merge:
        start = gradients.layers[run[-1]]
        merged.append(_as_one(trace.layers[start:stop]))
        stop = start
    if stop > 0:  # nothing there is exchanged
        merged.append(_as_one(trace.layers[:stop]))
    silent_s = (overlap.accumulate - 1) * (trace.forward_s + trace.backward_s)
    return replace(trace, layers=tuple(reversed(merged)), read_s=0.0, copy_s=0.0, update_s=trace.update_s + silent_s)


def _as_one(layers: Sequence[Layer]) -> Layer:
    return Layer(
        name=layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}",
        forward_s=sum(layer.forward_s for layer in layers),
        backward_s=sum(layer.backward_s for layer in layers),
        gradient_bytes=sum(layer.gradient_bytes for layer in layers),
    )
