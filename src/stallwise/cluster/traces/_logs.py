"""Traces with a duration per job.

| source             | files                                                                             |
| ------------------ | --------------------------------------------------------------------------------- |
| plain              | our own CSV                                                                       |
| Tiresias           | job lists of its simulator (NSDI 2019), and slices of Microsoft's Philly log      |
| Dally              | SenseTime jobs (Sharma et al., arXiv 2401.16492)                                  |
| Philly (CC BY 4.0) | Sia's CSV of 82,247 jobs, Themis' two samples                                     |
| Alibaba            | pods of its GPU cluster of 2023: shares of a GPU, few pods of more than one       |
"""

from dataclasses import replace

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    SkippedRow,
    Trace,
    TraceTable,
    collect,
    earliest_date,
    known_model,
    parse_count,
    parse_date,
    parse_duration,
    parse_name,
    parse_time,
)
from stallwise.errors import InputError
from stallwise.sentences import Sentence

PLAIN = frozenset({"job_id", "submit_s", "gpus", "duration_s"})
TIRESIAS = frozenset({"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration"})
SLICE = frozenset({"job_id", "num_gpu", "submit_time", "duration"})

# The models of Tiresias' own generator; its simulator knows their tensors.
TIRESIAS_MODELS = (
    "alexnet", "googlenet", "inception3", "inception4", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19",
)  # fmt: skip


def read_plain(table: TraceTable) -> Trace:
    """Read the plain columns, and `model`, `user`, `batch_size`, `deadline_s` where they are there."""
    at = {name: place for place, name in enumerate(table.columns)}
    job_id, submit, gpus, lasts = at["job_id"], at["submit_s"], at["gpus"], at["duration_s"]
    model, user, batch = at.get("model"), at.get("user"), at.get("batch_size")
    deadline = at.get("deadline_s")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=parse_name(fields[job_id]),
            arrival_s=parse_time(fields[submit], "submit_s"),
            gpus=parse_count(fields[gpus], "gpus"),
            work_s=parse_duration(fields[lasts], "duration_s"),
            model=fields[model].strip() or None if model is not None else None,
            batch_size=parse_count(fields[batch], "batch_size")
            if batch is not None and fields[batch].strip()
            else None,
            deadline_s=parse_duration(fields[deadline], "deadline_s")
            if deadline is not None and fields[deadline].strip()
            else None,
            user=fields[user].strip() or None if user is not None else None,
            line=line,
        )

    return collect(table, "plain", parse)


def read_tiresias(table: TraceTable) -> Trace:
    """Read a Tiresias list. `duration` is execution once all GPUs are held, as are `iterations` times `interval`."""
    job_id, gpus, submit = table.at("job_id"), table.at("num_gpu"), table.at("submit_time")
    lasts, model = table.at("duration"), table.at("model_name")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=parse_name(fields[job_id]),
            arrival_s=parse_time(fields[submit], "submit_time"),
            gpus=parse_count(fields[gpus], "num_gpu"),
            work_s=parse_duration(fields[lasts]),
            model=known_model(fields[model], TIRESIAS_MODELS, "model_name"),
            line=line,
        )

    return collect(table, "Tiresias", parse)


def read_slice(table: TraceTable) -> Trace:
    """Read a slice of Microsoft's Philly log, which has no model names."""
    job_id, gpus, submit, lasts = (table.at(name) for name in ("job_id", "num_gpu", "submit_time", "duration"))

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=parse_name(fields[job_id]),
            arrival_s=parse_time(fields[submit], "submit_time"),
            gpus=parse_count(fields[gpus], "num_gpu"),
            work_s=parse_duration(fields[lasts]),
            line=line,
        )

    return collect(table, "Philly slice", parse)


DALLY = frozenset({"job_id", "arrival_time_s", "num_gpus", "model", "total_iterations", "time_per_iteration_1gpu_s"})
MODELS = ("AlexNet", "BERT", "MobileNetV3", "ResNet18", "ResNet50", "VGG")


def read_dally(table: TraceTable) -> Trace:
    """Read a Dally list: `ideal_duration_s` where it is a column, else iterations times their time.

    The wall time in the log is taken as the work of one GPU, as the released simulator does: a gang of n runs
    total_iterations x time_per_iteration / n seconds where the network costs nothing.
    """
    at = {name: place for place, name in enumerate(table.columns)}
    job_id, arrival, gpus, model = at["job_id"], at["arrival_time_s"], at["num_gpus"], at["model"]
    count, each = at["total_iterations"], at["time_per_iteration_1gpu_s"]
    ideal, batch = at.get("ideal_duration_s"), at.get("batchsize")
    busy, user = at.get("gpu_util"), at.get("user")

    def parse(line: int, fields: Fields) -> Job:
        gang = parse_count(fields[gpus], "num_gpus")
        each_s = parse_duration(fields[each], "time_per_iteration_1gpu_s")
        work_s = parse_count(fields[count], "total_iterations") * each_s / gang
        return Job(
            id=parse_name(fields[job_id]),
            arrival_s=parse_time(fields[arrival], "arrival_time_s"),
            gpus=gang,
            work_s=work_s if ideal is None else parse_duration(fields[ideal], "ideal_duration_s"),
            model=known_model(fields[model], MODELS),
            batch_size=None if batch is None else parse_count(fields[batch], "batchsize"),
            iteration_s=each_s,
            gpu_utilisation=None if busy is None else _share(fields[busy]),
            user=None if user is None else fields[user].strip() or None,
            line=line,
        )

    return collect(table, "Dally", parse)


