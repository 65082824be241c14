"""Trains and saves in every way that scripts save, over files that are already there. Checks what it reads back."""

# Written as people write it: every way of touching files counts here.
# ruff: noqa: PTH103, PTH104, PTH105, PTH110, PTH123, PTH202, SIM115, PT018

import os
import pickle
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def save_all(state: dict[str, torch.Tensor]) -> None:
    torch.save(state, "by_path.pt")
    torch.save(obj=state, f="by_keyword.pt")
    torch.save(state, Path("by_pathlib.pt"))
    with open("by_file.pt", "wb") as file:
        torch.save(state, file)
    with Path("by_path_open.ckpt").open("wb") as file:
        pickle.dump(state, file)
    Path("metrics.json").write_text("{}")
    with open("log.txt", "a") as file:
        file.write("new line\n")
    torch.save(state, "atomic.pt.tmp")
    os.replace("atomic.pt.tmp", "atomic.pt")
    torch.save(state, "aside.tmp")
    Path("aside.tmp").rename("rotated.pt")
    shutil.copy("by_path.pt", "copied.pt")


def check(state: dict[str, torch.Tensor]) -> None:
    for name in ("by_path.pt", "by_keyword.pt", "by_pathlib.pt", "by_file.pt", "atomic.pt", "rotated.pt", "copied.pt"):
        assert os.path.exists(name) and Path(name).is_file() and os.path.getsize(name) > 100, name
        assert torch.equal(torch.load(name)["weight"], state["weight"]), name
        with open(name, "rb") as file:
            assert torch.load(file)["weight"].shape == (1, 4)
    assert not os.path.exists("atomic.pt.tmp") and not Path("aside.tmp").exists()
    assert Path("metrics.json").read_text() == "{}"
    assert open("log.txt").read().endswith("old line\nnew line\n")
    assert open("untouched.txt").read() == "old"


def rotate() -> None:
    for remove in (os.remove, os.unlink, lambda name: Path(name).unlink()):
        torch.save({}, "rotating.pt")
        remove("rotating.pt")
        assert not os.path.exists("rotating.pt")
    Path("old_1.pt").unlink()
    os.rename("old_2.pt", "old_2.backup.pt")
    shutil.rmtree("old_checkpoints")
    assert not any(map(os.path.exists, ("old_1.pt", "old_2.pt", "old_checkpoints")))
    assert Path("old_2.backup.pt").read_bytes() == b"old_2.pt"
    with open("own.log", "w") as file:  # a new file that is no checkpoint is the script's own business
        file.write("mine")
    os.makedirs("made/for/checkpoints", exist_ok=True)
    torch.save({}, "made/for/checkpoints/last.pt")
    assert torch.load("made/for/checkpoints/last.pt") == {}


def save_distributed(model: torch.nn.Module, rank: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id="distributed")
    dcp.save({"model": model.state_dict()}, storage_writer=dcp.FileSystemWriter("distributed_2"))
    found = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    dcp.load(found, checkpoint_id="distributed")
    dcp.load(found, storage_reader=dcp.FileSystemReader("distributed_2"))
    assert torch.equal(found["model"]["module.weight"], model.state_dict()["module.weight"])
    if rank == 0:
        torch.save(model.state_dict(), "shared.pt")
    dist.barrier()
    assert "module.weight" in torch.load("shared.pt"), "what rank 0 saved is there for all"


def main() -> None:
    torch.set_num_threads(1)
    model: torch.nn.Module = torch.nn.Linear(4, 1)
    if many := "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(torch.ones(100_000, 4), batch_size=2)):
        optimizer.zero_grad()
        model(batch).mean().backward()
        time.sleep(0.005)
        optimizer.step()
        if step == 3 and many:
            save_distributed(model, dist.get_rank())
        elif step == 3:
            save_all(model.state_dict())
            check(model.state_dict())
            rotate()
            print("all is as the script expects", flush=True)
            if sys.argv[1:] == ["end"]:
                break


if __name__ == "__main__":
    main()
