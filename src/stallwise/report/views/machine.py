"""A machine: its record, what was characterised, machines side by side, and the diagnosis of doctor."""

from collections.abc import Iterator, Sequence

from stallwise.analysis.compute import cost_of
from stallwise.cloud.study import MachineStudy
from stallwise.hardware.machine import HostRecord, LinkRecord, MachineRecord
from stallwise.machine.doctor import Diagnosis
from stallwise.model.exchange.collectives import bus_factor
from stallwise.report.format import (
    plural,
    show_bit_rate,
    show_bounds,
    show_bytes,
    show_count,
    show_memory,
    show_number,
    show_percent,
    show_rate,
    show_seconds,
    show_signed_percent,
    show_usd,
)
from stallwise.report.view import (
    Cell,
    Line,
    Notes,
    Paragraph,
    Part,
    PartColumn,
    Span,
    TablePart,
    View,
    facts,
    number,
    table,
    view,
)

_UNKNOWN = "unknown"
_WHERE = {"inside": "inside a node", "between": "between nodes, one rank each", "all": "all ranks of all nodes"}


def draw_machine(record: MachineRecord) -> View:
    """Where it was measured, then a table and the fitted lines per link."""
    return view(_title(record), *_machine(record), rule=False)


def _title(record: MachineRecord) -> str:
    return f"machine record of {record.created:%Y-%m-%d %H:%M} UTC with Stallwise {record.stallwise_version}"


def _machine(record: MachineRecord) -> Iterator[Part]:
    for host in record.hosts:
        yield Paragraph(_host(host), "dim")
    for link in record.links:
        yield _points(link)
        yield _lines(link)
    yield Notes("notes", tuple(record.notes))


def _host(host: HostRecord) -> str:
    gpus = ", ".join(f"{host.gpus.count(name)} × {name}" for name in dict.fromkeys(host.gpus)) or "no GPU"
    memory = _UNKNOWN if host.memory_bytes is None else show_memory(host.memory_bytes)
    return f"node {host.node}: {gpus}; {host.cpu_model or 'CPU unknown'}, cores: {host.cores}, memory: {memory}"


def _points(link: LinkRecord) -> TablePart:
    cost = cost_of(link)
    rows = []
    for point in link.points:
        fitted_s = cost.time_s(point.size_bytes)
        bounded = point.low_s is not None and point.high_s is not None
        rows.append(
            (
                show_memory(point.size_bytes),
                show_seconds(point.time_s),
                show_bounds(point.low_s or 0.0, point.high_s or 0.0) if bounded else _UNKNOWN,
                show_rate(bus_factor(link.ranks) * point.size_bytes / point.time_s),
                show_seconds(fitted_s),
                show_signed_percent(fitted_s / point.time_s - 1),
            )
        )
    columns = (
        number("size"),
        number("time"),
        PartColumn("95 % interval", priority=1),
        number("bus bandwidth"),
        number("fitted", 3),
        number("off by", 2),
    )
    title = f"{link.collective}, {_WHERE[link.scope]}: {plural(link.ranks, 'rank')} over {link.backend}"
    return table(columns, rows, title)


def _lines(link: LinkRecord) -> TablePart:
    """The fitted lines; a rate is what the link carries in one direction, bytes of an all-reduce times 2(N-1)/N."""
    fit = link.fit
    named = [("all sizes", fit.large)]
    if fit.break_bytes is not None:
        named = [(f"up to {show_memory(fit.break_bytes)}", fit.small), ("above", fit.large)]
    rows = []
    for name, line in named:
        rate = bus_factor(link.ranks) / line.s_per_byte if line.s_per_byte else None
        shown = (_UNKNOWN, "") if rate is None else (show_rate(rate), show_bit_rate(rate))
        rows.append((name, show_seconds(line.latency_s), *shown))
    return table(("fitted", number("starts in"), number("bus bandwidth"), number("")), rows)


def draw_characterized(record: MachineRecord) -> View:
    """What was measured, then what could not be."""
    networks = [_networks(record)] if record.networks else []
    return view(_title(record), *_machine(record), facts(_characterized(record)), *networks, rule=False)


def _characterized(record: MachineRecord) -> Iterator[tuple[str, Line]]:
    for copy in record.copies:
        gpus = "1 GPU" if copy.gpus == 1 else f"{copy.gpus} GPUs at once"
        each, together = show_rate(copy.slowest_bytes_per_s), show_rate(copy.all_bytes_per_s)
        yield "host to GPU", f"{gpus}: {each} each, {together} in all"
    if record.ring is not None:
        yield "GPU to GPU", f"ring of {record.ring.gpus}: {show_rate(record.ring.slowest_bytes_per_s)}"
    for one in record.storage:
        note = f"; {one.note}" if one.note else ""
        yield one.kind, f"{show_rate(one.bytes_per_s)} with {plural(one.readers, 'reader')}{note}"
    if record.decode is not None:
        decode = record.decode
        yield (
            "decode",
            f"{show_number(decode.per_core_samples_per_s)} images/s per core with {decode.cores} at work, "
            f"{show_number(decode.one_core_samples_per_s)} alone; {decode.pixels[0]} × {decode.pixels[1]} JPEG of "
            f"{show_bytes(decode.file_bytes)}, {decode.library}",
        )
    yield from (("unknown", Span(f"{name}: {why}", "dim")) for name, why in record.unknown.items())


