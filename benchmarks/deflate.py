"""A real two-rank job deflated on this machine: does it do what its run record says, and is it better than killing?

    python -m benchmarks.deflate [curve] [race]

The accelerator sleeps in proportion to its batch, the loader decodes JPEGs on real cores (`jobs/deflate.py`). The job
is profiled; then rank 1 is held to a CPU quota (period 10 ms) at five levels around the knee that the record tells,
with the bare control group and with the job's own help, in turns. Last, the same job lives through a stretch of
pressure twice: deflated, and with the rank's machine killed when the pressure begins and started when it ends.

Cores that are taken are taken for somebody. So all through, profile included, neighbours use whatever the job leaves
(SCHED_IDLE: they give way at once), and each rank has a core of its own. What a core gets done in a second, which also
depends on the quota (`deflate_core`), is not what is tested: samples take a fixed core time.

Bars (written before the measurement): each measured step within 10 % of the predicted one; with the job's help never
slower than 1.03 × the bare control group; deflated the job ends sooner than killed. Needs root and a cpu controller.
"""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Result

if TYPE_CHECKING:
    from stallwise.model.deflation import DeflationResponse

JOB = Path(__file__).with_name("jobs") / "deflate.py"
WITHIN, NO_SLOWER = 0.10, 1.03
LEVELS = (2.0, 1.4, 1.0, 0.7, 0.45)
"""Cores left, as multiples of the knee."""
ROUNDS = 3
"""Through all levels, there and back; a step is the median of its windows."""
SETTLE_S, SETTLE_CORE_S, WINDOW_S = 3.0, 1.0, 5.0
"""Loader workers that are started anew take about half a core-second until they are at work: the fewer, the longer."""
CALM_S, PRESSURE_S, REST_S = 4.0, 12.0, 8.0
PRESSED = 0.5
"""Cores left under pressure, as a multiple of the knee."""
BATCH, SAMPLE_S, CORE_S = 16, 0.010, 0.005
WORK = ("--batch", str(BATCH), "--sample-s", str(SAMPLE_S), "--core-s", str(CORE_S))


