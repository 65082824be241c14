"""A predicted step against the measured one: its view, and JSON."""

from collections.abc import Iterator
from typing import Any

from stallwise.analysis.prediction import Difference, MemoryFit, Prediction, Setup, UsedLink
from stallwise.model.step.setups import StepEstimate
from stallwise.report.charts import step_timeline
from stallwise.report.format import (
    plural,
    show_bit_rate,
    show_bounds,
    show_bytes,
    show_count,
    show_factor,
    show_memory,
    show_number,
    show_percent,
    show_rate,
    show_seconds,
)
from stallwise.report.html import page as html_page
from stallwise.report.json import plain, schema
from stallwise.report.view import (
    Axis,
    Bar,
    BarPiece,
    Cell,
    Chart,
    Figures,
    Line,
    Notes,
    PartColumn,
    Row,
    Series,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
)

PARTS = {
    "compute": "forward, backward and update",
    "exchange": "exchange of gradients that compute does not hide",
    "copy": "batches going from host to device",
    "data": "waiting for the loader",
}
"""The parts of a predicted step, in the order in which they are shown."""

_KINDS = {"compute": "compute", "exchange": "interconnect", "copy": "copy", "data": "prep"}
"""Parts in the colours of the profile's."""
_EVEN = 0.0005
HIDDEN = "fully overlapped, or none"
"""What stands for a part below one in two thousand of the step."""


def draw(prediction: Prediction, *more: tuple[str, str]) -> View:
    """The predicted step, where it goes, more GPUs, and what is assumed; `more` are facts about the whole job."""
    answer = prediction.answer
    return View(
        f"{prediction.name}: what if",
        show_fleet(prediction),
        (
            _figures(prediction),
            facts(_summary(prediction), only="terminal"),
            facts(_page_facts(prediction), box=_KINDS[answer.binds], only="page"),
        ),
        (
            section("Where the predicted step goes", "step", _split(answer), facts(_binding(answer), only="terminal")),
            section("A step over time", "time", *step_timeline(prediction.schedule, "whatif-over-time")),
            section(f"More {_units(prediction)}", "curve", *_curve_parts(prediction)),
            section("The whole job", "job", facts(more)),
            section("Links", "links", Notes("", tuple(map(show_link, prediction.links)), only="page")),
            section("Assumed", "assumed", Notes("assumed", prediction.assumptions)),
        ),
        key="whatif",
        subtitle=f"{show_fleet(prediction)} · predicted from {prediction.source}",
    )


def page(prediction: Prediction) -> str:
    """The prediction as one self-contained HTML page."""
    return html_page(draw(prediction))


