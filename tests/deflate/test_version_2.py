"""Control groups of version 2, on a directory tree of the same shape: no machine here has its controllers.

The tree keeps what is written and, when a group is made or removed, makes or removes its files, as the kernel does.
What it cannot show is what the kernel makes of a limit. Moving a real process is tried on the real tree (no cpu there).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwise.deflate import act, journal
from stallwise.deflate.act import Amount, DeflationRequest
from stallwise.deflate.cgroups import ControlGroup, cpu_limits, group_of
from stallwise.errors import InputError
from tests.conftest import lacks
from tests.deflate.groups import IDLE, process


class Tree:
    """A machine with one version-2 tree, in which one real process lives."""

    def __init__(self, root: Path, pid: int, home: str) -> None:
        self.mount, self.proc, self.pid = root / "cgroup", root / "proc", pid
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(
            f"22 27 0:21 / /proc rw - proc proc rw\n31 22 0:28 / {self.mount} rw,nosuid - cgroup2 cgroup2 rw\n"
        )
        (self.proc / str(pid)).mkdir()
        shutil.copy(f"/proc/{pid}/stat", self.proc / str(pid) / "stat")
        (self.proc / str(pid) / "cgroup").write_text(f"0::/{home}\n")
        self.made("")
        path = ""
        for part in home.split("/"):
            path = f"{path}/{part}".lstrip("/")
            self.made(path)
        (self.mount / home / "cgroup.procs").write_text(f"{pid}\n")

    def made(self, name: str) -> Path:
        """A group with the files that the kernel puts there."""
        path = self.mount / name
        path.mkdir()
        files = {"cgroup.procs": "", "cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": "cpu memory\n"}
        limits = {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.stat": "anon 1000000\nshmem 5000\n"}
        for file, text in (files | limits if name else files).items():
            (path / file).write_text(text)
        return path


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(journal.STATE_VARIABLE, str(tmp_path / "deflated"))
    monkeypatch.setenv("STALLWISE_DOORS", str(tmp_path / "doors"))
    real = Path.rmdir

    def rmdir(path: Path) -> None:
        if path.is_relative_to(tmp_path / "machine") and not (path / "cgroup.procs").read_text().strip():
            shutil.rmtree(path)
        else:
            real(path)

    make = Path.mkdir

    def mkdir(path: Path, *words: object, **named: object) -> None:
        make(path, *words, **named)  # type: ignore[arg-type]
        if path.is_relative_to(tmp_path / "machine" / "cgroup"):
            (path / "cgroup.procs").touch()

    monkeypatch.setattr(Path, "rmdir", rmdir)
    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.fixture
def idle() -> Iterator[int]:
    with process(IDLE) as pid:
        yield pid


def test_one_alone_in_its_group_is_limited_there(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "jobs/one")
    own = tree.mount / "jobs/one"
    (own / "cpu.max").write_text("150000 100000\n")
    want = DeflationRequest(cpu=Amount(part=0.5), memory=Amount(amount=2**30), look_s=0.0)
    done = act.deflate(str(idle), want, proc=tree.proc)
    assert done.had_cores == 1.5
    assert (own / "cpu.max").read_text() == "7500 10000"
    assert (own / "memory.max").read_text() == str(2**30)
    act.undo(str(idle))
    assert (own / "cpu.max").read_text() == "150000 100000"
    assert (own / "memory.max").read_text() == "max"
    assert not list(journal.all_records())


def test_one_beside_others_gets_a_group_beside_them(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "jobs/one")
    home = tree.mount / "jobs/one"
    (home / "cgroup.procs").write_text(f"{idle}\n{os.getpid()}\n")
    act.deflate(str(idle), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0), proc=tree.proc)
    made = tree.mount / "jobs" / f"stallwise-deflate-{idle}"
    assert (made / "cpu.max").read_text() == "5000 10000"
    assert (made / "cgroup.procs").read_text() == str(idle)
    (made / "cgroup.procs").write_text("")  # the kernel's move is one; here it is two files
    act.undo(str(idle))
    assert not made.exists()
    assert (home / "cpu.max").read_text() == "max 100000\n", "the group of the others was not touched"


@pytest.mark.parametrize(
    ("file", "text"), [("memory.max", "1000000000\n"), ("pids.max", "100\n"), ("cpuset.cpus", "0-1\n")]
)
def test_nobody_escapes_the_limits_of_home(tmp_path: Path, idle: int, file: str, text: str) -> None:
    tree = Tree(tmp_path / "machine", idle, "jobs/one")
    home = tree.mount / "jobs/one"
    (home / "cgroup.procs").write_text(f"{idle}\n{os.getpid()}\n")
    (home / file).write_text(text)
    with pytest.raises(InputError, match=rf"limits of its own \({file}\).*Nothing was changed"):
        act.deflate(str(idle), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0), proc=tree.proc)
    assert not list(journal.all_records())
    assert sorted(path.name for path in (tree.mount / "jobs").iterdir() if path.is_dir()) == ["one"]


def test_a_group_that_hands_nothing_on_is_refused(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "jobs/one")
    (tree.mount / "jobs/one/cgroup.procs").write_text(f"{idle}\n1\n")
    (tree.mount / "jobs/cgroup.subtree_control").write_text("memory\n")
    with pytest.raises(InputError, match=r"does not hand the cpu controller on\. Write \+cpu into its"):
        act.deflate(str(idle), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0), proc=tree.proc)
    assert not list(journal.all_records())
    assert sorted(path.name for path in (tree.mount / "jobs").iterdir() if path.is_dir()) == ["one"]


def test_memory_that_is_held_is_not_taken(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "one")
    with pytest.raises(InputError, match="less than its processes hold"):
        act.deflate(str(idle), DeflationRequest(memory=Amount(amount=1_000_000)), proc=tree.proc)


def test_a_container_sees_its_own_part_of_the_tree(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "one")
    info = (tree.proc / "self" / "mountinfo").read_text()
    (tree.proc / "self" / "mountinfo").write_text(info.replace(f" / {tree.mount}", f" /pods/p1 {tree.mount}"))
    (tree.proc / str(idle) / "cgroup").write_text("0::/pods/p1/one\n")
    assert group_of(idle, "cpu", tree.proc) == ControlGroup("cpu", 2, tree.mount, tree.mount / "one")
    (tree.proc / str(idle) / "cgroup").write_text("0::/pods/p2\n")
    with pytest.raises(InputError, match="outside what is mounted here"):
        group_of(idle, "cpu", tree.proc)


def test_no_controller_is_said(tmp_path: Path, idle: int) -> None:
    tree = Tree(tmp_path / "machine", idle, "one")
    (tree.mount / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(InputError, match="No control groups with a cpu controller are mounted"):
        group_of(idle, "cpu", tree.proc)


def test_the_words_of_a_quota() -> None:
    assert cpu_limits(2, 1.5, 10_000) == {"cpu.max": "15000 10000"}
    assert cpu_limits(1, 0.1, 10_000) == {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "1000"}


def test_a_real_process_moves_in_the_real_tree(idle: int) -> None:
    mount = Path("/sys/fs/cgroup/unified")
    if os.geteuid() != 0 or not os.access(mount / "cgroup.procs", os.W_OK):
        lacks("root and a mounted tree of version 2")
    made = ControlGroup("cpu", 2, mount, mount / f"stallwise-test-{idle}")
    made.path.mkdir()
    try:
        made.take(idle)
        assert made.processes == [idle]
        assert f"0::/{made.path.name}\n" in Path(f"/proc/{idle}/cgroup").read_text()
    finally:
        made.parent.take(idle)
        made.path.rmdir()
    made.parent.take(2**22 + 1)  # one that has ended needs no moving
