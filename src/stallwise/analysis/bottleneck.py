"""The bottleneck of a job, how certain it is, and the next step with its predicted gain.

A stall is named only where it is the largest one worth removing with a probability of `CONFIDENT`, drawn from the
rounds of the profile; compute only where the bounds of every stall are small. Everything else is *inconclusive*: a
stall that cannot be told from noise is not absent.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from stallwise.analysis._remedies import KernelMix, Remedy, compute_remedy, remedy_of
from stallwise.analysis.loading import LoadingFacts, cores_used, worker_gain
from stallwise.analysis.split import StepMeasurement
from stallwise.model.statistics.stalls import SMALL, WORTH_IT, Share
from stallwise.run import phases
from stallwise.sentences import Sentence

CONFIDENT = 0.9
"""Probability from which a part is named."""

_POSSIBLE = 0.05  # probability from which a part is a candidate
_BUSY = 0.85  # fraction of the cores' time from which they are said to be used up
_LONGER = (1.5, 8.0)  # times the time that was measured
_LONGER_STEP_S = 10.0
_MOST_LONGER_S = 300.0

_SENTENCES = {
    "host": "The device waits for the host",
    "copy": "Copying batches to the device is not hidden behind compute",
    "interconnect": "Ranks of one machine wait for the exchange of gradients",
    "network": "Machines wait for the exchange of gradients",
    "prep": "Preparing batches holds the step up",
    "fetch": "Reading data holds the step up",
}
_NOUNS = {"compute": "compute alone", "skew": "a slow rank"}
_MORE_STEPS = Sentence("profile.more-steps", "Give the script more steps or epochs, and profile it again.")
_LESS_EXCHANGE = "Exchange less often (accumulate gradients) or less (a bf16 hook)"
_LESS_PREPARATION = "prepare less per sample (smaller images, a faster decoder, prepared data)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The part that limits the step, the reason, what to do next, and the predicted gain.

    `binds` is a part of the step, `skew`, `inconclusive` where the profile cannot tell, or `unknown` where it could
    not take anything away.
    """

    binds: str
    sentence: Sentence
    next_step: Sentence
    predicted_step_s: float | None = None
    predicted_low_s: float | None = None
    predicted_high_s: float | None = None
    predicted_gain: float | None = None  # fraction of the step that goes away
    confidence: float | None = None
    """Probability that it is the largest removable stall (for compute: that no stall is large); None: not known."""
    candidates: tuple[str, ...] = ()
    """Where it is inconclusive: the parts that may be the bottleneck, the most probable first."""
    longer_s: float | None = None
    """Where it is inconclusive: about how many more seconds of measuring would decide it."""
    measured_s: float | None = None
    """Where it is inconclusive: seconds that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSituation:
    """What a verdict depends on besides the measurement."""

    loading: LoadingFacts
    gpus: bool
    light: bool
    measured_s: float
    """Seconds that the profile measured."""
    ended_itself: bool = False
    """The script ended before the profile was complete: more time would not have helped."""
    kernels: KernelMix | None = None
    """What the device's time went to; None where no timeline was recorded, or no device was seen."""


def find_bottleneck(measured: StepMeasurement, job: JobSituation) -> Bottleneck:
    """Name the largest stall that is beyond noise and worth the work; else a slow rank; else compute; or nothing."""
    if list(measured.rungs) == [phases.AS_IS] and not measured.split.stalls():
        return _observed_only(measured, light=job.light, ended_itself=job.ended_itself)
    step_s = measured.step.value
    stalls = measured.split.stalls()
    chances = _chances(measured)
    best = max(chances, key=lambda name: chances[name], default=None)
    if best is not None and best != "compute" and chances[best] >= CONFIDENT:
        if best == "skew":
            return _skewed(measured, chances[best])
        if stalls[best].distinguishable and not _may_hide_a_larger_one(best, stalls, measured):
            return replace(_stalled(best, stalls[best], measured, job), confidence=chances[best])
    highest_s = max((share.high_s for share in stalls.values()), default=math.inf)
    skew_s = measured.skew.s if measured.skew is not None else 0.0
    if max(highest_s, skew_s) <= SMALL * step_s:
        return _computing(measured, job, highest_s)
    return _inconclusive(measured, job, chances)


