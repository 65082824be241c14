"""A validation case, and how it is judged.

The tolerance is part of the case, written before anything is computed. A case that fails is reported as off by
how much; only a misfit that was explained beforehand is called one.
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

    `id` is the field and the number in its reference (`stash-22`); figures of one case share it. `tolerance` is
    the allowed distance in `unit`. `published` is None where the truth is kept elsewhere: then nothing is judged.
    `misfit` says, before the run, why the figure is not expected to be reproduced.
    """

    id: str
    case: str
    source: str
    method: str
    published: float | None
    unit: str
    tolerance: float
    compute: Callable[[Path], float]
    misfit: str | None = None


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
    misfit: str | None = None,
) -> Case:
    """A row of the reference on transient machines, in the order its modules write them."""
    return Case(
        id=f"spot-{row}", case=case, source=source, method=method, published=published, unit=unit, tolerance=tolerance,
        compute=compute, misfit=misfit,
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
        return "unjudged (the truth is kept elsewhere)"
    gap = value - case.published
    # A tolerance of 0.1 must not fail on 0.1 written in binary.
    if abs(gap) <= case.tolerance * (1 + 1e-9):
        return "reproduced"
    if case.misfit is not None:
        return f"misfit ({case.misfit})"
    size = f"{gap / case.published:+.1%}" if case.published else f"{gap:+.3g} {case.unit}"
    return f"off by {size}"


def judge_all(cases: Iterable[Case], folder: Path) -> list[Row]:
    """Every case in the order of its field and number."""
    return [judge(case, folder) for case in sorted(cases, key=lambda case: _order(case.id))]


def _order(case_id: str) -> tuple[str, int]:
    field, _, number = case_id.rpartition("-")
    return field, int("".join(c for c in number if c.isdigit()))
