"""Training loops that run bare and once died, or were misread, under a profile; which one is the first argument."""

import queue
import sys
import threading
import time
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEP_S = 0.004


class Tokens(UserDict):  # type: ignore[type-arg]
    """A batch as tokenizers return it: no dict, but it behaves like one."""


@dataclass
class Graphs:
    """A batch as graph libraries return it: an object whose attributes the model overwrites."""

    x: torch.Tensor
    extras: dict[str, torch.Tensor]
    num_graphs: int


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, size: int = 64) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index % 7) + 1)


def mapping_of(rows: list[torch.Tensor]) -> Tokens:
    return Tokens(inputs=torch.stack(rows), labels=torch.ones(len(rows), dtype=torch.long), meta={"ids": len(rows)})


def graphs_of(rows: list[torch.Tensor]) -> Graphs:
    return Graphs(x=torch.cat(rows).reshape(-1, 2), extras={"y": torch.ones(len(rows))}, num_graphs=len(rows))


def empties_batches() -> None:
    """Takes batches apart, overwrites their attributes, and differentiates in every way that is no backward()."""
    features, head = torch.jit.script(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*features.parameters(), *head.parameters()], lr=1e-4)
    texts, graphs = DataLoader(Rows(), 4, collate_fn=mapping_of), DataLoader(Rows(), 4, collate_fn=graphs_of)
    while True:
        for batch, data in zip(texts, graphs, strict=True):
            labels = batch.pop("labels")
            labels -= 1  # in place: once too often, and it is no index
            assert labels.tolist() == [0] * 4, labels
            del batch["meta"]["ids"]
            assert data.x.shape == (8, 2), data.x.shape
            data.x = torch.zeros(3)
            del data.extras["y"]
            optimizer.zero_grad()
            inputs = batch["inputs"]
            assert not inputs.requires_grad
            inputs.requires_grad_()
            score = head(features(inputs)).mean()
            (slope,) = torch.autograd.grad(score, inputs, create_graph=True)
            curve = torch.func.grad(lambda weight: (weight**3).sum())(head.weight.detach())
            (score + slope.square().mean() + curve.mean()).backward()
            time.sleep(STEP_S)
            optimizer.step()


def read_in_a_thread() -> None:
    """A thread of its own reads the batches, as prefetch_generator's DataLoaderX does."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters())

    def in_background(loader: Any) -> Iterator[Any]:
        waiting: queue.Queue[Any] = queue.Queue(3)

        def read() -> None:
            for batch in loader:
                waiting.put(batch)
            waiting.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (batch := waiting.get()) is not None:
            yield batch

    while True:
        for batch in in_background(DataLoader(Rows(200), 4)):
            optimizer.zero_grad()
            loss = model(batch).mean()
            time.sleep(STEP_S)
            loss.backward()
            optimizer.step()


def one_batch_an_epoch() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Rows(64), 64)
    while True:
        batches = 0
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            time.sleep(STEP_S)
            optimizer.step()
            batches += 1
        assert batches == 1


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(160):
            yield torch.full((4,), float(index))


def streams() -> None:
    """Epochs of a stream that does not say how long it is, from a loader that can be saved."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = StatefulDataLoader(Stream(), 4)
    while True:
        samples = 0
        for batch in loader:
            optimizer.zero_grad()
            model(batch).mean().backward()
            time.sleep(STEP_S)
            optimizer.step()
            samples += len(batch)
        assert samples == 160, samples


HABITS = {
    "empties": empties_batches,
    "thread": read_in_a_thread,
    "one": one_batch_an_epoch,
    "streams": streams,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    HABITS[sys.argv[1]]()