def _may_hide_a_larger_one(best: str, stalls: dict[str, Share], measured: StepMeasurement) -> bool:
    """Whether the largest stall of the draws may not be the largest: another has no bound yet, and more time than the
    best one takes is not assigned to any part. One round of a phase draws nothing from the stall it measures."""
    unbounded = _any_unbounded(share for name, share in stalls.items() if name != best)
    return unbounded and measured.split.unassigned_s > stalls[best].s


def _any_unbounded(stalls: Iterable[Share]) -> bool:
    return any(not math.isfinite(share.high_s) for share in stalls)


def _chances(measured: StepMeasurement) -> dict[str, float]:
    """Probability of each part to be the largest stall that is worth removing; `compute`: none is."""
    draws = measured.stall_draws
    if not draws:
        return {}
    names = list(draws)
    stacked = np.stack([draws[name] for name in names])
    largest, is_worth_it = stacked.argmax(axis=0), stacked.max(axis=0) >= WORTH_IT * measured.step.value
    chances = {name: float(np.mean((largest == number) & is_worth_it)) for number, name in enumerate(names)}
    return chances | {"compute": float(np.mean(~is_worth_it))}


def _skewed(measured: StepMeasurement, confidence: float) -> Bottleneck:
    skew, step_s = measured.skew, measured.step.value
    assert skew is not None  # noqa: S101 - it was drawn
    return replace(
        _without("skew", _skew_share(measured, skew.s), measured),
        sentence=Sentence(
            "bound.skew",
            f"Rank {skew.rank} computes longer than the others, and all wait for it: {_percent(skew.s / step_s)} of "
            "the step.",
            rank=skew.rank,
            skew_s=skew.s,
        ),
        next_step=Sentence(
            "remedy.slow-rank",
            f"Find out what is different about rank {skew.rank}: its data, its GPU, its neighbours.",
            rank=skew.rank,
        ),
        confidence=confidence,
    )


def _skew_share(measured: StepMeasurement, skew_s: float) -> Share:
    """What the slowest rank costs, with the bounds of its draws."""
    draws = measured.stall_draws.get("skew")
    if draws is None:
        return Share(skew_s, 0.0, math.inf)
    low_s, high_s = (float(np.quantile(draws, at)) for at in (0.025, 0.975))
    return Share(skew_s, min(skew_s, low_s), max(skew_s, high_s))


def _computing(measured: StepMeasurement, job: JobSituation, highest_s: float) -> Bottleneck:
    step_s = measured.step.value
    draws = list(measured.stall_draws.values())
    sentence = f"The step is compute; no stall takes more than {_percent(max(highest_s / step_s, 0.001))} of it."
    if measured.split.prep is None:
        sentence += " How long it waits for data was not measured."
    return Bottleneck(
        binds="compute",
        sentence=Sentence("bound.compute", sentence, highest_s=highest_s),
        next_step=compute_remedy(job.kernels, measured.split.compute.s / step_s),
        confidence=float(np.mean(np.max(draws, axis=0) <= SMALL * step_s)) if draws else None,
    )


