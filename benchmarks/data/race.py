"""Runs contestants: each in a process of its own, with a cache folder of its own, and believes none of them.

A run counts only if it delivered every sample once per epoch and every byte; anything else ends the benchmark with the
contestant's own words.
"""

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.data.peers import LITDATA, ROOT, SPDL, STREAMING, python_of
from benchmarks.data.spec import Epoch, Report, Spec
from tests.data.testbed.link import Link
from tests.data.testbed.seaweed import Seaweed

_ENVIRONMENTS = {"litdata_raw": LITDATA, "streaming_mds": STREAMING, "spdl_pipeline": SPDL}
_PATIENCE_S = 300
# Without a cache every sample must come from the store; a few lie in the look-ahead at the end of one epoch and are
# wanted again at the beginning of the next.
FETCHED = 0.95


@dataclass(frozen=True)
class Outcome:
    """One run: what it was told, its report, and the bytes that crossed the link to it."""

    spec: Spec
    report: Report
    wire_bytes: int | None

    @property
    def first(self) -> Epoch:
        """The first epoch: start-up included."""
        return self.report.epochs[0]

    @property
    def whole_per_s(self) -> float:
        """Samples a second of the first epoch, start-up included."""
        return self.first.samples_per_s

    @property
    def steady_per_s(self) -> float:
        """Samples a second without the start-up: of the epochs after the first; of the first where it is alone."""
        later = self.report.epochs[1:] or self.report.epochs
        return sum(one.samples for one in later) / sum(one.seconds for one in later)

    @property
    def wire_ratio(self) -> float:
        """Bytes that came over the link for each byte of the samples delivered."""
        return (self.wire_bytes or 0) / sum(epoch.bytes for epoch in self.report.epochs)

    @property
    def first_batch_s(self) -> float:
        """From building the dataset to the first batch."""
        return self.report.made_s + self.first.first_s


def quick() -> bool:
    """Small sizes and one round, to see that everything works; the figures mean little."""
    return os.environ.get("STALLWISE_BENCH_QUICK") == "1"


def run(spec: Spec, server: Seaweed, total_bytes: int, link: Link | None = None) -> Outcome:
    """Run the contestant and check what it delivered."""
    with own_folder(spec) as (spec, home):
        before = link.received_bytes() if link else 0
        report = _start(spec, server, home)
        wire = link.received_bytes() - before if link else None
    for epoch in report.epochs:
        seen, due = (epoch.samples, epoch.unique, epoch.bytes), (spec.samples, spec.samples, total_bytes)
        if seen != due:
            raise RuntimeError(f"{spec.loader} delivered (samples, unique, bytes) {seen}, not {due}")
    _check_fetched(spec, report)
    return Outcome(spec, report, wire)


def _check_fetched(spec: Spec, report: Report) -> None:
    """Ours must not shine because memory held a set this small over the end of an epoch."""
    requests, due = report.extra.get("requests"), FETCHED * spec.samples * spec.epochs
    if requests is not None and "limit_bytes" not in spec.extra and not quick() and requests < due:
        raise RuntimeError(f"ours sent {requests:.0f} GETs, fewer than {due:.0f}: memory helped")


@contextlib.contextmanager
def own_folder(spec: Spec) -> Iterator[tuple[Spec, Path]]:
    """A cache and a home for this run alone; a cache the spec names already is the caller's to keep."""
    home = Path(tempfile.mkdtemp(prefix="stallwise-bench-"))
    try:
        yield (spec if spec.cache else replace(spec, cache=str(home / "cache"))), home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(spec: Spec, server: Seaweed, home: Path) -> Report:
    # A home of its own, so that no index or setting of an earlier run helps; credentials that can only read.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST_"))}
    reader = server.reader().environment
    environment = outside | reader | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home), "HOME": str(home)}
    command = [python_of(_ENVIRONMENTS.get(spec.loader)), "-m", "benchmarks.data.contestant", spec.text()]
    return Report.read(_finish(spec.loader, command, environment).strip().splitlines()[-1])


def _finish(name: str, command: list[str], environment: Mapping[str, str]) -> str:
    """What the process printed. One that hangs is ended, with all its workers."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} did not end within {_PATIENCE_S} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{name} failed:\n{error[-3000:]}")
    return out


def take_turns(runs: Mapping[str, "Turn"], rounds: int) -> dict[str, list[Outcome]]:
    """Each contestant once per round, so that a slow moment of the machine hits all of them."""
    outcomes: dict[str, list[Outcome]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, turn in runs.items():
            try:
                outcomes[name].append(run(turn.spec, turn.server, turn.total_bytes, turn.link))
            except RuntimeError as error:
                # Ours may not fail; of a peer that does, the other rounds count, and the failure is shown.
                if turn.spec.loader.startswith("ours"):
                    raise
                print(f"FAILED {name}: {str(error).strip().splitlines()[-1]}", flush=True)
    return {name: runs for name, runs in outcomes.items() if runs}


def at_their_best(peers: Mapping[str, Sequence["Turn"]]) -> dict[str, "Turn"]:
    """Of every peer the setting with the best steady pace in one run of each; all that was tried is printed."""
    best = {}
    for name, turns in peers.items():
        paces = []
        for turn in turns:
            done = take_turns({name: turn}, 1).get(name)
            paces.append(spread(done, "steady_per_s").median if done else 0.0)
        if any(paces):
            best[name] = turns[paces.index(max(paces))]
            tried = ", ".join(f"{turn.setting} {pace:.0f}" for turn, pace in zip(turns, paces, strict=True))
            print(f"       {name}, samples/s by setting: {tried}; taken: {best[name].setting}", flush=True)
    return best


@dataclass(frozen=True)
class Turn:
    """What `run` needs for one contestant."""

    spec: Spec
    server: Seaweed
    total_bytes: int
    link: Link | None = None

    @property
    def setting(self) -> str:
        """What a sweep varies, in words."""
        spec, found = self.spec, [f"{self.spec.workers} workers"]
        if spec.prefetch is not None:
            found.append(f"prefetch {spec.prefetch}")
        found += [f"{value} {name}" for name, value in spec.extra.items() if name in ("threads", "concurrency")]
        return " and ".join(found)


def spread(outcomes: list[Outcome], figure: str) -> "Spread":
    """One figure of all rounds of a contestant."""
    return Spread(tuple(getattr(one, figure) for one in outcomes))


@dataclass(frozen=True)
class Spread:
    """Figures of one contestant over the rounds: the median speaks, the ends are shown."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    def __format__(self, form: str) -> str:
        form = form or ".0f"
        return f"{self.median:{form}} ({min(self.values):{form}} to {max(self.values):{form}})"
