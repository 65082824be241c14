"""What the launcher asks of the ranks, carried in one environment variable."""

import os
from typing import Self

import msgspec

from stallwise.units import GB

VARIABLE = "STALLWISE_SETTINGS"
PROGRESS_NAME = "progress.json"
"""In rank 0's folder while it runs: what it is doing."""
STACKS_NAME = "stacks.txt"
"""In a rank's folder: empty, until the rank hangs."""
PROCESS_NAME = "process"
"""In a rank's folder while it runs: its process id."""
WORKERS_NAME = "workers"
"""In a rank's folder: what its loader workers write."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to profile. The command line's options end up here; the defaults are the command line's."""

    folder: str
    """Where the run is written."""
    light: bool = False
    """Only watch: no ablation, no early end."""
    trial: bool = False
    """A light watch of a job that only tries something: it writes to scratch, and is ended where it hangs."""
    cold: bool = True
    """Measure reads with the page cache dropped, where the data lies in local files."""
    warmup_steps: int = 5
    """Steps before anything counts; never fewer than two repetitions of the job's cycle."""
    block_s: float = 0.5
    """A block lasts at least this long."""
    min_rounds: int = 8
    """Rounds of all phases before the intervals may end the profile."""
    tightness: float = 0.01
    """Half-width of a stall's interval, as a share of the step, at which the profile is good enough."""
    max_s: float = 120.0
    """Time budget after warm-up."""
    max_steps: int | None = None
    """Step budget after warm-up."""
    allow_writes: bool = False
    """Let checkpoints go where the script says instead of to the scratch folder."""
    hang_after_s: float = 300.0
    """Without a step for so long, save the stacks of all threads and end."""
    ring_bytes: int = 1 * GB
    """Bound on the batches kept for replay."""

    def to_environment(self) -> dict[str, str]:
        """The variable to start ranks with."""
        return {VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environment(cls) -> Self | None:
        """The launcher's wishes; None in a process that nobody profiles."""
        text = os.environ.get(VARIABLE)
        return msgspec.json.decode(text, type=cls) if text else None
