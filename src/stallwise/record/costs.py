"""What loader workers wrote becomes rows of the `batches` table, with the phase and block they were made in."""

import bisect
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from stallwise.record.settings import WORKERS_NAME
from stallwise.record.worker import BatchCost, read_costs
from stallwise.run.parts import RankParts
from stallwise.run.schema import BatchRow
from stallwise.run.writer import write_part


class _Window(NamedTuple):
    """A step's begin, and what was measured then."""

    start_s: float
    phase: str
    block: int
    kept: bool


def collect_batches(part: RankParts) -> None:
    """Turn the worker files of one rank into a part of the `batches` table."""
    costs = sorted(read_all(part.folder / WORKERS_NAME), key=lambda cost: cost.start_s)
    if not costs:
        return
    zero_s = part.report().clock_zero_s
    steps = part.rows("steps").select(_Window._fields)
    windows = [_Window(*row) for row in steps.iter_rows()]
    rows: list[tuple[Any, ...]] = [_row(part.rank, n, cost, zero_s, windows) for n, cost in enumerate(costs)]
    write_part(part, "batches", rows)
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


def _row(rank: int, number: int, cost: BatchCost, zero_s: float, windows: list[_Window]) -> BatchRow:
    start_s = cost.start_s - zero_s
    at = bisect.bisect_right(windows, start_s, key=lambda window: window.start_s) - 1
    window = windows[at] if at >= 0 else None
    measured = window is not None and window.kept
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
        phase=window.phase if window is not None and measured else None,
        block=window.block if window is not None and measured else None,
    )
