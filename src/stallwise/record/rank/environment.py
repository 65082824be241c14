"""What a rank knows before it records: which rank it is, how it is to profile, and the run that it writes to.

The place of a rank comes from the environment variables of its launcher (torchrun, Lightning, Slurm or MPI) and serves
the record only: the script sets up its process group itself, in whatever way it does without us. The settings come
from the process that launched the profile, in one variable.
"""

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from stallwise.errors import RunError
from stallwise.run.manifest import JobRecord, WorldRecord, new_manifest, read_manifest, redact, redact_environment
from stallwise.run.writer import start_run
from stallwise.units import GB

if TYPE_CHECKING:
    from stallwise.run.writer import RankWriter

SETTINGS_VARIABLE = "STALLWISE_SETTINGS"
PROGRESS_NAME = "progress.json"
"""In rank 0's folder while it runs: phase, round and steps so far."""
STACKS_NAME = "stacks.txt"
"""In a rank's folder: empty, until the rank hangs."""
PROCESS_NAME = "process"
"""In a rank's folder while it runs: its process id."""
WORKERS_NAME = "workers"
"""In a rank's folder: what its loader workers write."""


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to profile. The command line's options end up here; the defaults are the command line's."""

    folder: str
    """Where the run is written."""
    light: bool = False
    """Observe only: no ablation, no early end."""
    trial: bool = False
    """A light profile of a job that only tries a setting: it writes to scratch, and is ended where it hangs."""
    cold: bool = True
    """Measure reads with the page cache dropped, where the data lies in local files."""
    warmup_steps: int = 5
    """Steps before anything counts; never fewer than two repetitions of the job's cycle."""
    block_s: float = 0.5
    """A block lasts at least this long."""
    min_rounds: int = 8
    """Rounds of all phases before the intervals may end the profile."""
    tightness: float = 0.01
    """Half-width of a stall's interval, as a fraction of the step, at which the profile is good enough."""
    until_certain: bool = False
    """End as soon as one stall is certain to be the largest, or all are certain to be small."""
    brief: bool = False
    """Of a job of one process, leave out what tells no stalls apart (layers, windows, a trace) where it takes long."""
    max_s: float = 120.0
    """Time budget after warm-up."""
    max_steps: int | None = None
    """Step budget after warm-up."""
    allow_writes: bool = False
    """Let files go where the script says."""
    overlay: bool = True
    """Let the job write to a throw-away overlay of the file system, where that is possible."""
    overlaid: bool = False
    """Whether the job does; set by the launcher."""
    keep_writes: bool = False
    """Keep what the script writes, in the run's scratch folder."""
    hang_after_s: float = 300.0
    """Without a step for this long, save the stacks of all threads and end."""
    ring_bytes: int = 1 * GB
    """Bound on the batches kept for replay."""

    def to_environment(self) -> dict[str, str]:
        """The variable to start ranks with."""
        return {SETTINGS_VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls) -> Self | None:
        """The settings of the launcher; None in a process that it did not start."""
        text = os.environ.get(SETTINGS_VARIABLE)
        return msgspec.json.decode(text, type=cls) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
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


def rank_place(variables: Mapping[str, str] | None = None) -> RankPlace:
    """The place of this process, from environment variables; the nearest launcher counts (torchrun inside srun)."""
    variables = os.environ if variables is None else variables
    if "RANK" in variables:
        return _from_torchrun(variables)
    if "LOCAL_RANK" in variables and "WORLD_SIZE" in variables:
        # Lightning starts its other ranks so, and leaves the rank to be worked out.
        return RankPlace(
            rank=_number(variables, "LOCAL_RANK"),
            size=_number(variables, "WORLD_SIZE", 1),
            local_rank=_number(variables, "LOCAL_RANK"),
        )
    # A batch script has SLURM_PROCID too; only srun starts steps.
    if "SLURM_PROCID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
        return _from_slurm(variables)
    for names in _MPI:
        if names[0] in variables and names[1] in variables:
            return _from_mpi(variables, names)
    return RankPlace()


