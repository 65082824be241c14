"""Slurm's own programs: argument lists, never a shell; every call has a time limit and says what failed.

Job names, users and comments never become arguments. Keys of jobs and names of nodes do, and are checked to be such.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

from stallwise.errors import MissingFeatureError
from stallwise.slurm.facts import SlurmError, SlurmJob, SlurmNode
from stallwise.slurm.wire import decode_jobs, decode_nodes, lists_nodes

_KEY = re.compile(r"[0-9]+(_[0-9]+)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SECONDS = re.compile(r"(\d+)\s*sec")


@dataclass(slots=True)
class Slurm:
    """The commands of one cluster, which `SLURM_CONF` or the system's own configuration names."""

    timeout_s: float = 20.0
    calls: int = 0
    failures: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    marks: bool = True
    """This account may write the administrator's comment of a job."""
    _by_scontrol: bool = False
    """`sinfo` of this release lists no nodes."""

    def jobs(self) -> list[SlurmJob]:
        """Every job slurmctld remembers, ended ones included."""
        return decode_jobs(self._run("squeue", "--json"))

    def nodes(self) -> list[SlurmNode]:
        """Every node. After 22.05 `sinfo --json` gives groups instead, and `scontrol` has learned JSON."""
        if not self._by_scontrol:
            found = self._run("sinfo", "--json")
            if lists_nodes(found):
                return decode_nodes(found)
            self._by_scontrol = True
        return decode_nodes(self._run("scontrol", "show", "nodes", "--json"), "scontrol show nodes --json")

    def topology(self) -> str:
        """Switches as `scontrol show topology` lists them; empty where Slurm knows none."""
        if self.setting("TopologyPlugin") in ("topology/none", "topology/default", "topology/flat", ""):
            return ""
        return self._run("scontrol", "show", "topology").decode(errors="replace")

    def setting(self, name: str) -> str:
        """A value of `scontrol show config`, asked once."""
        if not self.settings:
            for line in self._run("scontrol", "show", "config").decode(errors="replace").splitlines():
                key, equals, value = line.partition("=")
                if equals:
                    self.settings[key.strip().lower()] = value.strip()
        return self.settings.get(name.lower(), "")

    def seconds(self, name: str, absent: float) -> float:
        """A setting like `30 sec`."""
        found = _SECONDS.match(self.setting(name))
        return float(found[1]) if found else absent

    def pin(self, key: str, nodes: Sequence[str], *, now: bool, mark: str | None = None, marked: bool = False) -> None:
        """A held job will run on exactly these nodes; `now` lifts the two minutes a requeued job is put off by.

        `mark` is kept with it: what it asked for itself. Where this account may not write that, it goes without, unless
        it is `marked` already: an old mark beside a new pin would tell lies.
        """
        _check_nodes(nodes)
        fields = [f"ReqNodeList={','.join(nodes)}", f"NumNodes={len(nodes)}-{len(nodes)}"]
        fields += ["StartTime=now"] if now else []
        if mark is None or not (self.marks or marked):
            self._update(key, *fields)
            return
        try:
            self._update(key, *fields, f"AdminComment={mark}")
        except SlurmError as error:
            if marked or "permission denied" not in str(error):
                raise
            self._update(key, *fields)
            self.marks = False  # not before: a refusal that passes would have refused this too

    def unpin(self, key: str, least: int, most: int, nodes: Sequence[str] = (), *, marked: bool = False) -> None:
        """Back to what it asked for: so many nodes, and those among them it named. `marked`: the mark goes too."""
        _check_nodes(nodes)
        fields = [f"ReqNodeList={','.join(nodes)}", f"NumNodes={least}-{most}" if most else f"NumNodes={least}"]
        self._update(key, *fields, *(["AdminComment="] if marked else []))

    def start_now(self, key: str) -> None:
        """Lift the two minutes a requeued job is put off by."""
        self._update(key, "StartTime=now")

    def release(self, key: str) -> None:
        """Slurm may start it."""
        self._run("scontrol", "release", _checked(key))

    def hold(self, key: str) -> None:
        """Slurm may not start it; the user's kind of hold, which we release again."""
        self._run("scontrol", "uhold", _checked(key))

    def requeue_hold(self, key: str) -> None:
        """TERM to all its processes, KILL after Slurm's KillWait, then back into the queue, held."""
        self._run("scontrol", "requeuehold", _checked(key))

    def warn(self, key: str) -> None:
        """TERM to the batch script and all its processes, without ending the job."""
        self._run("scancel", "--signal=TERM", "--full", _checked(key))

    def _update(self, key: str, *fields: str) -> None:
        self._run("scontrol", "update", f"JobId={_checked(key)}", *fields)

    def _run(self, *command: str) -> bytes:
        self.calls += 1
        try:
            # Dates and messages in one language, whatever the service runs in.
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=self.timeout_s,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"LC_ALL": "C.UTF-8"},
            )
        except FileNotFoundError:
            raise MissingFeatureError(
                f"{command[0]} is not installed here. Run this where Slurm's commands are (Debian: slurm-client)."
            ) from None
        except subprocess.TimeoutExpired:
            self.failures += 1
            raise SlurmError(f"{' '.join(command)} gave no answer within {self.timeout_s:g} s.") from None
        if done.returncode != 0:
            self.failures += 1
            said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
            raise SlurmError(f"{' '.join(command)} failed: {said[:300] or f'exit code {done.returncode}'}.")
        return done.stdout


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise SlurmError(f"{key!r} is no number of a job.")
    return key


def _check_nodes(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise SlurmError(f"{node!r} is no name of a node.")
