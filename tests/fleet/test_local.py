"""The local back end and its manager as processes: what is left is looked for from outside."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.fleet._backend import BackendError, MachineOrder, ReportedMachine
from stallwise.fleet._local import LocalCloud
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.state import FleetState
from tests.conftest import ROOT
from tests.fleet.killed import running
from tests.waiting import until

MARKET = MarketTrace(spot_usd_per_h=1.0, on_demand_usd_per_h=3.0)


def order(name: str, token: str = "t") -> MachineOrder:  # noqa: S107
    return MachineOrder(name=name, token=token, market="spot", command=("sleep", "1000000"))


def only(cloud: LocalCloud, token: str = "t") -> ReportedMachine:  # noqa: S107
    (one,) = cloud.machines(token)
    return one


def test_a_name_has_one_life(tmp_path: Path) -> None:
    token = tmp_path.name + str(os.getpid())
    cloud = LocalCloud.make(tmp_path, MARKET)
    for _ in range(3):
        cloud.start(order("a", token))
    until(lambda: only(cloud, token).state == "running")
    assert running(token) == {"STALLWISE_MACHINE=a": 1}
    with pytest.raises(BackendError) as raised:
        cloud.start(order("a", "other"))
    assert raised.value.code == "name-taken"
    again = LocalCloud(tmp_path)
    again.stop("a")
    until(lambda: only(again, token).state == "ended")
    again.start(order("a", token))
    assert (only(again, token).state, only(again, token).why) == ("ended", "stopped")
    assert not running(token)


def test_a_machine_that_is_killed_is_lost_and_takes_its_command_along(tmp_path: Path) -> None:
    token = tmp_path.name + str(os.getpid())
    cloud = LocalCloud.make(tmp_path, MARKET)
    cloud.start(order("a", token))
    until(lambda: only(cloud, token).state == "running")
    os.kill(int((tmp_path / "machines/a/began").read_text()), signal.SIGKILL)
    until(lambda: only(cloud, token).state == "ended")
    assert only(cloud, token).why == "lost"
    until(lambda: not running(token))


def test_what_was_only_written_down_is_started_by_the_second_order_or_stopped(tmp_path: Path) -> None:
    cloud = LocalCloud.make(tmp_path, MARKET)
    for name in ("a", "b"):
        cloud.start(order(name))
    until(lambda: all(one.state == "running" for one in cloud.machines("t")))
    for name in ("a", "b"):
        cloud.stop(name)
    until(lambda: all(one.state == "ended" for one in cloud.machines("t")))
    for name in ("a", "b"):
        for file in ("began", "running", "ended.json", "stop", "exit"):
            (tmp_path / "machines" / name / file).unlink(missing_ok=True)
    assert [one.state for one in cloud.machines("t")] == ["pending", "pending"]
    cloud.stop("a")
    cloud.start(order("a"))
    cloud.start(order("b"))
    until(lambda: [one.state for one in cloud.machines("t")] == ["ended", "running"])
    cloud.stop("b")
    until(lambda: [one.state for one in cloud.machines("t")] == ["ended", "ended"])


def test_spot_machines_are_as_many_as_the_trace_has(tmp_path: Path) -> None:
    cloud = LocalCloud.make(
        tmp_path, MarketTrace(spot_usd_per_h=1, on_demand_usd_per_h=3, counts_at_s=(0.0,), counts=(1,))
    )
    cloud.start(order("a"))
    with pytest.raises(BackendError) as raised:
        cloud.start(order("b"))
    assert raised.value.code == "no-capacity"
    assert [one.name for one in cloud.machines("t")] == ["a"]
    cloud.stop("a")
    until(lambda: only(cloud).state == "ended")


def test_a_folder_that_is_no_cloud_or_no_fleet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no local cloud"):
        LocalCloud(tmp_path)
    (tmp_path / "cloud.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        LocalCloud(tmp_path)
    with pytest.raises(InputError, match="no fleet"):
        FleetState.open(tmp_path)


def test_twenty_managers_are_killed_and_nothing_is_doubled_or_left(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    done = subprocess.run(
        [sys.executable, "-m", "tests.fleet.killed", str(folder), "20", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["killed"] == 20
    assert 1 <= seen["most"] <= 3, "a machine is not ordered anew as long as it runs"
    assert (seen["of_one_name"], seen["left"]) == (1, 0)
    state = FleetState.open(folder)
    rows = state.machines()
    assert state.fact("closed")
    assert all(row.phase == "ended" for row in rows.values())
    listed = {one.name: one for one in LocalCloud(folder / "cloud").machines(state.token)}
    assert all(one.state == "ended" for one in listed.values())
    assert set(listed) <= set(rows), "whatever was started is written down"
    state.close()
