"""A job on another GPU: the terminal's view, and the JSON document that docs/predict.md explains."""

from typing import Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.model.memory import Need
from stallwise.record.prediction import Prediction
from stallwise.report.card import WIDTH, labelled
from stallwise.report.text import show_bounds, show_memory, show_number, show_percent, show_seconds
from stallwise.report.whatif import parts_s, show_link
from stallwise.report.whatif_json import document as outlook_document


def draw(found: Prediction) -> RenderableType:
    """Everything on one screen."""
    rows = labelled()
    answer = found.outlook.answer
    rows.add_row("measured", Text(_measured(found)))
    rows.add_row("compute", Text(f"{show_seconds(found.compute.s)} a step ({_bounds(found)})"))
    for number, link in enumerate(found.outlook.links):
        rows.add_row("links" if number == 0 else "", Text(show_link(link)))
    rows.add_row("", Text())
    speed = "" if answer.samples_per_s is None else f"   {show_number(answer.samples_per_s)} samples/s"
    rows.add_row("step", Text(f"{show_seconds(answer.step_s)}  ({show_bounds(answer.low_s, answer.high_s)}){speed}"))
    split = " · ".join(
        f"{name} {show_percent(seconds / answer.step_s)}"
        for name, seconds in parts_s(answer).items()
        if seconds > 0.0005 * answer.step_s
    )
    rows.add_row("", Text(split, style="dim"))
    _add_memory(rows, found)
    _add_whole(rows, found)
    for number, sentence in enumerate(found.assumptions):
        rows.add_row("assumed" if number == 0 else "", Text(sentence, style="dim"))
    return Constrain(Group(_heading(found), rows), WIDTH)


def _heading(found: Prediction) -> RenderableType:
    gpus = found.outlook.answer.gpus or 1
    where = f"{gpus} × {found.target.name}, {found.precision}"
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(Text(f"{found.outlook.name}: predicted, 80 % intervals", style="bold"), Text(where, style="dim"))
    return Group(line, Rule(style="dim"))


def _measured(found: Prediction) -> str:
    step = "" if found.outlook.measured is None else f"step {show_seconds(found.outlook.measured.s)}, "
    return f"{step}compute {show_seconds(found.measured_compute_s)} on {found.source or 'processors'}"


def _bounds(found: Prediction) -> str:
    return show_bounds(found.compute.low_s, found.compute.high_s)


def _add_memory(rows: Table, found: Prediction) -> None:
    verdict = "fits" if found.fits else "does not fit"
    line = f"{show_memory(found.memory.whole)} of {show_memory(found.room_bytes)}: {verdict}"
    rows.add_row("memory", Text(line, style="" if found.fits else "bold red"))
    rows.add_row("", Text(_memory_parts(found.memory), style="dim"))
    if found.batch_fits is None:
        rows.add_row("", Text("No batch fits: weights, gradients and optimizer alone are too large.", style="dim"))
    elif found.batch_fits != float("inf"):
        rows.add_row("", Text(f"The largest batch is {found.batch_fits:.3g} × the measured one.", style="dim"))
    if not found.fits:
        help_ = "No sharding helps." if found.shards is None else f"FSDP over {found.shards} GPUs would fit."
        rows.add_row("", Text(help_, style="dim"))


def _memory_parts(need: Need) -> str:
    named = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "gathered unit": need.unit,
    }
    return " · ".join(f"{name} {show_memory(value)}" for name, value in named.items() if value)


def _add_whole(rows: Table, found: Prediction) -> None:
    job = found.whole
    if job is None:
        return
    rows.add_row("epoch", Text(f"{show_seconds(job.epoch_s)}, the first {show_seconds(job.first_epoch_s)}"))
    rows.add_row("job", Text(f"{show_seconds(job.job_s)}  ({show_bounds(job.low_s, job.high_s)})"))
    if found.usd is not None:
        low, high = f"{found.usd[1]:,.2f}", f"{found.usd[2]:,.2f}"
        rows.add_row("cost", Text(f"${found.usd[0]:,.2f}  ({low} to {high})"))


def document(found: Prediction) -> dict[str, Any]:
    """Plain values; None for what is not known."""
    job = found.whole
    return {
        "source_gpu": found.source,
        "gpu": found.target.name,
        "precision": found.precision,
        "compute": {
            "measured_s": found.measured_compute_s,
            "predicted_s": found.compute.s,
            "low_s": found.compute.low_s,
            "high_s": found.compute.high_s,
        },
        "memory": {
            "needed_bytes": found.memory.whole,
            "usable_bytes": found.room_bytes,
            "fits": found.fits,
            "weights_bytes": found.memory.weights,
            "gradients_bytes": found.memory.gradients,
            "optimizer_bytes": found.memory.optimizer,
            "activations_bytes": found.memory.activations,
            "gathered_bytes": found.memory.unit,
            "largest_batch": None if found.batch_fits in (None, float("inf")) else found.batch_fits,
            "sharded_over": found.sharded_over,
            "fits_sharded_over": found.shards,
        },
        "job": None
        if job is None
        else {
            "epoch_s": job.epoch_s,
            "first_epoch_s": job.first_epoch_s,
            "job_s": job.job_s,
            "low_s": job.low_s,
            "high_s": job.high_s,
            "samples_per_s": job.samples_per_s,
            "usd": None if found.usd is None else list(found.usd),
        },
        **{
            key: value
            for key, value in outlook_document(found.outlook).items()
            if key not in ("curve", "curve_ends", "assumptions")
        },
        "assumptions": list(found.assumptions),
    }
