"""Settings that take a launch of their own, end to end: a job that needs one of them is given just that one.

`pytest -m soak -s tests/tune/test_trials.py`
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.data.testbed.link import slow_link
from tests.data.testbed.seaweed import Seaweed, objects, seaweed
from tests.figures import Figures
from tests.sentences import coded

pytestmark = [pytest.mark.truth, pytest.mark.soak]

# Four steps an epoch, and workers that are started for each.
SHORT_EPOCHS = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): time.sleep(0.0005); return torch.full((16,), float(index))

torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Numbers(), 8, num_workers=1)
for _ in range(100_000):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""

# An epoch is 4 MB behind 20 Mb/s: nothing but not fetching it again can help.
THIN_LINK = """
import sys
import time
import torch
from torch.utils.data import DataLoader
from stallwise.data import BucketDataset

def decode(data, name):
    return torch.frombuffer(bytearray(data[:16]), dtype=torch.uint8).float()

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(BucketDataset("s3://data/", decode, endpoint=sys.argv[1]), 8, shuffle=True, num_workers=1)
    for _ in range(1000):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
"""


def tuned(cli: Cli, folder: Path, source: str, *arguments: str) -> dict:
    script = folder / "job.py"
    script.write_text(source)
    found: dict = coded(cli("tune", "--json", "--max-time", "160s", str(script), *arguments).stdout)
    print(json.dumps({key: found[key] for key in ("binds", "step_s", "attempts", "kept", "patch", "notes")}, indent=1))
    return found


def test_short_epochs_keep_their_workers(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    found = tuned(cli, tmp_path, SHORT_EPOCHS)
    assert found["kept"].get("persistent_workers") is True
    figures.at_least("tune: gain of workers that stay", found["gain"], 0.15, unit="")
    assert any("persistent_workers=True" in line for line in found["patch"])


@pytest.fixture(scope="module")
def thin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """100 objects of 40 kB behind 20 Mb/s."""
    with (
        slow_link(round_trip_ms=2, rate="20mbit") as link,
        seaweed(tmp_path_factory.mktemp("thin"), link.address, link.namespace) as server,
    ):
        server.fill("data", objects(100, 40_000))
        yield server


def test_a_link_that_is_full_gets_a_cache(
    cli: Cli, thin: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    for name, value in thin.environment.items():
        monkeypatch.setenv(name, value)
    found = tuned(cli, tmp_path, THIN_LINK, thin.endpoint)
    assert found["kept"].get("cache_bytes", 0) > 100 * 40_000
    figures.at_least("tune: gain of a cache", found["gain"], 0.5, unit="")
    assert any("NodeCache" in line for line in found["patch"])
