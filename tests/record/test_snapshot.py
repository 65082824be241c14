"""After ablated blocks training goes on from where it was, to the bit."""

import copy
import gc
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

from stallwise.record.ablate._snapshot import TrainingSnapshot


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
    snapshot = TrainingSnapshot([training.optimizer])
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
        snapshot = TrainingSnapshot([watched.optimizer])
        watched.step()
        snapshot.restore()
        watched.step()
    assert same(quiet.state()["model"], watched.state()["model"])
    assert same(quiet.state()["average"], watched.state()["average"])


def test_models_that_are_garbage_do_not_hide_an_average_of_the_weights() -> None:
    """A script that tries one model after the other, and a collector that comes seldom."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            dead = Training(MAKERS["momentum"])
            dead.model.itself = [dead.model]  # type: ignore[assignment]
        del dead
        training = Training(MAKERS["momentum"])
        before = training.state()["average"]
        snapshot = TrainingSnapshot([training.optimizer])
        training.step()
        snapshot.restore()
    finally:
        gc.enable()
    assert same(before, training.state()["average"])


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
    snapshot = TrainingSnapshot([optimizer])
    optimizer.step(closure)
    snapshot.restore()
    assert same(before, optimizer.state_dict())


def test_frozen_weights_are_not_copied() -> None:
    frozen, head = nn.Linear(512, 512), nn.Linear(4, 1)
    frozen.requires_grad_(False)
    snapshot = TrainingSnapshot([SGD(head.parameters(), lr=0.1)])
    kept = {id(live) for live, _ in snapshot._tensors}
    assert id(head.weight) in kept
    assert id(frozen.weight) not in kept


class Average:
    """Averages of the weights as scripts keep them: in a dictionary, every entry replaced at every step."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * parameter.detach()


class Warmup:
    """A scheduler of no known class."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.steps, self.history = optimizer, 0, [0.0]

    def step(self) -> None:
        self.steps += 1
        self.history = [*self.history, float(self.steps)]
        self.optimizer.param_groups[0]["lr"] = 0.01 * self.steps


class StatefulSchedule(Warmup):
    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_what_scripts_keep_in_their_own_ways_is_put_back() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    average, warmup, schedule = Average(model), Warmup(optimizer), StatefulSchedule(optimizer)
    flat = [p.detach().clone() for p in model.parameters()]
    noise, sampler, own = torch.Generator(), np.random.default_rng(3), random.Random(5)

    def step() -> list[float]:
        model(torch.randn(3, 4, generator=noise)).sum().backward()  # gradients add up: nothing sets them to zero
        optimizer.step()
        average.update(model)
        for mean, parameter in zip(flat, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.5)
        warmup.step()
        schedule.step()
        return [float(torch.rand(1, generator=noise)), float(sampler.random()), own.random()]

    def state() -> Any:
        gradients = [p.grad for p in model.parameters()]
        kept = (average.shadow, flat, gradients, model.state_dict(), optimizer.state_dict())
        return copy.deepcopy([*kept, warmup.steps, warmup.history, schedule.steps])

    step()
    before = state()
    snapshot = TrainingSnapshot([optimizer])
    first = [step(), step()]
    snapshot.restore()
    assert same(before, state())
    assert [step(), step()] == first, "random numbers too"


def test_gradients_that_were_not_there_are_removed_again() -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    snapshot = TrainingSnapshot([optimizer])
    model(torch.ones(1, 4)).sum().backward()
    snapshot.restore()
    assert all(p.grad is None for p in model.parameters())


def test_a_snapshot_that_finds_no_room_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from stallwise.record.ablate import _snapshot as module

    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(module, "_HOST_SHARE", 0.0)
    snapshot = TrainingSnapshot([optimizer])
    assert snapshot.place == "nowhere"
    with torch.no_grad():
        model.weight.add_(1)
    changed = model.weight.clone()
    snapshot.restore()
    assert torch.equal(model.weight, changed)
