"""Any training script, bare and under `profile`: `python -m benchmarks.scripts [options] PATH… [-- ARGS…]`.

For each script one row: whether it ran, whether its folder is unharmed (checksums before and after), what the profile
left (processes, temporary files), the step, the split and the verdict. The bare run is the script by itself, with
nothing but a clock on its optimizer steps (`sitecustomize` of a folder that only this run sees); it is stopped after
some seconds, and not before it took enough steps for queues of batches to be used up and filled again. There is one
before and one after the profile, because machines change their speed. Scripts run in a copy of their folder.

`--list FILE` takes the scripts from a file instead, one a line: the folder to start in, then what follows `python`.
These run where they are, so that their data is found; the bare runs write there as they always do. `--lanes` scripts
run at once, each on `--cores` cores of its own.
"""

import argparse
import atexit
import bisect
import contextlib
import hashlib
import itertools
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CLOCK = textwrap.dedent(
    """
    import atexit, os, sys, time

    def watch(module):
        import torch

        lines, backward, owner = [], torch.autograd.backward, os.getpid()
        module.register_optimizer_step_post_hook(lambda optimizer, *_: note(id(optimizer)))
        modules = sys.modules["torch.nn.modules.module"].Module
        evaluate = modules.eval

        def eval(self):
            if lines and not lines[-1].startswith("eval"):
                note("eval")
            return evaluate(self)

        modules.eval = eval

        def counted(*arguments, **options):
            backward(*arguments, **options)
            note(0)

        def note(who):
            lines.append(f"{who} {time.monotonic()!r}")
            if len(lines) % 16 == 0:
                write()

        def write():
            if os.getpid() == owner:
                with open(os.environ["STEP_TIMES"], "w") as file:
                    file.write("\\n".join(lines))

        torch.autograd.backward = counted
        atexit.register(write)

    class Finder:
        busy = False

        def find_spec(self, name, path=None, target=None):
            if name != "torch.optim.optimizer" or self.busy:
                return None
            import importlib.util

            self.busy = True
            spec = importlib.util.find_spec(name)
            self.busy = False
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                watch(module)

            spec.loader.exec_module = exec_module
            return spec

    if not os.environ.get("STEP_CLOCK_RUNS"):
        os.environ["STEP_CLOCK_RUNS"] = "1"  # of this process, not of its children
        sys.meta_path.insert(0, Finder())
    """
)
_STARTS_S = 60.0  # importing, compiling, the first epoch's workers
_SKIPPED = 0.3  # of the steps: warm-up
_BLOCKS = 10
_BLOCK_STEPS = 16
"""Least steps of a block: batches come in bursts of as many as there are workers."""
_LEAST_STEPS, _LONGEST = 48, 3.0
"""Steps that a bare run takes at least, unless that is so many times as long as it should last."""
_MARK = "STALLWISE_SCRIPTS_MARK"
_LIVE: "set[subprocess.Popen[bytes]]" = set()
"""Bare runs, which have sessions of their own and are ended with us."""


@dataclass(frozen=True)
class Script:
    """What is run where."""

    name: str
    folder: Path
    arguments: tuple[str, ...]
    copied: bool = False
    """Whether it runs in copies of its folder."""


