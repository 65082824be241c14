"""A study for the terminal and as JSON: coefficients of every link, held-out families, measured against predicted."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.model.macro import HeldOut, MacroFit, family_errors
from stallwise.record.study import LinkStudy, Study
from stallwise.report.card import WIDTH
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_percent, show_seconds

_COLUMNS, _LINES = 72, 16
_MARKS = "●○◆◇▲△■□"


def draw(found: Study) -> RenderableType:
    """Coefficients, errors by family, then each link's networks with a picture."""
    sections: list[RenderableType] = [_heading(found)]
    missing = unfinished(found)
    if missing is not None:
        sections += [Text(missing, style="yellow"), Text()]
    if any(link.fit is not None for link in found.links):
        sections += [_coefficients(found.links), Text(), _families(found.links)]
    for link in found.links:
        if not link.seen:
            continue
        sections += [Text(), _networks(link), Text(), picture(link)]
    return Constrain(Group(*sections), WIDTH)


def _heading(found: Study) -> RenderableType:
    settings = found.settings
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, ratio=1)
    line.add_column(no_wrap=True, justify="right")
    said = f"{len(settings.networks)} networks, 1/{settings.scale} of their gradients, batch {settings.batch}"
    line.add_row(Text("The stall by macro features", style="bold"), Text(said, style="dim"))
    return Group(line, Rule(style="dim"))


def unfinished(found: Study) -> str | None:
    """What is missing of a study that was stopped; None of a whole one."""
    total, done = len(found.settings.networks) * len(found.links), sum(len(link.seen) for link in found.links)
    if done >= total:
        return None
    return f"{done} of {total} measurements are there; the command that began the study goes on with it."


def show_link(link: LinkStudy) -> str:
    """1gbit, 2 processes."""
    return f"{link.rate}, {link.processes} processes"


def coefficients(fit: MacroFit | None) -> dict[str, str]:
    """Each in the unit it is read in."""
    if fit is None:
        return dict.fromkeys(("constant", "per tensor", "per layer", "per bucket", "per MB"), "too few")
    return {
        "constant": show_seconds(fit.constant_s),
        "per tensor": show_seconds(fit.per_tensor_s),
        "per layer": show_seconds(fit.per_layer_s),
        "per bucket": show_seconds(fit.per_bucket_s),
        "per MB": show_seconds(fit.per_byte_s * 1e6),
    }


def _coefficients(links: Sequence[LinkStudy]) -> RenderableType:
    names = list(coefficients(links[0].fit))
    drawn = table(
        "link", *((name, "right") for name in names),
        title="what a tensor, a layer, a bucket, a megabyte adds to the stall",
    )  # fmt: skip
    for link in links:
        drawn.add_row(show_link(link), *coefficients(link.fit).values())
    return drawn


def _families(links: Sequence[LinkStudy]) -> RenderableType:
    families = list(dict.fromkeys(one.seen.family for link in links for one in link.held_out))
    drawn = table(
        "held out", *((show_link(link), "right") for link in links),
        title="mean error of the stall of each family, predicted from the other families",
    )  # fmt: skip
    for family in families:
        drawn.add_row(family, *(_error_of(link, family) for link in links))
    drawn.add_row("all networks", *(_mean(link.held_out) for link in links), style="bold")
    drawn.add_row("by counts alone", *(_mean(link.by_counts) for link in links))
    drawn.add_row("their steps", *(_mean_step(link.held_out) for link in links))
    return drawn


def _error_of(link: LinkStudy, family: str) -> str:
    error = family_errors(link.held_out).get(family)
    return "too few" if error is None else show_percent(error)


def _mean(found: Sequence[HeldOut]) -> str:
    return show_percent(statistics.mean(abs(one.error) for one in found)) if found else "too few"


def _mean_step(found: Sequence[HeldOut]) -> str:
    return show_percent(statistics.mean(abs(one.step_error) for one in found)) if found else "too few"


