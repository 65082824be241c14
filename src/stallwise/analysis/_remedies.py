"""What to do about a part of the step that was observed: a remedy for its longest cause, and what that saves."""

import re
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMix:
    """What the device's time in the timeline went to."""

    fusable: float
    """Fraction in eager PyTorch's elementwise, reduction, normalization and softmax kernels: bound by memory."""
    is_compiled: bool
    """Whether there are kernels that torch.compile wrote."""


_COMPILED = "triton_"
_FUSABLE = re.compile(r"at::native::(?!.*(multi_tensor_apply|max_pool|upsample))|batch_?norm|bn_[fb]w", re.I)
# Of the time in such kernels, the fraction that compiling saves: low, middle, high. On an H200 the step of GPT-2 124M,
# half of whose time is theirs, became 21 % shorter (evidence/gpu.md), the kernels of ResNet-18 and ResNet-50 in TF32
# 35 and 30 % (fitting/own_steps.csv).
_SAVED_BY_COMPILING = (0.2, 0.45, 0.7)
_WORTH_COMPILING = 0.05


def kernel_mix(kernels: Iterable[tuple[str, float]]) -> KernelMix | None:
    """The mix of kernels given as name and seconds; None where there are none."""
    total_s = fusable_s = 0.0
    is_compiled = False
    for name, duration_s in kernels:
        total_s += duration_s
        is_compiled = is_compiled or name.startswith(_COMPILED)
        fusable_s += duration_s if _FUSABLE.search(name) else 0.0
    return KernelMix(fusable=fusable_s / total_s, is_compiled=is_compiled) if total_s > 0 else None


def compute_remedy(mix: KernelMix | None, compute: float) -> Sentence:
    """What makes compute cheaper, which is this fraction of the step; with what torch.compile is predicted to save."""
    low, gain, high = (compute * (mix.fusable if mix else 0.0) * saved for saved in _SAVED_BY_COMPILING)
    if mix is None or mix.is_compiled or gain < _WORTH_COMPILING:
        others = "a lower precision" if mix is not None and mix.is_compiled else "a lower precision, torch.compile"
        return Sentence("remedy.compute", f"Make compute cheaper: {others}, or a faster device.")
    return Sentence(
        "remedy.compile",
        f"Compile the model (torch.compile): {100 * mix.fusable:.0f} % of the device's time goes to elementwise, "
        f"normalization and softmax kernels, which it fuses; a step of about {100 * gain:.0f} % less "
        f"({100 * low:.0f} to {100 * high:.0f} %) is predicted. Else a lower precision, or a faster device.",
        gain=gain,
        low=low,
        high=high,
    )
