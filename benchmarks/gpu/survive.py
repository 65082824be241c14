"""A session on a real GPU under NCCL, world of one: killed ranks resume, with DDP and with FSDP2.

python -m benchmarks.gpu.survive            one GPU, about a minute

One GPU cannot show peers that are lost; it shows that state on the device (DTensor shards, fused AdamW, a scaler, the
GPU's random state under dropout) is saved beside training and restored: the weights at the end of a run whose rank was
killed twice must equal those of an uninterrupted run bit for bit.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, KILLS_AT, INTERVAL = 240, (70, 160), 25
_PATIENCE_S = 120


def train(folder: Path, kind: str) -> None:
    """The job: what a user's script would be, and a file that says which step it has reached."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    from stallwise import elastic

    me = elastic.join()
    gpu = me.device.type == "cuda"
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(STEPS * 8, 256))
    sampler = elastic.Resumable(DistributedSampler(data, seed=5))
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))]
    model: nn.Module = nn.Sequential(*layers).to(me.device)
    if kind == "fsdp2":
        fully_shard(model, mesh=torch.distributed.device_mesh.init_device_mesh(me.device.type, (me.world,)))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=gpu)
    scaler = torch.amp.GradScaler(me.device.type, growth_interval=20)
    with elastic.Session(
        model, optimizer, folder=folder / "checkpoints", scaler=scaler, interval_steps=INTERVAL
    ) as session:
        print(json.dumps({"began": session.step, "backend": torch.distributed.get_backend()}), flush=True)
        for _ in session.epochs(1):
            for (x,) in session.steps(loader):
                x = x.to(me.device)
                with torch.autocast(me.device.type, dtype=torch.bfloat16):
                    loss = (model(x) - x).pow(2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                (folder / "step").write_text(f"{session.step:06d}")
                time.sleep(0.01)
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(name.removeprefix("module.").encode() + whole.cpu().numpy().tobytes())
    print(json.dumps({"weights": digest.hexdigest(), "steps": session.step}), flush=True)
    torch.distributed.destroy_process_group()


def lived(kind: str, kills: tuple[int, ...]) -> tuple[str, list[int]]:
    """Run it with the rank killed at these steps: the weights at the end, and the step at which each life began."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    us = [sys.executable, "-m", "stallwise.elastic"]
    with tempfile.TemporaryDirectory() as kept, contextlib.ExitStack() as ends:
        folder = Path(kept)
        keeper = subprocess.Popen([*us, "coordinator", "--port", str(port)], stdout=subprocess.DEVNULL)
        ends.callback(keeper.wait)
        ends.callback(keeper.terminate)
        job = [__file__, "--job", kind, "--folder", kept]
        host = [*us, "host", "--coordinator", f"127.0.0.1:{port}", "--nnodes", "1", *job]
        agent = subprocess.Popen(host, stdout=subprocess.PIPE, text=True)
        ends.callback(agent.kill)
        for step in kills:
            _reach(folder / "step", step, agent)
            os.kill(_rank_of(agent.pid), signal.SIGKILL)
        said = agent.communicate(timeout=_PATIENCE_S)[0]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [end] = [line for line in lines if "weights" in line]
    assert end["steps"] == STEPS, end
    return end["weights"], [line["began"] for line in lines if "began" in line]


def _reach(file: Path, step: int, agent: subprocess.Popen[str]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while not file.exists() or int(file.read_text() or 0) < step:
        if agent.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"step {step} was not reached")
        time.sleep(0.01)


def _rank_of(pid: int) -> int:
    """The one process two floors below the agent: agent, nursery, rank."""
    import psutil

    return int(psutil.Process(pid).children()[0].children()[-1].pid)


def main() -> int:
    """From the command line; `--job` is how it starts itself."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.survive")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        train(options.folder, options.job)
        return 0
    missed = 0
    for kind in ("ddp", "fsdp2"):
        calm, _ = lived(kind, ())
        hurt, began = lived(kind, KILLS_AT)
        missed += calm != hurt
        verdict = "the same bits" if calm == hurt else "OTHER BITS"
        print(f"{kind}: killed at {KILLS_AT}, lives began at {began}, {verdict} as uninterrupted", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
