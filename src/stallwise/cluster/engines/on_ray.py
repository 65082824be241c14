"""A Ray cluster: portions of simulations as tasks, the sweep itself in the object store once.

Each worker process takes the sweep out of the store once and keeps it. Ray starts a task again when its worker or its
whole node is lost; a simulation depends on its case alone, so the answer is the same. Without an address a cluster
of this machine's cores is started, in a folder of its own that is removed at the end.
"""

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import stallwise
from stallwise.cluster.engines.portions import Portions
from stallwise.cluster.engines.worker import Failed, packed, restored
from stallwise.cluster.results import program
from stallwise.cluster.sweep import Heard, Made, Numbered, Sweep, simulated
from stallwise.errors import MissingFeatureError, StallwiseError

_TARGET_S = 1.0
"""Of one task: far above the millisecond that Ray needs for each, and little to do again when a worker is lost."""
_TRIES = 5
"""Times that a task is started again after its worker or node is lost."""
_AHEAD = 2
"""Tasks per core that are handed over: one runs, the next one waits beside it."""
_LOOK_S = 5.0
"""So often it is seen how many cores the cluster has now: nodes come and go."""
_PATIENCE_S = 60.0
"""So long it is not said that all cores are gone: nodes that are replaced come back within it."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """The cluster at an address (`auto`, `host:6379`), or one of `cores` cores started here."""

    cores: int | None = None
    """Most simulations at a time; None: all cores of the cluster."""
    address: str | None = None

    def __call__(self, sweep: Sweep, cases: Sequence[Numbered], heard: Heard) -> Iterator[Made]:
        """Each as its task is done."""
        from stallwise.cluster.engines.ray_cluster import joined, tidy

        tidy()
        if not cases:
            return
        ray = ray_package()
        with joined(ray, self.address, self.cores):
            yield from self._simulated(ray, sweep, cases)

    def _simulated(self, ray: Any, sweep: Sweep, cases: Sequence[Numbered]) -> Iterator[Made]:
        left = Portions(cases, workers=self._workers(ray), target_s=_TARGET_S)
        looked_s = time.monotonic()
        watch = _Watch()
        task = ray.remote(num_cpus=1, max_retries=_TRIES)(portion_simulated)
        # Inside a list Ray hands on the reference: a worker fetches the sweep once, not for every task.
        held, name = [ray.put(sweep)], uuid.uuid4().hex
        flying: list[Any] = []
        try:
            while left or flying:
                while left and len(flying) < _AHEAD * left.workers:
                    flying.append(task.remote(name, held, left.take()))
                done, flying = ray.wait(flying, timeout=_LOOK_S)
                for answer in done:
                    for made in _answered(ray, answer):
                        left.heard(made)
                        yield restored(sweep, made)
                if time.monotonic() - looked_s > _LOOK_S:
                    cores, looked_s = self._cores_now(ray), time.monotonic()
                    left.workers = max(1, cores)
                    watch.saw(cores, looked_s)
        finally:
            for answer in flying:
                with contextlib.suppress(Exception):  # the cluster may be what was lost
                    ray.cancel(answer, force=True)

    def _workers(self, ray: Any) -> int:
        """How many simulations run at a time; none at all is said rather than waited for."""
        found = self._cores_now(ray)
        if found < 1:
            raise StallwiseError(
                f"The Ray cluster at {self.address} has no cores for work. Start some with: ray start --address=…"
            )
        return found

    def _cores_now(self, ray: Any) -> int:
        there = int(ray.cluster_resources().get("CPU", 0))
        return min(there, self.cores or there)


@dataclass(slots=True)
class _Watch:
    """Says once, on standard error, that the cluster has had no cores for a while: a sweep that waits does not hang."""

    gone_s: float | None = None
    said: bool = False

    def saw(self, cores: int, now_s: float) -> None:
        """So many cores are there now."""
        if cores > 0:
            self.gone_s, self.said = None, False
            return
        self.gone_s = now_s if self.gone_s is None else self.gone_s
        if not self.said and now_s - self.gone_s >= _PATIENCE_S:
            self.said = True
            sys.stderr.write(
                f"The Ray cluster has had no cores for {now_s - self.gone_s:.0f} s. The sweep goes on when it has some "
                "(ray start --address=…); Ctrl-C ends it.\n"
            )


def ray_package() -> Any:
    """Ray, told to keep to itself: it counts its users unless asked not to, and warns about its own future."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingFeatureError(
            "--engine ray needs Ray, which is not installed here: pip install 'stallwise[ray]'"
        ) from None
    return ray


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of one task."""

    program: str
    node: str
    made: tuple[Made, ...]
    failed: Failed | None


_KEPT: dict[str, Sweep] = {}
"""In a worker process: the sweep it works for."""


def portion_simulated(name: str, held: list[Any], portion: list[Numbered]) -> _Answer:
    """Runs in a worker of the cluster."""
    made: list[Made] = []
    failed: Failed | None = None
    try:
        made.extend(map(packed, simulated(_kept(name, held), portion, lambda *_: None)))
    except Exception as error:
        failed = Failed.of(error)
    return _Answer(program(), os.uname().nodename, tuple(made), failed)


def _kept(name: str, held: list[Any]) -> Sweep:
    if name not in _KEPT:
        import ray

        _KEPT.clear()
        _KEPT[name] = ray.get(held[0])
    return _KEPT[name]


def _answered(ray: Any, reference: Any) -> tuple[Made, ...]:
    """What a task found, or a sentence about what became of it."""
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    try:
        answer: _Answer = ray.get(reference)
    except lost as error:
        raise StallwiseError(
            f"Ray lost the worker of a portion of the sweep {_TRIES + 1} times: {_first_line(error)} "
            "Where memory is short, give a smaller --cores."
        ) from None
    except ray.exceptions.RayError as error:
        if "No module named" in str(error) or "failed to import" in str(error):
            raise StallwiseError(
                f"A worker of the Ray cluster cannot load Stallwise: {_first_line(error)} "
                f"Install stallwise {stallwise.__version__} on all its nodes, in the Python that Ray runs in."
            ) from None
        raise
    if answer.program != program():
        raise StallwiseError(
            f"Node {answer.node} of the Ray cluster has stallwise {answer.program}, here it is {program()}. "
            "Install the same on all nodes, or their answers are not comparable."
        )
    if answer.failed is not None:
        raise answer.failed.error()
    return answer.made


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "No module named" in line] or lines[:1] or [type(error).__name__]
    return told[0].rstrip(".") + "."
