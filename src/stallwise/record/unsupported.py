"""What a job uses that a profile cannot take apart: said by name, in the record."""

import sys
from collections.abc import Iterable

import torch
from torch.optim import Optimizer


def remarks(optimizers: Iterable[Optimizer]) -> list[str]:
    """A sentence for each way of training whose traffic stays part of compute."""
    found = []
    if "deepspeed" in sys.modules:
        found.append("DeepSpeed exchanges gradients itself; its traffic is part of compute.")
    if "torch.distributed.pipelining" in sys.modules:
        found.append("Pipeline parallelism is not taken apart: its bubbles and traffic are part of compute.")
    if _has_sharded_parameters(optimizers):
        found.append(
            "Sharded parameters (FSDP, tensor parallelism) are not taken apart: their traffic is part of compute."
        )
    if _counted_replays[0]:
        found.append("The script replays CUDA graphs; a collective captured in one cannot be taken away.")
    return found


def _has_sharded_parameters(optimizers: Iterable[Optimizer]) -> bool:
    from torch.distributed.fsdp import FlatParameter

    tensor = sys.modules.get("torch.distributed.tensor")
    kinds = (FlatParameter, *((tensor.DTensor,) if tensor is not None else ()))
    parameters = (p for o in optimizers for group in o.param_groups for p in group["params"])
    return any(isinstance(parameter, kinds) for parameter in parameters)


_counted_replays = [0]


def count_graph_replays() -> None:
    """Notice the use of CUDA graphs."""
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        _counted_replays[0] += 1
        replay(graph)

    torch.cuda.CUDAGraph.replay = counted  # type: ignore[method-assign, assignment]
