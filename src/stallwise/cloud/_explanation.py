"""A recommendation in sentences: the answer, why nothing keeps the limits, warnings, assumptions, and alternatives.

An alternative is a bid near the pick: one machine more or fewer, the other market, another instance type or GPU. The
sentence beside it says what it would cost and which stall or price makes the pick better.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.analysis.fleets import LARGE_BATCH, UNEVEN, Fleets, FleetSteps
from stallwise.analysis.job import JobModel
from stallwise.cloud.bids import BidChoice, Bids, PricedOffer, keeps
from stallwise.cloud.losses import SpotReplay
from stallwise.cloud.options import FleetOption, OwnMachine, faster_workers, option_of
from stallwise.cloud.request import RecommendRequest
from stallwise.model.compute.memory import fewest_shards, memory_need, usable_bytes
from stallwise.sentences import Sentence
from stallwise.units import (
    SECONDS_PER_HOUR,
    plural,
    show_bit_rate,
    show_bytes,
    show_count,
    show_factor,
    show_memory,
    show_number,
    show_percent,
    show_probability,
    show_rate,
    show_seconds,
    show_usd,
)


def verdict(
    request: RecommendRequest,
    pick: FleetOption | None,
    stay: OwnMachine | None,
    as_is: OwnMachine,
    better: OwnMachine | None,
) -> Sentence:
    """Return the answer in one or two sentences."""
    if stay is not None:
        return _stay_words(request, stay, pick)
    if pick is None:
        return Sentence("impossible", "Nothing that can be rented keeps the limits.")
    words = (
        f"Rent {pick.name} in {pick.offer.zone or pick.offer.region} ({pick.offer.instance.cloud}): "
        f"{show_seconds(pick.job_s)} for {show_usd(pick.usd)}."
    )
    now = better or as_is
    if better is not None:
        words += (
            f" Before that: {better.more_workers} loader workers per GPU where it runs now make it "
            f"{show_factor(better.speedup)} as fast, for nothing."
        )
    elif not request.limited and now.usd is None:
        words += f" Staying is cheaper if your machine costs less than {show_usd(_even_usd_per_h(now, pick))} an hour."
    return Sentence("rent", words, time_s=pick.job_s, usd=pick.usd)


def _even_usd_per_h(own: OwnMachine, pick: FleetOption) -> float:
    """Price of one machine of the run's own at which both cost the same."""
    return pick.usd * SECONDS_PER_HOUR / own.job_s / own.nodes


def _stay_words(request: RecommendRequest, stay: OwnMachine, pick: FleetOption | None) -> Sentence:
    what = (
        f"raise num_workers from {stay.workers} to {stay.more_workers}: {show_factor(stay.speedup)} as fast"
        if stay.more_workers
        else "nothing has to change"
    )
    cost = "" if stay.usd is None else f" for {show_usd(stay.usd)}"
    words = f"Stay where you are and {what}; the job is done in {show_seconds(stay.job_s)}{cost}."
    if pick is not None and stay.usd is None and stay.job_s > 0:
        words += (
            f" Renting ({pick.name}, {show_seconds(pick.job_s)}, {show_usd(pick.usd)}) pays only if your machine costs "
            f"more than {show_usd(_even_usd_per_h(stay, pick))} an hour."
        )
    elif pick is not None and stay.usd is not None:
        words += f" The best that can be rented is {pick.name} for {show_usd(pick.usd)}."
    elif pick is None:
        words += " Nothing that can be rented keeps the limits."
    if stay.more_workers:
        return Sentence("stay-and-tune", words, time_s=stay.job_s, usd=stay.usd)
    return Sentence("stay", words, time_s=stay.job_s, usd=stay.usd)


