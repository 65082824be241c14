"""What a tuning found."""

import statistics
from dataclasses import dataclass

from stallwise.record.profile import Profile
from stallwise.tune.advice import Advice
from stallwise.tune.judge import Attempt, gains_of
from stallwise.tune.knobs import NONE, Knobs, Loader
from stallwise.tune.propose import Proposal
from stallwise.tune.trial import Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What came of it. The field names are keys of `--json`."""

    profile: Profile
    loader: Loader | None
    proposals: tuple[Proposal, ...]
    attempts: tuple[Attempt, ...] = ()
    kept: Knobs = NONE
    before: Tried | None = None
    """The script's own settings, in the same rounds as `after`; None where nothing was kept."""
    after: Tried | None = None
    predicted_gain: float | None = None
    """Of what was kept."""
    advice: tuple[Advice, ...] = ()
    dry_run: bool = False
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def gain(self) -> float | None:
        """Measured: the median over rounds of the part of the step that went away."""
        if self.before is None or self.after is None:
            return None
        return statistics.median(gains_of(self.before, self.after))
