"""Renaming on an overlay of several layers: what one file system could do in place is done by copying.

Without root every top folder is a layer of its own, and a layer cannot rename a folder that it only covers: the kernel
answers as between two disks. Scripts that run bare on one disk do not expect that of `os.rename` and `os.replace`.
"""

import errno
import functools
import os
import shutil
from collections.abc import Callable
from typing import Any


def rename_between_layers() -> None:
    """Have `os.rename` and `os.replace` copy where the kernel refuses to rename."""
    for name in ("rename", "replace"):
        setattr(os, name, _copying(getattr(os, name)))


def _copying(rename: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(rename)
    def renamed(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        try:
            rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        except OSError as error:
            if error.errno != errno.EXDEV or src_dir_fd is not None or dst_dir_fd is not None:
                raise
            _move(os.fspath(src), os.fspath(dst), rename)

    renamed.__module__ = "os"  # it is pickled by the name under which it is found there
    if rename in os.supports_dir_fd:
        os.supports_dir_fd.add(renamed)
    return renamed


def _move(source: Any, target: Any, rename: Callable[..., None]) -> None:
    """Copy beside the target, which is then replaced in one step, and remove the source."""
    draft = target + (b".moving" if isinstance(target, bytes) else ".moving")
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, draft, symlinks=True)
        rename(draft, target)
        shutil.rmtree(source)
    else:
        shutil.copy2(source, draft, follow_symlinks=False)
        rename(draft, target)
        os.unlink(source)
