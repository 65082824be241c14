"""Predictions against reality: `make reality` measures, `validation/reality.json` keeps what came out.

A one-process record of a job and a probe of the link between two hosts predict the DDP step on 2 to 6 hosts in twelve
settings: link rates, numbers of hosts, sizes of the gradients, and how much of the exchange compute can hide. Layers
sleep as on an accelerator; in two settings they compute, on one thread of two hosts. All predictions are printed and
kept before the first bare step runs. Hosts are network namespaces at a switch, their links shaped; needs root, and a
machine that does nothing else, for about ten minutes.

Bars (written before the measurement): mean error of the step at most 5 %, at least 9 of 12 steps inside their interval,
errors of both signs. Of the exchange alone, the step less the record's own, errors are shown and not judged.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tests.record.truth.bench import JOB
from tests.record.truth.hosts import Host, hosts_at_a_switch, shape

KEPT = Path(__file__).with_name("reality.json")
MEAN_WITHIN, INSIDE_AT_LEAST = 0.05, 9


@dataclass(frozen=True, slots=True)
class Work:
    """What a step of the job does on one host."""

    name: str
    options: tuple[str, ...]


def _asleep(parameters: int, compute_s: float) -> Work:
    options = ("--parameters", str(parameters), "--compute", str(compute_s), "--layers", "16")
    return Work(f"{4 * parameters / 1e6:.0f} MB of gradients, {compute_s * 1e3:.0f} ms asleep", options)


_SMALL, _MEDIUM, _LARGE = _asleep(2_000_000, 0.240), _asleep(4_000_000, 0.120), _asleep(8_000_000, 0.240)
_REAL = Work(
    "16 MB of gradients, 16 layers of products on a core",
    ("--parameters", "4000000", "--compute", "0", "--layers", "16", "--products", "2"),
)
SETTINGS: tuple[tuple[Work, int, int], ...] = (
    (_LARGE, 2000, 3),
    (_MEDIUM, 2000, 2),
    (_LARGE, 1500, 2),
    (_LARGE, 1500, 4),
    (_MEDIUM, 1000, 3),
    (_MEDIUM, 1000, 6),
    (_REAL, 1000, 2),
    (_SMALL, 700, 5),
    (_LARGE, 700, 2),
    (_SMALL, 400, 3),
    (_MEDIUM, 400, 2),
    (_REAL, 400, 2),
)
"""Work, link rate in Mb/s, hosts. Rates fall, so that each is probed once."""
COMMON = ("--workers", "1")
STEPS = "36"
REPEATS = 2
_ports = iter(range(29810, 29990))


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """One prediction and the medians of what happened."""

    work: str
    rate_mbit: int
    hosts: int
    alone_s: float
    """The step of one process, as recorded."""
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float | None = None
    """None: predicted, and not measured yet."""
    spread_s: float | None = None

    @property
    def error(self) -> float:
        """Relative, positive where too long was predicted."""
        return self.predicted_s / (self.measured_s or self.predicted_s) - 1

    @property
    def exchange_error(self) -> float | None:
        """The same of what the step has beyond that of one process; None where that is under a fiftieth of it."""
        exchange_s = (self.measured_s or self.alone_s) - self.alone_s
        return (self.predicted_s - self.alone_s) / exchange_s - 1 if exchange_s > self.alone_s / 50 else None

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.measured_s is not None and self.low_s <= self.measured_s <= self.high_s


def everywhere(hosts: Sequence[Host], *words: str) -> str:
    """Run a command on every host; what the first printed. `{node}` and `{port}` are filled in."""
    port = str(next(_ports))
    started = [
        subprocess.Popen(
            host.command(sys.executable, *(word.format(node=node, port=port) for word in words)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, host in enumerate(hosts)
    ]
    ended = [process.communicate(timeout=300) for process in started]
    failed = [err[-2000:] for process, (_, err) in zip(started, ended, strict=True) if process.returncode]
    if failed:
        raise SystemExit("\n".join(failed))
    return ended[0][0]


def world(hosts: Sequence[Host]) -> tuple[str, ...]:
    """torchrun's options for one process on each."""
    address = ("--master-addr", hosts[0].address, "--master-port", "{port}")
    return ("--nnodes", str(len(hosts)), "--node-rank", "{node}", "--nproc-per-node", "1", *address)


