"""How a performance claim is measured: contestants take turns, medians are compared, the spread is shown."""

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one contestant."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples_s)

    def __str__(self) -> str:
        low, high = min(self.samples_s), max(self.samples_s)
        return f"{self.median_s * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One claim after measuring: the sentence that is printed, and whether its bar was held; None: no bar, shown."""

    claim: str
    measured: str
    held: bool | None = None

    @property
    def verdict(self) -> str:
        """`held`, `missed`, or `shown` where nothing was claimed."""
        return "shown" if self.held is None else "held" if self.held else "missed"


def command_s(*command: str) -> float:
    """Wall seconds of one run of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def take_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Times]:
    """Each contestant once per round, so that a slow moment of the machine hits all of them; one round is warm-up."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, measure in contestants.items():
            seconds = measure()
            if turn:
                samples[name].append(seconds)
    return {name: Times(tuple(values)) for name, values in samples.items()}
