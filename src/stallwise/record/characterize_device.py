"""What the GPUs of a machine can do, measured in a process of its own (`-m stallwise.record.characterize_device`).

    copies     pinned host memory to one GPU, to half of them, to all at once: each GPU has its own stream, so that they
               share the host's memory and PCIe as loaders' batches do (Stash's own micro-benchmark)
    ring       every GPU to its neighbour at once
    networks   samples/s of standard networks with their data in place; median over blocks with its 95 % interval

One JSON document goes to the file named; what fails is left out with a reason, and the rest goes on.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import nn

from stallwise.hardware.machine import CopyRecord, DeviceRecord, NetworkRecord, RingRecord
from stallwise.model.intervals import median_of_block_means
from stallwise.record.standard_networks import STANDARD, Standard

_COPY_BYTES = 256 * 2**20
_COPY_S = 0.6
_BLOCKS = 8

_T = TypeVar("_T")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="characterize_device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network-time", type=float, default=8.0)
    parser.add_argument("--networks", default="")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch, about this machine; the record says what matters
    record = measure(asked.network_time, [name for name in asked.networks.split(",") if name])
    asked.out.write_bytes(msgspec.json.encode(record))


def measure(network_s: float, names: list[str]) -> DeviceRecord:
    """Everything, `network_s` seconds for each network."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    unknown: dict[str, str] = {}
    none, alone = "there is no GPU", "one GPU has no neighbour"
    copies = _tried(lambda: _copies(count), unknown, "copies", needs=count >= 1, lacking=none)
    ring = _tried(lambda: _ring(count), unknown, "ring", needs=count >= 2, lacking=alone if count else none)
    networks = []
    for standard in STANDARD:
        if names and standard.name not in names:
            continue
        _say(f"training {standard.name}")
        found = _tried(partial(_network, standard, network_s), unknown, standard.name, needs=True, lacking="")
        if found is not None:
            networks.append(found)
    return DeviceRecord(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        copies=copies or (),
        ring=ring,
        networks=tuple(networks),
        unknown=unknown,
    )


def _tried(measure_it: Callable[[], _T], unknown: dict[str, str], name: str, *, needs: bool, lacking: str) -> _T | None:
    if not needs:
        unknown[name] = lacking
        return None
    try:
        return measure_it()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        unknown[name] = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _copies(count: int) -> tuple[CopyRecord, ...]:
    """One GPU, half of them, all of them."""
    found = []
    for gpus in sorted({1, max(1, count // 2), count}):
        _say(f"copying to {gpus} GPUs at once")
        found.append(_copy_to(gpus))
    return tuple(found)


def _copy_to(gpus: int) -> CopyRecord:
    sources = [torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(gpus)]
    targets = [torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{i}") for i in range(gpus)]
    rates = _at_once([(source, target) for source, target in zip(sources, targets, strict=True)])
    return CopyRecord(
        gpus=gpus,
        each_bytes_per_s=sum(rates) / gpus,
        slowest_bytes_per_s=min(rates),
        all_bytes_per_s=sum(rates),
    )


def _ring(count: int) -> RingRecord:
    _say(f"sending round a ring of {count} GPUs")
    buffers = [torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{i}") for i in range(count)]
    into = [torch.empty(_COPY_BYTES, dtype=torch.uint8, device=f"cuda:{(i + 1) % count}") for i in range(count)]
    rates = _at_once(list(zip(buffers, into, strict=True)))
    return RingRecord(gpus=count, slowest_bytes_per_s=min(rates), mean_bytes_per_s=sum(rates) / count)


def _at_once(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Bytes/s of copies that all run at the same time, each on its target's stream, for about half a second."""
    devices = [target.device for _, target in pairs]
    rounds = 1
    while True:
        streams: list[Any] = [torch.cuda.Stream(device) for device in devices]  # type: ignore[no-untyped-call]
        events: list[tuple[Any, Any]] = [(_event(), _event()) for _ in pairs]
        for device in set(devices):
            torch.cuda.synchronize(device)
        began_s = time.perf_counter()
        for _, stream, (begin, _) in zip(pairs, streams, events, strict=True):
            begin.record(stream)
        for _ in range(rounds):
            for (source, target), stream in zip(pairs, streams, strict=True):
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
        for stream, (_, end) in zip(streams, events, strict=True):
            end.record(stream)
        for device in set(devices):
            torch.cuda.synchronize(device)
        if time.perf_counter() - began_s >= _COPY_S:
            moved = rounds * _COPY_BYTES
            return [moved / (begin.elapsed_time(end) / 1e3) for begin, end in events]
        rounds *= 2


def _network(standard: Standard, limit_s: float) -> NetworkRecord:
    """Forward, backward and update on one device, data in place."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    halved = gpu and torch.cuda.is_bf16_supported()
    torch.manual_seed(0)
    model = standard.make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    size = standard.gpu_batch if gpu else standard.cpu_batch
    data, target = standard.batch(size, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=halved):
            loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    steps_s = _blocks(step, device, limit_s)
    found = median_of_block_means(steps_s)
    parameters = sum(p.numel() for p in model.parameters())
    return NetworkRecord(
        name=standard.name,
        precision="bf16" if halved else "fp32",
        batch=size,
        samples_per_s=size / found.value,
        low_samples_per_s=size / found.high if found.is_bounded else None,
        high_samples_per_s=size / found.low if found.is_bounded and found.low > 0 else None,
        step_s=found.value,
        parameters=parameters,
        gradient_bytes=4 * parameters,
        device=torch.cuda.get_device_name(0) if gpu else "processor",
    )


def _blocks(step: Callable[[], None], device: torch.device, limit_s: float) -> list[float]:
    """Mean step of each of eight blocks, after a quarter of the time for warming up."""

    def timed(count: int) -> float:
        began_s = time.perf_counter()
        for _ in range(count):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - began_s) / count

    timed(1)  # libraries choose their kernels
    begin_s = time.perf_counter()
    one_s = timed(1)
    if one_s > limit_s / _BLOCKS:
        return [one_s, *_until(begin_s + limit_s, timed)]
    while time.perf_counter() - begin_s < limit_s / 4:
        one_s = timed(2)
    per_block = max(1, int(0.75 * limit_s / _BLOCKS / one_s))
    return [timed(per_block) for _ in range(_BLOCKS)]


def _until(end_s: float, timed: Callable[[int], float]) -> list[float]:
    """Single steps, on a machine too slow for blocks; one at least."""
    found = [timed(1)]
    while time.perf_counter() < end_s:
        found.append(timed(1))
    return found


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _say(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
