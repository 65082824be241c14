"""JSON documents of the page: runs, comparisons and predictions, each figure beside how the command line writes it."""

import math
from typing import Any

from stallwise.analysis.compare import Comparison
from stallwise.analysis.prediction import Prediction
from stallwise.analysis.profile import Profile
from stallwise.cloud.options import FleetOption, schedule_of
from stallwise.errors import StallwiseError
from stallwise.hardware.catalog import Catalog
from stallwise.model.step.epoch import JobDuration
from stallwise.model.step.iteration import StepTimetable
from stallwise.model.step.setups import StepEstimate
from stallwise.report.charts import SLOT_KINDS, lanes, path_words, slot_words
from stallwise.report.format import (
    show_bounds,
    show_count,
    show_number,
    show_percent,
    show_seconds,
    show_signed_percent,
    show_usd,
)
from stallwise.report.views.profile import parts_of
from stallwise.report.views.whatif import (
    HIDDEN,
    PARTS,
    parts_s,
    show_baseline,
    show_binding,
    show_change,
    show_fleet,
    show_interval,
    show_link,
    show_setup,
    show_speedup,
)
from stallwise.run.manifest import Manifest
from stallwise.web._forms import SliderPositions, shell_command
from stallwise.web.predict import RentedFleet, RentTerms, predict_own, predict_rented
from stallwise.web.runs import FolderListing, OpenRun

_HIDDEN = 0.0005


def prediction_document(opened: OpenRun, run: str, positions: SliderPositions, terms: RentTerms) -> dict[str, Any]:
    """One position of the sliders; `run` is how the command line would name the run."""
    if positions.instance is None:
        prediction, job = predict_own(opened, positions)
        return _own_document(prediction, job, run, positions)
    return _rented_document(predict_rented(opened, positions, terms), run, positions)


def curve_document(opened: OpenRun, positions: SliderPositions) -> dict[str, Any]:
    """The same on 1 to 1,024 of the run's own GPUs, as far as links are known."""
    prediction, _ = predict_own(opened, positions, curve=True)
    return {
        "ends": prediction.curve_ends,
        "asked": prediction.answer.gpus,
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
            for point in prediction.curve
        ],
    }


def _efficiency(point: StepEstimate, step_s: float) -> float:
    return min(1.0, point.efficiency * point.step_s / step_s) if point.bounded and step_s else point.efficiency


