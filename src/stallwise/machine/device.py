"""What the GPUs of a machine can do, measured in a process of its own (`-m stallwise.machine.device`).

    copies     pinned host memory to one GPU, to half of them, to all at once: each GPU has its own stream, so that they
               share the host's memory and PCIe as loaders' batches do (Stash's own micro-benchmark)
    ring       every GPU to its neighbour at once
    networks   samples/s of standard networks with their data in place; median over blocks with its 95 % interval

One JSON document goes to the output file; what fails is left out with a reason.

The standard networks are plain torch, so that a machine is measured by the same ones with and without torchvision:
ResNet-18 and -50 (He et al. 2016, with the stride in the 3 × 3), VGG-11 (Simonyan & Zisserman 2015) and an encoder of
BERT-base's size (12 blocks of 768, 12 heads; Devlin et al. 2019). Parameters are those of the published networks.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from stallwise.hardware.machine import CopyRecord, DeviceRecord, NetworkRecord, RingRecord
from stallwise.model.statistics.intervals import median_of_block_means
from stallwise.sentences import Sentence, sentence_document

_VOCABULARY, _LENGTH = 30_522, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardNetwork:
    """One network: its constructor, its batch size on a GPU and on a CPU, and one batch of its data."""

    name: str
    make: Callable[[], nn.Module]
    gpu_batch: int
    cpu_batch: int
    tokens: bool = False

    def batch(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random data of the right shape, on the device."""
        if self.tokens:
            tokens = torch.randint(0, _VOCABULARY, (size, _LENGTH), device=device)
            return tokens, torch.randint(0, 2, (size,), device=device)
        images = torch.randn(size, 3, 224, 224, device=device)
        return images, torch.randint(0, 1000, (size,), device=device)


class _Block(nn.Module):
    """A residual block: 3 × 3 twice, or 1 × 1, 3 × 3, 1 × 1 with four times the channels (`expansion` 4)."""

    def __init__(self, inside: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        out = width * expansion
        if expansion == 1:
            layers = [*_convolution(inside, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, out, 3, 1)]
        else:
            layers = [*_convolution(inside, width, 1, 1), nn.ReLU(inplace=True)]
            layers += [*_convolution(width, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, out, 1, 1)]
        self.body = nn.Sequential(*layers)
        same = stride == 1 and inside == out
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inside, out, 1, stride))
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add body and shortcut."""
        output: Tensor = self.last(self.body(x) + self.shortcut(x))
        return output


class _Encoder(nn.Module):
    """Tokens to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, 768)
        self.places = nn.Embedding(_LENGTH, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """The class of each sequence, read at its first token."""
        embedded: Tensor = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.blocks(embedded)[:, 0])
        return logits


def _convolution(inside: int, out: int, size: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inside, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)]


def _resnet(blocks: tuple[int, ...], expansion: int) -> nn.Module:
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for number in range(count):
            layers.append(_Block(inside, width, 2 if stage and not number else 1, expansion))
            inside = width * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def _vgg11() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width
        else:
            layers.append(nn.MaxPool2d(2, 2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 4096), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head, nn.Linear(4096, 1000))


STANDARD_NETWORKS = (
    StandardNetwork(name="resnet18", make=lambda: _resnet((2, 2, 2, 2), 1), gpu_batch=256, cpu_batch=4),
    StandardNetwork(name="resnet50", make=lambda: _resnet((3, 4, 6, 3), 4), gpu_batch=128, cpu_batch=4),
    StandardNetwork(name="vgg11", make=_vgg11, gpu_batch=128, cpu_batch=4),
    StandardNetwork(name="bert-base", make=_Encoder, gpu_batch=16, cpu_batch=1, tokens=True),
)


_COPY_BYTES = 256 * 2**20
_COPY_S = 0.6
_BLOCKS = 8

_T = TypeVar("_T")


def main() -> None:
    """Measure and write the JSON document."""
    parser = argparse.ArgumentParser(prog="python -m stallwise.machine.device")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network-time", type=float, default=8.0)
    parser.add_argument("--networks", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch, about this machine; the record says what matters
    record = measure(options.network_time, [name for name in options.networks.split(",") if name])
    options.out.write_bytes(msgspec.json.encode(record, enc_hook=sentence_document))


def measure(network_s: float, names: list[str]) -> DeviceRecord:
    """Measure copies, ring and networks, each network for `network_s` seconds."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    unknown: dict[str, Sentence] = {}
    none = Sentence("gpu.none", "there is no GPU")
    alone = Sentence("gpu.alone", "one GPU has no neighbour")
    copies = _tried(lambda: _copies(count), unknown, "copies", lacking=None if count else none)
    ring = _tried(lambda: _ring(count), unknown, "ring", lacking=none if not count else alone if count == 1 else None)
    networks = []
    for standard in STANDARD_NETWORKS:
        if names and standard.name not in names:
            continue
        _say(f"training {standard.name}")
        network = _tried(partial(_network, standard, network_s), unknown, standard.name)
        if network is not None:
            networks.append(network)
    return DeviceRecord(
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        copies=copies or (),
        ring=ring,
        networks=tuple(networks),
        unknown=unknown,
    )


def _tried(
    measure_it: Callable[[], _T], unknown: dict[str, Sentence], name: str, *, lacking: Sentence | None = None
) -> _T | None:
    """Measure; where something lacks or it fails, None, and the reason in `unknown`."""
    if lacking is not None:
        unknown[name] = lacking
        return None
    try:
        return measure_it()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        unknown[name] = Sentence("part.failed", (str(error).splitlines() or [type(error).__name__])[0][:200])
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _copies(count: int) -> tuple[CopyRecord, ...]:
    """Copy to one GPU, half of them, all of them."""
    records = []
    for gpus in sorted({1, max(1, count // 2), count}):
        _say(f"copying to {gpus} GPUs at once")
        records.append(_copy_to(gpus))
    return tuple(records)


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


def _network(standard: StandardNetwork, limit_s: float) -> NetworkRecord:
    """Train on one device with the data in place."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    low_precision = gpu and torch.cuda.is_bf16_supported()
    torch.manual_seed(0)
    model = standard.make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    size = standard.gpu_batch if gpu else standard.cpu_batch
    data, target = standard.batch(size, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
            loss = nn.functional.cross_entropy(model(data), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    steps_s = _blocks(step, device, limit_s)
    step_time = median_of_block_means(steps_s)
    parameters = sum(p.numel() for p in model.parameters())
    return NetworkRecord(
        name=standard.name,
        precision="bf16" if low_precision else "fp32",
        batch=size,
        samples_per_s=size / step_time.value,
        low_samples_per_s=size / step_time.high if step_time.is_bounded else None,
        high_samples_per_s=size / step_time.low if step_time.is_bounded and step_time.low > 0 else None,
        step_s=step_time.value,
        parameters=parameters,
        gradient_bytes=4 * parameters,
        device=torch.cuda.get_device_name(0) if gpu else "processor",
    )


def _blocks(step: Callable[[], None], device: torch.device, limit_s: float) -> list[float]:
    """Mean step time of each of eight blocks, after a quarter of the time for warming up; seconds."""

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
    """Time single steps, on a machine too slow for blocks; at least one."""
    steps_s = [timed(1)]
    while time.perf_counter() < end_s:
        steps_s.append(timed(1))
    return steps_s


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
