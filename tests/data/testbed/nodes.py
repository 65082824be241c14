"""Several nodes and a bucket on one machine: a namespace for each, joined by a bridge; rates where they are asked for.

    with nodes(2, bucket_rate="40mbit", node_rate="40mbit") as net, seaweed(folder, net.address) as server:
        net.start(0, [sys.executable, "job.py"], environment)

The bucket stands on the bridge itself, in the root namespace. `bucket_rate` limits what it sends to all nodes together,
`node_rate` what each node sends.
"""

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.conftest import ROOT, lacks
from tests.system import require_packages

_numbers = itertools.count()


@dataclass(frozen=True)
class Nodes:
    """`address` is the bucket's; `addresses` the nodes'."""

    address: str
    namespaces: tuple[str, ...]
    addresses: tuple[str, ...]

    def start(self, node: int, command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """A process on a node, gone with the one that started it."""
        inside = ["ip", "netns", "exec", self.namespaces[node], "setpriv", "--pdeathsig", "KILL"]
        return subprocess.Popen(
            [*inside, *command], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )


@contextlib.contextmanager
def nodes(count: int, bucket_rate: str | None = None, node_rate: str | None = None) -> Iterator[Nodes]:
    """Make them; remove them afterwards, whatever happens."""
    if os.geteuid() != 0:
        lacks("root, to make network namespaces")
    if not shutil.which("ip") or not shutil.which("tc"):
        require_packages("iproute2")
    number = next(_numbers)
    tag = f"{os.getpid() % 10**6}x{number}"
    net = (os.getpid() * 5 + number) % 2**12
    prefix, last = f"10.79.{net >> 4}", (net & 15) * 16
    bridge = f"sb{tag}"
    with contextlib.ExitStack() as stack:
        _run("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(subprocess.run, ["ip", "link", "del", bridge], capture_output=True)
        _run("ip", "addr", "add", f"{prefix}.{last + 1}/28", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        if bucket_rate:
            _shape(("tc",), bridge, bucket_rate)
        spaces, addresses = [], []
        for node in range(count):
            space, address = f"swnode-{tag}-{node}", f"{prefix}.{last + 2 + node}"
            _run("ip", "netns", "add", space)
            stack.callback(subprocess.run, ["ip", "netns", "del", space], capture_output=True)
            _join(space, bridge, f"sv{tag}n{node}", address, node_rate)
            spaces.append(space)
            addresses.append(address)
        yield Nodes(f"{prefix}.{last + 1}", tuple(spaces), tuple(addresses))


def _join(space: str, bridge: str, outside: str, address: str, rate: str | None) -> None:
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
    _run("ip", "link", "set", outside, "master", bridge, "up")
    _run("ip", "-n", space, "link", "set", "lo", "up")
    _run("ip", "-n", space, "addr", "add", f"{address}/28", "dev", "eth0")
    _run("ip", "-n", space, "link", "set", "eth0", "up")
    if rate:
        _shape(("ip", "netns", "exec", space, "tc"), "eth0", rate)


def _shape(tc: Sequence[str], device: str, rate: str) -> None:
    _run(*tc, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "128kb", "latency", "400ms")


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
