"""Storage of a machine: what its network disks and its local disks deliver."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Limits of the instance type; a small volume delivers less. `None`: no source gives it."""

    block_bytes_per_s: float | None = None
    """Network block storage (EBS, managed disks), sustained, all volumes together."""
    block_burst_bytes_per_s: float | None = None
    block_iops: float | None = None
    local_bytes: float | None = None
    """Local disks included in the price; 0 means it has none."""
    local_optional_bytes: float | None = None
    """Local disks that can be added at a price."""
    local_read_bytes_per_s: float | None = None
