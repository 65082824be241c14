"""What a job uses that a profile cannot take apart: named in the notes of the record."""

import sys
from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from stallwise.sentences import Sentence


def remarks(optimizers: Iterable[Optimizer], *, fsdp2: bool) -> list[Sentence]:
    """A sentence for each way of training whose traffic stays part of compute."""
    sentences = []
    if "deepspeed" in sys.modules:
        sentences.append(
            Sentence("unsupported.deepspeed", "DeepSpeed exchanges gradients itself; its traffic is part of compute.")
        )
    if "torch.distributed.pipelining" in sys.modules:
        sentences.append(
            Sentence(
                "unsupported.pipeline",
                "Pipeline parallelism is not taken apart: its bubbles and traffic are part of compute.",
            )
        )
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    if _has_flat_parameters(parameters):
        sentences.append(
            Sentence(
                "unsupported.fsdp1",
                "FullyShardedDataParallel (FSDP1) is not taken apart: its traffic is part of compute. "
                "fully_shard (FSDP2) can be.",
            )
        )
    if _is_tensor_parallel(parameters, fsdp2=fsdp2):
        sentences.append(
            Sentence(
                "unsupported.tensor-parallel", "Tensor parallelism is not taken apart: its traffic is part of compute."
            )
        )
    if _counted_replays[0]:
        sentences.append(
            Sentence(
                "unsupported.cuda-graphs",
                "The script replays CUDA graphs; a collective captured in one cannot be taken away.",
            )
        )
    return sentences


def _has_flat_parameters(parameters: list[torch.Tensor]) -> bool:
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    from torch.distributed.fsdp import FlatParameter

    return any(isinstance(parameter, FlatParameter) for parameter in parameters)


def _is_tensor_parallel(parameters: list[torch.Tensor], *, fsdp2: bool) -> bool:
    """FSDP2 shards a parameter along one dimension of its mesh; any further one is tensor parallelism."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    placements = [p.placements for p in parameters if isinstance(p, DTensor)]
    return any(sum(kind.is_shard() for kind in kinds) > (1 if fsdp2 else 0) for kinds in placements)


_counted_replays = [0]


def count_graph_replays() -> None:
    """Patch CUDAGraph.replay so that the use of CUDA graphs is noticed."""
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        _counted_replays[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign, assignment]