def _inconclusive(measured: StepMeasurement, job: JobSituation, chances: dict[str, float]) -> Bottleneck:
    """Say which parts it may be, how large they may be, and what would decide it."""
    step_s, stalls = measured.step.value, measured.split.stalls()
    if measured.skew is not None and measured.skew.s > WORTH_IT * step_s:
        stalls |= {"skew": _skew_share(measured, measured.skew.s)}
    candidates = _candidates(stalls, step_s, chances)
    sized = [_sized(name, stalls.get(name), step_s) for name in candidates]
    sentence = Sentence(
        "inconclusive.overlap",
        f"The profile cannot tell what limits the step, because these intervals overlap: {', or '.join(sized)}.",
    )
    if len(sized) == 1:
        sentence = Sentence("inconclusive.noise", f"One stall is not told from noise: {sized[0]}.")
    some_stall = sum(chance for name, chance in chances.items() if name != "compute") >= CONFIDENT
    first = next((name for name in candidates if name in stalls and name != "skew"), None)
    sure = [name for name in candidates if name in stalls and stalls[name].low_s >= WORTH_IT * step_s]
    if len(sure) > 1 and len(sure) == len(candidates) and "skew" not in sure:
        return _tied(sure, sized, measured, job, chances)
    longer_s = None if job.ended_itself else _longer_s(chances, job.measured_s)
    next_step = _MORE_STEPS
    if longer_s is not None:
        next_step = Sentence("profile.longer", f"Profile about {longer_s:.0f} s longer.", longer_s=longer_s)
    if some_stall and first is not None:
        advice = _advice(first, measured, job)
        words = f"{next_step} If it is {first}: {advice}"
        next_step = Sentence(next_step.code, words, **next_step.facts, part=first, remedy=advice.code)
    return Bottleneck(
        binds="inconclusive",
        sentence=sentence,
        next_step=next_step,
        # The draws know nothing of a stall without a bound, so they cannot say how probable the others are.
        confidence=None if _any_unbounded(stalls.values()) else max(chances.values(), default=None),
        candidates=candidates,
        longer_s=longer_s,
        measured_s=job.measured_s,
    )


def _candidates(stalls: dict[str, Share], step_s: float, chances: dict[str, float]) -> tuple[str, ...]:
    """The parts that may limit the step, most probable first; without draws, the largest stall first."""
    possible = {name: chance for name, chance in chances.items() if chance >= _POSSIBLE}
    if not chances:
        possible = {name: share.s for name, share in stalls.items() if share.s >= WORTH_IT * step_s}
    # A stall whose bound is large may be the bottleneck, however improbable the draws say it is.
    possible |= {n: 0.0 for n, share in stalls.items() if share.high_s > SMALL * step_s and n not in possible}
    return tuple(sorted(possible, key=lambda name: -possible[name]))


def _tied(
    names: list[str], sized: list[str], measured: StepMeasurement, job: JobSituation, chances: dict[str, float]
) -> Bottleneck:
    """Stalls about equally large, each of them worth removing: which one is larger matters less than both."""
    advice = " ".join(f"For {name}: {_advice(name, measured, job)}" for name in names)
    return Bottleneck(
        binds="inconclusive",
        sentence=Sentence(
            "inconclusive.several",
            f"Several stalls are about equally large, and each is worth removing: {', '.join(sized)}.",
        ),
        next_step=Sentence("remedy.several", advice),
        confidence=max(chances.values(), default=None),
        candidates=tuple(names),
        measured_s=job.measured_s,
    )


def _sized(name: str, share: Share | None, step_s: float) -> str:
    if share is None:
        return _NOUNS.get(name, name)
    if not math.isfinite(share.high_s):
        return f"{_NOUNS.get(name, name)} (no bound yet)"
    # An interval of a noisy measurement may reach beyond the step; a part of the step cannot.
    low, high = (_percent(min(1.0, bound_s / step_s)) for bound_s in (share.low_s, share.high_s))
    sized = high if low == high else f"{low} to {high}" if share.low_s > 0 else f"up to {high}"
    return f"{_NOUNS.get(name, name)} ({sized} of the step)"


