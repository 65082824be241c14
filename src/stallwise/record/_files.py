"""How the user's files are kept safe from a profiled job: decided when it is launched, and said in the record.

overlay      the job runs on a throw-away layer (`_overlay.py`): where the kernel allows it and all ranks are on a node
interposed   Python's file functions are wrapped in every rank (`ablate/_scratch.py`)
as they are  the script writes where it says: `allow_writes`, light mode
"""

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stallwise.record._overlay import OverlaySpec, may_hold_layer
from stallwise.record.rank.environment import RecordSettings
from stallwise.sentences import Sentence

LAYER_NAME = "overlay"
"""In the run's folder while the job runs: what it has written."""
SCRATCH_NAME = "scratch"
"""In the run's folder: files of the script, at their absolute paths."""

_PROBE_S = 30.0
_CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "TRANSFORMERS_CACHE"),
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"),
)

Protection = Literal["overlay", "interposed", "as they are"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProtection:
    """What was decided for one launch."""

    kind: Protection
    folder: Path
    """The run's."""
    spec: OverlaySpec | None = None
    notes: tuple[Sentence, ...] = ()
    keep: bool = False
    """Keep what the script wrote, in the run's scratch folder."""
    covered: tuple[str, ...] = field(default=())

    def command(self, command: list[str]) -> list[str]:
        """The job's command line, run on the overlay where there is one."""
        return self.spec.command(*command) if self.spec is not None else command

    def end(self) -> None:
        """Keep or throw away what the script wrote; no process of the job may be left."""
        if self.spec is not None and self.keep:
            _keep_layers(Path(self.spec.storage), self.folder / SCRATCH_NAME)
        if self.spec is not None:
            remove_tree(Path(self.spec.storage))
        if not self.keep:
            remove_tree(self.folder / SCRATCH_NAME)


def protect_files(
    settings: RecordSettings, *, folder: Path, script: str | None, nodes: int, shared: Iterable[str] = ()
) -> FileProtection:
    """Decide how files are kept safe; where an overlay is possible, it has been tried out."""
    folder = folder.absolute()
    if settings.allow_writes or (settings.light and not settings.trial):
        return FileProtection(kind="as they are", folder=folder)
    reason = _obstacle(settings, folder, script, nodes)
    if reason is None:
        outcome = _try_overlay(folder, script, shared)
        if isinstance(outcome, OverlaySpec):
            return FileProtection(
                kind="overlay",
                folder=folder,
                spec=outcome,
                keep=settings.keep_writes,
                notes=(_overlay_note(keep=settings.keep_writes),),
            )
        reason = outcome
    return FileProtection(
        kind="interposed",
        folder=folder,
        keep=settings.keep_writes,
        notes=(
            Sentence(
                "files.wrapped",
                f"Files were protected by wrapping Python's file functions, because {reason}: what other programs and "
                "C code write went where they say.",
            ),
        ),
    )


def _overlay_note(*, keep: bool) -> Sentence:
    fate = f"is in {SCRATCH_NAME}/ of this run" if keep else "was thrown away"
    return Sentence(
        "files.overlay",
        f"The job ran on an overlay of the file system; what it wrote {fate}, caches of downloads excepted.",
    )


def _obstacle(settings: RecordSettings, folder: Path, script: str | None, nodes: int) -> str | None:
    """Why there can be no overlay, before it is tried."""
    if sys.platform != "linux":
        return "there are no overlays on this system"
    if not settings.overlay:
        return "the overlay was declined"
    if nodes > 1:
        return "nodes of one job must see each other's files"
    if any(_holds(folder, path) for path in _needed(script)):
        return "the folder of the run holds the script's own"
    return None


def _needed(script: str | None) -> list[str]:
    """Folders whose files must be safe: the working directory and the script's own."""
    return [os.getcwd(), *([os.path.dirname(os.path.realpath(script))] if script is not None else [])]


def _holds(folder: str | Path, path: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _caches(script: str | None) -> Iterator[str]:
    """Folders of downloads and compiled code: filling them is what libraries do, and takes long to repeat."""
    for folder in ("~/.cache", "~/.triton", *(os.environ.get(name, "") for name in _CACHES)):
        path = os.path.realpath(os.path.expanduser(folder)) if folder else ""
        if path and os.path.isdir(path) and not any(_holds(path, own) for own in (*_needed(script), "~")):
            yield path


def _try_overlay(folder: Path, script: str | None, shared: Iterable[str]) -> OverlaySpec | str:
    """An overlay that works here, or why none does."""
    passed = (str(folder), *(os.path.abspath(path) for path in shared), *_caches(script))
    reason = "no disk can hold the layer"
    for storage in _storages(folder):
        spec = OverlaySpec(storage=storage, passed=passed, must_cover=tuple(_needed(script)))
        failure = _probe(spec)
        remove_tree(Path(storage))
        if failure is None:
            return spec
        reason = failure
    return reason


def _storages(folder: Path) -> Iterator[str]:
    yield os.path.join(os.path.realpath(folder), LAYER_NAME)
    for parent in dict.fromkeys(map(os.path.realpath, (tempfile.gettempdir(), "/var/tmp"))):
        if os.path.isdir(parent) and may_hold_layer(parent):
            yield tempfile.mkdtemp(prefix="stallwise-overlay-", dir=parent)


def _probe(spec: OverlaySpec) -> str | None:
    """Try the overlay in another process: why it does not work, or None."""
    try:
        done = subprocess.run(
            spec.command("--probe"), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PROBE_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the overlay could not be tried ({type(error).__name__})"
    if done.returncode:
        return f"the kernel refuses an overlay: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ''}"
    missing = json.loads(done.stdout)["missing"]
    return f"an overlay does not cover {missing[0]}" if missing else None


def _keep_layers(storage: Path, scratch: Path) -> None:
    """Move what was written to the scratch folder, each file to its absolute path there."""
    for own in sorted(path for path in storage.iterdir() if (path / "covers").is_file()):
        covers = (own / "covers").read_text(errors="surrogateescape")
        _merge(own / "upper", scratch / covers.lstrip(os.sep))


def _merge(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in list(source.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            _merge(path, target / path.name)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            shutil.move(path, target / path.name)


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever the modes of what is inside; nothing happens where there is none."""

    def make_writable(function: Callable[..., Any], path: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
        with contextlib.suppress(OSError):
            if function in (os.open, os.scandir, os.listdir, os.rmdir) and os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, onerror=make_writable)
