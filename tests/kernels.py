"""Compile what numba compiles, and the tests as pytest rewrites them, and keep it: `python -m tests.kernels`.

Half a minute of one core, once per change of the kernels. Before the tests that is all it costs; in the middle of them
it falls into the one that comes first, beside five others, while more of them wait for the result.
"""

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = str(ROOT / "examples/runs/images")
JOBS = "job_id,submit_s,gpus,duration_s\na,0,1,60\nb,10,2,60\n"
MACHINES = "machine_id,start_s,end_s,cpu,memory_gib,priority\nm1,0,7200,1,2,\nm2,300,9000,2,4,0.3\n"
COMMANDS = (
    ("simulate", "jobs.csv", "--cluster", "racks=1,machines=2,gpus=4", "--policy", "fifo"),
    ("overcommit", "machines.csv", "--host", "cpu=16,memory=64GiB", "--overcommit", "0%,50%"),
    ("spot", "plan", RUN, "--steps=1000", "--mean-life=9h", "--price=3", "--spot-price=1", "--checkpoint-time=5s"),
)


def run(words: Sequence[str]) -> None:
    """The command, whose answer nobody reads."""
    from stallwise.cli.main import run as program

    sys.argv = ["stallwise", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            program()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"stallwise {' '.join(words)} ended with {end.code}") from None


def decide() -> None:
    """A controller's decisions are a program of their own."""
    from tests.slurm.killing import load

    load()


def rewrite() -> None:
    """In a new clone every worker would otherwise rewrite the assertions of every test at the same time."""
    if not list((ROOT / "tests/__pycache__").glob("*-pytest-*.pyc")):
        collect = [sys.executable, "-m", "pytest", "--collect-only", "--numprocesses", "0"]
        subprocess.run(collect, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """All of them, on as many cores as there are."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ProcessPoolExecutor() as pool:
        Path("jobs.csv").write_text(JOBS)
        Path("machines.csv").write_text(MACHINES)
        for work in [pool.submit(rewrite), pool.submit(decide), *(pool.submit(run, words) for words in COMMANDS)]:
            work.result()


if __name__ == "__main__":
    main()
