"""Passes over recorded queues, under every kind of policy."""

import io
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.slurm._plan import decide
from stallwise.slurm.commands import Slurm
from stallwise.slurm.controller import Controller, ControllerSettings, policy_for_slurm
from stallwise.slurm.facts import PinMark, SlurmJob, SlurmNode
from stallwise.slurm.observation import RecordReader, SpeedReading
from stallwise.slurm.state import ControllerState, DecisionLog
from tests.slurm.recorded import Recorded
from tests.slurm.test_plan import NODES, TOPOLOGY, node, partition, placed, running, waiting
from tests.slurm.test_reconciliation import job


@pytest.mark.parametrize("name", ["patient", "dally", "2d-las", "gandiva", "gittins", "tiresias", "srsf"])
def test_a_pass_over_many_jobs_under_every_kind_of_policy(name: str, tmp_path: Path) -> None:
    """How long it takes is measured in `benchmarks/slurm.py`; here, that what it says can be done."""
    slurm = Recorded(nodes=60, waiting=80, running=20)
    state = ControllerState.open(tmp_path, "recorded")
    controller = Controller(
        ControllerSettings(partition="gpu", policy=name),
        slurm,
        state,
        DecisionLog(None),
        tmp_path,
        clock=lambda: slurm.now_s,
        steady=lambda: 0.0,
    )
    controller.once()
    pins = [words for words in slurm.told if words[:2] == ("scontrol", "update")]
    released = [words for words in slurm.told if words[:2] == ("scontrol", "release")]
    assert len(pins) == len(released) == sum(row.phase == "starting" for row in state.rows().values())
    assert len(state.rows()) == 80
    state.close()


def test_what_slurm_cannot_carry_out_is_refused() -> None:
    assert policy_for_slurm("gandiva").preemption.pack == 0.0
    with pytest.raises(InputError, match="admit="):
        policy_for_slurm("fifo:admit=2")


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    """A file of the user's orders the jobs of a partition; with state that lasts from decision to decision."""
    path = tmp_path / "largest.py"
    path.write_text(
        "class Largest:\n"
        "    def __init__(self):\n"
        "        self.views = []\n"
        "    def decide(self, view):\n"
        "        self.views.append(view)\n"
        "        return sorted(view.jobs, key=lambda job: (-job.gpus, len(self.views)))\n"
    )
    rows = [waiting("1", 4), waiting("2", 16), waiting("3", 16), waiting("4", 4)]
    assert set(placed(decide(partition(rows, policy="fifo-skip")))) == {"1", "2", "4"}
    mine = partition(rows, policy=str(path))
    assert set(placed(decide(mine))) == {"2", "3"}
    assert set(placed(decide(mine))) == {"2", "3"}
    path.write_text("class Broken:\n    def decide(self, view):\n        return view.gone\n")
    with pytest.raises(InputError, match=r"largest.py, line 3, in decide: AttributeError"):
        decide(partition(rows, policy=str(path)))


@dataclass
class Scripted(Slurm):
    """Answers with the jobs it is given, and notes what it is told."""

    queue: list[SlurmJob] = field(default_factory=list)
    told: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = {"killwait": "30 sec"}

    def jobs(self) -> list[SlurmJob]:
        return self.queue

    def nodes(self) -> list[SlurmNode]:
        used = {name for one in self.queue for name in one.held_gpus}
        return [node(name, 4 if name in used else 0) for name in NODES]

    def topology(self) -> str:
        return TOPOLOGY

    def _run(self, *command: str) -> bytes:
        self.told.append(command)
        return b""


@dataclass
class Hands:
    """A controller whose clocks are set by hand."""

    folder: Path
    policy: str = "patient:lease=600"
    wall_s: float = 1000.0
    steady_s: float = 50.0
    slurm: Scripted = field(default_factory=Scripted)
    log: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.state = ControllerState.open(self.folder, "scripted")
        self.controller = Controller(
            ControllerSettings(partition="gpu", policy=self.policy, observe_s=1.0),
            self.slurm,
            self.state,
            DecisionLog(None, self.log),
            self.folder,
            clock=lambda: self.wall_s,
            steady=lambda: self.steady_s,
            boot="b",
        )

    def passes(self, *between: Callable[[], object]) -> None:
        """Polls with these happenings between them."""
        todo = list(between)

        def stop(pause_s: float) -> bool:
            if not todo:
                return True
            todo.pop(0)()
            return False

        self.controller.run(stop)

    def elapse(self, seconds: float, jump_s: float = 0.0) -> None:
        self.steady_s += seconds
        self.wall_s += seconds + jump_s

    def lines(self, what: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["what"] == what]


