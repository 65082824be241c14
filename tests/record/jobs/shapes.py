"""Training loops of many shapes, all real; which one is the first argument."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.005


class Points(Dataset):
    """Defined in the script: spawned workers have to import it from there."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index % 7)), index


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def plain(epochs: int = 10_000, **options: object) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model)
    loader = DataLoader(Points(80), batch_size=2, **options)
    for _ in range(epochs):
        for points, _ in loader:
            optimizer.zero_grad()
            model(points).mean().backward()
            time.sleep(STEP_S)
            optimizer.step()


def accumulate() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model)
    for _ in range(10_000):
        for i, (points, _) in enumerate(DataLoader(Points(90), batch_size=2)):
            (model(points).mean() / 3).backward()
            time.sleep(STEP_S / 3)
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()


def amp() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model)
    scaler, disabled = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(10_000):
        for points, _ in DataLoader(Points(80), batch_size=2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = disabled.scale(model(points).mean())
            scaler.scale(loss).backward()
            time.sleep(STEP_S)
            scaler.step(optimizer)
            scaler.update()


def gan(critic_steps: int) -> None:
    generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    optimizers = optimizer_of(generator), optimizer_of(critic)
    for _ in range(10_000):
        for i, (points, _) in enumerate(DataLoader(Points(120), batch_size=2)):
            optimizers[1].zero_grad()
            (critic(generator(points).detach()).mean() - critic(points).mean()).backward()
            optimizers[1].step()
            time.sleep(STEP_S / 2)
            if i % critic_steps == critic_steps - 1:
                optimizers[0].zero_grad()
                (-critic(generator(points)).mean()).backward()
                optimizers[0].step()


def evaluate() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model)
    held_out = DataLoader(Points(10), batch_size=2)
    for _ in range(10_000):
        for points, _ in DataLoader(Points(40), batch_size=2):
            optimizer.zero_grad()
            model(points).mean().backward()
            time.sleep(STEP_S)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            seen = [index for _, indices in held_out for index in indices.tolist()]
        assert seen == list(range(10)), "evaluation gets its own batches, in every phase"
        model.train()


def one_cycle() -> None:
    epochs, loader = 6, DataLoader(Points(160), batch_size=2)
    model = torch.nn.Linear(4, 1)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    steps = 0
    for _ in range(epochs):
        for points, _ in loader:
            optimizer.zero_grad()
            model(points).mean().backward()
            time.sleep(STEP_S)
            optimizer.step()
            scheduler.step()
            steps += 1
    assert steps == epochs * len(loader), steps
    print("trained to the end")


def stubborn() -> None:
    """Swallows everything once, and leaves a thread that nobody ends."""
    import threading

    threading.Thread(target=time.sleep, args=(600,)).start()
    try:
        plain()
    except BaseException as error:
        print(f"swallowed {type(error).__name__}")
    plain()


SHAPES = {
    "plain": plain,
    "workers": lambda: plain(num_workers=1),
    "persistent": lambda: plain(num_workers=1, persistent_workers=True, prefetch_factor=3, pin_memory=True),
    "spawn": lambda: plain(num_workers=1, multiprocessing_context="spawn", persistent_workers=True),
    "accumulate": accumulate,
    "amp": amp,
    "critic": lambda: gan(3),
    "evaluate": evaluate,
    "one_cycle": one_cycle,
    "stubborn": stubborn,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    SHAPES[sys.argv[1]]()
