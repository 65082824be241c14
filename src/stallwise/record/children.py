"""Ranks that the script's own framework starts.

Lightning starts ranks 1, 2 … from rank 0 by running the script again. They are run under the recorder as well, so that
all ranks take part in the profile. Ranks that some other way brought into the process group would go on exchanging
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
from stallwise.record.on_import import when_imported
from stallwise.run.atomic import write_atomically
from stallwise.run.manifest import MANIFEST_NAME, CountsRecord, WorldRecord, encode, read_manifest

_LAUNCHERS = tuple(
    f"{name}.strategies.launchers.subprocess_script" for name in ("lightning.fabric", "lightning_fabric")
)


class Ranks:
    """How many ranks of this job are recorded."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size

    def watch(self, *, starts_some: bool) -> None:
        """Notice process groups as they are made and, where this process may start ranks, have them recorded."""
        make = dist.init_process_group

        @functools.wraps(make)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            self._check(dist.get_world_size())
            return made

        dist.init_process_group = init_process_group
        if starts_some:
            for name in _LAUNCHERS:
                when_imported(name, self._record_started)

    def _check(self, size: int) -> None:
        if size > self._size:
            raise InputError(
                f"The job has {size} ranks, of which {self._size} would be profiled: the script or a launcher that "
                "Stallwise does not know started the others. Let Stallwise start them with --nproc-per-node, or start "
                "each as `python -m stallwise.record` with RANK and WORLD_SIZE set."
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
        """The launcher, which started one process, could not know."""
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
        # What lay there before the profile is told by this time.
        os.utime(path, ns=(began.st_atime_ns, began.st_mtime_ns))
