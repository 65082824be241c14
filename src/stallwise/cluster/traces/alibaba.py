"""Pods of Alibaba's GPU cluster, 2023 (`openb_pod_list_*.csv`): shares of a GPU, few pods of more than one."""

from dataclasses import replace

from stallwise.cluster.job import Job
from stallwise.cluster.traces.rows import BadRowError, Fields, LeftOut, Table, Trace, collect, identity, seconds, whole
from stallwise.errors import InputError

PODS = frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_WHOLE_GPU_MILLI = 1000


def read_pods(table: Table) -> Trace:
    """From scheduled to deleted is the work; a share of a GPU takes a whole one."""
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
            raise LeftOut("pods without a GPU")
        if not fields[scheduled].strip():
            raise LeftOut("pods that never ran")
        work_s = seconds(fields[deleted], "deletion_time") - seconds(fields[scheduled], "scheduled_time")
        if work_s < 0:
            raise BadRowError("deleted before it was scheduled")
        if work_s == 0:
            raise LeftOut("pods of 0 s")
        made = Job(
            id=identity(fields[name], "name"),
            arrival_s=seconds(fields[created], "creation_time"),
            gpus=whole(fields[gpus], "num_gpu"),
            work_s=work_s,
            line=line,
        )
        shared += whole(fields[share], "gpu_milli") < _WHOLE_GPU_MILLI
        return made

    found = collect(table, "Alibaba GPU 2023", parse)
    said = (f"{shared:,} pods ask for a share of a GPU: each takes a whole one.",) if shared else ()
    return replace(found, notes=(*found.notes, *said))
