"""Tune a job: profile it, propose settings, try them in turns, keep what helps.

1. The job is profiled once. Settings that the model gives a gain of 5 % or more are proposed.
2. They are tried in stages, the ones that change most first, each on top of what was kept before. Loader settings of a
   loader that torch's own samplers feed are switched while the job runs; all others need a launch per round and arm.
   Rounds go through the arms forwards and backwards, so that drift affects all equally.
3. Rounds go on until every setting has won or lost, or the time is spent. A setting is kept where it is at least 3 %
   faster with a probability of 95 % (`tune.judgement`). Where the most workers that were tried are the best and data
   still limits the step, more are tried.
4. Where settings of several stages were kept, all of them together are measured once more against none.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from stallwise.analysis.analysis import open_run
from stallwise.analysis.loading import most_workers
from stallwise.analysis.profile import Profile
from stallwise.errors import RunError
from stallwise.machine.probe import measure_crowding
from stallwise.record.launch import ProfileOutcome
from stallwise.sentences import Sentence
from stallwise.tune._advice import TuneAdvice, advice_on
from stallwise.tune._facts import JobFacts, job_facts
from stallwise.tune._judgement import LEAST_ROUNDS, GainPrior, is_decided
from stallwise.tune.knobs import NONE, Knobs, LoaderFacts, TrialBlock, TrialSpec
from stallwise.tune.proposals import (
    FARTHER,
    WORTH_TRYING,
    Proposal,
    compiled,
    persistent,
    proposals,
    rebased,
    with_workers,
)
from stallwise.tune.trials import (
    ArmTimes,
    Attempt,
    BlockMean,
    BlockSize,
    TrialRunner,
    best_of,
    blocks_of,
    gains_of,
    prior_of,
    rounds_of,
)

if TYPE_CHECKING:
    from stallwise.run.table import Table


TuneVerdict = Literal["kept", "nothing helps", "inconclusive", "nothing proposed", "predicted", "not tried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The result of a tuning. The field names are keys of its JSON document."""

    profile: Profile
    loader: LoaderFacts | None
    proposals: tuple[Proposal, ...]
    attempts: tuple[Attempt, ...] = ()
    kept: Knobs = NONE
    before: ArmTimes | None = None
    """The script's own settings, in the same rounds as `after`; None where nothing was kept."""
    after: ArmTimes | None = None
    predicted_gain: float | None = None
    """Predicted gain of the settings that were kept."""
    advice: tuple[TuneAdvice, ...] = ()
    dry_run: bool = False
    interrupted: bool = False
    notes: tuple[Sentence, ...] = ()
    seconds: float = 0.0
    optimizer: str | None = None
    """Class of the script's optimizer; None where no step was timed."""

    @property
    def verdict(self) -> TuneVerdict:
        """The answer as a code."""
        if self.kept.as_dict():
            return "kept"
        if not self.proposals:
            return "nothing proposed"
        if self.dry_run:
            return "predicted"
        if not self.attempts:
            return "not tried"
        outcomes = {one.outcome for one in self.attempts}
        tried = {one.proposal.knobs for one in self.attempts}
        untried = any(one.knobs not in tried and one.gain >= self.attempts[0].proposal.gain for one in self.proposals)
        return "inconclusive" if "inconclusive" in outcomes or untried else "nothing helps"

    @property
    def best_undecided(self) -> Attempt | None:
        """The attempt that most probably helps, of those that neither won nor lost."""
        undecided = [one for one in self.attempts if one.outcome == "inconclusive"]
        return max(undecided, key=lambda one: one.posterior.probability, default=None)

    @property
    def gain(self) -> float | None:
        """Measured gain: the median over rounds of the fraction of the step that was saved."""
        if self.before is None or self.after is None:
            return None
        return statistics.median(gains_of(self.before, self.after))


_PROFILE_S = 30.0
_MOST_ROUNDS = 8
_RELAUNCH_ROUNDS = 6
_SIZES = (BlockSize(1.5, 4), BlockSize(1.0, 3), BlockSize(0.8, 2), BlockSize(0.8, 1))
_FIRST_STAGE = 0.7
"""Fraction of the time left that the stage of loader settings may take, so that others can follow."""
_STRETCHED = 2.0
"""Factor on the time left up to which the shortest trial is begun."""
_ALIKE = 0.02
_MOST_ARMS = 3
_MOST_RELAUNCHED = 2
_STALLED = 1.10
"""Ratio to a step whose batches are ready above which data still limits the step."""
_MOST_EXTENSIONS = 2


