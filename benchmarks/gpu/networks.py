"""Training steps of named networks, batches on the device: python -m benchmarks.gpu.networks resnet50 --batch 32

The loop that the measurements of the host's part and of predictions train. Prints one JSON line with the seconds of a
step: the median of blocks. `--graph` captures the same step in a CUDA graph and replays it: what is left is the
device's own work. `--delay-ms` sleeps between steps, a delay of the host that is known. `--several` measures jobs in
one process, which imports torch once.
"""

import argparse
import contextlib
import fcntl
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

IMAGES = ("resnet18", "resnet50", "mobilenet_v3_large", "efficientnet_b0", "vit_b_16", "swin_t")
LENGTHS = {"bert_base": 128, "gpt2": 512, "llama_1b": 512}
"""Tokens of a sample."""
PRECISIONS = ("fp32", "tf32", "bf16")
_PIXELS, _CLASSES = 224, 1000
_BLOCK_S = 0.15  # length of a block; a step is the mean of its block, the answer the median of blocks


@dataclass(frozen=True)
class Job:
    """One cell of the grid of networks, batches and settings."""

    network: str
    batch: int
    precision: str = "bf16"
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.network} × {self.batch}, {self.precision}, {'compiled' if self.compiled else 'eager'}"


def network_of(name: str) -> nn.Module:
    """The network with random weights; nothing is downloaded."""
    if name in IMAGES:
        from torchvision import models

        network: nn.Module = getattr(models, name)(weights=None, num_classes=_CLASSES)
        return network
    if name == "tiny":  # for machines without a GPU
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * _PIXELS**2, 8), nn.ReLU(), nn.Linear(8, _CLASSES))
    import transformers as hf

    built: nn.Module
    if name == "bert_base":
        built = hf.BertForSequenceClassification(hf.BertConfig())
    elif name == "gpt2":
        built = hf.GPT2LMHeadModel(hf.GPT2Config())
    elif name == "llama_1b":
        built = hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_attention_heads=32,
                num_key_value_heads=8,
                vocab_size=128256,
                tie_word_embeddings=True,
            )
        )
    else:
        raise SystemExit(f"no network is called {name}")
    return built


class Training:
    """A network with its optimizer and one batch; `step` trains once, `as_graph` gives the same step as a replay."""

    def __init__(self, job: Job, device: str, *, capturable: bool = False) -> None:
        # fp32 is FP32 alone: torch lets convolutions run in TF32 unless it is told not to.
        torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
        torch.manual_seed(0)
        self.job, self.device = job, device
        with torch.device(device):  # a billion random numbers take a GPU milliseconds
            self.network = network_of(job.network).train()
        self.tokens = job.network in LENGTHS
        self.inputs, self.targets = self._batch()
        parameters = list(self.network.parameters())
        self.optimizer: torch.optim.Optimizer
        if job.network in (*IMAGES[:4], "tiny"):
            self.optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-5, capturable=capturable)
        self.compute: Callable[..., torch.Tensor] = torch.compile(self._loss) if job.compiled else self._loss

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.tokens:
            shape = (self.job.batch, LENGTHS[self.job.network])
            ids = torch.randint(0, 30000, shape, device=self.device)
            labels = torch.zeros(self.job.batch, dtype=torch.long, device=self.device)
            return ids, labels if self.job.network == "bert_base" else ids
        images = torch.randn(self.job.batch, 3, _PIXELS, _PIXELS, device=self.device)
        return images, torch.randint(0, _CLASSES, (self.job.batch,), device=self.device)

    def _loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.job.precision == "bf16"):
            if self.tokens:
                loss: torch.Tensor = self.network(input_ids=inputs, labels=targets).loss
                return loss
            return nn.functional.cross_entropy(self.network(inputs), targets)

    def step(self) -> None:
        """One training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.compute(self.inputs, self.targets).backward()
        self.optimizer.step()

    def as_graph(self) -> Callable[[], None]:
        """Capture the step (PyTorch's own recipe: warm up on a side stream, then capture)."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def step_s(step: Callable[[], None], device: str, seconds: float, delay_s: float = 0.0) -> float:
    """Seconds of a step after warming up: the median of blocks."""

    def block(count: int) -> float:
        _wait(device)
        begin = time.perf_counter()
        for _ in range(count):
            step()
            if delay_s:
                time.sleep(delay_s)
        _wait(device)
        return (time.perf_counter() - begin) / count

    for _ in range(4):
        step()
    count = max(2, round(_BLOCK_S / max(block(3), 1e-5)))
    blocks, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(blocks) < 3:
        blocks.append(block(count))
    return statistics.median(blocks)


@dataclass(frozen=True)
class Anatomy:
    """What one step consists of."""

    host_s: float
    """Until the host has launched everything."""
    kernel_s: float
    """The device's kernels and copies, summed."""
    kernels: int


def anatomy(step: Callable[[], None], device: str) -> Anatomy:
    """Look at a few steps: without a profiler for the host's time, with one for the kernels."""
    hosts = []
    for _ in range(5):
        _wait(device)
        begin = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - begin)
    _wait(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        _wait(device)
    kernels = [one for one in profiler.events() or () if one.device_type == torch.autograd.DeviceType.CUDA]
    return Anatomy(statistics.median(hosts), sum(one.time_range.elapsed_us() for one in kernels) / 1e6, len(kernels))


def measure_several(jobs: list[Job], device: str, seconds: float, gate: Path | None) -> None:
    """Measure jobs in turn and print a JSON line for each; with a gate, warm up, say so, and measure while holding it.

    Processes that compile wait at the gate, a file that is locked, so that each is measured alone.
    """
    for job in jobs:
        row: dict[str, object] = {"job": [job.network, job.batch, job.precision, job.compiled]}
        try:
            training = Training(job, device)
            step_s(training.step, device, 0.0)
            torch.cuda.empty_cache()
            if gate:
                print(json.dumps({"ready": row["job"]}), flush=True)
            with contextlib.ExitStack() as alone:
                if gate:
                    fcntl.flock(alone.enter_context(gate.open()), fcntl.LOCK_EX)
                row["step_s"] = step_s(training.step, device, seconds)
                if device == "cuda":
                    row |= vars(anatomy(training.step, device))
                del training
                torch.cuda.empty_cache()
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[-300:]
        print(json.dumps(row), flush=True)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", nargs="?", default="resnet50")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--capturable", action="store_true", help="the optimizer that a graph can hold")
    parser.add_argument("--several", help="jobs as JSON: [[network, batch, precision, compiled], ...]")
    parser.add_argument("--gate", type=Path, help="a file; measure only while holding its lock")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0, help="measure for so long and print; else train on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.several:
        jobs = [Job(*one) for one in json.loads(options.several)]
        measure_several(jobs, options.device, options.seconds or 1.0, options.gate)
        return
    job = Job(options.network, options.batch, options.precision, options.compiled)
    training = Training(job, options.device, capturable=options.capturable or options.graph)
    step, delay_s = training.as_graph() if options.graph else training.step, options.delay_ms / 1e3
    if options.seconds:
        print(json.dumps({"step_s": step_s(step, options.device, options.seconds, delay_s)}), flush=True)
        return
    end = time.monotonic() + 120  # what profiles it ends it earlier
    while time.monotonic() < end:
        step()
        if delay_s:
            time.sleep(delay_s)


if __name__ == "__main__":
    main()
