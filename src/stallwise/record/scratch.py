"""A layer over the user's files: what the script writes during a profile lies in a scratch folder and is found there.

Led aside: files with the ending of a checkpoint, whoever writes them; all that a training framework writes for the
script (half a checkpoint in its place would be taken for one); and files that were there before the profile and that
the script or its framework would overwrite, rename or remove. They stay as they are; the script sees its own version.
Everything else (new logs, caches of libraries, temporary files) goes where the script says. Folder listings show the
real folders. Known to all ranks through the scratch folder itself, which mirrors absolute paths.
"""

import atexit
import builtins
import contextlib
import io
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKPOINT_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".pkl", ".pickle", ".bin", ".tar", ".distcp")

# Whoever calls these means to write; the question is who called them.
_GO_BETWEENS = (
    *("pathlib", "shutil", "zipfile", "gzip", "codecs", "os.py", "<frozen"),
    *(f"{os.sep}numpy{os.sep}", f"{os.sep}fsspec{os.sep}"),
)
# They write folders of results for the script.
_FRAMEWORKS = ("transformers", "accelerate", "lightning", "pytorch_lightning", "peft", "trl", "diffusers")
_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
_SCRIPT, _FRAMEWORK, _LIBRARY = "script", "framework", "library"
_GONE = ".removed"


