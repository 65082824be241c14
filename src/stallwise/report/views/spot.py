"""Spot machines: lifetimes fitted to a log, losses injected into a job beside their plan, and a watched job."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from stallwise.elastic.chaos import ChaosOutcome, RecoveryCosts, mean_error
from stallwise.elastic.throughput import ThroughputCheck
from stallwise.report.format import (
    plural,
    show_bounds,
    show_factor,
    show_number,
    show_percent,
    show_percent_bounds,
    show_seconds,
    show_signed_percent,
    show_usd,
)
from stallwise.report.json import plain, schema
from stallwise.report.view import (
    Bar,
    BarPiece,
    Cell,
    Line,
    Notes,
    Paragraph,
    PartColumn,
    Row,
    Span,
    TablePart,
    View,
    facts,
    number,
    table,
    view,
)
from stallwise.spot.lifetimes import models
from stallwise.spot.lifetimes.fit import FittedLifetime, FittedLog, LifetimeEstimate, losses_within
from stallwise.spot.lifetimes.fit import LifetimeGroup as Lives
from stallwise.spot.lifetimes.published import losses_by_hour_of_day, published_lifetimes
from stallwise.units import SECONDS_PER_HOUR

_BAR = 30
_HOURS = (1, 2, 6, 12, 24)
_BEYOND = 2.0
"""A mean life that is so many times as long as the longest life in the log is not shown: the data do not say it."""


def draw_lifetimes(fit: FittedLog) -> View:
    """Survival, fits, groups, hours of the day."""
    estimate = fit.estimate
    groups = (("GPU or machine type", fit.by_gpu), ("region", fit.by_region))
    return view(
        f"{fit.log.source}: lifetimes",
        facts(_summary(estimate)),
        _survival(estimate),
        _fits(estimate),
        *(_groups(name, members) for name, members in groups if members),
        _hours(fit) if fit.by_hour else None,
        Notes("assumed", tuple(fit.log.notes)),
        aside=f"{plural(estimate.machines, 'machine')} · {estimate.losses:,} lost",
    )


def _summary(estimate: LifetimeEstimate) -> Iterator[tuple[str, Line]]:
    low_s, high_s = estimate.mean_bounds_s
    bounds = show_bounds(low_s, high_s)
    yield "one loss in", (Span(show_seconds(estimate.mean_s), "strong"), f" of machine time  ({bounds})")
    median_s = estimate.survival.median_s()
    yield "half are gone", "not within the log" if median_s is None else f"after {show_seconds(median_s)}"
    yield "plans use", f"the measured curve below, not a fitted shape: mean life {show_seconds(estimate.curve.mean_s)}"


def _survival(estimate: LifetimeEstimate) -> TablePart:
    rows = (
        (
            f"{row.hours} h",
            show_percent(row.part),
            show_percent_bounds(row.low, row.high),
            Cell(bar=Bar((BarPiece(0.0, row.part, "fetch"),) if row.part > 0 else ())),
        )
        for row in losses_within(estimate)
    )
    columns = (number("within"), number("lost"), PartColumn("95 % band"), PartColumn("", bar=_BAR, priority=1))
    return table(columns, rows, "fraction that is lost (Kaplan-Meier)")


def _fits(estimate: LifetimeEstimate) -> TablePart:
    rows = (
        Row(
            (
                fitted.name,
                _parameters(fitted),
                _mean_life(fitted, estimate),
                show_number(fitted.r2) if math.isfinite(fitted.r2) else "n/a",
                show_number(fitted.aic),
            ),
            tone="strong" if fitted is estimate.best else "",
        )
        for fitted in estimate.fits
    )
    columns = ("shape", PartColumn("parameters", wrap=True), number("mean life"), number("R²", 1), number("AIC", 2))
    return table(columns, rows, "fitted shapes")


def _mean_life(fitted: FittedLifetime, estimate: LifetimeEstimate) -> str:
    """The mean life as far as the data say it: not one far beyond the longest life that was seen."""
    longest_s = estimate.survival.longest_s
    mean_s = fitted.life.mean_s
    return f"over {show_seconds(longest_s)}" if mean_s > _BEYOND * longest_s > 0 else show_seconds(mean_s)


def _parameters(fitted: FittedLifetime) -> str:
    life = fitted.life
    if isinstance(life, models.Weibull):
        return f"scale {show_seconds(life.scale_s)}, shape {show_number(life.shape)}"
    if isinstance(life, models.Bathtub):
        return (
            f"A {show_number(life.scale)}, τ1 {show_seconds(life.early_s)}, τ2 {show_seconds(life.late_s)}, "
            f"b {show_seconds(life.wall_s)}, ends {show_seconds(life.cap_s)}"
        )
    return f"mean {show_seconds(life.mean_s)}"


def _groups(name: str, groups: tuple[Lives, ...]) -> TablePart:
    rows = []
    for group in groups:
        estimate = group.estimate
        shares = [""] * len(_HOURS) if estimate is None else [_share(estimate, hours) for hours in _HOURS]
        mean = "none seen" if estimate is None else show_seconds(estimate.mean_s)
        rows.append((group.name, f"{group.machines:,}", f"{group.losses:,}", mean, *shares))
    columns = (
        PartColumn(name),
        number("machines", 3),
        number("lost", 2),
        number("one loss in"),
        *(number(f"≤ {hours} h", 4 if hours in (2, 6) else 1) for hours in _HOURS),
    )
    return table(columns, rows, f"by {name}")


def _share(estimate: LifetimeEstimate, hours: int) -> str:
    at_s = float(hours * SECONDS_PER_HOUR)
    return show_percent(float(estimate.survival.cdf(at_s))) if at_s <= estimate.survival.longest_s else "unknown"


def _hours(fit: FittedLog) -> TablePart:
    rates = [row.per_h or 0.0 for row in fit.by_hour]
    most = max(rates) or 1.0
    rows = (
        (
            str(row.hour),
            str(row.losses),
            show_number(row.machine_h),
            "unknown" if row.per_h is None else show_number(100 * rate),
            Cell(bar=Bar((BarPiece(0.0, rate / most, "prep"),) if rate else ())),
        )
        for row, rate in zip(fit.by_hour, rates, strict=True)
    )
    columns = (
        number("hour"),
        number("lost"),
        number("machine-hours", 2),
        number("per 100 h"),
        PartColumn("", bar=_BAR, priority=1),
    )
    return table(columns, rows, "by hour of day, local time")


def lifetimes_document(fit: FittedLog) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    return {
        **schema("spot-fit"),
        "source": fit.log.source,
        **_estimate_record(fit.estimate),
        "by_gpu": [_group_record(group) for group in fit.by_gpu],
        "by_region": [_group_record(group) for group in fit.by_region],
        "by_hour": [
            {"hour": row.hour, "losses": row.losses, "machine_h": row.machine_h, "per_h": row.per_h}
            for row in fit.by_hour
        ],
        "notes": list(fit.log.notes),
    }


def _group_record(group: Lives) -> dict[str, Any]:
    record = {"name": group.name, "machines": group.machines, "losses": group.losses, "machine_h": group.machine_h}
    return record | ({} if group.estimate is None else _estimate_record(group.estimate))


def _estimate_record(estimate: LifetimeEstimate) -> dict[str, Any]:
    low_s, high_s = estimate.mean_bounds_s
    return {
        "machines": estimate.machines,
        "losses": estimate.losses,
        "exposure_s": estimate.exposure_s,
        "mean_s": estimate.mean_s,
        "mean_low_s": low_s,
        "mean_high_s": high_s,
        "median_s": estimate.survival.median_s(),
        "lost_within": [
            {"hours": row.hours, "part": row.part, "low": row.low, "high": row.high} for row in losses_within(estimate)
        ],
        "fits": [_fit_record(fitted) for fitted in estimate.fits],
        "best": estimate.best.name,
    }


def _fit_record(fitted: FittedLifetime) -> dict[str, Any]:
    life = fitted.life
    parameters: dict[str, Any] = {"mean_s": plain(life.mean_s)}
    if isinstance(life, models.Weibull):
        parameters |= {"scale_s": life.scale_s, "shape": life.shape}
    if isinstance(life, models.Bathtub):
        parameters |= {
            "scale": life.scale,
            "early_s": life.early_s,
            "late_s": life.late_s,
            "wall_s": life.wall_s,
            "cap_s": plain(life.cap_s),
        }
    return {"name": fitted.name, **parameters, "r2": plain(fitted.r2), "aic": fitted.aic}


def draw_published() -> View:
    """The published tables, and in which hours of the day machines were lost."""
    rows = (
        (
            one.gpu,
            one.region,
            str(one.machines),
            *(show_percent(one.fraction_lost(hours)) for hours in _HOURS),
            show_seconds(one.life().mean_s),
        )
        for one in published_lifetimes()
    )
    columns = (
        PartColumn("GPU"),
        PartColumn("region"),
        number("machines", 1),
        *(number(f"≤ {hours} h", 2) for hours in _HOURS),
        number("mean life"),
    )
    title = "lost within, Google Compute Engine 2019 (CM-DARE); all end at 24 h"
    by_hour = ((gpu, *(str(count) for count in hours[:24])) for gpu, hours in losses_by_hour_of_day().items())
    hours = (PartColumn("GPU"), *(number(str(hour)) for hour in range(24)))
    return view("", table(columns, rows, title), table(hours, by_hour, "lost by local hour of day", split=True))


def published_document() -> dict[str, Any]:
    """The same as plain values."""
    return {
        **schema("spot-published"),
        "tables": [
            {
                "gpu": one.gpu,
                "region": one.region,
                "machines": one.machines,
                "lost": one.lost,
                "lost_within": [{"hours": hours, "part": one.fraction_lost(hours)} for hours in _HOURS],
                "mean_s": one.life().mean_s,
                "source": one.source,
            }
            for one in published_lifetimes()
        ],
        "lost_by_hour_of_day": {gpu: list(hours) for gpu, hours in losses_by_hour_of_day().items()},
    }


def draw_chaos(costs: RecoveryCosts, outcomes: Sequence[ChaosOutcome]) -> View:
    """Costs measured here, one row per run, and how far the plan was off."""
    trial = outcomes[0].trial
    here = (
        f"a step takes {show_seconds(costs.step_s)}; a host trains {show_seconds(costs.start_s + costs.join_s)} "
        f"after its start; all pause {show_seconds(costs.join_s)} for one that joins, "
        f"{show_seconds(costs.notice_s)} for one that goes with notice, {show_seconds(costs.loss_s)} for one killed"
    )
    return view(
        f"chaos: {'with notice' if trial.notice else 'killed without notice'}",
        facts([("job", _chaos_job(outcomes)), ("here", here)]),
        _chaos_runs(outcomes),
        facts(_chaos_summary(outcomes)),
    )


def _chaos_job(outcomes: Sequence[ChaosOutcome]) -> str:
    trial = outcomes[0].trial
    return (
        f"{trial.samples:,} samples on up to {plural(trial.machines, 'machine')}, {show_seconds(trial.work_s)} without "
        f"a loss; a checkpoint every {show_seconds(trial.interval_s)}"
    )


def _chaos_runs(outcomes: Sequence[ChaosOutcome]) -> TablePart:
    columns = (
        number("run"), number("losses"), number("lived"), number("planned"), number("error"),
        number("done again", 2), number("recovery", 1), number("cost", 3), number("planned cost", 4),
    )  # fmt: skip
    rows = (
        (
            str(place),
            str(one.lived.losses),
            show_seconds(one.lived.finish_s),
            show_seconds(one.planned_s),
            show_signed_percent(one.error),
            show_seconds(one.lived.redone_s) if one.lived.redone_s else "none",
            show_seconds(statistics.fmean(one.lived.recoveries_s)) if one.lived.recoveries_s else "none",
            show_usd(one.cost_usd),
            show_usd(one.planned_usd),
        )
        for place, one in enumerate(outcomes, 1)
    )
    return table(columns, rows)


def _chaos_summary(outcomes: Sequence[ChaosOutcome]) -> Iterator[tuple[str, Line]]:
    yield "plan", f"mean error of the finish {show_percent(mean_error(outcomes))} over {plural(len(outcomes), 'run')}"
    pauses = [pause for one in outcomes for pause in one.lived.recoveries_s]
    if pauses:
        mean, longest = show_seconds(statistics.fmean(pauses)), show_seconds(max(pauses))
        yield "recovery", f"{mean} on average, {longest} at most"


def chaos_document(costs: RecoveryCosts, outcomes: Sequence[ChaosOutcome]) -> dict[str, Any]:
    """Everything, in seconds and dollars."""
    return {
        **schema("spot-chaos"),
        "costs": {name: getattr(costs, name) for name in RecoveryCosts.__slots__},
        "mean_error": mean_error(outcomes),
        "runs": [
            {
                "notice": one.trial.notice,
                "machines": one.trial.machines,
                "losses": one.lived.losses,
                "rounds": one.lived.rounds,
                "step_s": one.lived.step_s,
                "finish_s": one.lived.finish_s,
                "planned_s": one.planned_s,
                "error": one.error,
                "redone_s": one.lived.redone_s,
                "planned_redone_s": one.planned_redone_s,
                "recoveries_s": list(one.lived.recoveries_s),
                "cost_usd": one.cost_usd,
                "planned_usd": one.planned_usd,
                "trace": [
                    [float(a), int(c)] for a, c in zip(one.trial.trace.at_s, one.trial.trace.counts, strict=True)
                ],
            }
            for one in outcomes
        ],
    }


def draw_window(verdict: ThroughputCheck) -> View:
    """12:30:05  2 workers  131 samples/s, predicted 140 (6.1 % short)  ok."""
    window = verdict.window
    clock = time.strftime("%H:%M:%S", time.localtime(window.at_s))
    head = f"{clock}  {plural(window.workers, 'worker')}  {show_number(window.per_s)}/s"
    if verdict.predicted_per_s is None:
        return _line(Span(f"{head}  learning", "dim"))
    gap = f"{show_percent(abs(verdict.shortfall))} {'short' if verdict.shortfall > 0 else 'above'}"
    measured = f"{head}, predicted {show_number(verdict.predicted_per_s)} ({gap})"
    if verdict.advice is None:
        return _line(f"{measured}  {'looking for the bottleneck' if verdict.alarm else 'ok'}")
    advice = verdict.advice
    sentence = f"{advice.bottleneck}: {advice.what}. Do: {advice.do}; up to {show_factor(advice.gain)}"
    return _line(Span(f"{measured}  {sentence}", "warn"))


def _line(line: Line) -> View:
    return view("", Paragraph(line))


def window_document(verdict: ThroughputCheck) -> dict[str, Any]:
    """For `--json`: one line each."""
    window, advice = verdict.window, verdict.advice
    return {
        "at_s": window.at_s,
        "workers": window.workers,
        "measured_per_s": window.per_s,
        "predicted_per_s": verdict.predicted_per_s,
        "shortfall": verdict.shortfall,
        "alarm": verdict.alarm,
        "bottleneck": advice.bottleneck if advice else None,
        "what": advice.what if advice else None,
        "do": advice.do if advice else None,
        "gain": advice.gain if advice else None,
    }
