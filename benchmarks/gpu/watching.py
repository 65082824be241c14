"""What our light mode costs on a GPU: python -m benchmarks.gpu.watching"""

import sys

from benchmarks.watching import JOB, LAUNCHES, judge_light, run_blocks

if __name__ == "__main__":
    pairs = [pair for _ in range(LAUNCHES) for pair in run_blocks([sys.executable, JOB, "stallwise"])]
    print(judge_light(pairs))
