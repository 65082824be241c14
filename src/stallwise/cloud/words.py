"""What a recommendation says in sentences: the answer, why nothing will do, warnings and what is taken for granted."""

from collections.abc import Sequence

import numpy as np

from stallwise.cloud.bids import Bids, Priced
from stallwise.cloud.fleets import Fleets
from stallwise.cloud.home import Home
from stallwise.cloud.options import Option
from stallwise.cloud.speed import Speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.model.memory import fewest_shards, need, usable_bytes
from stallwise.units import GIB, SECONDS_PER_HOUR


def verdict_words(wish: Wish, pick: Option | None, stay: Home | None, as_is: Home, better: Home | None) -> str:
    """The answer in a sentence or two."""
    if stay is not None:
        return _stay_words(wish, stay, pick)
    if pick is None:
        return "Nothing that can be rented keeps the limits."
    first = (
        f"Rent {pick.name} in {pick.offer.zone or pick.offer.region} ({pick.offer.instance.cloud}): "
        f"{hours(pick.job_s)} for ${pick.usd:,.2f}."
    )
    now = better or as_is
    if better is not None:
        first += (
            f" Before that: {better.more_workers} loader workers per GPU where it runs now make it "
            f"{better.speedup:.2g} × as fast, for nothing."
        )
    elif not wish.limited and now.usd is None:
        first += f" Staying is cheaper if your machine costs less than ${_even_usd_per_h(now, pick):,.2f} an hour."
    return first


def _even_usd_per_h(home: Home, pick: Option) -> float:
    """What one machine of the run's own has to cost for both to cost the same."""
    return pick.usd * SECONDS_PER_HOUR / home.job_s / home.nodes


def _stay_words(wish: Wish, stay: Home, pick: Option | None) -> str:
    what = (
        f"raise num_workers from {stay.workers} to {stay.more_workers}: {stay.speedup:.2g} × as fast"
        if stay.more_workers
        else "nothing has to change"
    )
    cost = "" if stay.usd is None else f" for ${stay.usd:,.2f}"
    words = f"Stay where you are and {what}; the job is done in {hours(stay.job_s)}{cost}."
    if pick is not None and stay.usd is None and stay.job_s > 0:
        words += (
            f" Renting ({pick.name}, {hours(pick.job_s)}, ${pick.usd:,.2f}) pays only if your machine costs more than "
            f"${_even_usd_per_h(stay, pick):,.2f} an hour."
        )
    elif pick is not None and stay.usd is not None:
        words += f" The best that can be rented is {pick.name} for ${pick.usd:,.2f}."
    return words


def hours(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 2 * 60:
        return f"{seconds:.3g} s"
    if seconds < 2 * SECONDS_PER_HOUR:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / SECONDS_PER_HOUR:,.3g} h"


def impossible_words(
    subject: Subject, wish: Wish, bids: Bids, fleets: Fleets, found: Speeds, priced: Sequence[Priced]
) -> str:
    """Why nothing keeps the limits, by how much, and what would do."""
    if not priced:
        sold = "" if wish.retired else ", or add what is no longer sold with --retired"
        return f"No offer matches the clouds, regions, GPUs and markets asked for. Leave one of them out{sold}."
    if not found.fits.any():
        return _no_room(subject, fleets, found)
    if not len(bids) and wish.spot is not None and not any(wish.terms.quotas):
        return (
            f"Spot machines that live for {hours(wish.spot.life.mean_s)} on average are lost too often for this job: "
            "every fleet would take twenty times as long or lose a thousand machines. Leave out --spot-only."
        )
    if not len(bids):
        return "A quota forbids every fleet. Raise --quota, or allow more regions."
    said = []
    if wish.deadline_s is not None:
        said.append(_too_late(wish, bids))
    if wish.budget_usd is not None:
        least = float(bids.sure_usd.min())
        if least > wish.budget_usd:
            said.append(
                f"The cheapest costs ${least:,.2f} with {100 * wish.sure:.0f} % certainty, "
                f"${least - wish.budget_usd:,.2f} more than the budget. Give --budget {least:.0f}usd or more."
            )
        elif wish.deadline_s is not None and float(bids.sure_s.min()) <= wish.deadline_s:
            in_time = bids.sure_s <= wish.deadline_s
            needed = float(bids.sure_usd[in_time].min())
            said.append(f"In time, ${needed:,.2f} are needed; within the budget, more time is.")
    return " ".join(words for words in said if words)


