"""The terminal's view of a characterised machine, and of several side by side."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from stallwise.cloud.study import Studied
from stallwise.hardware.machine import MachineRecord
from stallwise.report.card import labelled
from stallwise.report.machine import draw_machine
from stallwise.report.terminal import table
from stallwise.report.text import show_number, show_percent, show_rate, show_seconds

_GAP = (1, 0, 0, 0)


def draw_characterized(record: MachineRecord) -> RenderableType:
    """What was measured, then what could not be."""
    parts: list[RenderableType] = [draw_machine(record)]
    rows = labelled()
    for copy in record.copies:
        plural = "GPU" if copy.gpus == 1 else "GPUs at once"
        rows.add_row(
            "host to GPU",
            Text(
                f"{copy.gpus} {plural}: {show_rate(copy.slowest_bytes_per_s)} each, "
                f"{show_rate(copy.all_bytes_per_s)} in all"
            ),
        )
    if record.ring is not None:
        rows.add_row("GPU to GPU", Text(f"ring of {record.ring.gpus}: {show_rate(record.ring.slowest_bytes_per_s)}"))
    for one in record.storage:
        words = f"{show_rate(one.bytes_per_s)} with {one.readers} readers" + (f"; {one.note}" if one.note else "")
        rows.add_row(one.kind, Text(words))
    if record.decode is not None:
        decode = record.decode
        rows.add_row(
            "decode",
            Text(
                f"{show_number(decode.per_core_samples_per_s)} images/s per core with {decode.cores} at work, "
                f"{show_number(decode.one_core_samples_per_s)} alone; {decode.pixels[0]} × {decode.pixels[1]} JPEG of "
                f"{decode.file_bytes / 1e3:.0f} kB, {decode.library}"
            ),
        )
    for name, why in record.unknown.items():
        rows.add_row("unknown", Text(f"{name}: {why}", style="dim"))
    parts.append(Padding(rows, _GAP, expand=False))
    if record.networks:
        drawn = table(
            "network", "precision", ("batch", "right"), ("G, samples/s", "right"), "95 % interval", ("step", "right"),
            title=f"standard networks on one {record.networks[0].device}",
        )  # fmt: skip
        for network in record.networks:
            low, high = network.low_samples_per_s, network.high_samples_per_s
            bounds = "unknown" if low is None or high is None else f"{show_number(low)} to {show_number(high)}"
            drawn.add_row(
                network.name, network.precision, str(network.batch), show_number(network.samples_per_s), bounds,
                show_seconds(network.step_s),
            )  # fmt: skip
        parts.append(Padding(drawn, _GAP, expand=False))
    return Group(*parts)


def draw_study(rows: Sequence[Studied], samples: float) -> RenderableType:
    """Stall, epoch time and cost, machine by machine for every network."""
    drawn = table(
        "network", "machine", ("GPUs", "right"), ("samples/s", "right"), ("interconnect", "right"), ("prep", "right"),
        ("fetch", "right"), ("epoch", "right"), ("first", "right"), ("cost", "right"), "binds",
        title=f"an epoch of {samples:,.0f} samples on all GPUs; stalls by Stash's denominators",
    )  # fmt: skip
    last = ""
    for row in rows:
        drawn.add_row(
            row.network if row.network != last else "",
            row.machine,
            str(row.gpus),
            show_number(row.samples_per_s),
            *(_part(part) for part in (row.interconnect, row.prep, row.fetch)),
            show_seconds(row.epoch_s),
            "?" if row.first_epoch_s is None else show_seconds(row.first_epoch_s),
            "?" if row.usd is None else f"${row.usd:,.2f}",
            row.binds,
        )
        last = row.network
    return Group(drawn, Text("?: not measured, or no price given", style="dim"))


def _part(part: float | None) -> str:
    return "?" if part is None else show_percent(part)