def _own_document(
    prediction: Prediction, job: JobDuration | None, run: str, positions: SliderPositions
) -> dict[str, Any]:
    step = prediction.answer
    nodes = 1 if prediction.gpus_per_node is None or step.gpus is None else -(-step.gpus // prediction.gpus_per_node)
    usd = None if job is None or positions.usd_per_h is None else job.usd(positions.usd_per_h, nodes)
    return {
        "fleet": show_fleet(prediction),
        "step": _seconds(step.step_s, step.low_s, step.high_s, show_interval(step)),
        "speed": None if step.samples_per_s is None else show_number(step.samples_per_s),
        "speedup": None if prediction.speedup is None else show_speedup(prediction),
        "parts": _parts(step, step.step_s),
        "binds": step.binds,
        "bound": show_binding(step),
        "critical": step.binding,
        "time": None if job is None else _seconds(job.job_s, job.low_s, job.high_s),
        "cost": None if usd is None else _dollars(*usd),
        "as_it_is": show_baseline(prediction),
        "facts": [["changed", show_change(change)] for change in prediction.changed]
        + [["links", show_link(link)] for link in prediction.links],
        "setup": show_setup(prediction.setup),
        "assumed": list(prediction.assumptions),
        "command": shell_command(positions.whatif_words(run, prediction.target.global_batch)),
        "timeline": _timeline(prediction.schedule),
        "rough": False,
    }


def _rented_document(fleet: RentedFleet, run: str, positions: SliderPositions) -> dict[str, Any]:
    option, request = fleet.option, fleet.request
    offer = option.offer
    facts = [
        ["offer", f"{offer.instance.cloud} {offer.zone or offer.region}, {show_usd(option.usd_per_h)}/h a machine"],
        ["GPUs", f"{option.gpus} × {offer.instance.gpu.name}"],
        ["settings", show_fleet_settings(option)],
    ]
    if option.spot is not None:
        result = option.spot.result
        losses = f"{show_number(result.losses)} losses on average, {show_seconds(result.redone_s)} done twice"
        replays = f"{option.spot.spot_request.replays:,} replays"
        facts.append(["spot", f"{losses}; save every {show_seconds(option.spot.interval_s)}; {replays}"])
    return {
        "fleet": option.name,
        "step": _seconds(option.step_s, option.step_low_s, option.step_high_s),
        "speed": show_number(option.samples_per_s),
        "speedup": None,
        "parts": _parts(option.answer, option.answer.step_s),
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "bound": "storage" if option.storage_bound else show_binding(option.answer),
        "critical": option.answer.binding,
        "time": _seconds(option.job_s, option.low_s, option.high_s),
        "cost": _dollars(option.usd, option.low_usd, option.high_usd),
        "as_it_is": None,
        "facts": facts,
        "assumed": [*(request.spot.assumptions if request.spot else ()), *request.assumptions],
        "command": shell_command(positions.recommend_words(run, request.global_batch)) if positions.listed else None,
        "timeline": _timeline(schedule_of(fleet.model, option)),
        "rough": positions.quick and option.spot is not None,
    }


def show_fleet_settings(option: FleetOption) -> str:
    """Batch and loader workers of a fleet."""
    return (
        f"{show_count(option.samples_per_gpu)} samples per GPU and step, {show_count(option.batch)} in all; "
        f"num_workers {option.workers}"
    )


def _timeline(timetable: StepTimetable) -> dict[str, Any]:
    """Lanes of the predicted step, as the report draws them."""
    return {
        "step_s": timetable.step_s,
        "end": show_seconds(timetable.step_s),
        "words": path_words(timetable),
        "lanes": [
            {
                "name": name,
                "slots": [
                    {
                        "kind": slot.kind,
                        "class": SLOT_KINDS[slot.kind],
                        "start_s": slot.start_s,
                        "end_s": slot.end_s,
                        "critical": slot.critical,
                        "words": slot_words(slot),
                    }
                    for slot in slots
                ],
            }
            for name, slots in lanes(timetable)
        ],
    }


def _parts(answer: StepEstimate, step_s: float) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "means": PARTS[name],
            "s": seconds,
            "share": seconds / step_s,
            "shown": show_seconds(seconds) if seconds >= _HIDDEN * step_s else HIDDEN,
            "percent": show_percent(seconds / step_s) if seconds >= _HIDDEN * step_s else "",
        }
        for name, seconds in parts_s(answer).items()
    ]


