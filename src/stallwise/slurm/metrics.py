"""Metrics of the controller for Prometheus: prometheus_client's application on a server with bounded connections.

A connection that waits is ended after some seconds, and the oldest one when another comes and the limit is reached: who
only holds connections open takes neither threads nor the place of a scrape, which takes milliseconds.
"""

import contextlib
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from stallwise.errors import InputError, missing_extra

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from stallwise.slurm._plan import Partition, SchedulePlan
    from stallwise.slurm.commands import Slurm

_PHASES = ("waiting", "starting", "holding", "running", "warned", "stopping", "ending")
_CONNECTIONS = 16
_WAIT_S = 10.0
"""For the next bytes of a request, or for room to write."""
_BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(slots=True)
class ControllerMetrics:
    """Counts since the controller began, and the state of the partition at its last poll of Slurm."""

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

    def count_decision(self, seconds: float, reading_s: float) -> None:
        """Count one decision, and the time Slurm took to answer before it."""
        bucket = next((i for i, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
        self.decision_s[bucket] += 1
        self.decision_sum_s += seconds
        self.read_sum_s += reading_s

    def count_action(self, what: str) -> None:
        """Count an action, or one that failed."""
        self.actions[what] += 1

    def count_event(self, what: str) -> None:
        """Count a job that ended."""
        self.ended += what in ("done", "lost")

    def update(self, here: "Partition", plan: "SchedulePlan", slurm: "Slurm", now_s: float) -> None:
        """Take the state of the partition after a poll and its decision."""
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

    def families(self, partition: str) -> Iterator["Metric"]:
        """Yield all metrics as prometheus_client's families, labelled with the partition."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            SummaryMetricFamily,
        )

        def counter(name: str, text: str, value: float) -> CounterMetricFamily:
            family = CounterMetricFamily(f"stallwise_{name}", text, labels=["partition"])
            family.add_metric([partition], value)
            return family

        def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
            family = GaugeMetricFamily(f"stallwise_{name}", text, labels=["partition"])
            family.add_metric([partition], value)
            return family

        yield counter("looks", "Polls of Slurm that were answered.", self.looks)
        yield counter("looks_failed", "Polls of Slurm that failed.", self.failed_looks)
        yield gauge("last_look_timestamp_seconds", "Time of the last answered poll.", self.looked_at_s)
        yield counter("read_seconds", "Time spent waiting for Slurm's answers.", self.read_sum_s)
        bounds = [*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf"]
        cumulative = [float(sum(self.decision_s[: i + 1])) for i in range(len(bounds))]
        decision = HistogramMetricFamily("stallwise_decision_seconds", "Time of one decision.", labels=["partition"])
        decision.add_metric([partition], list(zip(bounds, cumulative, strict=True)), self.decision_sum_s)
        yield decision
        jobs = GaugeMetricFamily("stallwise_jobs", "Jobs by phase.", labels=["partition", "phase"])
        for phase in _PHASES:
            jobs.add_metric([partition, phase], self.phases[phase])
        yield jobs
        yield counter("jobs_ended", "Jobs that ended.", self.ended)
        gpus = GaugeMetricFamily("stallwise_gpus", "GPUs: free, of our jobs, of others.", labels=["partition", "of"])
        for owner, count in self.gpus.items():
            gpus.add_metric([partition, owner], count)
        yield gpus
        yield gauge("waiting_gpus", "GPUs that waiting jobs request.", self.waiting_gpus)
        yield gauge("oldest_wait_seconds", "Longest present wait.", self.oldest_wait_s)
        actions = CounterMetricFamily("stallwise_actions", "Actions by kind.", labels=["partition", "what"])
        for what, count in sorted(self.actions.items()):
            actions.add_metric([partition, what], count)
        yield actions
        yield counter("commands", "Slurm commands.", self.commands)
        yield counter("commands_failed", "Slurm commands that failed.", self.failed_commands)
        waits = SummaryMetricFamily(
            "stallwise_wait_seconds", "Waits before starts, by gang.", labels=["partition", "gpus"]
        )
        for gang, (starts, waited_s) in sorted(self.waits.items()):
            waits.add_metric([partition, str(gang)], starts, waited_s)
        yield waits


@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    """The metrics of one partition, as prometheus_client's registry asks for them."""

    metrics: ControllerMetrics
    partition: str

    def collect(self) -> Iterator["Metric"]:
        return self.metrics.families(self.partition)


class _Request(WSGIRequestHandler):
    timeout = _WAIT_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread per connection, up to a limit."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._connections: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        """Bind without asking a name server what this host is called."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread; the oldest gives way where there are too many."""
        with self._lock:
            self._connections[request] = None
            while len(self._connections) > _CONNECTIONS:
                oldest, _ = self._connections.popitem(last=False)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and free its place among those that are counted."""
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was ended or took too long is nobody's error."""


def _server_at(host: str, port: int) -> _MetricsServer:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _MetricsServer((str(address[0]), port), family)


@contextlib.contextmanager
def serve_metrics(address: str | None, metrics: ControllerMetrics, partition: str) -> Iterator[int | None]:
    """Serve the metrics at `host:port` while the block runs; yields the port, None without an address."""
    if address is None:
        yield None
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"Metrics need an address like 127.0.0.1:9814, not {address!r}.", fields=("metrics",))
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise missing_extra("prometheus_client", "slurm", "Serving metrics") from None
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, partition))
    try:
        server = _server_at(host.strip("[]") or "127.0.0.1", int(port))
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"Metrics cannot be served at {address}: {reason}. Choose another port.") from None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
