"""The JSON of a recommendation: SI units in the key names, null for what is unknown."""

from typing import Any

from stallwise.cloud.handover import spot_plan_words
from stallwise.cloud.home import Home
from stallwise.cloud.measured import MeasuredChoice
from stallwise.cloud.options import Option
from stallwise.cloud.recommend import Recommendation


def document(found: Recommendation) -> dict[str, Any]:
    """Everything that the screen shows, and the points of the picture."""
    wish = found.wish
    return {
        "job": found.subject.job.name,
        "samples": wish.samples,
        "epochs": wish.epochs,
        "deadline_s": wish.deadline_s,
        "budget_usd": wish.budget_usd,
        "sure": wish.sure,
        "batch": "scaled" if wish.scale_batch else "kept",
        "verdict": found.verdict,
        "stay": found.stay is not None,
        "impossible": found.impossible,
        "now": _home(found.home),
        "now_with_more_workers": None if found.home_better is None else _home(found.home_better),
        "pick": None if found.pick is None else option_record(found.pick),
        "spot_plan": spot_plan_words(found.pick, found) if found.pick is not None and found.pick.spot else None,
        "front": [option_record(option) for option in found.front],
        "lost": [{**option_record(one.option), "why": one.why} for one in found.neighbours],
        "places": None
        if found.zones is None
        else {
            "count": found.zones.places,
            "lowest_usd_per_h": found.zones.cheapest.usd_per_h,
            "lowest_in": found.zones.cheapest.zone or found.zones.cheapest.region,
            "median_usd_per_h": found.zones.median_usd_per_h,
            "highest_usd_per_h": found.zones.dearest.usd_per_h,
            "highest_in": found.zones.dearest.zone or found.zones.dearest.region,
        },
        "prices": None
        if found.age is None
        else {
            "oldest": str(found.age.oldest_as_of),
            "newest": str(found.age.newest_as_of),
            "age_days": found.age.age_days,
            "stale": found.age.stale,
        },
        "looked_at": {
            "offers": found.judged.offers,
            "instance_types": found.judged.types,
            "fleets": found.judged.fleets,
            "without_room": found.judged.no_room,
            "batch_not_shared_evenly": found.judged.uneven,
            "without_network": found.judged.alone,
            "not_judged": list(found.judged.unjudged),
        },
        "points": [
            {"time_s": p.job_s, "usd": p.usd, "gpu": p.gpu, "fleet": p.name, "spot": p.spot} for p in found.points
        ],
        "warnings": list(found.warnings),
        "assumptions": list(found.assumptions),
    }


def option_record(option: Option) -> dict[str, Any]:
    """One fleet."""
    split, offer = option.answer.split, option.offer
    return {
        "fleet": option.name,
        "cloud": offer.instance.cloud,
        "instance": offer.instance.name,
        "region": offer.region,
        "zone": offer.zone,
        "market": offer.market,
        "gpu": offer.instance.gpu.name,
        "machines": option.nodes,
        "gpus": option.gpus,
        "gpus_per_machine": option.used,
        "usd_per_h": option.usd_per_h,
        "listed_usd_per_h": offer.usd_per_h,
        "step_s": option.step_s,
        "step_low_s": option.step_low_s,
        "step_high_s": option.step_high_s,
        "samples_per_s": option.samples_per_s,
        "epoch_s": option.epoch_s,
        "time_s": option.job_s,
        "time_low_s": option.low_s,
        "time_high_s": option.high_s,
        "billed_s": option.billed_s,
        "usd": option.usd,
        "usd_low": option.low_usd,
        "usd_high": option.high_usd,
        "machines_usd": option.rent_usd,
        "moving_usd": option.moving_usd,
        "keeping_usd": option.keeping_usd,
        "in_time": option.in_time,
        "in_budget": option.in_budget,
        "in_limits": option.in_limits,
        "batch_per_gpu": option.samples_per_gpu,
        "batch": option.batch,
        "passes": option.passes,
        "workers_per_gpu": option.workers,
        "split_s": {
            "compute": split.compute_s,
            "exchange": split.exchange_s,
            "copy": split.copy_s,
            "data": split.read_s,
        },
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "spot": None
        if option.spot is None
        else {
            "work_s": option.spot.question.work_s,
            "losses": option.spot.result.losses,
            "redone_s": option.spot.result.redone_s,
            "checkpoint_every_s": option.spot.interval_s,
            "finished": option.spot.result.finished,
        },
    }


def _home(home: Home) -> dict[str, Any]:
    return {
        "gpu": home.gpu,
        "gpus": home.gpus,
        "workers_per_gpu": home.workers if home.more_workers is None else home.more_workers,
        "step_s": home.step.s,
        "time_s": home.job_s,
        "time_low_s": home.low_s,
        "time_high_s": home.high_s,
        "usd": home.usd,
        "in_time": home.in_time,
        "speedup": home.speedup,
    }


def measured_document(found: MeasuredChoice) -> dict[str, Any]:
    """Stash's mode."""
    return {
        "epochs": found.epochs,
        "deadline_s": found.deadline_s,
        "budget_usd": found.budget_usd,
        "pick": found.pick,
        "infeasible": found.infeasible,
        "front": list(found.front),
        "configurations": [
            {"configuration": one.name, "machines": one.machines, "usd_per_h": one.usd_per_h, "time_s": s, "usd": usd}
            for one, s, usd in found.rows
        ],
    }
