"""Rows of trace files: their fields, the jobs they make, one problem per unusable line, and whether jobs fit a cluster.

A line that cannot be used never stops the reading: all of them are reported at once, so that a trace is corrected once.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from stallwise.cluster.job import Job, TraceLoad
from stallwise.cluster.speed.base import Speed
from stallwise.errors import InputError, nearest_names
from stallwise.inputs import TEXT_BYTES, bounded_rows, read_text, read_whole
from stallwise.sentences import Sentence
from stallwise.units import show_factor, show_number, show_seconds

Fields = Sequence[str]

_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, order=True)
class RowProblem:
    """A line that is no usable job; `kind` is the class of problem, `message` describes this one."""

    line: int
    kind: str
    message: str


class BadRowError(ValueError):
    """A row cannot be a job: `kind` is the class of problem, `message` describes this one."""

    def __init__(self, kind: str, message: str = "") -> None:
        self.kind, self.message = kind, message or kind
        super().__init__(self.message)


class SkippedRow(Exception):  # noqa: N818 - not an error: the row is fine, there is nothing to simulate in it
    """A valid row with nothing to run on a GPU; its text is the reason, which a note counts."""


@dataclass(frozen=True, slots=True)
class TraceTable:
    """A file split into fields; `rows` hold the line number and the fields."""

    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def at(self, name: str) -> int:
        """Return the index of a column."""
        if name not in self.columns:
            raise InputError(f"{self.source} has no column {name!r}; it has {', '.join(self.columns)}.")
        return self.columns.index(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The jobs of a file in order of arrival, the problems of other lines, and notes on what was assumed."""

    source: str
    format: str
    jobs: tuple[Job, ...]
    problems: tuple[RowProblem, ...] = ()
    notes: tuple[Sentence, ...] = ()
    speed: Speed | None = None
    """Speed of its jobs by placement; None where it is unknown, and placement costs nothing."""


Parse = Callable[[int, Fields], Job]


def collect(table: TraceTable, format: str, parse: Parse, notes: Iterable[Sentence] = ()) -> Trace:
    """Parse every row; repeated ids are problems, jobs without work are left out and counted."""
    jobs: list[Job] = []
    problems: list[RowProblem] = []
    left_out: dict[str, int] = {}
    first: dict[str, int] = {}
    width = len(table.columns)
    for line, fields in table.rows:
        try:
            if len(fields) != width:
                raise BadRowError("another number of fields", f"{len(fields)} fields, expected {width}")
            job = parse(line, fields)
            if first.setdefault(job.id, line) != line:
                raise BadRowError("an id that was there before", f"id {job.id!r} is on line {first[job.id]} already")
            jobs.append(job)
        except BadRowError as bad:
            problems.append(RowProblem(line, bad.kind, bad.message))
        except SkippedRow as reason:
            left_out[str(reason)] = left_out.get(str(reason), 0) + 1
    jobs.sort(key=lambda job: job.arrival_s)  # stable: jobs that arrive together keep the order of the file
    counted = (
        Sentence("trace.left-out", f"{count:,} {reason}: left out.", count=count) for reason, count in left_out.items()
    )
    return Trace(
        source=table.source, format=format, jobs=tuple(jobs), problems=tuple(problems), notes=(*notes, *counted)
    )


def parse_name(text: str, what: str = "job_id") -> str:
    """Parse a name, which must not be empty."""
    name = text.strip()
    if not name:
        raise BadRowError(f"no {what}")
    return name


_LONGEST_S = 1e11


def parse_time(text: str, what: str) -> float:
    """Parse a time of at least 0 s; `what` names it in the problem."""
    try:
        value = float(text)
    except ValueError:
        if not text.strip():
            raise BadRowError(f"no {what}") from None
        raise BadRowError(f"{what} is not a number", f"{what} {text[:40]!r} is not a number") from None
    if 0.0 <= value < _LONGEST_S:
        return value
    if _LONGEST_S <= value < math.inf:
        raise BadRowError(f"{what} too long", f"{what} {text.strip()} s is over 3,000 years; is it in another unit?")
    if value < 0:
        raise BadRowError(f"negative {what}", f"{what} {text.strip()} is negative")
    raise BadRowError(f"no {what}", f"{what} {text.strip()} is not a time")


def parse_duration(text: str, what: str = "duration") -> float:
    """Parse a time above 0 s; a job of 0 s is skipped, because it has nothing to simulate."""
    value = parse_time(text, what)
    if value == 0.0:
        raise SkippedRow("jobs of 0 s")
    return value


