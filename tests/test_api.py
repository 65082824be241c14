"""The Python interface at the top of the package: a script profiled, a run opened, runs compared, a trace simulated."""

import contextlib
import doctest
import inspect
import io
import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import stallwise
from tests.conftest import ROOT, needs
from tests.record.jobs import JOBS
from tests.report.made_runs import make_full_run


def test_every_public_name_is_there() -> None:
    assert all(hasattr(stallwise, name) for name in stallwise.__all__)


def test_a_script_is_profiled_and_asked_about(tmp_path: Path) -> None:
    job = stallwise.profile(JOBS / "shapes.py", "workers", out=tmp_path / "run", max_time="0.8s")
    parts = [job.split.compute.s, *(share.s for share in job.split.stalls().values())]
    assert min(parts) >= 0
    assert sum(parts) > 0, "which part takes how much of so short a run is not judged here"
    assert job.job.work is not None
    assert job.on().setup.workers == job.job.work.workers
    same = stallwise.compare(job, stallwise.open_run(tmp_path / "run"))
    assert same.phases
    assert all(phase.relative.value == 0 for phase in same.phases)
    with pytest.raises(stallwise.StallwiseError, match="is not complete"):
        stallwise.profile(JOBS / "faithful.py", "code", out=tmp_path / "failed", max_time=1.0)


def test_a_trace_is_simulated_with_a_run_of_ones_own(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    rows = [f"j{i},{30 * i},{(1, 2, 4, 8)[i % 4]},{100 + i},net,u" for i in range(12)]
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(["job_id,submit_s,gpus,duration_s,model,user", *rows]) + "\n")
    own = {"net": tmp_path / "run"}
    found = stallwise.simulate(trace, "racks=1,machines=2,gpus=4", ["fifo", "las"], profiles=own, network="rack=10gbit")
    (setting,) = found.settings
    assert [standing.policy for standing in setting.standings] == ["fifo", "las"]
    assert "<article" in found._repr_html_()  # type: ignore[attr-defined]


PUBLIC = [name for name in stallwise.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith("Callback"):
        needs("transformers" if name.startswith("Trainer") else "lightning")
    monkeypatch.chdir(ROOT)
    public = getattr(stallwise, name)
    members = vars(public) if isinstance(public, type) else {}
    texts = {name: public.__doc__ or ""}
    texts |= {f"{name}.{key}": one.__doc__ or "" for key, one in members.items() if inspect.isfunction(one)}
    assert ">>>" in texts[name]
    for where, text in texts.items():
        example = doctest.DocTestParser().get_doctest(text, {}, where, None, None)
        out = io.StringIO()
        assert doctest.DocTestRunner().run(example, out=out.write).failed == 0, out.getvalue()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_says_what_its_arguments_are(name: str) -> None:
    public = getattr(stallwise, name) if not name.endswith("Callback") else None
    if not inspect.isfunction(public):
        return
    arguments = inspect.signature(public).parameters
    section = (public.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    assert [one for one in arguments if not re.search(rf"^ +{one}: ", section, re.MULTILINE)] == []


def test_the_recipe_for_trackers_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a tracker that keeps what it is told."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/train").symlink_to(ROOT / "examples/runs/slow-data")
    monkeypatch.chdir(tmp_path)
    tracker = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/trackers.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, "trackers.md", "exec"), {})  # noqa: S102 - our own document
    logged = tracker.init.return_value.__enter__.return_value.log.call_args_list[0].args[0]
    assert 0 < logged["compute_s"] < logged["prep_s"] < logged["step_s"]
    assert "<article" in tracker.Html.call_args.args[0]


def test_the_example_in_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"^```python\n(import stallwise\n.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102 - our own README
    part, compute_s, step_s = out.getvalue().split()
    assert part.isalpha()
    assert 0 < float(step_s) < float(compute_s)
