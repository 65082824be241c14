"""Switching the traffic of FSDP2 off: its all-gather and reduce-scatter are replaced, for a block at a time.

In place of the other ranks' shards an all-gather fills in copies of this rank's own, and a reduce-scatter takes this
rank's slice of its own gradient: the same shapes, the same local copies, finite numbers, no traffic. For HSDP the
all-reduce between replicas is skipped where it is called (`observe.collectives`).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.nn import Module

from stallwise.run import phases


class ShardedModels:
    """The modules under `fully_shard`, whose exchange can be switched by phase."""

    def __init__(self) -> None:
        self._groups: list[Any] = []  # FSDP's parameter groups
        self._replaced: list[tuple[Any, Any]] = []
        self._replica_groups: set[Any] = set()

    @property
    def exists(self) -> bool:
        """Whether this rank has any module under `fully_shard`."""
        return bool(self._groups)

    def look(self, modules: Iterable[Module]) -> None:
        """Find the sharded modules among `modules`."""
        from torch.distributed.fsdp import FSDPModule

        for module in modules:
            if isinstance(module, FSDPModule):
                self._groups += module._get_fsdp_state()._fsdp_param_groups
        for group in self._groups:
            if group._is_hsdp:
                self._replica_groups.add(group._all_reduce_process_group)

    def use(self, phase: str) -> None:
        """Exchange as `phase` requires from the next forward pass on."""
        if phase in phases.WITHOUT_EXCHANGE and not self._replaced:
            self._replaced = [(group._all_gather_comm, group._reduce_scatter_comm) for group in self._groups]
            gather, scatter = _comms()
            for group in self._groups:
                group._all_gather_comm, group._reduce_scatter_comm = gather, scatter
        elif phase not in phases.WITHOUT_EXCHANGE and self._replaced:
            for group, (gather, scatter) in zip(self._groups, self._replaced, strict=True):
                group._all_gather_comm, group._reduce_scatter_comm = gather, scatter
            self._replaced = []

    def skips(self, group: Any) -> bool:
        """Whether an all-reduce over this process group is one between replicas that is switched off now."""
        return bool(self._replaced) and group in self._replica_groups


def _comms() -> tuple[Any, Any]:
    """Communication objects that move nothing between ranks; created here because importing FSDP takes a while."""
    from stallwise.torch_private import AllGather, ReduceScatter

    class OwnShardOnly(AllGather):
        def allocate(
            self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
        ) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
        ) -> None:
            # FSDP has put this rank's shard into its own slot already.
            for rank, slot in enumerate(output_tensor.view(group.size(), -1)):
                if rank != dist.get_rank(group):
                    slot.copy_(input_tensor.view(-1))

    class OwnSliceOnly(ReduceScatter):
        def allocate(
            self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
        ) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(
            self,
            output_tensor: torch.Tensor,
            input_tensor: torch.Tensor,
            group: Any,
            op: Any,
            async_op: bool = False,
        ) -> None:
            output_tensor.copy_(input_tensor.view(group.size(), -1)[dist.get_rank(group)])

    return OwnShardOnly(), OwnSliceOnly()