def _networks(link: LinkStudy) -> RenderableType:
    held = {one.seen.network: one for one in link.held_out}
    drawn = table(
        "network", ("tensors", "right"), ("layers", "right"), ("bytes", "right"), ("buckets", "right"),
        ("alone", "right"), ("stall", "right"), ("± spread", "right"), ("held out", "right"), ("error", "right"),
        title=show_link(link),
    )  # fmt: skip
    for one, spread_s in zip(link.seen, link.spreads_s, strict=True):
        other = held.get(one.network)
        drawn.add_row(
            one.network,
            f"{one.features.tensors}",
            f"{one.features.layers}",
            show_bytes(one.features.bytes),
            f"{len(one.features.bucket_bytes)}",
            show_seconds(one.step_s),
            show_seconds(one.stall_s),
            show_seconds(spread_s),
            "" if other is None else show_seconds(other.predicted_s),
            "" if other is None else f"{100 * other.error:+.1f} %",
        )
    return drawn


def picture(link: LinkStudy) -> RenderableType:
    """Measured stall to the right, predicted (family held out) upwards, both logarithmic; the dots are equality."""
    points = [one for one in link.held_out if one.predicted_s > 0]
    if not points:
        return Text("too few families for a picture", style="dim")
    values = [value for one in points for value in (one.seen.stall_s, one.predicted_s)]
    low, high = math.log(min(values)), math.log(max(values))
    span = (high - low) or 1.0
    cells = [[" "] * _COLUMNS for _ in range(_LINES)]
    for column in range(_COLUMNS):
        cells[_LINES - 1 - round(column / (_COLUMNS - 1) * (_LINES - 1))][column] = "·"
    families = list(dict.fromkeys(one.seen.family for one in points))
    for one in points:
        column = round((math.log(one.seen.stall_s) - low) / span * (_COLUMNS - 1))
        line = _LINES - 1 - round((math.log(one.predicted_s) - low) / span * (_LINES - 1))
        cells[line][column] = _MARKS[families.index(one.seen.family) % len(_MARKS)]
    legend = "  ".join(f"{_MARKS[i % len(_MARKS)]} {family}" for i, family in enumerate(families))
    body = "\n".join(f"  │{''.join(row)}" for row in cells)
    ends = f"   {show_seconds(math.exp(low))}{'measured stall →'.center(_COLUMNS - 14)}{show_seconds(math.exp(high))}"
    return Text(f"  predicted ↑   {legend}\n{body}\n  └{'─' * _COLUMNS}\n{ends}")


def document(found: Study) -> dict[str, Any]:
    """Plain values."""
    return {
        "settings": msgspec.to_builtins(found.settings),
        "links": [
            {
                "rate": link.rate,
                "processes": link.processes,
                "coefficients": None if link.fit is None else asdict(link.fit),
                "family_errors": family_errors(link.held_out),
                "family_errors_by_counts": family_errors(link.by_counts),
                "networks": _network_rows(link),
            }
            for link in found.links
        ],
    }


def _network_rows(link: LinkStudy) -> list[dict[str, Any]]:
    held = {one.seen.network: one for one in link.held_out}
    return [
        {
            "network": one.network,
            "family": one.family,
            "tensors": one.features.tensors,
            "layers": one.features.layers,
            "gradient_bytes": one.features.bytes,
            "bucket_bytes": list(one.features.bucket_bytes),
            "bucket_ready": list(one.features.bucket_ready),
            "alone_s": one.step_s,
            "backward_s": one.features.backward_s,
            "stall_s": one.stall_s,
            "spread_s": spread_s,
            "fitted_s": None if link.fit is None else link.fit.stall_s(one.features),
            "held_out_s": held[one.network].predicted_s if one.network in held else None,
        }
        for one, spread_s in zip(link.seen, link.spreads_s, strict=True)
    ]
