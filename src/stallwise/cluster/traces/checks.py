"""Whether a trace fits a cluster: every line that does not, and how much of the cluster the rest asks for."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from stallwise.cluster.traces.rows import Problem, Trace
from stallwise.errors import InputError, nearest_names

if TYPE_CHECKING:
    from stallwise.cluster.job import Job, Load

_SHOWN = 40  # problems told one by one; beyond that, lines are listed by kind


class TraceError(InputError):
    """A trace has lines that are no jobs; `problems` holds all of them."""

    def __init__(self, source: str, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__(
            f"{source} has {_lines(len(problems))} that cannot be simulated:\n{tell(problems)}\n"
            "Correct them, or leave them out with --skip-bad."
        )


def fitted(trace: Trace, gpus: int, *, models: Collection[str] | None = None) -> Trace:
    """The trace with jobs that the cluster cannot hold, or whose model has no profile, turned into problems."""
    bad = {job.line or 0: problem for job in trace.jobs if (problem := _misfit(job, gpus, models)) is not None}
    if not bad:
        return trace
    jobs = tuple(job for job in trace.jobs if (job.line or 0) not in bad)
    return replace(trace, jobs=jobs, problems=tuple(sorted((*trace.problems, *bad.values()))))


def _misfit(job: "Job", gpus: int, models: Collection[str] | None) -> Problem | None:
    line = job.line or 0
    if job.gpus > gpus:
        return Problem(line, "a gang larger than the cluster", f"{job.gpus} GPUs; the cluster has {gpus}")
    if models is not None and job.model is not None and job.model not in models:
        near = nearest_names(job.model, models, 1)
        hint = f" (nearest: {near[0]})" if near else ""
        return Problem(line, "a model without a profile", f"model {job.model!r} has no profile{hint}")
    return None


def usable(trace: Trace, *, skip_bad: bool) -> Trace:
    """The trace without its problems, or the error that lists them."""
    if trace.problems and not skip_bad:
        raise TraceError(trace.source, trace.problems)
    if not trace.jobs:
        raise InputError(
            f"{trace.source} has no job that can be simulated here. Check the file, or take a larger cluster."
        )
    if not trace.problems:
        return trace
    kinds = Counter(problem.kind for problem in trace.problems)
    said = ", ".join(f"{count:,} with {kind}" for kind, count in kinds.most_common())
    return replace(trace, problems=(), notes=(*trace.notes, f"{_lines(len(trace.problems))} left out: {said}."))


def tell(problems: Iterable[Problem]) -> str:
    """One line per problem; where there are very many, the lines of each kind."""
    known = sorted(problems)
    if len(known) <= _SHOWN:
        return "\n".join(f"  line {problem.line}: {problem.said}" for problem in known)
    kinds: dict[str, list[int]] = {}
    for problem in known:
        kinds.setdefault(problem.kind, []).append(problem.line)
    return "\n".join(f"  {kind}, {_lines(len(lines))}: {', '.join(_ranges(lines))}" for kind, lines in kinds.items())


def load_sentence(found: "Load") -> str:
    """This trace needs 1.4x the cluster."""
    hours = found.gpu_s / 3600
    if found.span_s <= 0:
        whole = f"{hours / found.gpus:,.1f} h of the whole cluster at full speed"
        return f"All jobs come at once: {hours:,.0f} GPU-hours, {whole}."
    times = f"{found.demand:.2f}" if found.demand < 10 else f"{found.demand:,.0f}"
    said = f"This trace needs {times}× the cluster: {hours:,.0f} GPU-hours arrive in {found.span_s / 3600:,.1f} h"
    return said + ("; the queue grows while jobs arrive." if found.demand > 1 else ".")


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """`3`, `5-9`: lines in a row together."""
    run: list[int] = []
    for number in [*sorted(numbers), -1]:
        if run and number != run[-1] + 1:
            yield f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}"
            run = []
        run.append(number)
