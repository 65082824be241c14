"""Habits of real scripts that run bare: they run under a profile as well, and are measured."""

import copy
from collections import UserDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from stallwise.record.ablate._replay import ReplayRing, batch_bytes, batch_counts, copied
from stallwise.record.observe._contained import ContainedObserver
from stallwise.record.observe._features import StepCounter
from stallwise.record.rank._steps import StepClock
from tests.conftest import needs, texts
from tests.record.jobs import JOBS, Profiled

HABITS = str(JOBS / "habits.py")


def phases_of(job: Profiled) -> dict[str, int]:
    return {phase["name"]: phase["steps"] for phase in job.manifest["phases"]}


def test_batches_may_be_emptied_and_gradients_taken_in_any_way(tmp_path: Path) -> None:
    job = Profiled(tmp_path, "--max-time", "1s", HABITS, "empties").ended(0)
    assert phases_of(job)["layers"] > 0
    manifest = job.manifest
    assert manifest["counts"]["samples"] == 4 * manifest["counts"]["steps"]
    notes = " ".join(texts(manifest["notes"]))
    for sentence in ("TorchScript", "torch.func", "changes batches in place"):
        assert sentence in notes, notes
    assert manifest["model"]["flops_per_step"], "counted, although gradients were taken with autograd.grad"
    assert manifest["model"]["activation_bytes"] is None, "unknown, because torch.func allows no hooks"


@pytest.mark.parametrize("habit", ["thread", "one", "streams"])
def test_unusual_loaders_are_taken_apart(tmp_path: Path, habit: str) -> None:
    if habit == "streams":
        needs("torchdata")
    job = Profiled(tmp_path, "--max-time", "1s", HABITS, habit).ended(0)
    phases = phases_of(job)
    assert phases["as is"] > 0
    assert phases["replay from host"] > 0
    steps, samples = job.manifest["counts"]["steps"], job.manifest["counts"]["samples"]
    assert samples / steps == pytest.approx({"thread": 4, "one": 64, "streams": 4}[habit], rel=0.05)


class Pair(NamedTuple):
    one: torch.Tensor
    other: list[int]


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self) -> None:
        self.tensor = torch.ones(2)


@dataclass
class Held:
    tensor: torch.Tensor
    inside: dict[str, Any]


def test_a_copy_is_the_scripts_own_and_shares_its_memory() -> None:
    tensor = torch.ones(3, 2)
    for batch in (
        [tensor, {"a": (tensor, "text")}],
        UserDict(a=tensor),
        Pair(tensor, [1]),
        Held(tensor, {"y": tensor}),
        tensor,
    ):
        twin = copied(batch)
        assert type(twin) is type(batch)
        assert twin is not batch
        if isinstance(twin, UserDict):
            assert twin.pop("a").data_ptr() == tensor.data_ptr()
            assert "a" in batch
        if isinstance(twin, Held):
            twin.tensor = None
            twin.inside.clear()
            assert batch.tensor is tensor
            assert batch.inside == {"y": tensor}
    own = copied(tensor)
    own.requires_grad_()
    own.sum().backward()
    assert tensor.grad is None
    assert not tensor.requires_grad
    assert copied(Slotted()).tensor.shape == (2,)


def test_batches_that_are_changed_in_place_are_kept_whole() -> None:
    ring, batch = ReplayRing(1 << 20), {"x": torch.ones(2)}
    ring.add(batch)
    assert not ring.check()
    batch["x"] += 1
    assert ring.check()
    assert not ring
    ring.add(batch)
    batch["x"] += 1
    ring.take(on_device=False)["x"].zero_()
    assert ring.take(on_device=False)["x"].tolist() == [2, 2]


def test_samples_are_counted_in_objects() -> None:
    class Batch:
        def __init__(self) -> None:
            self.x, self.num_graphs = torch.ones(40, 2), 8

    tokens = torch.ones(4, 16, dtype=torch.long)
    assert batch_counts(Batch()) == (8, None)
    assert batch_counts(UserDict(input_ids=tokens)) == (4, 64)
    assert batch_counts(Held(torch.ones(5, 2), {})) == (5, None)
    assert batch_bytes(UserDict(input_ids=tokens)) == tokens.nbytes


class Notes:
    rank = 0

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


@pytest.mark.parametrize("fails_in", ["create", "begin", "update_begins", "step_ended", "finish"])
def test_an_observer_that_fails_is_removed_and_named(fails_in: str) -> None:
    notes: Any = Notes()

    class Failing:
        abandoned = False

        def __getattr__(self, name: str) -> Any:
            def method(*_: Any, **__: Any) -> None:
                if name == fails_in:
                    raise RuntimeError("not supported on that")
                Failing.abandoned = Failing.abandoned or name == "abandon"

            return method

    def create() -> Any:
        if fails_in == "create":
            raise RuntimeError("not supported on that")
        return Failing()

    observer = ContainedObserver(create, notes, "layers")
    observer.begin(3)
    observer.update_begins()
    observer.step_ended(kept=True)
    observer.finish(first_step=0, step_s=None, zero_s=0.0)
    assert len(notes.sentences) == 1
    assert "layers phase was given up" in notes.sentences[0]
    assert Failing.abandoned == (fails_in != "create")


def test_counting_survives_what_forbids_hooks() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 4))
    counter = StepCounter([weight], StepClock())
    counter.begin()
    try:
        inputs = torch.ones(2, 4, requires_grad=True)
        (inputs @ weight).sum().backward()
        torch.autograd.grad((inputs @ weight).sum(), inputs)
        torch.func.vmap(torch.func.grad(lambda x: (x @ weight.detach()).sum()))(torch.ones(3, 4))
    finally:
        counter.end()
    assert counter.flops
    assert counter.activation_bytes is None
    assert len(counter.notes) == 1
    with torch.autograd.graph.saved_tensors_hooks(copy.copy, copy.copy):
        pass  # nothing is forbidden any more
