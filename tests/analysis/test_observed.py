"""What was observed becomes parts of the step: none is negative, and they add up to the same step."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.analysis import open_run
from stallwise.analysis.observed import DATA_CAUSES, fit_to_step
from stallwise.run import RankWriter, join
from stallwise.run.manifest import ENDED_ITSELF, NodeRecord
from stallwise.run.schema import ObservedRow, SpanRow
from tests.run.made import begin, step

STEP_S = 0.1
CAUSES = ("compute", "copy", "exchange", "launch", "synchronise", "python", *sorted(DATA_CAUSES))
GPU = NodeRecord(node=0, cores=8, gpus=("NVIDIA H200",))
CPU = NodeRecord(node=0, cores=8)


def made(
    folder: Path,
    windows: list[dict[str, float]],
    *,
    node: NodeRecord = GPU,
    loader: bool = False,
    kernels: dict[str, float] | None = None,
) -> Path:
    """A run of eight blocks of `STEP_S` whose windows hold these seconds of one step by cause."""
    begin(folder)
    with RankWriter.open(folder, 0, node=0, hardware=node) as writer:
        for number in range(32):
            writer.append("steps", step(0, number, STEP_S, block=number // 4))
            if loader:
                replay = step(0, 100 + number, 0.8 * STEP_S, phase="replay from host", block=number // 4)
                writer.append("steps", replay)
        for number, causes in enumerate(windows):
            for cause, seconds in causes.items():
                writer.append("observed", ObservedRow(0, number, 5, cause, 5 * seconds, 5, f"train.py:{number}"))
        for name, seconds in (kernels or {}).items():
            writer.append("spans", SpanRow(0, None, "gpu", name, 0.0, seconds, None))
    join(folder, exit_code=0)
    return folder


def test_a_job_without_a_loader_is_divided_by_what_was_observed(tmp_path: Path) -> None:
    window = {"compute": 0.04, "copy": 0.01, "data code": 0.03, "launch": 0.01, "synchronise": 0.01}
    profile = open_run(made(tmp_path / "run", [window] * 3)).profile
    split = profile.split
    assert split.prep is not None
    assert split.prep.observed
    assert split.prep.s == pytest.approx(0.03)
    assert split.host is not None
    assert split.host.s == pytest.approx(0.02)
    assert split.copy is not None
    assert split.copy.s == pytest.approx(0.01)
    assert split.compute.s == pytest.approx(0.04)
    assert profile.observed[0].cause == "data code"
    assert profile.observed[0].calls == pytest.approx(1.0)


@pytest.mark.parametrize("node", [CPU, GPU])
def test_a_job_that_was_seen_to_compute_all_the_time_is_compute(tmp_path: Path, node: NodeRecord) -> None:
    job = open_run(made(tmp_path / "run", [{"compute": STEP_S}] * 6, node=node))
    assert job.split.prep is not None
    assert (job.split.prep.s, job.split.prep.high_s) == (0.0, 0.0)
    assert (job.split.host is not None) is (node is GPU)
    assert job.bottleneck.binds == "compute"


@pytest.mark.parametrize(
    ("kernels", "code"),
    [
        ({"nvjet_hsh_256x128": 0.5, "void at::native::vectorized_elementwise_kernel<4>": 0.5}, "remedy.compile"),
        ({"nvjet_hsh_256x128": 0.95, "void at::native::vectorized_elementwise_kernel<4>": 0.05}, "remedy.compute"),
        ({"nvjet_hsh_256x128": 0.5, "triton_poi_fused_gelu_3": 0.4, "void at::native::fill": 0.1}, "remedy.compute"),
        ({"void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdam>": 1.0}, "remedy.compute"),
    ],
)
def test_compiling_is_advised_by_the_kernels_that_it_would_fuse(
    tmp_path: Path, kernels: dict[str, float], code: str
) -> None:
    remedy = open_run(made(tmp_path / "run", [{"compute": STEP_S}] * 6, kernels=kernels)).bottleneck.next_step
    assert remedy.code == code
    if code == "remedy.compile":
        assert remedy.facts["gain"] == pytest.approx(0.225)
        assert 0 < remedy.facts["low"] < remedy.facts["gain"] < remedy.facts["high"] < 0.5
        assert "50 % of the device's time" in remedy


def test_a_script_that_ends_before_it_is_watched_needs_more_steps(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with RankWriter.open(tmp_path / "run", 0, node=0, hardware=CPU) as writer:
        for number in range(32):
            writer.append("steps", step(0, number, STEP_S)._replace(data_wait_s=None))
        writer.light(False)
        writer.note(f"{ENDED_ITSELF} after 32 steps.")
    join(tmp_path / "run", exit_code=0)
    verdict = open_run(tmp_path / "run").bottleneck
    assert verdict.binds == "unknown"
    assert "more steps" in verdict.next_step


def test_what_was_ablated_is_not_observed_again(tmp_path: Path) -> None:
    """With a loader that was replayed, everything observed lies inside what is left: 80 of 100 ms."""
    window = {"compute": 0.06, "loader": 0.01, "launch": 0.01}
    split = open_run(made(tmp_path / "run", [window] * 3, loader=True)).split
    assert split.prep is not None
    assert not split.prep.observed
    assert split.prep.s == pytest.approx(0.02)
    assert split.host is not None
    assert split.host.s == pytest.approx(0.02)
    assert split.compute.s == pytest.approx(0.06)


def test_what_the_profiler_adds_is_taken_off_the_launches() -> None:
    watched = {"compute": 0.04, "launch": 0.08, "python": 0.02}
    fitted = fit_to_step(watched, STEP_S, on_device=True)
    assert fitted == pytest.approx({"compute": 0.04, "launch": 0.04, "python": 0.02})
    assert fit_to_step(watched, 0.05, on_device=True) == pytest.approx({"compute": 0.04, "launch": 0.0, "python": 0.01})


def test_a_run_without_windows_stays_as_it_was(tmp_path: Path) -> None:
    profile = open_run(made(tmp_path / "run", [])).profile
    assert profile.observed == ()
    assert profile.split.host is None
    assert profile.split.compute.s == pytest.approx(STEP_S)


@settings(max_examples=25)
@given(
    windows=st.lists(
        st.dictionaries(st.sampled_from(CAUSES), st.floats(0.0, 10.0), min_size=1), min_size=1, max_size=4
    ),
    node=st.sampled_from((GPU, CPU)),
    loader=st.booleans(),
)
def test_parts_are_never_negative_and_add_up_to_the_step(
    tmp_path_factory: pytest.TempPathFactory, windows: list[dict[str, float]], node: NodeRecord, loader: bool
) -> None:
    run = open_run(made(tmp_path_factory.mktemp("run") / "run", windows, node=node, loader=loader))
    parts = [run.split.compute, *run.split.stalls().values()]
    assert all(0 <= part.low_s <= part.s <= part.high_s for part in parts)
    assert sum(part.s for part in parts) == pytest.approx(run.measured.step.value)
    assert sum(cause.s for cause in run.profile.observed) <= run.measured.step.value * (1 + 1e-9)


def test_an_observed_stall_does_not_bind_beside_a_larger_one_without_a_bound(tmp_path: Path) -> None:
    """One round: half of the step may be the loader's, but nothing was drawn for it. Host alone was drawn."""
    begin(tmp_path / "run")
    with RankWriter.open(tmp_path / "run", 0, node=0, hardware=GPU) as writer:
        for number in range(4):
            writer.append("steps", step(0, number, STEP_S))
            writer.append("steps", step(0, 100 + number, 0.5 * STEP_S, phase="replay from host"))
        for number in range(3):
            for cause, seconds in {"compute": 0.04, "launch": 0.01}.items():
                writer.append("observed", ObservedRow(0, number, 5, cause, 5 * seconds, 5, f"train.py:{number}"))
    join(tmp_path / "run", exit_code=0)
    job = open_run(tmp_path / "run")
    assert job.split.host is not None
    assert job.split.host.distinguishable
    assert job.bottleneck.binds == "inconclusive"
    assert "prep" in job.bottleneck.candidates
