"""Formats of job traces: `read_trace` recognises one by the columns of its header.

| format | known by |
| --- | --- |
| plain | job_id, submit_s, gpus, duration_s (and model, user, batch_size) |
| Dally | arrival_time_s, total_iterations, time_per_iteration_1gpu_s |
| Tiresias | num_gpu, submit_time, iterations, model_name, duration |
| Philly slice | job_id, num_gpu, submit_time, duration |
| Philly log (Sia) | timestamp, duration, num_gpus, gpu_time, cluster |
| Themis | experiment-id, start-time, run-time, or experiment_id, start_time, running_time |
| Gavel, Shockwave | job_type, total_steps, num_gpus, arrival_time_s; native traces: ten fields between tabs |
| ElasticFlow | job_id, submission_time, num_iteration, model_name, deadline, batch_size, num_gpu, duration |
| Pollux, Sia | name, time, application, num_replicas, batch_size |
| Alibaba GPU 2023 | num_gpu, gpu_milli, creation_time, deletion_time, scheduled_time |
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stallwise.cluster.traces._logs import (
    DALLY,
    HYPERDRIVE,
    LOG,
    PLAIN,
    PODS,
    PROCESSED,
    SLICE,
    TIRESIAS,
    read_dally,
    read_hyperdrive,
    read_philly_log,
    read_plain,
    read_pods,
    read_processed,
    read_slice,
    read_tiresias,
)
from stallwise.cluster.traces._workloads import (
    ELASTICFLOW,
    GAVEL,
    SHOCKWAVE,
    WORKLOAD,
    read_elasticflow,
    read_gavel,
    read_native,
    read_shockwave,
    read_workload,
)
from stallwise.cluster.traces.rhythm import COUNTS
from stallwise.cluster.traces.rows import Trace, TraceTable, read_table
from stallwise.cluster.traces.speeds import MeasuredSpeeds
from stallwise.errors import InputError

Reader = Callable[[TraceTable, Path, MeasuredSpeeds], Trace]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A kind of trace: its name, the columns it is recognised by, and its reader."""

    name: str
    columns: frozenset[str]
    read: Reader


def _from_table(read: Callable[[TraceTable], Trace]) -> Reader:
    return lambda table, _path, _measured: read(table)


# The first format whose columns are all present is taken: formats with more columns stand before those with fewer.
FORMATS: tuple[TraceFormat, ...] = (
    TraceFormat("plain", PLAIN, _from_table(read_plain)),
    TraceFormat("ElasticFlow", ELASTICFLOW, read_elasticflow),
    TraceFormat("Dally", DALLY, _from_table(read_dally)),
    TraceFormat("Tiresias", TIRESIAS, _from_table(read_tiresias)),
    TraceFormat("Philly slice", SLICE, _from_table(read_slice)),
    TraceFormat("Philly log", LOG, _from_table(read_philly_log)),
    TraceFormat("Themis", HYPERDRIVE, _from_table(read_hyperdrive)),
    TraceFormat("Themis", PROCESSED, _from_table(read_processed)),
    TraceFormat("Shockwave", SHOCKWAVE, read_shockwave),
    TraceFormat("Gavel", GAVEL, read_gavel),
    TraceFormat("Pollux or Sia", WORKLOAD, read_workload),
    TraceFormat("Alibaba GPU 2023", PODS, _from_table(read_pods)),
)

# Tables of the same sources that are no traces: columns, what they hold, and the parameter they are for.
_OTHER_TABLES: tuple[tuple[frozenset[str], str, tuple[str, ...]], ...] = (
    (
        COUNTS,
        "counts submissions per interval and has no jobs; it can give the arrivals of another trace",
        ("arrivals",),
    ),
    (frozenset({"ip", "ASW"}), "is a topology, not a trace", ("cluster",)),
    (frozenset({"num_switch", "num_gpu_p_node"}), "is a cluster, not a trace", ("cluster",)),
    (frozenset({"", "num"}), "lists virtual clusters and their nodes, not jobs", ("cluster",)),
    (frozenset({"sn", "gpu"}), "is a list of nodes, not a trace", ("cluster",)),
    (frozenset({"model1", "model2", "speed1"}), "holds speeds of packed pairs and has no jobs", ()),
    (
        frozenset({"layer", "fwd_compute_ns"}),
        "is a layer profile; its folder gives the speeds of another trace",
        ("profiles",),
    ),
    (
        frozenset({"placement", "step_time"}),
        "holds step times; the folder above it gives the speeds of another trace",
        ("profiles",),
    ),
)


def read_trace(path: Path, measured: MeasuredSpeeds | None = None) -> Trace:
    """Read the jobs of a trace, with a problem per unusable line and notes; raise `InputError` for other files."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name one trace in it.")
    table = read_table(path)
    measured = measured or MeasuredSpeeds()
    if not table.columns:
        return read_native(table, path, measured)
    columns = set(table.columns)
    for candidate in FORMATS:
        if candidate.columns <= columns:
            return candidate.read(table, path, measured)
    raise _not_a_trace(path, columns, table.columns)


def _not_a_trace(path: Path, columns: set[str], header: tuple[str, ...]) -> InputError:
    for needed, description, parameters in _OTHER_TABLES:
        if needed <= columns:
            return InputError(f"{path.name} {description}.", fields=parameters)
    nearest = max(FORMATS, key=lambda candidate: (len(candidate.columns & columns), -len(candidate.columns)))
    missing = ", ".join(sorted(nearest.columns - columns))
    shown = ", ".join(header[:8]) + (" …" if len(header) > 8 else "")
    if nearest.columns & columns:
        return InputError(f"{path.name} is nearest to a {nearest.name} trace, but lacks {missing}; it has {shown}.")
    return InputError(
        f"{path.name} is no known trace: its first line is {shown[:100]!r}. A plain trace has the columns job_id, "
        "submit_s, gpus, duration_s, and model where it is known."
    )
