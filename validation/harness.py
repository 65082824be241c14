"""A validation case, and how it is judged.

The tolerance is part of the case. A case outside it is off, by how much, whether or not the reason is known. What
cannot be compared (another sample of machines, say) is not judged, and does not count as reproduced. Where a figure
comes from and whether agreeing with it says anything stands in `validation/origins.py`.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


class NoInputError(Exception):
    """What the case needs is not public or not on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One published figure and how we compute ours.

    `id` is the field and a number (`stash-22`); figures of one case share it. `tolerance` is
    the allowed distance in `unit`. `published` is None where nobody has published the truth: a forecast, in a file of
    its own. `incomparable` says why the two figures are not of the same thing, `reason` why a row is off.
    """

    id: str
    case: str
    source: str
    method: str
    published: float | None
    unit: str
    tolerance: float
    compute: Callable[[Path], float]
    incomparable: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A judged case: one line of both reports."""

    id: str
    case: str
    value: float | None
    published: float | None
    unit: str
    tolerance: float
    verdict: str


def spot_case(
    source: str,
    row: str,
    case: str,
    method: str,
    published: float,
    unit: str,
    tolerance: float,
    compute: Callable[[Path], float],
    incomparable: str | None = None,
    reason: str | None = None,
) -> Case:
    """A row on transient machines, in the order its modules write them."""
    return Case(
        id=f"spot-{row}", case=case, source=source, method=method, published=published, unit=unit, tolerance=tolerance,
        compute=compute, incomparable=incomparable, reason=reason,
    )  # fmt: skip


def data_folder() -> Path:
    """Where the public measurements lie (`STALLWISE_DATA`, else beside the repository)."""
    return Path(os.environ.get("STALLWISE_DATA", ROOT / "../shared/data"))


def data_file(folder: Path, name: str) -> Path:
    """A file of the measurements, or the reason why the case cannot run."""
    path = folder / name
    if not path.is_file():
        raise NoInputError(f"{name} is not in the folder of public measurements")
    return path


def judge(case: Case, folder: Path) -> Row:
    """Compute our value and hold it against the published one."""
    try:
        value = case.compute(folder)
    except NoInputError as reason:
        return _row(case, None, f"no-input ({reason})")
    return _row(case, value, _verdict(case, value))


def _row(case: Case, value: float | None, verdict: str) -> Row:
    return Row(
        id=case.id,
        case=case.case,
        value=value,
        published=case.published,
        unit=case.unit,
        tolerance=case.tolerance,
        verdict=verdict,
    )


def _verdict(case: Case, value: float) -> str:
    if case.published is None:
        return "forecast (nobody has published the truth)"
    if case.incomparable is not None:
        return f"not comparable ({case.incomparable})"
    gap = value - case.published
    # A tolerance of 0.1 must not fail on 0.1 written in binary.
    if abs(gap) <= case.tolerance * (1 + 1e-9):
        return "reproduced"
    size = f"{gap / case.published:+.1%}" if case.published else f"{gap:+.3g} {case.unit}"
    return f"off by {size}" + (f" ({case.reason})" if case.reason else "")


def in_order(cases: Iterable[Case]) -> list[Case]:
    """By field and number."""
    return sorted(cases, key=lambda case: _order(case.id))


def judge_all(cases: Iterable[Case], folder: Path) -> list[Row]:
    """Every case in the order of its field and number."""
    return [judge(case, folder) for case in in_order(cases)]


def _order(case_id: str) -> tuple[str, int]:
    field, _, number = case_id.rpartition("-")
    return field, int("".join(c for c in number if c.isdigit()))
