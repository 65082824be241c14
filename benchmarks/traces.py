"""Reading Kineto traces against HolisticTraceAnalysis: the same figures, in how much time and memory.

Both start as a process of their own, read the same files and print idle, compute, non-compute and kernel time and the
overlap of each rank; wall time and the largest resident memory (`VmHWM`, without the peer's helper processes) are those
of the whole process. The 100 MB trace is a
real one (pytorch/kineto's ResNet-50 sample) several times over, with its own steps, times and correlations each time.
The peer reads with each of its backends (its default, and the three over ijson with yajl's C parser); of those that
give its default's figures the fastest is raced, and memory is compared with that of the one that takes the least.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.data.peers import Environment, python_of
from benchmarks.harness import Result, take_turns

HTA = Environment(
    "hta",
    (
        "HolisticTraceAnalysis==0.5.0",
        "pandas==2.3.3",
        "plotly==6.4.0",
        "narwhals==2.10.2",
        "python-dateutil==2.9.0.post0",
        "pytz==2025.2",
        "tzdata==2025.2",
        "six==1.17.0",
        "ijson==3.6.0",
    ),
)
BAR, LARGE_BYTES, READ_BAR_S, IMPORT_BAR_S = 5, 100e6, 5.0, 15.0
ROUNDS = 3
BACKENDS = ("JSON", "IJSON", "IJSON_BATCHED", "IJSON_BATCH_AND_COMPRESS")

_OURS = """
import sys, json
from pathlib import Path
from stallwise.analysis.traces._steps import rank_splits
from stallwise.run.traces._kineto import read_kineto
traces = [(int(rank), read_kineto(Path(path))) for rank, _, path in (a.partition("=") for a in sys.argv[1:])]
rows = [(s.rank, s.idle_us, s.compute_us, s.non_compute_us, s.kernel_us, s.idle_pctg, s.compute_pctg,
    s.non_compute_pctg, s.overlap_pctg) for s in rank_splits(sorted(traces, key=lambda pair: pair[0]))]
print(json.dumps([rows, int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])]))
"""
_PEER = """
import sys, json, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
from hta.common.trace_parser import set_default_trace_parsing_backend
from hta.configs.parser_config import ParserBackend
set_default_trace_parsing_backend(ParserBackend[BACKEND])
files = {int(rank): path for rank, _, path in (a.partition("=") for a in sys.argv[1:])}
found = TraceAnalysis(trace_files=files, trace_dir="/")
split = found.get_temporal_breakdown(visualize=False).to_dict("records")
both = found.get_comm_comp_overlap(visualize=False).to_dict("records")
names = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)", "idle_time_pctg",
    "compute_time_pctg", "non_compute_time_pctg"]
rows = [[s["rank"], *(s[n] for n in names), None if o["comp_comm_overlap_pctg"] != o["comp_comm_overlap_pctg"]
    else o["comp_comm_overlap_pctg"]] for s, o in zip(split, both)]
