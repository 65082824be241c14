"""Planned buckets against torch's own 25 MB in real DDP over shaped links, and against what the model said.

Each network is profiled on one process, the link probed between two hosts, the plan made by `stallwise whatif
--best-buckets`, and carried out by `planned_ddp` beside plain DDP, in turns within one launch. Hosts are network
namespaces; needs root. Layers sleep (the stand-in accelerator), gradients have their real sizes.

Bars (written before the measurement): a plan is never slower than 1.02 × torch's own buckets; where the model says it
saves 3 % of a step or more, it saves at least half of that; each predicted step is within 15 % of the measured one.
`STALLWISE_BENCH_NETWORKS=alexnet` runs some of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result
from tests.record.truth.hosts import Host, shape, two_hosts

JOB = Path(__file__).with_name("jobs") / "buckets.py"
NO_SLOWER, SAID, STEP_WITHIN = 1.02, 0.03, 0.15
_ports = iter(range(29510, 29690))


@dataclass(frozen=True)
class Case:
    """A network, its compute and a link."""

    network: str
    compute_s: float
    rate_mbit: int


CASES = (
    Case("mobilenet_v2", 0.30, 500),
    Case("resnet18", 0.45, 1000),
    Case("resnet50", 0.60, 2000),
    Case("alexnet", 0.60, 2000),
)
QUICK = CASES[:1]


def first_in_line() -> tuple[str, ...]:
    """Real-time scheduling for what follows: ranks mostly sleep, and must wake up on time on a busy machine."""
    return ("chrt", "-r", "1") if shutil.which("chrt") and os.geteuid() == 0 else ()


def everywhere(hosts: Sequence[Host], *words: str, variables: Sequence[str] = ()) -> str:
    """Run a Python command on every host; what the first printed. `{node}` and `{port}` are filled in."""
    port = str(next(_ports))
    filled = [[w.format(node=n, port=port) for w in (*variables, sys.executable, *words)] for n in range(len(hosts))]
    started = [
        subprocess.Popen(
            [*first_in_line(), *host.command(*line)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for host, line in zip(hosts, filled, strict=True)
    ]
    ended = [process.communicate(timeout=400) for process in started]
    failed = [err[-2000:] for process, (_, err) in zip(started, ended, strict=True) if process.returncode]
    if failed:
        raise SystemExit("\n".join(failed))
    return ended[0][0]


def stallwise(*words: str) -> str:
    """The command line's answer."""
    command = [*first_in_line(), sys.executable, "-m", "stallwise", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def world(hosts: Sequence[Host]) -> tuple[str, ...]:
    """torchrun's options for one process on each."""
    address = ("--master-addr", hosts[0].address, "--master-port", "{port}")
    return ("--nnodes", str(len(hosts)), "--node-rank", "{node}", "--nproc-per-node", "1", *address)


def measure_case(case: Case, hosts: Sequence[Host], folder: Path) -> tuple[dict, dict]:
    """What the model says of a case, and what happened."""
    run, machine, plan = (folder / f"{case.network}.{kind}" for kind in ("run", "machine.json", "plan.json"))
    job = (str(JOB), "--network", case.network, "--compute", str(case.compute_s))
    stallwise("profile", "--no-cold", "--max-time", "12s", "-o", str(run), *job)
    shape(hosts, case.rate_mbit)
    everywhere(hosts, "-m", "stallwise", "probe", *world(hosts), "--max-time", "12s", "-o", str(machine))
    asked = ("--gpus", "2", "--gpus-per-node", "1", "--machine", str(machine), "--no-curve", "--json")
    said = json.loads(stallwise("whatif", str(run), *asked, "--best-buckets", str(plan)))["best_buckets"]
    ranks = ("RANK={node}", "LOCAL_RANK=0", "WORLD_SIZE=2", f"MASTER_ADDR={hosts[0].address}", "MASTER_PORT={port}")
    return said, json.loads(everywhere(hosts, *job, "--plan", str(plan), variables=ranks).strip().splitlines()[-1])


def result_of(case: Case, said: dict, seen: dict) -> Result:
    """One line per case."""
    own_s, planned_s = seen["own"]["median_s"], seen["planned"]["median_s"]
    gain, predicted = 1 - planned_s / own_s, said["gain"]
    held = planned_s <= NO_SLOWER * own_s and (predicted < SAID or gain >= predicted / 2) and seen["as_planned"]
    errors = (said["own_s"] / own_s - 1, said["planned_s"] / planned_s - 1)
    return Result(
        claim=f"planned buckets no slower than torch's on {case.network} at {case.rate_mbit} Mb/s, and faster as said",
        measured=(
            f"own {said['own_buckets']} buckets {own_s * 1e3:.0f} ms (predicted {said['own_s'] * 1e3:.0f}, "
            f"{errors[0]:+.1%}), planned {len(said['plan']['buckets'])} buckets {planned_s * 1e3:.0f} ms (predicted "
            f"{said['planned_s'] * 1e3:.0f}, {errors[1]:+.1%}); saves {gain:.1%}, predicted {predicted:.1%}; "
            f"blocks {_range(seen['own'])} and {_range(seen['planned'])}"
        ),
        held=bool(held) and max(map(abs, errors)) <= STEP_WITHIN,
    )


def _range(times: dict) -> str:
    return f"{min(times['all_s']) * 1e3:.0f} to {max(times['all_s']) * 1e3:.0f} ms"


def measure() -> list[Result]:
    """Every case in turn."""
    cases = QUICK if os.environ.get("STALLWISE_BENCH_QUICK") else CASES
    wanted = os.environ.get("STALLWISE_BENCH_NETWORKS")
    cases = tuple(case for case in cases if wanted is None or case.network in wanted.split(","))
    found = []
    with tempfile.TemporaryDirectory() as name, two_hosts() as hosts:
        for case in cases:
            found.append(result_of(case, *measure_case(case, hosts, Path(name))))
            print(found[-1], flush=True, file=sys.stderr)
    return found