def measure() -> list[Result]:
    """Both parts."""
    why_not = _why_not()
    if why_not:
        # What was not measured was not held.
        return [Result(claim="a deflated job follows its curve", measured=f"not measured: {why_not}", held=False)]
    folder = Path(tempfile.mkdtemp())
    try:
        with neighbours():
            response = _profiled(folder)
            return [*_curve(folder, response), *_race(folder, response)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def neighbours() -> Iterator[None]:
    """Who uses what the job leaves of every core, and nothing else."""
    program = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _why_not() -> str:
    from stallwise.deflate.cgroups import group_of
    from stallwise.errors import InputError

    if os.geteuid() != 0:
        return "needs root"
    try:
        group_of(os.getpid(), "cpu")
    except (InputError, OSError) as error:
        return str(error)
    return ""


def _profiled(folder: Path) -> "DeflationResponse":
    from stallwise.analysis.analysis import open_run
    from stallwise.deflate.response import response_of

    run = folder / "run"
    words = ("--nproc-per-node", "2", "--no-cold", "--max-time", "25s", "-o", str(run), str(JOB), "--profile", *WORK)
    command = [sys.executable, "-m", "stallwise", "profile", *words]
    subprocess.run(command, check=True, capture_output=True)
    return response_of(open_run(run))


def _knee_cores(response: "DeflationResponse") -> float:
    """Where what a step takes on cores takes as long as what it takes without: C / consume."""
    from stallwise.model.deflation import ResourceFractions

    return (response.cpu_s + response.process_s) / response.at(ResourceFractions()).step_s


# ---- the curve ---------------------------------------------------------------------------------------------


def _curve(folder: Path, response: "DeflationResponse") -> list[Result]:
    from stallwise.deflate import act
    from stallwise.model.deflation import ResourceFractions

    knee = _knee_cores(response)
    busy, cores = 0.0, {level: max(0.1, level * knee) for level in LEVELS}
    windows: dict[tuple[float, bool], list[float]] = {(level, help): [] for level in LEVELS for help in (False, True)}
    with _ranks(folder / "curve", 2) as job:
        job.until_step(30)
        for turn in range(ROUNDS):
            for level, helped in list(windows)[:: -1 if turn % 2 else 1]:
                want = act.DeflationRequest(cpu=act.Amount(amount=cores[level]), cooperative=helped)
                busy = act.deflate(str(job.pid(1)), want).busy_cores or 0.0
                time.sleep(SETTLE_S + SETTLE_CORE_S / cores[level])
                windows[level, helped].append(job.step_s(WINDOW_S))
                print(f"{level:g} {helped}: {windows[level, helped][-1] * 1e3:.0f} ms", file=sys.stderr, flush=True)
        act.undo(str(job.pid(1)))
    rows = []
    for level in LEVELS:
        kept = ResourceFractions(cpu=min(1.0, cores[level] / response.cores))
        said = response.at(kept).step_s, response.cooperative(kept)[0].step_s
        rows.append((level, cores[level], said, {helped: windows[level, helped] for helped in (False, True)}))
    errors = [statistics.median(seen[False]) / said[0] - 1 for _, _, said, seen in rows]
    with_help = [statistics.median(seen[True]) / said[1] - 1 for _, _, said, seen in rows]
    ratios = [statistics.median(seen[True]) / statistics.median(seen[False]) for _, _, _, seen in rows]
    return [
        Result(
            claim=f"step under a CPU quota (10 ms period) within {WITHIN:.0%} of the record's curve at five levels",
            measured=f"knee {knee:.3f} cores, used {busy:.3f}; "
            + "; ".join(_row(*row) for row in rows)
            + f"; errors {_all(errors)}, with the job's help {_all(with_help)}",
            held=max(map(abs, errors)) <= WITHIN,
        ),
        Result(
            claim=f"with the job's help at most {NO_SLOWER} × the bare control group's step at every level",
            measured=", ".join(f"{ratio:.2f}" for ratio in ratios),
            held=max(ratios) <= NO_SLOWER,
        ),
    ]


def _row(level: float, cores: float, said: Sequence[float], seen: dict[bool, list[float]]) -> str:
    bare, helped = (
        f"{statistics.median(s) * 1e3:.0f} ms ({min(s) * 1e3:.0f} to {max(s) * 1e3:.0f}, said {of_s * 1e3:.0f})"
        for s, of_s in zip((seen[False], seen[True]), said, strict=True)
    )
    return f"{level:g} × knee ({cores:.2f} cores): {bare}, helped {helped}"


def _all(errors: Sequence[float]) -> str:
    return ", ".join(f"{error:+.1%}" for error in errors)


# ---- the race ----------------------------------------------------------------------------------------------


def _race(folder: Path, response: "DeflationResponse") -> list[Result]:
    from stallwise.deflate import act
    from stallwise.model.deflation import Pressure, ResourceFractions, deflate_or_lose

    cores = max(0.1, PRESSED * _knee_cores(response))
    samples = round((CALM_S + PRESSURE_S + REST_S) * 2 / SAMPLE_S)

    def deflated(job: "_Job") -> None:
        # It looks at what the job uses for as long as the calm lasts.
        act.deflate(str(job.hosts[1].pid), act.DeflationRequest(cpu=act.Amount(amount=cores), look_s=CALM_S))
        time.sleep(PRESSURE_S)
        act.undo(str(job.hosts[1].pid))

    def killed(job: "_Job") -> None:
        time.sleep(CALM_S)
        os.killpg(job.hosts[1].pid, signal.SIGKILL)
        time.sleep(PRESSURE_S)
        job.add_host()

    def noticed(job: "_Job") -> None:
        time.sleep(CALM_S)
        job.hosts[1].send_signal(signal.SIGTERM)
        time.sleep(PRESSURE_S)
        job.add_host()

    lasted = {}
    for name, way in {"deflated": deflated, "killed": killed, "noticed": noticed}.items():
        with _hosts(folder / name, samples) as job:
            job.until_step(20)
            begin_s = time.monotonic()
            way(job)
            lasted[name] = job.ended_s() - begin_s
        print(f"{name}: {lasted[name]:.1f} s", file=sys.stderr, flush=True)
    kept = ResourceFractions(cpu=min(1.0, cores / response.cores))
    speed = response.at(ResourceFractions()).step_s / response.cooperative(kept)[0].step_s
    choice = deflate_or_lose(speed, 2, Pressure(lasts_s=PRESSURE_S, restart_s=0.0))
    return [
        Result(
            claim=f"{PRESSURE_S:g} s of pressure for {cores:.2f} cores' worth of one of two machines: deflated ends "
            "sooner than killed and started again",
            measured=f"deflated {lasted['deflated']:.1f} s, killed {lasted['killed']:.1f} s "
            f"({lasted['killed'] / lasted['deflated']:.2f} ×), with notice {lasted['noticed']:.1f} s "
            f"({lasted['noticed'] / lasted['deflated']:.2f} ×); the rule said deflating loses {choice.deflate_s:.1f} s "
            f"of training, losing a rank at least {choice.lose_s:.1f} s",
            held=lasted["deflated"] < min(lasted["killed"], lasted["noticed"]),
        )
    ]


# ---- the job -----------------------------------------------------------------------------------------------


class _Job:
    """A job that runs, seen through its log."""

    def __init__(self, folder: Path, samples: int, port: int) -> None:
        self.folder, self.port, self.hosts = folder, port, []  # type: Path, int, list[subprocess.Popen[bytes]]
        self.words = [str(JOB), "--folder", str(folder / "run"), "--log", str(folder / "log")]
        self.words += ["--samples", str(samples), *WORK]
        folder.mkdir(parents=True)

    def start(self, *command: str, **known: str) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **known}
        with (self.folder / "out.txt").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def add_host(self) -> None:
        words = ("--coordinator", f"127.0.0.1:{self.port}", "--nnodes", "1:2", "--nproc-per-node", "1")
        self.hosts.append(self.start("-m", "stallwise.elastic", "host", *words, *self.words, "--interval", "5"))

    def lines(self) -> list[dict[str, float]]:
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / "log" / "steps.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return []

    def pid(self, rank: int) -> int:
        return int((self.folder / "log" / f"rank{rank}.pid").read_text())

    def until_step(self, step: int, patience_s: float = 60.0) -> None:
        give_up_s = time.monotonic() + patience_s
        while not any(line["step"] >= step for line in self.lines()):
            if time.monotonic() > give_up_s:
                raise SystemExit((self.folder / "out.txt").read_text()[-3000:])
            time.sleep(0.05)

    def step_s(self, window_s: float) -> float:
        """Mean over a window that begins now."""
        begin_s = time.monotonic()
        time.sleep(window_s)
        moments = [line["at"] for line in self.lines() if line["at"] >= begin_s]
        return (moments[-1] - moments[0]) / (len(moments) - 1)

    def ended_s(self, patience_s: float = 180.0) -> float:
        """When rank 0 was through."""
        give_up_s, done = time.monotonic() + patience_s, self.folder / "log" / "done"
        while not done.exists() or not done.read_text():
            if time.monotonic() > give_up_s:
                raise SystemExit((self.folder / "out.txt").read_text()[-3000:])
            time.sleep(0.02)
        return float(done.read_text())


