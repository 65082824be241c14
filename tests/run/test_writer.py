import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise.errors import RunError
from stallwise.run import BatchRow, EventRow, RankWriter, Run, join, start_run
from stallwise.run.manifest import JobRecord, new_manifest
from tests.run.lines import line_of
from tests.run.made import begin, make_run, step, write_rank

ROOT = Path(__file__).parents[2]

# A whole life of a run: launcher, rank, join. It says where it is, so that kills can be aimed; with a second argument
# it stops in the middle of the rank's rows until it is killed.
LIFE = """
import sys
from pathlib import Path
from tests.run.made import begin, step
from stallwise.run import RankWriter, join
import numpy
folder = Path(sys.argv[1])
print("ready", flush=True)
begin(folder)
with RankWriter.open(folder, 0, flush_rows=50) as writer:
    for number in range(2000):
        writer.append("steps", step(0, number, 0.1, block=number // 100))
        if number == 1000 and sys.argv[2:]:
            print("half", flush=True)
            sys.stdin.read()
join(folder, exit_code=0)
print("joined", flush=True)
"""


def _start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LIFE, str(folder), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert line_of(process) == "ready\n"
    return process


def _killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=250)


@pytest.mark.parametrize("kills", [4, pytest.param(15, marks=pytest.mark.soak)])
def test_killed_at_any_moment_leaves_nothing_or_a_readable_run(tmp_path: Path, kills: int) -> None:
    with _start(tmp_path / "undisturbed") as whole:
        begun = time.monotonic()
        assert line_of(whole) == "joined\n"
        life_s = time.monotonic() - begun
        whole.communicate(timeout=250)
    with _start(tmp_path / "half", "half") as process:
        assert line_of(process) == "half\n"
        _killed(process)
    assert _state_after(tmp_path / "half") == "recording"
    generator = random.Random(7)
    for number in range(kills):
        folder = tmp_path / str(number)
        with _start(folder) as process:
            # From the first instant to past the end, so that beginning, writing and joining are all hit.
            time.sleep(max(0.0, life_s * (number + generator.uniform(-1, 1)) / (kills - 2)))
            _killed(process)
        assert _state_after(folder) in {"absent", "recording", "complete"}


def _state_after(folder: Path) -> str:
    try:
        run = Run.open(folder)
    except RunError:
        assert not (folder / "manifest.json").exists()
        return "absent"
    steps = run.table("steps")["step"].to_list()
    assert steps == list(range(len(steps))), "rows are a whole beginning of what was appended"
    assert len(steps) % 50 == 0
    assert (run.manifest.state != "complete") == (run.partial_reason is not None)
    state = run.manifest.state
    joined = join(folder)
    assert Run.open(folder).table("steps")["step"].to_list() == steps
    assert joined.state == ("complete" if len(steps) == 2000 and run.manifest.ranks[0].finished else "partial")
    return state


@pytest.mark.parametrize("stop_before", ["tables", "manifest", "rename", "removal"])
def test_join_stopped_between_any_two_steps_ends_the_same(tmp_path: Path, stop_before: str) -> None:
    """Real process, killed by itself at the exact spot."""
    begin(tmp_path / "run", ranks=2)
    for rank in range(2):
        write_rank(tmp_path / "run", rank, [0.1, 0.2])
    before = _steps(tmp_path / "run")
    target = {
        "tables": "join._write_table",
        "manifest": "join.encode",
        "rename": "join._put_away_parts",
        "removal": "join.flush_folder",
    }[stop_before]
    module, name = target.rsplit(".", 1)
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nimport importlib\n"
        "join = importlib.import_module('stallwise.run.join')\n"
        f"setattr({module}, {name!r}, lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL))\n"
        "join.join(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], timeout=250)
    assert done.returncode == -signal.SIGKILL
    assert _steps(tmp_path / "run") == before
    assert join(tmp_path / "run").state == "complete"
    assert _steps(tmp_path / "run") == before
    assert not (tmp_path / "run" / "parts").exists()
    assert not list((tmp_path / "run").glob(".parts*"))


def _steps(folder: Path) -> list[tuple[Any, ...]]:
    return list(Run.open(folder).table("steps").rows())


def test_ranks_write_at_the_same_time(tmp_path: Path) -> None:
    begin(tmp_path, ranks=4)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=write_rank, args=(tmp_path, rank, [0.1] * 10)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    manifest = join(tmp_path, exit_code=0)
    assert manifest.state == "complete"
    assert manifest.counts.ranks_seen == 4
    assert manifest.counts.steps == 41
    assert manifest.counts.samples == 41 * 4 * 32
    assert manifest.tables["steps"] == 41 * 4
    assert (manifest.phases[0].steps, manifest.phases[0].blocks) == (40, 10)


