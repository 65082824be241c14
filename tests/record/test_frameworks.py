"""Scripts of Hugging Face's Trainer, Lightning and Accelerate, unmodified: measured right, and nothing harmed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, lacks
from tests.figures import Figures
from tests.record.jobs import JOBS, Profiled
from tests.record.test_scratch import contents

# Written before the first measurement.
WITHIN = 0.15
BLOCKED_S = 0.05
# What a real training left behind, under the names that the profiled one saves to as well.
OLD = {
    "hf_trainer.py": ("model/checkpoint-45/config.json", "model/checkpoint-45/model.safetensors", "final/config.json"),
    "lightning_job.py": ("model/last.ckpt", "final.ckpt", "logs/lightning_logs/version_0/metrics.csv"),
    "accelerate_job.py": ("state/model.safetensors", "state/optimizer.bin", "final.pt"),
}


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate", "lightning")):
        lacks("the extra `frameworks`")


def bare_s(folder: Path, script: str, *options: str) -> tuple[float, float]:
    """The script by itself: its own mean step while the loader is slow, and when it no longer is."""
    folder.mkdir(parents=True)
    done = run_plain(folder, script, "--steps", "100", "--until", "50", *options)
    assert done.returncode == 0, done.stderr
    found = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step_s"'))
    return found["step_s"], found["plain_s"]


def leave_old_files(folder: Path, script: str) -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in OLD[script]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"a real {name}")
    return contents(folder, "run")


@pytest.mark.truth
@pytest.mark.parametrize(
    # `make soak` has the others: all hand their batches on through the same loader.
    "script",
    [script if script == "lightning_job.py" else pytest.param(script, marks=pytest.mark.soak) for script in OLD],
)
def test_a_slow_loader_is_found_as_the_bare_script_shows_it(tmp_path: Path, script: str, figures: Figures) -> None:
    """The bare script with a loader that is slow and then is not, beside the profile of the slow one."""
    blocked = ("--every", "45", "--blocked", str(BLOCKED_S))
    slow_s, plain_s = bare_s(tmp_path / "bare", script, *blocked)
    before = leave_old_files(tmp_path / "profiled", script)
    options = ("--json", "--no-cold", "--max-time", "3s")
    job = Profiled(tmp_path / "profiled", *options, str(JOBS / script), *blocked).ended(0)
    assert contents(tmp_path / "profiled", "run") == before, "what was there is untouched, and nothing new beside it"
    found = json.loads(job.out)
    figures.judge(f"{script}: step", found["step_s"], slow_s, rel=WITHIN)
    figures.judge(f"{script}: fetch", found["split"]["fetch"]["s"], slow_s - plain_s, abs=WITHIN * slow_s)
    figures.at_most(f"{script}: prep, nothing injected", found["split"]["prep"]["s"], WITHIN * slow_s)


def test_ranks_that_lightning_starts_itself_take_part(tmp_path: Path) -> None:
    before = leave_old_files(tmp_path, "lightning_job.py")
    script = (str(JOBS / "lightning_job.py"), "--devices", "2", "--every", "30", "--accumulate", "2")
    job = Profiled(tmp_path, "--json", "--max-time", "1s", *script).ended(0)
    found = json.loads(job.out)
    assert found["step_s"] >= 0.04, "two batches of at least 20 ms each"
    assert found["split"]["interconnect"] is not None
    shown = job.shown()
    assert shown["state"] == "complete", shown["partial_reason"]
    assert shown["counts"]["ranks_seen"] == shown["world"]["world_size"] == 2
    assert contents(tmp_path, "run") == before


def test_ranks_that_would_not_take_part_are_refused(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import os, sys, torch.distributed as dist\n"
        "if len(sys.argv) == 1:\n"
        "    import subprocess\n"
        "    subprocess.Popen([sys.executable, __file__, 'other'])\n"
        "dist.init_process_group('gloo', 'file://' + os.path.abspath('meet'), rank=len(sys.argv) - 1, world_size=2)\n"
    )
    job = Profiled(tmp_path, "half.py").ended(3)
    assert "The job has 2 ranks, of which 1 would be profiled" in job.err
    assert "nproc_per_node" in job.err


@pytest.mark.soak
def test_accelerate_launch_starts_the_recorder(tmp_path: Path, cli: Cli) -> None:
    """Its dispatching loader too: rank 0 reads a stream without length and sends every rank its share."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    script = [str(JOBS / "accelerate_job.py"), "--streamed", "--steps", "130"]
    done = subprocess.run(
        [*launch, "-m", "stallwise.record", *script],
        cwd=tmp_path,
        env=os.environ | {"STALLWISE_RUN": "mine", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(cli("run", "join", "--json", "mine").stdout)
    assert found["state"] == "complete", found["partial_reason"]
    assert found["counts"]["ranks_seen"] == 2
    steps = {phase["name"]: phase["steps"] for phase in found["phases"]}
    assert steps["as is"] > 0
    assert steps["replay from host"] > 0
    assert steps["no exchange"] > 0


def run_plain(folder: Path, script: str, *options: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
    """A script that profiles itself, under plain Python or torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return subprocess.run(
        [sys.executable, *torchrun, str(JOBS / script), *options],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )


def report_of(cli: Cli, run: Path) -> dict[str, Any]:
    return json.loads(cli("report", "--json", str(run)).stdout)  # type: ignore[no-any-return]


def test_a_callback_in_the_trainer_takes_two_ranks_apart(tmp_path: Path, cli: Cli) -> None:
    options = ("--callback", "full", "--accumulate", "2", "--every", "25")
    done = run_plain(tmp_path, "hf_trainer.py", *options, ranks=2)
    assert done.returncode == 0, done.stderr
    assert f"stallwise report {tmp_path / 'run'}" in done.stderr
    found = report_of(cli, tmp_path / "run")
    assert found["step_s"] >= 0.04, "two batches of at least 20 ms each"
    assert found["split"]["interconnect"] is not None
    assert found["split"]["prep"] is not None
    shown = json.loads(cli("report", "--detail", "--json", str(tmp_path / "run")).stdout)
    assert shown["state"] == "complete", shown["partial_reason"]
    assert shown["counts"]["ranks_seen"] == 2
    assert not [path for path in (tmp_path / "model").rglob("*") if path.is_file()], "checkpoints go aside"
    assert (tmp_path / "final/model.safetensors").stat().st_size > 100, "afterwards files go where the script says"


@pytest.mark.truth
@pytest.mark.soak
def test_a_callback_in_lightning_only_watches(tmp_path: Path, cli: Cli, figures: Figures) -> None:
    done = run_plain(tmp_path, "lightning_job.py", "--callback", "light", "--steps", "60", "--every", "25")
    assert done.returncode == 0, done.stderr
    own_s = json.loads(done.stdout.splitlines()[-1])
    assert own_s["steps"] > 40, "the training went on to its end"
    step_s = report_of(cli, tmp_path / "run")["step_s"]
    figures.judge("Lightning's light callback: step", step_s, own_s["step_s"], rel=WITHIN)
    assert (tmp_path / "model/last.ckpt").exists(), "and saved where the script says"


def test_a_block_of_code_is_taken_apart_and_left(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/manifest.json").write_text("{}")
    done = run_plain(tmp_path, "accelerate_job.py", "--callback", "full")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "state").exists(), "states saved in the block go aside"
    assert (tmp_path / "run/manifest.json").read_text() == "{}", "a run is never overwritten"
    found = report_of(cli, tmp_path / "run-2")
    assert found["step_s"] >= 0.02
    assert found["split"]["prep"] is not None


@pytest.mark.soak
def test_a_profiled_script_with_a_callback_is_profiled_once(tmp_path: Path) -> None:
    script = (str(JOBS / "accelerate_job.py"), "--callback", "full", "--every", "30")
    job = Profiled(tmp_path, "--max-time", "0.8s", *script, out="outer").ended(0)
    assert job.litter() == [], "no run of its own"


def test_a_failing_training_leaves_a_partial_run(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "fails.py").write_text(
        "import torch, stallwise\n"
        "from torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with stallwise.profiling('run'):\n"
        "    for n, batch in enumerate(DataLoader(torch.rand(80, 4), batch_size=2)):\n"
        "        model(batch).sum().backward()\n"
        "        optimizer.step()\n"
        "        if n == 30:\n"
        "            import sys\n"
        "            assert 'polars' not in sys.modules\n"
        "            raise RuntimeError('no more')\n"
    )
    done = subprocess.run([sys.executable, "fails.py"], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 1
    assert "RuntimeError: no more" in done.stderr
    shown = json.loads(cli("report", "--detail", "--json", "run").stdout)
    assert shown["state"] == "partial"
    assert "RuntimeError" in shown["partial_reason"]["text"]
    assert shown["counts"]["steps"] > 20


def test_importing_the_callbacks_names_what_is_missing() -> None:
    code = "import sys; sys.modules['transformers'] = None; import stallwise; stallwise.TrainerCallback"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert "MissingFeatureError" in done.stderr
    assert "stallwise[frameworks]" in done.stderr
