"""Managers that are killed: `python -m tests.fleet.killed FOLDER KILLS SEED` forks one after the other.

Each manages the same fleet on a local cloud whose machines come and go within seconds. Before every kill the processes
are counted from outside. The last manager is told to end the fleet and lives. Prints what was seen, as JSON.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from stallwise.fleet._local import LocalCloud
from stallwise.fleet.jobs import StandInCosts, StandInJob
from stallwise.fleet.manager import FleetManager, ManagerTiming
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import FleetState, manager_lock
from stallwise.record.processes import die_with_parent

SPEED = 100.0
PLAN = FleetPlan(name="killed", machines=3, spot_usd_per_h=1.0, on_demand_usd_per_h=3.0, work_s=1e6)
TIMING = ManagerTiming(poll_s=4.0, capacity_wait_s=8.0, boot_limit_s=6000.0)
COSTS = StandInCosts(start_s=1.0, join_s=1.0, notice_s=1.0, loss_s=1.0, save_s=0.0)


def market(seed: int) -> MarketTrace:
    """Two to six machines, another number every one to four seconds of real time."""
    draw = random.Random(seed)
    at_s, counts = [0.0], [4]
    while len(at_s) < 5000:
        at_s.append(at_s[-1] + draw.uniform(1, 4) * SPEED)
        counts.append(draw.randint(2, 6))
    return MarketTrace(
        spot_usd_per_h=1.0, on_demand_usd_per_h=3.0, boot_s=20.0, grace_s=0.0, counts_at_s=tuple(at_s),
        counts=tuple(counts),
    )  # fmt: skip


def manage(folder: Path) -> None:
    with manager_lock(folder, 60.0) as held:
        assert held
        state = FleetState.open(folder, new=True)
        FleetManager(PLAN, state, LocalCloud(folder / "cloud"), StandInJob(PLAN, COSTS), TIMING).run()


def running(token: str) -> Counter[str]:
    """Commands of this fleet's machines that run, by the name of their machine; from /proc alone."""
    names: Counter[str] = Counter()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(b"sleep\0"):
                    words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    if f"STALLWISE_FLEET={token}" in words:
                        names[next(word for word in words if word.startswith("STALLWISE_MACHINE="))] += 1
    return names


def main(folder: Path, kills: int, seed: int) -> None:
    LocalCloud.make(folder / "cloud", market(seed), SPEED)
    token = FleetState.open(folder, new=True).token
    draw, most, twice, killed = random.Random(seed), 0, 0, 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            die_with_parent()
            manage(folder)
            os._exit(0)
        time.sleep(draw.uniform(0.0, 0.6))
        seen = running(token)
        most, twice = max(most, seen.total()), max(twice, *seen.values(), 0)
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with manager_lock(folder, 60.0):
        state = FleetState.open(folder, new=True)
        manager = FleetManager(PLAN, state, LocalCloud(folder / "cloud"), StandInJob(PLAN, COSTS), TIMING)
        until_s = time.monotonic() + 200
        while not running(token) and time.monotonic() < until_s:  # on a starved machine none got so far before
            manager.look()
            time.sleep(0.05)
        seen = running(token)
        most, twice = max(most, seen.total()), max(twice, *seen.values(), 0)
        manager.end("down")
        manager.run()
        state.close()
    print(json.dumps({"killed": killed, "most": most, "of_one_name": twice, "left": running(token).total()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
