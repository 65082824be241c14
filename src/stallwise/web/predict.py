"""What the sliders are answered with: the same functions as `stallwise whatif` and `stallwise recommend` call.

On the run's own machines the step is `what_if`'s, the job so many of these steps. On rented ones the fleet goes through
`cloud/` as in a recommendation, alone instead of with all others. A network or a cache that was set replaces the listed
one before that.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stallwise.cloud.bids import bids_of, priced_offers
from stallwise.cloud.fleets import Fleets, Shape, shapes_of
from stallwise.cloud.losses import through_losses
from stallwise.cloud.options import Option, option_of
from stallwise.cloud.speed import speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import SpotTerms, Wish
from stallwise.errors import InputError
from stallwise.hardware.instance import Instance
from stallwise.model.epoch import Plan, Step, Whole, whole
from stallwise.model.fabric import BETWEEN_LATENCY_S, INSIDE_LATENCY_S, KnownLink, link_of_rate, listed_factors
from stallwise.model.whatif import Answer, Change, Job
from stallwise.record.outlook import Outlook, outlook_of
from stallwise.record.setup import Asked, layout_of
from stallwise.units import BITS_PER_BYTE
from stallwise.web.opened import Opened
from stallwise.web.sliders import Sliders

QUICK_REPLAYS = 300
"""Of a spot fleet while a slider moves: 3 % of the command line's, which leaves room below 100 ms on a laptop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How rented machines begin and are lost, as the command line takes it."""

    provision_s: float
    startup_s: float
    said: tuple[str, ...]
    losses: Callable[[Opened, float], SpotTerms]
    """Of a run, at a mean life of so many hours."""


def own(opened: Opened, asked: Sliders, *, curve: bool = False) -> tuple[Outlook, float, Whole | None]:
    """On the run's own machines: the outlook, the factor of each GPU's batch, the job where its samples are known."""
    job = opened.job
    setup = Asked(
        nodes=asked.nodes,
        gpus_per_node=asked.used,
        network_bytes_per_s=_rate(asked.network_gbit),
        link_bytes_per_s=_rate(asked.link_gbit),
    )
    gpus, _ = layout_of(job, setup)
    batch = (job.gpus or 1) / gpus if asked.keep_batch else 1.0
    change = Change(batch=batch, workers=asked.workers, cached=asked.cache)
    found = outlook_of(job, change, setup, curve=None if curve else False, own=opened.links)
    return found, batch, _job(job, asked, found.answer, batch * gpus)


def _rate(gbit: float | None) -> float | None:
    return None if gbit is None else gbit * 1e9 / BITS_PER_BYTE


