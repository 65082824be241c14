"""Readers of job traces; `read_trace` knows the format by the header.

| format | known by |
| --- | --- |
| plain | job_id, submit_s, gpus, duration_s (and model, user, batch_size) |
| Dally | arrival_time_s, total_iterations, time_per_iteration_1gpu_s |
| Tiresias | num_gpu, submit_time, iterations, model_name, duration |
| Philly slice | job_id, num_gpu, submit_time, duration |
| Philly log (Sia) | timestamp, duration, num_gpus, gpu_time, cluster |
| Themis | experiment-id, start-time, run-time, or experiment_id, start_time, running_time |
| Gavel, Shockwave | job_type, total_steps, num_gpus, arrival_time_s; native traces: ten fields between tabs |
| Pollux, Sia | name, time, application, num_replicas, batch_size |
| Alibaba GPU 2023 | num_gpu, gpu_milli, creation_time, deletion_time, scheduled_time |
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stallwise.cluster.traces import alibaba, dally, gavel, helios, philly, plain, pollux
from stallwise.cluster.traces.measured import Measured
from stallwise.cluster.traces.rows import Problem, Table, Trace
from stallwise.cluster.traces.table import read_table
from stallwise.errors import InputError

__all__ = ["FORMATS", "Measured", "Problem", "Trace", "read_trace"]

Reader = Callable[[Table, Path, Measured], Trace]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace: the columns it is known by, and who reads it."""

    name: str
    columns: frozenset[str]
    read: Reader


def _of_table(read: Callable[[Table], Trace]) -> Reader:
    return lambda table, _path, _measured: read(table)


# The first whose columns are all there: what has more columns stands before what has fewer.
FORMATS: tuple[Format, ...] = (
    Format("plain", plain.PLAIN, _of_table(plain.read_plain)),
    Format("Dally", dally.DALLY, _of_table(dally.read_dally)),
    Format("Tiresias", plain.TIRESIAS, _of_table(plain.read_tiresias)),
    Format("Philly slice", plain.SLICE, _of_table(plain.read_slice)),
    Format("Philly log", philly.LOG, _of_table(philly.read_philly_log)),
    Format("Themis", philly.HYPERDRIVE, _of_table(philly.read_hyperdrive)),
    Format("Themis", philly.PROCESSED, _of_table(philly.read_processed)),
    Format("Shockwave", gavel.SHOCKWAVE, gavel.read_shockwave),
    Format("Gavel", gavel.GAVEL, gavel.read_gavel),
    Format("Pollux or Sia", pollux.WORKLOAD, pollux.read_workload),
    Format("Alibaba GPU 2023", alibaba.PODS, _of_table(alibaba.read_pods)),
)

# Tables of the same sources that hold something else, with what they are for.
_OTHERS: tuple[tuple[frozenset[str], str], ...] = (
    (helios.COUNTS, "counts submissions per interval and has no jobs; give it to --arrivals, with another trace"),
    (frozenset({"ip", "ASW"}), "is a topology; give it to --cluster"),
    (frozenset({"num_switch", "num_gpu_p_node"}), "is a cluster; give it to --cluster"),
    (frozenset({"", "num"}), "lists virtual clusters and their nodes; give it to --cluster"),
    (frozenset({"sn", "gpu"}), "is a list of nodes; give it to --cluster"),
    (frozenset({"model1", "model2", "speed1"}), "holds speeds of packed pairs and has no jobs"),
    (frozenset({"layer", "fwd_compute_ns"}), "is a layer profile; give its folder to --profiles, with a trace"),
    (frozenset({"placement", "step_time"}), "holds step times; give the folder above it to --profiles, with a trace"),
)


def read_trace(path: Path, measured: Measured | None = None) -> Trace:
    """Jobs, problems by line, and notes; a sentence for a file that is none of the known kinds."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name one trace in it.")
    table = read_table(path)
    asked = measured or Measured()
    if not table.columns:
        return gavel.read_native(table, path, asked)
    columns = set(table.columns)
    for known in FORMATS:
        if known.columns <= columns:
            return known.read(table, path, asked)
    raise InputError(_no_trace(path, columns, table.columns))


def _no_trace(path: Path, columns: set[str], written: tuple[str, ...]) -> str:
    for wanted, said in _OTHERS:
        if wanted <= columns:
            return f"{path.name} {said}."
    nearest = max(FORMATS, key=lambda known: (len(known.columns & columns), -len(known.columns)))
    missing = ", ".join(sorted(nearest.columns - columns))
    shown = ", ".join(written[:8]) + (" …" if len(written) > 8 else "")
    if nearest.columns & columns:
        return f"{path.name} is nearest to a {nearest.name} trace, but lacks {missing}; it has {shown}."
    return (
        f"{path.name} is no known trace: its first line is {shown[:100]!r}. A plain trace has the columns job_id, "
        "submit_s, gpus, duration_s, and model where it is known."
    )
