"""One rank of a link probe: all-reduces over sizes, in turns, timed on the slowest rank.

    python -m stallwise.machine.link_rank -o machine.json

under any launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; `stallwise probe` starts it under torchrun.
Three links can be told apart: *inside* a node (all nodes at once), *between* nodes (one rank of each) and *all* ranks.

1. Sizes are tried from small to large, until the next one would not fit into the time budget five times over.
2. Rounds of all sizes in random order, the same on every rank, until the budget or the number of rounds is reached.
   One sample is several all-reduces in a row after a synchronising one; small messages are repeated for 10 ms.
3. A sample's time is that of the slowest rank; a size's time the median over rounds.
"""

import argparse
import contextlib
import itertools
import os
import platform
import random
import re
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from stallwise._version import __version__
from stallwise.errors import InputError, StallwiseError
from stallwise.hardware.machine import HostRecord, LinkRecord, MachineRecord, Scope, encode_machine
from stallwise.machine.links import ERROR_NAME, PROGRESS_NAME, ProbeProgress, Samples, link_record, scopes
from stallwise.record.messages import gather
from stallwise.record.node import this_node
from stallwise.record.processes import die_with_parent
from stallwise.run.atomic import write_atomically
from stallwise.sentences import Sentence
from stallwise.units import KIB

INTERRUPTED = 130

_SMALLEST_BYTES = 4 * KIB
_SAMPLE_S = 0.010
_MAX_IN_A_ROW = 100
_MIN_ROUNDS = 5
_MAX_ROUNDS = 40
_JOIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRankOptions:
    """Parsed arguments. `folder` is where the launcher looks for progress and errors; None under other launchers."""

    out: Path
    backend: str | None
    max_s: float
    max_bytes: int
    folder: Path | None


