"""Predictions against reality: `make reality` measures, `validation/reality.json` keeps what came out.

A one-process record of a job on the stand-in accelerator (layers that sleep, real gradients) and a probe of the link
between two hosts predict the DDP step on 2 and on 4 hosts at three link rates. Then the bare job runs there. Hosts are
network namespaces at a switch, their links shaped; needs root, and a machine that does nothing else.

Bars (written before the measurement): mean error at most 8 %, worst at most 15 %.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.record.truth.bench import JOB
from tests.record.truth.hosts import Host, hosts_at_a_switch, shape

KEPT = Path(__file__).with_name("reality.json")
RATES_MBIT = (2000, 1000, 500)
COUNTS = (2, 4)
OPTIONS = ("--workers", "1", "--parameters", "8000000", "--compute", "0.240", "--layers", "16")
MEAN_WITHIN, WORST_WITHIN = 0.08, 0.15
_ports = iter(range(29810, 29990))


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """One prediction and the medians of what happened."""

    rate_mbit: int
    hosts: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    spread_s: float

    @property
    def error(self) -> float:
        """Relative, positive where too long was predicted."""
        return self.predicted_s / self.measured_s - 1


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


def bare_s(hosts: Sequence[Host]) -> float:
    """The uninstrumented job's own step time."""
    out = everywhere(hosts, "-m", "torch.distributed.run", *world(hosts), str(JOB), *OPTIONS, "--steps", "45")
    return float(json.loads(out.strip().splitlines()[-1])["step_s"])


def stallwise(*words: str) -> str:
    """The command line's answer."""
    command = [sys.executable, "-m", "stallwise", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(folder: Path, rates: Sequence[int] = RATES_MBIT, repeats: int = 3) -> list[Met]:
    """Predict, then look."""
    run = folder / "one-process"
    stallwise("profile", "--no-cold", "--max-time", "20", "-o", str(run), str(JOB), *OPTIONS)
    found = []
    with hosts_at_a_switch(max(COUNTS)) as hosts:
        for rate in rates:
            shape(hosts, rate)
            machine = folder / f"machine-{rate}.json"
            everywhere(hosts[:2], "-m", "stallwise", "probe", *world(hosts[:2]), "--max-time", "20", "-o", str(machine))
            for count in COUNTS:
                options = ("--gpus", str(count), "--gpus-per-node", "1", "--machine", str(machine))
                said = json.loads(stallwise("whatif", str(run), *options, "--no-curve", "--json"))
                seen = [bare_s(hosts[:count]) for _ in range(repeats)]
                found.append(_met(rate, count, said, seen))
                print(found[-1], f"{found[-1].error:+.1%}", flush=True)
    return found


def _met(rate: int, count: int, said: dict[str, dict[str, float]], seen: list[float]) -> Met:
    step = said["predicted"]
    return Met(
        rate_mbit=rate,
        hosts=count,
        predicted_s=step["step_s"],
        low_s=step["low_s"],
        high_s=step["high_s"],
        measured_s=statistics.median(seen),
        spread_s=max(seen) - min(seen),
    )


def kept() -> tuple[str, list[Met]]:
    """The day and the figures of the last measurement."""
    document = json.loads(KEPT.read_text())
    return document["measured"], [Met(**row) for row in document["rows"]]


def main() -> None:
    """Measure and keep."""
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    KEPT.write_text(json.dumps({"measured": day, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    errors = [abs(row.error) for row in rows]
    print(f"mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}; now run: make validate")


if __name__ == "__main__":
    main()
