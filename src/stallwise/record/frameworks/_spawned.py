"""Ranks that the script's own framework starts.

Lightning starts ranks 1, 2 … from rank 0 by running the script again. They are run under the recorder as well, so that
all ranks take part in the profile. Ranks that joined the process group in some other way would go on exchanging
gradients while ours do not, and wait for ever: that is refused before it happens.
"""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import distributed as dist

from stallwise.errors import InputError
from stallwise.record.rank.script import when_imported
from stallwise.run.atomic import write_atomically
from stallwise.run.manifest import MANIFEST_NAME, CountsRecord, WorldRecord, encode, read_manifest

_LAUNCHERS = tuple(
    f"{name}.strategies.launchers.subprocess_script" for name in ("lightning.fabric", "lightning_fabric")
)


class RecordedRanks:
    """Counts the recorded ranks of this job, and refuses process groups with more."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size

    def watch(self, *, starts_some: bool) -> None:
        """Check process groups when they are created and, where this process may start ranks, have them recorded."""
        initialize = dist.init_process_group

        @functools.wraps(initialize)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = initialize(*args, **kwargs)
            self._check(dist.get_world_size())
            return result

        dist.init_process_group = init_process_group
        if starts_some:
            for name in _LAUNCHERS:
                when_imported(name, self._record_started)

    def _check(self, size: int) -> None:
        if size > self._size:
            raise InputError(
                f"The job has {size} ranks, of which {self._size} would be profiled: the script or a launcher that "
                "Stallwise does not know started the others. Let Stallwise start the processes of each node "
                "(nproc_per_node, as for torchrun), or start each as `python -m stallwise.record` with RANK and "
                "WORLD_SIZE set.",
                fields=("nproc_per_node",),
            )

    def _record_started(self, module: Any) -> None:
        command = module._basic_subprocess_cmd

        @functools.wraps(command)
        def recorded() -> Sequence[str]:
            self._announce(int(os.environ["WORLD_SIZE"]))
            python, *rest = command()
            return [python, "-m", "stallwise.record", *rest]

        module._basic_subprocess_cmd = recorded

    def _announce(self, size: int) -> None:
        """Write the number of ranks to the manifest: the launcher, which started one process, could not know it."""
        if size == self._size:
            return
        self._size = size
        path = self._folder / MANIFEST_NAME
        began = path.stat()
        manifest = msgspec.structs.replace(
            read_manifest(self._folder),
            world=WorldRecord(world_size=size),
            counts=CountsRecord(ranks_expected=size),
        )
        write_atomically(path, encode(manifest))
        # Which files existed before the profile is decided by this time.
        os.utime(path, ns=(began.st_atime_ns, began.st_mtime_ns))