def show_fleet(prediction: Prediction) -> str:
    """16 GPUs on 2 nodes."""
    gpus, per_node = prediction.answer.gpus, prediction.gpus_per_node
    if gpus is None or per_node is None:
        return "GPUs as in the file"
    nodes = plural(-(-gpus // per_node), "node")
    if prediction.setup.device == "CPU":
        return f"{plural(gpus, 'process')} like the run's, no GPU, on {nodes}"
    return f"{plural(gpus, 'GPU')} on {nodes}"


def show_setup(setup: Setup) -> list[str]:
    """The assumptions in force: device, batch, loader, storage; one per line."""
    where = f" on {plural(setup.nodes, 'node')}" if setup.nodes else ""
    kind = f" ({setup.instance})" if setup.instance else ""
    lines = [f"{_devices(setup)}{where}{kind}, {setup.precision}"]
    if setup.samples_per_gpu is not None and setup.global_batch is not None:
        measured = (
            "" if setup.measured_global_batch is None else f" (measured: {show_count(setup.measured_global_batch)})"
        )
        passes = f" in {setup.passes} passes" if setup.passes > 1 else ""
        samples = f"batch {show_count(setup.samples_per_gpu)} per {setup.unit}{passes}"
        lines.append(f"{samples}, global batch {show_count(setup.global_batch)}{measured}")
    if setup.workers is not None:
        cores = "" if setup.cores is None else f", {plural(setup.cores, 'core')} per node"
        rule = "as measured" if setup.workers == setup.measured_workers else f"measured: {setup.measured_workers}"
        workers = f"{plural(setup.workers, 'loader worker')} per {setup.unit} ({rule})"
        lines.append(f"{workers}{cores}; {_storage(setup)}")
    return lines


def _devices(setup: Setup) -> str:
    if setup.gpus is None:
        return "GPUs as in the file"
    if setup.device is None:
        return f"{plural(setup.gpus, 'GPU')} as in the file"
    return f"{plural(setup.gpus, 'process')} on CPUs" if setup.device == "CPU" else f"{setup.gpus} × {setup.device}"


def _storage(setup: Setup) -> str:
    if setup.dataset_bytes is None:
        return "storage as measured"
    rate = "" if setup.storage_bytes_per_s is None else f" read at {show_rate(setup.storage_bytes_per_s)}"
    return f"{show_bytes(setup.dataset_bytes)} of data{rate}"


def show_memory_use(memory: MemoryFit) -> list[str]:
    """Bytes on one GPU against what it has, by what needs them."""
    need = memory.need
    named = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "gathered unit": need.unit,
    }
    lines = [
        f"{show_memory(need.whole)} of {show_memory(memory.usable_bytes)}: {'fits' if memory.fits else 'does not fit'}",
        " · ".join(f"{name} {show_memory(value)}" for name, value in named.items() if value),
    ]
    if memory.largest_batch is None:
        lines.append("No batch fits: weights, gradients and optimizer alone are too large.")
    elif memory.largest_batch != float("inf"):
        lines.append(_largest_batch(memory.largest_batch, memory.measured_samples))
    if not memory.fits:
        shards = memory.fits_sharded_over
        lines.append("No sharding helps." if shards is None else f"FSDP over {shards} GPUs would fit.")
    return lines


def _largest_batch(factor: float, samples: float | None) -> str:
    if samples is None:
        return f"Up to {show_factor(factor)} the measured batch fits on a GPU."
    # Rounded down to three digits: the figure must fit.
    most = int(factor * samples)
    unit = 10 ** max(0, len(str(most)) - 3)
    return f"Measured with {show_count(samples)} samples per GPU; about {most // unit * unit:,} fit."


def _summary(prediction: Prediction) -> Iterator[tuple[str, Line]]:
    yield from (("set-up", line) for line in show_setup(prediction.setup))
    yield from (("changed", show_change(change)) for change in prediction.changed)
    if not prediction.changed:
        yield "changed", Span("nothing", "dim")
    yield from (("links", show_link(link)) for link in prediction.links)
    yield "as it is", show_baseline(prediction)
    yield "predicted", _headline(prediction)
    yield from (("memory", line) for line in _memory_lines(prediction))


def _memory_lines(prediction: Prediction) -> list[str]:
    if prediction.memory is None or prediction.target.device is None:
        return []
    return show_memory_use(prediction.memory)


def _page_facts(prediction: Prediction) -> Iterator[tuple[str, Line]]:
    yield "difference", "; ".join(map(show_change, prediction.changed)) or "nothing is changed"
    yield "as it is", show_baseline(prediction)
    yield "bound by", f"{show_binding(prediction.answer)}. Critical path: {prediction.answer.binding}"
    yield "set-up", "; ".join(show_setup(prediction.setup))
    for line in _memory_lines(prediction)[:1]:
        yield "memory", line


def show_change(change: Difference) -> str:
    """GPUs: 1 on 1 node → 16 on 2 nodes."""
    return f"{change.name}: {change.before or 'unknown'} → {change.after}"


def show_link(used: UsedLink) -> str:
    """between nodes: 3.13 GB/s (25 Gb/s), starts in 30 µs; listed for p4d.24xlarge."""
    link, rate = used.link, used.link.bytes_per_s
    speed = "any rate" if rate is None else f"{show_rate(rate)} ({show_bit_rate(rate)})"
    starts = f", starts in {show_seconds(link.latency_s)}" if link.latency_s else ""
    return f"{used.tier}: {speed}{starts}; {' '.join(filter(None, (link.origin, link.source)))}"


def show_baseline(prediction: Prediction) -> str:
    """measured 109 ms (105 to 123 ms), 147 samples/s; model 108 ms, 0.9 % less."""
    parts = []
    if prediction.measured is not None:
        speed = prediction.measured_samples_per_s
        bounds = show_bounds(prediction.measured.low_s, prediction.measured.high_s)
        samples = "" if speed is None else f", {show_number(speed)} samples/s"
        parts.append(f"measured {show_seconds(prediction.measured.s)} ({bounds}){samples}")
    if prediction.baseline is None:
        parts.append("model: unknown, its links are not known")
    else:
        parts.append(f"model {show_seconds(prediction.baseline.step_s)}{_error(prediction.model_error)}")
    return "; ".join(parts)


def _error(error: float | None) -> str:
    if error is None:
        return ""
    if abs(error) < _EVEN:
        return ", as measured"
    return f", {show_percent(abs(error))} {'more' if error > 0 else 'less'} than measured"


def _headline(prediction: Prediction) -> Line:
    answer = prediction.answer
    pieces = [Span(show_seconds(answer.step_s), "strong"), Span(f"  ({show_interval(answer)})", "dim")]
    if answer.samples_per_s is not None:
        pieces.append(Span(f"   {show_number(answer.samples_per_s)} samples/s", "strong"))
    if prediction.speedup is not None and answer != prediction.baseline:
        pieces.append(Span(f"   {show_speedup(prediction)}", "strong"))
    return tuple(pieces)


def show_interval(answer: StepEstimate) -> str:
    """The bounds of a step, or that there are none."""
    return show_bounds(answer.low_s, answer.high_s) if answer.bounded else "interval unknown"


def show_speedup(prediction: Prediction) -> str:
    """1.8 × as fast (1.5 to 2)."""
    bounds = show_gain_bounds(prediction)
    return f"{show_factor(prediction.speedup or 0.0)} as fast" + (f" ({bounds})" if bounds else "")


def show_gain_bounds(prediction: Prediction) -> str:
    """1.5 to 2, or nothing where no interval is known."""
    if not prediction.answer.bounded or prediction.speedup_low is None or prediction.speedup_high is None:
        return ""
    return f"{show_number(prediction.speedup_low)} to {show_number(prediction.speedup_high)}"


def parts_s(answer: StepEstimate) -> dict[str, float]:
    """Seconds by part; they add up to the step."""
    split = answer.split
    return {"compute": split.compute_s, "exchange": split.exchange_s, "copy": split.copy_s, "data": split.read_s}


def bound_by(answer: StepEstimate) -> str:
    """The longest part of the step."""
    parts = parts_s(answer)
    return max(parts, key=lambda name: parts[name])


def show_binding(answer: StepEstimate) -> str:
    """compute (98 %); largest removable stall: exchange, 2.4 %."""
    parts, longest = parts_s(answer), bound_by(answer)
    sentence = f"{longest} ({show_percent(parts[longest] / answer.step_s)})"
    if answer.binds == longest:
        return sentence if longest != "compute" else f"{sentence}; no stall is worth removing"
    return f"{sentence}; largest removable stall: {answer.binds}, {show_percent(parts[answer.binds] / answer.step_s)}"


def _binding(answer: StepEstimate) -> Iterator[tuple[str, Line]]:
    longest = bound_by(answer)
    yield "bound by", (Span(longest, f"strong {_KINDS[longest]}"), show_binding(answer).removeprefix(longest))
    yield "critical path", answer.binding


def _split(answer: StepEstimate) -> TablePart:
    """The parts as stairs: each bar begins where the one above ends."""
    rows: list[Row] = []
    start_s = 0.0
    for name, seconds in parts_s(answer).items():
        cell = Cell(name, note=PARTS[name], swatch=_KINDS[name])
        if seconds < _EVEN * answer.step_s:
            rows.append(Row((cell, Cell(Span(HIDDEN, "dim"), span=3))))
        else:
            bar = Bar((BarPiece(start_s / answer.step_s, seconds / answer.step_s, _KINDS[name]),))
            rows.append(Row((cell, Cell(bar=bar), show_seconds(seconds), show_percent(seconds / answer.step_s))))
        start_s += seconds
    columns = ("part", PartColumn("", bar=100), number("predicted"), number("of the step"))
    title = "Each part begins where the one above ends; together they are the step."
    return table(columns, rows, title, foot=Row(("step", "", show_seconds(answer.step_s), "100 %")), headless=True)


def _curve_parts(prediction: Prediction) -> Iterator[Chart | TablePart | Notes]:
    if prediction.curve:
        yield _picture(prediction)
        yield _curve(prediction)
    if prediction.curve_ends:
        yield Notes("curve", (prediction.curve_ends,))


def _units(prediction: Prediction) -> str:
    return "processes" if prediction.setup.unit == "process" else "GPUs"


def _curve(prediction: Prediction) -> TablePart:
    columns = (
        number(_units(prediction)),
        number("step"),
        PartColumn("interval", priority=3),
        number("samples/s"),
        number("efficiency", 1),
        PartColumn("", bar=20, only="terminal", priority=4),
        PartColumn("bound by", priority=2),
    )
    rows = (
        Row(
            (
                f"{point.gpus:,}",
                show_seconds(point.step_s),
                Cell(show_interval(point), "dim"),
                "unknown" if point.samples_per_s is None else show_number(point.samples_per_s),
                show_percent(point.efficiency),
                Cell(bar=Bar((BarPiece(0.0, min(1.0, point.efficiency), _KINDS[bound_by(point)]),))),
                bound_by(point),
            ),
            tone="strong" if point.gpus == prediction.answer.gpus else "",
        )
        for point in prediction.curve
    )
    return table(columns, rows, f"predicted for other numbers of {_units(prediction)}, each with its batch")


def _picture(prediction: Prediction) -> Chart:
    """How many single GPUs all of them are worth, both axes by powers of two; dashed: no loss."""
    points = [(float(point.gpus or 1), point) for point in prediction.curve]
    most = max(gpus for gpus, _ in points)
    powers = tuple(2.0**power for power in range(0, int(most).bit_length(), 2))
    target = [(gpus, _worth(point, point.step_s)) for gpus, point in points if point.gpus == prediction.answer.gpus]
    last_gpus, last = points[-1]
    units = _units(prediction)
    return Chart(
        "whatif-picture",
        f"Speed over numbers of {units}",
        f"{last_gpus:,.0f} {units} do as much as {show_number(_worth(last, last.step_s))} single ones, "
        f"{show_percent(last.efficiency)} of what no loss would give.",
        Axis(show_count, units, logarithmic=True, low=1.0, high=max(2.0, most), ticks=powers),
        # From half a GPU up: a step of several GPUs can be slower than twice that of one.
        Axis(show_count, f"worth in single {units}", logarithmic=True, low=0.5, high=max(2.0, most), ticks=powers),
        (
            Series("no loss", ((1.0, 1.0), (most, most)), kind="ideal"),
            Series("predicted", tuple((gpus, _worth(point, point.step_s)) for gpus, point in points)),
            Series("this set-up", tuple(target), kind="target", radius=6),
        ),
        bands=(
            (
                tuple((gpus, _worth(point, point.low_s)) for gpus, point in points),
                tuple((gpus, _worth(point, point.high_s)) for gpus, point in points),
            ),
        ),
        height=300,
    )


def _worth(point: StepEstimate, step_s: float) -> float:
    """How many single GPUs would do as much at that step; between half a GPU and all of them is drawn."""
    gpus = point.gpus or 1
    return min(float(gpus), max(0.5, gpus * point.efficiency * point.step_s / step_s)) if step_s else float(gpus)


def _figures(prediction: Prediction) -> Figures:
    answer = prediction.answer
    speed = "unknown" if answer.samples_per_s is None else show_number(answer.samples_per_s)
    faster = "unknown" if prediction.speedup is None else show_factor(prediction.speedup)
    return Figures(
        (
            ("predicted step", show_seconds(answer.step_s), show_interval(answer)),
            ("predicted speed", speed, "samples/s"),
            ("against as it is", faster, show_gain_bounds(prediction)),
            ("efficiency", show_percent(answer.efficiency), f"of as many single {_units(prediction)}"),
        )
    )


def document(prediction: Prediction) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    return {
        **schema("whatif"),
        "name": prediction.name,
        "source": prediction.source,
        "measured": None
        if prediction.measured is None
        else {
            "step_s": plain(prediction.measured.s),
            "low_s": plain(prediction.measured.low_s),
            "high_s": plain(prediction.measured.high_s),
            "samples_per_s": prediction.measured_samples_per_s,
        },
        "baseline": None if prediction.baseline is None else _answer(prediction.baseline),
        "model_error": prediction.model_error,
        "setup": _setup(prediction.setup),
        "compute": {
            "measured_s": prediction.measured_compute_s,
            "predicted_s": prediction.compute.s,
            "low_s": plain(prediction.compute.low_s),
            "high_s": plain(prediction.compute.high_s),
        },
        "memory": None if prediction.memory is None else memory(prediction.memory),
        "changed": [plain(change) for change in prediction.changed],
        "gpus_per_node": prediction.gpus_per_node,
        "links": [_link(link) for link in prediction.links],
        "predicted": _answer(prediction.answer),
        "speedup": plain(prediction.speedup),
        "speedup_low": plain(prediction.speedup_low),
        "speedup_high": plain(prediction.speedup_high),
        "curve": [_answer(point) for point in prediction.curve],
        "curve_ends": prediction.curve_ends,
        "assumptions": list(prediction.assumptions),
    }


def _setup(setup: Setup) -> dict[str, Any]:
    """Every assumption in force."""
    return {
        "device": setup.device,
        "instance": setup.instance,
        "gpus": setup.gpus,
        "gpus_per_node": setup.gpus_per_node,
        "nodes": setup.nodes,
        "samples_per_gpu": setup.samples_per_gpu,
        "global_batch": setup.global_batch,
        "measured_global_batch": setup.measured_global_batch,
        "passes": setup.passes,
        "workers": setup.workers,
        "measured_workers": setup.measured_workers,
        "cores": setup.cores,
        "precision": setup.precision,
        "dataset_bytes": setup.dataset_bytes,
        "storage_bytes_per_s": setup.storage_bytes_per_s,
    }


def memory(fit: MemoryFit) -> dict[str, Any]:
    """Bytes on one GPU, and whether they fit."""
    return {
        "needed_bytes": fit.need.whole,
        "usable_bytes": fit.usable_bytes,
        "fits": fit.fits,
        "weights_bytes": fit.need.weights,
        "gradients_bytes": fit.need.gradients,
        "optimizer_bytes": fit.need.optimizer,
        "activations_bytes": fit.need.activations,
        "gathered_bytes": fit.need.unit,
        "largest_batch": None if fit.largest_batch in (None, float("inf")) else fit.largest_batch,
        "sharded_over": fit.sharded_over,
        "fits_sharded_over": fit.fits_sharded_over,
    }


def _answer(answer: StepEstimate) -> dict[str, Any]:
    return {
        "gpus": answer.gpus,
        "step_s": answer.step_s,
        "low_s": plain(answer.low_s) if answer.bounded else None,
        "high_s": plain(answer.high_s) if answer.bounded else None,
        "samples_per_s": answer.samples_per_s,
        "efficiency": answer.efficiency,
        "split": {f"{name}_s": seconds for name, seconds in parts_s(answer).items()},
        "binds": answer.binds,
        "bound_by": bound_by(answer),
        "binding": answer.binding,
    }


def _link(used: UsedLink) -> dict[str, Any]:
    link = used.link
    return {
        "tier": used.tier,
        "bytes_per_s": link.bytes_per_s,
        "latency_s": link.latency_s,
        "origin": link.origin,
        "source": link.source,
        "ranks": link.ranks if link.origin == "measured" else None,
        "low": link.low,
        "high": link.high,
    }
