"""Trials: launching a job with other settings, step times per arm and round, and which settings are kept.

A step time is that of steady steps, and each step's share of the start of an epoch: with more workers steps are
shorter, but where epochs are short, starting the workers again for each of them may cost more than that.

A setting is kept only where it is certain to be faster (`tune.judgement`); of near equals the one with the fewest
workers.
"""

import contextlib
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallwise.analysis.loading import ENOUGH
from stallwise.errors import RunError
from stallwise.record.launch import Launch, ProfileOutcome, ProfileProgress, run_profile
from stallwise.record.rank.environment import RecordSettings
from stallwise.run.manifest import LoaderRecord, Manifest
from stallwise.run.reader import Run
from stallwise.tune._judgement import GainPosterior, GainPrior, Outcome, gain_posterior
from stallwise.tune.knobs import (
    BLOCKS_NAME,
    LOADERS_NAME,
    OPTIMIZER_NAME,
    BlockRecord,
    Knobs,
    LoaderFacts,
    OptimizerFacts,
    TrialBlock,
    TrialSpec,
    decode_blocks,
    decode_loaders,
    decode_optimizer,
)
from stallwise.tune.proposals import Proposal

ENTRY = "stallwise.tune"
# The profile only selects what is worth a trial; trials decide what is kept.
_COARSE = {"tightness": 0.02, "min_rounds": 5, "brief": True}
_DRAGS = 2.0  # a block that takes this many times as long as planned ends early
_ERROR = re.compile(r"^(\[rank\d+\]:\s*)?[\w.]*(Error|Exception|Interrupt)\b.*:")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimes:
    """Mean steps of one arm, one per round; rounds of all arms are neighbours in time."""

    knobs: Knobs
    rounds: tuple[float, ...]
    start_s: float = 0.0
    """Seconds from the start of the workers to the first batch, as at the beginning of an epoch; each step has its
    share of them."""

    @property
    def step_s(self) -> float:
        """Seconds of a step: the median over rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """Range of the rounds as a fraction of the median."""
        return (max(self.rounds) - min(self.rounds)) / self.step_s


def check_end(outcome: ProfileOutcome) -> None:
    """Raise a `RunError` where the job did not complete its trial."""
    if outcome.interrupted:
        raise KeyboardInterrupt
    why = outcome.manifest.partial_reason or "the job ended early"
    if outcome.hung:
        raise RunError(why)
    if outcome.exit_code < 0:
        raise RunError(f"the job was killed by signal {-outcome.exit_code}")
    if outcome.exit_code:
        raise RunError(f"exit code {outcome.exit_code}, {why}")


@dataclass(frozen=True, slots=True)
class BlockSize:
    """How long a block is: at least `block_s`, and so many times the arm's queue of workers × prefetched batches."""

    block_s: float
    queues: int


class BlockMean(NamedTuple):
    """The mean step of one block, its share of beginning an epoch included."""

    step_s: float
    arm: int
    start_s: float = 0.0


def blocks_of(
    arms: Sequence[Knobs],
    loader: LoaderFacts,
    steps_s: Sequence[float],
    *,
    rounds: int,
    size: BlockSize,
    fetches: float,
) -> tuple[TrialBlock, ...]:
    """Plan rounds of one block of every arm each, every second round in reverse order, so that drift affects all
    equally.

    Before a block counts, the queue that starting workers fill has been used up and filled again (short of time, used
    up): what it holds says nothing about how fast the arm delivers.
    """
    single = [_block(arm, knobs, loader, steps_s[arm], size, fetches) for arm, knobs in enumerate(arms)]
    turns = [single if number % 2 == 0 else single[::-1] for number in range(rounds)]
    blocks = [block for turn in turns for block in turn]
    # The job itself warms up once: compilers, allocators, page cache.
    first = blocks[0]
    return (msgspec.structs.replace(first, settle=first.settle + round(10 * fetches)), *blocks[1:])