@dataclass(frozen=True)
class Row:
    """One script's line."""

    script: str
    ending: str
    outcome: str
    changed: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]
    bare_s: tuple[float | None, ...]
    profile: dict[str, Any] | None
    wall_s: float

    @property
    def error(self) -> float | None:
        """How much longer the profile's step is than the bare ones' mean."""
        bare = [step_s for step_s in self.bare_s if step_s is not None]
        return self.profile["step_s"] / statistics.fmean(bare) - 1 if self.profile and bare else None

    @property
    def is_well(self) -> bool:
        """Whether a script that runs bare ran under `profile`, and nothing changed, was left, or contradicts itself."""
        if self.ending != "bare":
            return True
        if self.profile is None or self.changed or self.left or contradictions(self.profile):
            return False
        # Where functions are wrapped instead, new files that are no checkpoints go where the script says.
        return not self.new or not any("overlay of the file system" in note["text"] for note in self.profile["notes"])

    def cells(self) -> list[str]:
        """Script, runs, files, what was left, bare steps, step, its error, split, verdict."""
        bare = " / ".join("unknown" if step_s is None else f"{1e3 * step_s:.3g}" for step_s in self.bare_s)
        files = "unharmed" if not self.changed else f"CHANGED {', '.join(self.changed[:3])}"
        files += f", {len(self.new)} new" if self.new else ""
        cells = [self.script, f"{self.ending}, {self.outcome}", files, ", ".join(self.left) or "nothing", bare]
        if self.profile is None:
            return [*cells, "-", "-", "-", "-"]
        step_s = self.profile["step_s"]
        error = "-" if self.error is None else f"{100 * self.error:+.0f} %"
        parts = {name: share for name, share in self.profile["split"].items() if share is not None}
        split = ", ".join(
            f"{name} {100 * share['s'] / step_s:.0f} %{' o' if share['observed'] else ''}"
            for name, share in parts.items()
            if share["s"] >= 0.01 * step_s
        )
        verdict = self.profile["verdict"]
        gain = verdict["predicted_gain"]
        words = verdict["binds"] + ("" if gain is None else f", {100 * gain:.0f} % less")
        words = "; ".join([words, *contradictions(self.profile)])
        return [*cells, f"{1e3 * step_s:.3g}", error, split, words]


def contradictions(profile: dict[str, Any]) -> list[str]:
    """Where a profile's document contradicts itself."""
    step_s, said = profile["step_s"], []
    shares = {name: share for name, share in profile["split"].items() if share is not None}
    if not all(0 <= share["low_s"] <= share["s"] <= (share["high_s"] or math.inf) for share in shares.values()):
        said.append("CONTRADICTION: a part is outside of its interval")
    if sum(share["s"] for share in shares.values()) > 1.001 * step_s:
        said.append("CONTRADICTION: the parts exceed the step")
    if profile.get("step_low_s") is not None and profile["step_low_s"] <= 0:
        said.append("CONTRADICTION: the interval of the step reaches zero")
    rates = {name: rate["samples_per_s"] for name, rate in (profile.get("rates") or {}).items() if rate is not None}
    slow = [name for name in ("G", "P", "C") if rates.get(name, math.inf) < 0.999 * (profile["samples_per_s"] or 0)]
    if slow:
        said.append(f"CONTRADICTION: {', '.join(slow)} below the throughput")
    predicted_s, compute = profile["verdict"].get("predicted_step_s"), shares.get("compute")
    if predicted_s is not None and compute is not None and predicted_s < 0.999 * compute["s"]:
        said.append("CONTRADICTION: a step below its compute is predicted")
    return said


