"""What a thread was doing, from samples of its stack: training, waiting for data, making data, or other Python.

A stack is a list of frames, innermost first. Library code says what it is for by its file; the script's own code by
what it is (generators and `__getitem__` make data), by its function's name and by the source line. Forward passes that
come again and again before a backward are acting (a rollout of reinforcement learning), not training.
"""

import linecache
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stallwise.analysis.observed import COMPUTE, DATA_CODE, LOADER, PYTHON, ROLLOUT

_GENERATOR = 0x20  # inspect.CO_GENERATOR

_LOADER_FILES = ("torch/utils/data/dataloader.py", "torchdata/", "nvidia/dali/", "torch/utils/data/_utils/")
_WAIT_FILES = ("/queue.py", "/multiprocessing/connection.py", "/multiprocessing/queues.py")
_BACKWARD_FILES = ("torch/autograd/", "torch/_tensor.py")
_UPDATE_FILES = ("torch/optim/", "torch/nn/utils/", "torch/amp/", "torch/_functorch/", "torch/func/")
_COMPILED_FILES = (
    "torch/_dynamo/",
    "torch/_inductor/",
    "torchinductor_",
    "torch/nn/functional.py",
    "torch/functional.py",
)
_MODULE_FILE = "torch/nn/modules/module.py"
_DATA_LIBRARIES = re.compile(
    r"/(numpy|PIL|cv2|pandas|datasets|tokenizers|gym|gymnasium|h5py|pyarrow|webdataset|torchaudio|librosa|soundfile|"
    r"albumentations|skimage|sklearn|torchvision/(?:transforms|io|datasets))/"
)
_DATA_NAME = re.compile(
    r"batch(es)?$|^(get|next|load|make|sample|fetch|read|prepare|build|draw|gen|generate)_?\w*"
    r"(batch|data|example|sequence|token|image|item|sample|step)\w*|data(set|_?gen|_?iter|_?load|_?source)|"
    r"rollout|collect|collate|augment|tokeni[sz]e|decode|preprocess|prefetch|^step_env|^env_|"
    r"^__(getitem|next|iter)__$"
)
_DATA_OWNER = re.compile(r"Env|Data|Sampler|Tokeni[sz]er|Buffer|Batch(?!Norm)|Simulat")
_TRAIN_NAME = re.compile(r"train|update|optimi|loss|backward|forward|fit|main|epoch")
_COMPUTE_LINE = re.compile(r"\.grad\b|backward|\bloss|autograd|\.step\(\)|zero_grad")
_DATA_LINE = re.compile(
    r"batch|\.sample\(|\benvs?\b|next\(|load|read|open\(|\brand|torch\.(stack|from_numpy|tensor|as_tensor)|"
    r"\bnp\.|numpy|pin_memory|decode|token"
)


class StackFrame(NamedTuple):
    """One frame: its file with forward slashes, line, qualified name of the function, and the flags of its code."""

    file: str
    line: int
    function: str
    flags: int = 0


@dataclass(frozen=True, slots=True)
class StackSample:
    """A moment, what the thread was doing, and the innermost line of the script's own code."""

    at_s: float
    cause: str
    where: str | None
    call_site: str | None = None
    """Of a forward pass: the line that called the outermost module."""
    is_backward: bool = False


def sample_of(at_s: float, frames: Sequence[StackFrame], libraries: Sequence[str]) -> StackSample:
    """Classify a stack; `libraries` are the folders of installed code (the rest is the script's own)."""
    own = [frame for frame in frames if _is_own(frame.file, libraries)]
    where = _place(own[0]) if own else None
    if _any_in(frames, _LOADER_FILES) or (frames and _waits_for_data(frames)):
        return StackSample(at_s, LOADER, where)
    backward = any(_in(frame, _BACKWARD_FILES) and "decorate_context" not in frame.function for frame in frames)
    if backward or _any_in(frames, _UPDATE_FILES):
        return StackSample(at_s, COMPUTE, where, is_backward=backward)
    if any(_makes_data(frame) for frame in own):
        return StackSample(at_s, ROLLOUT if _calls_module(frames) else DATA_CODE, where)
    if _calls_module(frames):
        return StackSample(at_s, COMPUTE, where, call_site=_call_site(frames))
    if _any_in(frames, _COMPILED_FILES):
        return StackSample(at_s, COMPUTE, where)
    if any(_DATA_LIBRARIES.search(frame.file) or frame.file.endswith("/random.py") for frame in frames):
        return StackSample(at_s, DATA_CODE, where)
    return StackSample(at_s, _cause_of_line(own[0]) if own else PYTHON, where)


def with_rollouts(samples: Sequence[StackSample]) -> list[StackSample]:
    """Make forward passes acting whose line mostly comes again before any backward: where there is a backward at all.

    Something else may stand between a forward pass and its backward: a loss, or the next batch being made.
    """
    if not any(sample.is_backward for sample in samples):
        return list(samples)
    again: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    since_backward: set[str] = set()
    last: str | None = None
    for sample in samples:
        if sample.is_backward:
            trained.update(since_backward)
            since_backward.clear()
        elif sample.call_site is not None and sample.call_site != last:
            again[sample.call_site] += sample.call_site in since_backward
            since_backward.add(sample.call_site)
        last = sample.call_site
    acting = {site for site, count in again.items() if count > trained[site]}
    return [
        StackSample(sample.at_s, ROLLOUT, sample.where) if sample.call_site in acting else sample for sample in samples
    ]


def _place(frame: StackFrame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function.rpartition('<locals>.')[2]}"


def _is_own(file: str, libraries: Sequence[str]) -> bool:
    return not (file.startswith(("<frozen", "<string", "<__array")) or any(file.startswith(path) for path in libraries))


def _in(frame: StackFrame, files: Sequence[str]) -> bool:
    return any(part in frame.file for part in files)


def _any_in(frames: Sequence[StackFrame], files: Sequence[str]) -> bool:
    return any(_in(frame, files) for frame in frames)


def _waits_for_data(frames: Sequence[StackFrame]) -> bool:
    """Whether the thread waits for a queue or a pipe."""
    waits = (frame.function.rpartition(".")[2] for frame in frames if frame.file.endswith(_WAIT_FILES))
    return any(name in ("get", "recv", "recv_bytes") for name in waits)


def _makes_data(frame: StackFrame) -> bool:
    if frame.flags & _GENERATOR:
        return True
    owner, _, name = frame.function.rpartition("<locals>.")[2].rpartition(".")
    if _DATA_OWNER.search(owner) and name not in ("forward", "__init__"):
        return True
    return bool(_DATA_NAME.search(name.lower())) and not _TRAIN_NAME.search(name.lower())


def _calls_module(frames: Sequence[StackFrame]) -> bool:
    return any(frame.file.endswith(_MODULE_FILE) for frame in frames)


def _call_site(frames: Sequence[StackFrame]) -> str:
    outermost = max(place for place, frame in enumerate(frames) if frame.file.endswith(_MODULE_FILE))
    caller = frames[min(outermost + 1, len(frames) - 1)]
    return f"{caller.file}:{caller.line}"


def _cause_of_line(frame: StackFrame) -> str:
    text = linecache.getline(frame.file, frame.line)
    if _COMPUTE_LINE.search(text):
        return COMPUTE
    return DATA_CODE if _DATA_LINE.search(text) else PYTHON
