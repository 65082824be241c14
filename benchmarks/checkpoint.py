"""What a checkpoint costs training: time lost over a window, state of at least 1 GB, on disk when it ends.

    python -m benchmarks.checkpoint [--device cuda] [--megabytes 1100] [--folder build/checkpoint-bench]

A job trains with AdamW on one rank. In turns the same number of steps is made without a save, with `torch.save` and
fsync in the middle (synchronous), with PyTorch's `torch.distributed.checkpoint.async_save` (files synced; its writer's
threads and its two ways of running beside training, a thread and a process, are tried and the best counts), and with
this package's session saving in the middle, waiting (`waits`) and beside training (`beside`); the window ends when the
steps are made *and* the checkpoint is visible on disk. Lost is the window's time beyond that of a window right after
it, of as many steps without a save. The bar, 20 % of the synchronous save, is for the H200; on a processor alone
copying, writing and training share the cores, and the figure is reported without one. At the end a checkpoint that was
written beside training is read again: it holds the state of its step.
"""

import argparse
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.harness import Result

BAR = 0.20
MEGABYTES = 1100
ROUNDS = 3
LAYERS = 8
_WINDOW_S = 2.0


def measure(device: str | None = None, megabytes: int | None = None, folder: Path | None = None) -> list[Result]:
    """Two claims: beside training against a synchronous save, and that what is written is that step's."""
    import torch

    quick = "STALLWISE_BENCH_QUICK" in os.environ
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    megabytes = megabytes or (100 if quick else MEGABYTES)
    root = folder or Path("build/checkpoint-bench")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        lost, differing = _lost(chosen, megabytes, root, 1 if quick else ROUNDS)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    middle = {name: statistics.median(values) for name, values in lost.items()}
    share = middle["beside"] / middle["torch.save"]
    peers = {name: value for name, value in middle.items() if name.startswith("async_save")}
    peer = min(peers, key=lambda name: peers[name])
    texts = [f"{name} {_spread(values)}" for name, values in lost.items()]
    return [
        Result(
            claim=f"training time lost to a checkpoint of {megabytes / 1e3:.2g} GB on {chosen}, durable: beside "
            f"training ≤ {BAR:.0%} of torch.save and fsync"
            + ("" if chosen == "cuda" else " (bar for a GPU; here reported)"),
            measured=f"{share:.1%}; lost {', '.join(texts)}",
            held=share <= BAR if chosen == "cuda" else None,
        ),
        Result(
            claim="training time lost beside training, at most that of the best async_save",
            measured=f"{middle['beside'] / peers[peer]:.2f} × {peer}: {_spread(lost['beside'])} against "
            f"{_spread(lost[peer])}",
            held=middle["beside"] <= peers[peer],
        ),
        Result(
            claim="a checkpoint written beside training holds the state of its step, bit for bit",
            measured=f"{differing} tensors differ",
            held=differing == 0,
        ),
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


def _lost(device: str, megabytes: int, root: Path, rounds: int) -> tuple[dict[str, list[float]], int]:
    """Seconds lost in every round, by way of saving; and tensors that are not what they were when they were saved."""
    import torch
    import torch.distributed as dist

    from stallwise import elastic

    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        os.environ.setdefault(name, "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    # Weights, and two moments of AdamW.
    width = math.isqrt(int(megabytes * 1e6 / 4 / 3 / LAYERS))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=device == "cuda")
    batch = torch.randn(4096 if device == "cuda" else 2, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def synchronous() -> None:
        with (root / "plain.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())

    with elastic.Session(model, optimizer, folder=root / "elastic", interval_s=1e9, keep=1) as session:
        saves: list[Future[Any]] = []

        def dcp(threads: int, process: bool) -> None:
            from torch.distributed import checkpoint
            from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

            target = root / "dcp"
            shutil.rmtree(target, ignore_errors=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            kind = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
            writer = checkpoint.FileSystemWriter(target, single_file_per_rank=False, thread_count=threads)
            saves[:] = [checkpoint.async_save(state, storage_writer=writer, async_checkpointer_type=kind)]

        def window(count: int, save: Callable[[], Any]) -> tuple[float, int]:
            settle()
            begin_s, made = time.perf_counter(), 0
            while made < count or session.saving or any(not one.done() for one in saves):
                step()
                made += 1
                session.step += 1  # a checkpoint is named by its step
                if made == count // 4:
                    settle()
                    save()
            settle()
            for one in saves:
                one.result()
            saves.clear()
            return time.perf_counter() - begin_s, made

        ways: dict[str, Callable[[], Any]] = {
            "torch.save": synchronous,
            "async_save": lambda: dcp(1, process=False),
            "async_save, 4 writers": lambda: dcp(4, process=False),
            "async_save in a process": lambda: dcp(4, process=True),
            "waits": lambda: session.save(wait=True),
            "beside": lambda: session.save(wait=False),
        }
        window(4, lambda: None)
        per_step_s = window(4, lambda: None)[0] / 4
        count = max(8, min(400, math.ceil(_WINDOW_S / per_step_s)))
        for name, save in list(ways.items()):  # buffers are made at the first
            try:
                window(count, save)
            except Exception as error:
                if not name.startswith("async_save in"):
                    raise
                print(f"       {name} fails: {str(error).strip().splitlines()[-1]}", flush=True)
                saves.clear()
                del ways[name]
        lost: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, save in ways.items():
                lasted_s, made = window(count, save)
                calm_s, _ = window(made, lambda: None)
                lost[name].append(lasted_s - calm_s)
        kept: dict[str, torch.Tensor] = {}

        def save_and_keep() -> None:
            session.save(wait=False)
            kept.update({name: value.detach().clone() for name, value in _state(model, optimizer).items()})

        window(count, save_and_keep)
        differing = _differing(kept, root / "elastic")
    return lost, differing


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    """Tensors by the names a checkpoint has for them."""
    import torch

    from stallwise.elastic._checkpoints import flattened, module_state

    found = flattened(module_state(model, optimizer))
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _differing(kept: dict[str, Any], folder: Path) -> int:
    """How many tensors of the newest checkpoint are not these."""
    import torch

    from stallwise.elastic import _manifest as manifest
    from stallwise.elastic._tensors import fill, read_parts

    read = {name: torch.empty_like(value, device="cpu") for name, value in kept.items()}
    parts = read_parts(sorted((folder / manifest.checkpoint_names(folder)[-1]).glob("*.safetensors")))
    for name, tensor in read.items():
        fill(name, tensor, parts.get(name, ()))
    return sum(not torch.equal(read[name], value.cpu()) for name, value in kept.items())


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    missed = 0
    for result in measure(options.device, options.megabytes, options.folder):
        missed += result.held is False
        print(f"{result.verdict:<6} checkpoint: {result.claim}: {result.measured}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
