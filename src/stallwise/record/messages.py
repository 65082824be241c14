"""Small messages between the ranks of a job: JSON over a process group, so that no rank runs another's code.

torch's own way (`all_gather_object`, `broadcast_object_list`) pickles.
"""

from typing import Any

import msgspec
import torch
import torch.distributed as dist

_MAX_BYTES = 256 << 20


def gather(
    value: Any, group: dist.ProcessGroup | None = None, *, type: Any = Any, device: torch.device | None = None
) -> list[Any]:
    """Return every rank's value, checked to be of `type`; OSError where one is not. All ranks must call it.

    `device`: where the group's backend takes tensors from; None: host memory.
    """
    own = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8).to(device)
    world = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([own.numel()], device=device), group=group)
    counts = [int(size) for size in sizes]
    if not all(0 < count <= _MAX_BYTES // world for count in counts):
        raise OSError(f"messages of {counts} bytes between ranks")
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    padded[: own.numel()] = own
    parts = [torch.zeros_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    try:
        return [
            msgspec.json.decode(part[:count].cpu().numpy().tobytes(), type=type)
            for part, count in zip(parts, counts, strict=True)
        ]
    except (msgspec.MsgspecError, RecursionError):
        raise OSError("a message between ranks that is of another version, or none") from None
