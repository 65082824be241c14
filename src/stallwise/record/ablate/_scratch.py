"""A layer over the user's files: what the script writes during a profile goes to a scratch folder and is read from it.

Redirected: files with the ending of a checkpoint, whoever writes them; all that a training framework writes for the
script (half a checkpoint in its place could be taken for a whole one); and files from before the profile that anybody
would overwrite, change, rename or remove, caches excepted. They stay as they are; the script sees its own version.
Everything else (new logs, caches of libraries, temporary files) goes where the script says. All ranks see the same
files, because the scratch folder mirrors absolute paths.

A profile trains on replayed batches; a checkpoint of that must not overwrite a real one. `torch.save`, distributed
checkpoints and safetensors, which write from C++ or to names of their own, are redirected by wrapping them; everything
else by wrapping Python's own file functions. Trackers (Weights & Biases, MLflow …) are switched off or pointed there by
their own variables.
"""

import contextlib
import functools
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stallwise.record.rank.script import when_imported

CHECKPOINT_ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".pkl", ".pickle", ".bin", ".tar", ".distcp")

# They write on behalf of their caller, which decides.
_INTERMEDIARIES = (
    *("pathlib", "shutil", "zipfile", "gzip", "codecs", "os.py", "<frozen"),
    *(f"{os.sep}numpy{os.sep}", f"{os.sep}fsspec{os.sep}"),
)
# They write folders of results for the script.
_FRAMEWORKS = ("transformers", "accelerate", "lightning", "pytorch_lightning", "peft", "trl", "diffusers")
_PACKAGES = os.path.dirname(os.path.dirname(torch.__file__))  # may be elsewhere than this environment's own
_LIBRARIES = tuple(
    {os.path.realpath(path) for path in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), _PACKAGES)}
)
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME")
_SCRIPT, _FRAMEWORK, _LIBRARY = "script", "framework", "library"
_REMOVED = ".removed"
_OURS = tuple(os.path.join(os.path.dirname(__file__), name) for name in ("_scratch.py", "_guards.py"))


