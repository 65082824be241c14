"""Advice that needs changes of the code: sentences with the gain that the model predicts. None of it is tried."""

from dataclasses import dataclass, replace

from stallwise.analysis.analysis import analysis_of
from stallwise.analysis.loading import Model, gain_of, step_model
from stallwise.errors import InputError
from stallwise.model.exchange.overlap import FP16
from stallwise.model.step.whatif import speedup
from stallwise.sentences import Sentence
from stallwise.tune._facts import JobFacts
from stallwise.tune.knobs import Knobs

_WORTH_SAYING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneAdvice:
    """A change of the code, its predicted gain (fraction of the step saved), and whether it changes training."""

    text: Sentence
    gain: float
    low: float
    high: float
    alters: bool = False


def advice_on(facts: JobFacts, kept: Knobs) -> tuple[TuneAdvice, ...]:
    """Return advice with the largest gain first, each on top of the settings that were kept."""
    exchange = _exchange(facts) if kept.bucket_cap_mb is None else []  # it was measured with the former buckets
    advice = [*_data(facts, kept), *_copy(facts), *exchange]
    return tuple(sorted((one for one in advice if one.gain >= _WORTH_SAYING), key=lambda one: -one.gain))


def _data(facts: JobFacts, kept: Knobs) -> list[TuneAdvice]:
    loader, work = facts.loader, facts.work
    if loader is None or work is None:
        return []
    blocked = 0.0 if kept.lookahead or kept.cache_bytes else 1.0
    setting = facts.setting_of(kept)
    now = step_model(facts, setting, blocked=blocked)
    advice = []
    texts = [
        (
            Sentence(
                "advice.prepare-less",
                "Prepare less per sample, such as images stored at the size they are trained at: with half of it.",
            ),
            0.5,
        )
    ]
    if facts.on_gpu:
        texts.append(
            (
                Sentence(
                    "advice.decode-on-gpu",
                    "Where samples are images, decode them on the GPU (nvJPEG, DALI): CPUs only read.",
                ),
                0.0,
            )
        )
    for text, part in texts:
        prepared = replace(work, prepare_s=part * work.prepare_s)
        whole_s = work.prepare_s + work.blocked_s
        share = (prepared.prepare_s + work.blocked_s) / whole_s if whole_s else 1.0
        changed = replace(facts, work=prepared, batches_s=tuple(share * time_s for time_s in facts.batches_s))
        advice.append(_of(text, now, step_model(changed, setting, blocked=blocked), facts))
    if blocked and not loader.bucket:
        text = Sentence(
            "advice.pack-samples",
            "Pack samples into large files that are read in sequence, or keep them in memory: no waiting for reads.",
        )
        advice.append(_of(text, now, step_model(facts, setting, blocked=0.0), facts))
    if loader.iterable:
        text = Sentence(
            "advice.share-iterable",
            "Let the IterableDataset share its samples among workers (get_worker_info), then raise num_workers.",
        )
        advice.append(_of(text, now, lambda _, rest: facts.consume_s * rest, facts))
    if not loader.persistent_workers and not loader.fixed_order and not loader.changes:
        text = Sentence(
            "advice.persistent-workers",
            "Keep workers alive with persistent_workers=True; later epochs are then shuffled in another random order.",
        )
        stays = step_model(facts, replace(setting, persistent_workers=True), blocked=blocked)
        advice.append(replace(_of(text, now, stays, facts), alters=True))
    return advice


def _of(text: Sentence, now: Model, then: Model, facts: JobFacts) -> TuneAdvice:
    gain, low, high = gain_of(now, then, facts)
    return TuneAdvice(text=text, gain=gain, low=low, high=high)


def _copy(facts: JobFacts) -> list[TuneAdvice]:
    copy, loader = facts.profile.split.copy, facts.loader
    if copy is None or loader is None or not loader.pin_memory:
        return []
    text = Sentence(
        "advice.hide-copy",
        "Copy with .to(device, non_blocking=True) and send small types (uint8 images), so that copying is hidden.",
    )
    part = 1 / facts.step_s
    return [TuneAdvice(text=text, gain=copy.s * part, low=copy.low_s * part, high=copy.high_s * part)]


def _exchange(facts: JobFacts) -> list[TuneAdvice]:
    job = facts.job
    if job is None or not job.gpus or job.gpus == 1 or job.exchange is None:
        return []
    changes = (
        (
            Sentence("advice.bf16-hook", "Send gradients as 16-bit numbers (a bf16 communication hook)."),
            replace(job.overlap, compression=FP16),
        ),
        (
            Sentence("advice.accumulate", "Accumulate gradients over twice as many batches per update."),
            replace(job.overlap, accumulate=2 * job.overlap.accumulate),
        ),
    )
    analysis = analysis_of(job)
    try:
        now = analysis.on().answer
        estimates = [(text, analysis.on(overlap=overlap).answer) for text, overlap in changes]
    except InputError:
        return []
    gains = [(text, 1 - 1 / speedup(answer, now), answer) for text, answer in estimates]
    return [
        TuneAdvice(
            text=text,
            gain=gain,
            low=min(gain, 1 - (1 - gain) * answer.high_s / answer.step_s),
            high=max(gain, 1 - (1 - gain) * answer.low_s / answer.step_s),
            alters=True,
        )
        for text, gain, answer in gains
    ]