def _too_late(wish: Wish, bids: Bids) -> str:
    assert wish.deadline_s is not None  # noqa: S101 - asked only then
    best = int(np.argmin(bids.sure_s))
    least = float(bids.sure_s[best])
    if least <= wish.deadline_s:
        return ""
    offer = bids.offers[int(bids.offer[best])].offer
    what = f"{int(bids.nodes[best])} × {offer.instance.name}"
    ways = [f"--deadline {least / SECONDS_PER_HOUR:.3g}h"]
    if not wish.scale_batch:
        ways.append("--scale-batch")
    if int(bids.nodes[best]) == wish.max_nodes:
        ways.append(f"--max-nodes above {wish.max_nodes}")
    if wish.gpus is not None or wish.clouds is not None or wish.regions is not None:
        ways.append("fewer limits on clouds, regions and GPUs")
    return (
        f"The quickest fleet ({what}) needs {hours(least)} to be done with {100 * wish.sure:.0f} % certainty, "
        f"{hours(least - wish.deadline_s)} more than the deadline. What would do: {', or '.join(ways)}."
    )


def _no_room(subject: Subject, fleets: Fleets, found: Speeds) -> str:
    if (found.why_not == 2).all():
        return f"A batch of {subject.batch:g} samples cannot be shared evenly by any fleet. Give --scale-batch."
    assert subject.footprint is not None  # noqa: S101 - memory is judged only then
    largest = max((shape.instance.gpu for shape in fleets.shapes), key=lambda gpu: gpu.memory_bytes)
    least = need(subject.footprint, batch=1e-9)
    shards = fewest_shards(subject.footprint, largest.memory_bytes)
    way = (
        f"sharded over {shards} GPUs (FSDP) it would fit; profile it so"
        if shards and shards > 1
        else "freeze weights, train in 16 bits, or allow other GPUs with --gpus"
    )
    return (
        f"No offer fits the memory: weights, gradients and optimizer need {least.whole / GIB:.3g} GiB on every GPU, "
        f"and the largest allowed, {largest.name}, has {usable_bytes(largest.memory_bytes) / GIB:.3g} GiB. What "
        f"would do: {way}."
    )


def warnings_words(subject: Subject, wish: Wish, pick: Option | None, now: Home, quickest_s: float) -> tuple[str, ...]:
    """What to know before renting.

    `now` is the job where it runs, with the loader workers that help, and `quickest_s` its time on the quickest fleet.
    """
    said = []
    if pick is not None and quickest_s > now.job_s:
        said.append(
            f"No fleet that was looked at is as quick as the run's own machine: {hours(quickest_s)} against "
            f"{hours(now.job_s)}."
        )
    if pick is not None and wish.scale_batch and pick.batch > subject.batch * (1 + 1e-9):
        said.append(
            f"The batch of all GPUs grows from {subject.batch:g} to {pick.batch:g} samples: how many epochs the same "
            "accuracy takes changes with it, and so do time and cost. --keep-global-batch keeps it."
        )
    if pick is not None and pick.moving_usd is None:
        said.append("What moving the data there costs is not known; it is not in the cost.")
    if pick is not None and pick.keeping_usd is None:
        said.append("What keeping a copy of the data there costs is not known; it is not in the cost.")
    return tuple(said)


def assumptions_words(
    subject: Subject, wish: Wish, pick: Option | None, alone: int, unjudged: Sequence[str]
) -> tuple[str, ...]:
    """What the answer takes for granted."""
    said = list(subject.said)
    if subject.source is not None:
        said.append(
            f"Compute is scaled from {subject.source.name} by arithmetic, memory and starting of kernels; bounds hold "
            "80 %."
        )
    if not wish.scale_batch:
        said.append(
            f"The batch of all GPUs stays {subject.batch:g} samples; memory may ask for several passes per step."
        )
    if subject.job.work is not None and wish.workers is None:
        said.append(
            "Every fleet has the loader workers it needs, as far as its vCPUs go; a core prepares as fast as the run's."
        )
    if subject.bytes_per_sample is None or wish.data_bytes is None:
        said.append("How much data is read is not known: storage and memory of a fleet hold nothing up.")
    if alone:
        said.append(f"{alone} instance types have no listed network and were judged as single machines.")
    if unjudged:
        said.append(f"Not judged, no rates are listed: {', '.join(unjudged)}.")
    said += wish.said
    if wish.spot is not None:
        said += [f"Lifetimes of spot machines: {wish.spot.name}.", *wish.spot.said]
    if pick is not None and pick.shape.measured:
        said.append(_of_record(pick, wish))
    return tuple(said)


def _of_record(pick: Option, wish: Wish) -> str:
    """What of the pick's machine record is used."""
    name, known = pick.offer.instance.name, pick.shape.known
    first = f"Links, disk and cores of {name} as in its machine record"
    if wish.here is None:
        return f"{first}; its G and decode rate need the record of the run's own machine too (--here-machine)."
    if known.compute is None:
        first += "; its G is not used: no standard network was trained on both in the precision of the job"
    return f"{first}; against the run's own machine: {known.said}." if known.said else f"{first}."
