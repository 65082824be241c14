"""DELI's way to look ahead, for comparison: fixed numbers of samples instead of measured ones.

DELI's sampler asks for `fetch_items` samples at once as soon as no more than `threshold_items` of those asked for
before are left, and its cache holds `cache_items`, the first in being the first out. Where threshold + fetch exceeds
the cache, samples are dropped before they are used: its published waits jump just there. Such a setting is refused.
"""

from dataclasses import dataclass

from stallwise.errors import InputError


@dataclass(frozen=True)
class DeliMode:
    """Fetch size, cache and threshold, in samples (of one process, as in DELI, which used no workers)."""

    fetch_items: int
    cache_items: int
    threshold_items: int

    def __post_init__(self) -> None:
        if self.fetch_items < 1 or self.cache_items < 1 or self.threshold_items < 0:
            raise InputError("Fetch size and cache must be at least one sample, the threshold at least none.")
        if self.threshold_items + self.fetch_items > self.cache_items:
            raise InputError(
                f"A threshold of {self.threshold_items} and a fetch size of {self.fetch_items} need a cache of "
                f"{self.threshold_items + self.fetch_items} samples, not {self.cache_items}: samples would be dropped "
                "before they are used. Make the cache larger or the fetch size smaller."
            )

    def more(self, outstanding: int) -> int:
        """How many samples to ask for now, when `outstanding` of those asked for are left."""
        return self.fetch_items if outstanding <= self.threshold_items else 0
