"""Small Kineto traces with known answers: steps of one millisecond, all times in microseconds.

    0      100      120       320 330        350     450 460  480     580          600        800  820    880    1000
    loader │        │ forward │   │ backward │ first │ ▼ ... │ second │ ▼ ...      │ all-reduce │  │ update│      │

The update is asked for while the all-reduce runs, then the loop waits for the device. A rank that is `late_us` late
computes its second gradient longer, so its all-reduce begins later and ends with the others'.
"""

import gzip
import json
from pathlib import Path
from typing import Any

STEP_US = 1000
FIRST_STEP = 7
HOST, DEVICE = 100, 0
Event = dict[str, Any]


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    """One complete event."""
    return {"ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, launch: float, ts: float, dur: float, number: int, stream: int = 7, **args: Any) -> list[Event]:
    """A kernel and the call that launched it."""
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return [
        event("cudaLaunchKernel", "cuda_runtime", launch, 3, correlation=number),
        event(name, category, ts, dur, tid=stream, stream=stream, correlation=number, **args),
    ]


def step_events(number: int, begin: float, late_us: float = 0, *, exchange: bool = True) -> list[Event]:
    """One step as drawn above."""
    c = 100 * (number + 1)
    found = [
        event(f"ProfilerStep#{FIRST_STEP + number}", "user_annotation", begin, STEP_US),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", begin, 100),
        *kernel("gemm_forward", begin + 110, begin + 120, 200, c),
        event("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", begin + 330, 100, tid=2),
        *kernel("gemm_backward_first", begin + 340, begin + 350, 100, c + 1),
        _gradient(begin + 460, [1000]),
        event("autograd::engine::evaluate_function: MulBackward0", "cpu_op", begin + 430, 170, tid=2),
        *kernel("gemm_backward_second", begin + 470, begin + 480, 100 + late_us, c + 2),
        _gradient(begin + 585, [10, 20]),
        event("Optimizer.step#SGD.step", "user_annotation", begin + 700, 90),
        *kernel("sgd", begin + 705, begin + 820, 60, c + 4),
        event("cudaStreamSynchronize", "cuda_runtime", begin + 800, 85, correlation=c + 5),
    ]
    if exchange:
        sizes = {"Input Dims": [[1200]], "Input type": ["float"]}
        found.append(event("nccl:all_reduce", "user_annotation", begin + 590, 9, tid=2, **sizes))
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        found += kernel(name, begin + 592, begin + 600 + late_us, 200 - late_us, c + 3, stream=20)
    return found


def _gradient(ts: float, shape: list[int]) -> Event:
    shapes = {"Input Dims": [shape], "Input type": ["float"]}
    return event("torch::autograd::AccumulateGrad", "cpu_op", ts, 5, tid=2, **shapes)


def document(
    rank: int | None = 0, world_size: int = 2, steps: int = 3, *, late_us: float = 0, clock_us: float = 1e6
) -> dict[str, Any]:
    """The whole trace of a rank whose clock shows `clock_us` at its first step."""
    events = [{"ph": "M", "name": "process_name", "pid": HOST, "ts": clock_us, "args": {"name": "python"}}]
    for number in range(steps):
        events += step_events(number, clock_us + number * STEP_US, late_us, exchange=world_size > 1)
    info = {"backend": "nccl", "world_size": world_size} | ({} if rank is None else {"rank": rank})
    devices = [{"id": i, "name": "NVIDIA A100-SXM4-80GB"} for i in range(world_size)]
    return {"schemaVersion": 1, "deviceProperties": devices, "distributedInfo": info, "traceEvents": events}


def write_trace(path: Path, content: dict[str, Any]) -> Path:
    """As JSON, packed where the name ends in .gz."""
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
