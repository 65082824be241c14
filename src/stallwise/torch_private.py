"""Every private name of torch that Stallwise uses. Only this module takes them from torch.

torch may move or remove a private name in any release. What every profile needs is taken when this module is imported;
what only some jobs need (FSDP2, distributed stores, CUDA streams) when it is first used, since importing it takes long
or a build of torch may lack it. A name that is gone is one sentence with torch's version, not a traceback.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stallwise.errors import MissingFeatureError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict, unflatten_state_dict
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

__all__ = [
    "AllGather",
    "BaseDataLoaderIter",
    "IterableDatasetFetcher",
    "MapDatasetFetcher",
    "MultiProcessingDataLoaderIter",
    "PrefixStore",
    "ReduceScatter",
    "Store",
    "TCPStore",
    "cuda_stream_address",
    "data_worker",
    "flatten_state_dict",
    "unflatten_state_dict",
]


def _moved(name: str) -> MissingFeatureError:
    return MissingFeatureError(
        f"This Stallwise does not know torch {torch.__version__}: {name} is not where it was. Upgrade Stallwise, or "
        "use a version of torch that its README lists.",
        code="torch_version",
    )


try:
    from torch.utils.data._utils import worker as data_worker
    from torch.utils.data._utils.fetch import _IterableDatasetFetcher as IterableDatasetFetcher
    from torch.utils.data._utils.fetch import _MapDatasetFetcher as MapDatasetFetcher
    from torch.utils.data.dataloader import _BaseDataLoaderIter as BaseDataLoaderIter
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as MultiProcessingDataLoaderIter
except ImportError as error:
    raise _moved(str(error)) from None

_LATER = {
    "AllGather": "torch.distributed.fsdp._fully_shard._fsdp_api",
    "ReduceScatter": "torch.distributed.fsdp._fully_shard._fsdp_api",
    "PrefixStore": "torch._C._distributed_c10d",
    "Store": "torch._C._distributed_c10d",
    "TCPStore": "torch._C._distributed_c10d",
    "flatten_state_dict": "torch.distributed.checkpoint._nested_dict",
    "unflatten_state_dict": "torch.distributed.checkpoint._nested_dict",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LATER[name]), name)
    except (ImportError, AttributeError):
        raise _moved(f"{_LATER[name]}.{name}") from None


def cuda_stream_address(device: int) -> int:
    """The address of the current CUDA stream of a device, without the object that torch makes of it at every call."""
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return torch.cuda.current_stream(device).cuda_stream if raw is None else raw(device)
