"""Steps of transformers under parallel layouts: their view, and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stallwise.analysis.layouts import LayoutPrediction, LayoutRequest, framework_of
from stallwise.cloud.layouts import LayoutFleet, LayoutRecommendation
from stallwise.report.format import (
    plural,
    show_bit_rate,
    show_bounds,
    show_bytes,
    show_count,
    show_percent,
    show_probability,
    show_seconds,
    show_usd,
    show_usd_bounds,
)
from stallwise.report.json import schema
from stallwise.report.view import (
    Cell,
    Line,
    Notes,
    PartColumn,
    Row,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
    view,
)
from stallwise.workload.transformer import Layout

_SHOWN = 10
_NOTHING = 1e-6  # a part of the step below which it is left out
_FRAMEWORKS = {
    "nanotron": "nanotron on H100 in bfloat16",
    "fsdp": "llm-foundry's FSDP on A100 and H100 in bfloat16",
    "nemo": "NeMo's tables (H100, B200, GB200; mostly FP8), whose rows differ most",
}
_PARTS = {
    "compute": "products, attention, memory traffic",
    "exchange": "tensor, expert, context and shard groups, as far as compute does not hide it",
    "host": "launching kernels: the device waits",
    "pipeline": "bubble and sends between stages",
    "gradients": "between replicas, after backward",
    "update": "the optimizer",
}


def draw(request: LayoutRequest, prediction: LayoutPrediction) -> View:
    """One layout: the step, where it goes, and whether it fits."""
    return _view(request, prediction, ())


def draw_best(request: LayoutRequest, best: Sequence[LayoutPrediction]) -> View:
    """The fastest layout, and those that come next."""
    columns = (
        PartColumn("layout", wrap=True),
        number("step"),
        number("MFU", 2),
        number("memory", 1),
        number("fits", 3),
    )
    rows = [
        (
            show_layout(one.layout),
            show_seconds(one.step_s),
            show_percent(one.mfu),
            show_bytes(one.memory_bytes),
            show_probability(one.fit_probability),
        )
        for one in best[:_SHOWN]
    ]
    more = f"{len(best):,} layouts fit; the fastest {len(rows)} are shown" if len(best) > _SHOWN else ""
    return _view(request, best[0], (section("Best layouts", "layouts", table(columns, rows, note=more)),))


def document(request: LayoutRequest, prediction: LayoutPrediction) -> dict[str, Any]:
    return schema("layout") | {"request": _plain_request(request), "predicted": _plain(prediction)}


def best_document(request: LayoutRequest, best: Sequence[LayoutPrediction]) -> dict[str, Any]:
    """The fastest layout as `predicted`, and the fastest ones in order as `layouts`."""
    return document(request, best[0]) | {"count": len(best), "layouts": [_plain(one) for one in best[:_SHOWN]]}


def show_layout(layout: Layout) -> str:
    """`tp 8 · pp 2 · dp 4 · ZeRO-1 · 2 sequences × 16 · full recomputation`."""
    degrees = [
        f"{name} {value}"
        for name, value in (
            ("tp", layout.tensor),
            ("pp", layout.pipeline),
            ("cp", layout.context),
            ("dp", layout.data),
            ("ep", layout.expert),
        )
        if value > 1
    ] or ["one GPU"]
    if layout.interleaving > 1:
        degrees.append(f"{layout.interleaving} interleaved stages")
    if layout.zero:
        degrees.append(f"ZeRO-{layout.zero}")
    degrees.append(f"{plural(layout.micro_batch, 'sequence')} × {layout.accumulation}")
    if layout.checkpointing != "none":
        degrees.append(f"{layout.checkpointing} recomputation")
    return " · ".join(degrees)


def _view(request: LayoutRequest, p: LayoutPrediction, more: tuple[Any, ...]) -> View:
    rows: list[tuple[str, Line]] = [
        ("layout", show_layout(p.layout)),
        ("step", f"{show_seconds(p.step_s)}  ({show_bounds(p.low_s, p.high_s)})"),
        ("speed", f"{show_count(p.tokens_per_s / p.layout.gpus)} tokens/s per GPU · MFU {show_percent(p.mfu)}"),
        (
            "memory",
            f"{show_bytes(p.memory_bytes)}  ({show_bytes(p.memory_low_bytes)} to {show_bytes(p.memory_high_bytes)}) "
            f"of {show_bytes(p.gpu_memory_bytes)}: fits with {show_probability(p.fit_probability)} probability",
        ),
        ("holds", " · ".join(f"{name} {show_bytes(value)}" for name, value in p.memory_parts_bytes.items())),
    ]
    columns = (PartColumn("part"), number("time"), number("of the step", 1), PartColumn("what it is", wrap=True))
    parts = [
        (name, show_seconds(value), show_percent(value / p.step_s), _PARTS[name])
        for name, value in p.parts_s.items()
        if value > _NOTHING * p.step_s
    ]
    base = view(
        f"{request.model.name}: layout",
        facts(rows),
        table(columns, parts),
        aside=f"{request.gpus} × {request.gpu}, {request.global_batch:,} sequences of {request.sequence:,} tokens",
    )
    notes = Notes("assumed", _assumptions(request, p))
    return View(base.title, base.aside, base.intro, (*more, section("Assumed", "assumed", notes)), key="layout")


def _assumptions(request: LayoutRequest, p: LayoutPrediction) -> tuple[str, ...]:
    framework = framework_of(request.model, p.layout)
    across = framework == "nanotron" and p.layout.pipeline > 1 and p.layout.gpus > request.gpus_per_node
    more = []
    if across:
        more.append("In a pipeline across nodes nanotron's host launches slowly; other frameworks may take less.")
    if p.layout.zero >= 2 or p.layout.checkpointing != "none" or framework != "nanotron":
        more.append(
            "Memory was measured with ZeRO-0 and 1, without experts and recomputation; elsewhere it is computed, with "
            "a wider interval."
        )
    if p.layout.zero == 3 and p.layout.tensor * p.layout.pipeline > 1:
        more.append("Nobody measured ZeRO-3 beside tensor or pipeline groups.")
    return (
        f"Constants are those of {_FRAMEWORKS[framework]}; the interval is what they were off by for "
        "models that no fit had seen.",
        f"Nodes of {request.gpus_per_node} GPUs, {show_bit_rate(request.adapter_bytes_per_s)} between nodes per GPU.",
        f"{request.model.name} has {show_count(request.model.parameters)} parameters.",
        *more,
    )


def _plain_request(request: LayoutRequest) -> dict[str, Any]:
    return asdict(request) | {"parameters": request.model.parameters}


def _plain(p: LayoutPrediction) -> dict[str, Any]:
    return asdict(p) | {"fits": p.fits, "gpus": p.layout.gpus}


def draw_recommendation(r: LayoutRecommendation) -> View:
    """What to rent for a transformer, the layout there, and the front of time and cost."""
    request = r.request
    limits = [f"{show_count(r.tokens)} tokens", f"{r.layout_request.global_batch:,} sequences a step"]
    if request.deadline_s is not None:
        limits.append(f"done in {show_seconds(request.deadline_s)}")
    if request.budget_usd is not None:
        limits.append(f"at most {show_usd(request.budget_usd)}")
    rows: list[tuple[str, Line]] = [("answer", Span(r.verdict, "strong"))]
    if r.pick is not None:
        rows += _pick_facts(r, r.pick)
    looked_at = f"{plural(r.fleets, 'fleet')}; on {r.no_room:,} more no layout fits"
    rows.append(("looked at", Span(looked_at, "dim")))
    base = view(f"{r.layout_request.model.name}: what to rent", facts(rows), aside=", ".join(limits))
    assumed: list[str] = [*request.assumptions]
    if r.pick is not None:
        assumed = [*_assumptions(r.layout_request, r.pick.predicted), *assumed]
    if r.unjudged:
        assumed.append(f"Not judged, no rates are listed: {', '.join(r.unjudged)}.")
    more = (section("The front", "front", _front(r)),) if r.front else ()
    notes = section("Assumed", "assumed", Notes("assumed", tuple(assumed)))
    return View(base.title, base.aside, base.intro, (*more, notes), key="recommended-layout")


def _pick_facts(r: LayoutRecommendation, pick: LayoutFleet) -> list[tuple[str, Line]]:
    p, instance = pick.predicted, pick.offer.instance
    chances = (("meets the deadline", pick.in_time), ("keeps the budget", pick.in_budget))
    in_time, in_budget = (
        "" if chance is None else f"; {what} with {show_probability(chance)} probability" for what, chance in chances
    )
    return [
        (
            "pick",
            f"{pick.name}: {pick.gpus} × {instance.gpu.name}, {instance.cloud} {pick.offer.zone or pick.offer.region}, "
            f"{show_usd(pick.usd_per_h)}/h a machine, a price of {pick.offer.origin.as_of}",
        ),
        ("layout", show_layout(p.layout)),
        ("time", f"{show_seconds(pick.job_s)} ({show_bounds(pick.low_s, pick.high_s)}){in_time}"),
        ("cost", f"{show_usd(pick.usd)} ({show_usd_bounds(pick.low_usd, pick.high_usd)}){in_budget}"),
        ("step", f"{show_seconds(p.step_s)}  ({show_bounds(p.low_s, p.high_s)}) · MFU {show_percent(p.mfu)}"),
        (
            "memory",
            f"{show_bytes(p.memory_bytes)} of {show_bytes(p.gpu_memory_bytes)}: fits with "
            f"{show_probability(p.fit_probability)} probability",
        ),
    ]


def _front(r: LayoutRecommendation) -> TablePart:
    columns = (
        PartColumn("fleet"),
        PartColumn("GPUs", priority=2),
        PartColumn("layout", wrap=True, priority=1),
        number("time"),
        number("cost"),
    )
    rows = []
    for one in r.front:
        cells: tuple[Cell | Line, ...] = (
            Cell(one.name, note="the pick" if one == r.pick else ""),
            f"{one.gpus} × {one.offer.instance.gpu.name}",
            show_layout(one.predicted.layout),
            show_seconds(one.job_s),
            show_usd(one.usd),
        )
        rows.append(Row(cells, tone="strong" if one == r.pick else ""))
    return table(columns, rows, "the front: nothing that can be rented is both faster and cheaper")


def recommendation_document(r: LayoutRecommendation) -> dict[str, Any]:
    """The pick and the front, each with its layout."""
    return schema("recommend-layout") | {
        "request": _plain_request(r.layout_request),
        "tokens": r.tokens,
        "deadline_s": r.request.deadline_s,
        "budget_usd": r.request.budget_usd,
        "confidence": r.request.confidence,
        "verdict": r.verdict,
        "impossible": r.impossible,
        "pick": None if r.pick is None else _plain_fleet(r.pick),
        "front": [_plain_fleet(one) for one in r.front],
        "fleets": r.fleets,
        "without_room": r.no_room,
        "not_judged": list(r.unjudged),
        "assumptions": list(r.request.assumptions),
    }


def _plain_fleet(one: LayoutFleet) -> dict[str, Any]:
    instance = one.offer.instance
    return {
        "cloud": instance.cloud,
        "region": one.offer.region,
        "zone": one.offer.zone,
        "instance": instance.name,
        "gpu": instance.gpu.name,
        "nodes": one.nodes,
        "gpus": one.gpus,
        "usd_per_h": one.usd_per_h,
        "job_s": one.job_s,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "usd": one.usd,
        "low_usd": one.low_usd,
        "high_usd": one.high_usd,
        "in_time": one.in_time,
        "in_budget": one.in_budget,
        "layout": asdict(one.predicted.layout),
        "predicted": _plain(one.predicted),
    }
