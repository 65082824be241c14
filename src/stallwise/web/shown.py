"""Runs as the page lists them, opens them and holds them side by side."""

from typing import Any

from stallwise.errors import StallwiseError
from stallwise.hardware.catalog import Catalog
from stallwise.record.comparison import Comparison
from stallwise.record.profile import Profile
from stallwise.record.summary import summarise
from stallwise.report import parts
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds
from stallwise.run.manifest import Manifest
from stallwise.web.opened import Opened
from stallwise.web.shelf import Listing


def listing(found: Listing, folder: str) -> dict[str, Any]:
    """The folder; what tables say of each run is asked for afterwards."""
    return {
        "folder": folder,
        "runs": [_listed(one.key, one.manifest) for one in found.runs if one.manifest is not None],
        "refused": [{"key": one.key, "why": one.why} for one in found.refused],
        "simulations": list(found.simulations),
        "jobs": list(found.jobs),
        "cut": found.cut,
    }


def _listed(key: str, manifest: Manifest) -> dict[str, Any]:
    gpus = [gpu for node in manifest.nodes for gpu in node.gpus]
    world = manifest.world
    ranks = f"{world.world_size:,} rank{'s' if world.world_size != 1 else ''}"
    return {
        "key": key,
        "script": manifest.job.script,
        "created": manifest.created.isoformat(timespec="seconds"),
        "state": manifest.state,
        "ranks": ranks + (f" on {world.nnodes:,} nodes" if world.nnodes > 1 else ""),
        "device": gpus[0] if gpus else "processors",
    }


def figures(opened: Opened) -> dict[str, Any]:
    """Step, speed and what binds, for the list."""
    try:
        profile = opened.profile
    except StallwiseError:
        return _bare_figures(opened)
    return {
        "step": show_seconds(profile.step_s),
        "step_s": profile.step_s,
        "bounds": show_bounds(profile.step_low_s, profile.step_high_s),
        "speed": None if profile.samples_per_s is None else f"{show_number(profile.samples_per_s)} samples/s",
        "binds": profile.verdict.binds,
        "split": split(profile),
    }


def _bare_figures(opened: Opened) -> dict[str, Any]:
    phase = next((one for one in summarise(opened.run).phases if one.step_s is not None), None)
    step = phase.step_s if phase else None
    return {
        "step": None if step is None else show_seconds(step.value),
        "step_s": None if step is None else step.value,
        "bounds": "" if step is None else show_bounds(step.low, step.high),
        "speed": None,
        "binds": None,
        "split": [],
    }


def split(profile: Profile) -> list[dict[str, Any]]:
    """The parts of a measured step."""
    return [
        {
            "name": part.name,
            "share": part.share.s / profile.step_s,
            "shown": show_seconds(part.share.s),
            "percent": show_percent(part.share.s / profile.step_s),
            "bounds": show_bounds(part.share.low_s, part.share.high_s),
        }
        for part in parts.parts_of(profile)
        if part.share is not None
    ]


def facts(opened: Opened) -> dict[str, Any]:
    """Where the sliders of a run begin, and which of them mean something for it."""
    manifest = opened.run.manifest
    found: dict[str, Any] = _listed(opened.key, manifest) | {"partial": opened.run.partial_reason}
    found["figures"] = figures(opened)
    try:
        job = opened.job
    except StallwiseError as error:
        return found | {"whatif": None, "why": str(error)}
    per_node = max(1, job.gpus_per_node)
    return found | {
        "whatif": {
            "workers": None if job.work is None else job.work.workers,
            "cache": job.work is not None and job.cold_blocked_s is not None,
            "nodes": max(1, (job.gpus or 1) // per_node),
            "used": per_node,
            "samples": job.samples,
        },
        "why": None,
    }


def instances(catalog: Catalog) -> list[dict[str, Any]]:
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


def comparison(found: Comparison, before: Opened, after: Opened) -> dict[str, Any]:
    """What `stallwise compare` says, and both splits."""
    return {
        "before": before.key,
        "after": after.key,
        "phases": [
            {
                "phase": one.phase,
                "before": show_seconds(one.before_s.value),
                "after": show_seconds(one.after_s.value),
                "relative": f"{100 * one.relative.value:+.1f} %",
                "bounds": f"{100 * one.relative.low:+.1f} to {100 * one.relative.high:+.1f} %"
                if one.relative.is_bounded
                else "interval unknown",
                "verdict": one.verdict,
            }
            for one in found.phases
        ],
        "changes": [{"what": one.what, "before": one.before, "after": one.after} for one in found.changes],
        "splits": [figures(before)["split"], figures(after)["split"]],
    }
