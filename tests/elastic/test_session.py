"""Sessions of one rank in this process: what an interruption must not lose, and whose a folder is."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from stallwise import elastic
from stallwise.elastic import _checkpoints as checkpoints
from stallwise.elastic._manifest import CheckpointManifest
from stallwise.elastic._storage import FolderStore
from stallwise.elastic._tensors import read_parts, write_tensors
from stallwise.errors import InputError

BATCHES, WINDOW = 24, 8


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class _InterruptionError(Exception):
    pass


def _train(
    folder: Path,
    stop_at: int | None = None,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
    **settings: Any,
) -> torch.Tensor:
    """Eight steps to an update; returns the weights."""
    torch.manual_seed(3)
    model = torch.nn.Linear(5, 3)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    loader = torch.utils.data.DataLoader(torch.randn(BATCHES, 5), batch_size=1)
    with elastic.Session(model, optimizer, folder=folder, interval_steps=1000, job="one", **settings) as session:
        for batch in session.steps(loader):
            if session.step == stop_at:
                session.save()
                raise _InterruptionError
            model(batch).square().mean().backward()
            if (session.step + 1) % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()
    return model.weight.detach().clone()


@pytest.mark.parametrize("stop_at", [6, 8, 15])
def test_accumulated_gradients_survive_an_interruption(stop_at: int, tmp_path: Path) -> None:
    undisturbed = _train(tmp_path / "whole")
    with pytest.raises(_InterruptionError):
        _train(tmp_path / "parts", stop_at)
    entries = read_parts([next((tmp_path / "parts").glob("step-*/rank-*"))])
    assert any(".grad." in name for name in entries) == (stop_at % WINDOW != 0)  # else they are no part of the state
    assert torch.equal(_train(tmp_path / "parts"), undisturbed)


def test_an_optimizer_without_state_is_restored(tmp_path: Path) -> None:
    undisturbed = _train(tmp_path / "whole", kind=torch.optim.SGD)
    with pytest.raises(_InterruptionError):
        _train(tmp_path / "parts", 16, torch.optim.SGD)
    assert torch.equal(_train(tmp_path / "parts", kind=torch.optim.SGD), undisturbed)


def test_ranks_of_another_number_get_the_mean_of_what_was_accumulated(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    files = {}
    for rank, value in enumerate((1.0, 3.0)):
        name = checkpoints.rank_file(rank)
        gradient = torch.full((1, 2), value)
        entry = checkpoints.gradient_entry(rank, "weight")
        files[name] = write_tensors(tmp_path / name, {entry: gradient}, "blake2b")
    manifest = CheckpointManifest(format=2, step=1, saved_at=0.0, world=2, algorithm="blake2b", files=files, facts={})
    reader = checkpoints.CheckpointReader(tmp_path, manifest)
    assert reader.gradients(model, 1, 2)["weight"].tolist() == [[3.0, 3.0]]
    assert [reader.gradients(model, rank, 3)["weight"].tolist() for rank in range(3)] == [[[2.0, 2.0]]] * 3


def test_another_job_is_refused_by_name(tmp_path: Path) -> None:
    _train(tmp_path)
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2)
    refused = pytest.raises(InputError, match="has the checkpoints of job 'one', and this is job 'two'")
    with refused, elastic.Session(model, optimizer, folder=tmp_path, job="two"):
        pass


def test_a_later_round_ends_this_one_at_its_next_save(tmp_path: Path) -> None:
    """The rank exits with a code that its agent understands, and its checkpoint is not there."""
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "from pathlib import Path\n"
        "from stallwise import elastic\n"
        "from stallwise.elastic._ownership import RoundIdentity\n"
        "from stallwise.elastic._storage import FolderStore\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "with elastic.Session(model, optimizer, folder=sys.argv[1], job='one') as session:\n"
        "    session.step = 10\n"
        "    session.save()\n"
        "    FolderStore(Path(sys.argv[1])).claim(RoundIdentity('one', 'later', 0))\n"
        "    session.step = 20\n"
        "    session.save()\n"
        "    print('never reached')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 78, run.stderr
    assert "never reached" not in run.stdout
    assert FolderStore(tmp_path).names() == ["step-000000000010"]


class _Opaque:
    """An object of a script's own in the state of its schedule."""


def test_a_state_that_could_not_be_restored_is_refused_at_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    scheduler.extra = _Opaque()  # type: ignore[attr-defined]
    refused = pytest.raises(InputError, match=r"cannot hold objects of .*_Opaque")
    with refused, elastic.Session(model, optimizer, folder=tmp_path, scheduler=scheduler, job="one"):
        pass