def bare_s(hosts: Sequence[Host], work: Work) -> float:
    """Run the uninstrumented job; return its own step time."""
    words = ("-m", "torch.distributed.run", *world(hosts), str(JOB), *COMMON, *work.options, "--steps", STEPS)
    return float(json.loads(everywhere(hosts, *words).strip().splitlines()[-1])["step_s"])


def stallwise(*words: str) -> str:
    """The command line's answer."""
    command = [sys.executable, "-m", "stallwise", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def predict(folder: Path, hosts: Sequence[Host]) -> list[Met]:
    """Profile every work on one process, probe every rate between two hosts, and predict all settings."""
    runs: dict[str, Path] = {}
    for work, _, _ in SETTINGS:
        if work.name not in runs:
            runs[work.name] = folder / f"one-process-{len(runs)}"
            words = ("profile", "--no-cold", "--max-time", "15s", "-o", str(runs[work.name]))
            stallwise(*words, str(JOB), *COMMON, *work.options)
    rows, probed = [], None
    for work, rate, count in SETTINGS:
        machine = folder / f"machine-{rate}.json"
        if rate != probed:
            shape(hosts, rate)
            everywhere(
                hosts[:2], "-m", "stallwise", "probe", *world(hosts[:2]), "--max-time", "10s", "-o", str(machine)
            )
            probed = rate
        words = ("whatif", str(runs[work.name]), "--gpus-per-node", "1", "--no-curve", "--json")
        alone = json.loads(stallwise(*words, "--gpus", "1"))["predicted"]
        step = json.loads(stallwise(*words, "--gpus", str(count), "--machine", str(machine)))["predicted"]
        figures = {name: float(step[name]) for name in ("low_s", "high_s")}
        rows.append(
            Met(
                work=work.name,
                rate_mbit=rate,
                hosts=count,
                alone_s=float(alone["step_s"]),
                predicted_s=float(step["step_s"]),
                **figures,
            )
        )
        print(f"predicted: {rows[-1]}", flush=True)
    return rows


def measure(hosts: Sequence[Host], rows: Sequence[Met]) -> list[Met]:
    """Run the bare job in every setting, and keep what was measured so far."""
    done, shaped = list(rows), None
    for number, (work, rate, count) in enumerate(SETTINGS):
        if rate != shaped:
            shape(hosts, rate)
            shaped = rate
        seen = [bare_s(hosts[:count], work) for _ in range(REPEATS)]
        done[number] = replace(rows[number], measured_s=statistics.mean(seen), spread_s=max(seen) - min(seen))
        keep(done)
        print(f"{show(done[number])}", flush=True)
    return done


def show(row: Met) -> str:
    """One measured row in words."""
    place = "inside" if row.inside else "outside"
    return (
        f"{row.work}, {row.rate_mbit} Mb/s, {row.hosts} hosts: {row.predicted_s * 1e3:.0f} ms predicted "
        f"({row.low_s * 1e3:.0f} to {row.high_s * 1e3:.0f}), {(row.measured_s or 0) * 1e3:.0f} ms measured, "
        f"{row.error:+.1%}, {place}"
    )


def keep(rows: Sequence[Met]) -> None:
    """Write the figures of today."""
    document = {"measured": f"{datetime.now(UTC):%Y-%m-%d}", "rows": [asdict(row) for row in rows]}
    KEPT.write_text(json.dumps(document, indent=2) + "\n")


def kept() -> tuple[str, list[Met]]:
    """The day and the figures of the last measurement."""
    document = json.loads(KEPT.read_text())
    return document["measured"], [Met(**row) for row in document["rows"] if row["measured_s"] is not None]


def main() -> None:
    """Predict, keep that, then measure."""
    most = max(count for _, _, count in SETTINGS)
    with tempfile.TemporaryDirectory() as folder, hosts_at_a_switch(most) as hosts:
        rows = predict(Path(folder), hosts)
        keep(rows)
        print(f"{len(rows)} predictions are in {KEPT.name}; now the bare jobs run", flush=True)
        rows = measure(hosts, rows)
    errors = [row.error for row in rows]
    print(
        f"mean error {statistics.mean(map(abs, errors)):.1%}, {sum(row.inside for row in rows)} of {len(rows)} inside, "
        f"{sum(error > 0 for error in errors)} predicted too long; now run: make validate"
    )


if __name__ == "__main__":
    main()
