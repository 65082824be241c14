"""The run record: one measured execution of a job, as a folder that outlives the process that wrote it.

Writing, in order: `start_run` (the launcher), `RankWriter` (every rank), `join` (the launcher, at the end or
later). Reading: `Run.open`. The layout is described for outsiders in docs/run-record.md.
"""

from stallwise.run.join import join
from stallwise.run.manifest import (
    CountsRecord,
    JobRecord,
    Manifest,
    NodeRecord,
    PhaseRecord,
    WorldRecord,
    redact,
    redact_environment,
)
from stallwise.run.reader import Run
from stallwise.run.schema import BatchRow, EventRow, StepRow
from stallwise.run.writer import RankWriter, start_run

__all__ = [
    "BatchRow",
    "CountsRecord",
    "EventRow",
    "JobRecord",
    "Manifest",
    "NodeRecord",
    "PhaseRecord",
    "RankWriter",
    "Run",
    "StepRow",
    "WorldRecord",
    "join",
    "redact",
    "redact_environment",
    "start_run",
]
