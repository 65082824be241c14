"""The marks of one step of the *layers* phase, and what they say once the device has passed them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stallwise.record.clock import Mark, elapsed_s


@dataclass(slots=True)
class Call:
    """One forward call of one module; `parent` is the watched module it ran inside of."""

    module: int
    begin: Mark
    parent: "Call | None"
    end: Mark | None = None


@dataclass(slots=True)
class StepMarks:
    """Everything marked in one step."""

    calls: list[Call] = field(default_factory=list)
    backwards: list[tuple[Mark, Mark]] = field(default_factory=list)
    backward_begins: list[tuple[int, int, Mark]] = field(default_factory=list)  # which backward, module, when
    gradients: dict[int, tuple[int, Mark]] = field(default_factory=dict)  # parameter -> which backward, when
    updates: list[tuple[Mark, Mark]] = field(default_factory=list)
    of_layers: bool = True

    def marks(self) -> Iterable[Mark]:
        """Every mark taken, for giving their events back."""
        for call in self.calls:
            yield call.begin
            if call.end is not None:
                yield call.end
        for begin, end in (*self.backwards, *self.updates):
            yield begin
            yield end
        yield from (mark for *_, mark in self.backward_begins)
        yield from (mark for _, mark in self.gradients.values())


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of a step, medians over the phase; None where they could not be told apart."""

    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    micro_batches: int | None
    checkpointed: bool


def total_s(pairs: Iterable[tuple[Mark, Mark]]) -> float:
    """Time between each pair of marks, added up."""
    return sum(elapsed_s(begin, end) for begin, end in pairs)


def forward_passes(step: StepMarks) -> list[tuple[Mark, Mark]]:
    """From the first call after one backward to the begin of the next: the forward passes of a step."""
    passes, since_s = [], 0.0
    for begin, end in step.backwards:
        first = next((c.begin for c in step.calls if since_s <= c.begin.wall_s <= begin.wall_s), None)
        if first is not None:
            passes.append((first, begin))
        since_s = end.wall_s
    return passes


def forward_times(step: StepMarks) -> dict[int, tuple[float, float, int]]:
    """Module -> begin of its first call since forward began, its own time (watched children taken out), calls."""
    if not step.calls:
        return {}
    origin = step.calls[0].begin
    own: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for call in step.calls:
        if call.end is None:
            continue
        duration_s = elapsed_s(call.begin, call.end)
        entry = own[call.module]
        if not entry[2]:
            entry[0] = elapsed_s(origin, call.begin)
        entry[1] += duration_s
        entry[2] += 1
        if call.parent is not None:
            own[call.parent.module][1] -= duration_s
    return {number: (start, max(0.0, total), int(calls)) for number, (start, total, calls) in own.items() if calls}


def backward_times(step: StepMarks) -> dict[int, tuple[float, float]]:
    """Module -> begin of its backward since backward began, and its time up to the next module's begin."""
    found: dict[int, tuple[float, float]] = {}
    for which, (begin, end) in enumerate(step.backwards):
        begins = [(number, mark) for at, number, mark in step.backward_begins if at == which]
        for here, (number, mark) in enumerate(begins):
            until = begins[here + 1][1] if here + 1 < len(begins) else end
            start_s, before = elapsed_s(begin, mark), found.get(number)
            duration_s = max(0.0, elapsed_s(mark, until))
            found[number] = (before[0], before[1] + duration_s) if before else (start_s, duration_s)
    return found
