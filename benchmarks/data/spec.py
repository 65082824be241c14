"""What one contestant is told and what it reports. Standard library only: peers have environments of their own."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

MARK_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One run of one loader over one bucket (or folder), in a process of its own."""

    loader: str
    source: str
    endpoint: str = ""
    samples: int
    batch: int = 32
    workers: int = 2
    prefetch: int | None = None
    epochs: int = 1
    step_s: float = 0.0
    decode: str = "mark"
    cache: str = ""
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Spec":
        """Back from there."""
        return cls(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What was delivered, and how long it took: from `iter(loader)` to the first and to the last batch."""

    samples: int
    unique: int
    bytes: int
    first_s: float
    seconds: float
    wait_s: float
    first_wait_s: float

    @property
    def samples_per_s(self) -> float:
        """Of the whole epoch."""
        return self.samples / self.seconds


@dataclass(frozen=True, kw_only=True)
class Report:
    """All epochs of one run; `made_s` is building the dataset (listing included) and the loader."""

    made_s: float
    cpu_s: float
    epochs: tuple[Epoch, ...]
    extra: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Report":
        """Back from there."""
        fields = json.loads(text)
        return cls(**{**fields, "epochs": tuple(Epoch(**one) for one in fields["epochs"])})


def mark(number: int, body: bytes) -> bytes:
    """A sample's content with its number at the end (a JPEG decoder does not look there)."""
    return body[:-MARK_BYTES] + number.to_bytes(MARK_BYTES, "big")


def read_mark(data: bytes) -> tuple[int, int]:
    """Number and length: all that leaves a worker, so that no contestant pays for moving samples between processes."""
    return int.from_bytes(data[-MARK_BYTES:], "big"), len(data)
