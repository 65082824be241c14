"""Observers that cannot harm the script: what goes wrong in one is caught, undone and written to the record."""

from collections.abc import Callable
from typing import Protocol

from stallwise.run.writer import RankWriter
from stallwise.sentences import Sentence


class PhaseObserver(Protocol):
    """Watches the steps of one phase."""

    def begin(self, steps: int) -> None:
        """Start, for a phase of `steps` steps."""

    def update_begins(self) -> None:
        """Note that an optimizer steps; most observers need not."""
        return

    def update_ends(self) -> None:
        """Note that an optimizer has stepped; most observers need not."""
        return

    def step_ended(self, *, kept: bool) -> None:
        """Note the end of a step."""

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Stop and write what was seen."""

    def abandon(self) -> None:
        """Stop and write nothing."""


class ContainedObserver:
    """Forwards to an observer until that fails; then the observer is removed, and the reason is noted once."""

    def __init__(self, create: Callable[[], PhaseObserver], writer: RankWriter, phase: str) -> None:
        self._inner: PhaseObserver | None = None
        self._writer = writer
        self._phase = phase
        try:
            self._inner = create()
        except Exception as error:
            self._give_up(error)

    def begin(self, steps: int) -> None:
        """Start, for a phase of `steps` steps."""
        self._attempt(lambda inner: inner.begin(steps))

    def update_begins(self) -> None:
        """Note that an optimizer steps."""
        self._attempt(lambda inner: inner.update_begins())

    def update_ends(self) -> None:
        """Note that an optimizer has stepped."""
        self._attempt(lambda inner: inner.update_ends())

    def step_ended(self, *, kept: bool) -> None:
        """Note the end of a step."""
        self._attempt(lambda inner: inner.step_ended(kept=kept))

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Stop and write what was seen."""
        self._attempt(lambda inner: inner.finish(first_step=first_step, step_s=step_s, zero_s=zero_s))

    def abandon(self) -> None:
        """Stop and write nothing."""
        self._attempt(lambda inner: inner.abandon())

    def _attempt(self, call: Callable[[PhaseObserver], None]) -> None:
        if self._inner is not None:
            try:
                call(self._inner)
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        observer, self._inner = self._inner, None
        self._writer.note(
            Sentence(
                "phase.given-up",
                f"The {self._phase} phase was given up on rank {self._writer.rank}, and what it measures is unknown "
                f"({type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}).",
            )
        )
        if observer is not None:
            try:
                observer.abandon()
            except Exception as again:
                self._writer.note(
                    Sentence(
                        "phase.not-undone", f"Not everything of the {self._phase} phase could be undone ({again})."
                    )
                )
