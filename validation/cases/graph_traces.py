"""Real profiler traces: DDP's buckets, the loader taken out of the path, overlap. Rows V8, V11 and V12 of section 5.

V12 is given twice: as HolisticTraceAnalysis defines it, beside what it gives itself, and over the whole file without
its rounding and its choice of steps, whose truth is kept elsewhere.
"""

import math
import statistics
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from stallwise.analysis.traces._ranks import traced_job
from stallwise.analysis.traces._steps import TracedStep, rank_splits, traced_steps
from stallwise.model.exchange.merge import Gradients, ddp_buckets
from stallwise.model.step.timeline import Breakdown, breakdown
from stallwise.run.traces._kineto import read_kineto
from stallwise.run.traces.device_trace import DeviceTrace, WorkKind
from validation.harness import Case, data_file

_LOADER = "kineto_resnet50/resnet50_num_workers_{workers}_worker0.{number}.pt.trace"
_FILES = {0: ("1623143089861", "1623143566756"), 4: ("1623212756351", "1623213129365")}


@cache
def _trace(folder: Path, name: str) -> DeviceTrace:
    return read_kineto(data_file(folder, f"kineto/{name}.json.gz"))


# V8: the buckets that DDP built are the all-reduces in the trace.

# Elements of each all-reduce, as the trace has them in every step.
_BUCKETS = {
    "ResNet-50 on 2 A100, float32": (2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040),
    "ResNet-18 on 8 MI300X, bfloat16": (2_873_320, 8_816_192),
}
# The A100 trace has no shapes: those of the same network come from another trace of it.
_SHAPES = {
    "ResNet-50 on 2 A100, float32": _LOADER.format(workers=0, number=_FILES[0][0]),
    "ResNet-18 on 8 MI300X, bfloat16": "tracelens/resnet18_ddp_8xMI300X_rank0",
}


def _bucket_elements(folder: Path, job: str) -> list[int]:
    trace = _trace(folder, _SHAPES[job])
    step = trace.steps[1]
    found = [g for g in trace.gradients if step.start_ns <= g.at_ns < step.end_ns]
    elements = [math.prod(gradient.shape or ()) for gradient in found]
    sizes = tuple(n * (gradient.element_bytes or 0) for n, gradient in zip(elements, found, strict=True))
    gradients = Gradients(tuple(range(len(sizes))), (0.0,) * len(sizes), sizes)
    return [sum(elements[i] for i in run) for run in ddp_buckets(gradients)]


def _bucket(folder: Path, job: str, number: int) -> float:
    found = _bucket_elements(folder, job)
    return float(found[number]) if number < len(found) else math.nan


def _v8() -> list[Case]:
    method = (
        "Gradients in the order autograd stored them, with their sizes in bytes; a bucket closes after the gradient "
        "with which it reaches 1 MiB (the first) or 25 MiB."
    )
    kept = {"source": "HolisticTraceAnalysis and TraceLens test traces", "method": method}
    buckets = [
        Case(
            id="graph-V8",
            case=f"{job}: elements in bucket {number}",
            published=float(truth),
            unit="elements",
            tolerance=0.0,
            compute=lambda folder, job=job, number=number: _bucket(folder, job, number),
            **kept,
        )
        for job, truths in _BUCKETS.items()
        for number, truth in enumerate(truths)
    ]
    counts = [
        Case(
            id="graph-V8",
            case=f"{job}: number of buckets",
            published=float(len(truths)),
            unit="buckets",
            tolerance=0.0,
            compute=lambda folder, job=job: float(len(_bucket_elements(folder, job))),
            **kept,
        )
        for job, truths in _BUCKETS.items()
    ]
    return [*buckets, *counts]


# V11: the loader taken out of the path.


@cache
def _steps(folder: Path, workers: int, number: str) -> tuple[TracedStep, ...]:
    job = traced_job([_trace(folder, _LOADER.format(workers=workers, number=number))])
    return tuple(step for step in traced_steps(job, job.ranks[0]) if step.number in job.kept)


def _without_loader_s(folder: Path, number: str, middle: Callable[[list[float]], float]) -> float:
    return middle([step.without_data_s for step in _steps(folder, 0, number)])