def _longer_s(chances: dict[str, float], measured_s: float) -> float:
    """Seconds after which the most probable answer would be `CONFIDENT`: deviations shrink with the root of time."""
    least, most = _LONGER
    times = most / 2
    if chances:
        chance = min(max(chances.values()), 0.999)
        now, needed = NormalDist().inv_cdf(max(chance, 0.501)), NormalDist().inv_cdf(CONFIDENT)
        times = min(most, max(least, (needed / max(now, 0.01)) ** 2))
    longer_s = math.ceil((times - 1) * max(measured_s, _LONGER_STEP_S) / _LONGER_STEP_S) * _LONGER_STEP_S
    return min(longer_s, _MOST_LONGER_S)


def _observed_only(measured: StepMeasurement, *, light: bool, ended_itself: bool) -> Bottleneck:
    """Without ablation only the waiting for batches is measured, not its cause, nor any other stall."""
    wait_s, step_s = measured.data_wait_s, measured.step.value
    full = Sentence("profile.full", "Run a full profile (not a light one) to have the step split into its parts.")
    if not light:
        full = Sentence(
            "profile.wrap-batches",
            "Wrap what the loop iterates over in stallwise.batches(...), so that its batches can be replayed.",
        )
    if wait_s is None:
        if ended_itself and not light:
            early = Sentence(
                "unknown.ended-early", "The script ended before its steps were watched, so no stall can be named."
            )
            return Bottleneck(binds="unknown", sentence=early, next_step=_MORE_STEPS)
        why = "" if light else ": the job has no loader whose batches could be replayed, and exchanges no gradients"
        nothing = Sentence("unknown.not-ablated", f"Nothing was ablated, so no stall can be named{why}.")
        return Bottleneck(binds="unknown", sentence=nothing, next_step=full)
    return Bottleneck(
        binds="unknown",
        sentence=Sentence(
            "unknown.observed-only",
            f"Observed only: the script waits for its batches {_percent(wait_s / step_s)} of the time; a GPU may be "
            "busy meanwhile.",
            wait_s=wait_s,
        ),
        next_step=full,
    )


def _stalled(name: str, stall: Share, measured: StepMeasurement, job: JobSituation) -> Bottleneck:
    step_s = measured.step.value
    remedy = _remedy(name, measured)
    if remedy is not None:
        sentence = Sentence(
            "bound.observed", f"Observed: {remedy.sentence}, {_percent(stall.s / step_s)} of the step.", stall_s=stall.s
        )
        if remedy.saves_s is None:
            return Bottleneck(binds=name, sentence=sentence, next_step=remedy.next_step)
        part = remedy.saves_s / stall.s if stall.s else 0.0
        saved = Share(remedy.saves_s, part * stall.low_s, part * stall.high_s)
        return replace(_without(name, saved, measured), sentence=sentence, next_step=remedy.next_step)
    sentence = Sentence(
        "bound.stall", f"{_SENTENCES[name]}: {_percent(stall.s / step_s)} of the step.", stall_s=stall.s
    )
    if name in ("prep", "fetch") and measured.data is not None:
        return _data_bound(name, sentence, stall, measured, job)
    return replace(_without(name, stall, measured), sentence=sentence, next_step=_advice(name, measured, job))


def _without(name: str, stall: Share, measured: StepMeasurement) -> Bottleneck:
    """The step without a stall: never below compute."""
    step_s, compute_s = measured.step.value, measured.split.compute.s
    left_s = max(step_s - stall.s, compute_s if name != "skew" else 0.0)
    floor_s = min(left_s, compute_s) if name != "skew" else 0.0
    return Bottleneck(
        binds=name,
        sentence=Sentence("bound.stall", ""),
        next_step=Sentence("remedy.several", ""),
        predicted_step_s=left_s,
        predicted_low_s=max(step_s - stall.high_s, floor_s),
        predicted_high_s=min(step_s, step_s - stall.low_s),
        predicted_gain=1 - left_s / step_s,
    )


