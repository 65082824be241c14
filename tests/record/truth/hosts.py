"""Several hosts on one machine: network namespaces at a switch, each with a link of a given rate."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.conftest import lacks


@dataclass(frozen=True)
class Host:
    """A namespace, its interface and its address."""

    name: str
    interface: str
    address: str

    def command(self, *words: str) -> list[str]:
        """A command line that runs inside the host, its traffic going over the link."""
        return ["ip", "netns", "exec", self.name, "env", f"GLOO_SOCKET_IFNAME={self.interface}", *words]


@contextlib.contextmanager
def hosts_at_a_switch(count: int) -> Iterator[tuple[Host, ...]]:
    """Make the hosts and the switch between them; remove them afterwards, whatever happens."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    tag = f"sw{os.getpid() % 100000}"
    switch = f"{tag}-switch"
    hosts = tuple(Host(f"{tag}-{n}", f"{tag}h{n}", f"10.99.0.{n + 1}") for n in range(count))
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            _plug_in(host, switch, f"port{number}")
        yield hosts
    finally:
        for name in (*(host.name for host in hosts), switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _plug_in(host: Host, switch: str, port: str) -> None:
    _run("ip", "netns", "add", host.name)
    _run(
        *("ip", "link", "add", host.interface, "netns", host.name, "type", "veth"),
        *("peer", "name", port, "netns", switch),
    )
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
    _run("ip", "-n", host.name, "link", "set", host.interface, "up")
    _run("ip", "-n", host.name, "link", "set", "lo", "up")


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The smallest network."""
    with hosts_at_a_switch(2) as (first, second):
        yield first, second


def shape(hosts: Sequence[Host], rate_mbit: int) -> None:
    """Limit what each host sends to `rate_mbit`."""
    for host in hosts:
        _run(
            *("ip", "netns", "exec", host.name, "tc", "qdisc", "replace", "dev", host.interface, "root"),
            *("tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"),
        )


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
