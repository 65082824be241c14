"""`sbatch --hold`, with what the job says about itself in its comment. Nothing else is changed or hidden."""

import re
import subprocess
from collections.abc import Sequence

from stallwise.errors import InputError, MissingFeatureError
from stallwise.slurm.ask import Ask, comment_of
from stallwise.slurm.facts import SlurmError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def sbatch_words(
    ask: Ask, words: Sequence[str], *, gpus: int | None, nodes: str | None, partition: str | None
) -> list[str]:
    """The command line. The user's own words come last, so that what they say again counts.

    Without --nodes a gang may lie on anything from one node to one GPU per node: the policy decides.
    """
    if not words:
        raise InputError("Which script? Give it as for sbatch: stallwise submit --gpus 8 train.sh")
    if nodes is not None and (gpus is None or not _fits(nodes, gpus)):
        raise InputError(f"--nodes {nodes} does not fit --gpus: give a number or a range like 1-4 of nodes.")
    command = ["sbatch", "--hold", "--requeue", f"--comment={comment_of(ask)}"]
    if gpus is not None:
        command += [f"--gpus={gpus}", f"--nodes={nodes or f'1-{gpus}'}"]
    if partition is not None:
        command.append(f"--partition={partition}")
    return [*command, *words]


def _fits(nodes: str, gpus: int) -> bool:
    found = _RANGE.fullmatch(nodes)
    return found is not None and 1 <= int(found[1]) <= min(int(found[2] or found[1]), gpus)


def submit(command: Sequence[str], timeout_s: float = 60.0) -> str:
    """Run sbatch; what it says on success."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except FileNotFoundError:
        raise MissingFeatureError("sbatch is not installed here. Run this where Slurm's commands are.") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"sbatch gave no answer within {timeout_s:g} s. Look with squeue whether it came through."
        ) from None
    if done.returncode != 0:
        raise SlurmError(f"sbatch refused the job: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout.strip()
