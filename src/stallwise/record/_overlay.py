"""A throw-away layer over the file systems: the job reads every file as it is, and nothing that it writes stays.

    python overlay.py SPEC COMMAND…

gives itself a mount namespace of its own, lays an overlay over each file system that can be written to, and becomes the
command. What the script, its children and C code write then appears to all of them exactly as without us, and nobody
else sees it. As root one overlay covers a whole file system, so that renaming works across all of it. Without root, in
a user namespace, the kernel does not allow that where other file systems are mounted below; directories are covered one
by one then. Virtual file systems, shared memory, the run's own folder, caches of downloads, and sockets that exist
already are passed through.

Run as a program, by its path, this module must import nothing but the standard library.
"""

import contextlib
import ctypes
import json
import os
import signal
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NoReturn

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_VIRTUAL = {
    *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "mqueue", "hugetlbfs", "debugfs", "tracefs"),
    *("securityfs", "bpf", "pstore", "fusectl", "configfs", "rpc_pipefs", "binfmt_misc", "nsfs", "efivarfs", "autofs"),
    *("selinuxfs", "fuse.lxcfs", "fuse.gvfsd-fuse", "fuse.portal", "squashfs", "iso9660"),
}
# Memory and state of the system, whatever file system it is.
_SYSTEM = ("/dev", "/proc", "/sys", "/run", "/var/run")
# Nothing of a user's is there; not covered where each directory takes an overlay of its own.
_STATIC = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/etc", "/lost+found")
_STORAGE_TYPES_REFUSED = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class OverlaySpec:
    """What is to be covered and where the layer is kept."""

    storage: str
    """An empty folder for what is written, on a file system that can hold a layer."""
    passed: tuple[str, ...] = ()
    """Folders that stay the real ones."""
    must_cover: tuple[str, ...] = ()
    """Folders without which the overlay is not worth having."""

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` on the overlay."""
        return [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(asdict(self)), *command]


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    point: str
    kind: str
    writable: bool

    @property
    def is_real(self) -> bool:
        """Whether it holds files of users that could be changed."""
        return self.writable and self.kind not in _VIRTUAL and not _is_below(self.point, _SYSTEM)


def mounts(path: str = "/proc/self/mountinfo") -> list[Mount]:
    """All mounts that can be seen, parents before what is mounted below them."""
    seen: dict[str, Mount] = {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.rstrip("\n").partition(" - ")
            fields, (kind, _, super_options) = left.split(" "), right.split(" ", 2)
            point = _unescaped(fields[4])
            writable = "rw" in fields[5].split(",") and "rw" in super_options.split(",")
            seen[point] = Mount(point, kind, writable)  # of several on one point the last can be seen
    return sorted(seen.values(), key=lambda mount: (mount.point.count("/") if mount.point != "/" else 0, mount.point))


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def may_hold_layer(folder: str) -> bool:
    """Whether `folder` lies on a disk; what a job writes to a layer in memory could use up the memory."""
    below = [mount for mount in mounts() if _is_below(folder, [mount.point])]
    return below[-1].kind not in _STORAGE_TYPES_REFUSED if below else True


class _Kernel:
    """The system calls that Python has no names for; each raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> None:
        self._check(self._libc.unshare(flags), "unshare")

    def mount(self, source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
        texts = [text.encode(errors="surrogateescape") if text is not None else None for text in (source, target, kind)]
        data = options.encode(errors="surrogateescape") if options is not None else None
        self._check(self._libc.mount(*texts, ctypes.c_ulong(flags), data), target)

    def bind(self, source: str, target: str, *, recursive: bool = False) -> None:
        self.mount(source, target, None, _MS_BIND | (_MS_REC if recursive else 0))

    def use_root(self, folder: str) -> None:
        """Make `folder` the root, and let go of the old one."""
        os.chdir(folder)
        self._check(self._libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), folder)
        self._check(self._libc.umount2(b".", _MNT_DETACH), folder)
        os.chdir("/")

    def end_with_parent(self) -> None:
        self._libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    @staticmethod
    def _check(result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), what)


class _Layers:
    """Lays overlays one after another, each with folders of its own in the storage."""

    def __init__(self, kernel: _Kernel, storage: str, options: str) -> None:
        self._kernel = kernel
        self._storage = storage
        self._options = options
        self.covered: list[str] = []

    def lay(self, lower: str, target: str) -> None:
        """Lay an overlay over `lower` and mount it at `target`; what it covers is noted in the storage."""
        if any(character in lower for character in ',:\\"'):
            raise OSError(22, "a name that an overlay cannot have", lower)
        own = os.path.join(self._storage, str(len(self.covered)))
        upper, work = os.path.join(own, "upper"), os.path.join(own, "work")
        for folder in (own, upper, work):
            os.makedirs(folder, exist_ok=True)
        # A new layer's own folder becomes the covered one.
        facts = os.stat(lower)
        with contextlib.suppress(OSError):  # an owner that this namespace does not know
            os.chown(upper, facts.st_uid, facts.st_gid)
        os.chmod(upper, stat.S_IMODE(facts.st_mode))
        options = f"lowerdir={lower},upperdir={upper},workdir={work}{self._options}"
        self._kernel.mount("overlay", target, "overlay", 0, options)
        with open(os.path.join(own, "covers"), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(lower)
        self.covered.append(lower)


def enter(spec: OverlaySpec) -> list[str]:
    """Move this process onto the overlay; returns what is covered. It must have one thread."""
    kernel, folder, parent = _Kernel(), os.getcwd(), os.getppid()
    before = mounts()
    try:
        kernel.unshare(_CLONE_NEWNS)
        is_root = True
    except PermissionError:
        _enter_user_namespace(kernel)
        is_root = False
    kernel.mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    os.makedirs(spec.storage, exist_ok=True)
    # Opened now: in this namespace already, and still the real ones.
    passed = [(path, os.open(path, os.O_PATH)) for path in _outermost(spec.passed) if os.path.isdir(path)]
    if is_root:
        covered, root = _cover_file_systems(kernel, spec.storage, before)
    else:
        covered, root = _cover_folders(kernel, spec.storage, before), ""
    for path, descriptor in passed:
        kernel.bind(f"/proc/self/fd/{descriptor}", f"{root}{path}")
        os.close(descriptor)
    _pass_sockets(kernel, root, covered, [path for path, _ in passed])
    # What is written would otherwise be found twice by a script that searches its folders.
    kernel.mount("none", f"{root}{spec.storage}", "tmpfs", 0, "size=4k,mode=700")
    if root:
        kernel.use_root(root)
    os.chdir(folder)
    # Entering a user namespace made the kernel forget it.
    kernel.end_with_parent()
    if os.getppid() != parent:
        sys.exit(1)
    return covered


def _enter_user_namespace(kernel: _Kernel) -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(_CLONE_NEWUSER | _CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _outermost(paths: Iterable[str]) -> list[str]:
    ordered = sorted(set(paths), key=len)
    return [path for n, path in enumerate(ordered) if not _is_below(path, ordered[:n])]


def _cover_file_systems(kernel: _Kernel, storage: str, before: Sequence[Mount]) -> tuple[list[str], str]:
    """Build a new root below the storage: an overlay for each real file system, the others as they are."""
    root = os.path.join(storage, "root")
    os.makedirs(root, exist_ok=True)
    layers = _Layers(kernel, storage, ",redirect_dir=on")
    for mount in before:
        target = root if mount.point == "/" else f"{root}{mount.point}"
        if mount.point == "/" or (mount.is_real and os.path.isdir(mount.point)):
            try:
                layers.lay(mount.point, target)
                continue
            except OSError:
                if mount.point == "/":
                    raise
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # something is mounted over it
            kernel.bind(mount.point, target)
    return layers.covered, root


def _cover_folders(kernel: _Kernel, storage: str, before: Sequence[Mount]) -> list[str]:
    """Lay an overlay over every folder below which nothing is mounted, in place."""
    layers = _Layers(kernel, storage, ",userxattr")
    points = {mount.point: mount for mount in before}

    def folders(folder: str) -> Iterator[str]:
        mount = points.get(folder)
        if folder != "/" and ((mount is not None and not mount.is_real) or _is_below(folder, (*_SYSTEM, *_STATIC))):
            return
        inside = folder.rstrip("/") + "/"
        if folder != "/" and not any(point.startswith(inside) for point in points):
            yield folder
            return
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for path in sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False)):
                yield from folders(path)

    for folder in list(folders("/")):
        with contextlib.suppress(OSError):
            layers.lay(folder, folder)
    return layers.covered


def _pass_sockets(kernel: _Kernel, root: str, covered: Sequence[str], passed: Sequence[str]) -> None:
    """Sockets that others listen on cannot be reached through an overlay."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()[1:]
    paths = {line.split(" ", 7)[-1].partition(" ")[2] if line.count(" ") > 7 else "" for line in lines}
    for path in paths:
        if path.startswith("/") and _is_below(path, covered) and not _is_below(path, (*_SYSTEM, *passed)):
            with contextlib.suppress(OSError):
                kernel.bind(path, f"{root}{path}")


def probe(spec: OverlaySpec) -> None:
    """Move onto the overlay, check that it covers what it must, and print what it covers."""
    covered = enter(spec)
    missing = [path for path in spec.must_cover if not _is_below(path, covered)]
    for path in spec.must_cover:
        if os.access(path, os.W_OK):
            trial = os.path.join(path, f".stallwise-overlay-{os.getpid()}")
            with open(trial, "x", encoding="ascii"):
                pass
            os.unlink(trial)
    sys.stdout.write(json.dumps({"covered": covered, "missing": missing}))


def _main(arguments: Sequence[str]) -> NoReturn:
    spec = OverlaySpec(**json.loads(arguments[0]))
    try:
        if arguments[1:] == ["--probe"]:
            probe(spec)
            sys.exit(0)
        enter(spec)
    except OSError as error:
        sys.stderr.write(f"{error.strerror} ({error.filename})\n")
        sys.exit(1)
    os.execvp(arguments[1], list(arguments[1:]))  # noqa: S606


if __name__ == "__main__":
    _main(sys.argv[1:])