def _networks(record: MachineRecord) -> TablePart:
    rows = []
    for network in record.networks:
        low, high = network.low_samples_per_s, network.high_samples_per_s
        bounds = _UNKNOWN if low is None or high is None else f"{show_number(low)} to {show_number(high)}"
        rows.append(
            (
                network.name,
                network.precision,
                str(network.batch),
                show_number(network.samples_per_s),
                Cell(bounds, "dim"),
                show_seconds(network.step_s),
            )
        )
    columns = (
        "network",
        PartColumn("precision", priority=2),
        number("batch", 1),
        number("G, samples/s"),
        PartColumn("95 % interval", priority=3),
        number("step"),
    )
    return table(columns, rows, f"standard networks on one {record.networks[0].device}")


def draw_study(rows: Sequence[MachineStudy], samples: float) -> View:
    """Stall, epoch time and cost, machine by machine for every network."""
    shown = []
    last = ""
    for row in rows:
        shown.append(
            (
                row.network if row.network != last else "",
                row.machine,
                str(row.gpus),
                show_number(row.samples_per_s),
                *(_share(share) for share in (row.interconnect, row.prep, row.fetch)),
                show_seconds(row.epoch_s),
                "?" if row.first_epoch_s is None else show_seconds(row.first_epoch_s),
                "?" if row.usd is None else show_usd(row.usd),
                row.binds,
            )
        )
        last = row.network
    columns = (
        "network", "machine", number("GPUs", 2), number("samples/s"), number("interconnect", 4), number("prep", 5),
        number("fetch", 6), number("epoch"), number("first", 3), number("cost"), PartColumn("bound by", priority=1),
    )  # fmt: skip
    title = f"an epoch of {show_count(samples)} samples on all GPUs; stalls by Stash's denominators"
    return view("", table(columns, shown, title, "?: not measured, or no price given"))


def _share(share: float | None) -> str:
    return "?" if share is None else show_percent(share)


def draw_diagnosis(diagnosis: Diagnosis) -> View:
    """What the machine has, then what works on it."""
    return view("", facts(_diagnosed(diagnosis), "this machine", label_width=16), *_features(diagnosis))


def _diagnosed(diagnosis: Diagnosis) -> Iterator[tuple[str, Line]]:
    cpu, torch = diagnosis.cpu, diagnosis.torch
    yield "Stallwise", diagnosis.stallwise_version
    yield "system", diagnosis.system
    cores = f"{show_number(cpu.usable)} of {cpu.logical} usable" if cpu.limited else f"{cpu.logical}"
    yield "cores", f"{cores} ({cpu.model or 'unknown model'})"
    yield "memory", show_memory(diagnosis.memory_bytes)
    yield "disk free here", show_bytes(diagnosis.disk_free_bytes)
    for gpu in diagnosis.gpus:
        link = f", PCIe gen{gpu.pcie_generation} x{gpu.pcie_lanes}" if gpu.pcie_generation and gpu.pcie_lanes else ""
        yield f"GPU {gpu.index}", f"{gpu.name}, {show_memory(gpu.memory_bytes)}{link}, driver {gpu.driver}"
    if not diagnosis.gpus:
        yield "GPU", "none"
    if len(diagnosis.gpus) > 1:
        yield "GPU link", {True: "NVLink", False: "PCIe", None: _UNKNOWN}[diagnosis.nvlink]
    for network in diagnosis.networks:
        rate = f"{show_bit_rate(network.bit_per_s / 8)}" if network.bit_per_s else "rate unknown"
        yield "network", f"{network.name}, {rate}"
    if torch is None:
        yield "torch", "not importable"
    else:
        yield "torch", f"{torch.version}, {'CUDA ' + torch.cuda if torch.cuda else 'CPU build'}"
        yield "back ends", ", ".join(torch.backends) or "none"
    yield "Slurm", diagnosis.slurm or "none"


def _features(diagnosis: Diagnosis) -> Iterator[Part]:
    rows = (
        (
            Cell("yes", "good") if feature.ready else Cell("no", "warn"),
            feature.name,
            "" if feature.ready else f"{feature.missing}: {feature.advice}",
        )
        for feature in diagnosis.features
    )
    columns = ("", PartColumn("feature", wrap=True), PartColumn("what is missing, what to do", wrap=True))
    yield table(columns, rows)
