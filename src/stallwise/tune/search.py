"""The loop: profile, propose, try in turns, keep what helps.

1. The job is profiled once. Settings that the model gives a gain of 5 % or more are proposed.
2. They are tried in stages, the ones that change most first, each on top of what was kept before. Loader settings of a
   loader that torch's own samplers feed are switched while the job runs; all others need a launch per round and arm.
   Rounds go through the arms forth and back, so that drift hits all alike.
3. A setting is kept where every round was faster than the same round without it and the median by 3 % or more. Of
   those within 2 % of the best the one with the fewest workers is taken. What measured slower is never kept.
4. Where settings of several stages were kept, all of them together are measured once more against none.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stallwise.errors import RunError
from stallwise.record.launch import Outcome
from stallwise.record.profile import Profile
from stallwise.tune.advice import Advice, advice_on
from stallwise.tune.facts import Facts, facts_of
from stallwise.tune.knobs import Block, Knobs, Loader, Trial
from stallwise.tune.propose import ENOUGH, Proposal, proposals
from stallwise.tune.trial import Bench, Tried, blocks_of, rounds_of

KEEP = 0.03
"""A median gain below this is not worth a line in somebody's script."""
_ROUNDS = 4
_CLEAR = 0.30
"""From this predicted gain on two rounds are enough, unless they show less than half of it."""
_BLOCK_S = 1.5
_ALIKE = 0.02
_MOST_ARMS = 3
_RELAUNCH_ROUNDS = 3
_NONE = Knobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One proposal beside the settings it was tried on top of."""

    proposal: Proposal
    before: Tried
    after: Tried
    kept: bool = False

    @property
    def gains(self) -> tuple[float, ...]:
        """The part of the step that went away, per round."""
        return tuple(1 - b / a for a, b in zip(self.before.rounds, self.after.rounds, strict=True))

    @property
    def gain(self) -> float:
        """The median over rounds."""
        return statistics.median(self.gains)

    @property
    def helps(self) -> bool:
        """Faster in every round of several, and by enough to matter."""
        return len(self.gains) > 1 and min(self.gains) > 0 and self.gain >= KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What came of it. The field names are keys of `--json`."""

    profile: Profile
    loader: Loader | None
    proposals: tuple[Proposal, ...]
    attempts: tuple[Attempt, ...] = ()
    kept: Knobs = _NONE
    before: Tried | None = None
    """The script's own settings, in the same rounds as `after`; None where nothing was kept."""
    after: Tried | None = None
    predicted_gain: float | None = None
    """Of what was kept."""
    advice: tuple[Advice, ...] = ()
    dry_run: bool = False
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def gain(self) -> float | None:
        """Measured: the median over rounds of the part of the step that went away."""
        if self.before is None or self.after is None:
            return None
        return statistics.median(1 - b / a for a, b in zip(self.before.rounds, self.after.rounds, strict=True))


Tell = Callable[[str], None]
Means = tuple[tuple[float, int], ...]
"""Mean step and arm of each block."""


def tune(bench: Bench, *, max_s: float, dry_run: bool, tell: Tell) -> tuple[Tuning | None, Outcome]:
    """All of it within about `max_s` seconds; None where the job itself did not get through its profile."""
    began_s = time.monotonic()
    run, loaders, outcome = bench.profile(max_s=min(30.0, max_s / 5))
    if outcome.interrupted or outcome.hung or outcome.exit_code or not _measured(outcome):
        return None, outcome
    facts = facts_of(run, loaders)
    found = proposals(facts)
    clock = _Clock(began_s, max_s, launch_s=_launch_s(run.table("steps"), time.monotonic() - began_s))
    tuning = _Tuner(bench, facts, found, clock, tell)
    if found and not dry_run:
        tuning.run()
    return tuning.result(dry_run=dry_run), outcome


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

    def learn(self, spent_s: float, steps_s: float) -> None:
        """A launch took so long, of which its steps should have taken so long."""
        self.launch_s = max(1.0, spent_s - steps_s)


