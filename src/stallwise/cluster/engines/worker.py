"""The other end of the pipe: a process that simulates what it is told to, and what travels between the two.

In: the sweep, then portions of cases. Out: `Made` per simulation, `(number, jobs)` while a long one is under way, or
`Failed`. An outcome travels without its jobs, which are drawn again where it arrives: they are most of it.
"""

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO

from stallwise.cluster.sweep import Made, Numbered, Sweep, arrived, simulated
from stallwise.errors import StallwiseError

_EVERY_S = 0.2  # between two words about a long simulation


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a simulation has no answer."""

    said: str
    expected: bool
    """A sentence for the user; else a traceback."""

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Of what was raised."""
        expected = isinstance(error, StallwiseError)
        return cls(str(error) if expected else traceback.format_exc(), expected)

    def error(self) -> Exception:
        """To be raised where the answer was awaited."""
        return StallwiseError(self.said) if self.expected else RuntimeError(f"In a worker: {self.said}")


Answer = Made | Failed | tuple[int, int]


def main() -> None:
    """Until the pipe ends."""
    # What else is printed here must not land between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _serve(sys.stdin.buffer, out)
    except (EOFError, BrokenPipeError):
        # Nobody listens any more; flushing at exit would complain about it.
        os._exit(0)


def _serve(pipe: IO[bytes], out: IO[bytes]) -> None:
    def send(answer: Answer) -> None:
        pickle.dump(answer, out, protocol=pickle.HIGHEST_PROTOCOL)
        out.flush()

    sweep: Sweep = pickle.load(pipe)  # noqa: S301  # our own process wrote it
    while True:
        portion: list[Numbered] = pickle.load(pipe)  # noqa: S301
        try:
            for made in simulated(sweep, portion, _seldom(send)):
                send(packed(made))
        except BrokenPipeError:
            raise
        except Exception as error:
            send(Failed.of(error))


def _seldom(send: Callable[[Answer], None]) -> Callable[[int, int], None]:
    """Progress of a long simulation; nothing of a short one."""
    last_s = time.monotonic()

    def heard(number: int, jobs: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _EVERY_S:
            last_s = time.monotonic()
            send((number, jobs))

    return heard


def packed(made: Made) -> Made:
    """For the way: without the jobs of its outcome."""
    outcome = made.run.outcome
    return made if outcome is None else made._replace(run=replace(made.run, outcome=replace(outcome, jobs=())))


def restored(sweep: Sweep, made: Made) -> Made:
    """As it was before `packed`."""
    outcome, case = made.run.outcome, made.run.case
    if outcome is None:
        return made
    jobs = tuple(arrived(sweep, case.load, case.seed))
    return made._replace(run=replace(made.run, outcome=replace(outcome, jobs=jobs)))
