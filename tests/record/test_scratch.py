"""What a script saves while it is profiled is there for the script, and nowhere else."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.conftest import lacks
from tests.record.jobs import JOBS, Profiled

SAVES = str(JOBS / "saves.py")
ASIDE = ("--no-overlay", "--keep-writes")
SAVED = ("by_path.pt", "by_keyword.pt", "by_pathlib.pt", "by_file.pt", "by_path_open.ckpt", "atomic.pt", "rotated.pt")
OLD = (*SAVED, "copied.pt", "old_1.pt", "old_2.pt", "old_checkpoints/last.pt", "shared.pt")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with results of earlier, real runs."""
    (tmp_path / "old_checkpoints").mkdir()
    for name in OLD:
        (tmp_path / name).write_text(name)
    (tmp_path / "metrics.json").write_text("old metrics")
    (tmp_path / "log.txt").write_text("old line\n")
    (tmp_path / "untouched.txt").write_text("old")
    return tmp_path


def contents(folder: Path, besides: str) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: data for name, data in named.items() if not name.startswith(besides)}


def test_the_users_files_are_untouched_and_the_script_sees_its_own(folder: Path) -> None:
    before = contents(folder, "run")
    job = Profiled(folder, *ASIDE, "--max-time", "0.5s", SAVES).ended(0)
    assert "all is as the script expects" in job.out, job.err
    after = contents(folder, "run")
    assert after.pop("own.log") == b"mine"
    assert after == before
    assert not (folder / "made").exists(), "folders made for checkpoints do not stay behind empty"
    aside = job.run / "scratch" / str(folder).lstrip("/")
    assert all((aside / name).stat().st_size > 100 for name in SAVED)
    events = (job.run / "events.npz").stat().st_size
    assert events > 0


@pytest.mark.soak
def test_with_allow_writes_they_go_where_the_script_says(folder: Path) -> None:
    job = Profiled(folder, "--max-time", "0.5s", "--allow-writes", SAVES, "end").ended(3)
    assert "all is as the script expects" in job.out, job.err
    assert (folder / "by_path.pt").stat().st_size > 100
    assert not (folder / "old_1.pt").exists()
    assert not (job.run / "scratch").exists()


def test_distributed_checkpoints_of_two_ranks_go_aside(folder: Path) -> None:
    before = contents(folder, "run")
    job = Profiled(folder, *ASIDE, "--max-time", "0.5s", "--nproc-per-node", "2", SAVES).ended(0)
    assert contents(folder, "run") == before
    aside = job.run / "scratch" / str(folder).lstrip("/")
    assert (aside / "distributed/.metadata").exists()
    assert (aside / "distributed_2/.metadata").exists()
    assert not (folder / "distributed").exists()


def test_safetensors_go_aside(tmp_path: Path) -> None:
    if importlib.util.find_spec("safetensors") is None:
        lacks("safetensors")
    script = tmp_path / "save.py"
    script.write_text(
        "import torch\nfrom safetensors.torch import load_file, save_file\n"
        "save_file({'w': torch.ones(2)}, 'w.safetensors')\n"
        "print(load_file('w.safetensors')['w'].sum().item())\n"
    )
    job = Profiled(tmp_path, str(script)).ended(3)
    assert job.out.startswith("2.0")
    assert job.litter("save.py") == []


def test_secrets_in_arguments_do_not_reach_the_record(tmp_path: Path) -> None:
    secret = "hf_" + "abcdefghijklmnopqrstuvwxyz"
    script = str(JOBS / "no_training.py")
    job = Profiled(tmp_path, script, "--api-key", "hunter2", f"--hub-token={secret}", "--lr", "0.1").ended(3)
    assert job.manifest["job"]["arguments"] == ["--api-key", "***", "--hub-token=***", "--lr", "0.1"]
    everything = b"".join(contents(tmp_path, "nothing").values())
    assert b"hunter2" not in everything
    assert secret.encode() not in everything
    assert json.dumps(job.shown()).count("hunter2") == 0
