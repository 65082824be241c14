"""The network stall between two hosts whose link has a known rate.

Bars (written before the measurement): the stall equals the bare script's growth over its own no-exchange run within
10 %; from rate to rate it grows as the exposed transfer does, within 15 %.
"""

import json
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.figures import Figures
from tests.record.truth.bench import JOB
from tests.record.truth.hosts import Host, shape, two_hosts

PARAMETERS = 4_000_000
OPTIONS = ("--workers", "1", "--parameters", str(PARAMETERS), "--compute", "0.060", "--layers", "8")
RATES_MBIT = (2000, 1000, 500)
pytestmark = pytest.mark.truth
_ports = iter(range(29710, 29790))


def on_both(
    hosts: tuple[Host, Host], *words: str, variables: tuple[str, ...] = ()
) -> list[subprocess.CompletedProcess[str]]:
    """Run a Python command on both hosts, with `NAME=value` variables; `{node}` and `{port}` are filled in."""
    port = str(next(_ports))
    started = [
        subprocess.Popen(
            host.command(*(word.format(node=node, port=port) for word in (*variables, sys.executable, *words))),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as torchrun does with ranks; the kernel shares cores out by sessions
        )
        for node, host in enumerate(hosts)
    ]
    try:
        ended = [process.communicate(timeout=250) for process in started]
    finally:
        for process in started:
            process.kill()
    done = [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(started, ended, strict=True)
    ]
    assert all(process.returncode == 0 for process in done), [process.stderr[-2000:] for process in done]
    return done


WORLD = ("--nnodes", "2", "--node-rank", "{node}", "--nproc-per-node", "1")
ADDRESS = ("--master-addr", "10.99.0.1", "--master-port", "{port}")
# What torchrun would tell the bare ranks, without its seconds of starting up.
RANK = ("RANK={node}", "LOCAL_RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=10.99.0.1", "MASTER_PORT={port}")


def bare_s(hosts: tuple[Host, Host], *more: str) -> float:
    words = (str(JOB), *OPTIONS, *more, "--steps", "50")
    return float(json.loads(on_both(hosts, *words, variables=RANK)[0].stdout.strip().splitlines()[-1])["step_s"])


def network_s(hosts: tuple[Host, Host], folder: Path) -> float:
    options = ("--json", "--no-cold", "--max-time", "10s", "-o", str(folder))
    words = ("-m", "stallwise", "profile", *options, *WORLD, *ADDRESS, str(JOB), *OPTIONS)
    split = json.loads(on_both(hosts, *words)[0].stdout)["split"]
    assert split["interconnect"] is None, "one rank per host: there is no link inside a host"
    return float(split["network"]["s"])


@pytest.mark.parametrize(
    "rates_mbit",
    [RATES_MBIT[::2], pytest.param(RATES_MBIT, marks=pytest.mark.soak)],
    ids=["two rates", "three rates"],
)
def test_the_network_stall_is_the_bare_scripts_growth(
    rates_mbit: tuple[int, ...], tmp_path: Path, figures: Figures
) -> None:
    with two_hosts() as hosts:
        stalls: dict[int, float] = {}
        alone_s = statistics.mean(bare_s(hosts, "--no-sync") for _ in range(2))
        for rate in rates_mbit:
            shape(hosts, rate)
            growth_s = bare_s(hosts) - alone_s
            stalls[rate] = network_s(hosts, tmp_path / str(rate))
            figures.judge(f"network stall at {rate} Mb/s", stalls[rate], growth_s, rel=0.10)
        for faster, slower in pairwise(rates_mbit):
            # A ring of two sends every byte once in each direction.
            transfer_s = PARAMETERS * 4 * 8 * (1 / slower - 1 / faster) / 1e6
            grown_s = stalls[slower] - stalls[faster]
            figures.judge(f"network stall from {faster} to {slower} Mb/s", grown_s, transfer_s, rel=0.15)
