"""A study of stalls by macro features: its view, and JSON."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from stallwise.machine.study import LinkStudy, Study
from stallwise.model.exchange.macro import HeldOutPrediction, MacroFit, family_errors
from stallwise.report.format import plural, show_bytes, show_percent, show_seconds, show_signed_percent
from stallwise.report.html import page as html_page
from stallwise.report.json import schema
from stallwise.report.view import (
    Axis,
    Chart,
    Paragraph,
    Part,
    PartColumn,
    Row,
    Series,
    TablePart,
    View,
    number,
    section,
    table,
)

_MARKS = "●○◆◇▲△■□"
_COLOURS = 6


def draw(study: Study) -> View:
    """Coefficients, errors by family, then each link's networks with a picture."""
    missing = unfinished(study)
    fitted = any(link.fit is not None for link in study.links)
    return View(
        "The stall by macro features",
        show_settings(study),
        () if missing is None else (Paragraph(missing, "warn"),),
        (
            section("Coefficients", "coefficients", *((_coefficients(study.links),) if fitted else ())),
            section("Held-out families", "errors", *((_families(study.links),) if fitted else ())),
            *(
                section(show_link(link), f"link-{place}", _networks(link), _scatter(link, f"study-{place}"))
                for place, link in enumerate(study.links)
                if link.seen
            ),
        ),
        key="study",
        subtitle=f"{show_settings(study)}, on the stand-in accelerator",
    )


def page(study: Study) -> str:
    """The study as one self-contained HTML page."""
    return html_page(draw(study))


def show_settings(study: Study) -> str:
    """4 networks, 1/8 of their gradients, batch 32."""
    settings = study.settings
    return f"{plural(len(settings.networks), 'network')}, 1/{settings.scale} of their gradients, batch {settings.batch}"


def unfinished(study: Study) -> str | None:
    """What is missing of a study that was stopped; None of a whole one."""
    total, done = len(study.settings.networks) * len(study.links), sum(len(link.seen) for link in study.links)
    if done >= total:
        return None
    return f"{done} of {total} measurements are there; the command that began the study goes on with it."


def show_link(link: LinkStudy) -> str:
    """The rate and number of processes: 1gbit, 2 processes."""
    return f"{link.rate}, {plural(link.processes, 'process')}"


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


def _coefficients(links: Sequence[LinkStudy]) -> TablePart:
    names = list(coefficients(links[0].fit))
    rows = ((show_link(link), *coefficients(link.fit).values()) for link in links)
    return table(
        (PartColumn("link"), *map(number, names)),
        rows,
        "what a tensor, a layer, a bucket, a megabyte adds to the stall",
        "stall = constant + max over buckets g of per tensor and per layer until g is complete "
        "+ per bucket and per byte of g and those after it - what is left of backward",
    )


def _families(links: Sequence[LinkStudy]) -> TablePart:
    families = list(dict.fromkeys(one.measured.family for link in links for one in link.held_out))
    rows = [Row((family, *(_error_of(link, family) for link in links))) for family in families]
    rows.append(Row(("all networks", *(_mean(link.held_out) for link in links)), tone="strong"))
    rows.append(Row(("by counts alone", *(_mean(link.by_counts) for link in links))))
    rows.append(Row(("their steps", *(_mean_step(link.held_out) for link in links))))
    columns = (PartColumn("held out"), *(number(show_link(link)) for link in links))
    title = "mean error of the stall of each family, predicted from the other families"
    return table(columns, rows, title, split=True)


def _error_of(link: LinkStudy, family: str) -> str:
    error = family_errors(link.held_out).get(family)
    return "too few" if error is None else show_percent(error)


def _mean(predictions: Sequence[HeldOutPrediction]) -> str:
    return show_percent(statistics.mean(abs(one.error) for one in predictions)) if predictions else "too few"


def _mean_step(predictions: Sequence[HeldOutPrediction]) -> str:
    return show_percent(statistics.mean(abs(one.step_error) for one in predictions)) if predictions else "too few"


def _networks(link: LinkStudy) -> TablePart:
    held_out = {one.measured.network: one for one in link.held_out}
    rows = []
    for one, spread_s in zip(link.seen, link.spreads_s, strict=True):
        other = held_out.get(one.network)
        rows.append(
            (
                one.network,
                f"{one.features.tensors}",
                f"{one.features.layers}",
                show_bytes(one.features.bytes),
                f"{len(one.features.bucket_bytes)}",
                show_seconds(one.step_s),
                show_seconds(one.stall_s),
                show_seconds(spread_s),
                "" if other is None else show_seconds(other.predicted_s),
                "" if other is None else show_signed_percent(other.error),
            )
        )
    columns = (
        "network", number("tensors", 4), number("layers", 5), number("bytes", 3), number("buckets", 6),
        number("alone", 2), number("stall"), number("± spread", 1), number("held out"), number("error"),
    )  # fmt: skip
    return table(columns, rows, show_link(link))


def _scatter(link: LinkStudy, key: str) -> Part:
    """Measured stall to the right, predicted (family held out) upwards, both logarithmic; dashed: equality."""
    points = [one for one in link.held_out if one.predicted_s > 0]
    if not points:
        return Paragraph("too few families for a picture", "dim")
    worst = max(points, key=lambda one: abs(one.error))
    return Chart(
        key,
        "Measured and predicted stall",
        f"{plural(len(points), 'network')}; furthest off is {worst.measured.network} with "
        f"{show_signed_percent(worst.error)}.",
        Axis(show_seconds, "measured", logarithmic=True),
        Axis(show_seconds, "predicted, its family held out", logarithmic=True),
        tuple(_series(points)),
        height=420,
        legend=True,
    )


def _series(points: Sequence[HeldOutPrediction]) -> Iterator[Series]:
    values = [value for one in points for value in (one.measured.stall_s, one.predicted_s)]
    low, high = min(values), max(values)
    steps = [low * (high / low) ** (i / 40) for i in range(41)]
    yield Series("equal", tuple((value, value) for value in steps), "ideal", glyph="·")
    for place, family in enumerate(dict.fromkeys(one.measured.family for one in points)):
        members = [one for one in points if one.measured.family == family]
        titles = tuple(
            f"{one.measured.network}: {show_seconds(one.measured.stall_s)}, predicted {show_seconds(one.predicted_s)}"
            for one in members
        )
        dots = tuple((one.measured.stall_s, one.predicted_s) for one in members)
        glyph = _MARKS[place % len(_MARKS)]
        yield Series(family, dots, f"point c{place % _COLOURS}", radius=5, titles=titles, glyph=glyph)


def document(study: Study) -> dict[str, Any]:
    """The settings, and for each link its coefficients, errors and networks."""
    return {
        **schema("study"),
        "settings": msgspec.to_builtins(study.settings),
        "links": [
            {
                "rate": link.rate,
                "processes": link.processes,
                "coefficients": None if link.fit is None else asdict(link.fit),
                "family_errors": family_errors(link.held_out),
                "family_errors_by_counts": family_errors(link.by_counts),
                "networks": _network_rows(link),
            }
            for link in study.links
        ],
    }


def _network_rows(link: LinkStudy) -> list[dict[str, Any]]:
    held_out = {one.measured.network: one for one in link.held_out}
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
            "held_out_s": held_out[one.network].predicted_s if one.network in held_out else None,
        }
        for one, spread_s in zip(link.seen, link.spreads_s, strict=True)
    ]