def _v11() -> list[Case]:
    method = (
        "Steps of a trace with num_workers=0 less the time in which the GPU was idle while the loop loaded its batch; "
        "the first step left out. Beside it the steps measured with num_workers=4, both files together."
    )
    # Ten steps: 124.0 126.9 126.3 163.5 116.1 and 122.0 123.2 117.9 127.1 206.5 ms.
    measured = {"median": (statistics.median, 0.1251), "mean": (statistics.fmean, 0.1354)}
    with_loader_s = {"median": (0.1765, 0.1518), "mean": (0.1746, 0.1517)}
    return [
        Case(
            id="graph-V11",
            case=f"ResNet-50 on a V100, trace {place + 1} of 2: {word} step without the loader",
            source="pytorch/kineto tb_plugin samples",
            method=method,
            published=truth,
            unit="s",
            # A quarter of the effect: of what the loader adds in that trace.
            tolerance=0.25 * (with_loader_s[word][place] - truth),
            compute=lambda folder, number=number, middle=middle: _without_loader_s(folder, number, middle),
        )
        for place, number in enumerate(_FILES[0])
        for word, (middle, truth) in measured.items()
    ]


# V12: communication that runs beside compute.

# What HolisticTraceAnalysis 0.5.0 gives: percent of communication overlapped, compute and idle percent of kernel time.
_PEER = {
    "hta/resnet50_ddp_2xA100_rank0": (14.31, 17.26, 77.78),
    "hta/trace_diff_control_A100_rank3of8": (47.03, 61.23, 16.20),
    "hta/trace_diff_test_V100_rank1of2": (68.80, 68.31, 7.47),
    "hta/A100_rank0of16": (1.37, 14.15, 69.44),
    "hta/sampled_rank0of128": (11.81, 17.71, 53.56),
    "hta/sampled_rank1of128": (20.05, 22.57, 54.72),
    "tracelens/resnet18_ddp_8xMI300X_rank0": (22.45, 30.11, 2.73),
    "DLRM rank 0": (4.50, 7.95, 49.34),
    "DLRM rank 1": (2.47, 6.65, 34.28),
    "DLRM rank 2": (7.88, 9.41, 62.08),
    "DLRM rank 3": (3.31, 6.58, 43.20),
    "DLRM rank 4": (0.56, 6.79, 53.57),
    "DLRM rank 5": (0.64, 6.35, 55.64),
    "DLRM rank 6": (7.56, 9.21, 61.80),
    "DLRM rank 7": (9.51, 9.66, 75.75),
}


@cache
def _dlrm(folder: Path) -> dict[str, DeviceTrace]:
    with (
        tempfile.TemporaryDirectory() as place,
        tarfile.open(data_file(folder, "kineto/param/dlrm_kineto_8xV100.tar.gz")) as packed,
    ):
        packed.extractall(place, filter="data")
        found = [read_kineto(path) for path in sorted((Path(place) / "dlrm_kineto").glob("worker*.json"))]
    return {f"DLRM rank {trace.rank}": trace for trace in found}


def _any(folder: Path, name: str) -> DeviceTrace:
    return _dlrm(folder)[name] if name.startswith("DLRM") else _trace(folder, name)


def _as_peer(folder: Path, name: str, figure: str) -> float:
    (found,) = rank_splits([(0, _any(folder, name))])
    return float(getattr(found, figure))


def _whole(folder: Path, name: str) -> Breakdown:
    work = _any(folder, name).work
    real = ~work.sync
    kind = work.kind[real]
    return breakdown(
        work.start_ns[real] - work.start_ns[0],
        work.end_ns[real] - work.start_ns[0],
        compute=kind == WorkKind.COMPUTE,
        sends=kind == WorkKind.COMMUNICATION,
        memory=kind == WorkKind.MEMORY,
    )


def _v12() -> list[Case]:
    figures = (("overlapped communication", "overlap_pctg"), ("compute", "compute_pctg"), ("idle", "idle_pctg"))
    beside = [
        Case(
            id="graph-V12",
            case=f"{Path(name).name}: {words}",
            source="HolisticTraceAnalysis 0.5.0 on the same file",
            method="Unions and intersections of kernels' times by the peer's rules of rounding and of steps.",
            published=truth,
            unit="%",
            tolerance=0.0,
            compute=lambda folder, name=name, figure=figure: _as_peer(folder, name, figure),
        )
        for name, truths in _PEER.items()
        for (words, figure), truth in zip(figures, truths, strict=True)
    ]
    parts: tuple[tuple[str, Callable[[Breakdown], float]], ...] = (
        ("communication", lambda split: split.communication / 1e6),
        ("communication overlapped by compute", lambda split: split.overlap / 1e6),
        ("compute", lambda split: split.compute / 1e6),
    )
    kept = [
        Case(
            id="graph-V12",
            case=f"{Path(name).name}, whole file: {words}",
            source="the kernels of the file",
            method="Unions and intersections of all kernels' times in the file, to the nanosecond.",
            published=None,
            unit="ms",
            tolerance=0.001,
            compute=lambda folder, name=name, part=part: part(_whole(folder, name)),
        )
        for name in _PEER
        for words, part in parts
    ]
    return [*beside, *kept]


CASES = (*_v8(), *_v11(), *_v12())