Report = Callable[[str], None]
"""Called with one line for every launch."""
Means = tuple[BlockMean, ...]
_NO_GAIN = GainPrior(gain=0.0, low=0.0, high=0.0)


def tune(
    bench: TrialRunner, *, max_s: float, dry_run: bool, tell: Report, with_compile: bool = False
) -> tuple[TuneResult | None, ProfileOutcome]:
    """Tune a job within about `max_s` seconds; the result is None where the job did not complete its profile.

    The model is compiled for a trial only `with_compile`: that takes minutes.
    """
    began_s = time.monotonic()
    run, loaders, optimizer, outcome = bench.profile(max_s=min(_PROFILE_S, max_s / 5))
    if outcome.interrupted or outcome.hung or outcome.exit_code or not _measured(outcome):
        return None, outcome
    facts = job_facts(open_run(run), loaders, measure_crowding, optimizer)
    clock = _Clock(began_s, max_s, launch_s=_launch_s(run.table("steps"), time.monotonic() - began_s))
    candidates = [*proposals(facts), *([compiled(facts)] if with_compile else [])]
    tuner = _Tuner(bench, facts, candidates, clock, tell)
    if tuner.candidates and not dry_run:
        tuner.run()
    return tuner.result(dry_run=dry_run), outcome


def _measured(outcome: ProfileOutcome) -> bool:
    """Whether every phase has a block, without which there is no split."""
    from stallwise.run.phases import LADDER

    phases = [phase for phase in outcome.manifest.phases if phase.name in LADDER]
    return bool(phases) and all(phase.blocks for phase in phases)


def _launch_s(steps: "Table", wall_s: float) -> float:
    """Seconds of a launch besides its steps."""
    starts_s = steps.filter(steps["rank"].equals(0))["start_s"]
    spent_s = starts_s.max() - starts_s.min() if len(starts_s.valid) else 0.0
    return max(1.0, wall_s - spent_s)


@dataclass(slots=True)
class _Clock:
    """Time that is left, and the seconds of a launch."""

    began_s: float
    max_s: float
    launch_s: float

    @property
    def left_s(self) -> float:
        return self.began_s + self.max_s - time.monotonic()


