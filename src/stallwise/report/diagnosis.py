"""The doctor's page."""

from rich.console import Group, RenderableType
from rich.text import Text

from stallwise.record.diagnosis import Diagnosis
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_memory


def draw(found: Diagnosis) -> RenderableType:
    """What the machine has, then what works on it."""
    return Group(_machine(found), Text(), _features(found))


def _machine(found: Diagnosis) -> RenderableType:
    rows = table("this machine", "")
    cpu = found.cpu
    cores = f"{cpu.usable:g} of {cpu.logical} usable" if cpu.limited else f"{cpu.logical}"
    rows.add_row("Stallwise", found.stallwise_version)
    rows.add_row("Python", found.python)
    rows.add_row("system", found.system)
    rows.add_row("cores", f"{cores} ({cpu.model or 'unknown model'})")
    rows.add_row("memory", show_memory(found.memory_bytes))
    rows.add_row("disk free here", show_bytes(found.disk_free_bytes))
    for gpu in found.gpus:
        link = f", PCIe gen{gpu.pcie_generation} x{gpu.pcie_lanes}" if gpu.pcie_generation and gpu.pcie_lanes else ""
        rows.add_row(f"GPU {gpu.index}", f"{gpu.name}, {show_memory(gpu.memory_bytes)}{link}, driver {gpu.driver}")
    if not found.gpus:
        rows.add_row("GPU", "none")
    if len(found.gpus) > 1:
        rows.add_row("GPU link", {True: "NVLink", False: "PCIe", None: "unknown"}[found.nvlink])
    for network in found.networks:
        rate = f"{network.bit_per_s / 1e9:g} Gb/s" if network.bit_per_s else "rate unknown"
        rows.add_row("network", f"{network.name}, {rate}")
    torch = found.torch
    build = (
        "not importable" if torch is None else f"{torch.version}, {'CUDA ' + torch.cuda if torch.cuda else 'CPU build'}"
    )
    rows.add_row("torch", build)
    if torch is not None:
        rows.add_row("back ends", ", ".join(torch.backends) or "none")
    rows.add_row("Slurm", found.slurm or "none")
    return rows


def _features(found: Diagnosis) -> RenderableType:
    rows = table("", "feature")
    rows.add_column("what is missing, what to do")
    for feature in found.features:
        mark = Text("yes", style="green") if feature.ready else Text("no", style="yellow")
        rows.add_row(mark, feature.name, "" if feature.ready else Text(f"{feature.missing}: {feature.advice}"))
    return rows
