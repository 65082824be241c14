"""SkyPilot's optimizer with the times of a measured job: python recommend_in_skypilot.py RUN TASK.yaml SAMPLES

The task comes from `stallwise recommend RUN --skypilot TASK.yaml`. SkyPilot takes every task to last an hour unless it
has a time estimator; with this one it sees what the job takes on each candidate.
"""

import sys
from pathlib import Path

import sky

from stallwise.analysis.analysis import open_run
from stallwise.cloud.handover import estimator
from stallwise.cloud.request import RecommendRequest
from stallwise.hardware import load_catalog


def main(run: str, task_file: str, samples: str) -> None:
    """Print how long and how dear each candidate is."""
    catalog = load_catalog()
    subject = open_run(Path(run), catalog).model()
    task = sky.Task.from_yaml(task_file)
    task.set_time_estimator(estimator(subject, RecommendRequest(samples=float(samples)), catalog, nodes=task.num_nodes))
    for resources in task.resources:
        seconds = task.estimate_runtime(resources)
        print(f"{resources}: {seconds / 3600:.2f} h, ${task.num_nodes * resources.get_cost(seconds):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
