"""What would help but needs code: sentences with the gain that the model predicts. Nothing here has been tried."""

from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.calibrate import own_links
from stallwise.model.overlap import FP16
from stallwise.model.whatif import Change, speedup, what_if
from stallwise.record.setup import own_fabric
from stallwise.tune.facts import Facts
from stallwise.tune.knobs import Knobs
from stallwise.tune.propose import Model, gain_of, step_model

_WORTH_SAYING = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing to do, what it should bring (part of the step that goes away), and whether training changes by it."""

    text: str
    gain: float
    low: float
    high: float
    alters: bool = False


def advice_on(facts: Facts, kept: Knobs) -> tuple[Advice, ...]:
    """The largest gain first, each on top of the settings that were kept."""
    exchange = _exchange(facts) if kept.bucket_cap_mb is None else []  # it was measured with the buckets before
    found = [*_data(facts, kept), *_copy(facts), *exchange]
    return tuple(sorted((one for one in found if one.gain >= _WORTH_SAYING), key=lambda one: -one.gain))


def _data(facts: Facts, kept: Knobs) -> list[Advice]:
    loader, work = facts.loader, facts.work
    if loader is None or work is None:
        return []
    blocked = 0.0 if kept.lookahead or kept.cache_bytes else 1.0
    now = step_model(facts, kept, blocked=blocked)
    found = []
    texts = [("Prepare less per sample, such as images stored at the size they are trained at: with half of it", 0.5)]
    if facts.on_gpu:
        texts.append(("Where samples are images, decode them on the GPU (nvJPEG, DALI): processors only read", 0.0))
    for text, part in texts:
        prepared = replace(work, prepare_s=part * work.prepare_s)
        whole_s = work.prepare_s + work.blocked_s
        share = (prepared.prepare_s + work.blocked_s) / whole_s if whole_s else 1.0
        changed = replace(facts, work=prepared, batches_s=tuple(share * time_s for time_s in facts.batches_s))
        found.append(_of(text, now, step_model(changed, kept, blocked=blocked), facts))
    if blocked and not loader.bucket:
        text = "Pack samples into large files that are read in sequence, or keep them in memory: no waiting for reads"
        found.append(_of(text, now, step_model(facts, kept, blocked=0.0), facts))
    if loader.iterable:
        text = "Let the IterableDataset share its samples among workers (get_worker_info), then raise num_workers"
        found.append(_of(text, now, lambda _, rest: facts.consume_s * rest, facts))
    if not loader.persistent_workers and not loader.fixed_order and not loader.changes:
        text = "Keep workers alive with persistent_workers=True; later epochs are then shuffled in another random order"
        stays = step_model(facts, kept.with_(Knobs(persistent_workers=True)), blocked=blocked)
        found.append(replace(_of(text, now, stays, facts), alters=True))
    return found


def _of(text: str, now: Model, then: Model, facts: Facts) -> Advice:
    gain, low, high = gain_of(now, then, facts)
    return Advice(text=f"{text}.", gain=gain, low=low, high=high)


def _copy(facts: Facts) -> list[Advice]:
    copy, loader = facts.profile.split.copy, facts.loader
    if copy is None or loader is None or not loader.pin_memory:
        return []
    text = "Copy with .to(device, non_blocking=True) and send small types (uint8 images), so that copying is hidden."
    part = 1 / facts.step_s
    return [Advice(text=text, gain=copy.s * part, low=copy.low_s * part, high=copy.high_s * part)]


def _exchange(facts: Facts) -> list[Advice]:
    job = facts.job
    if job is None or not job.gpus or job.gpus == 1 or job.exchange is None:
        return []
    changes = (
        ("Send gradients as 16-bit numbers (a bf16 communication hook)", replace(job.overlap, compression=FP16)),
        (
            "Accumulate gradients over twice as many batches per update",
            replace(job.overlap, accumulate=2 * job.overlap.accumulate),
        ),
    )
    try:
        fabric = own_fabric(job, own_links(job))
        now = what_if(job, Change(), fabric, job.gpus)
        found = [(text, what_if(job, Change(overlap=overlap), fabric, job.gpus)) for text, overlap in changes]
    except InputError:
        return []
    gains = [(text, 1 - 1 / speedup(answer, now), answer) for text, answer in found]
    return [
        Advice(
            text=f"{text}.",
            gain=gain,
            low=min(gain, 1 - (1 - gain) * answer.high_s / answer.step_s),
            high=max(gain, 1 - (1 - gain) * answer.low_s / answer.step_s),
            alters=True,
        )
        for text, gain, answer in gains
    ]
