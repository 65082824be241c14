"""Which rank this process is, as its launcher says: torchrun, Lightning, Slurm or MPI.

Only for the record: the script sets up its process group itself, in whatever way it does without us.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank among all. `local_size` is None where the launcher does not say, or nodes hold unequal numbers."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int | None = None
    node: int = 0

    @property
    def nodes(self) -> int:
        """Machines in the job; ranks per machine are taken to be equal."""
        return max(1, self.size // (self.local_size or self.size))


# rank, size, local rank, local size
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def place(told: Mapping[str, str] | None = None) -> Place:
    """The place of this process, from the environment; the nearest launcher counts (torchrun inside srun)."""
    told = os.environ if told is None else told
    if "RANK" in told:
        return _from_torchrun(told)
    if "LOCAL_RANK" in told and "WORLD_SIZE" in told:
        # Lightning starts its other ranks so, and leaves the rank to be worked out.
        return Place(
            rank=_number(told, "LOCAL_RANK"),
            size=_number(told, "WORLD_SIZE", 1),
            local_rank=_number(told, "LOCAL_RANK"),
        )
    # A batch script has SLURM_PROCID too; only srun starts steps.
    if "SLURM_PROCID" in told and "SLURM_STEP_NUM_TASKS" in told:
        return _from_slurm(told)
    for names in _MPI:
        if names[0] in told and names[1] in told:
            return _from_mpi(told, names)
    return Place()


def _from_torchrun(told: Mapping[str, str]) -> Place:
    return Place(
        rank=_number(told, "RANK"),
        size=_number(told, "WORLD_SIZE", 1),
        local_rank=_number(told, "LOCAL_RANK"),
        local_size=_number(told, "LOCAL_WORLD_SIZE") or None,
        node=_number(told, "GROUP_RANK"),
    )


def _from_slurm(told: Mapping[str, str]) -> Place:
    node = _number(told, "SLURM_NODEID")
    counts = set(tasks_per_node(told.get("SLURM_STEP_TASKS_PER_NODE", "")))
    return Place(
        rank=_number(told, "SLURM_PROCID"),
        size=_number(told, "SLURM_STEP_NUM_TASKS", 1),
        local_rank=_number(told, "SLURM_LOCALID"),
        local_size=counts.pop() if len(counts) == 1 else None,
        node=node,
    )


def _from_mpi(told: Mapping[str, str], names: tuple[str, str, str, str]) -> Place:
    rank, size, local_rank, local_size = (_number(told, name) for name in names)
    node = rank // local_size if local_size else 0
    return Place(rank=rank, size=max(1, size), local_rank=local_rank, local_size=local_size or None, node=node)


def tasks_per_node(text: str) -> list[int]:
    """Slurm's short form, `2(x3),1` for three nodes with two tasks and one with one."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in found for _ in range(int(nodes or 1))]


def job_name(told: Mapping[str, str] | None = None) -> str | None:
    """The launcher's name for the job, the same in all ranks and another one next time; None where it has none."""
    told = os.environ if told is None else told
    if told.get("TORCHELASTIC_RUN_ID", "none") != "none":  # torchrun's default
        return told["TORCHELASTIC_RUN_ID"]
    if "SLURM_JOB_ID" in told and "SLURM_STEP_ID" in told:
        return f"{told['SLURM_JOB_ID']}.{told['SLURM_STEP_ID']}"
    return told.get("SLURM_JOB_ID") or told.get("PMIX_NAMESPACE")


def _number(told: Mapping[str, str], name: str, otherwise: int = 0) -> int:
    text = told.get(name, "")
    return int(text) if text.isdigit() else otherwise
