"""The terminal's view of a machine record."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwise.hardware.machine import HostRecord, LinkRecord, MachineRecord
from stallwise.model.collectives import bus_factor
from stallwise.record.link_points import cost_of
from stallwise.report.terminal import table
from stallwise.report.text import show_bounds, show_memory, show_number, show_rate, show_seconds
from stallwise.units import BITS_PER_BYTE, KIB, MIB

_GAP = (1, 0, 0, 0)  # one empty line above
_UNKNOWN = "unknown"
_WHERE = {"inside": "inside a node", "between": "between nodes, one rank each", "all": "all ranks of all nodes"}


def draw_machine(record: MachineRecord) -> RenderableType:
    """Where it was measured, then a table and the fitted lines per link."""
    made = f"{record.created:%Y-%m-%d %H:%M} UTC with Stallwise {record.stallwise_version}"
    parts: list[RenderableType] = [Text(f"machine record of {made}", style="bold")]
    parts += [Text(_host(host), style="dim") for host in record.hosts]
    for link in record.links:
        parts.append(Padding(_points(link), _GAP, expand=False))
        parts.append(Padding(_lines(link), _GAP, expand=False))
    parts += [Padding(Text(f"- {note}"), _GAP, expand=False) for note in record.notes]
    return Group(*parts)


def _host(host: HostRecord) -> str:
    gpus = ", ".join(f"{host.gpus.count(name)} × {name}" for name in dict.fromkeys(host.gpus)) or "no GPU"
    memory = _UNKNOWN if host.memory_bytes is None else show_memory(host.memory_bytes)
    return f"node {host.node}: {gpus}; {host.cpu_model or 'CPU unknown'}, cores: {host.cores}, memory: {memory}"


def _points(link: LinkRecord) -> Table:
    title = f"{link.collective}, {_WHERE[link.scope]}: {link.ranks} ranks over {link.backend}"
    drawn = table(
        ("size", "right"), ("time", "right"), "95 % interval", ("bus bandwidth", "right"), ("fitted", "right"),
        ("off by", "right"), title=title,
    )  # fmt: skip
    cost = cost_of(link)
    for point in link.points:
        fitted_s = cost.time_s(point.size_bytes)
        bounded = point.low_s is not None and point.high_s is not None
        drawn.add_row(
            _size(point.size_bytes),
            show_seconds(point.time_s),
            show_bounds(point.low_s or 0.0, point.high_s or 0.0) if bounded else _UNKNOWN,
            show_rate(bus_factor(link.ranks) * point.size_bytes / point.time_s),
            show_seconds(fitted_s),
            f"{100 * (fitted_s / point.time_s - 1):+.1f} %",
        )
    return drawn


def _lines(link: LinkRecord) -> Table:
    """The fitted lines; a rate is what the link carries in one direction, bytes of an all-reduce times 2(N-1)/N."""
    drawn = table("fitted", ("starts in", "right"), ("bus bandwidth", "right"), ("", "right"))
    fit = link.fit
    named = [("all sizes", fit.large)]
    if fit.break_bytes is not None:
        named = [(f"up to {_size(fit.break_bytes)}", fit.small), ("above", fit.large)]
    for name, line in named:
        rate = bus_factor(link.ranks) / line.s_per_byte if line.s_per_byte else None
        drawn.add_row(
            name,
            show_seconds(line.latency_s),
            _UNKNOWN if rate is None else show_rate(rate),
            "" if rate is None else f"{show_number(rate * BITS_PER_BYTE / 1e9)} Gb/s",
        )
    return drawn


def _size(size_bytes: float) -> str:
    """Sizes are powers of two, and so is their unit."""
    if size_bytes >= MIB:
        return f"{show_number(size_bytes / MIB)} MiB"
    return f"{show_number(size_bytes / KIB)} KiB"
