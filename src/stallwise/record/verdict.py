"""The one thing that binds a job, and the next step with its predicted gain."""

from dataclasses import dataclass

from stallwise.model.datapath import step_with_workers
from stallwise.model.intervals import median_of_block_means
from stallwise.record import plan
from stallwise.record.split import Measured

# A stall below this share of the step is not what to work on first.
_WORTH_IT = 0.05
_MOST_WORKERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What binds, why we say so, what to do next, and what that should bring."""

    binds: str
    sentence: str
    next_step: str
    predicted_step_s: float | None = None
    predicted_gain: float | None = None  # part of the step that goes away


def judge(found: Measured, *, cores: int | None, ranks: int) -> Verdict:
    """Name the largest stall that is beyond noise and worth the work; else a slow rank; else compute."""
    step_s = found.step.value
    for name, share in found.split.stalls().items():
        if share.distinguishable and share.s >= _WORTH_IT * step_s:
            return _stalled(name, share.s, found, cores, ranks)
    if found.skew is not None and found.skew.s >= _WORTH_IT * step_s:
        gain = found.skew.s / step_s
        return Verdict(
            binds="skew",
            sentence=f"Rank {found.skew.rank} computes longer than the others, and all wait for it.",
            next_step=f"Find out what is different about rank {found.skew.rank}: its data, its GPU, its neighbours.",
            predicted_step_s=step_s - found.skew.s,
            predicted_gain=gain,
        )
    return Verdict(
        binds="compute",
        sentence="The step is compute; no stall is worth removing.",
        next_step="Make compute cheaper: a lower precision, torch.compile, or a faster device.",
    )


def _stalled(name: str, stall_s: float, found: Measured, cores: int | None, ranks: int) -> Verdict:
    share = stall_s / found.step.value
    if name in ("prep", "fetch"):
        return _data_bound(name, share, found, cores, ranks)
    sentences = {
        "copy": "Copying batches to the device is not hidden behind compute.",
        "interconnect": "Ranks of one machine wait for the exchange of gradients.",
        "network": "Machines wait for the exchange of gradients.",
    }
    steps = {
        "copy": "Use pin_memory=True in the loader and .to(device, non_blocking=True), or send smaller types.",
        "interconnect": "Exchange less often (accumulate gradients) or less (a bf16 hook), or use a faster GPU link.",
        "network": "Exchange less often (accumulate gradients) or less (a bf16 hook), or rent a faster network.",
    }
    return Verdict(
        binds=name,
        sentence=f"{sentences[name]} That is {share:.0%} of the step.",
        next_step=steps[name],
        predicted_step_s=found.step.value - stall_s,
        predicted_gain=share,
    )


def _data_bound(name: str, share: float, found: Measured, cores: int | None, ranks: int) -> Verdict:
    what = "Preparing batches" if name == "prep" else "Reading data"
    sentence = f"{what} holds the step up for {share:.0%} of its time."
    data, step_s = found.data, found.step.value
    if data is None:
        return Verdict(binds=name, sentence=sentence, next_step="Prepare batches ahead, in processes of their own.")
    consume_s = median_of_block_means(list(found.rungs[plan.HOST].values())).value
    # Cores are shared by the ranks of a machine; where training itself runs on the CPU it keeps one busy.
    mine = max(1, (cores or _MOST_WORKERS) // max(1, ranks))
    busy = 0.0 if plan.DEVICE in found.rungs else 1.0
    times = {
        workers: step_with_workers(data.work, consume_s, workers, mine, busy)
        for workers in range(data.work.workers + 1, _MOST_WORKERS + 1)
    }
    best_s = min(times.values())
    workers = next(n for n, time_s in times.items() if time_s <= 1.02 * best_s)
    gain = 1 - times[workers] / step_s
    if gain >= _WORTH_IT:
        return Verdict(
            binds=name,
            sentence=sentence,
            next_step=f"Set num_workers={workers} in the DataLoader (now {data.work.workers}).",
            predicted_step_s=times[workers],
            predicted_gain=gain,
        )
    advice = (
        "The cores are used up: decode less (smaller images, a faster decoder, prepared data) or rent more of them."
        if name == "prep"
        else "Keep the data closer: a local cache, a faster disk, or larger files read in sequence."
    )
    return Verdict(binds=name, sentence=sentence, next_step=advice, predicted_step_s=consume_s, predicted_gain=share)