def _job(job: Job, asked: Sliders, answer: Answer, gpus: float) -> Whole | None:
    """So many steps; `gpus` are counted in batches of the measured size."""
    if asked.samples is None or not job.samples:
        return None
    low_s, high_s = (answer.low_s, answer.high_s) if answer.bounded else (answer.step_s, answer.step_s)
    step = Step(s=answer.step_s, low_s=min(low_s, answer.step_s), high_s=max(high_s, answer.step_s))
    return whole(step, Plan(samples=asked.samples, batch=job.samples * gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """A fleet that the sliders stand at."""

    subject: Subject
    wish: Wish
    option: Option


def rented(opened: Opened, asked: Sliders, terms: Terms) -> Rented:
    """On rented machines: the cheapest offer of the instance type; an `InputError` where it cannot be."""
    if asked.samples is None:
        raise InputError("Say how many samples the job has: time and cost of rented machines are those of a job.")
    instance = _instance(opened, asked)
    wish = wish_of(opened, asked, terms)
    offers = opened.offers_of(instance)
    priced = priced_offers(offers, wish)
    if not priced:
        market = "spot" if asked.spot else "on-demand"
        raise InputError(f"The catalog lists no {market} price of {instance.name}.")
    subject = _cached(opened.subject, asked)
    shapes, of_type, unjudged = shapes_of(subject, [instance], {})
    if not shapes:
        raise InputError(next(iter(unjudged.values())))
    fleet = _fleet(_linked(shapes[0], asked), subject, asked)
    found = speeds(subject, fleet, scale_batch=wish.scale_batch, workers=wish.workers)
    _check_fits(int(found.why_not[0]), subject, fleet)
    bids, replays, _ = through_losses(bids_of(subject, fleet, found, of_type, priced, wish), wish)
    finished = np.isfinite(bids.job_s) & np.isfinite(bids.usd)
    if not finished.any():
        raise InputError("Machines that live so briefly never finish this job. Give them longer, or rent others.")
    best = int(np.argmin(np.where(finished, bids.usd, np.inf)))
    return Rented(subject=subject, wish=wish, option=option_of(subject, bids, best, wish, replays))


def wish_of(opened: Opened, asked: Sliders, terms: Terms) -> Wish:
    """The question as a recommendation takes it, about this instance type alone."""
    instance = _instance(opened, asked)
    return Wish(
        samples=asked.samples or 1.0,
        clouds=frozenset({instance.cloud}),
        instances=frozenset({instance.name}),
        max_nodes=asked.nodes or 1,
        retired=True,
        arm=True,
        on_demand=not asked.spot,
        spot=_spot(opened, asked, terms) if asked.spot else None,
        scale_batch=not asked.keep_batch,
        workers=asked.workers or None,
        provision_s=terms.provision_s,
        startup_s=terms.startup_s,
        said=terms.said,
    )


def _spot(opened: Opened, asked: Sliders, terms: Terms) -> SpotTerms:
    """As the command line has them; while a slider moves, with fewer replays."""
    found = terms.losses(opened, asked.mean_life_h)
    return replace(found, replays=min(found.replays, QUICK_REPLAYS)) if asked.quick else found


def _instance(opened: Opened, asked: Sliders) -> Instance:
    cloud, _, name = (asked.instance or "").partition("/")
    return opened.catalog.instance(name, cloud)


def _cached(subject: Subject, asked: Sliders) -> Subject:
    """With the loader blocked as long as that part of the data in memory leaves it, as `what_if` has it."""
    if asked.cache is None:
        return subject
    job = subject.job
    if job.work is None or job.cold_blocked_s is None:
        raise InputError("What reading from storage costs was not measured in this run, so a cache cannot be judged.")
    blocked_s = asked.cache * job.work.blocked_s + (1 - asked.cache) * job.cold_blocked_s
    return replace(subject, job=replace(job, work=replace(job.work, blocked_s=blocked_s)))


def _linked(shape: Shape, asked: Sliders) -> Shape:
    """With the links that were set instead of the listed ones."""
    inside, between = _given(asked.link_gbit, INSIDE_LATENCY_S), _given(asked.network_gbit, BETWEEN_LATENCY_S)
    fabric = shape.fabric
    return replace(
        shape,
        fabric=replace(fabric, inside=inside or fabric.inside, between=between or fabric.between),
        networked=shape.networked or between is not None,
        linked=shape.linked or inside is not None,
    )


def _given(gbit: float | None, latency_s: float) -> KnownLink | None:
    rate = _rate(gbit)
    if rate is None:
        return None
    low, high = listed_factors(rate)
    return link_of_rate(rate, latency_s, "given", low=low, high=high)


def _fleet(shape: Shape, subject: Subject, asked: Sliders) -> Fleets:
    nodes, name = asked.nodes or 1, shape.instance.name
    used = min(asked.used or shape.instance.gpu_count, shape.instance.gpu_count)
    if nodes * used > 1 and not subject.exchanges:
        raise InputError("The size of the job's gradients is not known, so only single GPUs can be judged.")
    if nodes > 1 and not shape.networked:
        raise InputError(f"The catalog lists no network of {name}; set one, or stay with one node.")
    if used > 1 and not shape.linked:
        raise InputError(f"The catalog lists no link between the GPUs of {name}; use one of them.")
    one = np.ones(1, dtype=np.int64)
    return Fleets(shapes=(shape,), shape=0 * one, used=used * one, nodes=nodes * one)


def _check_fits(why_not: int, subject: Subject, fleet: Fleets) -> None:
    gpus = int(fleet.gpus[0])
    if why_not == 1:
        raise InputError(f"The job does not fit into the memory of {fleet.shapes[0].instance.gpu.name}.")
    if why_not == 2:
        raise InputError(
            f"A batch of {math.ceil(subject.samples - 1e-6) * subject.gpus:g} cannot be shared evenly among {gpus} "
            "GPUs. Keep each GPU's batch instead, or take another number."
        )
