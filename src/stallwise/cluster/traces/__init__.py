"""Job traces: readers of published formats, and the speeds that were measured with them.

| module     | contents                                                                           |
| ---------- | ---------------------------------------------------------------------------------- |
| _formats   | `read_trace`: which format a file has                                              |
| rows       | `Trace`, its rows and their problems, whether it fits a cluster                    |
| _logs      | formats with a duration per job: plain, Tiresias, Dally, Philly, Alibaba           |
| _workloads | formats whose durations follow from measured speeds: Gavel, Pollux, ElasticFlow … |
| rhythm     | submissions per interval (Helios): when the jobs of another trace arrive           |
| speeds     | how fast the jobs of a trace run by placement                                      |
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.cluster.traces._formats import read_trace
    from stallwise.cluster.traces.rows import RowProblem, Trace, mark_misfits, usable_trace
    from stallwise.cluster.traces.speeds import MeasuredSpeeds, trace_speeds

__all__ = [
    "MeasuredSpeeds",
    "RowProblem",
    "Trace",
    "mark_misfits",
    "read_trace",
    "trace_speeds",
    "usable_trace",
]

__getattr__ = loader(
    __name__,
    {
        "MeasuredSpeeds": "speeds",
        "RowProblem": "rows",
        "Trace": "rows",
        "mark_misfits": "rows",
        "read_trace": "_formats",
        "trace_speeds": "speeds",
        "usable_trace": "rows",
    },
)
