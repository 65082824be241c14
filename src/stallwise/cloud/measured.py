"""Stash's own recommender: measured configurations only, nothing predicted.

    T_i = c_i + (E - 1) · e_i        c: first (cold) epoch, e: a later (warm) one, E epochs
    cost_i = price_i · machines_i · T_i

The answer is the cheapest with T_i within the time budget, with the front of time and cost, and the flag that none is.
Only the claim is public (Sharma et al., *Stash*, ICDCS 2023), neither formula nor code; this is the least that does
what is claimed.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.instance import by_price
from stallwise.inputs import bounded_rows, read_text
from stallwise.model.step.epoch import cost_usd

COLUMNS = ("configuration", "instance", "machines", "usd_per_h", "epoch_s", "first_epoch_s", "run", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One measured set-up: price in USD per hour, number of machines, seconds of the first and of later epochs."""

    name: str
    usd_per_h: float
    machines: int
    epoch_s: float
    first_epoch_s: float

    def time_s(self, epochs: float) -> float:
        """Seconds of the whole job."""
        first = min(1.0, epochs)
        return first * self.first_epoch_s + (epochs - first) * self.epoch_s

    def usd(self, epochs: float) -> float:
        """Cost of the whole job."""
        return cost_usd(self.time_s(epochs), self.usd_per_h, self.machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChoice:
    """The pick (None: none is within the budget), the front, and everything with its time and cost."""

    epochs: float
    deadline_s: float | None
    budget_usd: float | None
    rows: tuple[tuple[Configuration, float, float], ...]
    """(configuration, seconds, dollars), cheapest first."""
    front: tuple[str, ...]
    pick: str | None

    @property
    def infeasible(self) -> bool:
        """Whether no configuration keeps the limits (Stash's flag)."""
        return self.pick is None


def choose_measured(
    configurations: tuple[Configuration, ...],
    epochs: float,
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
) -> MeasuredChoice:
    """Choose the cheapest within the deadline (or, with a budget alone, the fastest within it)."""
    if not configurations:
        raise InputError("There is no measured configuration to choose from.")
    rows = [(one, one.time_s(epochs), one.usd(epochs)) for one in configurations]
    cheap = sorted(rows, key=lambda row: (row[2], row[1], row[0].name))
    good = [
        row
        for row in cheap
        if (deadline_s is None or row[1] <= deadline_s) and (budget_usd is None or row[2] <= budget_usd)
    ]
    if good and budget_usd is not None and deadline_s is None:
        good.sort(key=lambda row: (row[1], row[2], row[0].name))
    front, least = [], float("inf")
    for one, _, usd in sorted(rows, key=lambda row: (row[1], row[2], row[0].name)):
        if usd < least:
            front.append(one.name)
            least = usd
    return MeasuredChoice(
        epochs=epochs,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        rows=tuple(cheap),
        front=tuple(front),
        pick=good[0][0].name if good else None,
    )


def read_configurations(path: Path, catalog: Catalog) -> tuple[Configuration, ...]:
    """Read a CSV table of measured epochs (or run folders to take them from) and prices (or instance types)."""
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path} cannot be read as a CSV table. Check the path.") from None
    try:
        rows = list(bounded_rows(csv.DictReader(text.splitlines()), path))
    except csv.Error as error:
        raise InputError(f"{path} is no CSV file ({error}). Check its quotes.") from None
    unknown = [name for name in (rows[0] if rows else {}) if name not in COLUMNS]
    if not rows or unknown:
        what = f"has no column {unknown[0]!r}" if unknown else "holds no rows"
        raise InputError(f"{path} {what}; the columns are {', '.join(COLUMNS)}.")
    return tuple(_configuration(row, number, path, catalog) for number, row in enumerate(rows, 1))


def _configuration(row: dict[str, str], number: int, path: Path, catalog: Catalog) -> Configuration:
    def value(name: str) -> float | None:
        text = (row.get(name) or "").strip()
        if not text:
            return None
        try:
            parsed = float(text)
        except ValueError:
            raise InputError(f"{path}, row {number}: {name} is {text!r}, not a number.") from None
        if not 0 < parsed < float("inf"):
            raise InputError(f"{path}, row {number}: {name} must be above 0, not {text}.")
        return parsed

    machines, epoch_s, first_s = int(value("machines") or 1), value("epoch_s"), value("first_epoch_s")
    instance = (row.get("instance") or "").strip()
    if (row.get("run") or "").strip():
        epoch_s, first_s = _epochs_of(path.parent / row["run"].strip(), value("samples"), f"{path}, row {number}")
    if epoch_s is None:
        raise InputError(f"{path}, row {number}: neither epoch_s nor a run is given.")
    return Configuration(
        name=(row.get("configuration") or "").strip() or f"{machines} × {instance or number}",
        usd_per_h=value("usd_per_h") or _price(instance, catalog, f"{path}, row {number}"),
        machines=machines,
        epoch_s=epoch_s,
        first_epoch_s=first_s or epoch_s,
    )


def _price(instance: str, catalog: Catalog, where: str) -> float:
    if not instance:
        raise InputError(f"{where}: neither usd_per_h nor an instance is given.")
    offers = catalog.find(catalog.query(instance=instance, market="on-demand", retired=True))
    if not offers:
        raise InputError(f"{where}: the catalog lists no on-demand price of {instance}. Give usd_per_h.")
    return min(offers, key=by_price).usd_per_h


def _epochs_of(folder: Path, samples: float | None, where: str) -> tuple[float, float]:
    from stallwise.analysis.analysis import open_run

    if samples is None:
        raise InputError(f"{where}: a run needs the samples of an epoch beside it.")
    profile = open_run(folder).profile
    if not profile.samples_per_s:
        raise InputError(f"{where}: the run does not say how many samples a step has.")
    epoch_s = samples / profile.samples_per_s
    cold = profile.cold_step_s
    return epoch_s, epoch_s * max(1.0, cold / profile.step_s) if cold else epoch_s
