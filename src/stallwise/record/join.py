"""Joining what the ranks of a job wrote into one run, the files of their loader workers included.

    python -m stallwise.record.join RUN

does it in a process of its own: the training process must not load what reading tables needs.
"""

import bisect
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stallwise.errors import StallwiseError
from stallwise.record._files import LAYER_NAME, remove_tree
from stallwise.record.observe.worker import (
    COSTS_SUFFIX,
    FACTS_SUFFIX,
    LOADS_SUFFIX,
    BatchCost,
    BatchLoad,
    read_all_costs,
    read_loads,
)
from stallwise.record.rank.environment import WORKERS_NAME
from stallwise.run.join import PARTS_NAME, RankParts, find_parts, join
from stallwise.run.manifest import Manifest, read_manifest
from stallwise.run.schema import BatchRow, EventRow, LoadRow
from stallwise.run.writer import write_part
from stallwise.sentences import Sentence


def main(arguments: Sequence[str]) -> int:
    """Join the run in a folder; what goes wrong is one sentence on stderr and exit code 2."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m stallwise.record.join RUN\n")
        return 2
    try:
        join_parts(Path(arguments[0]))
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        return 2
    return 0


def join_parts(
    folder: Path,
    *,
    others: tuple[Path, ...] = (),
    exit_code: int | None = None,
    reason: Sentence | None = None,
    notes: Sequence[Sentence] = (),
) -> Manifest:
    """Join a run, what its loader workers wrote included. The folders in `others` are only read."""
    with tempfile.TemporaryDirectory(prefix="stallwise-join-") as aside:
        copies = tuple(_with_batches(other, Path(aside, str(n))) for n, other in enumerate(others))
        for part in find_parts([folder]):
            collect_batches(part)
        manifest = join(folder, others=copies, exit_code=exit_code, reason=reason, notes=notes)
    remove_tree(folder / LAYER_NAME)  # left where the launcher was killed
    return manifest


def _with_batches(folder: Path, copy: Path) -> Path:
    """`folder`, or a copy of it where worker files remain to be collected."""
    read_manifest(folder)  # raises where the folder is no run
    if not any(folder.glob(f"{PARTS_NAME}/rank-*/{WORKERS_NAME}/*{COSTS_SUFFIX}")):
        return folder
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("scratch"))
    for part in find_parts([copy]):
        collect_batches(part)
    return copy


class _Window(NamedTuple):
    """The begin of a step, with its phase, block and whether it was kept."""

    start_s: float
    phase: str
    block: int
    kept: bool


def collect_batches(part: RankParts) -> None:
    """Turn the worker files of one rank into parts of the `batches` and `loads` tables, each row with its phase."""
    folder = part.folder / WORKERS_NAME
    costs = sorted(read_all_costs(folder), key=lambda cost: cost.start_s)
    files = folder.glob(f"*{LOADS_SUFFIX}")
    loads = sorted((load for path in files for load in read_loads(path)), key=lambda load: load.start_s)
    if not costs and not loads:
        return
    zero_s = part.report().clock_zero_s
    steps = part.rows("steps").select(*_Window._fields)
    windows = [_Window(*row) for row in steps.rows()]
    if costs:
        rows: list[tuple[Any, ...]] = [_batch_row(part.rank, n, cost, zero_s, windows) for n, cost in enumerate(costs)]
        write_part(part, "batches", rows)
    if loads:
        write_part(part, "loads", [_load_row(part.rank, load, zero_s, windows) for load in loads])
        facts = min(folder.glob(f"*{FACTS_SUFFIX}")).read_text()
        write_part(part, "events", [EventRow(part.rank, "bucket", loads[0].start_s - zero_s, detail=facts)])
    # Once in the table they must not be collected again.
    shutil.rmtree(folder)


def _window_at(start_s: float, windows: list[_Window]) -> _Window | None:
    """The step during which something began; None where that step was not kept."""
    at = bisect.bisect_right(windows, start_s, key=lambda window: window.start_s) - 1
    return windows[at] if at >= 0 and windows[at].kept else None


def _load_row(rank: int, load: BatchLoad, zero_s: float, windows: list[_Window]) -> LoadRow:
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


def _batch_row(rank: int, number: int, cost: BatchCost, zero_s: float, windows: list[_Window]) -> BatchRow:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
