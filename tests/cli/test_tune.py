"""`stallwise tune` on real jobs: a loader that waits, a job that computes, one that fails, one that is stopped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import Cli, texts
from tests.figures import Figures
from tests.record.jobs import wait_for_line
from tests.sentences import coded
from tests.waiting import until

JOB = """
import time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Waits(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        FAULT
        time.sleep(WAIT_S)
        return torch.full((4,), float(index))

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(Waits(), batch_size=4, ORDER)
for step, batch in enumerate(loader):
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    COMPUTE
    if step % 40 == 10:
        torch.save(model.state_dict(), "last.pt")
"""

TOKENS = """
import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(60)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
data = torch.randn(1000, 16)
while True:
    loss = model(data[torch.randint(0, 1000, (4,))]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

DDP = """
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
import time

class Waits(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((256,), float(index))

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
data = Waits()
for batch in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


SPIN = """until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass"""
"""As much as a network that computes: beside workers it has less of the cores. Tests whose times do not count sleep."""


def job(
    folder: Path,
    *,
    wait_s: float = 0.02,
    compute: str = "time.sleep(0.02)",
    order: str = "shuffle=True",
    fault: str = "pass",
) -> str:
    """Four waits and one compute a step, with no worker."""
    values = {"WAIT_S": str(wait_s), "COMPUTE": compute, "ORDER": order, "FAULT": fault}
    text = JOB
    for name, value in values.items():
        text = text.replace(name, value)
    (folder / "train.py").write_text(text)
    return "train.py"


def left_behind(folder: Path) -> list[str]:
    """Hidden folders of trials, and checkpoints that should have gone to scratch."""
    return [str(path) for path in (*folder.glob("stallwise-runs/.tune-*"), *folder.glob("*.pt"))]


@pytest.mark.truth
def test_a_loader_that_waits_gets_workers_that_help(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    script = job(tmp_path, compute=SPIN)  # 100 ms a step, of which 20 compute
    found = coded(cli("tune", "--json", "--max-time", "60s", script).stdout)
    assert found["binds"] == "fetch"
    workers = found["kept"]["num_workers"]
    assert workers >= 2
    figures.at_least("tune: gain of workers", found["gain"], 0.5, unit="")
    # The bar of issue 7, written before this was measured.
    figures.judge("tune: predicted gain of workers", found["predicted_gain"], found["gain"], abs=0.15, unit="")
    assert found["patch"] == ["# train.py, line 17", f"DataLoader(…, num_workers={workers})"]
    assert left_behind(tmp_path) == []
    assert [path.name for path in (tmp_path / "stallwise-runs").iterdir()] == [Path(found["run"]).name]


@pytest.mark.truth
@pytest.mark.soak
def test_a_job_that_computes_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", "--max-time", "40s", job(tmp_path, wait_s=0.0, compute=SPIN))
    assert "The step is compute" in done.stdout
    assert "Nothing was tried; change nothing." in " ".join(done.stdout.split())
    assert "to paste" not in done.stdout


@pytest.mark.truth
@pytest.mark.soak
def test_a_loader_with_an_order_of_its_own_is_launched_anew(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    script = job(tmp_path, compute=SPIN, order="sampler=list(range(4000))")
    done = cli("tune", "--json", "--max-time", "100s", script)
    found = coded(done.stdout)
    assert "launch 2 of" in done.stderr
    assert found["kept"]["num_workers"] >= 2
    figures.judge("tune: predicted gain, launched anew", found["predicted_gain"], found["gain"], abs=0.15, unit="")
    assert left_behind(tmp_path) == []


@pytest.mark.truth
@pytest.mark.soak
def test_all_ranks_switch_together(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    done = cli("tune", "--max-time", "100s", "--nproc-per-node", "2", "train.py")
    assert "per rank: " in done.stdout
    assert "num_workers=" in done.stdout.partition("to paste")[2]


def test_a_job_without_a_loader_gets_a_fused_optimizer_tried(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TOKENS)
    result = json.loads(cli("tune", "--json", "--max-time", "3min", "train.py").stdout)
    assert [one["settings"] for one in result["proposals"]] == [{"fused_optimizer": True}]
    (attempt,) = result["attempts"]
    assert attempt["before"]["step_s"] > attempt["after"]["step_s"]  # 3 times as long on a quiet machine
    assert result["patch"] == ["AdamW(…, fused=True)"] if attempt["kept"] else result["patch"] == []


def test_a_dry_run_only_predicts(cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", "--dry-run", "--json", "--max-time", "20s", job(tmp_path))
    found = coded(done.stdout)
    assert found["proposals"]
    assert found["attempts"] == []
    assert found["kept"] == {}
    assert found["gain"] is None
    assert "trying" not in done.stderr


def test_a_trial_that_fails_keeps_the_settings_as_they_were(cli: Cli, tmp_path: Path) -> None:
    script = job(tmp_path, fault="assert get_worker_info() is None, 'no workers here'")
    found = coded(cli("tune", "--json", "--max-time", "120s", script).stdout)
    assert found["kept"] == {}
    assert found["patch"] == []
    assert any("failed: exit code 1" in note and "no workers here" in note for note in texts(found["notes"])), found[
        "notes"
    ]
    assert left_behind(tmp_path) == []


def test_a_job_that_fails_ends_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    done = cli("tune", "train.py", code=3)
    assert "exit code 3" in done.stderr
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    "sent",
    [signal.SIGINT, *(pytest.param(sent, marks=pytest.mark.soak) for sent in (signal.SIGKILL, signal.SIGTERM))],
    ids=str,
)
def test_stopped_in_a_trial_nothing_is_left(tmp_path: Path, sent: signal.Signals) -> None:
    # It is stopped in its first trial: the time is only there for a slow machine to come to one.
    command = [sys.executable, "-m", "stallwise", "tune", "--max-time", "10min", job(tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tune:
        wait_for_line(tune, "trying")
        started = until(lambda: [one for one in psutil.Process(tune.pid).children(recursive=True) if is_job(one)])
        os.kill(tune.pid, sent)
        _, said = tune.communicate(timeout=250)
    assert tune.returncode == (-signal.SIGKILL if sent == signal.SIGKILL else 130), said
    # Loader workers look for their parent every few seconds.
    until(lambda: not any(is_alive(one) for one in started))
    until(lambda: left_behind(tmp_path) == [])


def is_job(process: psutil.Process) -> bool:
    """Whether it runs the script, and still does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "stallwise.tune" in process.cmdline()
    return False


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_bad_usage_is_said(cli: Cli, tmp_path: Path) -> None:
    assert "There is no script gone.py" in cli("tune", "gone.py", code=2).stderr
    assert "--max-time takes a time above 0" in cli("tune", "--max-time", "0s", "gone.py", code=2).stderr
    assert not (tmp_path / "stallwise-runs").exists()