def _block(arm: int, knobs: Knobs, loader: LoaderFacts, step_s: float, size: BlockSize, fetches: float) -> TrialBlock:
    workers = loader.num_workers if knobs.num_workers is None else knobs.num_workers
    depth = (knobs.prefetch_factor or loader.prefetch_factor or 2) if workers else 1
    quantum = max(1, workers)
    queue = workers * depth
    least_batches = max(size.block_s / step_s * fetches, 6.0 * fetches, size.queues * queue)
    batches = -(-max(round(least_batches), quantum) // quantum) * quantum
    settle = min(2, size.queues) * queue + max(2, round(2 * fetches))
    most_s = _DRAGS * max(size.block_s, batches / fetches * step_s)
    return TrialBlock(arm=arm, settle=settle, batches=batches, quantum=quantum, most_s=most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRunner:
    """Launches profiles and trials of one job, in folders below `folder`."""

    launch: Launch
    folder: Path
    """Folder of all trials; it is removed at the end."""
    job_stdout: int | None
    progress: Callable[[ProfileProgress], None]

    def profile(self, max_s: float) -> tuple[Run, tuple[LoaderFacts, ...], OptimizerFacts | None, ProfileOutcome]:
        """Profile the job; returns the run, its loaders, its optimizer and the outcome."""
        notes = Path(tempfile.mkdtemp(prefix="profile-", dir=self.folder))
        launch = replace(
            self.launch,
            settings=_replaced(self.launch.settings, max_s=max_s, **_COARSE),
            entry=ENTRY,
            environment=TrialSpec(folder=str(notes)).to_environment(),
        )
        outcome = run_profile(launch, self.progress, self.job_stdout)
        return Run.open(launch.folder), _loaders(notes), _optimizer(notes), outcome

    def run(self, trial: TrialSpec, *, fetches: float, epoch_steps: float | None) -> tuple[BlockMean, ...]:
        """Launch one trial; returns the mean step of each block that was measured.

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
        means = _means(run_folder, _blocks(notes), outcome.manifest, trial, fetches=fetches, epoch_steps=epoch_steps)
        shutil.rmtree(notes)  # scratch and cache of this trial; the next one fills its own
        return means


def _last_words(output: Path) -> str:
    """The last line that names an error, as at the end of a traceback."""
    lines = output.read_text(errors="replace").splitlines()
    message = next((line.strip() for line in reversed(lines) if _ERROR.match(line)), None)
    return f" ({message[:200]})" if message else ""


def _replaced(settings: RecordSettings, **changes: Any) -> RecordSettings:
    return msgspec.structs.replace(settings, **changes)


def _loaders(notes: Path) -> tuple[LoaderFacts, ...]:
    with contextlib.suppress(FileNotFoundError):
        return decode_loaders((notes / LOADERS_NAME).read_bytes())
    return ()


def _optimizer(notes: Path) -> OptimizerFacts | None:
    with contextlib.suppress(FileNotFoundError):
        return decode_optimizer((notes / OPTIMIZER_NAME).read_bytes())
    return None


def _blocks(notes: Path) -> tuple[BlockRecord, ...]:
    with contextlib.suppress(FileNotFoundError):
        return decode_blocks((notes / BLOCKS_NAME).read_bytes())
    return ()


def _means(
    folder: Path,
    ran: Sequence[BlockRecord],
    manifest: Manifest,
    trial: TrialSpec,
    *,
    fetches: float,
    epoch_steps: float | None,
) -> tuple[BlockMean, ...]:
    """Mean over the steps of rank 0 that began in each block, without checkpoints, evaluation and the like.

    The first batch of an epoch takes `start_s`, and the ones that the other workers prepared meanwhile need no wait:
    what is left is the epoch's. Where, in a launch with one setting, an epoch is so short that all of it comes from the
    first queue, its first steps are among those measured already.
    """
    loader = manifest.loader
    whole_epochs = not trial.arms and epoch_steps is not None and epoch_steps * fetches <= _unsteady_batches(loader)
    if whole_epochs:
        epoch_steps = None
    zero_s = next((rank.clock_zero_s for rank in manifest.ranks if rank.rank == 0), None) or 0.0
    steps = Run.open(folder).table("steps")
    steps = steps.filter(steps["kept"].is_true() & steps["rank"].equals(0) & ~steps["start_s"].null)
    means = []
    for block in ran:
        starts_s = steps["start_s"].values
        inside = steps.filter((starts_s >= block.begin_s - zero_s) & (starts_s < block.end_s - zero_s))
        mean_s = inside["duration_s"].mean()
        if mean_s is not None:
            wait_s = (inside["data_wait_s"].mean() or 0.0) / fetches
            arm = trial.fixed.with_(trial.arms[block.arm]) if trial.arms else trial.fixed
            workers = (loader.num_workers if loader else 0) if arm.num_workers is None else arm.num_workers
            at_once = max(1.0, min(float(workers), (epoch_steps or 0.0) * fetches))
            epoch_s = max(0.0, block.start_s - at_once * wait_s) / epoch_steps if epoch_steps else 0.0
            means.append(BlockMean(mean_s + epoch_s, block.arm, block.start_s))
    return tuple(means)


def _unsteady_batches(loader: LoaderRecord | None) -> int:
    """Length of the longest epoch that has no steady batches (`record.ablate.loader.BatchSource`)."""
    return 0 if loader is None else loader.num_workers * ((loader.prefetch_factor or 2) + 1)


def rounds_of(means: Sequence[BlockMean], arms: Sequence[Knobs]) -> tuple[ArmTimes, ...]:
    """Group block means by arm; only rounds that every arm completed count."""
    blocks: list[list[BlockMean]] = [[] for _ in arms]
    for mean in means:
        blocks[mean.arm].append(mean)
    whole = min(map(len, blocks), default=0)
    if not whole:
        return ()
    return tuple(
        ArmTimes(
            knobs=knobs,
            rounds=tuple(mean.step_s for mean in of_arm[:whole]),
            start_s=statistics.fmean(mean.start_s for mean in of_arm[:whole]),
        )
        for knobs, of_arm in zip(arms, blocks, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal and its times, with those of the settings it was tried on top of."""

    proposal: Proposal
    before: ArmTimes
    after: ArmTimes
    kept: bool = False

    @property
    def gains(self) -> tuple[float, ...]:
        """Fraction of the step that was saved, per round."""
        return gains_of(self.before, self.after)

    @property
    def gain(self) -> float:
        """Median gain over rounds."""
        return statistics.median(self.gains)

    @property
    def posterior(self) -> GainPosterior:
        """The gain, from the rounds and the prediction together."""
        return gain_posterior(self.before.rounds, self.after.rounds, prior_of(self.proposal))

    @property
    def outcome(self) -> Outcome:
        """Whether it is better than what it was tried against; what measured slower never is."""
        outcome = self.posterior.outcome
        return "inconclusive" if outcome == "better" and self.gain <= 0 else outcome

    @property
    def helps(self) -> bool:
        """Whether it is certain to be better."""
        return self.outcome == "better"


def prior_of(proposal: Proposal) -> GainPrior:
    """The prediction as the prior of a trial."""
    return GainPrior(gain=proposal.gain, low=proposal.low, high=proposal.high)


def gains_of(before: ArmTimes, after: ArmTimes) -> tuple[float, ...]:
    """Fraction of the step that was saved, round by round, so that neighbours in time are compared."""
    return tuple(1 - b / a for a, b in zip(before.rounds, after.rounds, strict=True))


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt with the fewest workers among those within 2 % of the fastest; None where none helps."""
    helping = [one for one in attempts if one.helps]
    if not helping:
        return None
    fastest_s = min(one.after.step_s for one in helping)
    near = [one for one in helping if one.after.step_s <= ENOUGH * fastest_s]
    return min(near, key=lambda one: (one.proposal.knobs.num_workers or 0, one.after.step_s))
