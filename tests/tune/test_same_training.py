"""What tune may keep changes no batch and no order: a training with its settings ends at the same weights."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from stallwise.data import BucketDataset
from stallwise.tune._hooks import apply, describe
from stallwise.tune.knobs import Knobs

BATCHES = 6


def decode(data: bytes, name: str) -> torch.Tensor:
    """The object's own numbers."""
    return torch.load(io.BytesIO(data))


@pytest.fixture
def bucket(tmp_path: Path) -> BucketDataset[torch.Tensor]:
    """24 objects of four numbers each."""
    for number in range(4 * BATCHES):
        torch.save(torch.randn(4, generator=torch.Generator().manual_seed(number)), tmp_path / f"{number:02d}.bin")
    return BucketDataset(f"file://{tmp_path}", decode, match="*.bin")


def train(given: dict[str, Any], knobs: Knobs, *, epochs: int = 3) -> torch.Tensor:
    """The weights after a few epochs with dropout, whose randomness comes from the generator the shuffling uses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(**apply(knobs, given))
    for epoch in range(epochs):
        if isinstance(given.get("sampler"), DistributedSampler):
            given["sampler"].set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            (model(batch) - 1).square().mean().backward()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "knobs",
    [Knobs(num_workers=2), Knobs(num_workers=1, prefetch_factor=4), Knobs(num_workers=2, lookahead=True)],
    ids=Knobs.shown,
)
def test_a_shuffled_training_ends_at_the_same_weights(bucket: BucketDataset[torch.Tensor], knobs: Knobs) -> None:
    given = {"dataset": bucket, "batch_size": 4, "shuffle": True}
    assert torch.equal(train(given, Knobs()), train(given, knobs))
    torch.manual_seed(1)
    assert not torch.equal(train(given, Knobs(), epochs=2), train(given, Knobs())), "the comparison can fail"


def test_a_fused_optimizer_computes_the_same_update() -> None:
    def weights(*, fused: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        for _ in range(50):
            optimizer.zero_grad()
            (model(torch.randn(16, 8)) - 1).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.allclose(weights(fused=False), weights(fused=True), rtol=1e-4, atol=1e-6)


def test_workers_that_stay_keep_an_order_that_is_fixed_by_the_epoch(bucket: BucketDataset[torch.Tensor]) -> None:
    def order(knobs: Knobs) -> list[float]:
        sampler = DistributedSampler(bucket, 1, 0)
        loader = DataLoader(**apply(knobs, {"dataset": bucket, "batch_size": 4, "sampler": sampler}))
        assert describe(loader, "a:1").fixed_order
        found = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found += [float(batch.sum()) for batch in loader]
        return found

    assert order(Knobs(num_workers=1)) == order(Knobs(num_workers=1, persistent_workers=True))


def test_workers_that_stay_shuffle_later_epochs_another_way(bucket: BucketDataset[torch.Tensor]) -> None:
    """Why persistent_workers is only advised for a loader that shuffles."""
    given = {"dataset": bucket, "batch_size": 4, "shuffle": True}
    assert not describe(DataLoader(**given), "a:1").fixed_order
    stays = Knobs(num_workers=1, persistent_workers=True)
    assert torch.equal(train(given, Knobs(), epochs=1), train(given, stays, epochs=1))
    assert not torch.equal(train(given, Knobs()), train(given, stays))