def _data_bound(
    name: str, sentence: Sentence, stall: Share, measured: StepMeasurement, job: JobSituation
) -> Bottleneck:
    """Another number of workers where that is certain to help; else what the stall needs instead.

    What workers bring is the model's time with them over the model's time with the present number, so that a stall
    the model does not explain is not credited to them.
    """
    loading, step_s = job.loading, measured.step.value
    ready_s = min(step_s, max(loading.consume_s, measured.split.compute.s))
    workers = worker_gain(loading)
    if workers is not None and workers.gain >= WORTH_IT and (workers.low > 0 or _has_free_cores(loading)):
        predicted, low_s, high_s = (max(ready_s, step_s * (1 - g)) for g in (workers.gain, workers.high, workers.low))
        return Bottleneck(
            binds=name,
            sentence=sentence,
            next_step=Sentence(
                "remedy.num-workers",
                f"Set num_workers={workers.num_workers} in the DataLoader (now {loading.setting.num_workers}).",
                num_workers=workers.num_workers,
            ),
            predicted_step_s=predicted,
            predicted_low_s=min(predicted, low_s),
            predicted_high_s=min(step_s, max(predicted, high_s)),
            predicted_gain=1 - predicted / step_s,
        )
    work, busy = loading.work, cores_used(loading)
    advice = _advice(name, measured, job)
    if work is not None and work.workers and work.period_s < ready_s:
        if busy < _BUSY:
            cause = "The loader keeps up: what costs is handing the batches over to the training process."
            sentence = Sentence("bound.handover", f"{sentence} {cause}", **sentence.facts)
            advice = Sentence(
                "remedy.hand-over-less",
                "Hand over less: larger batches, fewer and smaller tensors per batch, pin_memory=True.",
            )
        else:
            cause = "The loader keeps up, but its workers and the training take the cores from each other."
            sentence = Sentence("bound.shared-cores", f"{sentence} {cause}", **sentence.facts)
    return replace(_without(name, stall, measured), sentence=sentence, next_step=advice)


def _has_free_cores(loading: LoadingFacts) -> bool:
    """Whether more workers would run on cores that nothing uses now: then the gain may be small, but it is no loss."""
    return loading.on_gpu and cores_used(loading) < _BUSY


def _advice(name: str, measured: StepMeasurement, job: JobSituation) -> Sentence:
    """What would remove a stall on the hardware that is there."""
    remedy = _remedy(name, measured)
    if remedy is not None:
        return remedy.next_step
    if name == "host":
        return Sentence(
            "remedy.launch-less",
            "Give the host less to do in a step: torch.compile, an optimizer with fused=True, or a larger batch.",
        )
    if name == "copy":
        return Sentence(
            "remedy.pin-memory",
            "Use pin_memory=True in the loader and .to(device, non_blocking=True), or send smaller types.",
        )
    if name == "interconnect":
        faster = ", or use a faster GPU link" if job.gpus else ""
        return Sentence("remedy.exchange-less", f"{_LESS_EXCHANGE}{faster}.")
    if name == "network":
        return Sentence("remedy.exchange-less", f"{_LESS_EXCHANGE}, or rent a faster network.")
    if name == "fetch":
        return Sentence(
            "remedy.data-closer",
            "Keep the data closer: a local cache, a faster disk, or larger files read in sequence.",
        )
    if measured.data is not None and cores_used(job.loading) >= _BUSY:
        return Sentence("remedy.more-cores", f"The cores are used up: {_LESS_PREPARATION} or rent more cores.")
    return Sentence("remedy.prepare-less", f"{_LESS_PREPARATION[0].upper()}{_LESS_PREPARATION[1:]}.")


def _remedy(name: str, measured: StepMeasurement) -> Remedy | None:
    """What was observed of a part and what to do about it; None where it was ablated."""
    share: Share | None = getattr(measured.split, name)
    if share is None or not share.observed:
        return None
    return remedy_of(name, share.s, measured.observed, on_device=measured.on_device)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.{0 if fraction >= 0.0995 else 1}f} %"
