"""What is kept: only what was faster in every round and by enough; of near equals the one with the fewest workers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stallwise.tune.propose import ENOUGH, Proposal
from stallwise.tune.trial import Tried

KEEP = 0.03
"""A median gain below this is not worth a line in somebody's script."""
LEAST_ROUNDS = 2
CLEAR = 0.15
"""Noise alone is faster twice in a row once in four times, but hardly by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal beside the settings it was tried on top of."""

    proposal: Proposal
    before: Tried
    after: Tried
    kept: bool = False

    @property
    def gains(self) -> tuple[float, ...]:
        """The part of the step that went away, per round."""
        return gains_of(self.before, self.after)

    @property
    def gain(self) -> float:
        """The median over rounds."""
        return statistics.median(self.gains)

    @property
    def helps(self) -> bool:
        """Faster in every round, and by enough to matter: much where there were two rounds only."""
        rounds = len(self.gains)
        if rounds < LEAST_ROUNDS or min(self.gains) <= 0:
            return False
        return self.gain >= (KEEP if rounds > LEAST_ROUNDS else CLEAR)


def gains_of(before: Tried, after: Tried) -> tuple[float, ...]:
    """The part of the step that went away, round by round: neighbours in time are compared."""
    return tuple(1 - b / a for a, b in zip(before.rounds, after.rounds, strict=True))


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The one with the fewest workers among those within 2 % of the fastest; None where nothing helps."""
    helping = [one for one in attempts if one.helps]
    if not helping:
        return None
    fastest_s = min(one.after.step_s for one in helping)
    near = [one for one in helping if one.after.step_s <= ENOUGH * fastest_s]
    return min(near, key=lambda one: (one.proposal.knobs.num_workers or 0, one.after.step_s))
