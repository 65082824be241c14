"""No file of the user changes under a profile, and the script sees its own files as it would without."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from stallwise.record._files import FileProtection, protect_files
from stallwise.record._overlay import OverlaySpec, mounts
from stallwise.record.ablate._guards import CHANGE, CREATE, READ, READ_LINK, SPECIAL
from stallwise.record.rank.environment import RecordSettings
from tests.conftest import lacks, texts
from tests.record.jobs import JOBS, Profiled

FILES = str(JOBS / "files.py")
OLD = (
    *("last.pt", "best.pt", "linked.pt", "best.json", "cut.txt", "bytes.txt", "behind.txt", "train.log", "hist.txt"),
    *("loss.npy", "moved.txt", "private.txt", "old_folder/kept.txt", "renamed_folder/inside.txt", "kept.pt"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with results of earlier, real runs; two checkpoints are one file with two names."""
    folder = tmp_path / "work"
    for name in OLD:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"old {name}\n" if name.endswith(".log") else f"old {name}")
    (folder / "mapped.bin").write_bytes(b"\0" * 4)
    (folder / "link_of_best.pt").hardlink_to(folder / "best.pt")
    (folder / "private.txt").chmod(0o600)
    with sqlite3.connect(folder / "runs.db") as database:
        database.execute("create table runs (id integer)")
        database.execute("insert into runs values (1)")
    database.close()
    return folder


def state(folder: Path, besides: str = "run") -> dict[str, tuple[str, int, int]]:
    """Digest, mode and link count of every file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.relative_to(folder).parts[0] != besides:
            facts = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[name] = (hashlib.md5(content).hexdigest(), facts.st_mode, facts.st_nlink)  # noqa: S324
    return found


def overlay_works(folder: Path) -> bool:
    try:
        done = subprocess.run(
            OverlaySpec(storage=str(folder / "layer"), must_cover=(str(folder),)).command("--probe"),
            cwd=folder,
            capture_output=True,
            timeout=250,
        )
    finally:
        shutil.rmtree(folder / "layer", ignore_errors=True)
    return done.returncode == 0


def test_on_an_overlay_everything_works_and_nothing_stays(folder: Path) -> None:
    if not overlay_works(folder):
        lacks("overlays of file systems (root, or unprivileged user namespaces)")
    before = state(folder)
    job = Profiled(folder, "--keep-writes", "--max-time", "0.5s", FILES, "children").ended(0)
    assert "all is as the script expects" in job.out, job.err
    assert state(folder) == before
    assert any("overlay" in note for note in texts(job.manifest["notes"]))
    left = {path.name for path in job.run.iterdir()}
    assert not left & {"overlay", "parts"}, left
    assert job.run.stat().st_mode & 0o777 == 0o700
    kept = job.run / "scratch" / str(folder).lstrip("/")
    assert (kept / "into/mine.txt").read_text() == "script"
    assert (kept / "by_child.txt").read_text() == "x"
    assert not (kept / "moved.txt").exists()


def test_what_was_written_is_thrown_away_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    for keep in (False, True):
        layer, scratch = tmp_path / f"run-{keep}/overlay", tmp_path / f"run-{keep}/scratch"
        (layer / "0/upper/home").mkdir(parents=True)
        (layer / "0/covers").write_text("/")
        (layer / "0/upper/home/new.pt").write_text("new")
        (layer / "0/work/work").mkdir(parents=True)
        (layer / "0/work/work").chmod(0)
        spec = OverlaySpec(storage=str(layer))
        FileProtection(kind="overlay", folder=tmp_path / f"run-{keep}", spec=spec, keep=keep).end()
        assert not layer.exists()
        assert (scratch / "home/new.pt").exists() == keep


def test_without_root_folders_are_covered_one_by_one(folder: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0 or setpriv is None or not overlay_works(folder):
        lacks("root and setpriv, to give rights up")
    before = state(folder)
    without = [setpriv, "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    spec = OverlaySpec(storage=str(folder / "run"), must_cover=(str(folder),))
    job = "from stallwise.record.ablate._layers import rename_between_layers as wrap; wrap(); import runpy, sys;"
    run = (
        sys.executable,
        "-c",
        f"{job} sys.argv = ['', 'children', 'end']; runpy.run_path({FILES!r}, None, '__main__')",
    )
    done = subprocess.run([*without, *spec.command(*run)], cwd=folder, capture_output=True, text=True, timeout=250)
    if "namespaces" in done.stderr:
        lacks("unprivileged user namespaces")
    assert done.returncode == 7, done.stderr
    assert "all is as the script expects" in done.stdout
    assert state(folder) == before


def test_with_wrapped_functions_nothing_that_was_there_changes(folder: Path) -> None:
    before = state(folder)
    job = Profiled(folder, "--no-overlay", "--keep-writes", FILES, "end").ended(3)
    assert "all is as the script expects" in job.out, job.err
    after = state(folder)
    assert {name: after.get(name) for name in before} == before
    aside = job.run / "scratch" / str(folder).lstrip("/")
    assert (aside / "private.txt").stat().st_mode & 0o777 == 0o600, "a copy is no more public than the file"
    assert any("wrapping" in note for note in texts(job.manifest["notes"]))


# Names that are arguments of functions of os, io, shutil and tempfile which take paths.
PATHS = {"path", "src", "dst", "file", "name", "top", "old", "new", "filename", "base_name", "dir", "root_dir"}
DERIVED = {
    # made of wrapped functions
    *("os.makedirs", "os.removedirs", "os.renames", "os.walk", "os.fwalk", "tempfile.NamedTemporaryFile"),
    *("tempfile.SpooledTemporaryFile", "tempfile.TemporaryDirectory", "tempfile.TemporaryFile", "tempfile.mkdtemp"),
    *("tempfile.mkstemp", "tempfile.mktemp", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copymode"),
    *("shutil.copystat", "shutil.copytree", "shutil.move", "shutil.make_archive", "shutil.unpack_archive"),
    *("shutil.chown", "shutil.disk_usage", "shutil.which"),
    # paths of programs, of folders to go to, or no paths at all
    *("os.chdir", "os.chroot", "os.fsencode", "os.fsdecode", "os.fspath", "os.memfd_create", "os.fpathconf"),
    *("os.confstr", "os.sysconf", "os.putenv", "os.unsetenv", "os.copy_file_range", "os.splice"),
    *(
        f"os.{kind}{suffix}"
        for kind in ("exec", "spawn")
        for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")
    ),
    *("shutil.register_archive_format", "shutil.register_unpack_format", "shutil.unregister_archive_format"),
    "shutil.unregister_unpack_format",
}
CHECK = """
import inspect, io, os, pickle, shutil, sqlite3, sys, tempfile
from pathlib import Path
modules = (os, io, shutil, tempfile)
def of(module):
    for name in dir(module):
        if not name.startswith("_") and callable(getattr(module, name)):
            try:
                yield name, getattr(module, name), inspect.signature(getattr(module, name))
            except (TypeError, ValueError):
                yield name, getattr(module, name), None