def infeasibility(
    model: JobModel,
    request: RecommendRequest,
    bids: Bids,
    fleets: Fleets,
    steps: FleetSteps,
    priced: Sequence[PricedOffer],
) -> Sentence:
    """Say why nothing keeps the limits, by how much, and what would."""
    if not priced:
        sold = "" if request.retired else ", or allow what is no longer sold"
        return Sentence(
            "impossible.no-offer",
            f"No offer matches the clouds, regions, GPUs and markets asked for. Leave one of them out{sold}.",
        )
    if not steps.fits.any():
        return _no_room(model, request, fleets, steps)
    if not len(bids) and request.spot is not None and not any(request.terms.quotas):
        return Sentence(
            "impossible.spot-losses",
            f"Spot machines that live for {show_seconds(request.spot.life.mean_s)} on average are lost too often "
            "for this job: every fleet would take twenty times as long or lose a thousand machines. Allow on-demand "
            "machines.",
            mean_s=request.spot.life.mean_s,
        )
    if not len(bids):
        return Sentence("impossible.quota", "A quota forbids every fleet. Raise the quota, or allow more regions.")
    reasons = []
    if request.deadline_s is not None and float(bids.bound_s.min()) > request.deadline_s:
        reasons.append(_too_late(request, request.deadline_s, bids))
    if request.budget_usd is not None:
        least = float(bids.bound_usd.min())
        if least > request.budget_usd:
            words = (
                f"The cheapest costs {show_usd(least)} with {100 * request.confidence:.0f} % certainty, "
                f"{show_usd(least - request.budget_usd)} more than the budget. What would do: a budget of "
                f"{math.ceil(least)}usd."
            )
            reasons.append(Sentence("impossible.budget", words, least_usd=least))
        elif request.deadline_s is not None and float(bids.bound_s.min()) <= request.deadline_s:
            in_time = bids.bound_s <= request.deadline_s
            needed = float(bids.bound_usd[in_time].min())
            words = f"In time, {show_usd(needed)} are needed; within the budget, more time is."
            reasons.append(Sentence("impossible.both", words, least_usd=needed))
    if not reasons:
        return Sentence("impossible", "No fleet is known to keep the limits.")
    facts = {name: value for one in reasons for name, value in one.facts.items()}
    return Sentence(reasons[0].code, " ".join(reasons), **facts)


def _too_late(request: RecommendRequest, deadline_s: float, bids: Bids) -> Sentence:
    best = int(np.argmin(bids.bound_s))
    least = float(bids.bound_s[best])
    offer = bids.offers[int(bids.offer[best])].offer
    what = f"{int(bids.nodes[best])} × {offer.instance.name}"
    ways = [f"a deadline of {math.ceil(least / 60):d}min"]
    if not request.scale_batch and request.global_batch is None:
        ways.append("a global batch that may grow further")
    if int(bids.nodes[best]) == request.max_nodes:
        ways.append(f"more than {request.max_nodes} nodes")
    if request.gpus is not None or request.clouds is not None or request.regions is not None:
        ways.append("fewer limits on clouds, regions and GPUs")
    return Sentence(
        "impossible.deadline",
        f"The fastest fleet ({what}) needs {show_seconds(least)} to be done with "
        f"{100 * request.confidence:.0f} % certainty, {show_seconds(least - deadline_s)} more "
        f"than the deadline. What would do: {', or '.join(ways)}.",
        least_s=least,
    )


def _no_room(model: JobModel, request: RecommendRequest, fleets: Fleets, steps: FleetSteps) -> Sentence:
    if (steps.why_not == UNEVEN).all():
        return Sentence(
            "impossible.uneven-batch",
            f"A batch of {show_count(request.global_batch or 0)} samples cannot be shared evenly by any fleet. "
            "Let it follow the GPUs.",
        )
    if (steps.why_not == LARGE_BATCH).all():
        return Sentence(
            "impossible.large-batch",
            "Every fleet would grow the global batch beyond 8 times the measured one. Allow it to.",
        )
    assert model.footprint is not None  # noqa: S101 - memory is judged only then
    largest = max((kind.gpu for kind in fleets.kinds if kind.gpu is not None), key=lambda gpu: gpu.memory_bytes)
    least = memory_need(model.footprint, batch=1e-9)
    shards = fewest_shards(model.footprint, largest.memory_bytes)
    way = (
        f"sharded over {shards} GPUs (FSDP) it would fit; profile it so"
        if shards and shards > 1
        else "freeze weights, train in 16 bits, or allow other GPUs"
    )
    return Sentence(
        "impossible.memory",
        f"No offer fits the memory: weights, gradients and optimizer need {show_memory(least.whole)} on every GPU, "
        f"and the largest allowed, {largest.name}, has {show_memory(usable_bytes(largest.memory_bytes))}. What "
        f"would do: {way}.",
    )


