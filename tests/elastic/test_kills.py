"""Kills at random instants: nothing unreadable, nothing lost beyond the interval, nothing left running, same bits."""

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.elastic.lab import Lab, lab

INTERVAL = 20
KILLS = 20
SOAK_KILLS = 200
EVERY = 26
"""Steps between kills, more or less."""
EPOCH = 300
BATCH = 2


def test_twenty_kills(tmp_path: Path) -> None:
    _survive(tmp_path, KILLS, seed=14)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills(tmp_path: Path, seed: int) -> None:
    _survive(tmp_path, SOAK_KILLS // 4, seed=1414 + seed)


def _survive(root: Path, kills: int, seed: int) -> None:
    """Two machines of one rank each and a spare that waits; the spare takes a lost one's place."""
    epochs = -(-(kills * EVERY + 60) // EPOCH)
    size = ("--samples", str(EPOCH * 2 * BATCH), "--epochs", str(epochs), "--batch", str(BATCH), "--ballast", "2000000")
    options = ("--max-crashes", "1000")
    job = (*size, "--interval-steps", str(INTERVAL))
    with (
        lab(root / "calm", *size, "--step-s", "0", nnodes="2") as calm,
        lab(root / "hurt", *job, nnodes="2", options=options) as hurt,
    ):
        hurt.start(3)
        hurt.until(lambda: bool(hurt.rounds()))
        calm.start(2)
        done = [_hurt(hurt, at, draw) for at, draw in _instants(kills, seed)]
        hurt.wait(120)
        calm.wait(60)
        assert Counter(host.returncode for host in hurt.hosts)[0] >= 2, hurt.said()
        _nothing_lost(hurt, kills)
        assert hurt.result() == calm.result()
        hurt.until(lambda: not hurt.strays(), 10)
        print(Counter(done), "rounds", len(hurt.rounds()))


def _instants(kills: int, seed: int) -> Iterator[tuple[int, random.Random]]:
    draw = random.Random(seed)
    for number in range(kills):
        yield EVERY * number + draw.randrange(5, EVERY), draw


def _hurt(job: Lab, at: int, draw: random.Random) -> str:
    """Wait for the step, kill something at some instant within it, and wait until a new round has begun."""
    rounds = len(job.rounds())
    job.until(lambda: _step(job) >= at and len(job.ranks()) == 2)
    kind = draw.choice(["rank", "rank", "all ranks", "writer", "writer", "agent", "notice"])
    if kind == "writer":
        job.until(lambda: any(job.folder.glob(".partial-step*")), 20)
        os.kill(job.rounds()[-1]["pid"], signal.SIGKILL)
    elif kind == "agent":
        _host(job, draw).kill()
        job.add()
    elif kind == "notice":
        _host(job, draw).terminate()
        job.add()
    else:
        victims = job.ranks() if kind == "all ranks" else [draw.choice(job.ranks())]
        for victim in victims:
            victim.kill()
    job.until(lambda: len(job.rounds()) > rounds)
    return kind


def _host(job: Lab, draw: random.Random) -> Any:
    """An agent that has ranks."""
    parents = {rank.ppid() for rank in job.ranks()}
    agents = {psutil.Process(nursery).ppid() for nursery in parents}
    return draw.choice([host for host in job.alive() if host.pid in agents])


def _step(job: Lab) -> int:
    """Of the round that runs."""
    paths = sorted(job.logs.glob("*.jsonl"))
    if not paths:
        return 0
    lines = [line for line in paths[-1].read_text().split("\n") if line.endswith("}") and '"step"' in line]
    return int(lines[-1].split(":")[1].split(",")[0]) if lines else 0


def _nothing_lost(job: Lab, kills: int) -> None:
    began = job.rounds()
    assert len(began) >= kills + 1
    assert not [event for event in job.events() if event["kind"] in ("passed", "failed")]
    noticed = {event["round"] for event in job.events() if event["kind"] == "notice"}
    made: dict[int, int] = {}
    trained: dict[int, dict[str, list[int]]] = {}
    for name, lines in job.steps().items():
        number = int(name.split("-")[0])
        for line in lines:
            if "step" in line:
                made[number] = max(made.get(number, 0), line["step"])
                trained.setdefault(line["step"], {}).setdefault(name[:4], []).extend(line["samples"])
    for before, after in itertools.pairwise(began):
        lost = made.get(before["round"], before["step"]) - after["step"]
        assert lost <= (1 if before["round"] in noticed else INTERVAL), (before, after, lost)
    kept = [rounds[max(rounds)] for _, rounds in sorted(trained.items())]
    for epoch in range(len(kept) // EPOCH):
        seen = Counter(index for samples in kept[epoch * EPOCH : (epoch + 1) * EPOCH] for index in samples)
        assert seen == Counter(range(EPOCH * 2 * BATCH)), f"epoch {epoch}"
