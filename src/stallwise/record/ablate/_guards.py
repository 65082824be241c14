"""Python's functions that take paths, wrapped so that they follow the scratch folder.

A wrapper has the name, the signature and the module of what it stands for, so that it is called in the same ways and
pickled by name. pathlib, shutil, tempfile, glob and os.path call these functions by their names in `os` and `io` and
need no wrappers of their own, `shutil.rmtree` excepted, which works relative to open folders.
"""

import atexit
import builtins
import contextlib
import functools
import io
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from stallwise.record.ablate._scratch import SaveListener, ScratchFolder, guard_saves, replace_everywhere

# Functions by what they do with their first argument.
READ = ("stat", "access", "statvfs", "pathconf", "getxattr", "listxattr")
READ_LINK = ("lstat", "readlink")
CHANGE = ("chmod", "chown", "utime", "truncate", "setxattr", "removexattr", "lchown")
CREATE = ("mkfifo", "mknod")
SPECIAL = (
    *("open", "rename", "replace", "remove", "unlink", "rmdir", "mkdir", "link", "symlink", "listdir", "scandir"),
)
_ATTRIBUTES = ("avoids_symlink_attacks",)
_DIR_FDS = ("dir_fd", "src_dir_fd", "dst_dir_fd")


class _Inside(threading.local):
    """Whether this thread is looking a path up: what that calls sees the real files."""

    active = False


_inside = _Inside()


@contextlib.contextmanager
def _real_files() -> Iterator[None]:
    before, _inside.active = _inside.active, True
    try:
        yield
    finally:
        _inside.active = before


def guard_writes(scratch: ScratchFolder, on_save: SaveListener) -> None:
    """Redirect checkpoints, which are timed, and every other write to the scratch folder."""
    guard_saves(scratch, on_save)
    guard_files(scratch)


def guard_files(scratch: ScratchFolder) -> None:
    """Wrap every function of `os`, `io`, `shutil` and `sqlite3` that takes a path."""
    for names, mapped in (
        (READ, scratch.resolve),
        (READ_LINK, functools.partial(scratch.resolve, follow=False)),
        (CHANGE, scratch.change),
        (CREATE, functools.partial(scratch.change, keep=False)),
    ):
        for name in names:
            if hasattr(os, name):
                _wrap(os, name, _with_first(getattr(os, name), mapped))
    _guard_links(scratch)
    _guard_names(scratch)
    _guard_listings(scratch)
    _guard_opening(scratch)
    process = os.getpid()
    atexit.register(lambda: scratch.remove_empty_folders() if os.getpid() == process else None)


def _with_first(real: Callable[..., Any], mapped: Callable[[Any], Any], name: str = "path") -> Callable[..., Any]:
    """Call `real` with its first argument mapped, however that is passed."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with _real_files():
            if args:
                args = (mapped(args[0]), *args[1:])
            elif name in kwargs:
                kwargs[name] = mapped(kwargs[name])
        return real(*args, **kwargs)

    return called


def _guard_links(scratch: ScratchFolder) -> None:
    readlink = os.readlink

    def read(path: Any, *, dir_fd: int | None = None) -> Any:
        text = scratch.link_text(path)
        return readlink(path, dir_fd=dir_fd) if text is None else os.fsencode(text) if isinstance(path, bytes) else text

    _wrap(os, "readlink", read)
    link, symlink = os.link, os.symlink

    def hard(src: Any, dst: Any, **options: Any) -> Any:
        with _real_files():
            return scratch.link(src, dst, functools.partial(link, **options))

    def symbolic(src: Any, dst: Any, target_is_directory: bool = False, **options: Any) -> Any:
        with _real_files():
            call = functools.partial(symlink, target_is_directory=target_is_directory, **options)
            return scratch.symlink(src, dst, call)

    _wrap(os, "link", hard)
    _wrap(os, "symlink", symbolic)


def _guard_names(scratch: ScratchFolder) -> None:
    def renaming(real: Callable[..., Any]) -> Callable[..., Any]:
        def rename(src: Any, dst: Any, **_: Any) -> Any:
            with _real_files():
                return scratch.rename(src, dst, real)

        return rename

    def removing(real: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, **_: Any) -> Any:
            with _real_files():
                return scratch.remove(path, real)

        return remove

    for name in ("rename", "replace"):
        _wrap(os, name, renaming(getattr(os, name)))
    for name in ("remove", "unlink"):
        _wrap(os, name, removing(getattr(os, name)))
    rmdir, mkdir, rmtree = os.rmdir, os.mkdir, shutil.rmtree

    def remove_folder(path: Any, **_: Any) -> Any:
        with _real_files():
            return scratch.remove_folder(path, rmdir)

    def make_folder(path: Any, mode: int = 0o777, **_: Any) -> Any:
        with _real_files():
            return scratch.make_folder(path, lambda where: mkdir(where, mode))

    def remove_tree(path: Any, *args: Any, **kwargs: Any) -> Any:
        with _real_files():
            return scratch.remove_tree(path, rmtree, *args, **kwargs)

    _wrap(os, "rmdir", remove_folder)
    _wrap(os, "mkdir", make_folder)
    _wrap(shutil, "rmtree", remove_tree)


class _Entry:
    """An entry of a folder that lies elsewhere than it seems; as `os.DirEntry`."""

    def __init__(self, folder: str, name: str, actual: str) -> None:
        self.name, self.path, self._actual = name, os.path.join(folder, name), actual

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        with _real_files():
            return os.path.isdir(self._actual) and (follow_symlinks or not os.path.islink(self._actual))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        with _real_files():
            return os.path.isfile(self._actual) and (follow_symlinks or not os.path.islink(self._actual))

    def is_symlink(self) -> bool:
        with _real_files():
            return os.path.islink(self._actual)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        with _real_files():
            return os.stat(self._actual, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino


class _Entries:
    """The entries of a folder; as what `os.scandir` returns."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _guard_listings(scratch: ScratchFolder) -> None:
    listdir, scandir = os.listdir, os.scandir

    def seen(path: Any) -> dict[str, str] | None:
        """What the script sees in a folder where that is not what is there."""
        if isinstance(path, int):
            return None
        with _real_files():
            names = scratch.names_in(path)
            return names if names is not None and os.path.isdir(resolved(path)) else None

    def resolved(path: Any) -> Any:
        return path if isinstance(path, int) else scratch.resolve("." if path is None else path)

    def listed(path: Any = None) -> Any:
        names = seen(path)
        if names is None:
            return listdir(path if path is None else resolved(path))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scanned(path: Any = None) -> Any:
        names = seen(path)
        if names is None or (names and isinstance(path, bytes)):
            return scandir(path if path is None else resolved(path))
        folder = "." if path is None else os.fspath(path)
        return _Entries([_Entry(folder, name, actual) for name, actual in names.items()])

    _wrap(os, "listdir", listed)
    _wrap(os, "scandir", scanned)