def warning_sentences(
    model: JobModel, request: RecommendRequest, pick: FleetOption | None, now: OwnMachine, quickest_s: float
) -> tuple[Sentence, ...]:
    """Return what to know before renting.

    `now` is the job where it runs, with the loader workers that help, and `quickest_s` its time on the fastest fleet.
    """
    sentences = []
    if pick is not None and quickest_s > now.job_s:
        sentences.append(
            Sentence(
                "own-machine-fastest",
                f"No fleet that was looked at is as quick as the run's own machine: {show_seconds(quickest_s)} against "
                f"{show_seconds(now.job_s)}.",
                quickest_s=quickest_s,
                job_s=now.job_s,
            )
        )
    if pick is not None and request.global_batch is None and pick.batch > model.global_batch * (1 + 1e-9):
        sentences.append(_grown_batch(model, request, pick.batch))
    faster = None if pick is None else faster_workers(model, pick)
    if pick is not None and faster is not None:
        workers, step_s = faster
        sentences.append(
            Sentence(
                "loader.limits",
                f"The loader limits this fleet: with {workers} instead of {pick.workers} workers per GPU, as its vCPUs "
                f"allow, a step would take {show_seconds(step_s)} instead of {show_seconds(pick.step_s)}. "
                "Set the loader workers to auto to use them.",
                workers=workers,
                step_s=step_s,
            )
        )
    if pick is not None and pick.moving_usd is None:
        sentences.append(
            Sentence("data.moving-unknown", "What moving the data there costs is not known; it is not in the cost.")
        )
    if pick is not None and pick.keeping_usd is None:
        sentences.append(
            Sentence(
                "data.keeping-unknown",
                "What keeping a copy of the data there costs is not known; it is not in the cost.",
            )
        )
    return tuple(sentences)


def _grown_batch(model: JobModel, request: RecommendRequest, batch: float) -> Sentence:
    grows = f"The global batch grows from {show_count(model.global_batch)} to {show_count(batch)} samples"
    keeps = f"A global batch of {show_count(model.global_batch)} would keep it."
    if request.noise is None or not request.scale_batch:
        epochs = "how many epochs the same accuracy takes changes with it, and so do time and cost"
        return Sentence("batch.grows", f"{grows}: {epochs}. {keeps}", batch=batch)
    factor = float(request.samples_factor(np.array([batch]))[0])
    return Sentence(
        "batch.grows",
        f"{grows}. By the gradient noise scale of the run the same loss then takes {show_number(factor)} times the "
        f"samples, which time and cost include; the scale changes during training. {keeps}",
        batch=batch,
        samples_factor=factor,
    )


def assumption_sentences(
    model: JobModel, request: RecommendRequest, pick: FleetOption | None, alone: int, unjudged: Sequence[str]
) -> tuple[Sentence, ...]:
    """Return the assumptions of the answer."""
    sentences = [*model.job.assumptions, *model.notes]
    if pick is not None:
        sentences.append(pick.node.compute.note)
    sentences.append(_batch_words(model, request))
    if model.job.work is not None:
        sentences.append(_workers_words(model, request))
    if model.bytes_per_sample is None or request.data_bytes is None:
        sentences.append(
            Sentence(
                "data.unknown", "How much data is read is not known: storage and memory of a fleet hold nothing up."
            )
        )
    if alone:
        sentences.append(
            Sentence(
                "offers.no-network",
                f"{alone} instance types have no listed network and were judged as single machines.",
            )
        )
    if unjudged:
        sentences.append(Sentence("offers.not-judged", f"Not judged, no rates are listed: {', '.join(unjudged)}."))
    sentences += request.assumptions
    if request.spot is not None:
        sentences += [
            Sentence("spot.lifetimes", f"Lifetimes of spot machines: {request.spot.name}."),
            *request.spot.assumptions,
        ]
    if pick is not None and pick.node.measured:
        sentences.append(_of_record(pick, request))
    return tuple(sentences)


def _batch_words(model: JobModel, request: RecommendRequest) -> Sentence:
    passes = "memory may ask for several passes per step"
    measured = show_count(model.global_batch)
    if request.global_batch is not None:
        return Sentence(
            "batch.given",
            f"The global batch is {show_count(request.global_batch)} samples (measured: {measured}); {passes}.",
            passes=passes,
        )
    bound = "" if request.scale_batch else ", at most 8 times the measured one"
    return Sentence(
        "batch.per-gpu",
        f"Each GPU keeps its batch of {show_count(model.samples)} samples, so the global batch, {measured} as "
        f"measured, grows with the GPUs{bound}; {passes}.",
        passes=passes,
    )


