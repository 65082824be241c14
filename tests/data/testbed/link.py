"""A slow link on one machine: a namespace behind a given round trip and rate, with counters of the bytes that crossed.

    with slow_link(round_trip_ms=30, rate="200mbit") as link, seaweed(folder, link.address, link.namespace) as server:
        ...
        link.received_bytes()

The kernel here may lack netem, so a small program (`delay.c`) holds every packet between two TUN devices for half the
round trip; `tbf` on the far end limits what the server sends. No loss, no jitter, packets of 9,000 bytes: gentler than
a real wide-area network.
"""

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, lacks
from tests.data.testbed import processes
from tests.system import require_packages

_SOURCE = Path(__file__).with_name("delay.c")
_PREFIX = "swlink"
_numbers = itertools.count()


@dataclass(frozen=True)
class Link:
    """The far end: run servers in `namespace`, on `address`. `near` is this side's interface."""

    namespace: str
    address: str
    near: str

    def received_bytes(self) -> int:
        """What came over the link to this side so far: all of it, headers and repeats included."""
        return self._counter("rx_bytes")

    def sent_bytes(self) -> int:
        """What this side sent."""
        return self._counter("tx_bytes")

    def _counter(self, name: str) -> int:
        return int((Path("/sys/class/net") / self.near / "statistics" / name).read_text())


@contextlib.contextmanager
def slow_link(round_trip_ms: float = 30, rate: str | None = "200mbit") -> Iterator[Link]:
    """Make the link; remove it afterwards, whatever happens. `rate` as tc writes it; None: as fast as it goes."""
    _require()
    _sweep()
    number = next(_numbers)
    tag, half_us = f"{os.getpid()}-{number}", round(round_trip_ms * 500)
    near, far = (f"sl{side}{os.getpid() % 10**6}x{number}" for side in "nf")
    net = (os.getpid() * 7 + number) % 2**14 * 4
    near_address, far_address = (f"10.78.{(net + end) >> 8}.{(net + end) & 255}" for end in (1, 2))
    link = Link(f"{_PREFIX}-{tag}", far_address, near)
    with contextlib.ExitStack() as stack:
        _run("ip", "netns", "add", link.namespace)
        stack.callback(subprocess.run, ["ip", "netns", "del", link.namespace], capture_output=True)
        log = delay_program().with_name(f"delay-{tag}.log")
        stack.callback(log.unlink, missing_ok=True)
        process = processes.start([str(delay_program()), near, far, str(half_us)], log)
        stack.callback(processes.stop, process)
        processes.wait_until(lambda: "ready" in log.read_text(), process, log)
        _connect(link, far, near_address, rate)
        yield link


def _connect(link: Link, far: str, near_address: str, rate: str | None) -> None:
    _run("ip", "link", "set", far, "netns", link.namespace)
    _run("ip", "addr", "add", f"{near_address}/30", "dev", link.near)
    _run("ip", "link", "set", link.near, "mtu", "9000", "up")
    _run("ip", "-n", link.namespace, "link", "set", "lo", "up")
    _run("ip", "-n", link.namespace, "addr", "add", f"{link.address}/30", "dev", far)
    _run("ip", "-n", link.namespace, "link", "set", far, "mtu", "9000", "up")
    if rate is not None:
        inside = ("ip", "netns", "exec", link.namespace, "tc", "qdisc", "replace", "dev", far, "root")
        _run(*inside, "tbf", "rate", rate, "burst", "128kb", "latency", "400ms")


def delay_program() -> Path:
    """Compiled at first use and kept under build/ by what the source says."""
    digest = hashlib.blake2b(_SOURCE.read_bytes(), digest_size=8).hexdigest()
    program = ROOT / "build" / "testbed" / f"delay-{digest}"
    if not program.exists():
        if not shutil.which("gcc"):
            require_packages("gcc", "libc6-dev")
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(f".{os.getpid()}.part")
        _run("gcc", "-O2", "-Wall", "-Wextra", "-o", str(part), str(_SOURCE))
        part.replace(program)
    return program


def _require() -> None:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        lacks("root and /dev/net/tun, to make a slow link")
    if not shutil.which("ip") or not shutil.which("tc"):
        require_packages("iproute2")


def _sweep() -> None:
    """Remove namespaces of test processes that were killed: their servers and devices are gone, the names remain."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        prefix, _, rest = line.split()[0].partition("-") if line.split() else ("", "", "")
        pid = rest.partition("-")[0]
        if prefix == _PREFIX and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "del", line.split()[0]], capture_output=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
