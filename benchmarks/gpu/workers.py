"""From one profile with two workers, the speed at other numbers of workers: predicted, then measured bare.

python -m benchmarks.gpu.workers [model …]

Bar (written before the measurement): median error at most 7 %.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.train import BATCH
from stallwise.analysis.split import measure
from stallwise.model.data.datapath import LoaderWork, step_with_workers
from stallwise.model.statistics.intervals import median_of_block_means
from stallwise.run import phases
from stallwise.run.reader import Run

JOB = str(Path(__file__).with_name("train.py"))
WORKERS = (1, 4, 8, 16)
SECONDS = 10


def bare(model: str, workers: int) -> float:
    """Samples per second of the uninstrumented script."""
    options = ["--model", model, "--workers", str(workers), "--seconds", str(SECONDS)]
    done = subprocess.run([sys.executable, JOB, *options], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"])


def predicted(model: str, folder: Path) -> dict[int, float]:
    """Samples per second at each number of workers, from a profile with two."""
    command = ["profile", "--no-cold", "--max-time", "25s", "-o", str(folder), JOB, "--model", model, "--workers", "2"]
    done = subprocess.run([sys.executable, "-m", "stallwise", *command], capture_output=True, text=True, check=True)
    print(done.stdout)
    found = measure(Run.open(folder))
    assert found.data is not None
    consume_s = median_of_block_means(list(found.rungs[phases.HOST].values())).value
    work: LoaderWork = found.data.work
    cores = Run.open(folder).manifest.nodes[0].cores or 1
    return {n: BATCH[model] / step_with_workers(work, consume_s, n, cores) for n in WORKERS}


def main() -> None:
    """Print a table and the median and worst error."""
    errors = []
    for model in sys.argv[1:] or list(BATCH):
        with tempfile.TemporaryDirectory() as folder:
            said = predicted(model, Path(folder) / "run")
        for workers in WORKERS:
            real = bare(model, workers)
            errors.append(abs(said[workers] / real - 1))
            print(
                f"{model} workers={workers}: predicted {said[workers]:.0f}, measured {real:.0f} samples/s", flush=True
            )
    print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(errors)} cases")


if __name__ == "__main__":
    main()
