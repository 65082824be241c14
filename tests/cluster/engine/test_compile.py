"""What is compiled is kept, once for all processes that start together, and replaced where it cannot be read."""

import pickle
import subprocess
import sys
from pathlib import Path

import numba
import pytest

_MODULE = """
from stallwise.cluster.engine.compile import compiled, inner

@inner
def _square(x):
    return x * x

@compiled
def total(count):
    found = 0.0
    for i in range(count):
        found += _square(i)
    return found
"""
_MAIN = """
import pathlib, sys, time
from kept import total
here, ready = pathlib.Path(sys.argv[1]), int(sys.argv[2])
(here / f"ready{time.time_ns()}").touch()
while len(list(here.glob("ready*"))) < ready:
    time.sleep(0.001)
assert total(4) == 14.0
print(sum(total.stats.cache_misses.values()))
"""


@pytest.fixture
def start(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "kept.py").write_text(_MODULE)
    (tmp_path / "main.py").write_text(_MAIN)

    def begin(at_once: int) -> subprocess.Popen[str]:
        command = [sys.executable, "main.py", ".", str(at_once)]
        return subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return begin


def _misses(process: subprocess.Popen[str]) -> int:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    return int(out)


def test_of_processes_that_start_together_one_compiles(start) -> None:  # type: ignore[no-untyped-def]
    together = [start(3) for _ in range(3)]
    assert sum(_misses(process) for process in together) == 1
    assert _misses(start(1)) == 0


def test_what_cannot_be_read_is_compiled_anew(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert _misses(start(1)) == 1
    (index,) = (tmp_path / "__pycache__").glob("*.nbi")
    gone = b"cstallwise.cluster.kernels.state\nGoneSince\n."
    index.write_bytes(pickle.dumps(numba.__version__) + gone)
    assert _misses(start(1)) == 1
    assert _misses(start(1)) == 0