@contextlib.contextmanager
def _ranks(folder: Path, world: int) -> Iterator[_Job]:
    """Ranks without an agent."""
    job = _Job(folder, 60_000, _port())
    for rank in range(world):
        named = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_PORT": job.port,
        }
        job.hosts.append(job.start(*job.words, MASTER_ADDR="127.0.0.1", **{k: str(v) for k, v in named.items()}))
    with _closing(job):
        yield job


@contextlib.contextmanager
def _hosts(folder: Path, samples: int) -> Iterator[_Job]:
    """A coordinator and two machines."""
    job = _Job(folder, samples, _port())
    coordinator = job.start("-m", "stallwise.elastic", "coordinator", "--port", str(job.port))
    for _ in range(2):
        job.add_host()
    with _closing(job, coordinator):
        yield job


@contextlib.contextmanager
def _closing(job: _Job, *others: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        for process in (*job.hosts, *others):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _port() -> int:
    from tests.data.testbed.processes import free_ports

    return free_ports(1)[0]


def main(words: Sequence[str]) -> int:
    """Parts by name; all without one."""
    folder = Path(tempfile.mkdtemp())
    try:
        with neighbours():
            response = _profiled(folder)
            parts = {"curve": _curve, "race": _race}
            found = [result for name in words or parts for result in parts[name](folder, response)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for result in found:
        print(f"{result.verdict:<6} deflate: {result.claim}: {result.measured}", flush=True)
    return int(any(result.held is False for result in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
