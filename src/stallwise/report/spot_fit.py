"""Lifetimes as fitted to a log: the terminal's view and the JSON document."""

import math
from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.report.card import WIDTH, labelled
from stallwise.report.profile_json import plain
from stallwise.report.terminal import table
from stallwise.report.text import show_number, show_percent, show_seconds
from stallwise.spot.lifetimes import models
from stallwise.spot.lifetimes.fit import Estimate, Fitted
from stallwise.spot.lifetimes.published import losses_by_hour_of_day, watched
from stallwise.spot.lifetimes.summary import FittedLog, gone_within
from stallwise.spot.lifetimes.summary import Group as Lives
from stallwise.units import SECONDS_PER_HOUR

_BAR = 30
_HOURS = (1, 2, 6, 12, 24)


def draw(found: FittedLog) -> RenderableType:
    """Survival, fits, groups, hours of the day."""
    estimate = found.estimate
    parts: list[RenderableType] = [
        _heading(found),
        _summary(estimate),
        Text(),
        _survival(estimate),
        Text(),
        _fits(estimate),
    ]
    for name, groups in (("GPU or machine type", found.by_gpu), ("region", found.by_region)):
        if groups:
            parts += [Text(), _groups(name, groups)]
    if found.by_hour:
        parts += [Text(), _hours(found)]
    notes = labelled()
    for number, note in enumerate(found.log.notes):
        notes.add_row("assumed" if number == 0 else "", Text(note, style="dim"))
    if found.log.notes:
        parts += [Text(), notes]
    return Constrain(Group(*parts), WIDTH)


def _heading(found: FittedLog) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    estimate = found.estimate
    line.add_row(
        Text(f"{found.log.source}: lifetimes", style="bold"),
        Text(f"{estimate.machines:,} machines · {estimate.losses:,} lost", style="dim"),
    )
    return Group(line, Rule(style="dim"))


def _summary(estimate: Estimate) -> Table:
    rows = labelled()
    low_s, high_s = estimate.mean_bounds_s
    bounds = f"({show_hours(low_s)} to {show_hours(high_s)})"
    rows.add_row("one loss in", Text.assemble((show_hours(estimate.mean_s), "bold"), f" of machine time  {bounds}"))
    median_s = estimate.survival.median_s()
    rows.add_row("half are gone", Text("not within the log" if median_s is None else f"after {show_hours(median_s)}"))
    return rows


def show_hours(value_s: float) -> str:
    """Hours with three digits; minutes below one."""
    if math.isinf(value_s):
        return "no end"
    if value_s < SECONDS_PER_HOUR:
        return show_seconds(value_s)
    return f"{show_number(value_s / SECONDS_PER_HOUR)} h"


def _survival(estimate: Estimate) -> Table:
    drawn = table(("within", "right"), ("lost", "right"), "95 % band", "", title="part that is lost (Kaplan-Meier)")
    for row in gone_within(estimate):
        bar = Text("█" * round(_BAR * row.part), style="red")
        drawn.add_row(
            f"{row.hours} h", show_percent(row.part), f"{show_percent(row.low)} to {show_percent(row.high)}", bar
        )
    return drawn


def _fits(estimate: Estimate) -> Table:
    drawn = table(
        "shape", "parameters", ("mean life", "right"), ("R²", "right"), ("AIC", "right"), title="fitted shapes"
    )
    for fitted in estimate.fits:
        best = fitted is estimate.best
        drawn.add_row(
            fitted.name,
            _parameters(fitted),
            show_hours(fitted.life.mean_s),
            f"{fitted.r2:.3f}",
            f"{fitted.aic:,.0f}",
            style="bold" if best else None,
        )
    return drawn


def _parameters(fitted: Fitted) -> str:
    life = fitted.life
    if isinstance(life, models.Weibull):
        return f"scale {show_hours(life.scale_s)}, shape {life.shape:.3g}"
    if isinstance(life, models.Bathtub):
        return (
            f"A {life.scale:.3g}, τ1 {show_hours(life.early_s)}, τ2 {show_hours(life.late_s)}, "
            f"b {show_hours(life.wall_s)}, ends {show_hours(life.cap_s)}"
        )
    return f"mean {show_hours(life.mean_s)}"


