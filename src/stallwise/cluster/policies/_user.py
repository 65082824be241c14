"""Policies that a user writes in Python: one class with one method, in a file.

    class LeastAttained:
        preemptive = True

        def decide(self, view):
            return sorted(view.jobs, key=lambda job: job.attained_gpu_s)

`decide` is called at every event at which a job waits: an arrival, an end, the end of a lease. It returns jobs (or
their ids) in order of priority. The loop gives them GPUs in that order, with the placer of all other policies; jobs
that are left out do not start, and are stopped where the policy is preemptive. Every simulation has an object of its
own; on a real cluster there is one for the life of the scheduler.
"""

import difflib
import functools
import hashlib
import math
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from stallwise.errors import InputError, nearest_names

SUFFIX = ".py"


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that has arrived and not ended, as a user's policy sees it."""

    id: str
    gpus: int
    arrival_s: float
    running: bool
    """Whether it has GPUs now; otherwise it waits."""
    run_s: float
    """Seconds with GPUs so far."""
    attained_gpu_s: float
    """GPU-seconds so far."""
    waited_s: float
    """Since it arrived or was last stopped; 0 while it runs, so a job started for its waiting drops back at once."""
    model: str | None
    remaining_s: float | None
    """Work left in seconds at full speed; None unless the policy declares `clairvoyant = True`."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a user's policy decides from."""

    now_s: float
    gpus: int
    """Of the cluster."""
    free_gpus: int
    jobs: tuple[JobView, ...]
    """In the order of the last decision, new ones last: a stable sort keeps ties as they were."""


@dataclass(frozen=True, slots=True, eq=False)
class UserPolicy:
    """A user's class, and what it declares."""

    label: str
    """How it is named in messages: the file as the user wrote it, or the name of the class."""
    factory: type
    digest: str
    """Of the source; two files with the same one decide alike."""
    clairvoyant: bool = False
    preemptive: bool = False
    strict: bool = False
    lease_s: float = 0.0
    interval_s: float = 0.0
    fit: str = "best"

    def order(self) -> "UserOrder":
        """Create the object that decides for one simulation or one scheduler."""
        with _located(self):
            return UserOrder(self, self.factory())


class UserOrder:
    """A user's policy at work: asks it and checks what it returns."""

    def __init__(self, policy: UserPolicy, decider: Any) -> None:
        self.policy, self._decider = policy, decider
        self.clairvoyant = policy.clairvoyant

    def decide(self, view: ClusterView) -> list[int]:
        """Return the indices in `view.jobs` in order of priority."""
        with _located(self.policy):
            reply = self._decider.decide(view)
            if isinstance(reply, str) or not isinstance(reply, Iterable):
                raise self._wrong(f"a {type(reply).__name__}")
            chosen = list(cast("Iterable[object]", reply))
        index = {job.id: at for at, job in enumerate(view.jobs)}
        places: dict[int, None] = {}
        for item in chosen:
            job_id = item.id if isinstance(item, JobView) else item
            if not isinstance(job_id, str):
                raise self._wrong(f"{item!r} among them")
            if job_id not in index:
                raise self._wrong(f"{job_id!r}, which neither waits nor runs at {view.now_s:g} s")
            if index[job_id] in places:
                raise self._wrong(f"{job_id!r} twice")
            places[index[job_id]] = None
        return list(places)

    def _wrong(self, reply: str) -> InputError:
        return InputError(
            f"Policy {self.policy.label}: decide() must return jobs of the view, or their ids, in order of priority; "
            f"it returned {reply}."
        )


class _located:  # noqa: N801 - reads as a function; a generator would hide the frame of the error
    """Turn an exception of the user's code into a sentence with its file and line."""

    def __init__(self, policy: UserPolicy) -> None:
        self._policy = policy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):
            file = getattr(sys.modules.get(self._policy.factory.__module__), "__file__", None)
            where = _place(error, file)
            hint = "" if self._policy.clairvoyant or "NoneType" not in str(error) else _NOT_CLAIRVOYANT
            raise InputError(f"Policy {self._policy.label} failed{where}: {_sentence(error)}{hint}") from error


_NOT_CLAIRVOYANT = " remaining_s is None unless the class declares clairvoyant = True."