before = {(m.__name__, name): (function, signature) for m in modules for name, function, signature in of(m)}
from stallwise.record.ablate._guards import guard_files
from stallwise.record.ablate._scratch import ScratchFolder
guard_files(ScratchFolder(Path(sys.argv[1]), began_s=0.0))
for (module, name), (function, signature) in before.items():
    now = getattr(sys.modules[module], name)
    if now is function:
        print("same", f"{module}.{name}", *(signature.parameters if signature else ()))
        continue
    print("wrapped", f"{module}.{name}")
    if name != "FileIO":
        assert signature is None or inspect.signature(now) == signature, name
        assert now.__doc__ == function.__doc__, name
    assert pickle.loads(pickle.dumps(now)) is now, name
assert pickle.loads(pickle.dumps(sqlite3.connect)) is sqlite3.connect
assert open is io.open and isinstance(open(os.devnull, "rb", buffering=0), io.FileIO)
"""


def test_every_function_that_takes_a_path_is_wrapped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHECK, str(tmp_path / "scratch")],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    wrapped = {name for kind, name, *_ in lines if kind == "wrapped"}
    open_ended = {name for kind, name, *arguments in lines if kind == "same" and PATHS & set(arguments)}
    assert open_ended <= DERIVED, open_ended - DERIVED
    named = (*READ, *READ_LINK, *CHANGE, *CREATE, *SPECIAL)
    assert wrapped == {*(f"os.{name}" for name in named), "io.open", "io.open_code", "io.FileIO", "shutil.rmtree"}


def test_mounts_are_read_with_their_kinds(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "23 22 0:5 / /proc rw - proc proc rw\n"
        "24 22 0:6 / /data\\040set rw - nfs4 server:/x rw\n"
        "25 22 0:7 / /ro ro - ext4 /dev/b rw\n"
        "26 22 0:8 / /run/user rw - tmpfs tmpfs rw\n"
    )
    assert [(mount.point, mount.is_real) for mount in mounts(str(table))] == [
        ("/", True),
        ("/data set", True),
        ("/proc", False),
        ("/ro", False),
        ("/run/user", False),
    ]


def test_where_an_overlay_cannot_be_functions_are_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = str(tmp_path / "train.py")
    declined = RecordSettings(folder=str(tmp_path / "run"), overlay=False)
    for settings, folder, nodes in (
        (declined, tmp_path / "run", 1),
        (RecordSettings(folder="."), tmp_path, 1),
        (RecordSettings(folder="run"), tmp_path / "run", 2),
    ):
        protection = protect_files(settings, folder=folder, script=script, nodes=nodes)
        assert protection.kind == "interposed"
        assert "wrapping" in protection.notes[0]
    allowed = RecordSettings(folder="run", allow_writes=True)
    assert protect_files(allowed, folder=tmp_path / "run", script=script, nodes=1).kind == "as they are"