class ScratchFolder:
    """Maps the path that the script uses for a file to the path where the file is.

    Its methods see the real files: `_guards.py` calls them with its own wrappers out of the way.
    """

    def __init__(self, folder: Path, *, began_s: float, run: Path | None = None) -> None:
        self.folder = folder
        self._began_s = began_s
        self._own = (f"{folder}{os.sep}", f"{run or folder}{os.sep}")
        self._moved: dict[str, str] = {}
        self._folders: set[str] = set()  # those of `_moved` under which everything is moved
        self._links: dict[str, str] = {}  # symbolic links that the script made: what they say
        self._created_folders: list[str] = []
        self._caches = tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in _cache_folders())
        self._released = False

    # ---- reading -------------------------------------------------------------------------------------------

    def read_from(self, path: Any) -> Any:
        """The path to read a file from: in the scratch folder if any rank has written it there."""
        absolute = self._absolute(path)
        if absolute is None:
            return path
        actual = self._actual(self._followed(absolute), look=True)
        return path if actual == absolute else _as_given(path, actual)

    def resolve(self, path: Any, *, follow: bool = True) -> Any:
        """As `read_from`, but touches the disk only for names of checkpoints: called for every file."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        named = os.fsdecode(path).endswith(CHECKPOINT_ENDINGS)
        absolute = self._absolute(path) if named or self._moved or self._links else None
        if absolute is None:
            return path
        actual = self._actual(self._followed(absolute) if follow else absolute, look=named)
        return path if actual == absolute else _as_given(path, actual)

    def link_text(self, path: Any) -> str | None:
        """What a symbolic link of the script says; None for any other path."""
        absolute = self._absolute(path)
        return self._links.get(absolute) if absolute is not None else None

    def names_in(self, path: Any) -> dict[str, str] | None:
        """Name -> actual path of what the script sees in a folder; None where that is what is there."""
        absolute = self._absolute("." if path is None else path)
        if absolute is None or not (self._moved or os.path.isdir(self._scratch_path(absolute))):
            return None
        shown = {name: os.path.join(absolute, name) for name in _names(self._actual(absolute))}
        if not self._is_moved(absolute):
            shown |= {name: os.path.join(absolute, name) for name in _names(self._scratch_path(absolute))}
        shown |= {os.path.basename(p): p for p in self._moved if os.path.dirname(p) == absolute}
        actual = {name: self._actual(path, look=True) for name, path in shown.items()}
        return {name: path for name, path in actual.items() if os.path.lexists(path)}

    # ---- writing -------------------------------------------------------------------------------------------

    def write_to(self, path: Any) -> Any:
        """The path to write a checkpoint to; open files and the like are returned unchanged."""
        absolute = self._absolute(path)
        return path if absolute is None else _as_given(path, self._redirect(self._followed(absolute)))

    def change(self, path: Any, *, keep: bool = True) -> Any:
        """The path of a file that is to be changed; a file of the user's is copied first if its content is kept."""
        absolute = self._absolute(path)
        if absolute is None:
            return path
        target = self._followed(absolute)
        if os.path.islink(self._actual(target)):
            # A link of the user's: what is written through it is found under both names.
            target = os.path.realpath(self._actual(target))
            if self._redirects(target):
                self._moved[absolute] = self._scratch_path(target)
        if not (self._is_moved(target) or self._redirects(target)):
            return path if target == absolute else _as_given(path, target)
        if keep:
            self._copy_up(target)
        return _as_given(path, self._redirect(target))

    def open_for(self, path: Any, mode: str) -> Any:
        """The path to open in `mode`."""
        if not any(letter in mode for letter in "wax+"):
            return self.resolve(path)
        return self.change(path, keep="w" not in mode and "x" not in mode)

    def open_with(self, path: Any, flags: int) -> Any:
        """The path to open with the flags of `os.open`."""
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            return self.resolve(path)
        is_new = bool(flags & os.O_CREAT and flags & (os.O_TRUNC | os.O_EXCL))
        return self.change(path, keep=not is_new)

    def rename(self, old: Any, new: Any, rename: Callable[..., Any]) -> Any:
        """Rename a file or folder: in the scratch folder, if it or what it would replace is guarded."""
        source, target = self._absolute(old), self._absolute(new)
        if source is None or target is None:
            return rename(old, new)
        actual = self._actual(source, look=True)
        if source in self._links:
            self._links[target] = self._links.pop(source)
        is_folder = os.path.isdir(actual) and not os.path.islink(actual)
        if actual.startswith(self._own):
            rename(actual, self._redirect(target))
            self._forget(source)
        elif is_folder and (self._holds_users(source) or any(p.startswith(source + os.sep) for p in self._moved)):
            self._copy_folder(source, self._redirect(target))
            self._forget(source)
        elif not self._guards(actual) and not self._redirects(target):
            return rename(old, new)
        elif self._is_users(actual):  # the user's own file stays; it only gets another name in the mapping
            self._forget(source)
            self._moved[target] = actual
        else:
            shutil.move(actual, self._redirect(target))
        if is_folder:
            self._folders.add(target)
        if os.path.lexists(source):
            self._hide(source)
        return None

    def remove(self, path: Any, remove: Callable[..., Any]) -> Any:
        """Remove a file; one that was there before the profile is only hidden."""
        absolute = self._absolute(path)
        if absolute is None:
            return remove(path)
        actual = self._actual(absolute, look=True)
        self._links.pop(absolute, None)
        if actual.startswith(self._own):
            remove(actual)
        elif not (os.path.lexists(actual) and self._guards(actual)):
            return remove(path)
        self._forget(absolute)
        if os.path.lexists(absolute):
            self._hide(absolute)
        return None

    def remove_folder(self, path: Any, remove: Callable[..., Any]) -> Any:
        """Remove an empty folder; one that only looks empty to the script is hidden."""
        absolute = self._absolute(path)
        if absolute is None or self.names_in(path) or not os.path.isdir(self._actual(absolute)):
            return remove(path if absolute is None else self.resolve(path))
        if self._is_moved(absolute):
            remove(self._actual(absolute))
            self._forget(absolute)
        if os.path.isdir(absolute):
            return self._hide(absolute) if _names(absolute) or self._is_users(absolute) else remove(path)
        return None

    def remove_tree(self, path: Any, remove: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Remove a folder; one with files from before the profile is only hidden."""
        absolute = self._absolute(path)
        if absolute is None:
            return remove(path, *args, **kwargs)
        actual = self._actual(absolute, look=True)
        if actual.startswith(self._own):
            remove(actual, *args, **kwargs)
            self._forget(absolute)
        if not os.path.isdir(absolute):
            return None if actual != absolute else remove(path, *args, **kwargs)
        if self._holds_users(absolute):
            return self._hide(absolute)
        self._forget(absolute)
        return remove(path, *args, **kwargs)

    def link(self, source: Any, new: Any, link: Callable[..., Any]) -> Any:
        """Link to a file: in the scratch folder, if the file or the link's name is guarded or there already."""
        file, target = self._absolute(source), self._absolute(new)
        if file is None or target is None:
            return link(source, new)
        actual = self._actual(file, look=True)
        if actual == file and not self._guards(file) and not self._redirects(target):
            return link(source, new)
        # Never to the user's own file: what is later written to the link would be written to it.
        self._copy_up(file)
        return link(self._actual(file, look=True), self._redirect(target))

    def symlink(self, source: Any, new: Any, link: Callable[..., Any]) -> Any:
        """Make a symbolic link; it says what the script has it say, and leads where the script's file is."""
        target = self._absolute(new)
        if target is None:
            return link(source, new)
        text = os.fsdecode(source)
        file = os.path.normpath(os.path.join(os.path.dirname(target), text))
        actual = self._actual(file, look=True)
        result = link(actual, self._redirect(target)) if self._redirects(target) else link(source, new)
        self._links[target] = text
        return result

    def make_folder(self, path: Any, make: Callable[[Any], Any]) -> Any:
        """Create a folder; in the place of one that the script removed (it was only hidden) an empty one."""
        absolute = self._absolute(path)
        if absolute is None:
            return make(path)
        if self._moved.get(absolute) == self._removed_path(absolute) or self._is_below_moved(absolute):
            target = self._redirect(absolute)
            self._folders.add(absolute)
            return make(target)
        result = make(path)
        if not self._released:
            self._created_folders.append(absolute)
        return result

    def release(self) -> None:
        """Stop redirecting, because the profile is over and the script goes on."""
        self._released = True
        self.remove_empty_folders()

    def remove_empty_folders(self) -> None:
        """Remove folders that the script created for files which were redirected."""
        while self._created_folders:
            with contextlib.suppress(OSError):
                os.rmdir(self._created_folders.pop())

    # ---- the mapping ---------------------------------------------------------------------------------------

    def _absolute(self, path: Any) -> str | None:
        """The absolute path of a file; None for what is no file of the user's (descriptors, devices, this run)."""
        if self._released or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        absolute = os.path.abspath(os.fsdecode(path))
        return None if f"{absolute}{os.sep}".startswith((*_NO_FILES, *self._own)) else absolute

    def _actual(self, absolute: str, *, look: bool = False) -> str:
        """Where a file is; with `look`, also where another rank may have put it."""
        if absolute in self._moved:
            return self._moved[absolute]
        for folder in self._folders:
            if absolute.startswith(f"{folder}{os.sep}"):
                return self._moved[folder] + absolute[len(folder) :]
        if look and os.path.lexists(self._scratch_path(absolute)) and not os.path.isdir(absolute):
            self._moved[absolute] = self._scratch_path(absolute)
            return self._moved[absolute]
        return absolute

    def _followed(self, absolute: str) -> str:
        """Where the script's own symbolic links lead."""
        for _ in range(40):
            if absolute not in self._links:
                break
            absolute = os.path.normpath(os.path.join(os.path.dirname(absolute), self._links[absolute]))
        return absolute

    def _is_moved(self, absolute: str) -> bool:
        return absolute in self._moved or self._is_below_moved(absolute)

    def _is_below_moved(self, absolute: str) -> bool:
        return any(absolute.startswith(f"{folder}{os.sep}") for folder in self._folders)

    def _scratch_path(self, absolute: str) -> str:
        return os.path.join(self.folder, absolute.lstrip(os.sep))

    def _redirect(self, absolute: str) -> str:
        target = self._scratch_path(absolute)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._moved[absolute] = target
        return target

    def _copy_up(self, absolute: str) -> None:
        """Have a copy of a file in the scratch folder, with its mode and times."""
        before, target = self._actual(absolute, look=True), self._scratch_path(absolute)
        if before == target or not os.path.exists(before):
            return
        self._redirect(absolute)
        if os.path.isdir(before):
            os.makedirs(target, exist_ok=True)
            shutil.copystat(before, target)
            del self._moved[absolute]
        else:
            shutil.copy2(before, target)

    def _copy_folder(self, source: str, target: str) -> None:
        for parent, _, names in os.walk(source):
            into = os.path.join(target, os.path.relpath(parent, source))
            os.makedirs(into, exist_ok=True)
            for name in names:
                actual = self._actual(os.path.join(parent, name), look=True)
                if os.path.lexists(actual):
                    shutil.copy2(actual, os.path.join(into, name), follow_symlinks=False)

    def _hide(self, absolute: str) -> None:
        self._forget(absolute)
        self._moved[absolute] = self._removed_path(absolute)
        if os.path.isdir(absolute):
            self._folders.add(absolute)

    def _removed_path(self, absolute: str) -> str:
        return os.path.join(self.folder, _REMOVED, absolute.lstrip(os.sep))

    def _forget(self, absolute: str) -> None:
        inside = f"{absolute}{os.sep}"
        for path in [path for path in self._moved if path == absolute or path.startswith(inside)]:
            del self._moved[path]
            self._folders.discard(path)

    def _guards(self, absolute: str) -> bool:
        if absolute.endswith(CHECKPOINT_ENDINGS):
            return True
        return self._is_users(absolute) and not absolute.startswith(self._caches)

    def _redirects(self, absolute: str) -> bool:
        """Whether a write to this path goes to the scratch folder."""
        if self._guards(absolute) or self._is_below_moved(absolute):
            return True
        return _caller_kind() == _FRAMEWORK and not absolute.startswith(self._caches)

    def _holds_users(self, folder: str) -> bool:
        return any(self._is_users(os.path.join(parent, name)) for parent, _, names in os.walk(folder) for name in names)

    def _is_users(self, path: str) -> bool:
        """Whether the file existed before the profile, by its change time, which cannot be set back."""
        try:
            return os.stat(path, follow_symlinks=False).st_ctime < self._began_s
        except OSError:
            return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _as_given(path: Any, actual: str) -> Any:
    """A path of the kind that was given: text, bytes or an object."""
    if isinstance(path, bytes):
        return os.fsencode(actual)
    return actual if isinstance(path, str) else Path(actual)


def _cache_folders() -> list[str]:
    return [os.path.expanduser("~/.cache"), *(os.environ[name] for name in _CACHES if os.environ.get(name))]


def _caller_kind() -> str:
    """Which code makes the call: the script's own, a framework working for it, or a library keeping its caches."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_code.co_filename
        if name in _OURS or any(part in name for part in _INTERMEDIARIES):
            continue
        return _kind_of(os.path.realpath(name)) if not name.startswith("<") else _LIBRARY
    return _LIBRARY


def _kind_of(file: str) -> str:
    inside = [file[len(folder) :].strip(os.sep) for folder in _LIBRARIES if file.startswith(folder)]
    if not inside:
        return _SCRIPT
    return _FRAMEWORK if any(rest.split(os.sep)[0] in _FRAMEWORKS for rest in inside) else _LIBRARY


SaveListener = Callable[[str, float, float, str | None], None]
"""Called with (kind, start_s, duration_s, detail) when a checkpoint was saved."""


def guard_saves(scratch: ScratchFolder, on_save: SaveListener) -> None:
    """Redirect every known way of saving a checkpoint to the scratch folder, and time it."""
    _guard_torch(scratch, on_save)
    _guard_distributed_checkpoint(scratch, on_save)
    _guard_safetensors(scratch, on_save)
    _guard_tokenizers(scratch)


def time_writes(on_save: SaveListener) -> None:
    """Time checkpoints without redirecting them (on an overlay, with writes allowed, in light mode)."""
    replace_everywhere(torch.save, _timed(torch.save, _unchanged, on_save))

    def time_distributed(checkpoint: Any) -> None:
        for name in ("save", "async_save"):
            setattr(checkpoint, name, _timed(getattr(checkpoint, name), _unchanged, on_save))

    def time_safetensors(module: Any) -> None:
        replace_everywhere(module.save_file, _timed(module.save_file, _unchanged, on_save))

    when_imported("torch.distributed.checkpoint", time_distributed)
    when_imported("safetensors.torch", time_safetensors)


def _guard_torch(scratch: ScratchFolder, on_save: SaveListener) -> None:
    replace_everywhere(torch.save, _timed(torch.save, _redirected(scratch.write_to, 1, "f"), on_save))
    replace_everywhere(torch.load, _with_change(torch.load, _redirected(scratch.read_from, 0, "f")))


def _guard_distributed_checkpoint(scratch: ScratchFolder, on_save: SaveListener) -> None:
    """Redirect the path where a reader or writer of distributed checkpoints is created or reset."""

    def patch(checkpoint: Any) -> None:
        holders = (
            (checkpoint.filesystem._FileSystemWriter, scratch.write_to),
            (checkpoint.FileSystemReader, scratch.read_from),
        )
        for kind, where in holders:
            kind.__init__ = _with_change(kind.__init__, _redirected(where, 1, "path"))
            kind.reset = _with_change(kind.reset, _redirected(where, 1, "checkpoint_id"))
        for name in ("save", "async_save"):
            setattr(checkpoint, name, _timed(getattr(checkpoint, name), _unchanged, on_save))

    when_imported("torch.distributed.checkpoint", patch)


def _guard_safetensors(scratch: ScratchFolder, on_save: SaveListener) -> None:
    def patch(module: Any) -> None:
        save, load = module.save_file, module.load_file
        replace_everywhere(save, _timed(save, _redirected(scratch.write_to, 1, "filename"), on_save))
        replace_everywhere(load, _with_change(load, _redirected(scratch.read_from, 0, "filename")))

    when_imported("safetensors.torch", patch)


def replace_everywhere(function: Callable[..., Any], guarded: Callable[..., Any]) -> None:
    """Replace a function in every module: it is pickled by its name in one, and others have imported it already."""
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is function]
        for name in names:
            setattr(module, name, guarded)


def _guard_tokenizers(scratch: ScratchFolder) -> None:
    """Redirect Hugging Face's fast tokenizers, which write from Rust."""

    def patch(module: Any) -> None:
        kind = module.PreTrainedTokenizerBase
        kind.save_pretrained = _with_change(kind.save_pretrained, _redirected(scratch.write_to, 1, "save_directory"))

    when_imported("transformers.tokenization_utils_base", patch)


_ArgumentChange = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _unchanged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _redirected(where: Callable[[Any], Any], position: int, name: str) -> _ArgumentChange:
    def change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > position:
            return (*args[:position], where(args[position]), *args[position + 1 :]), kwargs
        return args, kwargs | {name: where(kwargs[name])} if name in kwargs else kwargs

    return change


def _with_change(function: Callable[..., Any], change: _ArgumentChange) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return called


def _timed(function: Callable[..., Any], change: _ArgumentChange, on_save: SaveListener) -> Callable[..., Any]:
    inner = _with_change(function, change)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        try:
            return inner(*args, **kwargs)
        finally:
            on_save("checkpoint", start, time.monotonic() - start, getattr(function, "__name__", None))

    return called
