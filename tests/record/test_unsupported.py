"""Jobs that cannot be taken apart are measured as far as they can be, and what is missing is said by name."""

import json
from pathlib import Path

import pytest

from tests.conftest import texts
from tests.program import run_program

JOB = Path(__file__).with_name("jobs") / "parallel.py"
SAID = {
    "tensor": "Tensor parallelism is not taken apart",
    "fsdp1": "FullyShardedDataParallel (FSDP1) is not taken apart",
    "pipeline": "Pipeline parallelism is not taken apart",
}


@pytest.mark.parametrize(
    "how", ["tensor", pytest.param("fsdp1", marks=pytest.mark.soak), pytest.param("pipeline", marks=pytest.mark.soak)]
)
def test_what_cannot_be_taken_apart_is_named(how: str, tmp_path: Path) -> None:
    options = ("--json", "--max-time", "1s", "--nproc-per-node", "2", "-o", str(tmp_path / "run"))
    done = run_program(["profile", *options, str(JOB), how], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert any(note.startswith(SAID[how]) for note in texts(found["notes"])), found["notes"]
    assert found["split"]["compute"]["s"] > 0