def _workers_words(model: JobModel, request: RecommendRequest) -> Sentence:
    had = model.job.work.workers if model.job.work else 0
    rule = {
        None: f"as measured, {had} per GPU, limited by the vCPUs",
        "auto": "one for every vCPU of a GPU",
    }.get(request.workers, f"{request.workers} per GPU")  # type: ignore[arg-type]
    return Sentence(
        "loader.workers", f"Loader workers: {rule}; a core prepares samples as fast as one of the run's machine."
    )


def _of_record(pick: FleetOption, request: RecommendRequest) -> Sentence:
    """Say which figures of the pick's machine record are used."""
    name, comparison = pick.offer.instance.name, pick.node.ratios
    first = f"Links, disk and cores of {name} as in its machine record"
    if request.own_record is None:
        return Sentence(
            "machine.record", f"{first}; its G and decode rate need the record of the run's own machine too."
        )
    if comparison.compute is None:
        first += "; its G is not used: no standard network was trained on both in the precision of the job"
    against = f"; against the run's own machine: {comparison.text}" if comparison.text else ""
    return Sentence("machine.record", f"{first}{against}.")


_STALL = 0.1
"""Fraction of a step below which a stall explains nothing."""
MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A bid that was not picked, and why."""

    option: FleetOption
    why: Sentence


def alternatives(
    model: JobModel,
    bids: Bids,
    choice: BidChoice,
    request: RecommendRequest,
    replays: Mapping[int, SpotReplay],
    pick: FleetOption,
) -> tuple[Alternative, ...]:
    """Return at most `MOST` alternatives to the pick, nearest first."""
    assert choice.pick is not None  # noqa: S101 - only called then
    alternatives: list[Alternative] = []
    columns = {choice.pick}
    for column in _near(bids, choice, request):
        if column in columns or len(alternatives) >= MOST:
            continue
        columns.add(column)
        option = option_of(model, bids, column, request, replays)
        if any(other.option.name == option.name for other in alternatives):
            continue
        alternatives.append(Alternative(option=option, why=why(model, option, pick, request)))
    return tuple(alternatives)


def _near(bids: Bids, choice: BidChoice, request: RecommendRequest) -> Iterator[int]:
    pick = choice.pick
    assert pick is not None  # noqa: S101 - only called then
    keys = _keys(bids)
    good = keeps(bids, request)
    fleets = bids.fleets
    used, shape = fleets.used[bids.fleet], fleets.kind[bids.fleet]
    alike = (keys["instance"] == keys["instance"][pick]) & (used == used[pick]) & (bids.spot == bids.spot[pick])
    for count in (int(bids.nodes[pick]) - 1, int(bids.nodes[pick]) + 1, 2 * int(bids.nodes[pick])):
        yield from np.flatnonzero(alike & (bids.nodes == count)).tolist()[:1]
    other_market = (shape == shape[pick]) & (used == used[pick]) & (bids.nodes == bids.nodes[pick])
    yield from _cheapest(bids, other_market & (bids.spot != bids.spot[pick]))
    gpu, gpus = keys["gpu"], fleets.gpus[bids.fleet]
    same = (gpu == gpu[pick]) & (gpus == gpus[pick]) & (keys["instance"] != keys["instance"][pick])
    yield from _cheapest(bids, same)
    place = choice.front.index(pick) if pick in choice.front else -1
    if place >= 0:
        yield from [choice.front[i] for i in (place + 1, place - 1) if 0 <= i < len(choice.front)]
    eligible = good if good.any() else np.ones(len(bids), dtype=bool)
    best = [next(_cheapest(bids, eligible & (gpu == name)), None) for name in np.unique(gpu[eligible]).tolist()]
    yield from sorted((column for column in best if column is not None), key=lambda column: float(bids.usd[column]))


def _keys(bids: Bids) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.str_]]"]:
    offers = [one.offer for one in bids.offers]
    return {
        "gpu": np.array([offer.instance.gpu.name for offer in offers])[bids.offer],
        "instance": np.array([f"{offer.instance.cloud}/{offer.instance.name}" for offer in offers])[bids.offer],
    }


def _cheapest(bids: Bids, eligible: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Iterator[int]:
    columns = np.flatnonzero(eligible & np.isfinite(bids.usd))
    if len(columns):
        yield int(columns[np.argmin(bids.usd[columns])])


def why(model: JobModel, option: FleetOption, pick: FleetOption, request: RecommendRequest) -> Sentence:
    """Say what the option would cost and why the pick is better, in one sentence."""
    missed = _missed(option, request)
    reason = stall(model, option) or _price(option, pick)
    if missed:
        return Sentence("misses-limit", f"{missed}; {reason}")
    surcharge = option.usd / pick.usd - 1 if pick.usd else 0.0
    slower = option.job_s / pick.job_s - 1
    time, better_time = _against(slower, ("slower", "faster", "as fast", "takes {} as long"))
    cost, better_cost = _against(surcharge, ("more expensive", "cheaper", "at the same cost", "costs {} as much"))
    if better_time is better_cost or None in (better_time, better_cost):
        words = f"{time} and {cost}"
    else:
        words = f"{time} but {cost}" if better_time else f"{cost} but {time}"
    return Sentence("not-chosen", f"{words}: {reason}", slower=slower, more_expensive=surcharge)


_ALIKE = 0.005


def _against(difference: float, phrases: tuple[str, str, str, str]) -> tuple[str, bool | None]:
    """`9 % faster` or `costs 2.5 × as much`, and whether that is better; None where it is alike."""
    worse, better, alike, times = phrases
    if abs(difference) < _ALIKE:
        return alike, None
    if difference >= 1:
        return times.format(show_factor(difference + 1)), False
    return f"{show_percent(abs(difference))} {worse if difference > 0 else better}", difference < 0


def _missed(option: FleetOption, request: RecommendRequest) -> str:
    if request.deadline_s is not None and (option.in_time or 0.0) < request.confidence:
        late_s = option.job_s - request.deadline_s
        after = f"is {show_seconds(late_s)} late" if late_s > 0 else "is in time on average only"
        return f"{after} (chance {show_probability(option.in_time or 0.0)})"
    if request.budget_usd is not None and (option.in_budget or 0.0) < request.confidence:
        over = option.usd - request.budget_usd
        above = f"is {show_usd(over)} over budget" if over > 0 else "keeps the budget on average only"
        return f"{above} (chance {show_probability(option.in_budget or 0.0)})"
    return ""


def stall(model: JobModel, option: FleetOption) -> str:
    """Describe the largest stall with the figures behind it; empty where none is a tenth of the step."""
    if option.storage_bound:
        rate = option.node.storage_bytes_per_s
        at = show_rate(rate) if rate else "its rate"
        memory = show_memory(option.node.memory_bytes or 0.0)
        share = show_percent(option.answer.split.read_s / option.step_s)
        return f"storage stall {share}: {at} for what {memory} do not keep"
    split, step_s = option.answer.split, option.answer.step_s
    parts = {"exchange": split.exchange_s, "copy": split.copy_s, "data": split.read_s}
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] < _STALL * step_s:
        return ""
    share = show_percent(parts[largest] / step_s)
    if largest == "data":
        return f"data stall {share}: {plural(option.workers, 'loader worker')} per GPU on {option.node.cores} vCPUs"
    if largest == "copy":
        return f"copy stall {share}: batches from host to GPU"
    return _exchange(model, option, share)


def _exchange(model: JobModel, option: FleetOption, share: str) -> str:
    volume = model.job.trace.gradient_bytes
    if option.nodes > 1:
        link, tier = option.node.fabric.between, "network"
    else:
        link, tier = option.node.fabric.inside, "interconnect"
    rate = link.bytes_per_s if link else None
    at = "its rate" if rate is None else show_bit_rate(rate)
    return f"{tier} stall {share}: {at} for {show_bytes(volume)} of gradients"


def _price(option: FleetOption, pick: FleetOption) -> str:
    """Compare samples per dollar, which is speed over price."""
    if not (pick.usd_per_h and option.usd_per_h):
        return f"{show_usd(option.usd_per_h)}/h against {show_usd(pick.usd_per_h)}/h"
    mine, its = (one.samples_per_s * SECONDS_PER_HOUR / (one.usd_per_h * one.nodes) for one in (pick, option))
    if option.offer.market != pick.offer.market:
        its_price, price = (f"{show_usd(one.usd_per_h)}/h {one.offer.market}" for one in (option, pick))
        return f"{its_price} against {price}"
    return f"{show_count(its)} samples per dollar against {show_count(mine)}"
