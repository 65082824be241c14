"""What a fleet was predicted to take and what it took: the receipt of one job, and the ledger of all.

The ledger is a SQLite file of this user's: one entry per fleet, by its token, so that a receipt that is written twice
counts once. Bias is the median of lived over planned; coverage is the fraction of lives within the predicted 80 %
interval. The next plan is moved by the bias, shrunk towards none while there are few jobs, and its interval is widened
to hold what was lived.
"""

import csv
import math
import sqlite3
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.fleet._backend import Market
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import FleetState, MachineRow
from stallwise.sentences import Sentence

_LOST = ("preempted", "lost", "vanished")
_PRIOR_JOBS = 3.0
"""Weight of "no bias" beside the jobs of the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """What was predicted; None: it was not."""

    time_s: float | None
    low_s: float | None
    high_s: float | None
    usd: float | None
    low_usd: float | None
    high_usd: float | None
    losses: float | None
    parts_s: dict[str, float]
    """Of `time_s`, see `LivedFigures.parts_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivedFigures:
    """What came: seconds from the first order to the end of the job, dollars until the last machine was gone."""

    time_s: float
    usd: float
    on_demand_usd: float
    machine_s: float
    losses: int
    machines: int
    parts_s: dict[str, float]
    """Of `time_s`: start (until it first trained), work (at full speed, as measured), missing (with fewer machines
    than planned), redone, pauses (the rest: saves and restarts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLedger:
    """One machine on the receipt."""

    name: str
    market: Market
    boot_s: float | None
    lived_s: float
    usd: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReceipt:
    """A fleet that is settled."""

    name: str
    token: str
    at: float
    """Time of day (seconds since the epoch) when it was written."""
    outcome: str
    why: str
    gpu: str | None
    region: str | None
    planned: PlannedFigures
    lived: LivedFigures
    fraction: float | None
    """Of the job that was done."""
    deadline_s: float | None
    budget_usd: float | None
    machines: tuple[MachineLedger, ...]

    @property
    def in_time(self) -> bool | None:
        """Whether the deadline was met; None without one."""
        return None if self.deadline_s is None else self.outcome == "done" and self.lived.time_s <= self.deadline_s

    @property
    def in_budget(self) -> bool | None:
        """Whether the budget was kept; None without one."""
        return None if self.budget_usd is None else self.lived.usd <= self.budget_usd


def receipt(plan: FleetPlan, state: FleetState) -> FleetReceipt:
    """Settle a fleet that is closed."""
    rows = [row for row in state.machines().values() if row.ready_s is not None and row.role == "host"]
    begin_s = state.fact("begin_s") or 0.0
    end_s = state.fact("done_s") or state.fact("ending_s") or begin_s
    lived_s = end_s - begin_s
    paid = [row for row in state.machines().values() if row.paid]
    return FleetReceipt(
        name=plan.name,
        token=state.token,
        at=time.time(),
        outcome=state.fact("ending", "running"),
        why=state.fact("why", ""),
        gpu=plan.gpu,
        region=plan.region,
        planned=PlannedFigures(
            time_s=plan.time_s,
            low_s=plan.low_s,
            high_s=plan.high_s,
            usd=plan.usd,
            low_usd=plan.low_usd,
            high_usd=plan.high_usd,
            losses=plan.losses,
            parts_s=_planned_parts(plan),
        ),
        lived=LivedFigures(
            time_s=lived_s,
            usd=math.fsum(row.usd for row in paid),
            on_demand_usd=math.fsum(row.usd for row in paid if row.market == "on-demand"),
            machine_s=math.fsum(_life_s(row, end_s) for row in rows),
            losses=sum(row.why in _LOST for row in rows),
            machines=len(rows),
            parts_s=_lived_parts(plan, state, rows, begin_s, end_s),
        ),
        fraction=state.fact("fraction"),
        deadline_s=plan.deadline_s,
        budget_usd=plan.budget_usd,
        machines=tuple(
            MachineLedger(
                name=row.name,
                market=row.market,
                boot_s=None if row.ready_s is None else row.ready_s - row.ordered_s,
                lived_s=_life_s(row, end_s),
                usd=row.usd,
                why=row.why,
            )
            for row in rows
        ),
    )


def _life_s(row: MachineRow, end_s: float) -> float:
    return 0.0 if row.ready_s is None else max(0.0, (row.ended_s or end_s) - row.ready_s)


def _planned_parts(plan: FleetPlan) -> dict[str, float]:
    if plan.time_s is None or plan.work_s is None:
        return {}
    start_s = plan.provision_s + plan.restart_s
    redone_s = plan.redone_s or 0.0
    rest_s = max(0.0, plan.time_s - plan.work_s - start_s - redone_s)
    return {"start": start_s, "work": plan.work_s, "redone": redone_s, "missing and pauses": rest_s}


def _lived_parts(
    plan: FleetPlan, state: FleetState, rows: Sequence[MachineRow], begin_s: float, end_s: float
) -> dict[str, float]:
    first_s = min(state.fact("first_s") or end_s, end_s)
    fraction, rate = state.fact("fraction"), state.fact("full_rate")
    work_s = fraction / rate if fraction and rate else (plan.work_s or 0.0) * (fraction or 0.0)
    redone_s = state.fact("redone_s") or 0.0
    present_s = math.fsum(
        max(0.0, min(row.ended_s or end_s, end_s) - max(row.ready_s or end_s, first_s)) for row in rows
    )
    after_s = end_s - first_s
    missing_s = max(0.0, after_s - present_s / plan.machines)
    rest_s = max(0.0, after_s - work_s - redone_s - missing_s)
    parts = {"start": first_s - begin_s, "work": work_s, "redone": redone_s}
    return {**parts, "missing and pauses": missing_s + rest_s}


# All jobs

_SCHEMA = "create table if not exists receipts (token text primary key, at real not null, document text not null)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBias:
    """Lived over planned of one figure, over jobs that were done."""

    figure: str
    jobs: int
    bias: float
    """Median of the ratio."""
    low: float
    high: float
    covered: int
    """Jobs within the predicted interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLedger:
    """All receipts, newest first, and what they say of predictions."""

    receipts: tuple[FleetReceipt, ...]
    time: LedgerBias | None
    cost: LedgerBias | None


def ledger_file() -> Path:
    """The file of this user's ledger."""
    import platformdirs

    return Path(platformdirs.user_data_path("stallwise")) / "ledger.sqlite"


def enter(result: FleetReceipt, path: Path) -> None:
    """Write a receipt into the ledger; once more, and it replaces itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        connection = sqlite3.connect(path, timeout=20)
        with connection:
            connection.execute(_SCHEMA)
            text = msgspec.json.encode(result).decode()
            connection.execute("insert or replace into receipts values (?, ?, ?)", (result.token, result.at, text))
        connection.close()
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"The ledger {path} cannot be written ({error}).", fields=("ledger",)) from None


def read_ledger(path: Path) -> FleetLedger:
    """Read the ledger; empty where there is none."""
    receipts: tuple[FleetReceipt, ...] = ()
    if path.exists():
        try:
            connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True, timeout=20)
            texts = connection.execute("select document from receipts order by at desc").fetchall()
            connection.close()
            receipts = tuple(msgspec.json.decode(text, type=FleetReceipt) for (text,) in texts)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise InputError(f"The ledger {path} cannot be read ({error}).", fields=("ledger",)) from None
    done = [one for one in receipts if one.outcome == "done"]
    times = [(one.lived.time_s, one.planned.time_s, one.planned.low_s, one.planned.high_s) for one in done]
    costs = [(one.lived.usd, one.planned.usd, one.planned.low_usd, one.planned.high_usd) for one in done]
    return FleetLedger(receipts=receipts, time=_bias("time", times), cost=_bias("cost", costs))


def _bias(figure: str, pairs: Sequence[tuple[float, float | None, float | None, float | None]]) -> LedgerBias | None:
    known = [(lived, planned, low, high) for lived, planned, low, high in pairs if planned and lived > 0]
    if not known:
        return None
    ratios = [lived / planned for lived, planned, _, _ in known if planned]
    return LedgerBias(
        figure=figure,
        jobs=len(known),
        bias=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        covered=sum(low is not None and high is not None and low <= lived <= high for lived, _, low, high in known),
    )


def corrected(plan: FleetPlan, ledger: FleetLedger) -> FleetPlan:
    """The plan with what the ledger teaches: moved by the bias, and its intervals as wide as what was lived."""
    changes: dict[str, float | None] = {}
    notes = list(plan.notes)
    for bias, middle, low, high in (
        (ledger.time, "time_s", "low_s", "high_s"),
        (ledger.cost, "usd", "low_usd", "high_usd"),
    ):
        planned = getattr(plan, middle)
        if bias is None or planned is None:
            continue
        factor = math.exp(bias.jobs / (bias.jobs + _PRIOR_JOBS) * math.log(bias.bias))
        changes[middle] = planned * factor
        for end, seen, choose in ((low, bias.low, min), (high, bias.high, max)):
            known = getattr(plan, end)
            changes[end] = choose(planned * seen, planned * factor, *(() if known is None else (known * factor,)))
        notes.append(
            Sentence(
                "plan.corrected",
                f"The planned {bias.figure} is multiplied by {factor:.3g}: {bias.jobs} earlier fleets took "
                f"{bias.bias:.3g} times theirs.",
            )
        )
    return replace(plan, notes=tuple(notes), **changes)  # type: ignore[arg-type]


def write_lifetimes(ledger: FleetLedger, path: Path) -> int:
    """Write the lives of all spot machines as a log that `spot fit` reads; returns how many."""
    count = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["machine", "lifetime_s", "ended", "gpu", "region"])
        for one in ledger.receipts:
            for machine in one.machines:
                if machine.market == "spot":
                    ended = "preempted" if machine.why in _LOST else "stopped"
                    lived = f"{max(machine.lived_s, 0.001):.3f}"
                    writer.writerow([f"{one.token}/{machine.name}", lived, ended, one.gpu or "", one.region or ""])
                    count += 1
    return count
