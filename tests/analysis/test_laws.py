"""What holds in every profile: over random runs, and over every run that was recorded in this repository."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.analysis.analysis import open_run
from tests.analysis.laws import check_laws, write_profile
from tests.conftest import ROOT

blocks = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=9)
ladders = st.sampled_from(
    [
        ("as is",),
        ("as is", "replay from host"),
        ("as is", "replay from host", "replay from device"),
        ("as is", "no exchange"),
        ("as is", "replay from host", "no exchange"),
        ("as is", "replay from host", "replay from device", "no exchange"),
    ]
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_random_runs(data: st.DataObject) -> None:
    names = data.draw(ladders)
    phases = {name: data.draw(blocks) for name in names}
    batch_s = data.draw(st.floats(1e-4, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        job = write_profile(
            Path(folder, "run"),
            phases,
            ranks=2 if "no exchange" in names else 1,
            workers=data.draw(st.integers(0, 5)),
            batch_s=batch_s,
            blocked_s=batch_s * data.draw(st.floats(0.0, 1.0)),
            cores=data.draw(st.integers(1, 16)),
            gpus="replay from device" in names,
            fetches=data.draw(st.integers(1, 3)),
            loader_samples=data.draw(st.sampled_from([1, 16, 32])),
        )
        check_laws(job)


RECORDED = subprocess.run(
    ["git", "ls-files", "*manifest.json"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()


@pytest.mark.parametrize("manifest", RECORDED)
def test_recorded_runs(manifest: str) -> None:
    check_laws(open_run((ROOT / manifest).parent))


def test_a_recorded_run_is_there() -> None:
    assert RECORDED
