"""Kills at random instants: nothing unreadable, nothing lost beyond the interval, nothing left running, same bits."""

import contextlib
import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stallwise.elastic.wire import MAGIC, NONCE_BYTES, PROOF_BYTES
from tests.elastic.lab import PATIENCE_S, Lab, lab
from tests.elastic.strangers import greetings
from tests.fuzz.strangers import replies

INTERVAL = 15
KILLS, SEED = 4, 29
"""A writer, a rank, another while the job recovers, and an agent."""
SOAK_KILLS = 200
EVERY = 18
"""Steps between kills, more or less."""
KINDS = ("rank", "rank", "all ranks", "writer", "writer", "agent", "notice")
RECOVERING_S = 1.5
"""Within so long after a kill, about what a recovery takes, the next one follows where it hits a job that recovers."""
EPOCH = 75
BATCH = 2


def test_a_few_kills(tmp_path: Path, port: int) -> None:
    _survive(tmp_path, KILLS, SEED, port)


@pytest.mark.soak
def test_twenty_kills(tmp_path: Path, port: int) -> None:
    _survive(tmp_path, 20, 14, port)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_kills(tmp_path: Path, seed: int, port: int) -> None:
    _survive(tmp_path, SOAK_KILLS // 4, 1414 + seed, port)


def _survive(root: Path, kills: int, seed: int, port: int) -> None:
    """Two machines of one rank each and a spare that waits; the spare takes a lost one's place."""
    blows = list(_blows(kills, random.Random(seed)))
    epochs = -(-(len(blows) * EVERY + 30) // EPOCH)
    size = ("--samples", str(EPOCH * 2 * BATCH), "--epochs", str(epochs), "--batch", str(BATCH), "--ballast", "2000000")
    options = ("--max-crashes", "1000")
    job = (*size, "--interval-steps", str(INTERVAL))
    with (
        lab(root / "calm", *size, "--step-s", "0", nnodes="1", per_host=2, port=port) as calm,
        lab(root / "hurt", *job, nnodes="2", options=options, port=port) as hurt,
    ):
        hurt.limit(EVERY)
        hurt.start(3)
        hurt.until(lambda: bool(hurt.rounds()))
        calm.start(1)
        draw = random.Random(seed)
        with _strangers_at(port, root / "ran") as answered:
            done = [made for at, kind, twice in blows for made in _hurt(hurt, at, kind, draw, twice=twice)]
            hurt.limit(None)
            hurt.wait()
        assert len(answered) >= 10
        calm.wait()
        assert Counter(host.returncode for host in hurt.hosts)[0] >= 2, hurt.said()
        assert len(done) == kills
        _nothing_lost(hurt, len(blows))
        assert hurt.result() == calm.result()
        hurt.until(lambda: not hurt.strays())
        print(Counter(done), "rounds", len(hurt.rounds()))


@contextlib.contextmanager
def _strangers_at(port: int, mark: Path) -> Iterator[list[int]]:
    """Somebody without the secret talks to the job's coordinator all the while; yields lengths of what it replied."""
    lengths: list[int] = []
    over = threading.Event()

    def talk() -> None:
        seeds = greetings(b"another secret")
        for _, reply in replies(lambda: socket.create_connection(("127.0.0.1", port), 60), seeds, mark, 10**6):
            lengths.append(len(reply))
            if over.wait(0.1):
                return

    stranger = threading.Thread(target=talk)
    stranger.start()
    try:
        yield lengths
    finally:
        over.set()
        stranger.join(PATIENCE_S)
        assert not mark.exists()
    assert max(lengths) <= len(MAGIC) + NONCE_BYTES + PROOF_BYTES


def _blows(kills: int, draw: random.Random) -> Iterator[tuple[int, str, bool]]:
    """At which step, what, and whether another follows while the job recovers: kills come in ones and twos."""
    number, deck = 0, list[str]()
    while kills > 0:
        deck = deck or draw.sample(KINDS, len(KINDS))
        twice = number % 2 == 1 and kills > 1
        yield EVERY * number + draw.randrange(5, EVERY), deck.pop(), twice
        number, kills = number + 1, kills - 1 - twice


def _hurt(job: Lab, at: int, kind: str, draw: random.Random, *, twice: bool) -> Iterator[str]:
    """Wait for the step, kill something at some instant within it, and wait until a new round has begun."""
    job.limit(at + EVERY)  # a save is among the steps until there
    job.until(lambda: _step(job) >= at and len(job.ranks()) == 2)
    rounds = len(job.rounds())
    if kind == "writer":
        job.until(lambda: any(job.folder.glob(".partial-step*")) and _writer(job) is not None)
        _kill(_writer(job))
    elif kind == "agent":
        _host(job, draw).kill()
        job.add()
    elif kind == "notice":
        _host(job, draw).terminate()
        job.add()
    else:
        for victim in job.ranks() if kind == "all ranks" else [draw.choice(job.ranks())]:
            _kill(victim)
    yield kind
    if twice:
        time.sleep(draw.uniform(0.0, RECOVERING_S))
        job.until(lambda: _kill(next(iter(job.ranks()), None)))
        yield "while it recovers"
    job.until(lambda: len(job.rounds()) > rounds)


def _kill(victim: psutil.Process | None) -> bool:
    """Whether it was there to be killed."""
    if victim is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.kill()
        return True
    return False


def _writer(job: Lab) -> psutil.Process | None:
    """Rank 0 of the round that runs."""
    pid = job.rounds()[-1]["pid"]
    return next((rank for rank in job.ranks() if rank.pid == pid), None)


def _host(job: Lab, draw: random.Random) -> Any:
    """An agent that has ranks: the parent of their fork server."""
    agents = set()
    for rank in job.ranks():
        with contextlib.suppress(psutil.NoSuchProcess):  # it may just have ended
            agents.add(psutil.Process(rank.ppid()).ppid())
    hosts = job.alive()
    return draw.choice([host for host in hosts if host.pid in agents] or hosts)


def _step(job: Lab) -> int:
    """Of the round that runs."""
    paths = sorted(job.logs.glob("*.jsonl"))
    if not paths:
        return 0
    lines = [line for line in paths[-1].read_text().split("\n") if line.endswith("}") and '"step"' in line]
    return int(lines[-1].split(":")[1].split(",")[0]) if lines else 0


def _nothing_lost(job: Lab, blows: int) -> None:
    began = job.rounds()
    assert len(began) >= blows + 1
    assert not [event for event in job.events() if event["kind"] == "passed"]  # nothing unreadable
    failed = [event["why"] for event in job.events() if event["kind"] == "failed"]
    assert all("gloo" in why for why in failed), failed  # a rank killed while all save: the others' connection breaks
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
