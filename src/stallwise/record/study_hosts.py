"""Hosts for a study on one machine: network namespaces at a switch, each with a link of a given rate.

Needs root and iproute2. Every host is a namespace with one interface; `tbf` limits what it sends. There is no latency
beyond the kernel's own.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stallwise.errors import MissingFeatureError
from stallwise.units import BITS_PER_BYTE

# What an idle link may send at full speed: so much time's worth, and at least what a timer's delay needs.
_BURST_S = 1e-3
_LEAST_BURST_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class StudyHost:
    """A namespace, its interface and its address."""

    name: str
    interface: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command line that runs inside the host, its traffic going over the link."""
        return ["ip", "netns", "exec", self.name, "env", f"GLOO_SOCKET_IFNAME={self.interface}", *words]


def require_shaping() -> None:
    """A sentence where links cannot be shaped here."""
    if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc"):
        return
    raise MissingFeatureError(
        "Links of a given rate need root and iproute2 (ip, tc) on this machine. Run as root, or study the link between "
        "processes as it is with --rates as-is."
    )


@contextlib.contextmanager
def study_hosts(count: int) -> Iterator[tuple[StudyHost, ...]]:
    """Make hosts and the switch between them; remove them afterwards, whatever happens."""
    require_shaping()
    tag = f"ss{os.getpid() % 100000}"
    switch = f"{tag}-switch"
    hosts = tuple(StudyHost(f"{tag}-{n}", f"{tag}h{n}", f"10.99.0.{n + 1}") for n in range(count))
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            _plug_in(host, switch, f"port{number}")
        yield hosts
    finally:
        for name in (*(host.name for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def shape(hosts: Sequence[StudyHost], bytes_per_s: float, burst_bytes: float | None = None) -> None:
    """Limit what each host sends; after a rest it sends `burst_bytes` at once."""
    burst = burst_bytes or max(_LEAST_BURST_BYTES, bytes_per_s * _BURST_S)
    for host in hosts:
        _run(
            *("ip", "netns", "exec", host.name, "tc", "qdisc", "replace", "dev", host.interface, "root"),
            *("tbf", "rate", f"{bytes_per_s * BITS_PER_BYTE:.0f}bit", "burst", f"{burst:.0f}", "latency", "50ms"),
        )


def _plug_in(host: StudyHost, switch: str, port: str) -> None:
    _run("ip", "netns", "add", host.name)
    pair = ("type", "veth", "peer", "name", port, "netns", switch)
    _run("ip", "link", "add", host.interface, "netns", host.name, *pair)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
    _run("ip", "-n", host.name, "link", "set", host.interface, "up")
    _run("ip", "-n", host.name, "link", "set", "lo", "up")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingFeatureError(
            f"A network namespace could not be set up ({' '.join(words[:6])} …: {done.stderr.strip()}). "
            "Study the link between processes as it is with --rates as-is."
        )
