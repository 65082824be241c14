"""`DistributedDataParallel` with the buckets of a plan, in one of two ways:

1. `limits`: where torch has `bucket_cap_mb_list` (2.13), the plan's bytes become the limits of its buckets. torch
   fills buckets in the order in which gradients became ready in the first backward pass and closes one when it has
   reached its limit, so buckets are the plan's as long as gradients become ready in the planned order. No Python runs
   in a step.
2. `hook`: elsewhere every parameter gets a bucket of its own, and a communication hook joins them: the last gradient of
   a planned bucket to become ready starts the all-reduce of all of it. Exact for any order and any dtypes, at the cost
   of a copy and some Python per parameter.

A plan made from a trace has no names, only bytes in ready order; only limits can apply it.

The first step uses other buckets (torch learns the order from it). Gradients are those of plain DDP: each is multiplied
by 1/N and summed over ranks; with two ranks bit for bit, with more up to the order of summation.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.buckets.plan import BucketPlan, read_plan
from stallwise.errors import InputError
from stallwise.workload.layers import plain_name

Way = Literal["limits", "hook"]
_MIB = 1024 * 1024
_OURS = ("bucket_cap_mb", "bucket_cap_mb_list")
_ONE_BYTE_MB = 1 / _MIB
_SHOWN = 3


def planned_ddp(
    module: nn.Module, plan: BucketPlan | str | Path, *, way: Way | None = None, **options: Any
) -> DistributedDataParallel:
    """`DistributedDataParallel(module, **options)` with the plan's buckets; `plan` is a plan or its file.

    `way` None takes limits where torch has them and the module's parameters are of one dtype and device. What
    cannot be (a parameter that the plan does not know, `find_unused_parameters`) is an `InputError`.
    """
    planned = plan if isinstance(plan, BucketPlan) else read_plan(plan)
    trained = _trained(module, planned)
    _check(planned, trained, options)
    used_way = way or ("limits" if has_limits() and _alike(trained) else "hook")
    if used_way == "hook" and not planned.named:
        raise InputError(
            f"The bucket plan was made from a trace ({planned.source}), which has no names of parameters: only torch "
            "2.13 or newer with parameters of one dtype can apply it. Otherwise profile the job with stallwise "
            "profile and make the plan from that run."
        )
    if used_way == "limits":
        if not has_limits():
            raise InputError(
                f"torch {torch.__version__} has no bucket_cap_mb_list, which way='limits' needs; use way='hook'."
            )
        # A limit is reached by exactly its bucket; the division by a power of two is exact.
        limits: Any = [size / _MIB for size in _planned_bytes(planned, trained)]
        model = DistributedDataParallel(module, bucket_cap_mb_list=limits, **options)
    else:
        model = DistributedDataParallel(module, bucket_cap_mb=_ONE_BYTE_MB, **options)
        model.register_comm_hook(BucketJoiner(planned, trained, options.get("process_group")), _join)
    model.__dict__["_stallwise_plan"] = (planned, used_way)  # not a submodule, and no business of state_dict
    return model


def has_limits() -> bool:
    """Whether this torch takes a limit for every bucket."""
    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPlan:
    """The planned buckets of a model and those DDP built, in bytes."""

    way: Way
    planned_bytes: tuple[int, ...]
    real_bytes: tuple[int, ...] | None
    """As DDP built its buckets; None before the first backward pass."""

    @property
    def as_planned(self) -> bool | None:
        """Whether DDP built the planned buckets; None before the first backward pass."""
        return None if self.real_bytes is None else self.real_bytes == self.planned_bytes


def applied_plan(model: DistributedDataParallel) -> AppliedPlan:
    """Compare planned and real buckets by bytes; warns where they differ (gradients became ready in another order)."""
    attached: tuple[BucketPlan, Way] | None = model.__dict__.get("_stallwise_plan")
    if attached is None:
        raise InputError("This model was not made by planned_ddp, so there is no plan to compare it with.")
    planned, way = attached
    planned_bytes = _planned_bytes(planned, _trained(model.module, planned))
    applied = AppliedPlan(way=way, planned_bytes=planned_bytes, real_bytes=_real_bytes(model, way, planned_bytes))
    if applied.as_planned is False:
        warnings.warn(
            f"DDP built {len(applied.real_bytes or ())} buckets where the plan has {len(planned_bytes)}, or of other "
            "sizes: gradients became ready in another order than in the run the plan was made from. Profile again.",
            stacklevel=2,
        )
    return applied


carried_out = applied_plan
"""Former name of `applied_plan`."""


def _real_bytes(model: DistributedDataParallel, way: Way, planned_bytes: tuple[int, ...]) -> tuple[int, ...] | None:
    data: Mapping[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    if not data.get("has_rebuilt_buckets"):
        return None
    if way == "hook":
        return planned_bytes  # joined by name
    return tuple(int(size) for size in str(data["rebuilt_bucket_sizes"]).split(","))


class BucketJoiner:
    """State of the communication hook: collects the gradients of each planned bucket and all-reduces them."""

    def __init__(self, plan: BucketPlan, parameters: Mapping[str, nn.Parameter], group: Any) -> None:
        # By identity, and dtypes apart: a bucket that mixes them travels as one message per dtype.
        self.group_of: dict[int, tuple[int, torch.dtype]] = {}
        for number, bucket in enumerate(plan.buckets):
            for name in bucket.parameters:
                self.group_of[id(parameters[name])] = (number, parameters[name].dtype)
        self.sizes: dict[tuple[int, torch.dtype], int] = {}
        for key in self.group_of.values():
            self.sizes[key] = self.sizes.get(key, 0) + 1
        self.group = group if group is not None else dist.group.WORLD
        self.waiting: dict[tuple[int, torch.dtype], list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]]] = {}

    def add(self, parameters: Sequence[torch.Tensor], buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Take one of torch's buckets that is ready and return a future of its sum over ranks."""
        keys = {self.group_of[id(parameter)] for parameter in parameters}
        if len(parameters) > 1 or len(keys) > 1:
            return self._all_reduce(buffer).then(_first)  # the first step, before torch knows the order
        key = keys.pop()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.is_cuda else []
        )
        arrived = self.waiting.setdefault(key, [])
        arrived.append((buffer, future))
        if len(arrived) == self.sizes[key]:
            del self.waiting[key]
            self._send(arrived)
        return future

    def _send(self, arrived: list[tuple[torch.Tensor, torch.futures.Future[torch.Tensor]]]) -> None:
        buffers = [buffer for buffer, _ in arrived]
        joined = torch.cat([buffer.reshape(-1) for buffer in buffers])

        def split(done: Any) -> None:
            try:
                summed = done.value()[0]
            except Exception as error:
                # For example a rank was lost: DDP must get the error, or it would wait for ever.
                for _, future in arrived:
                    future.set_exception(error)  # type: ignore[arg-type]  # torch annotates it as a tensor
                return
            at = 0
            for buffer, future in arrived:
                buffer.copy_(summed[at : at + buffer.numel()].view_as(buffer))
                at += buffer.numel()
                future.set_result(buffer)

        self._all_reduce(joined).then(split)

    def _all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
        # As torch does without a hook: multiplied first, summed then.
        tensor.mul_(1.0 / dist.get_world_size(self.group))
        future: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(
            tensor, group=self.group, async_op=True
        ).get_future()
        return future


