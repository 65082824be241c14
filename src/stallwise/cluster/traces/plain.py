"""Traces with a duration per job: our own plain CSV and the job lists of the Tiresias simulator (NSDI 2019)."""

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import Fields, Table, Trace, collect, duration, identity, known_model, seconds, whole

PLAIN = frozenset({"job_id", "submit_s", "gpus", "duration_s"})
TIRESIAS = frozenset({"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration"})
SLICE = frozenset({"job_id", "num_gpu", "submit_time", "duration"})

# The models of Tiresias' own generator; its simulator knows their tensors.
TIRESIAS_MODELS = (
    "alexnet", "googlenet", "inception3", "inception4", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19",
)  # fmt: skip


def read_plain(table: Table) -> Trace:
    """`job_id,submit_s,gpus,duration_s`, and `model`, `user`, `batch_size` where they are columns."""
    at = {name: place for place, name in enumerate(table.columns)}
    job_id, submit, gpus, lasts = at["job_id"], at["submit_s"], at["gpus"], at["duration_s"]
    model, user, batch = at.get("model"), at.get("user"), at.get("batch_size")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=identity(fields[job_id]),
            arrival_s=seconds(fields[submit], "submit_s"),
            gpus=whole(fields[gpus], "gpus"),
            work_s=duration(fields[lasts], "duration_s"),
            model=fields[model].strip() or None if model is not None else None,
            batch_size=whole(fields[batch], "batch_size") if batch is not None and fields[batch].strip() else None,
            user=fields[user].strip() or None if user is not None else None,
            line=line,
        )

    return collect(table, "plain", parse)


def read_tiresias(table: Table) -> Trace:
    """`duration` is execution once all GPUs are held; `iterations` and `interval` say the same in other words."""
    job_id, gpus, submit = table.at("job_id"), table.at("num_gpu"), table.at("submit_time")
    lasts, model = table.at("duration"), table.at("model_name")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=identity(fields[job_id]),
            arrival_s=seconds(fields[submit], "submit_time"),
            gpus=whole(fields[gpus], "num_gpu"),
            work_s=duration(fields[lasts]),
            model=known_model(fields[model], TIRESIAS_MODELS, "model_name"),
            line=line,
        )

    return collect(table, "Tiresias", parse)


def read_slice(table: Table) -> Trace:
    """Slices of Microsoft's Philly log: no model names."""
    job_id, gpus, submit, lasts = (table.at(name) for name in ("job_id", "num_gpu", "submit_time", "duration"))

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=identity(fields[job_id]),
            arrival_s=seconds(fields[submit], "submit_time"),
            gpus=whole(fields[gpus], "num_gpu"),
            work_s=duration(fields[lasts]),
            line=line,
        )

    return collect(table, "Philly slice", parse)
