"""After ablated blocks training goes on from where it was, to the bit."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from stallwise.record.safety import Snapshot


class Training:
    """A model with dropout, running statistics, momentum, a schedule, a scaler and an average of its weights."""

    def __init__(self, make: Callable[[Any], Optimizer]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.average = AveragedModel(self.model)
        self.optimizer = make(self.model.parameters())
        self.scheduler = SequentialLR(
            self.optimizer,
            [StepLR(self.optimizer, 2), OneCycleLR(self.optimizer, 0.1, total_steps=100)],
            milestones=[4],
        )
        self.plateau = ReduceLROnPlateau(SGD([nn.Parameter(torch.ones(1))], lr=1.0))
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=2)

    def step(self) -> None:
        self.optimizer.zero_grad()
        noise = random.random() + float(np.random.rand())
        loss = self.model(torch.randn(6, 4) + noise).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.plateau.step(loss.item())
        self.average.update_parameters(self.model)

    def state(self) -> dict[str, Any]:
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "plateau": self.plateau.state_dict(),
            "scaler": self.scaler.state_dict(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        return copy.deepcopy(state)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "tensor-lr": lambda p: AdamW(p, lr=torch.tensor(0.01)),
}


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*", "ignore:.*epoch parameter.*")
@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("maker", MAKERS)
def test_everything_a_step_changes_is_put_back(maker: str, steps_before: int) -> None:
    training = Training(MAKERS[maker])
    for _ in range(steps_before):
        training.step()
    before = training.state()
    snapshot = Snapshot([training.optimizer])
    for _ in range(4):
        training.step()
    assert not same(before["model"], training.state()["model"])
    snapshot.restore()
    after = training.state()
    for name in before:
        assert same(before[name], after[name]), name


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*", "ignore:.*epoch parameter.*")
def test_training_goes_on_as_if_nothing_had_happened() -> None:
    quiet, watched = Training(MAKERS["adam"]), Training(MAKERS["adam"])
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for _ in range(6):
        quiet.step()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for _ in range(3):
        watched.step()
        snapshot = Snapshot([watched.optimizer])
        watched.step()
        snapshot.restore()
        watched.step()
    assert same(quiet.state()["model"], watched.state()["model"])
    assert same(quiet.state()["average"], watched.state()["average"])


def test_nested_optimizer_state_is_put_back() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.pow(4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = copy.deepcopy(optimizer.state_dict())
    snapshot = Snapshot([optimizer])
    optimizer.step(closure)
    snapshot.restore()
    assert same(before, optimizer.state_dict())


def test_frozen_weights_are_not_copied() -> None:
    frozen, head = nn.Linear(512, 512), nn.Linear(4, 1)
    frozen.requires_grad_(False)
    snapshot = Snapshot([SGD(head.parameters(), lr=0.1)])
    kept = {id(live) for live, _ in snapshot._tensors.values()}
    assert id(head.weight) in kept
    assert id(frozen.weight) not in kept
