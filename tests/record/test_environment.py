"""Who this process is, as launchers say it."""

from pathlib import Path

import pytest

from stallwise.record.rank.environment import RankPlace, begin_record, job_name, rank_place, tasks_per_node
from stallwise.run.manifest import read_manifest

# As `srun -N2 --ntasks-per-node=2` and a batch script of Slurm 22.05 set them.
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, RankPlace()),
        (TORCHRUN, RankPlace(rank=5, size=8, local_rank=1, local_size=4, node=1)),
        (STEP, RankPlace(rank=3, size=4, local_rank=1, local_size=2, node=1)),
        (BATCH, RankPlace()),  # a plain process in a batch script is alone, whatever was asked for
        (STEP | TORCHRUN, RankPlace(rank=5, size=8, local_rank=1, local_size=4, node=1)),  # torchrun inside srun
        (OPEN_MPI, RankPlace(rank=3, size=4, local_rank=1, local_size=2, node=1)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0"}, RankPlace(rank=1, size=2, local_rank=1)),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "3,1"}, RankPlace(rank=3, size=4, local_rank=1, node=1)),
    ],
)
def test_the_nearest_launcher_counts(variables: dict[str, str], expected: RankPlace) -> None:
    assert rank_place(variables) == expected


def test_nodes_follow_from_ranks_per_node() -> None:
    assert rank_place(STEP).nodes == 2
    assert rank_place({}).nodes == 1


@pytest.mark.parametrize(
    ("text", "expected"), [("", []), ("4", [4]), ("2(x3)", [2, 2, 2]), ("2(x2),1", [2, 2, 1]), ("3,1", [3, 1])]
)
def test_slurms_short_form(text: str, expected: list[int]) -> None:
    assert tasks_per_node(text) == expected


def test_two_steps_of_a_job_are_two_runs() -> None:
    assert job_name(STEP) != job_name(STEP | {"SLURM_STEP_ID": "1"})
    assert job_name(TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}) is None
    assert job_name({"TORCHELASTIC_RUN_ID": "mine"}) == "mine"


def test_only_variables_that_decide_speed_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("MASTER_ADDR", "MY_SECRET", "NCCL_COMM_ID", "PATH")
    for name in (*hidden[:3], "OMP_NUM_THREADS", "NCCL_TOKEN"):
        monkeypatch.setenv(name, "3")
    begin_record(tmp_path / "run", script="train.py", arguments=(), launcher=None)
    environment = read_manifest(tmp_path / "run").job.environment
    assert (environment["OMP_NUM_THREADS"], environment["NCCL_TOKEN"]) == ("3", "***")
    assert not environment.keys() & set(hidden)
