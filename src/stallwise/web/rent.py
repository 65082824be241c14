"""What to rent, asked from the page: `cloud.recommend` over the catalog, and the pick as a SkyPilot task."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stallwise.cloud.handover import skypilot_yaml
from stallwise.cloud.options import Option
from stallwise.cloud.recommend import Recommendation, recommend
from stallwise.cloud.wish import Wish
from stallwise.errors import InputError
from stallwise.report.recommend import show_age, show_home, show_usd_bounds, show_wish
from stallwise.report.text import show_percent, show_seconds
from stallwise.run.manifest import JobRecord
from stallwise.web.opened import Opened
from stallwise.web.predict import Terms
from stallwise.web.sliders import command, number, whole

_READ_FROM = ("trace", "layer file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The form."""

    samples: float
    deadline_h: float | None = None
    budget_usd: float | None = None
    cloud: str | None = None
    gpu: str | None = None
    max_nodes: int = 64
    spot: bool = False
    mean_life_h: float = 12.0
    scale_batch: bool = False

    def words(self, run: str) -> list[str]:
        """`stallwise recommend` of the same."""
        words = ["stallwise", "recommend", run, "--samples", f"{self.samples:.15g}"]
        words += [] if self.deadline_h is None else ["--deadline", f"{self.deadline_h:.15g}h"]
        words += [] if self.budget_usd is None else ["--budget", f"{self.budget_usd:.15g}usd"]
        for option, value in (("--clouds", self.cloud), ("--gpus", self.gpu)):
            words += [] if value is None else [option, value]
        words += [] if self.max_nodes == 64 else ["--max-nodes", str(self.max_nodes)]
        words += ["--spot", "--mean-life", f"{self.mean_life_h:g}h"] if self.spot else []
        return [*words, "--scale-batch"] if self.scale_batch else words


def asked_of(query: Mapping[str, str]) -> Asked:
    """The form as a query."""
    samples = number(query, "samples", 1.0, 1e18)
    if samples is None:
        raise InputError("Say how many samples the job has.")
    return Asked(
        samples=samples,
        deadline_h=number(query, "deadline_h", 1e-6, 1e6),
        budget_usd=number(query, "budget_usd", 1e-6, 1e12),
        cloud=query.get("cloud") or None,
        gpu=query.get("gpu") or None,
        max_nodes=whole(query, "max_nodes", 1, 1024) or 64,
        spot=query.get("spot") == "1",
        mean_life_h=number(query, "mean_life_h", 1e-2, 1e5) or 12.0,
        scale_batch=query.get("batch") == "scaled",
    )


def recommended(opened: Opened, asked: Asked, terms: Terms) -> Recommendation:
    """The same call as the command makes."""
    catalog = opened.catalog
    wish = Wish(
        samples=asked.samples,
        deadline_s=None if asked.deadline_h is None else 3600 * asked.deadline_h,
        budget_usd=asked.budget_usd,
        clouds=None if asked.cloud is None else frozenset({asked.cloud}),
        gpus=None if asked.gpu is None else catalog.gpu_names(asked.gpu),
        max_nodes=asked.max_nodes,
        spot=terms.losses(opened, asked.mean_life_h) if asked.spot else None,
        scale_batch=asked.scale_batch,
        provision_s=terms.provision_s,
        startup_s=terms.startup_s,
        said=terms.said,
    )
    return recommend(opened.subject, wish, catalog.offers, dt.date.today())


def document(found: Recommendation, run: str, asked: Asked) -> dict[str, Any]:
    """The answer, the front and the points of the picture."""
    return {
        "asked": show_wish(found),
        "verdict": found.verdict,
        "impossible": found.impossible,
        "now": [show_home(home) for home in (found.home, found.home_better) if home is not None],
        "prices": show_age(found),
        "pick": None if found.pick is None else _front_place(found),
        "front": [_row(option) for option in found.front],
        "points": [[point.job_s, point.usd, point.spot, point.name] for point in found.points if point.usd > 0],
        "deadline_s": found.wish.deadline_s,
        "budget_usd": found.wish.budget_usd,
        "lost": [
            {"fleet": one.option.name, "time": show_seconds(one.option.job_s), "cost": f"${one.option.usd:,.2f}",
             "why": one.why}
            for one in found.neighbours
        ],
        "warnings": list(found.warnings),
        "assumed": list(found.assumptions),
        "command": command(asked.words(run)),
    }  # fmt: skip


def _row(option: Option) -> dict[str, Any]:
    offer = option.offer
    return {
        "fleet": option.name,
        "gpus": f"{option.gpus} × {offer.instance.gpu.name}",
        "where": f"{offer.instance.cloud} {offer.zone or offer.region}",
        "time_s": option.job_s,
        "usd": option.usd,
        "time": show_seconds(option.job_s),
        "cost": f"${option.usd:,.2f}",
        "bounds": show_usd_bounds(option),
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "in_limits": show_percent(option.in_limits),
        "instance": f"{offer.instance.cloud}/{offer.instance.name}",
        "nodes": option.nodes,
        "used": option.used,
        "spot": offer.market == "spot",
    }


def _front_place(found: Recommendation) -> dict[str, Any]:
    """The pick, and where in the front it stands."""
    pick = found.pick
    assert pick is not None  # noqa: S101 - asked only then
    place = next((i for i, one in enumerate(found.front) if one.name == pick.name and one.offer == pick.offer), None)
    return _row(pick) | {"place": place}


def skypilot(found: Recommendation, job: JobRecord, place: int | None) -> str:
    """The task of the pick, as the command writes it; of another fleet of the front where `place` names one."""
    return skypilot_yaml(found if place is None else chosen(found, place), words(job))


def chosen(found: Recommendation, place: int) -> Recommendation:
    """The recommendation with a fleet of the front as its pick, and no other candidate."""
    if not 0 <= place < len(found.front):
        raise InputError(f"The front has {len(found.front)} fleets; there is none at place {place}.")
    return with_pick(found, found.front[place])


def with_pick(found: Recommendation, option: Option) -> Recommendation:
    """The same with another pick, which a person has chosen."""
    return replace(found, pick=option, candidates=(option,), verdict=f"{option.name}, chosen on the page.")


def skypilot_of(opened: Opened, option: Option, wish: Wish) -> str:
    """The task of one fleet that nobody recommended."""
    alone = recommend(opened.subject, wish, [option.offer], dt.date.today())
    return skypilot_yaml(with_pick(alone, option), words(opened.run.manifest.job))


def words(job: JobRecord) -> list[str]:
    """What torchrun is to run; a run that was read from another tool's file does not say it."""
    if job.launcher in _READ_FROM:
        return ["train.py"]
    return [*(["-m"] if job.module else []), job.script, *job.arguments]