def checksums(folder: Path) -> dict[str, str]:
    """Contents of every file below `folder`, by its path; where symbolic links point."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if {"__pycache__", ".git"}.isdisjoint(path.parts):
            name = str(path.relative_to(folder))
            if path.is_symlink():
                sums[name] = f"-> {path.readlink()}"
            elif path.is_file():
                sums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            elif path.is_dir():
                sums[name] = "folder"
    return sums


def step_of(lines: list[str]) -> float | None:
    """Mean time between steps of the optimizer that steps least often, or between backward passes without one.

    A step of a job with several optimizers is one repetition of all of them. Steps with an evaluation in them do not
    count, and the median over blocks leaves out what else is seldom: checkpoints.
    """
    moments, evaluations = defaultdict(list), []
    for line in lines:
        who, _, moment = line.partition(" ")
        (evaluations if who == "eval" else moments[who]).append(float(moment))
    backwards = moments.pop("0", [])
    often = [times for times in moments.values() if len(times) >= 3]
    pairs = list(itertools.pairwise(min(often, key=len) if often else backwards))
    steps = [
        after - before
        for before, after in pairs[int(_SKIPPED * len(pairs)) :]
        if bisect.bisect(evaluations, before) == bisect.bisect(evaluations, after)
    ]
    if not steps:
        return None
    size = min(len(steps), max(_BLOCK_STEPS, len(steps) // _BLOCKS))
    blocks = [steps[at : at + size] for at in range(0, len(steps) - size + 1, size)]
    return statistics.median(map(statistics.fmean, blocks))


def bare_step_s(script: Script, folder: Path, seconds: float) -> tuple[float | None, str]:
    """The step of the script by itself, and how it ended."""
    with tempfile.TemporaryDirectory() as own:
        times, clock = Path(own) / "times", Path(own) / "sitecustomize.py"
        clock.write_text(_CLOCK)
        path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "STEP_TIMES": str(times)}
        with (Path(own) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, *script.arguments], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                stderr=errors, start_new_session=True,
            )  # fmt: skip
            _LIVE.add(process)
            try:
                until_s = time.monotonic() + _STARTS_S
                while process.poll() is None and time.monotonic() < until_s and not times.exists():
                    time.sleep(0.1)
                code, wait_s, until_s = None, seconds, time.monotonic() + _LONGEST * seconds
                while code is None and time.monotonic() < until_s:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        code = process.wait(timeout=wait_s)
                    if times.exists() and _steps_in(times.read_text().splitlines()) >= _LEAST_STEPS:
                        break
                    wait_s = 0.5
                errors.seek(0)
                ending = "bare" if not code else f"fails bare: {errors.read().strip().splitlines()[-1:]}"
            finally:
                _end_group(process)
        lines = times.read_text().splitlines() if times.exists() else []
    return step_of(lines), ending


def _steps_in(lines: list[str]) -> int:
    counts = Counter(line.partition(" ")[0] for line in lines)
    backwards = counts.pop("0", 0)
    counts.pop("eval", None)
    return min(counts.values(), default=backwards)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process with what it started."""
    _LIVE.discard(process)
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10.0)


def profiled(
    script: Script, folder: Path, run: Path, settings: argparse.Namespace
) -> tuple[dict[str, Any] | None, str, list[str]]:
    """The profile's document, how the profile ended, and what it left behind."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as own:
        temporary = Path(own) / "tmp"
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary), _MARK: mark}
        command = [sys.executable, "-m", "stallwise", "profile", "--json", "--max-time", f"{settings.seconds}s"]
        command += ["-o", str(run), *shlex.split(settings.options), *script.arguments]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=10 * settings.seconds + 600,
            env=environment,
        )  # fmt: skip
        left = [f"process {number}" for number in _processes(mark)]
        left += [f"file {path.name}" for path in temporary.iterdir()]
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = None
    if document is not None and "step_s" in document:
        return document, f"profiled{f' ({done.returncode})' if done.returncode else ''}", left
    return None, f"profile ends with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", left


def _processes(mark: str) -> Iterator[int]:
    """Processes that inherited a variable of ours."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def measure(script: Script, settings: argparse.Namespace) -> Row:
    """Run one script bare, under `profile`, and bare again."""
    began_s, bare_seconds = time.monotonic(), settings.bare_seconds
    with tempfile.TemporaryDirectory() as own:
        bare, under = script.folder, script.folder
        if script.copied:
            bare, under = Path(own) / "bare", Path(own) / "profiled"
            for folder in (bare, under):
                ignored = shutil.ignore_patterns("__pycache__", ".git")
                shutil.copytree(script.folder, folder, symlinks=True, ignore=ignored)
        before_s, ending = bare_step_s(script, bare, bare_seconds) if bare_seconds else (None, "bare")
        if ending != "bare":
            return Row(script.name, ending, "not profiled", (), (), (), (before_s,), None, time.monotonic() - began_s)
        checked = settings.unharmed or under
        sums = checksums(checked)
        document, outcome, left = profiled(script, under, (settings.runs or Path(own)) / script.name, settings)
        after = checksums(checked)
        changed = tuple(name for name, content in sums.items() if after.get(name) != content)
        new = tuple(sorted(after.keys() - sums.keys()))
        after_s, _ = bare_step_s(script, bare, bare_seconds) if bare_seconds else (None, "bare")
    wall_s = time.monotonic() - began_s
    return Row(script.name, ending, outcome, changed, new, tuple(left), (before_s, after_s), document, wall_s)


