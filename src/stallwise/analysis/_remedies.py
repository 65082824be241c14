"""What to do about a part of the step that was observed: a remedy for its longest cause, and what that saves."""

from collections.abc import Sequence
from dataclasses import dataclass

from stallwise.analysis.observed import (
    ALLOCATE,
    COPY,
    DATA_CODE,
    GC,
    LAUNCH,
    LOADER,
    PYTHON,
    ROLLOUT,
    SYNCHRONISE,
    ObservedCause,
)
from stallwise.sentences import Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What holds the step up, what removes it, and the seconds of a step that it saves; None: cannot be told."""

    sentence: str
    next_step: Sentence
    saves_s: float | None


_HOLDS_UP = {
    LAUNCH: "the device waits for the host to launch its kernels",
    SYNCHRONISE: "the host waits for the device, which then waits for new work",
    ALLOCATE: "the device waits while memory is allocated or freed",
    GC: "Python's garbage collector runs between kernels",
    PYTHON: "Python code between the passes holds the step up",
    DATA_CODE: "the script's own data code holds the step up",
    ROLLOUT: "acting (forward passes that are not trained on) holds the step up",
    LOADER: "the step waits for its next batch",
    COPY: "copies are not hidden behind compute",
}
_REMEDIES = {
    LAUNCH: (
        Sentence(
            "remedy.launch-less",
            'Launch less: torch.compile(model, mode="reduce-overhead") or a CUDA graph, an optimizer with fused=True '
            "(or foreach=True), or a larger batch.",
        )
    ),
    SYNCHRONISE: (
        Sentence(
            "remedy.synchronise-less",
            "Do not wait for the device in every step: no .item(), .cpu(), print of a tensor or boolean test of one; "
            "keep sums on the device and read them every hundred steps.",
        )
    ),
    ALLOCATE: (
        Sentence(
            "remedy.keep-memory",
            "Free less memory back to the driver: no torch.cuda.empty_cache() in the loop, "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a smaller batch.",
        )
    ),
    GC: Sentence(
        "remedy.freeze-gc", "Call gc.freeze() before the loop, or gc.disable() and gc.collect() every thousand steps."
    ),
    PYTHON: Sentence("remedy.python-aside", "Do it less often, or in a thread, while the device works."),
    DATA_CODE: (
        Sentence(
            "remedy.prepare-ahead",
            "Prepare the next batch while this one is trained on: a DataLoader with workers, or a thread that keeps "
            "one batch ahead.",
        )
    ),
    ROLLOUT: Sentence(
        "remedy.act-in-batches",
        "Act in larger batches (vectorised environments), or collect in processes of their own.",
    ),
    LOADER: Sentence("remedy.more-workers", "Let more workers prepare batches, further ahead."),
    COPY: Sentence("remedy.pin-memory", "Use pinned memory and .to(device, non_blocking=True), or send smaller types."),
}
_OVERLAPS = frozenset({DATA_CODE, ROLLOUT, LOADER})
"""What can run beside training, if the cores are there."""


def remedy_of(part: str, part_s: float, causes: Sequence[ObservedCause], *, on_device: bool = True) -> Remedy | None:
    """The remedy for the longest cause of a part; None where nothing was observed of it.

    Without a device, training and what would run beside it share the cores: what that saves cannot be told.
    """
    own = [cause for cause in causes if cause.part == part and cause.cause in _REMEDIES]
    if not own:
        return None
    longest = max(own, key=lambda cause: cause.s)
    place = f" (most at {longest.where})" if longest.where else ""
    saves_s = min(part_s, longest.s)
    return Remedy(
        sentence=_HOLDS_UP[longest.cause] + place,
        next_step=_REMEDIES[longest.cause],
        saves_s=saves_s if on_device or longest.cause not in _OVERLAPS else None,
    )