def main(arguments: Sequence[str]) -> int:
    """Probe, and write the record on rank 0; an error is one sentence on stderr and exit code 2."""
    options = _parse(arguments)
    if options.folder:
        # Only below our own launcher: another one may start ranks from a thread that ends.
        die_with_parent()
    try:
        _probe(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except StallwiseError as error:
        return _fail(options, str(error))
    except (RuntimeError, ValueError, OSError) as error:
        return _fail(options, _exchange_failure(error))
    return 0


def _parse(arguments: Sequence[str]) -> LinkRankOptions:
    parser = argparse.ArgumentParser(prog="python -m stallwise.machine.link_rank", description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("machine.json"))
    parser.add_argument("--backend", choices=("gloo", "nccl"))
    parser.add_argument("--max-time", dest="max_s", type=float, default=45.0)
    parser.add_argument("--max-bytes", type=int, default=64 * KIB * KIB)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return LinkRankOptions(**vars(parser.parse_args(arguments)))


def _exchange_failure(error: Exception) -> str:
    """A sentence with torch's first sentence, without the position in its source."""
    lines = re.sub(r"^\[[^\]]*\]\s*", "", str(error).strip()).splitlines() or [type(error).__name__]
    return (
        f"The ranks could not exchange data ({lines[0].partition('. ')[0].rstrip('.')}). Check that all of them run; "
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the interface to use."
    )


def _fail(options: LinkRankOptions, sentence: str) -> int:
    if options.folder:
        # Ranks that fail later do so because of the first.
        with contextlib.suppress(FileExistsError), (options.folder / ERROR_NAME).open("x") as file:
            file.write(sentence)
    else:
        sys.stderr.write(f"stallwise: {sentence}\n")
    return 2


class ProbeReporter:
    """Writes progress for the launcher, one rank per node; under other launchers rank 0 prints it on stderr."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._printed = ""

    def report(self, doing: str, done: float) -> None:
        """Report what is measured and the fraction done; under other launchers one line for each measurement."""
        if self._folder and os.environ.get("LOCAL_RANK", "0") == "0":
            path = self._folder / PROGRESS_NAME
            path.with_suffix(".new").write_bytes(msgspec.json.encode(ProbeProgress(doing=doing, done=done)))
            path.with_suffix(".new").replace(path)
        elif not self._folder and os.environ["RANK"] == "0" and doing != self._printed:
            self._printed = doing
            sys.stderr.write(f"stallwise: {doing}\n")


def _probe(options: LinkRankOptions) -> None:
    device, backend = _join(options)
    reporter = ProbeReporter(options.folder)
    node_of, hosts = _meet(device)
    groups = {scope: [dist.new_group(ranks) for ranks in of_scope] for scope, of_scope in scopes(node_of).items()}
    buffer = torch.zeros(options.max_bytes // 4, dtype=torch.float32, device=device)
    links = []
    for scope, of_scope in scopes(node_of).items():
        own_group = next((groups[scope][n] for n, ranks in enumerate(of_scope) if dist.get_rank() in ranks), None)
        exchange = AllReduceTimer(buffer, own_group)
        samples = measure(
            exchange, options.max_s / len(groups), options.max_bytes, reporter, _description(scope, of_scope)
        )
        links.append(_link(samples, scope, of_scope, node_of, backend, device))
    if dist.get_rank() == 0:
        measured = tuple(link for link in links if link is not None)
        write_atomically(options.out, encode_machine(_record(measured, node_of, hosts, device, options)))
    dist.barrier()  # no rank ends before the record is written
    dist.destroy_process_group()


def _join(options: LinkRankOptions) -> tuple[torch.device, str]:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise InputError(f"{name} is not set: start this rank by stallwise probe, torchrun or another launcher.")
    local, local_size = (int(os.environ.get(name, default)) for name, default in _LOCAL)
    backend = options.backend or ("nccl" if torch.cuda.device_count() >= local_size else "gloo")
    if int(os.environ["WORLD_SIZE"]) < 2:
        raise InputError("An all-reduce takes at least two ranks. Start more.", fields=("nproc_per_node",))
    if backend == "nccl":
        if torch.cuda.device_count() <= local:
            raise InputError(
                f"Rank {os.environ['RANK']} has no GPU of its own ({torch.cuda.device_count()} here), which nccl "
                "needs. Start as many processes per node as it has GPUs, or use the gloo backend.",
                fields=("nproc_per_node", "backend"),
            )
        torch.cuda.set_device(local)
    dist.init_process_group(backend, timeout=timedelta(seconds=_JOIN_S))
    return torch.device("cuda", local) if backend == "nccl" else torch.device("cpu"), backend


_LOCAL = (("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1"))


def _meet(device: torch.device) -> tuple[list[int], tuple[HostRecord, ...]]:
    """The node of every rank, numbered from 0, and each node's hardware."""
    # torchrun numbers nodes; other launchers are known by host name, which does not get into the record.
    own_name = os.environ.get("GROUP_RANK") or socket.gethostname()
    rank_names = gather(own_name, type=str, device=device)
    names = list(dict.fromkeys(rank_names))
    node_of = [names.index(name) for name in rank_names]
    first = node_of.index(node_of[dist.get_rank()]) == dist.get_rank()
    own = _host(node_of[dist.get_rank()]) if first else None
    facts = gather(own, type=HostRecord | None, device=device)
    return node_of, tuple(host for host in facts if host is not None)


def _host(number: int) -> HostRecord:
    node = this_node(number)
    return HostRecord(
        node=number, cpu_model=node.cpu_model, cores=node.cores, memory_bytes=node.memory_bytes, gpus=node.gpus
    )


class AllReduceTimer:
    """All-reduces of the first bytes of a buffer over one group; nothing on ranks outside it."""

    def __init__(self, buffer: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self._buffer, self._group = buffer, group

    def sample_s(self, size_bytes: int, in_a_row: int) -> float:
        """Seconds of one all-reduce, from a common start. The buffer holds zeros, so sums do not change it."""
        if self._group is None:
            return 0.0
        message = self._buffer[: size_bytes // 4]
        dist.all_reduce(self._buffer[:1], group=self._group)
        self._finish()
        begin_s = time.perf_counter()
        for _ in range(in_a_row):
            dist.all_reduce(message, group=self._group)
        self._finish()
        return (time.perf_counter() - begin_s) / in_a_row

    def slowest(self, value: float) -> float:
        """The largest of all ranks' values, the same everywhere: what follows is decided alike on every rank."""
        shared = torch.tensor([value], dtype=torch.float64, device=self._buffer.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared.item())

    def _finish(self) -> None:
        if self._buffer.is_cuda:
            torch.cuda.synchronize()


def measure(exchange: AllReduceTimer, budget_s: float, max_bytes: int, reporter: ProbeReporter, doing: str) -> Samples:
    """Seconds of this rank by size, one per round."""
    began_s = time.monotonic()
    reporter.report(doing, 0.0)
    in_a_row = _affordable(exchange, budget_s, max_bytes)
    samples: Samples = {size: [] for size in in_a_row}
    for number in range(_MAX_ROUNDS):
        sizes = list(in_a_row)
        random.Random(number).shuffle(sizes)  # noqa: S311 - an order, the same on all ranks
        for size in sizes:
            samples[size].append(exchange.sample_s(size, in_a_row[size]))
        spent = exchange.slowest((time.monotonic() - began_s) / budget_s)
        reporter.report(doing, min(1.0, max(spent, (number + 1) / _MAX_ROUNDS)))
        # Another round takes as long as the ones before on average.
        if spent * (number + 2) / (number + 1) > 1 and number + 1 >= _MIN_ROUNDS:
            break
    return samples


def _affordable(exchange: AllReduceTimer, budget_s: float, max_bytes: int) -> dict[int, int]:
    """Sizes to measure, and how many all-reduces of each make a sample."""
    in_a_row: dict[int, int] = {}
    round_s = 0.0
    for size in itertools.takewhile(lambda size: size <= max_bytes, (_SMALLEST_BYTES << n for n in itertools.count())):
        exchange.sample_s(size, 1)  # the first of a size sets up buffers
        once_s = max(exchange.slowest(exchange.sample_s(size, 2 if round_s < _SAMPLE_S else 1)), 1e-7)
        in_a_row[size] = max(1, min(_MAX_IN_A_ROW, round(_SAMPLE_S / once_s)))
        round_s += in_a_row[size] * once_s
        # The next size takes twice as long, and is sent twice here before it is measured.
        if (round_s + 2 * once_s) * _MIN_ROUNDS + 4 * once_s > budget_s:
            break
    return in_a_row


def _description(scope: Scope, of_scope: Sequence[Sequence[int]]) -> str:
    where = {"inside": "inside each node", "between": "between nodes", "all": "across all nodes"}[scope]
    return f"all-reduce of {len(of_scope[0])} ranks {where}"


def _link(
    samples: Samples,
    scope: Scope,
    of_scope: Sequence[Sequence[int]],
    node_of: Sequence[int],
    backend: str,
    device: torch.device,
) -> LinkRecord | None:
    """Gather all ranks' samples; on rank 0 the record of the link, None elsewhere."""
    gathered = gather(samples, type=Samples, device=device)
    if dist.get_rank() != 0:
        return None
    largest = max(of_scope, key=len)
    members = [gathered[rank] for ranks in of_scope for rank in ranks]
    nodes = len({node_of[rank] for rank in largest})
    return link_record(members, scope=scope, ranks=len(largest), nodes=nodes, backend=backend)


def _record(
    links: tuple[LinkRecord, ...],
    node_of: Sequence[int],
    hosts: tuple[HostRecord, ...],
    device: torch.device,
    options: LinkRankOptions,
) -> MachineRecord:
    software = {"python": platform.python_version(), "torch": str(torch.__version__), "system": platform.system()}
    if device.type == "cuda":
        software["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return MachineRecord(
        created=datetime.now(UTC),
        stallwise_version=__version__,
        ranks=len(node_of),
        nodes=len(set(node_of)),
        hosts=hosts,
        software=software,
        links=links,
        notes=_notes(links, options),
    )


def _notes(links: Sequence[LinkRecord], options: LinkRankOptions) -> tuple[Sentence, ...]:
    return tuple(
        Sentence(
            "links.message-limit",
            f"The largest messages ({link.scope}) did not fit into {options.max_s:g} s; measured up to "
            f"{link.points[-1].size_bytes} bytes.",
            max_s=options.max_s,
            size_bytes=link.points[-1].size_bytes,
        )
        for link in links
        if 2 * link.points[-1].size_bytes <= options.max_bytes
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
