"""Answers as the page takes them: figures, and the same figures as the command line writes them."""

import math
from typing import Any

from stallwise.cloud.options import Option, schedule_of
from stallwise.model.epoch import Whole
from stallwise.model.schedule import Schedule
from stallwise.model.whatif import Answer
from stallwise.record.outlook import Outlook
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds
from stallwise.report.timeline_svg import KINDS, lanes, path_words, slot_words
from stallwise.report.whatif import (
    PARTS,
    parts_s,
    show_baseline,
    show_change,
    show_fleet,
    show_interval,
    show_link,
    show_share,
    show_speedup,
)
from stallwise.web.opened import Opened
from stallwise.web.predict import Rented, Terms, own, rented
from stallwise.web.sliders import Sliders, command

_HIDDEN = 0.0005


def answer(opened: Opened, run: str, asked: Sliders, terms: Terms) -> dict[str, Any]:
    """One position of the sliders; `run` is how the command line would name the run."""
    if asked.instance is None:
        found, batch, job = own(opened, asked)
        return _own(found, batch, job, run, asked)
    return _rented(rented(opened, asked, terms), run, asked)


def curve(opened: Opened, asked: Sliders) -> dict[str, Any]:
    """The same on 1 to 1,024 of the run's own GPUs, as far as links are known."""
    found, _, _ = own(opened, asked, curve=True)
    return {
        "ends": found.curve_ends,
        "asked": found.answer.gpus,
        "points": [
            {
                "gpus": point.gpus,
                "efficiency": point.efficiency,
                "low": _efficiency(point, point.high_s),
                "high": _efficiency(point, point.low_s),
                "shown": show_percent(point.efficiency),
                "step": show_seconds(point.step_s),
                "binds": point.binds,
            }
            for point in found.curve
        ],
    }


def _efficiency(point: Answer, step_s: float) -> float:
    return min(1.0, point.efficiency * point.step_s / step_s) if point.bounded and step_s else point.efficiency


def _own(found: Outlook, batch: float, job: Whole | None, run: str, asked: Sliders) -> dict[str, Any]:
    step = found.answer
    nodes = 1 if found.gpus_per_node is None or step.gpus is None else -(-step.gpus // found.gpus_per_node)
    usd = None if job is None or asked.usd_per_h is None else job.usd(asked.usd_per_h, nodes)
    return {
        "fleet": show_fleet(found),
        "step": _seconds(step.step_s, step.low_s, step.high_s, show_interval(step)),
        "speed": None if step.samples_per_s is None else show_number(step.samples_per_s),
        "speedup": None if found.speedup is None else show_speedup(found),
        "parts": _parts(step, step.step_s),
        "binds": step.binds,
        "share": show_share(step),
        "critical": step.binding,
        "time": None if job is None else _seconds(job.job_s, job.low_s, job.high_s),
        "cost": None if usd is None else _dollars(*usd),
        "as_it_is": show_baseline(found),
        "facts": [["changed", show_change(change)] for change in found.changed]
        + [["links", show_link(link)] for link in found.links],
        "assumed": list(found.assumptions),
        "command": command(asked.whatif_words(run, batch)),
        "timeline": _timeline(found.schedule),
        "rough": False,
    }


def _rented(found: Rented, run: str, asked: Sliders) -> dict[str, Any]:
    option, wish = found.option, found.wish
    offer = option.offer
    facts = [
        ["offer", f"{offer.instance.cloud} {offer.zone or offer.region}, ${option.usd_per_h:,.4g}/h a machine"],
        ["GPUs", f"{option.gpus} × {offer.instance.gpu.name}"],
        ["settings", settings(option)],
    ]
    if option.spot is not None:
        result = option.spot.result
        said = f"{result.losses:.2g} losses on average, {show_seconds(result.redone_s)} done twice"
        replays = f"{option.spot.question.replays:,} replays"
        facts.append(["spot", f"{said}; save every {show_seconds(option.spot.interval_s)}; {replays}"])
    return {
        "fleet": option.name,
        "step": _seconds(option.step_s, option.step_low_s, option.step_high_s),
        "speed": show_number(option.samples_per_s),
        "speedup": None,
        "parts": _parts(option.answer, option.answer.step_s),
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "share": show_share(option.answer),
        "critical": option.answer.binding,
        "time": _seconds(option.job_s, option.low_s, option.high_s),
        "cost": _dollars(option.usd, option.low_usd, option.high_usd),
        "as_it_is": None,
        "facts": facts,
        "assumed": [*(wish.spot.said if wish.spot else ()), *wish.said],
        "command": command(asked.recommend_words(run)) if asked.listed else None,
        "timeline": _timeline(schedule_of(found.subject, option)),
        "rough": asked.quick and option.spot is not None,
    }


def settings(option: Option) -> str:
    """Batch and loader workers."""
    return f"{option.samples_per_gpu:g} samples per GPU and step, {option.batch:g} in all; num_workers {option.workers}"


def _timeline(found: Schedule) -> dict[str, Any]:
    """Lanes of the predicted step, as the report draws them."""
    return {
        "step_s": found.step_s,
        "end": show_seconds(found.step_s),
        "words": path_words(found),
        "lanes": [
            {
                "name": name,
                "slots": [
                    {
                        "kind": slot.kind,
                        "class": KINDS[slot.kind],
                        "start_s": slot.start_s,
                        "end_s": slot.end_s,
                        "critical": slot.critical,
                        "words": slot_words(slot),
                    }
                    for slot in slots
                ],
            }
            for name, slots in lanes(found)
        ],
    }


def _parts(answer: Answer, step_s: float) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "means": PARTS[name],
            "s": seconds,
            "share": seconds / step_s,
            "shown": show_seconds(seconds) if seconds >= _HIDDEN * step_s else "hidden, or none",
            "percent": show_percent(seconds / step_s) if seconds >= _HIDDEN * step_s else "",
        }
        for name, seconds in parts_s(answer).items()
    ]


def _seconds(s: float, low_s: float, high_s: float, bounds: str | None = None) -> dict[str, Any]:
    known = math.isfinite(low_s) and math.isfinite(high_s)
    return {
        "s": s,
        "low_s": low_s if known else None,
        "high_s": high_s if known else None,
        "shown": show_seconds(s),
        "bounds": show_bounds(low_s, high_s) if bounds is None else bounds,
    }


def _dollars(usd: float, low: float, high: float) -> dict[str, Any]:
    return {
        "usd": usd,
        "low_usd": low,
        "high_usd": high,
        "shown": f"${usd:,.2f}",
        "bounds": f"${low:,.2f} to ${high:,.2f}",
    }