def _share(text: str) -> float | None:
    """Parse the per cent of a GPU that the job keeps busy; None where the field is empty."""
    if not text.strip():
        return None
    percent = parse_time(text, "gpu_util")
    if percent > 100:
        raise BadRowError("gpu_util above 100", f"gpu_util {text.strip()} is above 100 %")
    return percent / 100


LOG = frozenset({"timestamp", "duration", "num_gpus", "gpu_time", "cluster"})
HYPERDRIVE = frozenset({"experiment-id", "job-id", "start-time", "run-time", "num-gpus"})
PROCESSED = frozenset({"experiment_id", "start_time", "running_time", "num_gpus"})


def read_philly_log(table: TraceTable) -> Trace:
    """Read one row per job with the date of submission; the line is the id, `cluster` is the user."""
    at, lasts, gpus, group = (table.at(name) for name in ("timestamp", "duration", "num_gpus", "cluster"))
    began_s = earliest_date(table, at, "timestamp")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=str(line),
            arrival_s=parse_date(fields[at], "timestamp") - began_s,
            gpus=parse_count(fields[gpus], "num_gpus"),
            work_s=parse_duration(fields[lasts]),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(
        table,
        "Philly log",
        parse,
        (Sentence("trace.from-first", "Submissions are counted from the first one."),),
    )


def read_hyperdrive(table: TraceTable) -> Trace:
    """Read jobs of hyper-parameter searches; the start in the log is taken as the submission."""
    group, job_id, at = table.at("experiment-id"), table.at("job-id"), table.at("start-time")
    lasts, gpus = table.at("run-time"), table.at("num-gpus")
    began_s = earliest_date(table, at, "start-time")

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=parse_name(fields[job_id], "job-id"),
            arrival_s=parse_date(fields[at], "start-time") - began_s,
            gpus=parse_count(fields[gpus], "num-gpus"),
            work_s=parse_duration(fields[lasts], "run-time"),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(
        table,
        "Themis Philly",
        parse,
        (Sentence("trace.starts", "The log has starts, not submissions: they stand for arrivals."),),
    )


def read_processed(table: TraceTable) -> Trace:
    """Read the same with seconds from the start; the first column, without a name, is the id."""
    at, lasts, gpus, group = (table.at(name) for name in ("start_time", "running_time", "num_gpus", "experiment_id"))

    def parse(line: int, fields: Fields) -> Job:
        return Job(
            id=parse_name(fields[0], "number in the first column"),
            arrival_s=parse_time(fields[at], "start_time"),
            gpus=parse_count(fields[gpus], "num_gpus"),
            work_s=parse_duration(fields[lasts], "running_time"),
            user=fields[group].strip() or None,
            line=line,
        )

    return collect(
        table,
        "Themis Philly",
        parse,
        (Sentence("trace.starts", "The log has starts, not submissions: they stand for arrivals."),),
    )


PODS = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_WHOLE_GPU_MILLI = 1000


def read_pods(table: TraceTable) -> Trace:
    """Read pods. The work is from scheduled to deleted; a share of a GPU takes a whole one."""
    if not set(_TIMES) <= set(table.columns):
        raise InputError(
            f"{table.source} lists pods without their times ({', '.join(_TIMES)}), so it cannot be simulated. Take "
            "openb_pod_list_default.csv."
        )
    name, gpus, share = table.at("name"), table.at("num_gpu"), table.at("gpu_milli")
    created, deleted, scheduled = (table.at(column) for column in _TIMES)
    shared = 0

    def parse(line: int, fields: Fields) -> Job:
        nonlocal shared
        if fields[gpus].strip() == "0":
            raise SkippedRow("pods without a GPU")
        if not fields[scheduled].strip():
            raise SkippedRow("pods that never ran")
        work_s = parse_time(fields[deleted], "deletion_time") - parse_time(fields[scheduled], "scheduled_time")
        if work_s < 0:
            raise BadRowError("deleted before it was scheduled")
        if work_s == 0:
            raise SkippedRow("pods of 0 s")
        job = Job(
            id=parse_name(fields[name], "name"),
            arrival_s=parse_time(fields[created], "creation_time"),
            gpus=parse_count(fields[gpus], "num_gpu"),
            work_s=work_s,
            line=line,
        )
        shared += parse_count(fields[share], "gpu_milli") < _WHOLE_GPU_MILLI
        return job

    trace = collect(table, "Alibaba GPU 2023", parse)
    notes = (
        (Sentence("trace.gpu-shares", f"{shared:,} pods ask for a share of a GPU: each takes a whole one."),)
        if shared
        else ()
    )
    return replace(trace, notes=(*trace.notes, *notes))