@dataclass(slots=True)
class _Tuner:
    """The stages of one tuning."""

    bench: Bench
    facts: Facts
    found: tuple[Proposal, ...]
    clock: _Clock
    tell: Tell
    kept: Knobs = _NONE
    predicted: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    final: tuple[Tried, Tried] | None = None

    def run(self) -> None:
        """Stage after stage, as long as there is time."""
        live = [one for one in self.found if one.live and one.knobs.pin_memory is None]
        if live:
            self._live(live)
        ahead = [one for one in self.found if one.knobs.lookahead and not one.live]
        if self.kept.lookahead is None:
            self._stage(ahead)
        if not live and self.kept.lookahead is None:
            self._stage([one for one in self.found if _is_workers(one)])
        for group in (
            [one for one in self.found if one.knobs.pin_memory is not None],
            [one for one in self.found if one.knobs.bucket_cap_mb is not None],
            [one for one in self.found if one.epochs],
        ):
            self._stage(group)
        self._verify()

    def result(self, *, dry_run: bool) -> Tuning:
        """Everything that was found."""
        before, after = self.final or (None, None)
        return Tuning(
            profile=self.facts.profile,
            loader=self.facts.loader,
            proposals=self.found,
            attempts=tuple(self.attempts),
            kept=self.kept,
            before=before,
            after=after,
            predicted_gain=self.predicted if self.final else None,
            advice=advice_on(self.facts, self.kept),
            dry_run=dry_run,
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.clock.began_s,
        )

    # ---- stages --------------------------------------------------------------------------------------------

    def _live(self, group: Sequence[Proposal]) -> None:
        """Switched while the job runs; two rounds first where the model expects much."""
        chosen = _chosen(group)
        rounds = 2 if chosen[0].gain >= _CLEAR else _ROUNDS
        tried = self._switched(chosen, rounds)
        if tried and rounds == 2 and max(1 - one.step_s / tried[0].step_s for one in tried[1:]) < chosen[0].gain / 2:
            tried = self._switched(chosen, _ROUNDS) or tried
        self._judge(chosen[: len(tried) - 1], tried)

    def _switched(self, chosen: Sequence[Proposal], rounds: int) -> tuple[Tried, ...]:
        loader = self.facts.loader
        assert loader is not None  # noqa: S101 - proposals about loaders have one
        steps_s = [self.facts.step_s * (1 - gain) for gain in (0.0, *(one.gain for one in chosen))]
        # Short of time, first fewer rounds, then fewer arms: the best predicted one is worth two rounds.
        for many, count in ((m, c) for m in range(len(chosen), 0, -1) for c in range(rounds, 1, -1)):
            arms = (_NONE, *(one.knobs for one in chosen[:many]))
            blocks = blocks_of(arms, loader, steps_s, rounds=count, block_s=_BLOCK_S, fetches=self.facts.fetches)
            if self._fits(blocks, steps_s):
                self.tell(f"trying {_words(chosen[:many])} in {count} rounds of one launch")
                trial = Trial(
                    folder="", site=loader.site, fixed=self.kept, arms=arms, blocks=blocks, max_s=self._limit_s()
                )
                return rounds_of(self._ran(trial, chosen[:many]), arms)
        return self._no_time(chosen)

    def _ran(self, trial: Trial, chosen: Sequence[Proposal], whole: float | None = None) -> Means:
        """One launch. Where it fails with these settings they are not kept, and the tuning goes on."""
        try:
            means = self.bench.run(trial, whole=whole)
        except RunError as error:
            self.notes.append(f"A trial of {_words(chosen)} failed: {str(error).rstrip('.')}.")
            return ()
        if len(means) < len(trial.blocks):
            self.notes.append(f"The script, or the time, ended before {_words(chosen)} had all their turns.")
        return means

    def _fits(self, blocks: Sequence[Block], steps_s: Sequence[float]) -> bool:
        spent_s = sum((block.settle + block.batches) / self.facts.fetches * steps_s[block.arm] for block in blocks)
        # Each block starts workers, and the first batch of each takes as long as it takes.
        start_s = len(blocks) * (0.2 + max(self.facts.batches_s, default=0.0))
        return spent_s + start_s + self.clock.launch_s <= self.clock.left_s

    def _limit_s(self) -> float | None:
        """Ranks must end at the same step, which a clock does not tell them."""
        return max(5.0, self.clock.left_s) if self.facts.profile.world.world_size == 1 else None

    def _stage(self, group: Sequence[Proposal]) -> None:
        """Tried by launching anew."""
        if not group:
            return
        chosen = _chosen(group)[:2]
        tried = self._relaunched([self.kept, *(self.kept.with_(one.knobs) for one in chosen)], chosen)
        self._judge(chosen, tried)

    def _relaunched(self, arms: Sequence[Knobs], chosen: Sequence[Proposal]) -> tuple[Tried, ...]:
        epochs = any(one.epochs for one in chosen)
        means: list[tuple[float, int]] = []
        for number in range(_RELAUNCH_ROUNDS):
            order = list(enumerate(arms))
            for arm, knobs in order if number % 2 == 0 else order[::-1]:
                if self._launch_cost_s(knobs, epochs=epochs) > self.clock.left_s:
                    return rounds_of(means, arms) if number >= 2 else self._no_time(chosen)
                self.tell(f"round {number + 1}: {_shown(knobs)}")
                began_s = time.monotonic()
                found = self._one_launch(knobs, chosen, epochs=epochs)
                if not found:
                    return ()
                means += [(mean_s, arm) for mean_s, _ in found]
                self.clock.learn(time.monotonic() - began_s, self._steps_cost_s(knobs, epochs=epochs))
        return rounds_of(means, arms)

    def _one_launch(self, knobs: Knobs, chosen: Sequence[Proposal], *, epochs: bool) -> Means:
        loader = self.facts.loader
        site = loader.site if loader else None
        trial = Trial(
            folder="", site=site, fixed=knobs, blocks=(self._single(knobs, epochs=epochs),), max_s=self._limit_s()
        )
        return self._ran(trial, chosen, self.facts.fetches if epochs else None)[:1]

    def _single(self, knobs: Knobs, *, epochs: bool) -> Block:
        """One block of one launch. A cache is full after an epoch; what begins epochs shows over whole ones."""
        loader, fetches = self.facts.loader, self.facts.fetches
        length = (loader.length if loader else None) or 0
        queue = (knobs.num_workers or (loader.num_workers if loader else 0)) * 2
        settle = round(10 * fetches) + queue
        wanted = max(6.0, 2 * _BLOCK_S / self.facts.step_s) * fetches
        if epochs:
            return Block(arm=0, settle=length, batches=length * max(1, math.ceil(wanted / length)))
        if knobs.cache_bytes:
            settle += length
        return Block(arm=0, settle=settle, batches=max(1, round(wanted)))

    def _launch_cost_s(self, knobs: Knobs, *, epochs: bool) -> float:
        return self.clock.launch_s + self._steps_cost_s(knobs, epochs=epochs)

    def _steps_cost_s(self, knobs: Knobs, *, epochs: bool) -> float:
        block = self._single(knobs, epochs=epochs)
        return (block.settle + block.batches) / self.facts.fetches * self.facts.step_s

    def _no_time(self, chosen: Sequence[Proposal]) -> tuple[Tried, ...]:
        self.notes.append(f"Time was up before {_words(chosen)} could be tried. Give more with --max-time.")
        return ()

    # ---- judging -------------------------------------------------------------------------------------------

    def _judge(self, chosen: Sequence[Proposal], tried: Sequence[Tried]) -> None:
        """Keep the best of those that help."""
        if not tried:
            return
        attempts = [
            Attempt(proposal=one, before=tried[0], after=after) for one, after in zip(chosen, tried[1:], strict=True)
        ]
        best = _best(attempts)
        self.attempts += [replace(one, kept=one is best) for one in attempts]
        if best is None:
            return
        first = not self.kept.given()
        self.kept = self.kept.with_(best.proposal.knobs)
        self.predicted = 1 - (1 - self.predicted) * (1 - best.proposal.gain)
        self.final = (best.before, best.after) if first else None

    def _verify(self) -> None:
        """Settings of several stages together, against none."""
        if self.final is not None or not self.kept.given():
            return
        kept = [one for one in self.attempts if one.kept]
        together = replace(kept[0].proposal, knobs=self.kept, epochs=any(one.proposal.epochs for one in kept))
        both = self._relaunched([_NONE, self.kept], [together])
        if both and Attempt(proposal=together, before=both[0], after=both[1]).helps:
            self.final = (both[0], both[1])
            return
        # Each helped, together they were not shown to: what was measured against none stays.
        self.notes.append(f"Only the first of the settings that helped is kept: {_shown(self.kept)} was not shown to.")
        self.attempts = [replace(one, kept=one is kept[0]) for one in self.attempts]
        self.kept, self.predicted = kept[0].proposal.knobs, kept[0].proposal.gain
        self.final = (kept[0].before, kept[0].after)


def _chosen(group: Sequence[Proposal]) -> list[Proposal]:
    """The best predicted ones; of those predicted alike the one with the fewest workers first."""
    return sorted(group, key=lambda one: (-round(one.gain / _ALIKE), one.knobs.num_workers or 0))[:_MOST_ARMS]


def _best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The one with the fewest workers among those within 2 % of the fastest."""
    helping = [one for one in attempts if one.helps]
    if not helping:
        return None
    fastest_s = min(one.after.step_s for one in helping)
    near = [one for one in helping if one.after.step_s <= ENOUGH * fastest_s]
    return min(near, key=lambda one: (one.proposal.knobs.num_workers or 0, one.after.step_s))


def _is_workers(one: Proposal) -> bool:
    return one.knobs.num_workers is not None or one.knobs.prefetch_factor is not None


def _words(chosen: Sequence[Proposal]) -> str:
    return ", ".join(_shown(one.knobs) for one in chosen)


def _shown(knobs: Knobs) -> str:
    return " ".join(f"{name}={value}" for name, value in knobs.given().items()) or "as it was"
