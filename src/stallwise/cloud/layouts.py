"""What to rent for a transformer that is described by its configuration: instance types × machines × layouts.

    time = provision + start-up + tokens / (tokens of a step) · step of the fastest layout that fits
    cost = price · machines · (time - provision)

On each fleet every layout is tried, and only those count that fit with 90 % probability (`analysis/layouts`). Fleets
are whole machines, 1, 2, 3, 4, 6, 8, 12 … of them. Bounds and the pick are those of `bids`: with a deadline the
cheapest fleet that keeps it, with a budget the fastest, with both or neither the cheapest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stallwise.analysis.layouts import LayoutPrediction, LayoutRequest, fastest_layouts, instance_machine
from stallwise.cloud.bids import PricedOffer, front, job_columns, priced_offers, probability, quantile
from stallwise.cloud.request import RecommendRequest
from stallwise.errors import InputError
from stallwise.hardware.instance import Instance, Offer
from stallwise.model.layout.columns import LayoutMachine
from stallwise.model.step.epoch import cost_usd
from stallwise.sentences import Sentence
from stallwise.units import show_seconds, show_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFleet:
    """Machines at a price with the fastest layout that fits. Times in seconds from the order; bounds hold 80 %."""

    offer: Offer
    usd_per_h: float
    """Price of one machine after discounts."""
    nodes: int
    predicted: LayoutPrediction
    job_s: float
    low_s: float
    high_s: float
    usd: float
    low_usd: float
    high_usd: float
    bound_s: float
    """Time that is kept with the confidence of the request; `bound_usd` likewise for the cost."""
    bound_usd: float
    in_time: float | None
    """Probability of keeping the deadline; None without one."""
    in_budget: float | None

    @property
    def gpus(self) -> int:
        return self.predicted.layout.gpus

    @property
    def name(self) -> str:
        """Short description, such as "4 × p5.48xlarge"."""
        return f"{self.nodes} × {self.offer.instance.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRecommendation:
    """The fleet and the layout to train a transformer with."""

    layout_request: LayoutRequest
    """Model, batch and sequence; `gpu` and `gpus` are those of the pick, or of the last fleet that was tried."""
    request: RecommendRequest
    tokens: float
    pick: LayoutFleet | None
    front: tuple[LayoutFleet, ...]
    """Fleets that no other beats in both time and cost, fastest first."""
    fleets: int
    """Fleets that hold a layout."""
    no_room: int
    """Fleets on which no layout fits."""
    unjudged: tuple[str, ...]
    """GPUs without listed rates."""
    verdict: Sentence
    impossible: Sentence | None


def recommend_layout(
    described: LayoutRequest, request: RecommendRequest, offers: Sequence[Offer]
) -> LayoutRecommendation:
    """Recommend instance types, their number and a layout; `request.samples` counts sequences."""
    priced = priced_offers(offers, request)
    machines, unjudged = _machines(priced)
    bids: list[LayoutFleet] = []
    no_room = 0
    for nodes in _node_counts(request.max_nodes):
        kinds = {key: machine for key, machine in machines.items() if nodes == 1 or machine.network_bytes_per_s > 0}
        best = _best_layouts(described, kinds, nodes)
        no_room += sum(1 for one in best.values() if one is None)
        for one in priced:
            predicted = best.get(_type_of(one.offer.instance))
            if predicted is not None and predicted.layout.gpus <= one.most_gpus:
                bids.append(_fleet(one, nodes, predicted, request))
    pick = _pick(bids, request)
    chosen = front(np.array([one.job_s for one in bids]), np.array([one.usd for one in bids])).tolist()
    return LayoutRecommendation(
        layout_request=described if pick is None else _placed(described, pick),
        request=request,
        tokens=request.samples * described.sequence,
        pick=pick,
        front=tuple(bids[i] for i in chosen),
        fleets=len(bids),
        no_room=no_room,
        unjudged=unjudged,
        verdict=_verdict(pick),
        impossible=None if pick else _impossible(described, request, priced, bids),
    )


def _type_of(instance: Instance) -> tuple[str, str]:
    return instance.cloud, instance.name


def _machines(priced: Sequence[PricedOffer]) -> tuple[dict[tuple[str, str], LayoutMachine], tuple[str, ...]]:
    """Nodes by instance type, and GPUs whose rates are not listed."""
    machines: dict[tuple[str, str], LayoutMachine] = {}
    unjudged: set[str] = set()
    for instance in dict.fromkeys(one.offer.instance for one in priced):
        try:
            machines[_type_of(instance)] = instance_machine(instance)
        except InputError:
            unjudged.add(instance.gpu.name)
    return machines, tuple(sorted(unjudged))


def _node_counts(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 …: powers of two, and half as much again."""
    return sorted(
        {count for i in range(most.bit_length()) for count in (2**i, 3 * 2 ** max(i - 1, 0)) if count <= most}
    )