def _seconds(s: float, low_s: float, high_s: float, bounds: str | None = None) -> dict[str, Any]:
    bounded = math.isfinite(low_s) and math.isfinite(high_s)
    return {
        "s": s,
        "low_s": low_s if bounded else None,
        "high_s": high_s if bounded else None,
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


def folder_document(listing: FolderListing, folder: str) -> dict[str, Any]:
    """The folder; the page requests the figures of each run afterwards."""
    return {
        "folder": folder,
        "runs": [_run_row(one.key, one.manifest) for one in listing.runs if one.manifest is not None],
        "refused": [{"key": one.key, "why": one.why} for one in listing.refused],
        "simulations": list(listing.simulations),
        "jobs": list(listing.jobs),
        "cut": listing.cut,
    }


def _run_row(key: str, manifest: Manifest) -> dict[str, Any]:
    gpus = [gpu for node in manifest.nodes for gpu in node.gpus]
    world = manifest.world
    ranks = f"{world.world_size:,} rank{'s' if world.world_size != 1 else ''}"
    return {
        "key": key,
        "script": manifest.job.script,
        "created": manifest.created.isoformat(timespec="seconds"),
        "state": manifest.state,
        "ranks": ranks + (f" on {world.nnodes:,} nodes" if world.nnodes > 1 else ""),
        "device": gpus[0] if gpus else "CPUs",
    }


def figures_document(opened: OpenRun) -> dict[str, Any]:
    """Step, speed and what binds, for the list."""
    try:
        profile = opened.analysis.profile
    except StallwiseError:
        return _step_figures(opened)
    return {
        "step": show_seconds(profile.step_s),
        "step_s": profile.step_s,
        "bounds": show_bounds(profile.step_low_s, profile.step_high_s),
        "speed": None if profile.samples_per_s is None else f"{show_number(profile.samples_per_s)} samples/s",
        "binds": profile.verdict.binds,
        "split": split_rows(profile),
    }


def _step_figures(opened: OpenRun) -> dict[str, Any]:
    phase = next((one for one in opened.analysis.summary.phases if one.step_s is not None), None)
    step = phase.step_s if phase else None
    return {
        "step": None if step is None else show_seconds(step.value),
        "step_s": None if step is None else step.value,
        "bounds": "" if step is None else show_bounds(step.low, step.high),
        "speed": None,
        "binds": None,
        "split": [],
    }


def split_rows(profile: Profile) -> list[dict[str, Any]]:
    """The parts of a measured step, which add up to it: those not told from zero are what is unassigned."""
    return [
        {
            "name": part.name,
            "share": part.share.s / profile.step_s,
            "shown": show_seconds(part.share.s),
            "percent": show_percent(part.share.s / profile.step_s),
            "bounds": show_bounds(part.share.low_s, part.share.high_s),
        }
        for part in parts_of(profile)
        if part.share is not None and part.words is None
    ]


def run_document(opened: OpenRun) -> dict[str, Any]:
    """Where the sliders of a run begin, and which of them mean something for it."""
    manifest = opened.run.manifest
    document: dict[str, Any] = _run_row(opened.key, manifest) | {"partial": opened.run.partial_reason}
    document["figures"] = figures_document(opened)
    try:
        job = opened.analysis.job
    except StallwiseError as error:
        return document | {"whatif": None, "why": str(error)}
    per_node = max(1, job.gpus_per_node)
    return document | {
        "whatif": {
            "workers": None if job.work is None else job.work.workers,
            "cache": job.work is not None and job.cold_blocked_s is not None,
            "nodes": max(1, (job.gpus or 1) // per_node),
            "used": per_node,
            "samples": job.samples,
        },
        "why": None,
    }


def instance_rows(catalog: Catalog) -> list[dict[str, Any]]:
    """What can be rented now, by GPU; with the least listed price in each market."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for offer in catalog.offers:
        prices = best.setdefault((offer.instance.cloud, offer.instance.name), {})
        prices[offer.market] = min(offer.usd_per_h, prices.get(offer.market, offer.usd_per_h))
    return [
        {
            "key": f"{one.cloud}/{one.name}",
            "cloud": one.cloud,
            "name": one.name,
            "gpu": one.gpu.name,
            "gpus": one.gpu_count,
            "networked": one.network is not None,
            "usd_per_h": best[one.cloud, one.name].get("on-demand"),
            "spot_usd_per_h": best[one.cloud, one.name].get("spot"),
        }
        for one in sorted(catalog.instances.values(), key=lambda it: (it.gpu.name, it.gpu_count, it.cloud, it.name))
        if one.retired_on is None and (one.cloud, one.name) in best
    ]


def comparison_document(comparison: Comparison, before: OpenRun, after: OpenRun) -> dict[str, Any]:
    """What `stallwise compare` says, and both splits."""
    return {
        "before": before.key,
        "after": after.key,
        "phases": [
            {
                "phase": one.phase,
                "before": show_seconds(one.before_s.value),
                "after": show_seconds(one.after_s.value),
                "relative": show_signed_percent(one.relative.value),
                "bounds": f"{show_signed_percent(one.relative.low)} to {show_signed_percent(one.relative.high)}"
                if one.relative.is_bounded
                else "interval unknown",
                "verdict": one.verdict,
            }
            for one in comparison.phases
        ],
        "changes": [{"what": one.what, "before": one.before, "after": one.after} for one in comparison.changes],
        "splits": [figures_document(before)["split"], figures_document(after)["split"]],
    }
