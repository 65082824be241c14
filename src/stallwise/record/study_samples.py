"""What a study keeps of one network at one place."""

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a network's steps without and with exchange."""

    rate: str
    processes: int
    network: str
    alone_s: float
    backward_s: float
    shared_s: float
    spread_s: float
    """Of the stall over rounds: the largest less the smallest."""
    bucket_bytes: tuple[int, ...]
    """As DDP built them, in the order they were sent."""
