"""`stallwise probe` on real ranks: one machine, two nodes, other launchers, faults, and links of a known rate."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stallwise.analysis.compute import cost_of
from stallwise.errors import InputError
from stallwise.hardware.machine import LinkRecord, MachineRecord, read_machine
from stallwise.machine.links import link_record, scopes
from stallwise.model.exchange.collectives import rescale
from tests.conftest import Cli
from tests.figures import Figures
from tests.record.jobs import Profiled, marked, wait_for_line
from tests.record.truth.hosts import shape, two_hosts
from tests.sentences import coded

KIB, MIB = 2**10, 2**20
QUICK = ("--max-time", "3s", "--max-message", "4MiB")


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def probing(folder: Path, *arguments: str) -> Profiled:
    """`stallwise probe …`, every process of which carries a mark, so that none can be left behind unseen."""
    return Profiled(folder, "probe", *arguments, module="stallwise.__main__")


def link(record: MachineRecord, scope: str) -> LinkRecord:
    return next(found for found in record.links if found.scope == scope)


def test_two_processes_are_measured_and_saved(tmp_path: Path) -> None:
    done = probing(tmp_path, "--nproc-per-node", "2", *QUICK, "--json", "-o", "new/mine.json").ended(0)
    record = read_machine(tmp_path / "new/mine.json")
    assert coded(done.out) == json.loads((tmp_path / "new/mine.json").read_bytes())
    assert (record.ranks, record.nodes, len(record.hosts)) == (2, 1, 1)
    assert socket.gethostname() not in (tmp_path / "new/mine.json").read_text()
    (only,) = record.links
    assert (only.scope, only.ranks, only.nodes, only.backend) == ("inside", 2, 1, "gloo")
    sizes = [point.size_bytes for point in only.points]
    assert sizes == [4 * KIB << n for n in range(len(sizes))] != []
    # A busy machine may not come to the largest within its time, and says so.
    assert (sizes[-1] == 4 * MIB) == (not any("did not fit" in note for note in record.notes))
    assert all(point.time_s > 0 and point.repeats >= 5 for point in only.points)
    assert all((point.low_s or 0) <= point.time_s <= (point.high_s or 1e9) for point in only.points)
    assert "inside each node, 0% done" in done.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "new/mine.json"]


def test_the_table_shows_every_size(tmp_path: Path, cli: Cli) -> None:
    text = cli("probe", "--nproc-per-node", "2", "--max-time", "1s", "--max-message", "1MiB").stdout
    assert "all-reduce, inside a node: 2 ranks over gloo" in text
    assert "4 KiB" in text
    assert "1 MiB" in text or "did not fit" in text, "a busy machine says that it did not come to it"
    assert "bus bandwidth" in text
    assert (tmp_path / "machine.json").is_file()


@pytest.mark.soak
def test_two_nodes_of_two_ranks_have_three_links(tmp_path: Path) -> None:
    address = ("--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port())
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    jobs = []
    for number, node in enumerate(nodes):
        node.mkdir()
        jobs.append(probing(node, *address, "--node-rank", str(number), "--max-time", "3s", "--max-message", "1MiB"))
    jobs[1].ended(0)
    jobs[0].ended(0)
    assert "node 0 shows the result" in jobs[1].said
    assert list(nodes[1].iterdir()) == []
    record = read_machine(nodes[0] / "machine.json")
    assert (record.ranks, record.nodes, len(record.hosts)) == (4, 2, 2)
    shapes = {found.scope: (found.ranks, found.nodes) for found in record.links}
    assert shapes == {"inside": (2, 1), "between": (2, 2), "all": (4, 2)}


@pytest.mark.soak
def test_another_launcher_starts_the_ranks_itself(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rank = ["-m", "stallwise.machine.link_rank", "-o", "theirs.json", "--max-time", "1", "--max-bytes", str(MIB)]
    done = subprocess.run([*torchrun, *rank], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "all-reduce of 2 ranks inside each node" in done.stderr
    assert read_machine(tmp_path / "theirs.json").links[0].ranks == 2


def test_a_rank_that_nobody_launched_says_so(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    rank = [sys.executable, "-m", "stallwise.machine.link_rank"]
    done = subprocess.run(rank, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 2
    assert done.stderr.startswith("stallwise: RANK is not set")


def under_way(folder: Path) -> Profiled:
    """A probe whose ranks are measuring."""
    job = probing(folder, "--nproc-per-node", "2", "--max-time", "60s")
    wait_for_line(job.process, "0% done")
    return job


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_interrupted_probe_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    job = under_way(tmp_path)
    job.interrupt(number)
    job.ended(130)
    assert "interrupted; nothing was written" in job.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_killed_launcher_takes_its_ranks_along(tmp_path: Path) -> None:
    job = under_way(tmp_path)
    job.interrupt(signal.SIGKILL)
    job.ended(-signal.SIGKILL)


def test_a_rank_that_dies_ends_the_probe_in_a_sentence(tmp_path: Path) -> None:
    job = under_way(tmp_path)
    ranks = [p for p in marked(job.mark) if "--folder" in p.cmdline() and "torch.distributed.run" not in p.cmdline()]
    assert len(ranks) == 2
    ranks[1].kill()
    job.ended(2)
    assert "stallwise: The ranks could not" in job.said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "at least two ranks"),
        (("--nproc-per-node", "1"), "at least two ranks"),
        (("--nproc-per-node", "2", "--max-time", "0s"), "--max-time takes a time"),
        (("--nproc-per-node", "2", "--max-time", "nan"), "is not a time"),
        (("--nproc-per-node", "2", "--max-message", "0MiB"), "--max-message takes a size"),
        (("--nproc-per-node", "2", "-o", "/dev/null/machine.json"), "cannot be written"),
        (("--nproc-per-node", "2", "-o", "."), "is a folder"),
        (("--nnodes", "2"), "find each other. Options: --master-addr"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(cli: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    done = cli("probe", *arguments, code=2)
    assert done.stdout == ""
    assert sentence in done.stderr


@pytest.mark.soak
def test_nccl_without_gpus_is_refused_by_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # also on a machine that has some
    job = probing(tmp_path, "--nproc-per-node", "2", "--backend", "nccl").ended(2)
    assert "has no GPU of its own" in job.said
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_does_not_come_is_not_waited_for_without_end(tmp_path: Path) -> None:
    address = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", free_port())
    job = probing(tmp_path, *address, "--wait", "3s").ended(2)
    assert "did not find each other within 3 s" in job.said


def test_which_ranks_exchange() -> None:
    assert scopes([0, 0, 0]) == {"inside": [[0, 1, 2]]}
    assert scopes([0, 1, 2]) == {"between": [[0, 1, 2]]}
    assert scopes([0, 0, 1, 1]) == {"inside": [[0, 1], [2, 3]], "between": [[0, 2]], "all": [[0, 1, 2, 3]]}
    assert scopes([0, 1, 1]) == {"inside": [[1, 2]], "between": [[0, 1]], "all": [[0, 1, 2]]}


def test_the_slowest_rank_is_the_time() -> None:
    sizes = [4 * KIB << n for n in range(8)]
    fast = {size: [1e-4 + 1e-9 * size] * 6 for size in sizes}
    slow = {size: [2e-4 + 2e-9 * size] * 6 for size in sizes}
    made = link_record([fast, slow], scope="between", ranks=2, nodes=2, backend="gloo")
    assert cost_of(made).time_s(MIB) == pytest.approx(2e-4 + 2e-9 * MIB)
    residuals = [point.time_s / cost_of(made).time_s(point.size_bytes) - 1 for point in made.points]
    assert max(map(abs, residuals)) < 1e-9


def test_a_record_with_impossible_numbers_gives_no_cost() -> None:
    import msgspec

    made = link_record(
        [{size: [1e-9 * size] * 6 for size in (4096, 8192, 16384)}], scope="all", ranks=2, nodes=2, backend="gloo"
    )
    broken = msgspec.structs.replace(made.fit.large, s_per_byte=-1.0)
    with pytest.raises(InputError, match="finite and not negative"):
        cost_of(msgspec.structs.replace(made, fit=msgspec.structs.replace(made.fit, large=broken)))


@pytest.mark.truth
@pytest.mark.parametrize("rate_mbit", [1000, pytest.param(400, marks=pytest.mark.soak)])
def test_the_rate_of_a_link_is_found_and_carries_over_to_more_ranks(
    tmp_path: Path, rate_mbit: int, figures: Figures
) -> None:
    """Two hosts, two ranks each. Bars, written beforehand: 10 % of ring theory; 10 % from two ranks to four.

    In a ring of two, every byte of the message crosses the link once in each direction.
    """
    address = ("--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "10.99.0.1", "--master-port", free_port())
    options = ("--max-time", "10s", "--max-message", "16MiB", "-o", str(tmp_path / "machine.json"))
    with two_hosts() as hosts:
        shape(hosts, rate_mbit)
        started = [
            subprocess.Popen(
                host.command(sys.executable, "-m", "stallwise", "probe", *address, "--node-rank", str(n), *options),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n, host in enumerate(hosts)
        ]
        try:
            ended = [process.communicate(timeout=250) for process in started]
        finally:
            for process in started:
                process.kill()
    assert [process.returncode for process in started] == [0, 0], ended
    record = read_machine(tmp_path / "machine.json")
    between, every = link(record, "between"), link(record, "all")
    name = f"probe of {rate_mbit} Mb/s"
    per_byte_s = between.fit.large.s_per_byte
    figures.judge(f"{name}: a byte", 1e9 * per_byte_s, 1e9 * 8 / (rate_mbit * 1e6), rel=0.10, unit="ns")
    largest = every.points[-1]
    assert largest.size_bytes >= 4 * MIB
    told_s = rescale(cost_of(between), 2, 4).time_s(largest.size_bytes)
    figures.judge(f"{name}: from two ranks to four", told_s, largest.time_s, rel=0.10)
    inside = link(record, "inside").points
    figures.at_least(f"{name}: longest over shortest inside", inside[-1].time_s / inside[0].time_s, 2.0, unit="x")
