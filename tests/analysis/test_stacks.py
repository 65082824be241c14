"""What a stack says its thread is doing."""

from pathlib import Path

import pytest

from stallwise.analysis.stacks import StackFrame, StackSample, sample_of, with_rollouts

LIBRARIES = ("/usr/lib/python3.12/", "/venv/lib/python3.12/site-packages/")
SITE = "/venv/lib/python3.12/site-packages/"
MODULE = StackFrame(SITE + "torch/nn/modules/module.py", 1775, "_wrapped_call_impl")
MAIN = StackFrame("/job/train.py", 40, "main")


def frame(file: str, function: str, flags: int = 0) -> StackFrame:
    return StackFrame(file, 12, function, flags)


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        ([frame(SITE + "torch/nn/modules/linear.py", "forward"), MODULE, MAIN], "compute"),
        ([frame(SITE + "torch/autograd/graph.py", "_engine_run_backward"), MAIN], "compute"),
        ([frame(SITE + "torch/optim/adamw.py", "step"), MAIN], "compute"),
        ([frame(SITE + "torch/utils/data/dataloader.py", "_try_get_data"), MAIN], "loader"),
        ([frame("/usr/lib/python3.12/queue.py", "Queue.get"), MAIN], "loader"),
        ([frame("/job/train.py", "get_batch"), MAIN], "data code"),
        ([frame("/job/train.py", "main.<locals>.get_batch"), MAIN], "data code"),
        ([frame("/job/train.py", "Environment.step"), MAIN], "data code"),
        ([frame("/job/train.py", "Trainer.step"), MAIN], "python"),
        ([frame("/job/train.py", "stream", 0x20), MAIN], "data code"),
        ([frame(SITE + "numpy/lib/npyio.py", "load"), MAIN], "data code"),
        ([MODULE, frame("/job/train.py", "collect_rollout"), MAIN], "rollout"),
        ([frame("/job/train.py", "log_metrics"), MAIN], "python"),
        ([MODULE, frame("/job/train.py", "train_batch"), MAIN], "compute"),
    ],
)
def test_causes(frames: list[StackFrame], cause: str) -> None:
    assert sample_of(0.0, frames, LIBRARIES).cause == cause


def test_the_place_is_the_innermost_line_of_the_script() -> None:
    stack = [frame(SITE + "torch/_tensor.py", "__array__"), frame("/job/data.py", "get_batch"), MAIN]
    assert sample_of(0.0, stack, LIBRARIES).where == "data.py:12 get_batch"


def test_a_plain_line_is_judged_by_its_text(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = data.sample(4)\nloss = (y - x).mean()\ntime.sleep(1)\n")
    causes = [sample_of(0.0, [StackFrame(str(script), n, "<module>")], LIBRARIES).cause for n in (1, 2, 3)]
    assert causes == ["data code", "compute", "python"]


def test_forward_passes_that_come_again_before_a_backward_are_acting() -> None:
    """Three times: act four times with the environment in between, then forward, loss, next batch, backward."""
    samples = []
    for _ in range(3):
        for _ in range(4):
            samples += [StackSample(0.0, "compute", "act", "train.py:10"), StackSample(0.0, "data code", "env")]
        samples += [
            StackSample(0.0, "compute", "forward", "train.py:20"),
            StackSample(0.0, "compute", "loss"),
            StackSample(0.0, "data code", "next batch"),
            StackSample(0.0, "compute", "backward", is_backward=True),
        ]
    causes = [(sample.where, sample.cause) for sample in with_rollouts(samples)]
    assert set(causes) == {
        ("act", "rollout"),
        ("env", "data code"),
        ("next batch", "data code"),
        ("forward", "compute"),
        ("loss", "compute"),
        ("backward", "compute"),
    }
