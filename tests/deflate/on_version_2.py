"""Real control groups of version 2, for a machine that has them: root, and a cpu and a memory controller to write to.

    python -m tests.deflate.on_version_2

Prints a line per check and ends with 0 where all hold. It is a program and no test, because a kernel mounts one version
of a controller: where `test_act` runs on version 1 this cannot run, and the other way round.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stallwise.deflate.processes import busy_cores, tree_of
from tests.deflate.groups import busy_pair, group, home_of, made_for, process, until

ROOT = Path("/sys/fs/cgroup")
HOLDS = "import time\nheld = bytearray(200_000_000)\ntime.sleep(600)"


def deflate(*words: str, code: int = 0) -> str:
    """The real command."""
    done = subprocess.run(
        [sys.executable, "-m", "stallwise", "deflate", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def cores(pid: int) -> float:
    """That a process and what it forked use."""
    return busy_cores(lambda: tree_of(pid), 2.0)


def test_held_and_given_back() -> str:
    """Quota, period, cores really used, home and nothing left."""
    with busy_pair() as pid:
        homes, free = {one: home_of(one) for one in tree_of(pid)}, cores(pid)
        deflate(str(pid), "--cpu", "0.5cores")
        (made,) = made_for(pid)
        limit, held = (made / "cpu.max").read_text().split(), cores(pid)
        deflate(str(pid), "--undo")
        assert {one: home_of(one) for one in homes} == homes
        assert not made_for(pid)
        assert limit == ["5000", "10000"], limit
        assert held < 0.55 < 1.5 < free, (held, free)
        return f"{free:.2f} cores, held to 0.5: {held:.2f}, given back: {cores(pid):.2f}"


def test_a_group_has_its_own_words_back() -> str:
    """Also of its memory."""
    with group("stallwise-try", ROOT) as path, busy_pair() as pid:
        for one in tree_of(pid):
            (path / "cgroup.procs").write_text(str(one))
        (path / "cpu.max").write_text("80000 100000")
        before = [(path / name).read_text() for name in ("cpu.max", "memory.max")]
        deflate("/stallwise-try", "--cpu", "50%", "--memory", "1GiB")
        now = [(path / name).read_text().split() for name in ("cpu.max", "memory.max")]
        deflate("/stallwise-try", "--undo")
        assert now == [["4000", "10000"], [str(1 << 30)]], now
        assert [(path / name).read_text() for name in ("cpu.max", "memory.max")] == before
        os.killpg(pid, signal.SIGKILL)
        return "0.8 cores to 0.4 and back, memory too"


def test_a_killed_job_leaves_nothing() -> str:
    """The keeper sees to it."""
    with busy_pair() as pid:
        deflate(str(pid), "--cpu", "0.5cores")
        os.killpg(pid, signal.SIGKILL)
        began_s = time.monotonic()
        os.waitpid(pid, 0)
        until(lambda: not made_for(pid))
        return f"gone after {time.monotonic() - began_s:.1f} s"


def test_what_cannot_be() -> str:
    """One sentence each, exit code 2, nothing changed."""
    with process(HOLDS) as pid:
        time.sleep(0.5)
        said = [deflate(str(pid), "--cpu", "0.01cores", code=2), deflate(str(pid), "--memory", "50MB", code=2)]
        assert not made_for(pid)
    said.append(deflate("/no-such-group", "--cpu", "0.5cores", code=2))
    return " / ".join(re.sub(r"\s+", " ", one).strip() for one in said)


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Not the machine's."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"STALLWISE_DEFLATED": f"{folder}/deflated", "STALLWISE_DOORS": f"{folder}/doors"}
        yield


def main() -> int:
    """Every check."""
    failed = 0
    with own_state():
        for name, check in list(globals().items()):
            if name.startswith("test_"):
                try:
                    print(f"{name}: {check()}", flush=True)
                except (AssertionError, OSError, ValueError) as error:
                    failed += 1
                    print(f"{name}: FAILED {type(error).__name__}: {error}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
