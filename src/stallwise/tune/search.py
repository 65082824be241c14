"""The loop: profile, propose, try in turns, keep what helps.

1. The job is profiled once. Settings that the model gives a gain of 5 % or more are proposed.
2. They are tried in stages, the ones that change most first, each on top of what was kept before. Loader settings of a
   loader that torch's own samplers feed are switched while the job runs; all others need a launch per round and arm.
   Rounds go through the arms forth and back, so that drift hits all alike.
3. A setting is kept where every round was faster than the same round without it and the median by 3 % or more
   (`tune.judge`). Where the most workers that were tried are the best and data still holds the step up, more are tried.
4. Where settings of several stages were kept, all of them together are measured once more against none.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stallwise.errors import RunError
from stallwise.record.crowding import measure_crowding
from stallwise.record.launch import Outcome
from stallwise.tune.advice import advice_on
from stallwise.tune.facts import Facts, facts_of
from stallwise.tune.judge import KEEP, LEAST_ROUNDS, Attempt, best_of
from stallwise.tune.knobs import NONE, Block, Knobs, Trial
from stallwise.tune.propose import (
    FARTHER,
    WORTH_TRYING,
    Proposal,
    most_workers,
    persistent,
    proposals,
    rebased,
    with_workers,
)
from stallwise.tune.result import Tuning
from stallwise.tune.trial import Bench, Tried, blocks_of, rounds_of

_PROFILE_S = 30.0
_ROUNDS = 4
_RELAUNCH_ROUNDS = 3
_CLEAR = 0.30
"""From this predicted gain on two rounds are enough, unless they show less than half of it."""
_BLOCKS_S = (1.5, 0.8)
_ALIKE = 0.02
_MOST_ARMS = 3
_MOST_RELAUNCHED = 2
_STALLED = 1.10
"""A step so many times as long as one whose batches are there is still held up by its data."""
_MOST_EXTENSIONS = 2


Tell = Callable[[str], None]
Means = tuple[tuple[float, int], ...]
"""Mean step and arm of each block."""


def tune(bench: Bench, *, max_s: float, dry_run: bool, tell: Tell) -> tuple[Tuning | None, Outcome]:
    """All of it within about `max_s` seconds; None where the job itself did not get through its profile."""
    began_s = time.monotonic()
    run, loaders, outcome = bench.profile(max_s=min(_PROFILE_S, max_s / 5))
    if outcome.interrupted or outcome.hung or outcome.exit_code or not _measured(outcome):
        return None, outcome
    facts = facts_of(run, loaders, measure_crowding)
    clock = _Clock(began_s, max_s, launch_s=_launch_s(run.table("steps"), time.monotonic() - began_s))
    tuner = _Tuner(bench, facts, list(proposals(facts)), clock, tell)
    if tuner.found and not dry_run:
        tuner.run()
    return tuner.result(dry_run=dry_run), outcome


def _measured(outcome: Outcome) -> bool:
    """Without a block of every phase there is no split."""
    from stallwise.record.plan import LADDER

    phases = [phase for phase in outcome.manifest.phases if phase.name in LADDER]
    return bool(phases) and all(phase.blocks for phase in phases)


def _launch_s(steps: object, wall_s: float) -> float:
    """What a launch takes besides its steps."""
    import polars as pl

    assert isinstance(steps, pl.DataFrame)  # noqa: S101 - a run's table
    times = steps.filter(pl.col("rank") == 0)
    first, last = times.get_column("start_s").min(), times.get_column("start_s").max()
    spent = float(last) - float(first) if isinstance(first, float) and isinstance(last, float) else 0.0
    return max(1.0, wall_s - spent)


@dataclass(slots=True)
class _Clock:
    """How much time is left, and what a launch costs."""

    began_s: float
    max_s: float
    launch_s: float

    @property
    def left_s(self) -> float:
        return self.began_s + self.max_s - time.monotonic()


@dataclass(slots=True)
class _Tuner:
    """The stages of one tuning."""

    bench: Bench
    facts: Facts
    found: list[Proposal]
    clock: _Clock
    tell: Tell
    kept: Knobs = NONE
    predicted: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    final: tuple[Tried, Tried] | None = None
    interrupted: bool = False

    def run(self) -> None:
        """Stage after stage, as long as there is time. What was measured before Ctrl-C stays measured."""
        world = self.facts.profile.world
        if world.world_size > 1 and not self.bench.launch.torchrun:
            self.notes.append(
                "Nothing was tried: the script starts its ranks itself, where trials do not reach them. Let Stallwise "
                "start them with --nproc-per-node, or set the predicted settings by hand."
            )
            return
        try:
            self._stages()
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append("The tuning was interrupted; what had been measured until then is shown.")
            self._only_first()

    def result(self, *, dry_run: bool) -> Tuning:
        """Everything that was found."""
        before, after = self.final or (None, None)
        return Tuning(
            profile=self.facts.profile,
            loader=self.facts.loader,
            proposals=tuple(self.found),
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
        )

    # ---- stages --------------------------------------------------------------------------------------------

    def _stages(self) -> None:
        loader = [one for one in self.found if _of_loader(one)]
        self._stage([one for one in loader if one.live])
        self._extend()
        self._stage(self._on_top([one for one in loader if not one.live]))
        self._stage(self._on_top([one for one in self.found if one.knobs.pin_memory is not None]))
        self._stage(self._on_top([one for one in self.found if one.knobs.bucket_cap_mb is not None]))
        self._stage(self._persistent())
        self._verify()

    def _on_top(self, group: Sequence[Proposal]) -> list[Proposal]:
        """What the model still expects of them on top of what was kept, where that is worth a trial."""
        moved = [one for one in (rebased(one, self._gone) for one in group) if one.gain >= WORTH_TRYING]
        by_knobs = {one.knobs: one for one in moved}
        self.found = [by_knobs.get(one.knobs, one) for one in self.found]
        return moved

    def _stage(self, group: Sequence[Proposal]) -> None:
        """Some of the same kind against what was kept so far."""
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
        """The model may ask for too few workers: as long as the most that were tried are best, more are tried."""
        for _ in range(_MOST_EXTENSIONS):
            more = self._more_workers()
            if more is None:
                return
            best = next(one.proposal for one in self.attempts if one.kept)
            self.found.append(more)
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
        """For the workers that were kept: where epochs are short, starting them may cost much of what they bring."""
        self.found = [one for one in self.found if one.knobs.persistent_workers is None]
        group = [one for one in persistent(self.facts, self.kept) if one.gain >= WORTH_TRYING]
        self.found += group
        return group

    @property
    def _gone(self) -> float:
        """The part of the step that went away with what is kept, as measured."""
        return 1 - math.prod(1 - one.gain for one in self.attempts if one.kept)

    # ---- trials --------------------------------------------------------------------------------------------

    def _in_turns(self, chosen: Sequence[Proposal], *, on: Knobs) -> tuple[Tried, ...]:
        """Switched while the job runs; two rounds first where the model expects much."""
        rounds = LEAST_ROUNDS if chosen[0].gain >= _CLEAR else _ROUNDS
        tried = self._switched(chosen, rounds, on)
        if tried is None:
            return self._no_time(chosen)
        if tried and rounds == LEAST_ROUNDS and _promising(tried) and not _as_clear(tried, chosen):
            return self._switched(chosen, _ROUNDS, on) or tried
        return tried

    def _switched(self, chosen: Sequence[Proposal], rounds: int, on: Knobs) -> tuple[Tried, ...] | None:
        """One launch with all of them, as far as there is time; None where there is none."""
        loader = self.facts.loader
        assert loader is not None  # noqa: S101 - proposals about loaders have one
        left = 1 - self._gone if on.given() else 1.0
        steps_s = [left * self.facts.step_s * (1 - gain) for gain in (0.0, *(one.gain for one in chosen))]
        # Short of time, first fewer rounds, then shorter blocks, then fewer arms: the best one is worth two rounds.
        fewer = itertools.product(range(len(chosen), 0, -1), _BLOCKS_S, range(rounds, LEAST_ROUNDS - 1, -1))
        for many, block_s, count in fewer:
            arms = (NONE, *(one.knobs for one in chosen[:many]))
            # Queues are those of the arm on top of what is kept.
            full = [on.with_(arm) for arm in arms]
            blocks = blocks_of(full, loader, steps_s, rounds=count, block_s=block_s, fetches=self.facts.fetches)
            if self._fits(blocks, steps_s):
                self.tell(f"trying {_words(chosen[:many])} against {on.shown()}, {count} rounds in one launch")
                trial = Trial(folder="", site=loader.site, fixed=on, arms=arms, blocks=blocks, max_s=self._limit_s())
                return rounds_of(self._ran(trial, chosen[:many]), arms)
        return None

    def _relaunched(self, arms: Sequence[Knobs], chosen: Sequence[Proposal]) -> tuple[Tried, ...]:
        """A launch for each arm in each round."""
        means: list[tuple[float, int]] = []
        # How epochs begin is seen from the second one on.
        epochs = any(knobs.persistent_workers is not None for knobs in arms)
        for number in range(_RELAUNCH_ROUNDS):
            order = list(enumerate(arms))
            for arm, knobs in order if number % 2 == 0 else order[::-1]:
                block = self._single(knobs, epochs=epochs)
                if self.clock.launch_s + self._cost_s(block) > self.clock.left_s:
                    return rounds_of(means, arms) if number >= LEAST_ROUNDS else self._no_time(chosen)
                self.tell(f"launch {len(means) + 1} of {_RELAUNCH_ROUNDS * len(arms)}: {knobs.shown()}")
                found = self._one_launch(knobs, block, chosen)
                if not found:
                    return ()
                means += [(mean_s, arm) for mean_s, _ in found]
            tried = rounds_of(means, arms)
            if number + 1 == LEAST_ROUNDS and chosen[0].gain >= _CLEAR and _as_clear(tried, chosen):
                return tried
        return rounds_of(means, arms)

    def _affordable(self, chosen: Sequence[Proposal]) -> list[Proposal]:
        """As many as there is time to launch twice, beside the settings they are compared with; at least one."""
        costs_s = [self.clock.launch_s + self._cost_s(self._single(one.knobs, epochs=False)) for one in chosen]
        many = sum(LEAST_ROUNDS * (number + 2) * cost_s <= self.clock.left_s for number, cost_s in enumerate(costs_s))
        return list(chosen[: max(1, many)])

    def _one_launch(self, knobs: Knobs, block: Block, chosen: Sequence[Proposal]) -> Means:
        site = self.facts.loader.site if self.facts.loader else None
        trial = Trial(folder="", site=site, fixed=knobs, blocks=(block,), max_s=self._limit_s())
        began_s = time.monotonic()
        found = self._ran(trial, chosen)[:1]
        self.clock.launch_s = max(1.0, time.monotonic() - began_s - self._cost_s(block))
        return found

    def _ran(self, trial: Trial, chosen: Sequence[Proposal]) -> Means:
        """One launch. Where it fails with these settings they are not kept, and the tuning goes on."""
        loader = self.facts.loader
        stays = trial.arms and loader is not None and (loader.persistent_workers or trial.fixed.persistent_workers)
        try:
            means = self.bench.run(
                trial, fetches=self.facts.fetches, epoch_steps=None if stays else self.facts.epoch_steps
            )
        except RunError as error:
            what = _words(chosen) if trial.arms else trial.fixed.shown()
            self.notes.append(f"The trial of {what} failed: {str(error).rstrip('.')}.")
            return ()
        if len(means) < len(trial.blocks):
            self.notes.append(f"The script, or the time, ended before {_words(chosen)} had all their turns.")
        return means

    def _fits(self, blocks: Sequence[Block], steps_s: Sequence[float]) -> bool:
        spent_s = sum((block.settle + block.batches) / self.facts.fetches * steps_s[block.arm] for block in blocks)
        # Each block starts workers, and the first batch of each takes as long as it takes.
        start_s = len(blocks) * (0.2 + max(self.facts.batches_s, default=0.0))
        return spent_s + start_s + self.clock.launch_s <= self.clock.left_s

    def _limit_s(self) -> float:
        return max(5.0, self.clock.left_s)

    def _single(self, knobs: Knobs, *, epochs: bool) -> Block:
        """The block of a launch that tries one setting. A cache is full after a whole epoch."""
        loader, fetches = self.facts.loader, self.facts.fetches
        length = (loader.length if loader else None) or 0
        workers = (loader.num_workers if loader else 0) if knobs.num_workers is None else knobs.num_workers
        settle = round(10 * fetches) + 2 * workers
        if knobs.cache_bytes or epochs:
            settle += length
        return Block(arm=0, settle=settle, batches=round(max(6.0, 2 * _BLOCKS_S[0] / self.facts.step_s) * fetches))

    def _cost_s(self, block: Block) -> float:
        return (block.settle + block.batches) / self.facts.fetches * self.facts.step_s

    def _no_time(self, chosen: Sequence[Proposal]) -> tuple[Tried, ...]:
        new = [one for one in chosen if not any(one.knobs == known.proposal.knobs for known in self.attempts)]
        self.notes.append(f"Time was up before {_words(new or chosen)} could be tried. Give more with --max-time.")
        return ()

    # ---- judging -------------------------------------------------------------------------------------------

    def _judge(self, chosen: Sequence[Proposal], tried: Sequence[Tried]) -> None:
        """Keep the best of those that help."""
        if not tried:
            return
        attempts = [
            Attempt(proposal=one, before=tried[0], after=after) for one, after in zip(chosen, tried[1:], strict=True)
        ]
        best = best_of(attempts)
        self.attempts += [replace(one, kept=one is best) for one in attempts]
        if best is None:
            return
        first = not self.kept.given()
        self.kept = self.kept.with_(best.proposal.knobs)
        alone, on_top = best.proposal.alone, 1 - (1 - self.predicted) * (1 - best.proposal.gain)
        self.predicted = on_top if alone is None else alone
        self.final = (best.before, best.after) if first else None

    def _verify(self) -> None:
        """Settings of several stages together, against none."""
        if self.final is not None or not self.kept.given():
            return
        kept = [one.proposal for one in self.attempts if one.kept]
        both = self._relaunched([NONE, self.kept], [replace(kept[0], knobs=self.kept, gain=self.predicted)])
        if both and best_of([Attempt(proposal=kept[0], before=both[0], after=both[1])]):
            self.final = (both[0], both[1])
            return
        self.notes.append(f"{self.kept.shown()} together were not shown to be faster than none: only the first stays.")
        self._only_first()

    def _only_first(self) -> None:
        """Of settings that were not measured together, the one that was measured against none."""
        first = next((one for one in self.attempts if one.kept), None)
        if first is None or self.final is not None:
            return
        self.attempts = [replace(one, kept=one is first) for one in self.attempts]
        self.kept, self.predicted = first.proposal.knobs, first.proposal.gain
        self.final = (first.before, first.after)


def _chosen(group: Sequence[Proposal]) -> list[Proposal]:
    """The best predicted first; of those predicted alike the one with the fewest workers."""
    return sorted(group, key=lambda one: (-round(one.gain / _ALIKE), one.knobs.num_workers or 0))


def _as_clear(tried: Sequence[Tried], chosen: Sequence[Proposal]) -> bool:
    """Whether the best of them brought at least half of what the model expects."""
    return len(tried) > 1 and max(1 - one.step_s / tried[0].step_s for one in tried[1:]) >= chosen[0].gain / 2


def _promising(tried: Sequence[Tried]) -> bool:
    return max(1 - one.step_s / tried[0].step_s for one in tried[1:]) >= KEEP


def _of_loader(one: Proposal) -> bool:
    knobs = one.knobs
    return any(value is not None for value in (knobs.num_workers, knobs.prefetch_factor, knobs.lookahead))


def _words(chosen: Sequence[Proposal]) -> str:
    return ", ".join(one.knobs.shown() for one in chosen)