def _guard_opening(scratch: ScratchFolder) -> None:
    real_open, os_open, connect, raw, code = io.open, os.open, sqlite3.connect, io.FileIO, io.open_code

    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        with _real_files():
            file = scratch.open_for(file, mode)
        return real_open(file, mode, *args, **kwargs)

    def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with _real_files():
            path = scratch.open_with(path, flags)
        return os_open(path, flags, mode, dir_fd=dir_fd)

    def open_database(database: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("uri"):
            with _real_files():
                if os.fsdecode(database) not in ("", ":memory:"):
                    for suffix in ("-wal", "-journal"):
                        if os.path.exists(beside := os.fsdecode(database) + suffix):
                            scratch.change(beside)
                    database = scratch.change(database)
        return connect(database, *args, **kwargs)

    class _Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, raw)

    class FileIO(raw, metaclass=_Kind):  # type: ignore[misc, valid-type]
        def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
            with _real_files():
                file = scratch.open_for(file, mode)
            super().__init__(file, mode, closefd, opener)

    _wrap(io, "open", open)
    builtins.open = io.open
    replace_everywhere(real_open, io.open)
    _replace_in_numpy(real_open)
    _wrap(os, "open", open_descriptor)
    _wrap(io, "open_code", _with_first(code, scratch.resolve))
    _wrap(sqlite3, "connect", open_database)
    replace_everywhere(connect, sqlite3.connect)
    FileIO.__module__, FileIO.__qualname__ = "io", "FileIO"
    io.FileIO = FileIO  # type: ignore[misc]


def _replace_in_numpy(real_open: Any) -> None:
    """`numpy.savetxt` keeps the function in a table of its own."""
    for name in ("numpy.lib._datasource", "numpy.lib.npyio"):
        openers = getattr(getattr(sys.modules.get(name), "_file_openers", None), "_file_openers", {})
        for key in [key for key, value in openers.items() if value is real_open]:
            openers[key] = io.open


def _wrap(module: Any, name: str, call: Callable[..., Any]) -> None:
    """Put `call` in the place of a function, with that one's name, signature and capabilities."""
    real = getattr(module, name)

    @functools.wraps(real)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Relative to an open folder: not a name that we can follow.
        if _inside.active or any(kwargs.get(key) is not None for key in _DIR_FDS):
            return real(*args, **kwargs)
        return call(*args, **kwargs)

    guarded.__module__, guarded.__qualname__ = module.__name__, name
    # Callers check `os.unlink in os.supports_dir_fd` before they use it so.
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if real in capable:
            capable.add(guarded)
    for attribute in _ATTRIBUTES:
        if hasattr(real, attribute):
            setattr(guarded, attribute, getattr(real, attribute))
    setattr(module, name, guarded)
