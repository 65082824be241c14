"""A proxy in front of a test server that counts requests and injects faults; a process of its own, told what to do.

with fault_proxy(server) as proxy:
    proxy.set(slow_down=0.1, truncate=0.05, seed=7)
    dataset = BucketDataset("s3://photos/", endpoint=proxy.endpoint, options=server.options)
    ...
    assert proxy.seen().requests["list"] == 1
"""

import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.data.testbed import processes
from tests.data.testbed.seaweed import Seaweed

_PROGRAM = Path(__file__).with_name("proxy_server.py")
_PATIENCE_S = 120.0

FAULTS = ("slow_down", "internal", "reset_early", "reset_late", "truncate", "shorten", "stall", "slow")
"""503 SlowDown; 500; a reset before and within the answer; a body that ends early under its full announced length; half
a body announced as whole; a body that stops in the middle (`stall_s`); one that drips (`slow_s`)."""


@dataclass(frozen=True)
class ProxyTraffic:
    """Counters since the start or the last `reset`. `objects`: GETs by path ("/bucket/name")."""

    requests: dict[str, int]
    faults: dict[str, int]
    objects: dict[str, int]
    body_bytes: int


@dataclass(frozen=True)
class Proxy:
    """Clients use `endpoint` in place of the server's."""

    endpoint: str
    control: tuple[str, int]

    def set(self, **faults: object) -> None:
        """Chances of each of `FAULTS` per request, all others 0; `kinds`, `seed`, `stall_s`, `slow_s`, `latency_s`."""
        unknown = set(faults) - {*FAULTS, "kinds", "seed", "stall_s", "slow_s", "latency_s"}
        if unknown:
            raise ValueError(f"the proxy knows no {', '.join(sorted(unknown))}")
        self._say({"faults": faults})

    def traffic(self) -> ProxyTraffic:
        """All counters now."""
        return self._say({"read": True})

    def reset(self) -> None:
        """Counters back to zero; faults stay as they are set."""
        self._say({"reset": True})

    def _say(self, what: dict[str, object]) -> ProxyTraffic:
        with socket.create_connection(self.control, _PATIENCE_S) as line, line.makefile("rw") as file:
            file.write(json.dumps(what) + "\n")
            file.flush()
            return ProxyTraffic(**json.loads(file.readline()))


@contextlib.contextmanager
def fault_proxy(server: Seaweed, listen: str = "127.0.0.1") -> Iterator[Proxy]:
    """Start a proxy in front of the server; without faults until `set`."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "proxy.log"
        command = [sys.executable, str(_PROGRAM), listen, server.address, str(server.ports["s3"])]
        process = processes.start(command, log)
        try:
            processes.wait_until(lambda: "]" in log.read_text(), process, log, _PATIENCE_S)
            door, control = json.loads(log.read_text().splitlines()[0])
            yield Proxy(f"http://{listen}:{door}", ("127.0.0.1", control))
        finally:
            processes.stop(process)
