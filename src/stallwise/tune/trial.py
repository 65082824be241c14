"""Launching a job to try settings, and what came of it: step times per arm and round.

A step time is that of steady steps, and each step's part of what beginning an epoch takes: with more workers steps are
shorter, but where epochs are short, starting the workers anew for each of them may cost more than that.
"""

import contextlib
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.errors import RunError
from stallwise.record.launch import Launch, Outcome, Progress, run_profile
from stallwise.record.settings import Settings
from stallwise.run.manifest import Manifest
from stallwise.run.reader import Run
from stallwise.tune.knobs import (
    BLOCKS_NAME,
    LOADERS_NAME,
    Block,
    Knobs,
    Loader,
    Ran,
    Trial,
    decode_blocks,
    decode_loaders,
)

if TYPE_CHECKING:
    import polars

ENTRY = "stallwise.tune"
# The profile only has to say what is worth a trial; what is kept, trials decide.
_COARSE = {"tightness": 0.02, "min_rounds": 5}
# A block that takes so many times as long as it should ends early.
_DRAGS = 2.0
_ERROR = re.compile(r"^(\[rank\d+\]:\s*)?[\w.]*(Error|Exception|Interrupt)\b.*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Mean steps of one arm, one per round; rounds of all arms are neighbours in time."""

    knobs: Knobs
    rounds: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Largest less smallest round, as a part of the median."""
        return (max(self.rounds) - min(self.rounds)) / self.step_s


def check_end(outcome: Outcome) -> None:
    """A `RunError` where the job did not get through its trial."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    why = outcome.manifest.partial_reason or "the job ended early"
    if outcome.hung:
        raise RunError(why)
    if outcome.exit_code < 0:
        raise RunError(f"the job was killed by signal {-outcome.exit_code}")
    if outcome.exit_code:
        raise RunError(f"exit code {outcome.exit_code}, {why}")


def blocks_of(
    arms: Sequence[Knobs], loader: Loader, steps_s: Sequence[float], *, rounds: int, block_s: float, fetches: float
) -> tuple[Block, ...]:
    """Every round holds one block of every arm, every second round in reverse order, so that drift hits all alike.

    A block lasts about `block_s` and a whole number of the arm's queue; before it counts, the queue has been through
    once and every worker has given two batches.
    """
    single = [_block(arm, knobs, loader, steps_s[arm], block_s, fetches) for arm, knobs in enumerate(arms)]
    turns = [single if number % 2 == 0 else single[::-1] for number in range(rounds)]
    found = [block for turn in turns for block in turn]
    # The job itself warms up once: compilers, allocators, page cache.
    first = found[0]
    return (msgspec.structs.replace(first, settle=first.settle + round(10 * fetches)), *found[1:])


def _block(arm: int, knobs: Knobs, loader: Loader, step_s: float, block_s: float, fetches: float) -> Block:
    workers = loader.num_workers if knobs.num_workers is None else knobs.num_workers
    depth = (knobs.prefetch_factor or loader.prefetch_factor or 2) if workers else 1
    quantum = max(1, workers)
    wanted = max(block_s / step_s, 6.0) * fetches
    batches = -(-max(round(wanted), quantum) // quantum) * quantum
    settle = workers * depth + max(2, round(2 * fetches))
    return Block(arm=arm, settle=settle, batches=batches, quantum=quantum, most_s=_DRAGS * block_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The job, and where trials of it are written."""

    launch: Launch
    folder: Path
    """Of all trials; it is removed at the end."""
    job_stdout: int | None
    progress: Callable[[Progress], None]

    def profile(self, max_s: float) -> tuple[Run, tuple[Loader, ...], Outcome]:
        """The job taken apart, and its loaders."""
        notes = Path(tempfile.mkdtemp(prefix="profile-", dir=self.folder))
        launch = replace(
            self.launch,
            settings=_replaced(self.launch.settings, max_s=max_s, **_COARSE),
            entry=ENTRY,
            environment=Trial(folder=str(notes)).to_environment(),
        )
        outcome = run_profile(launch, self.progress, self.job_stdout)
        return Run.open(launch.folder), _loaders(notes), outcome

    def run(self, trial: Trial, *, fetches: float, epoch_steps: float | None) -> tuple[tuple[float, int], ...]:
        """One launch; (mean step, arm) of each block that was measured.

        `fetches` are batches per step; with `epoch_steps` what beginning an epoch takes is spread over so many steps.
        """
        notes = Path(tempfile.mkdtemp(prefix="trial-", dir=self.folder))
        run_folder = notes / "run"
        settings = _replaced(self.launch.settings, folder=str(run_folder), light=True, trial=True)
        trial = msgspec.structs.replace(trial, folder=str(notes), cache_folder=str(notes / "cache"))
        launch = replace(self.launch, settings=settings, entry=ENTRY, environment=trial.to_environment())
        with (notes / "output").open("wb") as output:
            outcome = run_profile(launch, lambda _: None, output.fileno(), output.fileno())
        try:
            check_end(outcome)
        except RunError as error:
            raise RunError(f"{error}{_last_words(notes / 'output')}") from None
        found = _means(run_folder, _blocks(notes), outcome.manifest, fetches=fetches, epoch_steps=epoch_steps)
        shutil.rmtree(notes)  # scratch and cache of this trial; the next one fills its own
        return found


def _last_words(output: Path) -> str:
    """The last line that names an error, as Python ends a traceback; a whole page of it would help nobody here."""
    lines = output.read_text(errors="replace").splitlines()
    said = next((line.strip() for line in reversed(lines) if _ERROR.match(line)), None)
    return f" ({said[:200]})" if said else ""


def _replaced(settings: Settings, **changes: Any) -> Settings:
    return msgspec.structs.replace(settings, **changes)


def _loaders(notes: Path) -> tuple[Loader, ...]:
    with contextlib.suppress(FileNotFoundError):
        return decode_loaders((notes / LOADERS_NAME).read_bytes())
    return ()


def _blocks(notes: Path) -> tuple[Ran, ...]:
    with contextlib.suppress(FileNotFoundError):
        return decode_blocks((notes / BLOCKS_NAME).read_bytes())
    return ()


def _means(
    folder: Path, ran: Sequence[Ran], manifest: Manifest, *, fetches: float, epoch_steps: float | None
) -> tuple[tuple[float, int], ...]:
    """Per block, the mean over the steps of rank 0 that began in it; checkpoints, evaluation and the like left out.

    The first batch of an epoch takes `start_s` instead of the wait that any batch has: the rest is the epoch's.
    """
    import polars as pl

    zero_s = next((rank.clock_zero_s for rank in manifest.ranks if rank.rank == 0), None) or 0.0
    steps: polars.DataFrame = Run.open(folder).table("steps").filter(pl.col("kept") & (pl.col("rank") == 0))
    found = []
    for block in ran:
        inside = steps.filter(pl.col("start_s").is_between(block.begin_s - zero_s, block.end_s - zero_s, closed="left"))
        mean_s, wait_s = (inside.get_column(name).mean() for name in ("duration_s", "data_wait_s"))
        if isinstance(mean_s, float):
            wait_s = wait_s / fetches if isinstance(wait_s, float) else 0.0
            epoch_s = max(0.0, block.start_s - wait_s) / epoch_steps if epoch_steps else 0.0
            found.append((mean_s + epoch_s, block.arm))
    return tuple(found)


def rounds_of(means: Sequence[tuple[float, int]], arms: Sequence[Knobs]) -> tuple[Tried, ...]:
    """Blocks sorted by arm; only rounds that every arm has been through."""
    times: list[list[float]] = [[] for _ in arms]
    for mean_s, arm in means:
        times[arm].append(mean_s)
    whole = min(map(len, times), default=0)
    if not whole:
        return ()
    return tuple(Tried(knobs=knobs, rounds=tuple(of_arm[:whole])) for knobs, of_arm in zip(arms, times, strict=True))