def _place(error: BaseException, file: str | None) -> str:
    """Where in the user's file an exception was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" at {frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else ""


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}."


def is_file(text: str) -> bool:
    """Whether the name of a policy is a Python file: `my_policy.py`, `folder/my_policy.py:ClassName`."""
    return text.partition(":")[0].endswith(SUFFIX)


def read_source(text: str) -> str:
    """Read the file of a policy `path.py` or `path.py:ClassName`."""
    path = text.partition(":")[0]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not a text file"
        raise InputError(f"The policy {path} cannot be read: {cause}.", fields=("policy",)) from None


def load_policy(text: str, source: str | None = None) -> UserPolicy:
    """Load `path.py` or `path.py:ClassName`; `source` is what the file holds where it was read before."""
    path, _, name = text.partition(":")
    return _loaded(text, path, name, read_source(text) if source is None else source)


@functools.lru_cache(maxsize=64)
def _loaded(text: str, path: str, name: str, source: str) -> UserPolicy:
    digest = hashlib.blake2b(source.encode(), digest_size=12).hexdigest()
    module = _module(path, source, digest)
    return declared(_chosen(module, path, name), text, digest)


def _module(path: str, source: str, digest: str) -> ModuleType:
    """Run a user's file as a module; its folder can be imported from meanwhile."""
    module = ModuleType(f"stallwise_policy_{digest}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look there
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - the user asked for it
    except SyntaxError as error:
        del sys.modules[module.__name__]
        message = f"The policy {path} is not Python: line {error.lineno}, {error.msg}."
        raise InputError(message, fields=("policy",)) from None
    except Exception as error:
        del sys.modules[module.__name__]
        message = f"The policy {path} cannot be imported: it failed{_place(error, path)}: {_sentence(error)}"
        raise InputError(message, fields=("policy",)) from error
    finally:
        sys.path.remove(folder)
    return module


def _chosen(module: ModuleType, path: str, name: str) -> type:
    """Return the class with a `decide` method: the one that is named, or the only one."""
    classes = {key: value for key, value in _classes(module) if callable(getattr(value, "decide", None))}
    if name:
        if name in classes:
            return classes[name]
        names = " or ".join(nearest_names(name, classes) or classes)
        hint = f" Did you mean {names}?" if names else ""
        raise InputError(f"{path} has no class {name} with a method decide(self, view).{hint}", fields=("policy",))
    if not classes:
        raise InputError(f"{path} has no class with a method decide(self, view).", fields=("policy",))
    if len(classes) > 1:
        first = next(iter(classes))
        message = f"{path} has several policies: {', '.join(classes)}. Name one, as in {path}:{first}."
        raise InputError(message, fields=("policy",))
    return next(iter(classes.values()))


def _classes(module: ModuleType) -> Iterator[tuple[str, type]]:
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value


_DECLARED = ("preemptive", "lease_s", "interval_s", "strict", "fit", "clairvoyant")


def declared(factory: type, label: str, digest: str = "") -> UserPolicy:
    """Check and take over what a class declares as attributes."""
    for name in vars(factory):
        close = [] if name in _DECLARED else difflib.get_close_matches(name, _DECLARED, n=1, cutoff=0.8)
        if close and not callable(vars(factory)[name]):
            raise InputError(f"Policy {label}: {name} is nothing that a policy declares. Did you mean {close[0]}?")
    preemptive = _flag(factory, label, "preemptive")
    lease_s, interval_s = _seconds(factory, label, "lease_s"), _seconds(factory, label, "interval_s")
    fit = getattr(factory, "fit", "best")
    if fit not in ("first", "best", "random", "emptiest"):
        raise InputError(f"Policy {label}: fit must be first, best, random or emptiest, not {fit!r}.")
    if lease_s and not preemptive:
        raise InputError(f"Policy {label}: lease_s is when a running job may be stopped; declare preemptive = True.")
    if lease_s and interval_s:
        raise InputError(f"Policy {label}: declare lease_s or interval_s, not both.")
    return UserPolicy(
        label=label,
        factory=factory,
        digest=digest,
        clairvoyant=_flag(factory, label, "clairvoyant"),
        preemptive=preemptive,
        strict=_flag(factory, label, "strict"),
        lease_s=lease_s,
        interval_s=interval_s,
        fit=fit,
    )


def _flag(factory: type, label: str, name: str) -> bool:
    value = getattr(factory, name, False)
    if not isinstance(value, bool):
        raise InputError(f"Policy {label}: {name} must be True or False, not {value!r}.")
    return value


def _seconds(factory: type, label: str, name: str) -> float:
    value = getattr(factory, name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"Policy {label}: {name} must be a number of seconds from 0, not {value!r}.")
    return float(value)
