"""The page's sections on the bucket, on ranks and on layers; each is empty where the run does not say."""

from html import escape

from stallwise.record.bucket import Waits
from stallwise.record.detail import Detail, GradientReady, RankTimes
from stallwise.record.profile import LayerTime, Profile
from stallwise.report import parts
from stallwise.report.heat import heat_svg
from stallwise.report.markup import Cell, Raw, Row, key_of, number, table
from stallwise.report.svg import Piece, bar, gradients_svg, in_buckets
from stallwise.report.text import show_bytes, show_count, show_flops, show_memory, show_percent, show_seconds
from stallwise.report.timeline_svg import timed
from stallwise.run.manifest import ModelRecord

_MOST_RANKS = 16
_MOST_LAYERS = 15
_MOST_BUCKETS = 8
_UNKNOWN = "unknown"
_FEW_RANKS = 8
"""From so many on they are drawn as a map as well."""


def ranks_section(profile: Profile, detail: Detail) -> str:
    """Each rank's compute beside the others', slowest first where there are too many to show."""
    ranks = detail.ranks
    if len(ranks) < 2:
        return ""
    alone = all(rank.compute_s is not None for rank in ranks)
    shown = ranks
    if len(ranks) > _MOST_RANKS:
        shown = tuple(sorted(ranks, key=_busy_s, reverse=True)[:_MOST_RANKS])
    reach_s = max([profile.step_s, *(_busy_s(rank) for rank in ranks)])
    rows = [_rank_row(rank, profile, reach_s) for rank in shown]
    if len(shown) < len(ranks):
        rest = [_busy_s(rank) for rank in ranks if rank not in shown]
        words = f"{show_seconds(min(rest))} to {show_seconds(max(rest))}"
        rows.append([f"{len(rest)} more", Cell(words, "words", span=4)])
    what = "computes alone" if alone else "step"
    how = "Compute without exchange" if alone else "The step as it is"
    picture = ""
    if len(ranks) >= _FEW_RANKS:
        per_node = max(1, len(ranks) // max(1, profile.world.nnodes))
        picture = heat_svg(ranks, _busy_s, how, key_of(profile, "heat"), per_node)
    return picture + table(
        f"{how}, on each rank, against the step (dashed). While the script waits for a batch, a GPU may be busy.",
        ["rank", Cell("", "chart"), number(what), number("waits for batches"), Cell("peak memory", "n wide")],
        rows,
    )


def _busy_s(rank: RankTimes) -> float:
    return rank.step_s if rank.compute_s is None else rank.compute_s


def _rank_row(rank: RankTimes, profile: Profile, reach_s: float) -> Row:
    where = f"node {rank.node}" if profile.world.nnodes > 1 else ""
    slowest = profile.skew is not None and profile.skew.rank == rank.rank and profile.skew.s > 0
    pieces = [Piece(0.0, _busy_s(rank) / reach_s, "compute")]
    aside = ", ".join(filter(None, (where, "slowest" if slowest else "")))
    return [
        Cell(f"rank {rank.rank}", aside=aside),
        Cell(Raw(bar(pieces, limit=profile.step_s / reach_s)), "chart"),
        number(show_seconds(_busy_s(rank))),
        number(_UNKNOWN if rank.data_wait_s is None else show_seconds(rank.data_wait_s)),
        Cell(_UNKNOWN if rank.peak_memory_bytes is None else show_memory(rank.peak_memory_bytes), "n wide"),
    ]


def time_section(profile: Profile, detail: Detail) -> str:
    """The step as the model has it, lane by lane, with its critical path."""
    found = detail.schedule
    if found is None or not found.slots:
        return ""
    return timed(found, key_of(profile, "time"))


def bucket_section(profile: Profile) -> str:
    """What loading from a bucket waited for, per batch."""
    use = profile.bucket
    if use is None:
        return ""
    meanings = {"network": "the store", "cache": "the node's cache", "decode": "decoding", "queue": "its turn"}
    rows: list[Row] = []
    for part, meaning in meanings.items():
        waits: Waits | None = getattr(use.total, part)
        shown = (_UNKNOWN,) * 3 if waits is None else (waits.mean_s, waits.p50_s, waits.p95_s)
        rows.append([meaning, *(number(_UNKNOWN if isinstance(s, str) else show_seconds(s)) for s in shown)])
    said = dict(parts.facts(profile))["bucket"]
    head: Row = ["a batch waits for", number("mean"), number("median"), number("95 of 100 below")]
    return f"<p>{escape(said)}.</p>" + table("In the processes that load, while the script runs as it is", head, rows)


def layers_section(profile: Profile, detail: Detail) -> str:
    """The model in a sentence, its slowest layers, and when its gradients are ready."""
    model = _model(profile.model) if profile.model is not None else ""
    body = _slowest(profile.layers) if profile.layers else ""
    if detail.gradients:
        body += _ready(profile, detail)
    return model + body


def _model(model: ModelRecord) -> str:
    said = [
        f"{show_count(model.parameters)} parameters",
        f"{show_bytes(model.gradient_bytes)} of gradients in {model.gradient_tensors:,} tensors",
        model.precision or "precision unknown",
    ]
    if model.flops_per_step is not None:
        said.append(f"{show_flops(model.flops_per_step)} a step and rank")
    said += [word for word, is_so in (("compiled", model.compiled), ("checkpointed", model.checkpointed)) if is_so]
    passes = [("forward", model.forward_s), ("backward", model.backward_s), ("update", model.update_s)]
    timed = ", ".join(f"{name} {show_seconds(value)}" for name, value in passes if value is not None)
    return f"<p>{escape(' · '.join(said))}</p>" + (f"<p>{escape(timed.capitalize())}.</p>" if timed else "")


def _slowest(layers: tuple[LayerTime, ...]) -> str:
    top, rest = layers[:_MOST_LAYERS], layers[_MOST_LAYERS:]
    total_s = sum(parts.layer_s(layer) for layer in layers)
    reach_s = max([parts.layer_s(top[0]), sum(parts.layer_s(layer) for layer in rest)])
    rows = [_layer_row(layer, total_s, reach_s) for layer in top]
    if rest:
        forward_s, backward_s = (sum(getattr(x, name) or 0.0 for x in rest) for name in ("forward_s", "backward_s"))
        rows.append(_times_row(f"{len(rest)} more", "", forward_s, backward_s, total_s, reach_s))
    return table(
        "The slowest layers by forward and backward together, in one step without exchange",
        [
            "layer",
            Cell("", "chart"),
            Cell("forward", "n", swatch="forward"),
            Cell("backward", "n", swatch="backward"),
            number("of all layers"),
        ],
        rows,
    )


def _layer_row(layer: LayerTime, total_s: float, reach_s: float) -> Row:
    return _times_row(layer.name, layer.kind, layer.forward_s, layer.backward_s, total_s, reach_s)


def _times_row(
    name: str, aside: str, forward_s: float | None, backward_s: float | None, total_s: float, reach_s: float
) -> Row:
    forward, backward = (forward_s or 0.0) / (reach_s or 1.0), (backward_s or 0.0) / (reach_s or 1.0)
    pieces = [Piece(0.0, forward, "forward"), Piece(forward, backward, "backward")]
    return [
        Cell(name, "name", aside=aside),
        Cell(Raw(bar(pieces)), "chart"),
        *(number(_UNKNOWN if value is None else show_seconds(value)) for value in (forward_s, backward_s)),
        number(show_percent(((forward_s or 0.0) + (backward_s or 0.0)) / (total_s or 1.0))),
    ]


def _ready(profile: Profile, detail: Detail) -> str:
    backward_s = profile.model.backward_s if profile.model is not None else None
    picture = gradients_svg(detail.gradients, backward_s, key_of(profile, "gradients"))
    said = "How much of the gradients is ready, over the backward pass"
    buckets = [(number_, members) for number_, members in in_buckets(detail.gradients) if number_ is not None]
    if not buckets:
        return f'<p class="dim">{said}.</p>{picture}'
    return f'<p class="dim">{said}; a shade per DDP bucket, a line where it is complete.</p>{picture}' + _buckets(
        buckets
    )


def _buckets(buckets: list[tuple[int, tuple[GradientReady, ...]]]) -> str:
    rows: list[Row] = [
        [
            f"bucket {bucket}",
            number(f"{len(members):,}"),
            number(show_bytes(sum(member.bytes for member in members))),
            number(show_seconds(members[0].ready_s)),
            number(show_seconds(members[-1].ready_s)),
        ]
        for bucket, members in buckets[:_MOST_BUCKETS]
    ]
    if len(buckets) > _MOST_BUCKETS:
        rows.append([f"{len(buckets) - _MOST_BUCKETS} more", Cell("", "words", span=4)])
    heads: Row = ["DDP bucket", number("gradients"), number("size"), number("first ready"), number("complete")]
    return table("Buckets in the order in which they can be exchanged", heads, rows)