def _first(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]


def _join(state: BucketJoiner, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    return state.add(bucket.parameters(), bucket.buffer())


def _trained(module: nn.Module, plan: BucketPlan) -> dict[str, nn.Parameter]:
    """Trained parameters by the plan's names: those of the bare module, before compile or checkpointing wrapped it."""
    by_name: dict[str, nn.Parameter] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            plain = name if name in plan.parameters else plain_name(name)
            by_name[name if plain in by_name else plain] = parameter
    return by_name


def _check(plan: BucketPlan, trained: Mapping[str, nn.Parameter], options: Mapping[str, Any]) -> None:
    for name in _OURS:
        if name in options:
            raise InputError(f"{name} is what the bucket plan sets; leave it out, or use plain DDP.")
    if options.get("find_unused_parameters"):
        raise InputError(
            "With find_unused_parameters torch never learns the order of gradients, so a bucket plan cannot be "
            "applied. Leave it out, or use plain DDP."
        )
    if not plan.named:
        _check_bytes(plan, trained)
        return
    unknown, missing = sorted(set(trained) - plan.parameters), sorted(plan.parameters - set(trained))
    if unknown or missing:
        raise InputError(
            "The bucket plan is of another model: "
            + "; ".join(
                f"{len(names)} parameter{'s' if len(names) > 1 else ''} {where} ({', '.join(names[:_SHOWN])}"
                f"{' …' if len(names) > _SHOWN else ''})"
                for names, where in ((unknown, "not in the plan"), (missing, "not trained here"))
                if names
            )
            + f". It was made from {plan.source}; profile this model and make another."
        )


def _check_bytes(plan: BucketPlan, trained: Mapping[str, nn.Parameter]) -> None:
    trained_bytes = _bytes(tuple(trained), trained)
    if trained_bytes != plan.bytes:
        raise InputError(
            f"The bucket plan is of another model: it has {plan.bytes:,} bytes of gradients, this one "
            f"{trained_bytes:,}. It was made from {plan.source}; trace or profile this model and make another."
        )


def _planned_bytes(plan: BucketPlan, trained: Mapping[str, nn.Parameter]) -> tuple[int, ...]:
    """Bytes of each bucket: those of the parameters it names, or what the plan says where it has no names."""
    if not plan.named:
        return tuple(bucket.bytes for bucket in plan.buckets)
    return tuple(_bytes(bucket.parameters, trained) for bucket in plan.buckets)


def _alike(trained: Mapping[str, nn.Parameter]) -> bool:
    return len({(p.dtype, p.device) for p in trained.values()}) == 1


def _bytes(names: Sequence[str], parameters: Mapping[str, nn.Parameter]) -> int:
    return sum(parameters[name].numel() * parameters[name].element_size() for name in names)
