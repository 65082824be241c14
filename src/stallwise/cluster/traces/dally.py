"""Job lists of Dally's simulator (SenseTime jobs; Sharma et al., arXiv 2401.16492).

The wall time in the log is taken as the work of one GPU, as the released simulator does: a gang of n runs
total_iterations x time_per_iteration / n seconds where the network costs nothing.
"""

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    Table,
    Trace,
    collect,
    duration,
    identity,
    known_model,
    seconds,
    whole,
)

DALLY = frozenset({"job_id", "arrival_time_s", "num_gpus", "model", "total_iterations", "time_per_iteration_1gpu_s"})
MODELS = ("AlexNet", "BERT", "MobileNetV3", "ResNet18", "ResNet50", "VGG")


def read_dally(table: Table) -> Trace:
    """`ideal_duration_s` where it is a column, else from iterations and their time."""
    at = {name: place for place, name in enumerate(table.columns)}
    job_id, arrival, gpus, model = at["job_id"], at["arrival_time_s"], at["num_gpus"], at["model"]
    count, each = at["total_iterations"], at["time_per_iteration_1gpu_s"]
    ideal, batch = at.get("ideal_duration_s"), at.get("batchsize")
    busy, user = at.get("gpu_util"), at.get("user")

    def parse(line: int, fields: Fields) -> Job:
        gang = whole(fields[gpus], "num_gpus")
        each_s = duration(fields[each], "time_per_iteration_1gpu_s")
        work_s = whole(fields[count], "total_iterations") * each_s / gang
        return Job(
            id=identity(fields[job_id]),
            arrival_s=seconds(fields[arrival], "arrival_time_s"),
            gpus=gang,
            work_s=work_s if ideal is None else duration(fields[ideal], "ideal_duration_s"),
            model=known_model(fields[model], MODELS),
            batch_size=None if batch is None else whole(fields[batch], "batchsize"),
            iteration_s=each_s,
            gpu_utilisation=None if busy is None else _share(fields[busy]),
            user=None if user is None else fields[user].strip() or None,
            line=line,
        )

    return collect(table, "Dally", parse)


def _share(text: str) -> float | None:
    """Percent of a GPU that the job keeps busy; unknown where nothing stands."""
    if not text.strip():
        return None
    percent = seconds(text, "gpu_util")
    if percent > 100:
        raise BadRowError("gpu_util above 100", f"gpu_util {text.strip()} is above 100 %")
    return percent / 100