@dataclass(slots=True)
class _Tuner:
    """The stages of one tuning."""

    bench: TrialRunner
    facts: JobFacts
    candidates: list[Proposal]
    clock: _Clock
    tell: Report
    kept: Knobs = NONE
    predicted: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[Sentence] = field(default_factory=list)
    final: tuple[ArmTimes, ArmTimes] | None = None
    interrupted: bool = False

    def run(self) -> None:
        """Run all stages, as long as there is time; what was measured before Ctrl-C is kept."""
        world = self.facts.profile.world
        if world.world_size > 1 and not self.bench.launch.torchrun:
            self.notes.append(
                Sentence(
                    "tune.own-ranks",
                    "Nothing was tried: the script starts its ranks itself, where trials do not reach them. Let "
                    "Stallwise start them (one process per GPU, as torchrun does), or set the predicted settings by "
                    "hand.",
                )
            )
            return
        try:
            self._stages()
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append(
                Sentence("tune.interrupted", "The tuning was interrupted; what had been measured until then is shown.")
            )
            self._only_first()

    def result(self, *, dry_run: bool) -> TuneResult:
        """Return the result so far."""
        before, after = self.final or (None, None)
        return TuneResult(
            profile=self.facts.profile,
            loader=self.facts.loader,
            proposals=tuple(self.candidates),
            attempts=tuple(self.attempts),
            kept=self.kept,
            before=before,
            after=after,
            predicted_gain=self.predicted if self.final else None,
            advice=advice_on(self.facts, self.kept),
            dry_run=dry_run,
            interrupted=self.interrupted,
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.clock.began_s,
            optimizer=self.facts.optimizer.kind if self.facts.optimizer else None,
        )

    # ---- stages --------------------------------------------------------------------------------------------

    def _stages(self) -> None:
        loader = [one for one in self.candidates if _of_loader(one)]
        self._stage([one for one in loader if one.live])
        self._extend()
        self._stage(self._on_top([one for one in loader if not one.live]))
        self._stage(self._on_top([one for one in self.candidates if one.knobs.pin_memory is not None]))
        self._stage(self._on_top([one for one in self.candidates if one.knobs.bucket_cap_mb is not None]))
        self._stage(self._on_top([one for one in self.candidates if one.knobs.fused_optimizer is not None]))
        self._stage([one for one in self.candidates if one.knobs.compile is not None])
        self._stage(self._persistent())
        self._verify()

    def _on_top(self, group: Sequence[Proposal]) -> list[Proposal]:
        """Proposals with the gain predicted on top of what was kept, where that is worth a trial."""
        moved = [one for one in (rebased(one, self._saved) for one in group) if one.gain >= WORTH_TRYING]
        by_knobs = {one.knobs: one for one in moved}
        self.candidates = [by_knobs.get(one.knobs, one) for one in self.candidates]
        return moved

    def _stage(self, group: Sequence[Proposal]) -> None:
        """Try proposals of the same kind against what was kept so far."""
        if not group:
            return
        if all(one.live for one in group):
            chosen = _chosen(group)[:_MOST_ARMS]
            tried = self._in_turns(chosen, on=self.kept)
        else:
            chosen = self._affordable(_chosen(group)[:_MOST_RELAUNCHED])
            tried = self._relaunched([self.kept, *(self.kept.with_(one.knobs) for one in chosen)], chosen)
        self._judge(chosen[: max(0, len(tried) - 1)], tried)

    def _extend(self) -> None:
        """Try more workers as long as the most that were tried are the best: the model may predict too few."""
        for _ in range(_MOST_EXTENSIONS):
            more = self._more_workers()
            if more is None:
                return
            best = next(one.proposal for one in self.attempts if one.kept)
            self.candidates.append(more)
            tried = self._in_turns([best, more], on=NONE)
            if len(tried) < 3:
                return
            self.attempts = [one for one in self.attempts if one.proposal != best]
            self.kept, self.predicted, self.final = NONE, 0.0, None
            self._judge([best, more], tried)

    def _more_workers(self) -> Proposal | None:
        count, tried = self.kept.num_workers, [one.proposal.knobs.num_workers or 0 for one in self.attempts]
        if count is None or self.final is None or self.kept.lookahead or count < max(tried):
            return None
        more = min(most_workers(self.facts), round(count * FARTHER))
        if more <= count or self.final[1].step_s < _STALLED * self.facts.consume_s:
            return None
        return with_workers(self.facts, more)

    def _persistent(self) -> list[Proposal]:
        """Propose persistent workers for those that were kept: where epochs are short, starting them may cost much."""
        self.candidates = [one for one in self.candidates if one.knobs.persistent_workers is None]
        group = [one for one in persistent(self.facts, self.kept) if one.gain >= WORTH_TRYING]
        self.candidates += group
        return group

    @property
    def _saved(self) -> float:
        """Measured fraction of the step that the kept settings save."""
        return 1 - math.prod(1 - one.gain for one in self.attempts if one.kept)

    # ---- trials --------------------------------------------------------------------------------------------

    def _in_turns(self, chosen: Sequence[Proposal], *, on: Knobs) -> tuple[ArmTimes, ...]:
        """Try settings that can be switched while the job runs, all in one launch, until they have won or lost."""
        loader = self.facts.loader
        assert loader is not None  # noqa: S101 - proposals about loaders have one
        left = 1 - self._saved if on.as_dict() else 1.0
        steps_s = [left * self.facts.step_s * (1 - gain) for gain in (0.0, *(one.gain for one in chosen))]
        # Short of time, first fewer rounds, then shorter blocks, then fewer arms: the best one is worth two rounds.
        sizes = itertools.product((LEAST_ROUNDS + 1, LEAST_ROUNDS), range(len(chosen), 0, -1), _SIZES)
        rounds = ((least, many, size, n) for least, many, size in sizes for n in range(_MOST_ROUNDS, least - 1, -1))
        for _, many, size, count in rounds:
            arms = (NONE, *(one.knobs for one in chosen[:many]))
            # Queues are those of the arm on top of what is kept.
            full = [on.with_(arm) for arm in arms]
            blocks = blocks_of(full, loader, steps_s, rounds=count, size=size, fetches=self.facts.fetches)
            fits = self._fits(blocks, steps_s, 1.0 if count <= LEAST_ROUNDS + 1 else _FIRST_STAGE)
            # The shortest trial is begun where it may be too long: it ends in time, and what is estimated is not known.
            is_last = (many, size, count) == (1, _SIZES[-1], LEAST_ROUNDS)
            if fits or (is_last and self._fits(blocks, steps_s, _STRETCHED)):
                self.tell(f"trying {_names(chosen[:many])} against {on.shown()}, at most {count} rounds in one launch")
                trial = TrialSpec(
                    folder="",
                    site=loader.site,
                    fixed=on,
                    arms=arms,
                    blocks=blocks,
                    predictions=((0.0, 0.0, 0.0), *((one.gain, one.low, one.high) for one in chosen[:many])),
                    epoch_batches=None if loader.persistent_workers else loader.length,
                    max_s=self._limit_s(),
                )
                return rounds_of(self._launch(trial, chosen[:many]), arms)
        return self._no_time(chosen)

    def _relaunched(self, arms: Sequence[Knobs], chosen: Sequence[Proposal]) -> tuple[ArmTimes, ...]:
        """Try arms with a launch for each in each round."""
        means: list[BlockMean] = []
        # The start of an epoch is measured from the second one on.
        epochs = any(knobs.persistent_workers is not None for knobs in arms)
        for number in range(_RELAUNCH_ROUNDS):
            order = list(enumerate(arms))
            for arm, knobs in order if number % 2 == 0 else order[::-1]:
                block = self._single(knobs, epochs=epochs)
                if self.clock.launch_s + self._cost_s(block) > self.clock.left_s:
                    return rounds_of(means, arms) if number >= LEAST_ROUNDS else self._no_time(chosen)
                self.tell(f"launch {len(means) + 1} of at most {_RELAUNCH_ROUNDS * len(arms)}: {knobs.shown()}")
                launched = self._one_launch(knobs, block, chosen)
                if not launched:
                    return ()
                means += [mean._replace(arm=arm) for mean in launched]
            tried = rounds_of(means, arms)
            if is_decided([one.rounds for one in tried], [_NO_GAIN, *map(prior_of, chosen)]):
                return tried
        return rounds_of(means, arms)

    def _affordable(self, chosen: Sequence[Proposal]) -> list[Proposal]:
        """As many proposals as can be launched twice in the time left, with their baseline; at least one."""
        costs_s = [self.clock.launch_s + self._cost_s(self._single(one.knobs, epochs=False)) for one in chosen]
        many = sum(LEAST_ROUNDS * (number + 2) * cost_s <= self.clock.left_s for number, cost_s in enumerate(costs_s))
        return list(chosen[: max(1, many)])

    def _one_launch(self, knobs: Knobs, block: TrialBlock, chosen: Sequence[Proposal]) -> Means:
        site = self.facts.loader.site if self.facts.loader else None
        trial = TrialSpec(folder="", site=site, fixed=knobs, blocks=(block,), max_s=self._limit_s())
        began_s = time.monotonic()
        means = self._launch(trial, chosen)[:1]
        self.clock.launch_s = max(1.0, time.monotonic() - began_s - self._cost_s(block))
        return means

    def _launch(self, trial: TrialSpec, chosen: Sequence[Proposal]) -> Means:
        """Launch a trial. Where it fails with these settings they are not kept, and the tuning goes on."""
        loader = self.facts.loader
        stays = trial.arms and loader is not None and (loader.persistent_workers or trial.fixed.persistent_workers)
        try:
            means = self.bench.run(
                trial, fetches=self.facts.fetches, epoch_steps=None if stays else self.facts.epoch_steps
            )
        except RunError as error:
            what = _names(chosen) if trial.arms else trial.fixed.shown()
            self.notes.append(Sentence("tune.trial-failed", f"The trial of {what} failed: {str(error).rstrip('.')}."))
            return ()
        if len(means) < len(trial.blocks) and not self._all_judged(trial, means):
            self.notes.append(
                Sentence("tune.ended", f"The script, or the time, ended before {_names(chosen)} had all their turns.")
            )
        return means

    @staticmethod
    def _all_judged(trial: TrialSpec, means: Means) -> bool:
        """Whether a trial ended early because every arm had won or lost."""
        if not trial.predictions:
            return False
        priors = [GainPrior(gain=gain, low=low, high=high) for gain, low, high in trial.predictions]
        return is_decided([one.rounds for one in rounds_of(means, trial.arms)], priors)

    def _fits(self, blocks: Sequence[TrialBlock], steps_s: Sequence[float], fraction: float) -> bool:
        """Whether the blocks take no more than this fraction of the time left."""
        spent_s = sum((block.settle + block.batches) / self.facts.fetches * steps_s[block.arm] for block in blocks)
        # Each block starts workers, and the first batch of each takes as long as it takes.
        start_s = len(blocks) * (0.2 + max(self.facts.batches_s, default=0.0))
        return spent_s + start_s + self.clock.launch_s <= fraction * self.clock.left_s

    def _limit_s(self) -> float:
        return max(5.0, self.clock.left_s)

    def _single(self, knobs: Knobs, *, epochs: bool) -> TrialBlock:
        """The block of a launch that tries one setting. A cache is full after a whole epoch."""
        loader, fetches = self.facts.loader, self.facts.fetches
        length = (loader.length if loader else None) or 0
        workers = (loader.num_workers if loader else 0) if knobs.num_workers is None else knobs.num_workers
        depth = (loader.prefetch_factor if loader else None) or 2
        queue = workers * (knobs.prefetch_factor or depth)
        settle = round(10 * fetches) + queue
        if knobs.cache_bytes or epochs:
            settle += length
        batches = max(6.0 * fetches, 2 * _SIZES[0].block_s / self.facts.step_s * fetches, _SIZES[0].queues * queue)
        if length:
            # Steps of the first queue of an epoch do not count: the block must hold some that do.
            batches = max(batches, min(length, 3 * queue))
        return TrialBlock(arm=0, settle=settle, batches=round(batches))

    def _cost_s(self, block: TrialBlock) -> float:
        return (block.settle + block.batches) / self.facts.fetches * self.facts.step_s

    def _no_time(self, chosen: Sequence[Proposal]) -> tuple[ArmTimes, ...]:
        new = [one for one in chosen if not any(one.knobs == attempt.proposal.knobs for attempt in self.attempts)]
        self.notes.append(
            Sentence("tune.time-up", f"Time was up before {_names(new or chosen)} could be tried. Allow more time.")
        )
        return ()

    # ---- judging -------------------------------------------------------------------------------------------

    def _judge(self, chosen: Sequence[Proposal], tried: Sequence[ArmTimes]) -> None:
        """Record the attempts and keep the best of those that help."""
        if not tried:
            return
        attempts = [
            Attempt(proposal=one, before=tried[0], after=after) for one, after in zip(chosen, tried[1:], strict=True)
        ]
        best = best_of(attempts)
        self.attempts += [replace(one, kept=one is best) for one in attempts]
        if best is None:
            return
        first = not self.kept.as_dict()
        self.kept = self.kept.with_(best.proposal.knobs)
        alone, on_top = best.proposal.alone, 1 - (1 - self.predicted) * (1 - best.proposal.gain)
        self.predicted = on_top if alone is None else alone
        self.final = (best.before, best.after) if first else None

    def _verify(self) -> None:
        """Measure the settings of several stages together against none."""
        if self.final is not None or not self.kept.as_dict():
            return
        kept = [one.proposal for one in self.attempts if one.kept]
        both = self._relaunched([NONE, self.kept], [replace(kept[0], knobs=self.kept, gain=self.predicted)])
        if both and best_of([Attempt(proposal=kept[0], before=both[0], after=both[1])]):
            self.final = (both[0], both[1])
            return
        self.notes.append(
            Sentence(
                "tune.together",
                f"{self.kept.shown()} together were not shown to be faster than none: only the first stays.",
            )
        )
        self._only_first()

    def _only_first(self) -> None:
        """Keep only the setting that was measured against none, where they were not measured together."""
        first = next((one for one in self.attempts if one.kept), None)
        if first is None or self.final is not None:
            return
        self.attempts = [replace(one, kept=one is first) for one in self.attempts]
        self.kept, self.predicted = first.proposal.knobs, first.proposal.gain
        self.final = (first.before, first.after)


def _chosen(group: Sequence[Proposal]) -> list[Proposal]:
    """Sort by predicted gain; of similar ones the one with the fewest workers comes first."""
    return sorted(group, key=lambda one: (-round(one.gain / _ALIKE), one.knobs.num_workers or 0))


def _of_loader(one: Proposal) -> bool:
    knobs = one.knobs
    return any(value is not None for value in (knobs.num_workers, knobs.prefetch_factor, knobs.lookahead))


def _names(chosen: Sequence[Proposal]) -> str:
    return ", ".join(one.knobs.shown() for one in chosen)
