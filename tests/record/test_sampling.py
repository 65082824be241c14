"""Samples of another thread's stack: whole, of one moment, and never beside garbage collection."""

import gc
import sys
import time

import pytest
import torch

from stallwise.record.observe._sampling import StackSampler
from stallwise.record.processes import without_collection
from tests.waiting import until


def inner(sampler: StackSampler) -> None:
    until(lambda: len(sampler._stacks) > 20)


def test_a_sample_is_the_whole_stack_innermost_first() -> None:
    sampler = StackSampler(0.0005)
    sampler.start()
    inner(sampler)
    stacks = [[frame.function for frame in stack] for _, stack in sampler.stop()]
    assert len(stacks) > 20
    seen = [stack for stack in stacks if "inner" in stack]
    assert seen
    for stack in seen:
        place = stack.index("inner")
        assert stack[place + 1] == "test_a_sample_is_the_whole_stack_innermost_first"
        assert len(stack) < 80
        assert len(set(stack)) > 5


def test_no_collection_starts_while_frames_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer that runs there lets the other thread go on, whose frames are then written to after their end."""
    frames = sys._current_frames
    enabled: list[bool] = []

    def current_frames() -> dict[int, object]:
        enabled.append(gc.isenabled())
        return frames()

    monkeypatch.setattr("sys._current_frames", current_frames)
    sampler = StackSampler(0.0005)
    sampler.start()
    until(lambda: len(enabled) > 20)
    sampler.stop()
    assert not any(enabled)
    assert gc.isenabled()


def test_collection_stays_off_where_the_script_turned_it_off() -> None:
    gc.disable()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_shape_of_a_modules_input_is_seen() -> None:
    class Slow(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            time.sleep(0.002)
            return batch

    sampler = StackSampler(0.0005)
    model, batch = Slow(), torch.zeros(3, 5)
    sampler.start()
    until(lambda: model(batch) is not None and sampler.inputs)
    sampler.stop()
    ((where, shape),) = sampler.inputs
    assert shape == ((3, 5), False)  # floating point
    assert "test_sampling.py:" in where
