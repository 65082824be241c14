"""Two hosts on one machine: network namespaces joined by a link of a given rate."""

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
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make both hosts and the link between them; remove them afterwards, whatever happens."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    tag = f"sw{os.getpid() % 100000}"
    hosts = (Host(f"{tag}a", f"{tag}a0", "10.99.0.1"), Host(f"{tag}b", f"{tag}b0", "10.99.0.2"))
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.name)
        first, second = hosts
        _run(
            *("ip", "link", "add", first.interface, "netns", first.name, "type", "veth"),
            *("peer", "name", second.interface, "netns", second.name),
        )
        for host in hosts:
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _run("ip", "-n", host.name, "link", "set", host.interface, "up")
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def shape(hosts: Sequence[Host], rate_mbit: int) -> None:
    """Limit the link to `rate_mbit` in both directions."""
    for host in hosts:
        _run(
            *("ip", "netns", "exec", host.name, "tc", "qdisc", "replace", "dev", host.interface, "root"),
            *("tbf", "rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", "50ms"),
        )


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
