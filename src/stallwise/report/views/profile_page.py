"""The page of a profile: one HTML file that needs nothing else, and the same article for notebooks."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from stallwise.analysis.object_store import WaitTimes
from stallwise.analysis.profile import Detail, GradientReady, LayerTime, Profile, RankTimes
from stallwise.report.charts import gradients_svg, heat_picture, in_buckets, step_timeline
from stallwise.report.format import (
    show_bytes,
    show_count,
    show_flops,
    show_memory,
    show_number,
    show_percent,
    show_seconds,
)
from stallwise.report.html import notebook
from stallwise.report.html import page as html_page
from stallwise.report.view import (
    Bar,
    BarPiece,
    Cell,
    Figures,
    Line,
    Notes,
    Paragraph,
    Part,
    PartColumn,
    Picture,
    Pipeline,
    Row,
    Section,
    Span,
    Stage,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
)
from stallwise.report.views.profile import (
    MEANINGS,
    RateRow,
    compute_includes_unmeasured,
    layer_s,
    overhead_name,
    part_end_s,
    parts_of,
    profile_facts,
    rate_rows,
    script_name,
    show_confidence,
    show_node,
    show_predicted_bounds,
    show_rate_bounds,
    show_speeds,
    show_step_bounds,
    show_world,
    split_table,
)
from stallwise.run.manifest import ModelRecord, NodeRecord

_MAX_RANKS = 16
_MAX_LAYERS = 15
_MAX_BUCKETS = 8
_UNKNOWN = "unknown"
_MAP_RANKS = 8
"""The number of ranks from which they are also drawn as a map."""
# A stage much faster than the narrowest one is drawn this many times as wide, its end cut off.
_WIDEST = 4.0
_FEW_NODES = 8
_STAGES = {"F": "storage", "P": "loader workers", "G": "device"}


def draw(profile: Profile, detail: Detail | None = None) -> View:
    """Everything that is known of a profile, section by section."""
    known = detail or Detail()
    key = key_of(profile)
    verdict = profile.verdict
    advice: list[tuple[str, Line]] = [("", verdict.sentence), ("next", verdict.next_step)]
    return View(
        script_name(profile),
        intro=(_figures(profile), facts(advice, box=verdict.binds if verdict.binds in MEANINGS else "rate")),
        sections=(
            section("Where a step goes", "step", *_split(profile)),
            section("A step over time", "time", *step_timeline(known.schedule, f"{key}-time-chart")),
            section("From storage to the device", "data", *_rates(profile)),
            section("Object store", "bucket", *_object_store(profile)),
            section("Ranks", "ranks", *_ranks(profile, known)),
            section("Layers", "layers", *_layers(profile, known)),
            Section("Beside the split", "more", tuple(_beside(profile)), columns=True),
            section("Notes", "notes", *([Notes("notes", tuple(profile.notes))] if profile.notes else [])),
            section("Machine and record", "machine", facts(_machines(profile), "Where and what")),
        ),
        key=key,
        page_title=f"{script_name(profile)}: where the time goes",
        subtitle=f"{show_world(profile)} · {profile.state} · run {profile.run_id}",
        warning=f"Partial run: {profile.partial_reason}" if profile.partial_reason else "",
    )


def page(profile: Profile, detail: Detail | None = None) -> str:
    """The profile as one self-contained HTML page."""
    return html_page(draw(profile, detail))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProfile(Profile):
    """A profile that a notebook draws."""

    detail: Detail | None = None

    def _repr_html_(self) -> str:
        return notebook(draw(self, self.detail))


def show(profile: Profile, detail: Detail | None = None) -> ShownProfile:
    """The same profile, drawn where a notebook shows it."""
    values = {field.name: getattr(profile, field.name) for field in fields(Profile)}
    return ShownProfile(**values, detail=detail)


def key_of(profile: Profile) -> str:
    """The beginning of ids that two profiles in one notebook do not share."""
    return f"stallwise-{re.sub(r'[^A-Za-z0-9-]', '-', profile.run_id)}"


def _figures(profile: Profile) -> Figures:
    """Step, speed, what binds, and the predicted step."""
    verdict = profile.verdict
    speed, *further = show_speeds(profile).split(" · ")
    rate, _, unit = speed.rpartition(" ")
    binding = getattr(profile.split, verdict.binds, None)
    share = "" if binding is None else f"{show_percent(binding.s / profile.step_s)} of the step"
    figures = [
        ("step", show_seconds(profile.step_s), show_step_bounds(profile)),
        ("speed", rate, " · ".join([unit, *further]))
        if rate != "samples/s"
        else ("speed", "unknown", "no samples seen"),
        ("binds", verdict.binds, " · ".join(filter(None, (share, show_confidence(verdict))))),
    ]
    if verdict.predicted_step_s is not None:
        gain = (
            ""
            if verdict.predicted_gain is None
            else f"{show_percent(verdict.predicted_gain)} less, with the advice below"
        )
        gain = "; ".join(filter(None, (show_predicted_bounds(verdict), gain)))
        figures.append(("predicted", show_seconds(verdict.predicted_step_s), gain))
    return Figures(tuple(figures))


def _split(profile: Profile) -> Iterator[Part]:
    yield split_table(profile, max([profile.step_s, *(part_end_s(part) for part in parts_of(profile))]))
    if compute_includes_unmeasured(profile):
        yield Paragraph("Compute includes what was not measured.")


def _rates(profile: Profile) -> Iterator[Part]:
    rows = {row.name: row for row in rate_rows(profile)}
    flow = [rows["F"], rows["P"], rows["G"]]
    rates = [row.rate.samples_per_s for row in flow if row.rate is not None]
    if not rates:
        return
    job = profile.samples_per_s
    narrowest = min(rates)
    most = min(_WIDEST * narrowest, max([*rates, *([job] if job else [])]))
    stages = [_stage(row, narrowest, most, job) for row in flow]
    if job:
        stages.append(Stage("the job", show_number(job), small=("samples/s",), kind="job"))
    yield Paragraph(
        "What each stage could do alone, in samples/s with its 95 % interval; the narrowest decides. Dashed: the job "
        "itself.",
        "dim",
    )
    yield Pipeline(tuple(stages))
    yield Paragraph(" ".join(_rate_words(name, rows[name]) for name in ("P/core", "C")), "dim")


def _stage(row: RateRow, narrowest: float, most: float, job: float | None) -> Stage:
    name = f"{row.name} · {_STAGES[row.name]}"
    if row.rate is None:
        return Stage(name, small=(row.words,))
    rate = row.rate.samples_per_s
    limit = job / most if job and job <= most else None
    drawn = Bar((BarPiece(0.0, min(1.0, rate / most), "rate"),), limit=limit, cut=rate > most)
    narrow = rate == narrowest
    small = (show_rate_bounds(row.rate), *(("narrowest",) if narrow else ()))
    return Stage(name, show_number(rate), drawn, small, "narrowest" if narrow else "")


def _rate_words(name: str, row: RateRow) -> str:
    what, does = {"P/core": ("One core", "prepares"), "C": ("The page cache", "delivers")}[name]
    if row.rate is None:
        return f"{what}: {row.words}."
    return f"{what} {does} {show_number(row.rate.samples_per_s)} ({show_rate_bounds(row.rate)})."


def _object_store(profile: Profile) -> Iterator[Part]:
    """What loading from an object store waited for, per batch."""
    use = profile.bucket
    if use is None:
        return
    meanings = {"network": "the store", "cache": "the node's cache", "decode": "decoding", "queue": "its turn"}
    rows = []
    for part, meaning in meanings.items():
        waits: WaitTimes | None = getattr(use.total, part)
        shown = (None,) * 3 if waits is None else (waits.mean_s, waits.p50_s, waits.p95_s)
        rows.append((meaning, *(_UNKNOWN if value is None else show_seconds(value) for value in shown)))
    yield Paragraph(f"{dict(profile_facts(profile))['bucket']}.")
    columns = ("a batch waits for", number("mean"), number("median"), number("95 of 100 below"))
    yield table(columns, rows, "In the processes that load, while the script runs as it is")


def _ranks(profile: Profile, detail: Detail) -> Iterator[Part]:
    """Each rank's compute beside the others', slowest first where there are too many to show."""
    ranks = detail.ranks
    if len(ranks) < 2:
        return
    alone = all(rank.compute_s is not None for rank in ranks)
    shown = ranks
    if len(ranks) > _MAX_RANKS:
        shown = tuple(sorted(ranks, key=_busy_s, reverse=True)[:_MAX_RANKS])
    reach_s = max([profile.step_s, *(_busy_s(rank) for rank in ranks)])
    rows = [_rank_row(rank, profile, reach_s) for rank in shown]
    if len(shown) < len(ranks):
        rest = [_busy_s(rank) for rank in ranks if rank not in shown]
        span = f"{show_seconds(min(rest))} to {show_seconds(max(rest))}"
        rows.append(Row((f"{len(rest)} more", Cell(span, span=4))))
    caption = "Compute without exchange" if alone else "The step as it is"
    if len(ranks) >= _MAP_RANKS:
        per_node = max(1, len(ranks) // max(1, profile.world.nnodes))
        yield heat_picture(ranks, _busy_s, caption, f"{key_of(profile)}-heat", per_node)
    columns = (
        PartColumn("rank"),
        PartColumn("", bar=30),
        number("computes alone" if alone else "step"),
        number("waits for batches"),
        PartColumn("peak memory", numeric=True, kind="wide"),
    )
    yield table(
        columns,
        rows,
        f"{caption}, on each rank, against the step (dashed). While the script waits for a batch, a GPU may be busy.",
    )


def _busy_s(rank: RankTimes) -> float:
    return rank.step_s if rank.compute_s is None else rank.compute_s


def _rank_row(rank: RankTimes, profile: Profile, reach_s: float) -> Row:
    where = f"node {rank.node}" if profile.world.nnodes > 1 else ""
    slowest = profile.skew is not None and profile.skew.rank == rank.rank and profile.skew.s > 0
    bar = Bar((BarPiece(0.0, _busy_s(rank) / reach_s, "compute"),), limit=profile.step_s / reach_s)
    return Row(
        (
            Cell(f"rank {rank.rank}", aside=", ".join(filter(None, (where, "slowest" if slowest else "")))),
            Cell(bar=bar),
            show_seconds(_busy_s(rank)),
            _UNKNOWN if rank.data_wait_s is None else show_seconds(rank.data_wait_s),
            _UNKNOWN if rank.peak_memory_bytes is None else show_memory(rank.peak_memory_bytes),
        )
    )


def _layers(profile: Profile, detail: Detail) -> Iterator[Part]:
    """The model in a sentence, its slowest layers, and when its gradients are ready."""
    if profile.model is not None:
        yield from _model(profile.model)
    if profile.layers:
        yield _slowest(profile.layers)
    if detail.gradients:
        yield from _ready(profile, detail)


def _model(model: ModelRecord) -> Iterator[Part]:
    facts_ = [
        f"{show_count(model.parameters)} parameters",
        f"{show_bytes(model.gradient_bytes)} of gradients in {model.gradient_tensors:,} tensors",
        model.precision or "precision unknown",
    ]
    if model.flops_per_step is not None:
        facts_.append(f"{show_flops(model.flops_per_step)} a step and rank")
    facts_ += [word for word, is_so in (("compiled", model.compiled), ("checkpointed", model.checkpointed)) if is_so]
    passes = [("forward", model.forward_s), ("backward", model.backward_s), ("update", model.update_s)]
    timed = ", ".join(f"{name} {show_seconds(value)}" for name, value in passes if value is not None)
    yield Paragraph(" · ".join(facts_))
    if timed:
        yield Paragraph(f"{timed[0].upper()}{timed[1:]}.")


def _slowest(layers: tuple[LayerTime, ...]) -> TablePart:
    top, rest = layers[:_MAX_LAYERS], layers[_MAX_LAYERS:]
    total_s = sum(layer_s(layer) for layer in layers)
    reach_s = max([layer_s(top[0]), sum(layer_s(layer) for layer in rest)])
    rows = [
        _times_row(Cell(layer.name, aside=layer.kind), layer.forward_s, layer.backward_s, total_s, reach_s)
        for layer in top
    ]
    if rest:
        forward_s, backward_s = (sum(getattr(x, name) or 0.0 for x in rest) for name in ("forward_s", "backward_s"))
        rows.append(_times_row(Cell(f"{len(rest)} more"), forward_s, backward_s, total_s, reach_s))
    columns = (
        PartColumn("layer", kind="name"),
        PartColumn("", bar=30),
        PartColumn("forward", numeric=True, swatch="forward"),
        PartColumn("backward", numeric=True, swatch="backward"),
        number("of all layers"),
    )
    title = "The slowest layers by forward and backward together, in one step without exchange"
    return table(columns, rows, title)


def _times_row(name: Cell, forward_s: float | None, backward_s: float | None, total_s: float, reach_s: float) -> Row:
    forward, backward = (forward_s or 0.0) / (reach_s or 1.0), (backward_s or 0.0) / (reach_s or 1.0)
    bar = Bar((BarPiece(0.0, forward, "forward"), BarPiece(forward, backward, "backward")))
    times = (_UNKNOWN if value is None else show_seconds(value) for value in (forward_s, backward_s))
    fraction = ((forward_s or 0.0) + (backward_s or 0.0)) / (total_s or 1.0)
    return Row((name, Cell(bar=bar), *times, show_percent(fraction)))


def _ready(profile: Profile, detail: Detail) -> Iterator[Part]:
    backward_s = profile.model.backward_s if profile.model is not None else None
    svg = gradients_svg(detail.gradients, backward_s, f"{key_of(profile)}-gradients")
    caption = "How much of the gradients is ready, over the backward pass"
    buckets = [(place, members) for place, members in in_buckets(detail.gradients) if place is not None]
    if not buckets:
        yield Picture(svg, f"{caption}.")
        return
    yield Picture(svg, f"{caption}; a shade per DDP bucket, a line where it is complete.")
    yield _buckets(buckets)


def _buckets(buckets: list[tuple[int, tuple[GradientReady, ...]]]) -> TablePart:
    rows = [
        Row(
            (
                f"bucket {bucket}",
                f"{len(members):,}",
                show_bytes(sum(member.bytes for member in members)),
                show_seconds(members[0].ready_s),
                show_seconds(members[-1].ready_s),
            )
        )
        for bucket, members in buckets[:_MAX_BUCKETS]
    ]
    if len(buckets) > _MAX_BUCKETS:
        rows.append(Row((f"{len(buckets) - _MAX_BUCKETS} more", Cell(span=4))))
    columns = ("DDP bucket", number("gradients"), number("size"), number("first ready"), number("complete"))
    return table(columns, rows, "Buckets in the order in which they can be exchanged")


def _beside(profile: Profile) -> Iterator[Part]:
    yield facts(
        ((name, line) for name, line in profile_facts(profile) if name not in {"beside steps", "bucket"}),
        "Also measured",
    )
    if profile.happenings:
        rows = ((overhead_name(one), f"{one.count:,}", show_seconds(one.mean_s)) for one in profile.happenings)
        columns = ("what", number("count"), number("mean"))
        yield table(columns, rows, "Time that is not part of steady steps, over all ranks")


def _nodes(nodes: Sequence[NodeRecord]) -> Iterator[tuple[str, Line]]:
    """Each node; of many, neighbours that are alike in one row."""
    if len(nodes) <= _FEW_NODES:
        for node in nodes:
            yield (f"node {node.node}" + (f" ({node.host})" if node.host else ""), show_node(node))
        return
    alike = [(machine, list(group)) for machine, group in itertools.groupby(nodes, key=show_node)]
    for machine, group in alike[:_FEW_NODES]:
        first, last = group[0].node, group[-1].node
        yield (f"node {first}" if first == last else f"nodes {first:,} to {last:,}", machine)
    rest = sum(len(group) for _, group in alike[_FEW_NODES:])
    if rest:
        yield (f"{rest:,} more nodes", "of several kinds")


def _machines(profile: Profile) -> Iterator[tuple[str, Line]]:
    yield from _nodes(profile.nodes)
    yield "back end", profile.world.backend or _UNKNOWN
    yield "script", Span(profile.script, "code")
    yield "record", Span(str(profile.run), "code")