def table(rows: list[list[str]]) -> str:
    """Columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def scripts_of(list_file: Path) -> list[Script]:
    """The scripts of a list; two of the same name are numbered."""
    scripts: list[Script] = []
    for number, line in enumerate(list_file.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            folder, *arguments = shlex.split(line)
            program = next((word for word in arguments if not word.startswith("-")), folder)
            name = f"{number}-{Path(folder).name}-{Path(program).stem}"
            scripts.append(Script(name, list_file.parent / folder, tuple(arguments)))
    return scripts


def _is_meant(name: str, only: str) -> bool:
    return name.startswith(f"{only}-") if only.isdecimal() else only in name


def main() -> int:
    """Print one table; exit 1 where a script that runs bare does not run under `profile`, or a file changed."""
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, of_script = arguments[:at], arguments[at + 1 :]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    atexit.register(lambda: [_end_group(process) for process in list(_LIVE)])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scripts", nargs="*", type=Path)
    parser.add_argument("--list", type=Path, help="a file with scripts: folder, then what follows `python`")
    parser.add_argument("--only", default="", help="of the list: a line's number, or names that contain this")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the profile, once it has started")
    parser.add_argument("--bare-seconds", type=float, default=15.0, help="of each bare run, 0: none")
    parser.add_argument("--options", default="", help="more options of the profile: --options=--no-overlay")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no script after this many seconds")
    parser.add_argument("--lanes", type=int, default=1, help="scripts at once, each on cores of its own")
    parser.add_argument("--cores", type=int, help="of a lane; default: all of them, or with lanes 2")
    parser.add_argument("--first-core", type=int, default=0, help="of the first lane")
    parser.add_argument("--unharmed", type=Path, help="the folder whose files are compared; default: the script's own")
    parser.add_argument("--runs", type=Path, help="keep the recorded runs in this folder")
    parser.add_argument("--json", type=Path, help="append one line of JSON for each script to this file")
    options = parser.parse_args(own)
    scripts = [
        Script(path.name, path.resolve().parent, (path.name, *of_script), copied=True) for path in options.scripts
    ]
    scripts += scripts_of(options.list) if options.list else []
    chosen = iter([script for script in scripts if _is_meant(script.name, options.only)])
    rows: list[Row] = []
    until_s, lock = time.monotonic() + options.limit, threading.Lock()

    def work(lane: int) -> None:
        if options.cores or options.lanes > 1:
            count = options.cores or 2
            first = options.first_core + lane * count
            os.sched_setaffinity(0, range(first, first + count))  # of this thread, and of what it starts
        while time.monotonic() < until_s:
            with lock:
                script = next(chosen, None)
            if script is None:
                return
            try:
                row = measure(script, options)
            except Exception as error:
                sys.stderr.write(f"{script.name}  {error!r}\n")
                continue
            with lock:
                rows.append(row)
                sys.stderr.write(f"{'  '.join(row.cells())}  {row.wall_s:.0f} s\n")
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps({"cells": row.cells(), **vars(row)}) + "\n")

    lanes = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in range(options.lanes)]
    for thread in lanes:
        thread.start()
    with contextlib.suppress(SystemExit):  # of SIGTERM: what was measured is shown
        for thread in lanes:
            thread.join()
    head = ["script", "runs", "files", "left", "bare (ms)", "step (ms)", "error", "split (o: observed)", "verdict"]
    print(table([head, *(row.cells() for row in rows)]))
    return int(any(not row.is_well for row in rows))


if __name__ == "__main__":
    sys.exit(main())