def _from_torchrun(variables: Mapping[str, str]) -> RankPlace:
    return RankPlace(
        rank=_number(variables, "RANK"),
        size=_number(variables, "WORLD_SIZE", 1),
        local_rank=_number(variables, "LOCAL_RANK"),
        local_size=_number(variables, "LOCAL_WORLD_SIZE") or None,
        node=_number(variables, "GROUP_RANK"),
    )


def _from_slurm(variables: Mapping[str, str]) -> RankPlace:
    node = _number(variables, "SLURM_NODEID")
    counts = set(tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", "")))
    return RankPlace(
        rank=_number(variables, "SLURM_PROCID"),
        size=_number(variables, "SLURM_STEP_NUM_TASKS", 1),
        local_rank=_number(variables, "SLURM_LOCALID"),
        local_size=counts.pop() if len(counts) == 1 else None,
        node=node,
    )


def _from_mpi(variables: Mapping[str, str], names: tuple[str, str, str, str]) -> RankPlace:
    rank, size, local_rank, local_size = (_number(variables, name) for name in names)
    node = rank // local_size if local_size else 0
    return RankPlace(rank=rank, size=max(1, size), local_rank=local_rank, local_size=local_size or None, node=node)


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's short form: `2(x3),1` means three nodes with two tasks and one with one."""
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, nodes in groups for _ in range(int(nodes or 1))]


def job_name(variables: Mapping[str, str] | None = None) -> str | None:
    """The launcher's name for the job, the same in all ranks and another one next time; None where it has none."""
    variables = os.environ if variables is None else variables
    if variables.get("TORCHELASTIC_RUN_ID", "none") != "none":  # torchrun's default
        return variables["TORCHELASTIC_RUN_ID"]
    if "SLURM_JOB_ID" in variables and "SLURM_STEP_ID" in variables:
        return f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"
    return variables.get("SLURM_JOB_ID") or variables.get("PMIX_NAMESPACE")


def _number(variables: Mapping[str, str], name: str, default: int = 0) -> int:
    text = variables.get(name, "")
    return int(text) if text.isdigit() else default


def begin_record(
    folder: Path,
    *,
    script: str,
    arguments: Sequence[str],
    launcher: str | None,
    module: bool = False,
    world: WorldRecord | None = None,
    run_id: str | None = None,
    exist_ok: bool = False,
) -> None:
    """Create the run. With `exist_ok`, another node may have created it first in a shared folder."""
    job = JobRecord(
        script=script,
        arguments=tuple(redact(list(arguments))),
        launcher=launcher,
        module=module,
        environment=redact_environment(os.environ),
    )
    try:
        start_run(folder, new_manifest(job, world=world, run_id=run_id))
    except RunError:
        if not exist_ok or read_manifest(folder).state != "recording":
            raise


def begin_own_record(
    folder: Path, place: RankPlace, name: str, script: str, arguments: Sequence[str], *, module: bool = False
) -> None:
    """Create the run of a job that we did not launch; of several ranks the first does, and the others find it."""
    begin_record(
        folder,
        script=script,
        arguments=tuple(arguments),
        launcher=None,
        module=module,
        world=WorldRecord(world_size=place.size, nnodes=place.nodes),
        run_id=name if place.size > 1 else None,
        exist_ok=place.size > 1,
    )


def open_writer(folder: Path, place: RankPlace) -> "RankWriter":
    """Begin this rank's part of the run."""
    import torch

    from stallwise.record.node import this_node
    from stallwise.run.writer import RankWriter

    software = {"python": platform.python_version(), "torch": str(torch.__version__), "system": platform.system()}
    if torch.version.cuda:
        software["cuda"] = torch.version.cuda
    return RankWriter.open(
        folder,
        place.rank,
        node=place.node,
        hardware=this_node(place.node) if place.local_rank == 0 else None,
        software=software,
        clock_zero_s=time.monotonic(),
    )
