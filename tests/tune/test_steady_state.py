"""A job whose loader waits, with epochs of 20 and of 2,000 steps: tune has to find nearly the best number of workers.

All times are sleeps, so the best setting is known from arithmetic. A busy machine adds to both sides: there `make test`
asks for a setting that helps, and `make truth` for nearly the best.
"""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.figures import Figures

SAMPLE_S, BATCH, COMPUTE_S = 0.025, 4, 0.025

JOB = """
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Waits(Dataset):
    def __len__(self):
        return 4 * int(sys.argv[1])
    def __getitem__(self, index):
        time.sleep(0.025)
        return torch.full((4,), float(index))

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(Waits(), batch_size=4, shuffle=True, num_workers=1)
for _ in range(100_000):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.025)
"""


def epoch_s(workers: int, batches: int) -> float:
    """Seconds of an epoch by arithmetic: the first batches are ready together, then the slower side decides."""
    batch_s = SAMPLE_S * BATCH
    return batch_s + max(batches * COMPUTE_S, (batches - workers) * batch_s / workers + COMPUTE_S)


def tuned(cli: Cli, folder: Path, batches: int, max_s: int) -> dict:
    (folder / "job.py").write_text(JOB)
    result: dict = json.loads(cli("tune", "--json", "--max-time", f"{max_s}s", "job.py", str(batches)).stdout)
    print(json.dumps({key: result[key] for key in ("verdict", "step_s", "attempts", "kept", "notes", "seconds")}))
    return result


def kept_workers(result: dict) -> int:
    assert result["verdict"] == "kept", result["notes"]
    kept = next(one for one in result["attempts"] if one["kept"])
    assert kept["outcome"] == "better"
    assert kept["probability"] >= 0.95
    workers: int = result["kept"]["num_workers"]
    return workers


def test_more_workers_are_found_in_time(cli: Cli, tmp_path: Path) -> None:
    # The search ends by itself in about 40 s; the rest is for a busy machine.
    workers = kept_workers(tuned(cli, tmp_path, 2000, 200))
    assert epoch_s(workers, 2000) <= epoch_s(1, 2000) / 1.5


@pytest.mark.truth
@pytest.mark.parametrize("batches", [20, 2000])
def test_three_runs_in_a_row(cli: Cli, tmp_path: Path, batches: int, figures: Figures) -> None:
    best_s = min(epoch_s(workers, batches) for workers in range(1, 17))
    for number in range(1, 4):
        result = tuned(cli, tmp_path, batches, 90)
        workers = result["kept"].get("num_workers", 1)  # what is not kept leaves the script's own
        name = f"tune, epochs of {batches}, run {number} ({result['verdict']}): epoch"
        figures.at_most(name, epoch_s(workers, batches), best_s / 0.9)
