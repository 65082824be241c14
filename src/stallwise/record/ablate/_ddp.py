"""Switching the gradient exchange of DistributedDataParallel off, for a block at a time.

*No exchange* sets the same flag as DDP's own `no_sync()`: no hook, no bucket, no broadcast of buffers, and as-is
steps stay exactly the user's. *Node only* needs a communication hook, because nothing else reaches the reducer's
process group; it is registered only when nodes and ranks per node are both more than one, after as-is blocks have
been measured without it. A user's own hook is left alone: then node and network cannot be told apart.
"""

import functools
import sys
import weakref
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from stallwise.record.ablate._fsdp import ShardedModels
from stallwise.record.ablate._snapshot import live_modules
from stallwise.run import phases


class GradientExchange:
    """The DDP and FSDP2 models of this rank, whose exchange can be switched by phase."""

    def __init__(self) -> None:
        self.sharded = ShardedModels()
        self._models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._user_hook = False
        self._hooked: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._before: dict[int, tuple[bool, bool]] = {}
        self._local_group: Any = None
        self._node_only = False

    @property
    def exists(self) -> bool:
        """Whether this job exchanges gradients in a way that can be switched off."""
        return len(self._models) > 0 or self.sharded.exists

    @property
    def can_split(self) -> bool:
        """Whether exchange inside a node can be told from exchange between nodes."""
        return len(self._models) > 0 and not self._user_hook and not self.sharded.exists

    @property
    def models(self) -> tuple[DistributedDataParallel, ...]:
        """The models under DistributedDataParallel."""
        return tuple(self._models)

    def averages_all_ranks(self, world_size: int) -> bool:
        """Whether one model's gradients are the mean over all ranks, by torch's own exchange."""
        sizes = [dist.get_world_size(model.process_group) for model in self._models]
        return sizes == [world_size] and not self._user_hook

    def watch(self) -> None:
        """Patch DDP so that models are noticed when they are created and hooks when they are registered."""
        exchange, initialize, hook = (
            self,
            DistributedDataParallel.__init__,
            DistributedDataParallel.register_comm_hook,
        )

        @functools.wraps(initialize)  # what options it has is asked by its signature
        def __init__(model: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            initialize(model, *args, **kwargs)
            exchange._models.add(model)

        def register_comm_hook(model: DistributedDataParallel, state: Any, function: Any) -> None:
            exchange._user_hook = True
            hook(model, state, function)

        self._register = hook
        DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign, assignment]
        DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign, assignment]

    def look(self) -> None:
        """Find models created before `watch` and modules under `fully_shard`, which no patch notices."""
        self._models.update(module for module in live_modules() if isinstance(module, DistributedDataParallel))
        if "torch.distributed.fsdp" in sys.modules:
            self.sharded.look(live_modules())

    def prepare_node_only(self, ranks_per_node: int) -> None:
        """Create a process group per node and register the hook. All ranks call this at the same step."""
        world = dist.get_world_size()
        for first in range(0, world, ranks_per_node):
            ranks = list(range(first, first + ranks_per_node))
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                self._local_group = group
        for model in self._models:
            self._register(model, model.process_group, self._hook)
            self._hooked.add(model)

    def use(self, phase: str) -> None:
        """Exchange gradients as `phase` requires from the next forward pass on."""
        self._node_only = phase == phases.NODE
        self.sharded.use(phase)
        for model in self._models:
            if phase in phases.WITHOUT_EXCHANGE:
                self._before.setdefault(id(model), (model.require_backward_grad_sync, model.broadcast_buffers))
                model.require_backward_grad_sync = False
                model.broadcast_buffers = False
            elif id(model) in self._before:
                model.require_backward_grad_sync, model.broadcast_buffers = self._before.pop(id(model))

    # DDP insists on these annotations.
    def _hook(self, group: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        return allreduce_hook(self._local_group if self._node_only else group, bucket)
