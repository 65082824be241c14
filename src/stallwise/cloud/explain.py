"""Why the others lost: one sentence with figures for each near neighbour of the pick.

Neighbours are what a reader would ask about: one machine more and one fewer, the same GPUs on other machines, the other
market, the cheapest fleet of every other GPU, the next on either side of the front.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stallwise.cloud.bids import Bids
from stallwise.cloud.choose import Choice, keeps
from stallwise.cloud.losses import Replayed
from stallwise.cloud.options import Option, option_of
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.units import BITS_PER_BYTE, GB, SECONDS_PER_HOUR

_STALL = 0.1
"""A stall below this part of a step explains nothing."""
MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A bid that lost, and why."""

    option: Option
    why: str


def neighbours(
    subject: Subject, bids: Bids, choice: Choice, wish: Wish, replays: Mapping[int, Replayed], pick: Option
) -> tuple[Neighbour, ...]:
    """The near neighbours, nearest first."""
    assert choice.pick is not None  # noqa: S101 - asked only then
    found: list[Neighbour] = []
    seen = {choice.pick}
    for column in _near(bids, choice, wish):
        if column in seen or len(found) >= MOST:
            continue
        seen.add(column)
        option = option_of(subject, bids, column, wish, replays)
        if any(other.option.name == option.name for other in found):
            continue
        found.append(Neighbour(option=option, why=why(subject, option, pick, wish)))
    return tuple(found)


def _near(bids: Bids, choice: Choice, wish: Wish) -> Iterator[int]:
    pick = choice.pick
    assert pick is not None  # noqa: S101 - asked only then
    keys = _keys(bids)
    good = keeps(bids, wish)
    fleets = bids.fleets
    used, shape = fleets.used[bids.fleet], fleets.shape[bids.fleet]
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
    wanted = good if good.any() else np.ones(len(bids), dtype=bool)
    best = [next(_cheapest(bids, wanted & (gpu == name)), None) for name in np.unique(gpu[wanted]).tolist()]
    yield from sorted((column for column in best if column is not None), key=lambda column: float(bids.usd[column]))


def _keys(bids: Bids) -> dict[str, "np.ndarray[tuple[int], np.dtype[np.str_]]"]:
    offers = [one.offer for one in bids.offers]
    return {
        "gpu": np.array([offer.instance.gpu.name for offer in offers])[bids.offer],
        "instance": np.array([f"{offer.instance.cloud}/{offer.instance.name}" for offer in offers])[bids.offer],
    }


def _cheapest(bids: Bids, wanted: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Iterator[int]:
    columns = np.flatnonzero(wanted & np.isfinite(bids.usd))
    if len(columns):
        yield int(columns[np.argmin(bids.usd[columns])])


def why(subject: Subject, option: Option, pick: Option, wish: Wish) -> str:
    """What it would cost and why the pick is better, in one sentence."""
    missed = _missed(option, wish)
    reason = stall(subject, option) or _price(option, pick)
    if missed:
        return f"{missed}; {reason}"
    dearer = option.usd / pick.usd - 1 if pick.usd else 0.0
    slower = option.job_s / pick.job_s - 1
    if dearer > 0 and slower > 0:
        return f"{_more(dearer)} dearer and {_more(slower)} slower: {reason}"
    if dearer > 0:
        return f"{_more(-slower)} quicker but {_more(dearer)} dearer: {reason}"
    return f"{_more(-dearer)} cheaper but {_more(slower)} slower: {reason}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _more(part: float) -> str:
    return f"{part + 1:.1f} ×" if part >= 1 else f"{100 * part:.2g} %"


def _missed(option: Option, wish: Wish) -> str:
    if wish.deadline_s is not None and (option.in_time or 0.0) < wish.sure:
        late_s = option.job_s - wish.deadline_s
        after = f"is {late_s / SECONDS_PER_HOUR:.2g} h late" if late_s > 0 else "is in time on average only"
        return f"{after} (chance {_percent(option.in_time or 0.0)})"
    if wish.budget_usd is not None and (option.in_budget or 0.0) < wish.sure:
        over = option.usd - wish.budget_usd
        above = f"is ${over:,.4g} over budget" if over > 0 else "keeps the budget on average only"
        return f"{above} (chance {_percent(option.in_budget or 0.0)})"
    return ""


def stall(subject: Subject, option: Option) -> str:
    """The largest stall with the figures behind it; nothing where none is a tenth of the step."""
    if option.storage_bound:
        rate = option.shape.storage_bytes_per_s
        at = f"{rate / GB:.2g} GB/s" if rate else "its rate"
        memory = option.shape.memory_bytes / 2**30
        share = _percent(1 - option.answer.step_s / option.step_s)
        return f"storage stall {share}: {at} for what {memory:,.0f} GiB do not keep"
    split, step_s = option.answer.split, option.answer.step_s
    parts = {"exchange": split.exchange_s, "copy": split.copy_s, "data": split.read_s}
    largest = max(parts, key=lambda name: parts[name])
    if parts[largest] < _STALL * step_s:
        return ""
    share = _percent(parts[largest] / step_s)
    if largest == "data":
        return f"data stall {share}: {option.workers} loader workers per GPU on {option.shape.cores} vCPUs"
    if largest == "copy":
        return f"copy stall {share}: batches from host to GPU"
    return _exchange(subject, option, share)


def _exchange(subject: Subject, option: Option, share: str) -> str:
    volume = subject.job.trace.gradient_bytes
    size = f"{volume / GB:.2g} GB" if volume >= GB else f"{volume / 1e6:.3g} MB"
    if option.nodes > 1:
        link, tier = option.shape.fabric.between, "network"
    else:
        link, tier = option.shape.fabric.inside, "interconnect"
    rate = link.bytes_per_s if link else None
    at = "its rate" if rate is None else f"{rate * BITS_PER_BYTE / 1e9:.3g} Gb/s"
    return f"{tier} stall {share}: {at} for {size} of gradients"


def _price(option: Option, pick: Option) -> str:
    """Samples per dollar, which is speed over price."""
    if not (pick.usd_per_h and option.usd_per_h):
        return f"${option.usd_per_h:.4g}/h against ${pick.usd_per_h:.4g}/h"
    mine, its = (one.samples_per_s * SECONDS_PER_HOUR / (one.usd_per_h * one.nodes) for one in (pick, option))
    if option.offer.market != pick.offer.market:
        return f"${option.usd_per_h:.4g}/h {option.offer.market} against ${pick.usd_per_h:.4g}/h {pick.offer.market}"
    return f"{its / 1e3:,.4g}k samples per dollar against {mine / 1e3:,.4g}k"
