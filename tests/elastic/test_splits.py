"""Machines that lose sight of each other: never two writers, every sample once, the bits of an undisturbed run."""

import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.elastic.faults import machine_of, machines_on_a_network, skewed_clock, stopped
from tests.elastic.lab import Lab, lab

SIZE = ("--samples", "480", "--batch", "2", "--interval-steps", "15")
STEPS = 240
HEARTBEAT_S = 0.5
"""A machine is lost after four seconds."""


@pytest.mark.parametrize(
    ("what", "pause_s"),
    [
        ("host", None),
        *(
            pytest.param(what, pause_s, marks=pytest.mark.soak)
            for what in ("agent", "host")
            for pause_s in (None, 1.0, 4.0, 15.0, 60.0)
            if (what, pause_s) != ("host", None)
        ),
    ],
)
def test_a_machine_that_was_stopped_never_writes_again_in_its_round(
    what: str, pause_s: float | None, tmp_path: Path, port: int
) -> None:
    """One machine and a spare. `pause_s` None: until the spare has saved in a round of its own."""
    with (
        lab(tmp_path / "calm", *SIZE, "--step-s", "0", nnodes="1", port=port) as calm,
        lab(tmp_path / "hurt", *SIZE, nnodes="1", port=port, heartbeat_s=HEARTBEAT_S) as hurt,
    ):
        hurt.limit(STEPS // 2)
        first = hurt.start(1).hosts[0]
        hurt.until(lambda: _saved(hurt, 0))
        hurt.add()
        hurt.until(lambda: _forkserver_is_ready(hurt.hosts[1]))
        frozen = machine_of(first) if what == "host" else [psutil.Process(first.pid)]
        with stopped(frozen):
            if pause_s is None:
                hurt.until(lambda: len(hurt.rounds()) > 1)
                hurt.limit(None)
                hurt.until(lambda: _saved(hurt, 1))
            else:
                time.sleep(pause_s)
        hurt.limit(None)
        calm.start(1)
        hurt.wait()
        calm.wait()
        assert Counter(host.returncode for host in hurt.hosts) == {0: 2}, hurt.said()
        _one_writer(hurt)
        assert hurt.result() == calm.result()
        if pause_s is None:
            assert [event["round"] for event in hurt.rounds()][:2] == [0, 1]


def _saved(job: Lab, round_number: int) -> bool:
    """Whether the round has saved, or had nothing left to do: ranks whose agent is stopped train on at first."""
    return any(event["kind"] in ("saved", "done") and event["round"] == round_number for event in job.events())


def _forkserver_is_ready(host: object) -> bool:
    """Whether the spare has imported torch: it waits for a round."""
    process = psutil.Process(host.pid)  # type: ignore[attr-defined]
    return any(connection.status == "ESTABLISHED" for connection in process.net_connections("tcp"))


def _one_writer(job: Lab) -> None:
    """Each round goes on from all that earlier ones have published: nothing of theirs became visible afterwards.

    Judged by rounds and steps, not by places in the log: a round that is stopped between publishing a checkpoint and
    its note of that makes the note when it goes on.
    """
    events = job.events()
    began = {event["round"]: event["step"] for event in events if event["kind"] == "began"}
    assert [event["round"] for event in events if event["kind"] == "began"] == sorted(began), events
    saved = [(event["round"], event["step"]) for event in events if event["kind"] == "saved"]
    for number, step in saved:
        assert all(step <= from_step for later, from_step in began.items() if later > number), (began, saved)
    for number, from_step in began.items():
        steps = [from_step, *(step for one, step in saved if one == number)]
        assert steps == sorted(set(steps)), (began, saved)
    assert not [event for event in events if event["kind"] == "passed"]


@pytest.mark.soak
@pytest.mark.parametrize("skew_s", [-10.0, 10.0])
def test_a_machine_with_a_wrong_clock_takes_part(skew_s: float, tmp_path: Path, port: int) -> None:
    with lab(tmp_path, *SIZE, "--step-s", "0.02", nnodes="2", port=port, heartbeat_s=HEARTBEAT_S) as job:
        job.add()
        job.add(environment=skewed_clock(skew_s, tmp_path / "clock"))
        job.wait()
        assert [host.returncode for host in job.hosts] == [0, 0], job.said()
        assert len(job.rounds()) == 1, job.said()
        assert job.result()["steps"] == STEPS // 2
        assert "clock is 10" in job.said()


@pytest.mark.soak
@pytest.mark.parametrize(("nnodes", "cut_off"), [("1:3", {1}), ("1:3", {1, 2}), ("2:3", {1}), ("2:3", {1, 2})])
def test_a_partition_leaves_one_writer(nnodes: str, cut_off: set[int], tmp_path: Path) -> None:
    """The coordinator is beside machine 0. With it go on those that are enough; the others wait."""
    with machines_on_a_network(3) as network, lab(tmp_path, *SIZE, "--step-s", "0.1", nnodes=nnodes) as job:
        job.address, job.port, job.heartbeat_s = network.address(0), 29400, HEARTBEAT_S * 2
        job.start_coordinator(network.command(0))
        for machine in range(3):
            job.add(environment={"GLOO_SOCKET_IFNAME": "eth0"}, inside=network.command(machine))
        job.until(lambda: bool(job.rounds()) and job.rounds()[-1]["world"] == 3 and job.last_step() > 20)
        rounds = len(job.rounds())
        network.cut({0, 1, 2} - cut_off, cut_off)
        left = 3 - len(cut_off)
        if left >= int(nnodes[0]):
            job.until(lambda: len(job.rounds()) > rounds)
            assert job.rounds()[-1]["world"] == left
        else:
            job.until(lambda: len(job.alive()) == 3 and not job.ranks())
        network.heal()
        job.wait()
        assert [host.returncode for host in job.hosts] == [0, 0, 0], job.said()
        _one_writer(job)
        trained = Counter(index for lines in _kept(job) for index in lines)
        assert set(trained) == set(range(480))


def _kept(job: Lab) -> list[list[int]]:
    """Samples of every step, as its latest round trained them."""
    by_step: dict[int, dict[int, list[int]]] = {}
    for name, lines in job.steps().items():
        for line in lines:
            if "step" in line:
                by_step.setdefault(line["step"], {}).setdefault(int(name[:4]), []).extend(line["samples"])
    return [rounds[max(rounds)] for rounds in by_step.values()]
