"""From what the catalog lists of a GPU to the device that a model of compute takes."""

import re
from functools import cache

from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute import Device
from stallwise.units import GIB

_CONSUMER = ("RTX2", "RTX3", "RTX4", "RTX5", "GTX", "TITAN")
_WORKSTATION = ("RTX2000Ada", "RTX3500Ada", "RTX4000Ada", "RTX4500Ada", "RTX5000Ada")
_LAPTOP = ("MaxQ", "Laptop", "QuadroT", "QuadroRTX3000", "RTXA3000", "RTX3500Ada")
_LARGE_DIES = ("8.0", "10.0")  # of Ampere and Blackwell
# Before their fourth generation AMD's matrix units take FP32 at twice the vector rate.
_MATRIX_FP32 = {"CDNA": 2.0, "CDNA 2": 2.0}

# Kepler has 192 lanes to a multiprocessor, of which its schedulers feed 128 unless a warp has two instructions that do
# not wait for each other (NVIDIA's Kepler tuning guide); products seldom have.
_FED = {"Kepler": 2 / 3}

# Words that vendors, drivers and shops add.
_NOISE = re.compile(
    r"\b(NVIDIA|AMD|INSTINCT|RADEON|TESLA|GEFORCE|GPU|GENERATION|BLACKWELL|SERVER|EDITION|CORPORATION|TENSOR|CORE)\b|"
    r"\bHBM\d?E?\b"
)
_FORM = re.compile(r"(?:SXM|PCIE|NVL)\d?")
_MEMORY = re.compile(r"(\d+)\s*GI?B")


def find_gpu(name: str, catalog: Catalog) -> Gpu | None:
    """The GPU that any spelling means: `NVIDIA H100-SXM5-80GB`, `a100 pcie 80gb`; None where none of the catalog does.

    Base name, form and memory are told apart; what a name leaves open is taken as the catalog lists it first.
    """
    base, form, memory = _parts(name)
    for gpu in catalog.gpus.values():
        its_base, its_form, its_memory = _parts(gpu.name)
        if base and base == its_base and form in ("", its_form) and memory in (0, its_memory or _gib(gpu)):
            return gpu
    return catalog.gpu_of_label(base) if base and not form and not memory else None


@cache
def _parts(name: str) -> tuple[str, str, int]:
    """`NVIDIA A100-SXM4-80GB` is (`A100`, `SXM`, 80)."""
    upper = re.sub(r"[-_/(),.]+", " ", name.upper())
    upper = upper.replace("MAX Q", "MAXQ")
    upper = upper.replace("WORKSTATION", "" if "MAXQ" in upper else "WS")
    text = _NOISE.sub(" ", upper)
    memory, form = _MEMORY.search(text), _FORM.search(text)
    base = _FORM.sub(" ", _MEMORY.sub(" ", text))
    return re.sub(r"\s+", "", base), form[0].rstrip("0123456789") if form else "", int(memory[1]) if memory else 0


def _gib(gpu: Gpu) -> int:
    return round(gpu.memory_bytes / GIB)


def device_of(gpu: Gpu, precision: str) -> Device:
    """The device at `precision`: amp, fp16, bf16, fp32 (TF32 where the GPU has it), or `ieee` for FP32 without it."""
    if gpu.fp32_flop_per_s is None or gpu.memory_bytes_per_s is None:
        raise InputError(
            f"The catalog lists no FP32 rate or no memory bandwidth for {gpu.name}. Add them to your own gpus.csv."
        )
    fp32 = gpu.fp32_flop_per_s * _FED.get(gpu.architecture or "", 1.0)
    return Device(
        name=gpu.name,
        architecture=architecture_of(gpu),
        matrix_flop_per_s=_matrix_flop_per_s(gpu, precision, fp32),
        vector_flop_per_s=fp32,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        memory_bytes=gpu.memory_bytes,
        tdp_w=gpu.tdp_w or 250.0,
        processors=gpu.sm_count,
        year=gpu.year,
        consumer=gpu.name.startswith(_CONSUMER) and gpu.name not in _WORKSTATION,
        laptop=any(word in gpu.name for word in _LAPTOP) and not gpu.name.startswith("RTXPRO"),
        link_bytes_per_s=gpu.nvlink_bytes_per_s or 0.0,
        bridge=gpu.nvlink_bridge_gpus is not None,
        host_bytes_per_s=(gpu.host_link.bytes_per_s if gpu.host_link else None) or 16e9,
    )


def architecture_of(gpu: Gpu) -> str:
    """The generation; the large dies of Ampere and Blackwell apart from those that also draw pictures."""
    apart = f" {gpu.compute_capability}" if gpu.compute_capability in _LARGE_DIES else ""
    return f"{gpu.architecture or ''}{apart}"


def _matrix_flop_per_s(gpu: Gpu, precision: str, fp32: float) -> float:
    if precision == "ieee":
        return fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision in ("fp32", "tf32"):
        return gpu.tf32_flop_per_s or fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision == "bf16" and gpu.bf16_flop_per_s:
        return gpu.bf16_flop_per_s
    # Autocast falls back on FP32 where halves are no faster.
    return max(gpu.fp16_flop_per_s or 0.0, fp32)