print(json.dumps([rows, int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])]))
"""


@dataclass
class Contestant:
    """One reader on one set of files: what it said last, and the memory it took."""

    python: str
    code: str
    files: dict[int, Path]
    rows: list[list[float | None]] | None = None
    memory_bytes: int = 0

    def __call__(self) -> float:
        """Wall seconds of one process."""
        names = [f"{rank}={path}" for rank, path in self.files.items()]
        start = time.perf_counter()
        done = subprocess.run(
            [self.python, "-W", "ignore", "-c", self.code, *names], capture_output=True, text=True, check=True
        )
        seconds = time.perf_counter() - start
        self.rows, kib = json.loads(done.stdout.splitlines()[-1])
        self.memory_bytes = max(self.memory_bytes, kib * 1024)
        return seconds


def measure() -> Iterator[Result]:
    """Real traces as they are, eight ranks and six of them, and the large one."""
    data = Path(os.environ.get("STALLWISE_DATA", Path(__file__).parents[2] / "shared/data")) / "kineto"
    with tempfile.TemporaryDirectory(prefix="stallwise-traces-") as name:
        folder = Path(name)
        yield from _race("A100, rank 0 of 16, 26 MB", {0: data / "hta/A100_rank0of16.json.gz"})
        yield from _race("ResNet-50 with DDP, 10 MB", {0: data / "hta/resnet50_ddp_2xA100_rank0.json.gz"})
        ranks = eight_ranks(data, folder)
        yield from _race("DLRM, 8 ranks", ranks)
        some = {rank: path for rank, path in ranks.items() if rank not in (0, 5)}
        yield from _race("DLRM, ranks 0 and 5 missing", some)
        large = large_trace(data, folder / "large.json")
        yield from _race(f"{large.stat().st_size / 1e6:.0f} MB", {0: large}, READ_BAR_S)
        yield _imported(large, folder)


def _race(name: str, files: dict[int, Path], bar_s: float | None = None) -> list[Result]:
    ours = Contestant(sys.executable, _OURS, files)
    backend, least_bytes = _peer_at_its_best(files)
    peer = _peer(files, backend)
    times = take_turns({"ours": ours, "HTA": peer}, 1 if os.environ.get("STALLWISE_BENCH_QUICK") else ROUNDS)
    ratio = times["HTA"].median_s / times["ours"].median_s
    same = ours.rows == peer.rows
    results = [
        Result(
            claim=f"{name}: the peer's figures exactly, ≥ {BAR}× as fast, in less memory",
            measured=f"{'the same' if same else 'OTHER'} figures of {len(ours.rows or ())} ranks, {ratio:.1f}×; ours "
            f"{times['ours']} and {ours.memory_bytes / 1e6:.0f} MB, HTA ({backend.lower()}) {times['HTA']} "
            f"and {peer.memory_bytes / 1e6:.0f} MB, with any backend at least {least_bytes / 1e6:.0f} MB",
            held=same and ratio >= BAR and ours.memory_bytes < least_bytes,
        )
    ]
    if bar_s is not None:
        results.append(
            Result(
                claim=f"{name} read and split within {bar_s:g} s, in less memory than the file has bytes",
                measured=f"{times['ours']}, {ours.memory_bytes / 1e6:.0f} MB",
                held=times["ours"].median_s <= bar_s
                and ours.memory_bytes < min(p.stat().st_size for p in files.values()),
            )
        )
    return results


def _peer(files: dict[int, Path], backend: str) -> Contestant:
    return Contestant(python_of(HTA), f"BACKEND = {backend!r}\n{_PEER}", files)


def _peer_at_its_best(files: dict[int, Path]) -> tuple[str, float]:
    """The fastest of its backends with its default's figures, and the least memory that one of those took."""
    seconds, least, truth = {}, float("inf"), None
    for backend in BACKENDS:
        peer = _peer(files, backend)
        try:
            took_s = peer()
        except subprocess.CalledProcessError as error:
            print(f"       HolisticTraceAnalysis with {backend.lower()} fails: {error.stderr.strip().splitlines()[-1]}")
            continue
        truth = truth or peer.rows
        if peer.rows == truth:
            seconds[backend], least = took_s, min(least, peer.memory_bytes)
        else:
            print(f"       HolisticTraceAnalysis with {backend.lower()} gives other figures than with json")
    return min(seconds, key=lambda name: seconds[name]), least


def _imported(path: Path, folder: Path) -> Result:
    start = time.perf_counter()
    command = [sys.executable, "-m", "stallwise", "trace", "import", str(path), "-o", str(folder / "run")]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    return Result(
        claim=f"{path.stat().st_size / 1e6:.0f} MB imported as a run with its critical path within {IMPORT_BAR_S:g} s",
        measured=f"{seconds:.1f} s",
        held=seconds <= IMPORT_BAR_S,
    )


def eight_ranks(data: Path, folder: Path) -> dict[int, Path]:
    """The traces of all ranks of one DLRM step."""
    with tarfile.open(data / "param/dlrm_kineto_8xV100.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    found = (folder / "dlrm_kineto").glob("worker*.json")
    return {int(path.name.removeprefix("worker").partition("_")[0]): path for path in sorted(found)}


def large_trace(data: Path, path: Path) -> Path:
    """A real trace one after the other, as often as it takes to reach 100 MB."""
    import gzip

    source = data / "kineto_resnet50/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz"
    document = msgspec.json.decode(gzip.decompress(source.read_bytes()))
    events = document.pop("traceEvents")
    last = max(event["ts"] + event.get("dur", 0) for event in events)
    first = min(event["ts"] for event in events if event["ph"] == "X")
    head = msgspec.json.format(msgspec.json.encode(document), indent=2).rstrip(b"}\n ")
    with path.open("wb") as out:
        out.write(head + b',\n  "traceEvents": [\n')
        turn = 0
        while out.tell() < LARGE_BYTES:
            text = b",\n".join(
                msgspec.json.format(msgspec.json.encode(e), indent=1) for e in _moved(events, turn, last - first)
            )
            out.write((b",\n" if turn else b"") + text)
            turn += 1
        out.write(b"\n  ]\n}\n")
    return path


def _moved(events: list[dict[str, Any]], turn: int, length: float) -> list[dict[str, Any]]:
    found = []
    for event in events:
        moved = event | {"ts": event["ts"] + turn * length}
        if event["name"].startswith("ProfilerStep#"):
            moved["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + 1000 * turn}"
        args = event.get("args")
        if isinstance(args, dict) and "correlation" in args:
            moved["args"] = args | {"correlation": args["correlation"] + turn * 10_000_000}
        found.append(moved)
    return found
