"""A real Slurm on this machine: munged, slurmctld and several slurmd, in a folder of their own, gone after the test.

Needs root and the programs of Debian's `slurm-wlm` and `munge`; without them tests are skipped. Addresses are loopback;
ports are free ones, so that clusters of several test processes do not meet.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import lacks

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged")
_START_S = 150.0
_END_S = 60.0


@dataclass
class Cluster:
    """A running Slurm. `run` executes any of its commands."""

    folder: Path
    nodes: tuple[str, ...]
    munge: Path
    name: str
    """Of its own: a controller locks cluster and partition by name, and other tests have clusters at the same time."""
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What a client of this cluster needs to be told, and nothing of a Slurm that runs us."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return outside | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, cwd: Path | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """A command as a user of the cluster, output captured."""
        return subprocess.run(command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=timeout)

    def start(self, *command: str, **environment: str) -> None:
        """One more daemon, ended with the others."""
        _start(self, *command, environment=environment)

    @property
    def controller(self) -> subprocess.Popen[bytes]:
        """slurmctld."""
        return next(daemon for daemon in self.daemons if daemon.args[0] == "slurmctld")  # type: ignore[index]

    def restart_controller(self) -> None:
        """slurmctld is told to end, saves its state, and is started again."""
        daemon = self.controller
        daemon.terminate()
        daemon.wait(_END_S)
        place = self.daemons.index(daemon)
        self.daemons.remove(daemon)
        _start(self, "slurmctld", "-D", "-f", str(self.folder / "slurm.conf"))
        # Where it was in the order of starting, so that it is stopped after the nodes.
        self.daemons.insert(place, self.daemons.pop())

    def states(self) -> list[str]:
        """What each node says of itself."""
        lines = self.run("sinfo", "-N", "-h", "-o", "%N %T").stdout.splitlines()
        return list(dict(line.split() for line in lines).values())  # a node is listed once per partition


@contextmanager
def slurm(
    folder: Path,
    nodes: int = 2,
    cpus: int = 4,
    *,
    gpus: int = 0,
    racks: int = 1,
    settings: Sequence[str] = (),
    before: Callable[[Cluster], None] | None = None,
) -> Iterator[Cluster]:
    """A cluster of `nodes` nodes `n1` …, each with `cpus` processors and `gpus` GPUs as far as Slurm knows.

    With `racks` the nodes are spread evenly over that many leaf switches. `settings` are lines of slurm.conf
    (`{munge}` stands for the folder of the munge socket); `before` is called when all is configured and slurmctld has
    not been started yet.
    """
    require_slurm()
    folder.mkdir(parents=True, exist_ok=True)
    token = secrets.token_hex(4)
    munge = Path("/run") / f"stallwise-munge-{token}"
    cluster = Cluster(folder, tuple(f"n{number}" for number in range(1, nodes + 1)), munge, f"stallwise{token}")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, munge, ignore_errors=True)
        stack.callback(_stop, cluster.daemons)
        _start_munge(cluster)
        _configure(cluster, cpus, gpus, racks, settings)
        if before is not None:
            before(cluster)
        _start(cluster, "slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        for node in cluster.nodes:
            _start(cluster, "slurmd", "-D", "-N", node, "-f", str(folder / "slurm.conf"))
        _wait_until_idle(cluster)
        yield cluster


def require_slurm() -> None:
    """Leave the test out, with the reason, where Slurm cannot be started."""
    if os.geteuid() != 0:
        lacks("root, to start a Slurm of its own")
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        lacks(f"Slurm (missing: {', '.join(missing)}; in Debian the packages {' and '.join(PACKAGES)})")


def _start_munge(cluster: Cluster) -> None:
    """Its folder may be entered by everybody, for the socket; its key only munge may read."""
    user, own = pwd.getpwnam("munge"), cluster.munge
    own.mkdir(mode=0o755)
    key = own / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for path in (own, key):
        os.chown(path, user.pw_uid, user.pw_gid)
    places = [f"--socket={own}/socket", f"--key-file={key}", f"--pid-file={own}/pid", f"--seed-file={own}/seed"]
    _start(cluster, "munged", "--foreground", *places, f"--log-file={own}/log", user="munge")
    _wait_for(lambda: (own / "socket").exists(), "munged", cluster)


def _configure(cluster: Cluster, cpus: int, gpus: int, racks: int, settings: Sequence[str]) -> None:
    folder = cluster.folder
    if gpus:
        _fake_gpus(cluster, gpus)
    if racks > 1:
        (folder / "topology.conf").write_text(_topology(cluster, racks))
    for name in ("state", *(f"spool-{node}" for node in cluster.nodes)):
        (folder / name).mkdir(exist_ok=True)
    generic = f" Gres=gpu:{gpus}" if gpus else ""
    ports = [free_port() for _ in range(1 + len(cluster.nodes))]
    nodes = [
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=2000{generic}"
        for node, port in zip(cluster.nodes, ports[1:], strict=True)
    ]
    lines = [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
        f"SlurmctldPort={ports[0]}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={cluster.munge}/socket",
        "SlurmUser=root",
        "SlurmdUser=root",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerNode=100",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "ReturnToService=2",
        "MpiDefault=none",
        *(["GresTypes=gpu"] if gpus else []),
        *(["TopologyPlugin=topology/tree"] if racks > 1 else []),
        *(line.replace("{munge}", str(cluster.munge)) for line in settings),
        *nodes,
        f"PartitionName=all Nodes={','.join(cluster.nodes)} Default=YES State=UP",
    ]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")


def _fake_gpus(cluster: Cluster, gpus: int) -> None:
    """Slurm wants character devices; these are all /dev/null."""
    for number in range(gpus):
        os.mknod(cluster.folder / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    names, last = ",".join(cluster.nodes), gpus - 1
    devices = f"{cluster.folder}/gpu[0-{last}]"
    (cluster.folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName={names} Name=gpu File={devices}\n")


def _topology(cluster: Cluster, racks: int) -> str:
    """Leaf switches `rack1` … of equal size under one `core`."""
    each = len(cluster.nodes) // racks
    leaves = [
        f"SwitchName=rack{rack + 1} Nodes={','.join(cluster.nodes[rack * each : (rack + 1) * each])}"
        for rack in range(racks)
    ]
    return "\n".join([*leaves, f"SwitchName=core Switches=rack[1-{racks}]"]) + "\n"


def _start(
    cluster: Cluster, *command: str, user: str | None = None, environment: Mapping[str, str] | None = None
) -> None:
    log = (cluster.folder / f"{command[0]}-{len(cluster.daemons)}.out").open("wb")
    cluster.daemons.append(
        subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=cluster.environment | dict(environment or {}),
            user=user,
            start_new_session=True,
        )
    )
    log.close()


def _wait_until_idle(cluster: Cluster) -> None:
    _wait_for(lambda: cluster.states() == ["idle"] * len(cluster.nodes), "the nodes", cluster)


def _wait_for(ready: Callable[[], bool], what: str, cluster: Cluster) -> None:
    until = time.monotonic() + _START_S
    while not ready():
        ended = [daemon.args for daemon in cluster.daemons if daemon.poll() is not None]
        logs = "".join(path.read_text()[-2000:] for path in cluster.folder.glob("*.out"))
        assert not ended, f"{ended} ended\n{logs}"
        assert time.monotonic() < until, f"{what} did not come up\n{logs}"
        time.sleep(0.1)


def _stop(daemons: list[subprocess.Popen[bytes]]) -> None:
    """The last started first: nodes, controller, munge."""
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(timeout=10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(timeout=_END_S)


def free_port() -> int:
    """A port that is free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
