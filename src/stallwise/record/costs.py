"""What loader workers wrote becomes rows of `batches` and `loads`, with the phase they were made in."""

import bisect
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from stallwise.record.loads import FACTS_SUFFIX, SUFFIX, Load, read_loads
from stallwise.record.settings import WORKERS_NAME
from stallwise.record.worker import BatchCost, read_costs
from stallwise.run.parts import RankParts
from stallwise.run.schema import BatchRow, EventRow, LoadRow
from stallwise.run.writer import write_part


class _Window(NamedTuple):
    """A step's begin, and what was measured then."""

    start_s: float
    phase: str
    block: int
    kept: bool


def collect_batches(part: RankParts) -> None:
    """Turn the worker files of one rank into parts of the `batches` and `loads` tables."""
    folder = part.folder / WORKERS_NAME
    costs = sorted(read_all(folder), key=lambda cost: cost.start_s)
    files = folder.glob(f"*{SUFFIX}")
    loads = sorted((load for path in files for load in read_loads(path)), key=lambda load: load.start_s)
    if not costs and not loads:
        return
    zero_s = part.report().clock_zero_s
    steps = part.rows("steps").select(_Window._fields)
    windows = [_Window(*row) for row in steps.iter_rows()]
    if costs:
        rows: list[tuple[Any, ...]] = [_row(part.rank, n, cost, zero_s, windows) for n, cost in enumerate(costs)]
        write_part(part, "batches", rows)
    if loads:
        write_part(part, "loads", [_load_row(part.rank, load, zero_s, windows) for load in loads])
        facts = min(folder.glob(f"*{FACTS_SUFFIX}")).read_text()
        write_part(part, "events", [EventRow(part.rank, "bucket", loads[0].start_s - zero_s, detail=facts)])
    # Once in the table they must not be collected again.
    shutil.rmtree(part.folder / WORKERS_NAME)


def read_all(folder: Path) -> list[BatchCost]:
    """Every record of every worker of one rank."""
    return [cost for path in sorted(folder.glob("*.costs")) for cost in read_costs(path)]


def reads_files(folder: Path) -> bool:
    """Whether preparing batches reads data: more than a few bytes a sample through read()."""
    costs = read_all(folder)
    samples = sum(max(cost.samples, 1) for cost in costs)
    return bool(costs) and sum(cost.read_bytes for cost in costs) > 64 * samples


def _window_at(start_s: float, windows: list[_Window]) -> _Window | None:
    """The step in which something began, if it was measured."""
    at = bisect.bisect_right(windows, start_s, key=lambda window: window.start_s) - 1
    return windows[at] if at >= 0 and windows[at].kept else None


def _load_row(rank: int, load: Load, zero_s: float, windows: list[_Window]) -> LoadRow:
    start_s = load.start_s - zero_s
    window = _window_at(start_s, windows)
    return LoadRow(
        rank=rank,
        worker=load.worker if load.worker >= 0 else None,
        start_s=start_s,
        wall_s=load.wall_s,
        samples=load.samples,
        data_bytes=load.data_bytes,
        hits=load.hits,
        requests=load.requests,
        retries=load.retries,
        fetched_bytes=load.fetched_bytes,
        network_s=load.network_s,
        cache_s=load.cache_s,
        decode_s=load.decode_s,
        queue_s=load.queue_s if load.queue_s >= 0 else None,
        phase=window.phase if window is not None else None,
    )


def _row(rank: int, number: int, cost: BatchCost, zero_s: float, windows: list[_Window]) -> BatchRow:
    start_s = cost.start_s - zero_s
    window = _window_at(start_s, windows)
    return BatchRow(
        rank=rank,
        worker=cost.worker if cost.worker >= 0 else None,
        batch=number,
        wall_s=cost.wall_s,
        start_s=start_s,
        cpu_s=cost.cpu_s,
        runqueue_wait_s=cost.runqueue_wait_s,
        blocked_s=cost.blocked_s,
        read_bytes=cost.read_bytes,
        samples=cost.samples if cost.samples >= 0 else None,
        phase=window.phase if window is not None else None,
        block=window.block if window is not None else None,
    )