def _groups(name: str, groups: tuple[Lives, ...]) -> Table:
    drawn = table(
        name, ("machines", "right"), ("lost", "right"), ("one loss in", "right"),
        *((f"≤ {hours} h", "right") for hours in _HOURS), title=f"by {name}",
    )  # fmt: skip
    for group in groups:
        found = group.estimate
        shares = [] if found is None else [_share(found, hours) for hours in _HOURS]
        mean = "none seen" if found is None else show_hours(found.mean_s)
        drawn.add_row(group.name, f"{group.machines:,}", f"{group.losses:,}", mean, *(shares or [""] * len(_HOURS)))
    return drawn


def _share(found: Estimate, hours: int) -> str:
    at_s = float(hours * SECONDS_PER_HOUR)
    return show_percent(float(found.survival.gone(at_s))) if at_s <= found.survival.longest_s else "unknown"


def _hours(found: FittedLog) -> Table:
    drawn = table(
        ("hour", "right"),
        ("lost", "right"),
        ("machine-hours", "right"),
        ("per 100 h", "right"),
        "",
        title="by hour of day, local time",
    )
    rates = [row.per_h or 0.0 for row in found.by_hour]
    most = max(rates) or 1.0
    for row, rate in zip(found.by_hour, rates, strict=True):
        shown = "unknown" if row.per_h is None else show_number(100 * rate)
        bar = Text("█" * round(_BAR * rate / most), style="yellow")
        drawn.add_row(str(row.hour), str(row.losses), show_number(row.machine_h), shown, bar)
    return drawn


def document(found: FittedLog) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    return {
        "source": found.log.source,
        **_estimate(found.estimate),
        "by_gpu": [_group(group) for group in found.by_gpu],
        "by_region": [_group(group) for group in found.by_region],
        "by_hour": [
            {"hour": row.hour, "losses": row.losses, "machine_h": row.machine_h, "per_h": row.per_h}
            for row in found.by_hour
        ],
        "notes": list(found.log.notes),
    }


def _group(group: Lives) -> dict[str, Any]:
    told = {"name": group.name, "machines": group.machines, "losses": group.losses, "machine_h": group.machine_h}
    return told | ({} if group.estimate is None else _estimate(group.estimate))


def _estimate(estimate: Estimate) -> dict[str, Any]:
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
            {"hours": row.hours, "part": row.part, "low": row.low, "high": row.high} for row in gone_within(estimate)
        ],
        "fits": [_fit(fitted) for fitted in estimate.fits],
        "best": estimate.best.name,
    }


def _fit(fitted: Fitted) -> dict[str, Any]:
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


def draw_published() -> RenderableType:
    """The published tables, and in which hours of the day machines were lost."""
    drawn = table(
        "GPU", "region", ("machines", "right"), *((f"≤ {hours} h", "right") for hours in _HOURS),
        ("mean life", "right"), title="lost within, Google Compute Engine 2019 (CM-DARE); all end at 24 h",
    )  # fmt: skip
    for one in watched():
        shares = [show_percent(one.gone(hours)) for hours in _HOURS]
        drawn.add_row(one.gpu, one.region, str(one.machines), *shares, show_hours(one.life().mean_s))
    lost = table("GPU", *((str(hour), "right") for hour in range(24)), title="lost by local hour of day")
    for gpu, hours in losses_by_hour_of_day().items():
        lost.add_row(gpu, *(str(count) for count in hours[:24]))
    return Constrain(Group(drawn, Text(), lost), WIDTH)


def published_document() -> dict[str, Any]:
    """The same as plain values."""
    return {
        "tables": [
            {
                "gpu": one.gpu,
                "region": one.region,
                "machines": one.machines,
                "lost": one.lost,
                "lost_within": [{"hours": hours, "part": one.gone(hours)} for hours in _HOURS],
                "mean_s": one.life().mean_s,
                "source": one.source,
            }
            for one in watched()
        ],
        "lost_by_hour_of_day": {gpu: list(hours) for gpu, hours in losses_by_hour_of_day().items()},
    }
