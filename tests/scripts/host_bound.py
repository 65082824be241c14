"""A training loop without a loader whose host work is known: a stack of small layers, delays, synchronisations.

    python host_bound.py --width 256 --layers 24 --delay-ms 5

With `--bare S` it trains for S seconds and prints the mean step in milliseconds; `--graph` replays the same step from
a CUDA graph, which leaves the device's work alone.
"""

import argparse
import statistics
import time

import torch
from torch import nn


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="the host sleeps so long between two steps")
    parser.add_argument("--data-ms", type=float, default=0.0, help="get_batch takes so long")
    parser.add_argument("--item", type=int, default=0, help="read the loss every so many steps")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--bare", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    return parser.parse_args()


def get_batch(options: argparse.Namespace, device: str) -> torch.Tensor:
    if options.data_ms:
        time.sleep(options.data_ms / 1e3)
    return torch.randn(options.batch, options.width, device=device)


def main() -> None:
    options = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(options.width, options.width), nn.GELU()) for _ in range(options.layers)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False, fused=False)
    graph = captured(model, optimizer, options, device) if options.graph else None
    times, began = [], time.perf_counter()
    for step in range(options.steps):
        start = time.perf_counter()
        if graph is not None:
            graph.replay()
        else:
            batch = get_batch(options, device)
            loss = model(batch).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if options.item and step % options.item == 0:
                loss.item()
            if options.delay_ms:
                time.sleep(options.delay_ms / 1e3)
        times.append(time.perf_counter() - start)
        if options.bare and time.perf_counter() - began > options.bare:
            break
    if options.bare:
        report(times, began, device)


def captured(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace, device: str):
    """One step as a CUDA graph."""
    batch = get_batch(options, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def report(times: list[float], began: float, device: str) -> None:
    """The mean over the second half of the steps, the device's queue emptied at the end."""
    if device == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - began
    late = sum(times[: len(times) // 10])
    mean = (spent - late) / (len(times) - len(times) // 10)
    print(f"bare {1e3 * mean:.4f} median {1e3 * statistics.median(times):.4f} steps {len(times)}")


if __name__ == "__main__":
    main()