class Scratch:
    """Maps what the script calls a file to where it really lies."""

    def __init__(self, folder: Path, *, began_s: float, run: Path | None = None) -> None:
        self.folder = folder
        self._began_s = began_s
        self._own = (f"{folder}{os.sep}", f"{run or folder}{os.sep}")
        self._moved: dict[str, str] = {}
        self._made: list[str] = []
        self._caches = tuple(f"{os.path.abspath(place)}{os.sep}" for place in _cache_folders())
        self._resting = False
        self._stat = os.stat  # the real one, from before anything is guarded

    def write_to(self, path: Any) -> Any:
        """Where a checkpoint that the script wants to write goes; open files and such are left alone."""
        absolute = self._absolute(path)
        return path if absolute is None else type_of(path)(self._place(absolute))

    def read_from(self, path: Any) -> Any:
        """Where a file lies that the script wants to read: aside if any rank has written it there."""
        absolute = self._absolute(path)
        if absolute is None:
            return path
        if absolute not in self._moved and self._real(self._aside(absolute)):
            self._moved[absolute] = self._aside(absolute)
        return type_of(path)(self._moved[absolute]) if absolute in self._moved else path

    def look(self, path: Any) -> Any:
        """`read_from` for the many: no look at the disk unless the name is a checkpoint's."""
        if isinstance(path, (str, os.PathLike)):
            if str(path).endswith(CHECKPOINT_ENDINGS):
                return self.read_from(path)
            if self._moved:
                absolute = self._absolute(path)
                return path if absolute is None else self._moved.get(absolute, path)
        return path

    def open_for(self, path: Any, mode: str) -> Any:
        """The path to open in `mode`; adding to a file of the user's adds to a copy of it."""
        if not any(letter in mode for letter in "wax+"):
            return self.look(path)
        absolute = self._absolute(path)
        if absolute is None or not (absolute in self._moved or self._leads_aside(absolute)):
            return path
        before, target = self._moved.get(absolute, absolute), self._aside(absolute)
        if "w" not in mode and before != target and self._real(before):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(before, target)  # while the name still means the user's file
        return self._place(absolute)

    def rename(self, old: Any, new: Any, rename: Callable[..., Any]) -> Any:
        """Give a file its new name: in the scratch folder, if it or what it would replace is guarded."""
        source, target = self._absolute(old), self._absolute(new)
        if source is None or target is None:
            return rename(old, new)
        lies = os.fspath(self.read_from(source))
        aside = lies != source
        if not aside and not self._guards(source) and not self._leads_aside(target):
            return rename(old, new)
        if aside:
            result = rename(lies, self._place(target))
            self._moved.pop(source)
            if self._real(source):
                self._hide(source)
            return result
        if self._is_users(source):  # the user's own file stays; it is only known by another name now
            self._moved[target] = source
            self._hide(source)
        else:
            shutil.move(source, self._place(target))
        return None

    def remove(self, path: Any, remove: Callable[..., Any]) -> Any:
        """Remove a file; one that was there before the profile is only hidden."""
        absolute = self._absolute(path)
        if absolute is None:
            return remove(path)
        lies = os.fspath(self.read_from(absolute))
        if lies.startswith(self._own):
            remove(lies)
        elif not (self._real(lies) and self._guards(lies)):
            return remove(path)
        self._moved.pop(absolute, None)
        if self._real(absolute):
            self._hide(absolute)
        return None

    def remove_tree(self, path: Any, remove: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Remove a folder; one with files from before the profile is only hidden."""
        absolute = self._absolute(path)
        if absolute is None:
            return remove(path, *args, **kwargs)
        lies = os.fspath(self.read_from(absolute))
        if lies.startswith(self._own):
            remove(lies, *args, **kwargs)
            self._forget(absolute)
        if not os.path.isdir(absolute):
            return None if lies != absolute else remove(path, *args, **kwargs)
        if any(self._is_users(os.path.join(place, name)) for place, _, names in os.walk(absolute) for name in names):
            return self._hide(absolute)
        return remove(path, *args, **kwargs)

    def link(self, source: Any, new: Any, link: Callable[..., Any], **options: Any) -> Any:
        """Link to a file: aside, if the link's name is guarded or taken there."""
        target = self._absolute(new)
        if target is None or not (target in self._moved or self._leads_aside(target)):
            return link(source, new, **options)
        return link(source, self._place(target), **options)

    def made(self, path: Any) -> None:
        """The script made a folder."""
        if isinstance(path, (str, os.PathLike)) and not self._resting:
            self._made.append(os.path.abspath(path))

    def shows_again(self, path: Any) -> bool:
        """Whether the script makes a folder again that it removed, and that is only hidden: it is seen again."""
        absolute = self._absolute(path)
        if absolute is None or self._moved.get(absolute) != self._gone(absolute):
            return False
        del self._moved[absolute]
        return os.path.isdir(absolute)

    def rest(self) -> None:
        """The profile is over and the script goes on: from now on files go where it says."""
        self._resting = True
        self.tidy()

    def tidy(self) -> None:
        """Remove folders that the script made for files which went aside."""
        while self._made:
            with contextlib.suppress(OSError):
                os.rmdir(self._made.pop())

    def _absolute(self, path: Any) -> str | None:
        """The key of a file; None for what is no file of the user's (descriptors, devices, the run itself)."""
        if self._resting or not isinstance(path, (str, os.PathLike)):
            return None
        absolute = os.path.abspath(path)
        return None if not isinstance(absolute, str) or absolute.startswith((*_NO_FILES, *self._own)) else absolute

    def _aside(self, absolute: str) -> str:
        return os.path.join(self.folder, absolute.lstrip(os.sep))

    def _place(self, absolute: str) -> str:
        target = self._aside(absolute)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._moved[absolute] = target
        return target

    def _hide(self, absolute: str) -> None:
        self._forget(absolute)
        self._moved[absolute] = self._gone(absolute)

    def _gone(self, absolute: str) -> str:
        return os.path.join(self.folder, _GONE, absolute.lstrip(os.sep))

    def _forget(self, absolute: str) -> None:
        inside = f"{absolute}{os.sep}"
        for known in [known for known in self._moved if known == absolute or known.startswith(inside)]:
            del self._moved[known]

    def _guards(self, absolute: str) -> bool:
        return absolute.endswith(CHECKPOINT_ENDINGS) or (self._is_users(absolute) and _asker() != _LIBRARY)

    def _leads_aside(self, absolute: str) -> bool:
        """Whether what is written to this name goes aside."""
        if self._guards(absolute):
            return True
        return _asker() == _FRAMEWORK and not absolute.startswith(self._caches)

    def _is_users(self, path: str) -> bool:
        """Whether the file was there before the profile. The time of its last change tells, and cannot be set back."""
        try:
            return self._stat(path, follow_symlinks=False).st_ctime < self._began_s
        except OSError:
            return False

    def _real(self, path: str) -> bool:
        try:
            self._stat(path, follow_symlinks=False)
        except OSError:
            return False
        return True


def type_of(path: Any) -> Callable[[str], Any]:
    """A string for a string, a `Path` for anything else that is a path."""
    return str if isinstance(path, str) else Path


def _cache_folders() -> list[str]:
    return [os.path.expanduser("~/.cache"), *(os.environ[name] for name in _CACHES if os.environ.get(name))]


def _asker() -> str:
    """Whose call this is: the script's own code, a framework at work for it, or a library keeping its caches."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_code.co_filename
        if name == __file__ or any(part in name for part in _GO_BETWEENS):
            continue
        return _kind_of(os.path.realpath(name)) if not name.startswith("<") else _LIBRARY
    return _LIBRARY


def _kind_of(file: str) -> str:
    inside = [file[len(place) :].strip(os.sep) for place in _LIBRARIES if file.startswith(place)]
    if not inside:
        return _SCRIPT
    return _FRAMEWORK if any(rest.split(os.sep)[0] in _FRAMEWORKS for rest in inside) else _LIBRARY


def guard_files(scratch: Scratch) -> None:
    """Send Python's file functions through the layer. pathlib and os.path look these up when they are called."""
    _guard_open(scratch)
    for name in ("stat", "lstat", "access", "chmod", "utime"):
        _guard(os, name, lambda real, path, *args, **kwargs: real(scratch.look(path), *args, **kwargs))
    for name in ("rename", "replace"):
        _guard(os, name, lambda real, old, new: scratch.rename(old, new, real))
    for name in ("remove", "unlink"):
        _guard(os, name, lambda real, path: scratch.remove(path, real))
    for name in ("symlink", "link"):
        _guard(os, name, lambda real, src, dst, **options: scratch.link(src, dst, real, **options))
    _guard(shutil, "rmtree", lambda real, path, *a, **k: scratch.remove_tree(path, real, *a, **k))
    mkdir = os.mkdir

    def noted_mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if "dir_fd" not in kwargs and scratch.shows_again(path):
            return
        mkdir(path, *args, **kwargs)
        if "dir_fd" not in kwargs:
            scratch.made(path)

    _replace(os, "mkdir", noted_mkdir)
    process = os.getpid()
    atexit.register(lambda: scratch.tidy() if os.getpid() == process else None)


def _guard_open(scratch: Scratch) -> None:
    real_open = builtins.open

    def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return real_open(scratch.open_for(file, mode), mode, *args, **kwargs)

    builtins.open = io.open = open


def _guard(module: Any, name: str, call: Callable[..., Any]) -> None:
    real = getattr(module, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Relative to an open folder: not a name that we can follow.
        if any(kwargs.get(key) is not None for key in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return real(*args, **kwargs)
        return call(real, *args, **kwargs)

    _replace(module, name, guarded)


def _replace(module: Any, name: str, guarded: Callable[..., Any]) -> None:
    real = getattr(module, name)
    # Others ask `os.unlink in os.supports_dir_fd` before they dare to use it so.
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if real in capable:
            capable.add(guarded)
    for key in ("avoids_symlink_attacks",):
        if hasattr(real, key):
            setattr(guarded, key, getattr(real, key))
    guarded.__name__, guarded.__doc__ = name, real.__doc__
    setattr(module, name, guarded)
