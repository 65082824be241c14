"""From what the catalog lists of a GPU to the device that a model of compute takes."""

from stallwise.errors import InputError
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute import Device

_CONSUMER = ("RTX2", "RTX3", "RTX4", "RTX5", "GTX", "TITAN")
_WORKSTATION = ("RTX2000Ada", "RTX3500Ada", "RTX4000Ada", "RTX4500Ada", "RTX5000Ada")
_LAPTOP = ("MaxQ", "Laptop", "QuadroT", "QuadroRTX3000", "RTXA3000", "RTX3500Ada")
# Before their fourth generation AMD's matrix units take FP32 at twice the vector rate.
_MATRIX_FP32 = {"CDNA": 2.0, "CDNA 2": 2.0}


def device_of(gpu: Gpu, precision: str) -> Device:
    """The device at `precision`: amp, fp16, bf16, fp32 (TF32 where the GPU has it), or `ieee` for FP32 without it."""
    if gpu.fp32_flop_per_s is None or gpu.memory_bytes_per_s is None:
        raise InputError(
            f"The catalog lists no FP32 rate or no memory bandwidth for {gpu.name}. Add them to your own gpus.csv."
        )
    return Device(
        name=gpu.name,
        architecture=f"{gpu.architecture or ''}{' 8.0' if gpu.compute_capability == '8.0' else ''}",
        matrix_flop_per_s=_matrix_flop_per_s(gpu, precision, gpu.fp32_flop_per_s),
        vector_flop_per_s=gpu.fp32_flop_per_s,
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


def _matrix_flop_per_s(gpu: Gpu, precision: str, fp32: float) -> float:
    if precision == "ieee":
        return fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision in ("fp32", "tf32"):
        return gpu.tf32_flop_per_s or fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision == "bf16" and gpu.bf16_flop_per_s:
        return gpu.bf16_flop_per_s
    # Autocast falls back on FP32 where halves are no faster.
    return max(gpu.fp16_flop_per_s or 0.0, fp32)