def test_all_tables_come_back_as_written(tmp_path: Path) -> None:
    begin(tmp_path)
    batch = BatchRow(rank=0, worker=None, batch=0, wall_s=1, cpu_s=0.5, read_bytes=10)
    event = EventRow(rank=0, kind="checkpoint", start_s=1.5, duration_s=2, detail="model.pt")
    with RankWriter.open(tmp_path, 0) as writer:
        writer.append("batches", batch)
        writer.append("events", event)
    join(tmp_path)
    assert list(Run.open(tmp_path).table("batches").rows()) == [tuple(batch)]
    assert list(Run.open(tmp_path).table("events").rows()) == [tuple(event)]


def test_a_rank_that_fails_says_so_without_its_message(tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(ValueError, match="hunter2"), RankWriter.open(tmp_path, 0):
        raise ValueError("hunter2")
    manifest = join(tmp_path, exit_code=1)
    assert manifest.state == "partial"
    assert manifest.job.exit_code == 1
    assert "Rank 0 stopped before its end: it ended with ValueError." in str(manifest.partial_reason)
    assert "hunter2" not in (tmp_path / "manifest.json").read_text()


def test_a_restarted_rank_continues_its_part(tmp_path: Path) -> None:
    begin(tmp_path)
    for start in (0, 10):
        writer = RankWriter.open(tmp_path, 0)
        for number in range(start, start + 10):
            writer.append("steps", step(0, number, 0.1))
        writer.close()
    join(tmp_path)
    assert Run.open(tmp_path).table("steps")["step"].to_list() == list(range(20))


POLARS_IN_WORKER = """
import os, signal, sys
from pathlib import Path
from tests.run.made import begin, step
from stallwise.run import RankWriter
begin(Path(sys.argv[1]))
writer = RankWriter.open(Path(sys.argv[1]), 0)
writer.append("steps", step(0, 0, 0.1))
writer.flush()
assert "polars" not in sys.modules
if os.fork() == 0:
    signal.alarm(20)
    import polars
    frame = polars.DataFrame({"a": list(range(100_000))}).with_columns(b=polars.col("a") % 7)
    frame.group_by("b").agg(polars.col("a").sum())
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0, "the worker hung"
"""


def test_a_loader_worker_may_use_polars(tmp_path: Path) -> None:
    """A thread pool of ours in the training process would hang the user's own use of it after a fork."""
    subprocess.run([sys.executable, "-c", POLARS_IN_WORKER, str(tmp_path)], cwd=ROOT, check=True, timeout=250)


def test_numpy_scalars_can_be_appended(tmp_path: Path) -> None:
    begin(tmp_path)
    with RankWriter.open(tmp_path, 0) as writer:
        writer.append("steps", step(0, np.int64(3), np.float32(0.5)))  # type: ignore[arg-type]
    assert Run.open(tmp_path).table("steps")["duration_s"].to_list() == [0.5]
    assert Run.open(tmp_path).table("steps")["step"].to_list() == [3]


FORK = """
import os, sys
from pathlib import Path
from tests.run.made import begin, step
from stallwise.run import RankWriter
folder = Path(sys.argv[1])
begin(folder)
writer = RankWriter.open(folder, 0)
writer.append("steps", step(0, 0, 0.1))
if os.fork() == 0:
    writer.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], cwd=ROOT, check=True, timeout=250)
    run = Run.open(tmp_path)
    assert not run.manifest.ranks[0].finished
    assert run.table("steps").height == 0


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    before = make_run(tmp_path, [0.1])
    with pytest.raises(RunError, match="already holds a run"):
        begin(tmp_path)
    with pytest.raises(RunError, match="already joined"):
        RankWriter.open(tmp_path, 0)
    assert Run.open(tmp_path).manifest == before


def test_unwritable_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written") as caught:
        start_run(tmp_path / "file" / "run", new_manifest(JobRecord(script="train.py")))
    assert "choose another folder" in str(caught.value)
    with pytest.raises(RunError, match="cannot be written"):
        start_run(Path("/proc/stallwise-run"), new_manifest(JobRecord(script="train.py")))


def test_importing_the_writer_does_not_import_polars_or_numpy() -> None:
    code = "import sys, stallwise.run; print({'polars', 'numpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout == "set()\n", done.stderr