def _best_layouts(
    described: LayoutRequest, kinds: dict[tuple[str, str], LayoutMachine], nodes: int
) -> dict[tuple[str, str], LayoutPrediction | None]:
    """The fastest layout on so many machines of every kind; kinds with as many GPUs have the same layouts."""
    best: dict[tuple[str, str], LayoutPrediction | None] = {}
    for count in sorted({machine.gpus_per_node for machine in kinds.values()}):
        alike = {key: machine for key, machine in kinds.items() if machine.gpus_per_node == count}
        distinct = list(dict.fromkeys(alike.values()))
        there = replace(described, gpus=count * nodes, gpus_per_node=count)
        predictions = dict(zip(distinct, fastest_layouts(there, distinct), strict=True))
        best |= {key: predictions[machine] for key, machine in alike.items()}
    return best


def _fleet(one: PricedOffer, nodes: int, predicted: LayoutPrediction, request: RecommendRequest) -> LayoutFleet:
    steps = np.array([predicted.step_s, predicted.low_s, predicted.high_s])
    batch = np.full(3, float(predicted.layout.global_batch))
    running = request.startup_s + job_columns(steps, steps, batch, request)
    mid, low, high = (request.provision_s + running).tolist()
    usd, low_usd, high_usd = (cost_usd(time, one.usd_per_h, nodes) for time in running.tolist())
    middle, lower, upper = np.array([mid, usd]), np.array([low, low_usd]), np.array([high, high_usd])
    bound_s, bound_usd = quantile(middle, lower, upper, request.confidence).tolist()
    return LayoutFleet(
        offer=one.offer,
        usd_per_h=one.usd_per_h,
        nodes=nodes,
        predicted=predicted,
        job_s=mid,
        low_s=low,
        high_s=high,
        usd=usd,
        low_usd=low_usd,
        high_usd=high_usd,
        bound_s=bound_s,
        bound_usd=bound_usd,
        in_time=None if request.deadline_s is None else probability(request.deadline_s, mid, low, high),
        in_budget=None if request.budget_usd is None else probability(request.budget_usd, usd, low_usd, high_usd),
    )


def _keeping(bids: Sequence[LayoutFleet], request: RecommendRequest) -> Iterator[LayoutFleet]:
    for one in bids:
        in_time = request.deadline_s is None or one.bound_s <= request.deadline_s
        if in_time and (request.budget_usd is None or one.bound_usd <= request.budget_usd):
            yield one


def _pick(bids: Sequence[LayoutFleet], request: RecommendRequest) -> LayoutFleet | None:
    """The cheapest that keeps the limits; where only a budget is given, the fastest."""
    fastest = request.budget_usd is not None and request.deadline_s is None
    return min(
        _keeping(bids, request),
        key=lambda one: (*((one.job_s, one.usd) if fastest else (one.usd, one.job_s)), one.nodes, one.offer.key),
        default=None,
    )


def _placed(described: LayoutRequest, pick: LayoutFleet) -> LayoutRequest:
    """The request on the machines of the pick."""
    network = pick.offer.instance.network
    return replace(
        described,
        gpu=pick.offer.instance.gpu.name,
        gpus=pick.gpus,
        gpus_per_node=pick.offer.instance.gpu_count,
        network_bytes_per_s=network.bytes_per_s if network else None,
    )


def _verdict(pick: LayoutFleet | None) -> Sentence:
    if pick is None:
        return Sentence("impossible", "Nothing that can be rented keeps the limits.")
    where = f"{pick.offer.zone or pick.offer.region} ({pick.offer.instance.cloud})"
    text = f"Rent {pick.name} in {where}: {show_seconds(pick.job_s)} for {show_usd(pick.usd)}."
    return Sentence("rent", text, time_s=pick.job_s, usd=pick.usd)


def _impossible(
    described: LayoutRequest, request: RecommendRequest, priced: Sequence[PricedOffer], bids: Sequence[LayoutFleet]
) -> Sentence:
    """Why nothing keeps the limits, and what would."""
    if not priced:
        return Sentence(
            "impossible.no-offer",
            "No offer matches the clouds, regions, GPUs and markets asked for. Leave one of them out.",
        )
    if not bids:
        return Sentence(
            "impossible.no-layout",
            f"No layout of {described.model.name} with a global batch of {described.global_batch:,} fits any fleet of "
            f"up to {request.max_nodes} machines. What would do: larger GPUs, or more machines.",
            global_batch=described.global_batch,
            max_nodes=request.max_nodes,
        )
    fastest = min(bids, key=lambda one: one.bound_s)
    cheapest = min(bids, key=lambda one: one.bound_usd)
    sure = f"with {100 * request.confidence:.0f} % certainty"
    return Sentence(
        "impossible.limits",
        f"The fastest fleet ({fastest.name}) is done in {show_seconds(fastest.bound_s)} and the cheapest "
        f"({cheapest.name}) costs {show_usd(cheapest.bound_usd)}, both {sure}. What would do: a later deadline, a "
        "larger budget, or a larger global batch, which shares work among more GPUs.",
        fastest_s=fastest.bound_s,
        cheapest_usd=cheapest.bound_usd,
    )
