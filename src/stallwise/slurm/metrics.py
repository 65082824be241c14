"""Figures of the controller, as Prometheus reads them (text format 0.0.4) over HTTP."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.slurm.commands import Slurm
    from stallwise.slurm.plan import Partition, Plan

_PHASES = ("waiting", "starting", "holding", "running", "warned", "stopping", "ending")
_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(slots=True)
class Figures:
    """Counted since the controller began, or as of the last look."""

    looks: int = 0
    failed_looks: int = 0
    looked_at_s: float = 0.0
    decision_s: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    decision_sum_s: float = 0.0
    read_sum_s: float = 0.0
    actions: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    gpus: dict[str, int] = field(default_factory=dict)
    waiting_gpus: int = 0
    oldest_wait_s: float = 0.0
    commands: int = 0
    failed_commands: int = 0
    waits: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By gang: starts, seconds waited in all."""

    def decided(self, seconds: float, reading_s: float) -> None:
        """One decision, and the time Slurm took to answer."""
        place = next((i for i, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
        self.decision_s[place] += 1
        self.decision_sum_s += seconds
        self.read_sum_s += reading_s

    def did(self, what: str) -> None:
        """An action, or one that failed."""
        self.actions[what] += 1

    def seen(self, what: str) -> None:
        """A job that changed by itself."""
        self.ended += what in ("done", "lost")

    def looked(self, here: "Partition", plan: "Plan", slurm: "Slurm", now_s: float) -> None:
        """The partition as of now."""
        self.looks += 1
        self.looked_at_s = now_s
        waiting = [row for row in here.rows.values() if row.phase == "waiting"]
        self.phases = Counter(row.phase for row in here.rows.values())
        self.waiting_gpus = sum(row.gang for row in waiting)
        self.oldest_wait_s = max((now_s - row.asked_s for row in waiting), default=0.0)
        total = here.layout.cluster.gpus
        self.gpus = {
            "free": plan.free_gpus,
            "others": plan.lost_gpus,
            "ours": total - plan.free_gpus - plan.lost_gpus,
        }
        self.commands, self.failed_commands = slurm.calls, slurm.failures
        for start in plan.start:
            gang = here.rows[start.key].gang
            count, waited = self.waits.get(gang, (0, 0.0))
            self.waits[gang] = (count + 1, waited + start.waited_s)

    def text(self, partition: str) -> str:
        """Everything, in Prometheus' words."""
        label = f'partition="{_escaped(partition)}"'
        lines = [
            *_metric("looks_total", "counter", "Times Slurm was asked for everything.", [(label, self.looks)]),
            *_metric("looks_failed_total", "counter", "Times it gave no answer.", [(label, self.failed_looks)]),
            *_metric("last_look_timestamp_seconds", "gauge", "When it last answered.", [(label, self.looked_at_s)]),
            *_metric("read_seconds_total", "counter", "Spent waiting for Slurm's answers.", [(label, self.read_sum_s)]),
            *_histogram("decision_seconds", label, self.decision_s, self.decision_sum_s, sum(self.decision_s)),
            *_metric("jobs", "gauge", "Jobs by phase.", [(f'{label},phase="{p}"', self.phases[p]) for p in _PHASES]),
            *_metric("jobs_ended_total", "counter", "Jobs that ended.", [(label, self.ended)]),
            *_metric("gpus", "gauge", "GPUs by user.", [(f'{label},of="{k}"', v) for k, v in self.gpus.items()]),
            *_metric("waiting_gpus", "gauge", "GPUs that waiting jobs ask for.", [(label, self.waiting_gpus)]),
            *_metric("oldest_wait_seconds", "gauge", "Longest present wait.", [(label, self.oldest_wait_s)]),
            *_metric(
                "actions_total",
                "counter",
                "What was done, by kind.",
                [(f'{label},what="{what}"', count) for what, count in sorted(self.actions.items())],
            ),
            *_metric("commands_total", "counter", "Slurm commands.", [(label, self.commands)]),
            *_metric("commands_failed_total", "counter", "Of them, failed.", [(label, self.failed_commands)]),
            *_metric(
                "wait_seconds_sum",
                "counter",
                "Waited before starts, by gang.",
                [(f'{label},gpus="{gang}"', waited) for gang, (_, waited) in sorted(self.waits.items())],
            ),
            *_metric(
                "wait_seconds_count",
                "counter",
                "Starts, by gang.",
                [(f'{label},gpus="{gang}"', count) for gang, (count, _) in sorted(self.waits.items())],
            ),
        ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: list[tuple[str, float]]) -> list[str]:
    head = [f"# HELP stallwise_{name} {text}", f"# TYPE stallwise_{name} {kind}"]
    return [*head, *(f"stallwise_{name}{{{labels}}} {value:g}" if value < 1e6 else
                     f"stallwise_{name}{{{labels}}} {value:.3f}" for labels, value in values)]  # fmt: skip


def _histogram(name: str, label: str, counts: list[int], total_s: float, number: int) -> list[str]:
    lines = [f"# HELP stallwise_{name} Time of one decision.", f"# TYPE stallwise_{name} histogram"]
    running = 0
    for bound, count in zip(_BOUNDS_S, counts, strict=False):
        running += count
        lines.append(f'stallwise_{name}_bucket{{{label},le="{bound:g}"}} {running}')
    lines.append(f'stallwise_{name}_bucket{{{label},le="+Inf"}} {number}')
    return [*lines, f"stallwise_{name}_sum{{{label}}} {total_s:.6f}", f"stallwise_{name}_count{{{label}}} {number}"]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@contextlib.contextmanager
def served(address: str | None, figures: Figures, partition: str) -> Iterator[int | None]:
    """Serve the figures at `host:port` while the block runs; the port that was taken, None without an address."""
    if address is None:
        yield None
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--metrics takes an address like 127.0.0.1:9814, not {address!r}.")

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] in ("/metrics", "/")
            body = figures.text(partition).encode() if found else b"Not here: /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line."""

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Answer)
    except OSError as error:
        raise InputError(f"Metrics cannot be served at {address}: {error.strerror}. Choose another port.") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
