"""The one thing that binds a job, and the next step with its predicted gain."""

from dataclasses import dataclass

from stallwise.model.datapath import LoaderWork, step_with_workers
from stallwise.model.intervals import median_of_block_means
from stallwise.record import plan
from stallwise.record.split import Measured

# A stall below this share of the step is not what to work on first.
_WORTH_IT = 0.05
_MOST_WORKERS = 64

_SENTENCES = {
    "copy": "Copying batches to the device is not hidden behind compute",
    "interconnect": "Ranks of one machine wait for the exchange of gradients",
    "network": "Machines wait for the exchange of gradients",
    "prep": "Preparing batches holds the step up",
    "fetch": "Reading data holds the step up",
}
_ADVICE = {
    "copy": "Use pin_memory=True in the loader and .to(device, non_blocking=True), or send smaller types.",
    "interconnect": "Exchange less often (accumulate gradients) or less (a bf16 hook), or use a faster GPU link.",
    "network": "Exchange less often (accumulate gradients) or less (a bf16 hook), or rent a faster network.",
    "prep": "The cores are used up: decode less (smaller images, a faster decoder, prepared data) or rent more cores.",
    "fetch": "Keep the data closer: a local cache, a faster disk, or larger files read in sequence.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What binds, why we say so, what to do next, and what that should bring."""

    binds: str
    sentence: str
    next_step: str
    predicted_step_s: float | None = None
    predicted_gain: float | None = None  # part of the step that goes away


def judge(found: Measured, *, cores: int | None, ranks: int) -> Verdict:
    """Name the largest stall that is beyond noise and worth the work; else a slow rank; else compute.

    `cores` are those of a machine, shared by its `ranks`.
    """
    step_s = found.step.value
    if list(found.rungs) == [plan.AS_IS]:
        return _only_watched(found)
    skew_s = found.skew.s if found.skew is not None else 0.0
    for name, share in found.split.stalls().items():
        if share.distinguishable and share.s >= _WORTH_IT * step_s and share.s >= skew_s:
            return _stalled(name, share.s, found, cores, ranks)
    if found.skew is not None and skew_s >= _WORTH_IT * step_s:
        return Verdict(
            binds="skew",
            sentence=f"Rank {found.skew.rank} computes longer than the others, and all wait for it.",
            next_step=f"Find out what is different about rank {found.skew.rank}: its data, its GPU, its neighbours.",
            predicted_step_s=step_s - skew_s,
            predicted_gain=skew_s / step_s,
        )
    return Verdict(
        binds="compute",
        sentence="The step is compute; no stall is worth removing.",
        next_step="Make compute cheaper: a lower precision, torch.compile, or a faster device.",
    )


def _only_watched(found: Measured) -> Verdict:
    """Without ablation only the waiting for batches can be seen, not why, nor any other stall."""
    wait_s, step_s = found.data_wait_s, found.step.value
    full = "Profile without --light to have the step taken apart."
    if wait_s is None:
        return Verdict(binds="unknown", sentence="Nothing was taken away from the step.", next_step=full)
    waits = f"{wait_s / step_s:.0%}".replace("%", " %")
    return Verdict(
        binds="unknown",
        sentence=f"Only watched: the script waits for its batches {waits} of the time; a GPU may be busy meanwhile.",
        next_step=full,
    )


def _stalled(name: str, stall_s: float, found: Measured, cores: int | None, ranks: int) -> Verdict:
    step_s = found.step.value
    sentence = f"{_SENTENCES[name]}: {stall_s / step_s:.0%} of the step.".replace("%", " %")
    if name in ("prep", "fetch") and found.data is not None:
        consume_s = median_of_block_means(list(found.rungs[plan.HOST].values())).value
        return _data_bound(name, sentence, step_s, consume_s, found.data.work, _free_cores(found, cores, ranks))
    return Verdict(
        binds=name,
        sentence=sentence,
        next_step=_ADVICE[name],
        predicted_step_s=step_s - stall_s,
        predicted_gain=stall_s / step_s,
    )


def _free_cores(found: Measured, cores: int | None, ranks: int) -> int:
    """Cores that one rank's loader may use; where training itself runs on the CPU, it keeps one busy."""
    mine = (cores or _MOST_WORKERS) // max(1, ranks)
    return max(1, mine - (0 if plan.DEVICE in found.rungs else 1))


def _data_bound(
    name: str, sentence: str, step_s: float, consume_s: float, work: LoaderWork, free_cores: int
) -> Verdict:
    """More workers where the loader is too slow for the step and cores are free; else what the stall needs instead.

    What workers bring is the model's time with them over the model's time with the present number, so that a stall
    the model does not explain is not credited to them.
    """
    now_s = step_with_workers(work, consume_s, work.workers, free_cores)
    times = {n: step_with_workers(work, consume_s, n, free_cores) for n in range(work.workers + 1, _MOST_WORKERS + 1)}
    best_s = min(times.values())
    workers = next(n for n, time_s in times.items() if time_s <= 1.02 * best_s)
    gain = 1 - times[workers] / now_s
    if gain >= _WORTH_IT:
        return Verdict(
            binds=name,
            sentence=sentence,
            next_step=f"Set num_workers={workers} in the DataLoader (now {work.workers}).",
            predicted_step_s=step_s * (1 - gain),
            predicted_gain=gain,
        )
    advice = _ADVICE[name]
    if work.period_s < consume_s:
        if free_cores > work.workers:
            sentence += " The loader keeps up: what costs is taking the batches over into the training process."
            advice = "Hand over less: larger batches, fewer and smaller tensors per batch, pin_memory=True."
        else:
            sentence += " The loader keeps up, but its workers and the training take the cores from each other."
    return Verdict(
        binds=name,
        sentence=sentence,
        next_step=advice,
        predicted_step_s=consume_s,
        predicted_gain=1 - consume_s / step_s,
    )