def parse_count(text: str, what: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = _from_decimal(text, what)
    if value < 1:
        raise BadRowError(f"{what} below 1", f"{what} {text.strip()}: at least 1 is needed")
    return value


def _from_decimal(text: str, what: str) -> int:
    try:
        value = float(text)
        if value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        if not text.strip():
            raise BadRowError(f"no {what}") from None
    raise BadRowError(f"{what} is no whole number", f"{what} {text[:40]!r} is no whole number")


def parse_date(text: str, what: str) -> float:
    """Parse a date and time to seconds since 1970; time zones are ignored."""
    if not text.strip():
        raise BadRowError(f"no {what}")
    try:
        return (datetime.fromisoformat(text.strip()).replace(tzinfo=None) - _EPOCH).total_seconds()
    except ValueError:
        raise BadRowError(f"{what} is no date and time", f"{what} {text[:40]!r} is no date and time") from None


def earliest_date(table: TraceTable, column: int, what: str) -> float:
    """Return the earliest date of a column, which is second 0 of the trace."""
    dates_s = []
    for _, fields in table.rows:
        try:
            dates_s.append(parse_date(fields[column], what))
        except (BadRowError, IndexError):  # reported when the row is parsed
            continue
    return min(dates_s, default=0.0)


def known_model(text: str, models: Iterable[str], what: str = "model") -> str:
    """Parse the name of one of `models`; the problem offers the nearest."""
    name = text.strip()
    names = tuple(models)
    if name in names:
        return name
    if not name:
        raise BadRowError(f"no {what}")
    near = nearest_names(name, names, 1)
    raise BadRowError(f"unknown {what}", f"unknown {what} {name!r}" + (f" (nearest: {near[0]})" if near else ""))


_GAVEL_FIELDS = 10


def read_table(path: Path) -> TraceTable:
    """Read a CSV file with a header; Gavel's native traces have none and are separated by tabs."""
    text = _text(path)
    first = text.split("\n", 1)[0]
    tabbed = first.count("\t") == _GAVEL_FIELDS - 1
    reader = csv.reader(io.StringIO(text), delimiter="\t" if tabbed else ",", skipinitialspace=True)
    try:
        columns = () if tabbed else tuple(name.strip() for name in next(reader))
        rows = [(reader.line_num, fields) for fields in bounded_rows(reader, path) if any(fields)]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}. Check the file.") from None
    return TraceTable(source=path.name, columns=columns, rows=tuple(rows))


def _text(path: Path) -> str:
    try:
        packed = path.suffix == ".gz"
        text = read_whole(path, TEXT_BYTES).decode("utf-8-sig") if packed else read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The trace {path} cannot be read ({reason}). Check the path.") from None
    if not text.strip():
        raise InputError(f"The trace {path} is empty. Check the file.")
    return text.lstrip("\r\n")


_SHOWN = 40  # problems listed one by one; beyond that, lines are listed by kind


class TraceError(InputError):
    """A trace has lines that are no jobs; `problems` holds all of them."""

    def __init__(self, source: str, problems: tuple[RowProblem, ...]) -> None:
        self.problems = problems
        super().__init__(
            f"{source} has {_lines(len(problems))} that cannot be simulated:\n{list_problems(problems)}\n"
            "Correct them, or leave them out.",
            fields=("skip_bad",),
        )


def mark_misfits(trace: Trace, gpus: int, *, models: Collection[str] | None = None) -> Trace:
    """Turn jobs that the cluster cannot hold, or whose model has no profile, into problems."""
    bad = {job.line or 0: problem for job in trace.jobs if (problem := _misfit(job, gpus, models)) is not None}
    if not bad:
        return trace
    jobs = tuple(job for job in trace.jobs if (job.line or 0) not in bad)
    return replace(trace, jobs=jobs, problems=tuple(sorted((*trace.problems, *bad.values()))))


def _misfit(job: Job, gpus: int, models: Collection[str] | None) -> RowProblem | None:
    line = job.line or 0
    if job.gpus > gpus:
        return RowProblem(line, "a gang larger than the cluster", f"{job.gpus} GPUs; the cluster has {gpus}")
    if models is not None and job.model is not None and job.model not in models:
        near = nearest_names(job.model, models, 1)
        hint = f" (nearest: {near[0]})" if near else ""
        return RowProblem(line, "a model without a profile", f"model {job.model!r} has no profile{hint}")
    return None


def usable_trace(trace: Trace, *, skip_bad: bool) -> Trace:
    """Return the trace without its problems; raise `TraceError` with all of them unless `skip_bad`."""
    if trace.problems and not skip_bad:
        raise TraceError(trace.source, trace.problems)
    if not trace.jobs:
        raise InputError(
            f"{trace.source} has no job that can be simulated here. Check the file, or take a larger cluster."
        )
    if not trace.problems:
        return trace
    kinds = Counter(problem.kind for problem in trace.problems)
    counts = ", ".join(f"{count:,} with {kind}" for kind, count in kinds.most_common())
    return replace(
        trace,
        problems=(),
        notes=(*trace.notes, Sentence("trace.lines-left-out", f"{_lines(len(trace.problems))} left out: {counts}.")),
    )


def list_problems(problems: Iterable[RowProblem]) -> str:
    """Format one line per problem; where there are very many, the line numbers of each kind."""
    ordered = sorted(problems)
    if len(ordered) <= _SHOWN:
        return "\n".join(f"  line {problem.line}: {problem.message}" for problem in ordered)
    kinds: dict[str, list[int]] = {}
    for problem in ordered:
        kinds.setdefault(problem.kind, []).append(problem.line)
    return "\n".join(f"  {kind}, {_lines(len(lines))}: {', '.join(_ranges(lines))}" for kind, lines in kinds.items())


def load_sentence(load: TraceLoad) -> str:
    """Say how much of the cluster a trace needs: 1.4× the cluster."""
    hours = f"{show_number(load.gpu_s / 3600)} GPU-hours"
    if load.span_s <= 0:
        whole = show_seconds(load.gpu_s / load.gpus)
        return f"All jobs come at once: {hours}, {whole} of the whole cluster at full speed."
    sentence = f"This trace needs {show_factor(load.demand)} the cluster: {hours} arrive in {show_seconds(load.span_s)}"
    return sentence + ("; the queue grows while jobs arrive." if load.demand > 1 else ".")


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Join consecutive numbers: `3`, `5-9`."""
    group: list[int] = []
    for number in [*sorted(numbers), -1]:
        if group and number != group[-1] + 1:
            yield f"{group[0]}" if len(group) == 1 else f"{group[0]}-{group[-1]}"
            group = []
        group.append(number)
