"""Hosts for a study on one machine: network namespaces at a switch, each with a link of a given rate.

Needs root and iproute2. Every host is a namespace with one interface; `tbf` limits what it sends. There is no latency
beyond the kernel's own, nothing is dropped, and TCP uses the congestion control of most machines.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stallwise.errors import MissingFeatureError
from stallwise.units import BITS_PER_BYTE

# What a link that rested sends at once, which a real one does not: as little as still reaches the rate. Below
# `_FAST_BYTES_PER_S` that is a packet of the kernel's, cut small; above it timers are late by too much for that.
_SMALL_BURST_BYTES, _SMALL_PACKET_BYTES = 16_000, 15_000
_FAST_BYTES_PER_S, _FAST_BURST_S = 100e6, 1e-3
_WHOLE_PACKET_BYTES = 65_536
# More than the windows of all connections of a host together: a link that drops nothing has no retransmission times.
_QUEUE_BYTES = 64_000_000
# BBR, some machines' default, stops sending for 0.2 s in every 10 to measure its round trip: such a step is an outlier.
_CONGESTION_CONTROL = "cubic"
_SUBNET = "10.99.0"


@dataclass(frozen=True, slots=True)
class StudyHost:
    """A network namespace with its interface and its address."""

    name: str
    interface: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """Arguments that run a command inside the host, so that its traffic goes over the link."""
        return ["ip", "netns", "exec", self.name, "env", f"GLOO_SOCKET_IFNAME={self.interface}", *arguments]


def require_shaping() -> None:
    """Raise where links cannot be shaped on this machine."""
    if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc"):
        return
    raise MissingFeatureError(
        "Links of a given rate need root and iproute2 (ip, tc) on this machine. Run as root, or study the link between "
        "processes as it is (rate as-is).",
        fields=("rates",),
    )


@contextlib.contextmanager
def study_hosts(count: int) -> Iterator[tuple[StudyHost, ...]]:
    """Create hosts and the switch between them; remove them afterwards, whatever happens."""
    require_shaping()
    tag = f"ss{os.getpid() % 100000}"
    switch = f"{tag}-switch"
    hosts = tuple(StudyHost(f"{tag}-{n}", f"{tag}h{n}", f"{_SUBNET}.{n + 1}") for n in range(count))
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
    small = burst_bytes is None and bytes_per_s < _FAST_BYTES_PER_S
    burst = burst_bytes or (_SMALL_BURST_BYTES if small else bytes_per_s * _FAST_BURST_S)
    packet = _SMALL_PACKET_BYTES if small else _WHOLE_PACKET_BYTES
    for host in hosts:
        _run("ip", "-n", host.name, "link", "set", "dev", host.interface, "gso_max_size", f"{packet}")
        _run(
            *("ip", "netns", "exec", host.name, "tc", "qdisc", "replace", "dev", host.interface, "root"),
            *("tbf", "rate", f"{bytes_per_s * BITS_PER_BYTE:.0f}bit", "burst", f"{burst:.0f}"),
            *("limit", f"{_QUEUE_BYTES}"),
        )


def _plug_in(host: StudyHost, switch: str, port: str) -> None:
    _run("ip", "netns", "add", host.name)
    pair = ("type", "veth", "peer", "name", port, "netns", switch)
    _run("ip", "link", "add", host.interface, "netns", host.name, *pair)
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
    _run("ip", "-n", host.name, "link", "set", host.interface, "up")
    route = (f"{_SUBNET}.0/24", "dev", host.interface, "src", host.address, "congctl", _CONGESTION_CONTROL)
    _run("ip", "-n", host.name, "route", "replace", *route)
    _run("ip", "-n", host.name, "link", "set", "lo", "up")


def _run(*arguments: str) -> None:
    completed = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise MissingFeatureError(
            f"A network namespace could not be set up ({' '.join(arguments[:6])} …: {completed.stderr.strip()}). "
            "Study the link between processes as it is (rate as-is).",
            fields=("rates",),
        )
