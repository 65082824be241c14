"""Fleets: status, receipt, rehearsals and the ledger; and JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from stallwise.fleet.ledger import FleetLedger, FleetReceipt, LedgerBias
from stallwise.fleet.manager import FleetStatus
from stallwise.fleet.rehearsal import FleetRehearsal
from stallwise.fleet.state import FleetEvent
from stallwise.report.format import (
    plural,
    show_bounds,
    show_factor,
    show_number,
    show_percent,
    show_seconds,
    show_signed_percent,
    show_usd,
    show_usd_bounds,
)
from stallwise.report.html import page as html_page
from stallwise.report.json import plain, schema
from stallwise.report.view import Line, Notes, Span, TablePart, View, facts, number, table, view, words

_OUTCOMES = {
    "done": ("done", "good"),
    "budget": ("stopped: the budget was reached", "bad"),
    "down": ("ended by its user", "warn"),
    "failed": ("failed", "bad"),
    "running": ("running", ""),
    "ending": ("ending", "warn"),
}
_CODES = {"error": "error", "timeout": "no answer in time", "no-capacity": "no machine to be had"}


def draw_status(status: FleetStatus, *, managed: bool = True) -> View:
    """How far a fleet is."""
    return view(
        f"{status.name}: fleet", facts(_status(status, managed=managed)), aside=plural(status.machines, "machine")
    )


def _status(status: FleetStatus, *, managed: bool) -> Iterator[tuple[str, Line]]:
    words_, tone = _OUTCOMES.get(status.phase, (status.phase, ""))
    yield "state", (Span(words_, tone or "strong"), f": {status.why}" if status.why else "")
    if not managed and status.phase in ("running", "ending"):
        yield "", Span("no manager runs: fleet run goes on with it, fleet down ends it", "bad")
    share = "not known" if status.fraction is None else show_percent(status.fraction)
    yield "done", f"{share} after {show_seconds(status.elapsed_s)}"
    pending = f", {status.pending} ordered" if status.pending else ""
    yield "machines", f"{status.training} train, {status.running} of {status.machines} run{pending}; {status.market}"
    if status.forecast is not None:
        ahead = status.forecast
        yield (
            "end",
            f"{show_seconds(ahead.eta_s)} after its start  (80 %: {show_bounds(ahead.eta_low_s, ahead.eta_high_s)})",
        )
        bounds = show_usd_bounds(ahead.usd_low - status.spent_usd, ahead.usd_high - status.spent_usd)
        to_come = show_usd(ahead.usd - status.spent_usd)
        yield "cost", f"{show_usd(status.spent_usd)} so far, {to_come} to come  (80 %: {bounds})"
    else:
        yield "cost", f"{show_usd(status.spent_usd)} so far"
    yield "losses", str(status.losses)
    if status.faults:
        yield "faults", ", ".join(f"{_CODES.get(kind, kind)} {count} ×" for kind, count in status.faults.items())


def draw_receipt(receipt: FleetReceipt) -> View:
    """Planned beside lived, and why they differ."""
    lived = receipt.lived
    return view(
        f"{receipt.name}: receipt",
        facts(_outcome(receipt)),
        _figures(receipt),
        _parts(receipt),
        _machines(receipt),
        aside=f"{plural(lived.machines, 'machine')} · {lived.losses:,} lost",
    )


def receipt_page(receipt: FleetReceipt) -> str:
    """The receipt as one self-contained HTML page."""
    return html_page(draw_receipt(receipt))


def _outcome(receipt: FleetReceipt) -> Iterator[tuple[str, Line]]:
    words_, tone = _OUTCOMES.get(receipt.outcome, (receipt.outcome, ""))
    yield "outcome", (Span(words_, tone), f": {receipt.why}" if receipt.why else "")
    if receipt.outcome != "done" and receipt.fraction is not None:
        yield "done", show_percent(receipt.fraction)
    if receipt.deadline_s is not None:
        tone = "good" if receipt.in_time else "bad"
        yield "deadline", Span(f"{show_seconds(receipt.deadline_s)}: {'met' if receipt.in_time else 'missed'}", tone)
    if receipt.budget_usd is not None:
        tone = "good" if receipt.in_budget else "bad"
        yield "budget", Span(f"{show_usd(receipt.budget_usd)}: {'kept' if receipt.in_budget else 'passed'}", tone)


def _figures(receipt: FleetReceipt) -> TablePart:
    planned, lived = receipt.planned, receipt.lived
    interval_s = None if planned.low_s is None or planned.high_s is None else (planned.low_s, planned.high_s)
    interval_usd = None if planned.low_usd is None or planned.high_usd is None else (planned.low_usd, planned.high_usd)
    rows = [
        (
            "time",
            _or_unknown(planned.time_s, show_seconds),
            "" if interval_s is None else show_bounds(*interval_s),
            show_seconds(lived.time_s),
            _difference(lived.time_s, planned.time_s),
        ),
        (
            "cost",
            _or_unknown(planned.usd, show_usd),
            "" if interval_usd is None else show_usd_bounds(*interval_usd),
            show_usd(lived.usd),
            _difference(lived.usd, planned.usd),
        ),
        (
            "losses",
            _or_unknown(planned.losses, show_number),
            "",
            str(lived.losses),
            "",
        ),
    ]
    columns = ("", number("planned"), number("80 % interval", 1), number("lived"), number("difference"))
    note = f"{show_usd(lived.on_demand_usd)} of the cost is for on-demand machines." if lived.on_demand_usd else ""
    return table(columns, rows, note=note)


def _parts(receipt: FleetReceipt) -> TablePart:
    """Where the time went, the largest difference first."""
    planned, lived = receipt.planned.parts_s, receipt.lived.parts_s
    order = sorted(lived, key=lambda part: -abs(lived[part] - planned.get(part, 0.0)))
    rows = (
        (
            part,
            show_seconds(planned[part]) if part in planned else "not known",
            show_seconds(lived[part]),
            _signed_seconds(lived[part] - planned[part]) if part in planned else "",
        )
        for part in order
    )
    return table(("part", number("planned"), number("lived"), number("difference")), rows, "why the time differs")


def _machines(receipt: FleetReceipt) -> TablePart:
    rows = (
        (
            one.name,
            one.market,
            "" if one.boot_s is None else show_seconds(one.boot_s),
            show_seconds(one.lived_s),
            show_usd(one.usd),
            one.why,
        )
        for one in receipt.machines
    )
    columns = ("machine", "market", number("boot", 2), number("lived"), number("cost", 1), "end")
    return table(columns, rows, "machines")


def draw_rehearsal(rehearsal: FleetRehearsal) -> View:
    """A plan carried out several times, beside its prediction."""
    rows = (
        (
            str(place),
            _OUTCOMES.get(one.outcome, (one.outcome, ""))[0],
            str(one.lived.losses),
            show_seconds(one.lived.time_s),
            show_usd(one.lived.usd),
            show_usd(one.lived.on_demand_usd),
            "" if one.in_time is None else "met" if one.in_time else "missed",
        )
        for place, one in enumerate(rehearsal.receipts, 1)
    )
    columns = (
        *(number("no."), "outcome", number("losses"), number("time"), number("cost")),
        *(number("of it on-demand", 2), "deadline"),
    )
    return view(
        f"{rehearsal.plan.name}: rehearsed",
        facts(_rehearsal(rehearsal)),
        table(columns, rows),
        Notes("assumed", rehearsal.plan.notes),
        aside=f"{len(rehearsal.receipts)} × in simulated time",
    )


def _rehearsal(rehearsal: FleetRehearsal) -> Iterator[tuple[str, Line]]:
    plan = rehearsal.plan
    if plan.time_s is not None and plan.usd is not None:
        yield "planned", f"{show_seconds(plan.time_s)}, {show_usd(plan.usd)}"
    for name, error in (("time", rehearsal.time_error), ("cost", rehearsal.cost_error)):
        if error is not None:
            yield name, f"{show_signed_percent(error)} on average against the plan"
    if plan.deadline_s is not None:
        yield "deadline", f"{show_seconds(plan.deadline_s)}: met {rehearsal.in_time} of {len(rehearsal.receipts)} times"


def draw_ledger(ledger: FleetLedger) -> View:
    """Predictions beside what came, job by job and over all."""
    rows = (
        (
            one.name,
            one.outcome,
            _or_unknown(one.planned.time_s, show_seconds),
            show_seconds(one.lived.time_s),
            _or_unknown(one.planned.usd, show_usd),
            show_usd(one.lived.usd),
            str(one.lived.losses),
        )
        for one in ledger.receipts
    )
    columns = (
        *("fleet", "outcome", number("planned", 1), number("lived"), number("planned cost", 1), number("cost")),
        number("losses", 2),
    )
    return view(
        "ledger",
        facts(_biases((ledger.time, ledger.cost))),
        table(columns, rows),
        aside=plural(len(ledger.receipts), "fleet"),
    )


def _biases(biases: Sequence[LedgerBias | None]) -> Iterator[tuple[str, Line]]:
    for bias in biases:
        if bias is not None:
            yield (
                bias.figure,
                f"{show_factor(bias.bias)} what was planned (median; {show_factor(bias.low)} to "
                f"{show_factor(bias.high)}), {bias.covered} of {bias.jobs} within the 80 % interval",
            )


def draw_events(events: Sequence[FleetEvent], begin_s: float) -> View:
    """What happened, in order."""
    rows = (
        (show_seconds(max(0.0, event.at_s - begin_s)), event.kind, event.machine or "", _event_facts(event))
        for event in events
    )
    return view("events", table((number("after"), "event", "machine", words("", 1)), rows))


def _event_facts(event: FleetEvent) -> str:
    return ", ".join(f"{name} {value}" for name, value in event.facts.items() if value not in ("", None))


def status_document(status: FleetStatus, *, managed: bool) -> dict[str, Any]:
    """The status, and whether a manager runs."""
    return {**schema("fleet-status"), "managed": managed, **plain(status)}


def receipt_document(receipt: FleetReceipt) -> dict[str, Any]:
    """The receipt, and which limits were kept."""
    return {
        **schema("fleet-receipt"),
        **plain(receipt),
        "in_time": receipt.in_time,
        "in_budget": receipt.in_budget,
    }


def rehearsal_document(rehearsal: FleetRehearsal) -> dict[str, Any]:
    """All receipts, and the errors of the plan."""
    return {
        **schema("fleet-rehearsal"),
        **plain(rehearsal),
        "time_error": rehearsal.time_error,
        "cost_error": rehearsal.cost_error,
        "in_time": rehearsal.in_time,
    }


def ledger_document(ledger: FleetLedger) -> dict[str, Any]:
    """All receipts, and what they say of predictions."""
    return {**schema("ledger"), **plain(ledger)}


def events_document(events: Sequence[FleetEvent]) -> dict[str, Any]:
    """All events, as rows."""
    return {**schema("fleet-events"), "rows": plain(tuple(events))}


def _or_unknown(value: float | None, show: Any) -> str:
    return "not known" if value is None else str(show(value))


def _difference(lived: float, planned: float | None) -> str:
    return show_signed_percent(lived / planned - 1) if planned else ""


def _signed_seconds(difference_s: float) -> str:
    return f"{'−' if difference_s < 0 else '+'}{show_seconds(abs(difference_s))}"