def on_nodes(key: str, *nodes: str, **more: object) -> SlurmJob:
    return replace(job("running"), key=key, gang=4 * len(nodes), held_gpus=dict.fromkeys(nodes, 4), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("jump_s", [86400.0, -700.0])
def test_a_clock_that_is_set_ends_no_lease_and_leaves_none_without_end(tmp_path: Path, jump_s: float) -> None:
    """All nodes are taken by jobs with 500 s of lease left, and others wait for them."""
    hands = Hands(tmp_path, "tiresias:lease=600")
    hands.slurm.queue = [on_nodes(str(i), name, start_s=900.0) for i, name in enumerate(NODES)]
    hands.slurm.queue += [replace(job("held"), key=f"{i + 20}", gang=4) for i in range(8)]
    rows = [running(str(i), {name: 4}, granted_s=900.0, lease_s=1500.0) for i, name in enumerate(NODES)]
    hands.state.save(rows)
    stops = lambda: [words for words in hands.slurm.told if words[:2] == ("scontrol", "requeuehold")]  # noqa: E731
    hands.passes(lambda: hands.elapse(10.0, jump_s), lambda: hands.elapse(10.0))
    assert not stops()
    assert [line["set_by_s"] for line in hands.lines("clock")] == [jump_s]
    hands.passes(lambda: hands.elapse(500.0))
    assert stops(), "the leases end when they would have"
    hands.state.close()


def test_a_clock_that_goes_back_leaves_no_start_stuck(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    hands.slurm.queue = [replace(job("free"), key="1", gang=4, required=("n0",))]
    hands.state.save([replace(waiting("1", 4), phase="starting", since_s=1000.0, placed={"n0": 4})])
    hands.passes(lambda: hands.elapse(5.0, -700.0), lambda: hands.elapse(30.0), lambda: None)
    assert ("scontrol", "uhold", "1") in hands.slurm.told
    hands.state.close()


def test_a_database_that_fails_blinds_one_pass_and_one_that_is_damaged_is_rebuilt_from_slurm(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    mark = PinMark.of(1, 4, (), ("n0",))
    hands.slurm.queue = [on_nodes("1", "n0", required=("n0",), mark=mark), replace(job("held"), key="2", gang=64)]
    hands.state.save([running("1", {"n0": 4}, lease_s=2000.0), waiting("2", 64)])
    other = sqlite3.connect(tmp_path / "schedule.sqlite", isolation_level=None)

    def lock() -> None:
        hands.state.connection.execute("pragma busy_timeout = 1")
        other.execute("begin exclusive")
        hands.slurm.queue.append(replace(job("held"), key="3", gang=64))

    def unlock() -> None:
        other.execute("rollback")
        other.close()

    hands.passes(lock, unlock)
    assert [line["why"] for line in hands.lines("blind")] == ["database is locked"]
    assert set(hands.state.rows()) == {"1", "2", "3"}

    def damage() -> None:
        hands.state.connection.execute("pragma wal_checkpoint(truncate)")
        path = tmp_path / "schedule.sqlite"
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(path.stat().st_size - 4096))
        hands.state.connection.execute("pragma cache_size = 0")
        hands.state.connection.execute("pragma shrink_memory")

    hands.passes(damage, lambda: None, lambda: None)
    assert len(hands.lines("rebuilt")) == 1
    rows = hands.state.rows()
    assert {key: row.phase for key, row in rows.items()} == {"1": "running", "2": "waiting", "3": "waiting"}
    assert rows["1"].lease_s == 1600.0, "it goes on with a lease from now"
    assert not [words for words in hands.slurm.told if words[1] == "requeuehold"]
    hands.state.close()


class Readings(RecordReader):
    """Gives readings without a process."""

    ready: list[SpeedReading] = []  # noqa: RUF012 - of one test

    def start(self, requests: object) -> None:
        """Nothing to start."""

    def collect(self) -> list[SpeedReading]:
        ready, self.ready = self.ready, []
        return ready


def test_what_one_user_records_changes_no_speed_of_another(tmp_path: Path) -> None:
    hands = Hands(tmp_path)
    comment = 'stallwise:{"speeds":[1,0.96,0.9],"model":"net","step_s":0.1}'
    hands.slurm.queue = [
        on_nodes("1", "n0", "n1", user="mallory", comment=comment),
        on_nodes("2", "n2", "n3", user="mallory", comment=comment),
        replace(job("held"), key="3", gang=8, user="mallory", comment=comment),
        replace(job("held"), key="4", gang=8, user="alice", comment=comment),
    ]
    more = {"model": "net", "speeds": (1.0, 0.96, 0.9), "gang": 8, "granted_s": 900.0, "lease_s": 5000.0}
    hands.state.save([running("1", {"n0": 4, "n1": 4}, **more), running("2", {"n2": 4, "n3": 4}, **more)])
    reader = hands.controller._reader = Readings()

    def tell(steps_per_s: float) -> Callable[[], None]:
        return lambda: setattr(reader, "ready", [SpeedReading(key, 900.0, 999.0, steps_per_s) for key in ("1", "2")])

    def speeds() -> dict[str, list[float]]:
        snapshot = json.loads((tmp_path / "queue.json").read_text())
        return {each["job"]: each["speeds"] for each in snapshot["jobs"]}

    hands.passes(tell(4.0), lambda: None)
    assert speeds()["4"] == [1.0, 0.96, 0.9]
    assert speeds()["3"] == pytest.approx([1.0, 0.4, 0.4]), "one's own jobs of a model learn from each other"
    hands.passes(tell(1e300), lambda: None)
    assert speeds()["4"] == [1.0, 0.96, 0.9]
    hands.passes(tell(4.0), lambda: None)
    assert speeds()["3"] == pytest.approx([1.0, 0.4, 0.4]), "honest readings are in the majority again"
    hands.state.close()
