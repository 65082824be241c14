"""Which checkpoint to go on from: the newest that every rank finds whole.

Rank 0 lists them. Of each, newest first, every rank reads the manifest and checks its part of the files (in a folder
all see the same ones and each takes some; a bucket's are fetched, and each checks its own copy). What any rank finds
damaged is passed over by all.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from stallwise.elastic import manifest
from stallwise.elastic.manifest import Fault, Manifest
from stallwise.elastic.place import Place


def newest_whole(
    place: Place, group: dist.ProcessGroup | None, told: Callable[[Fault], None]
) -> tuple[str, Path, Manifest] | None:
    """Its name, where this rank reads it, and what it holds; None where there is none. All ranks together."""
    listed: list[Any] = [place.names() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(listed, src=0, group=group)
    for name in listed[0]:
        found, why = _checked(place, name)
        said: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(said, why, group=group)
        faults = [one for one in said if one is not None]
        if found is not None and not faults:
            return name, *found
        place.release(name)
        if dist.get_rank() == 0:
            told(Fault(name, faults[0]))
    return None


def _checked(place: Place, name: str) -> tuple[tuple[Path, Manifest] | None, str | None]:
    """This rank's part of the check: what it found, or why not."""
    rank, world = dist.get_rank(), dist.get_world_size()
    try:
        folder = place.fetch(name)
        return (folder, manifest.check(folder, lambda files: place.mine(files, rank, world))), None
    except ValueError as error:
        return None, str(error)
