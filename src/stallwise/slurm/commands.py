"""Slurm's own programs, and their JSON.

Commands are argument lists, never a shell; every call has a time limit and reports what failed. Job names, users and
comments never become arguments. Keys of jobs and names of nodes do, and are checked to be such.

JSON (of squeue, sinfo and scontrol) is decoded into facts, strictly where it matters, ignoring what is not used.
Written against the output of Slurm 22.05 (OpenAPI 0.0.38). Later releases write some numbers as
`{"set": true, "infinite": false, "number": 4}` and some words as lists; both forms are accepted. Where slurmctld does
not answer, 22.05 still ends with code 0 and prints an empty list beside its errors: an answer with errors is a failure.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import msgspec

from stallwise.cluster.topology import expand
from stallwise.errors import MissingFeatureError
from stallwise.slurm.facts import LONG_MARK, ResourceNeed, SlurmError, SlurmJob, SlurmNode, gpus_in, mark_in


class Number(msgspec.Struct, frozen=True):
    """A number that may be absent or without limit, as newer releases write it."""

    set: bool = True
    infinite: bool = False
    number: float = 0


Count = float | Number | None
_TERMINATED = 15
_MOST_TASKS = 4_000_001
"""Slurm's own bound of an array."""
Words = str | list[str] | None


class JobJson(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a job that are used."""

    job_id: int
    name: Words = ""
    user_name: Words = ""
    partition: Words = ""
    job_state: Words = ""
    priority: Count = None
    state_reason: Words = ""
    batch_flag: bool = True
    tres_per_job: Words = ""
    tres_per_node: Words = ""
    tres_per_task: Words = ""
    node_count: Count = None
    max_nodes: Count = None
    tasks: Count = None
    nodes: Words = ""
    gres_detail: list[str] = []
    submit_time: Count = None
    eligible_time: Count = None
    start_time: Count = None
    end_time: Count = None
    restart_cnt: int = 0
    requeue: bool = True
    exit_code: object = 0
    time_limit: Count = None
    dependency: Words = ""
    required_nodes: Words = ""
    excluded_nodes: Words = ""
    features: Words = ""
    resv_name: Words = ""
    het_job_id: Count = None
    comment: Words = ""
    admin_comment: Words = ""
    hold: bool = False
    shared: Words = ""
    exclusive: Words = ""
    cpus: Count = None
    minimum_cpus_per_node: Count = None
    cpus_per_tres: Words = ""
    memory_per_node: Count = None
    memory_per_cpu: Count = None
    memory_per_tres: Words = ""
    tres_per_socket: Words = ""
    array_job_id: Count = None
    array_task_id: Count = None
    array_task_string: Words = ""


class NodeJson(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a node that are used."""

    name: str
    gres: Words = ""
    gres_used: Words = ""
    state: Words = ""
    state_flags: list[str] = []
    partitions: list[str] = []
    idle_cpus: Count = None
    alloc_idle_cpus: Count = None
    cpus: Count = None
    effective_cpus: Count = None
    alloc_cpus: Count = None
    real_memory: Count = None
    alloc_memory: Count = None
    specialized_memory: Count = None
    active_features: Words = ""


class JobsJson(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `squeue --json`."""

    jobs: list[JobJson]
    errors: list[object] = []


class NodesJson(msgspec.Struct, frozen=True, kw_only=True):
    """`sinfo --json` of 22.05, `scontrol show nodes --json` of later releases."""

    nodes: list[NodeJson]
    errors: list[object] = []


Answer = TypeVar("Answer", JobsJson, NodesJson)
_jobs = msgspec.json.Decoder(JobsJson)
_nodes = msgspec.json.Decoder(NodesJson)


def decode_jobs(text: bytes) -> list[SlurmJob]:
    """Decode every job; a waiting array becomes its tasks."""
    return [job for entry in _answer(_jobs, text, "squeue").jobs for job in _jobs_of(entry)]


def decode_nodes(text: bytes, command: str = "sinfo") -> list[SlurmNode]:
    return [_node(entry) for entry in _answer(_nodes, text, command).nodes]


def lists_nodes(text: bytes) -> bool:
    """Tell whether `sinfo --json` lists nodes, as 22.05 does; later ones give groups of nodes per partition."""
    try:
        return "sinfo" not in msgspec.json.decode(text.decode("utf-8", "replace"), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return True


def _answer(decoder: "msgspec.json.Decoder[Answer]", text: bytes, command: str) -> Answer:
    """Decode what a command printed. A name in another encoding, of whatever job, must not hide all others."""
    try:
        answer = decoder.decode(text.decode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise SlurmError(f"The answer of {command} cannot be read: {error}.") from None
    if answer.errors:
        raise SlurmError(f"{command} answered with errors: {_first(answer.errors)}.")
    return answer


def _first(errors: list[object]) -> str:
    return msgspec.json.encode(errors[0]).decode(errors="replace")[:200]


def _number(value: Count, absent: float = 0.0) -> float:
    """Return a number in either form; without limit counts as absent."""
    if isinstance(value, Number):
        return value.number if value.set and not value.infinite else absent
    return absent if value is None else value


def _word(value: Words) -> str:
    """Return one word in either form."""
    return value if isinstance(value, str) else (value[0] if value else "")


def _joined(value: Words) -> str:
    return value if isinstance(value, str) else ",".join(value or ())


def _listed(value: Words) -> tuple[str, ...]:
    text = _joined(value)
    return tuple(expand(text)) if text else ()


def _jobs_of(entry: JobJson) -> Iterator[SlurmJob]:
    base = int(_number(entry.array_job_id))
    tasks = _word(entry.array_task_string)
    if not base:
        yield _job(entry, str(entry.job_id))
    elif tasks:
        for task in _tasks(tasks):
            yield _job(entry, f"{base}_{task}")
    else:
        yield _job(entry, f"{base}_{int(_number(entry.array_task_id))}")


def _tasks(text: str) -> Iterator[int]:
    """Parse `0,2,4%2`, `1-9`, `0-8:2`. A list that Slurm has cut short ends in `...`: the rest comes later."""
    for piece in text.split("%", 1)[0].split(","):
        span, _, step = piece.partition(":")
        low, dash, high = span.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or not (step or "1").isdecimal():
            continue
        yield from islice(range(int(low), int(high or low) + 1, int(step or 1) or 1), _MOST_TASKS)


def _job(entry: JobJson, key: str) -> SlurmJob:
    states = [entry.job_state] if isinstance(entry.job_state, str) else list(entry.job_state or [""])
    state = "COMPLETING" if "COMPLETING" in states else states[0]
    least, most = int(_number(entry.node_count, 1)), int(_number(entry.max_nodes))
    whole, each, task = (
        gpus_in(_word(text)) for text in (entry.tres_per_job, entry.tres_per_node, entry.tres_per_task)
    )
    hosts = _listed(entry.nodes)
    limit = _number(entry.time_limit)
    return SlurmJob(
        key=key,
        name=_word(entry.name),
        user=_word(entry.user_name),
        partition=_word(entry.partition),
        state=state,
        held=state == "PENDING" and (entry.hold or _number(entry.priority, 1) == 0),
        reason=_word(entry.state_reason),
        gang=whole or each * max(least, 1) or task * int(_number(entry.tasks, 1)),
        per_node=each,
        least_nodes=max(least, 1),
        most_nodes=most,
        submit_s=_number(entry.submit_time),
        eligible_s=_number(entry.eligible_time),
        start_s=_number(entry.start_time),
        end_s=_number(entry.end_time),
        restarts=entry.restart_cnt,
        requeues=entry.requeue,
        exit_code=_exit(entry.exit_code),
        limit_s=60 * limit if limit else None,
        depends=bool(_word(entry.dependency)),
        required=_listed(entry.required_nodes),
        excluded=_listed(entry.excluded_nodes),
        features=_word(entry.features),
        special=_special(entry),
        comment=_word(entry.comment),
        held_gpus={
            host: gpus_in(detail)
            for host, detail in zip(hosts, entry.gres_detail, strict=False)
            if gpus_in(detail) > 0
        },
        in_all=whole > 0 or each == 0,
        unit=max(1, task),
        need=_need(entry),
        mark=mark_in(_word(entry.admin_comment)),
        markable=not _word(entry.admin_comment) or mark_in(_word(entry.admin_comment)) is not None,
        mark_is_long=_word(entry.admin_comment) == LONG_MARK,
    )  # fmt: skip


def _special(entry: JobJson) -> bool:
    """Tell whether Slurm alone can place it: reservation, heterogeneous job, no batch job, GPUs by socket."""
    special = bool(_word(entry.resv_name)) or _number(entry.het_job_id) > 0 or not entry.batch_flag
    return special or gpus_in(_word(entry.tres_per_socket)) > 0


def _need(entry: JobJson) -> ResourceNeed:
    return ResourceNeed(
        cpus=int(_number(entry.cpus, 1)),
        cpus_per_node=int(_number(entry.minimum_cpus_per_node, 1)),
        cpus_per_gpu=gpus_in(_word(entry.cpus_per_tres)),
        memory_mb=_number(entry.memory_per_node),
        memory_mb_per_cpu=_number(entry.memory_per_cpu),
        memory_mb_per_gpu=gpus_in(_word(entry.memory_per_tres)),
        whole_nodes=_word(entry.shared) == "none" or _word(entry.exclusive) == "true",
    )


def _exit(value: object) -> int:
    """Return the exit code: a wait status in 22.05, an object with `return_code` later."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict) and "SIGNALED" in (value.get("status") or ()):
        return _TERMINATED
    inner = value.get("return_code") if isinstance(value, dict) else None
    if isinstance(inner, dict):
        inner = inner.get("number")
    return int(inner) if isinstance(inner, int | float) else 0


def _node(entry: NodeJson) -> SlurmNode:
    states = [entry.state] if isinstance(entry.state, str) else list(entry.state or [])
    cpus = _number(entry.effective_cpus) or _number(entry.cpus, 1)
    idle = _number(entry.idle_cpus, _number(entry.alloc_idle_cpus, cpus - _number(entry.alloc_cpus)))
    return SlurmNode(
        name=entry.name,
        gpus=gpus_in(_word(entry.gres)),
        used=gpus_in(_word(entry.gres_used)),
        states=frozenset(state.upper() for state in [*states, *entry.state_flags]),
        partitions=tuple(entry.partitions),
        idle_cpus=int(idle),
        cpus=int(cpus),
        memory_mb=_number(entry.real_memory) - _number(entry.specialized_memory),
        used_memory_mb=_number(entry.alloc_memory),
        features=frozenset(filter(None, _joined(entry.active_features).split(","))),
    )


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
    """Whether this account may write the administrator's comment of a job."""
    _by_scontrol: bool = False
    """Whether `sinfo` of this release lists no nodes."""

    def jobs(self) -> list[SlurmJob]:
        """List every job slurmctld remembers, ended ones included."""
        return decode_jobs(self._run("squeue", "--json"))

    def nodes(self) -> list[SlurmNode]:
        """List every node. After 22.05 `sinfo --json` gives groups instead, and `scontrol` prints JSON."""
        if not self._by_scontrol:
            text = self._run("sinfo", "--json")
            if lists_nodes(text):
                return decode_nodes(text)
            self._by_scontrol = True
        return decode_nodes(self._run("scontrol", "show", "nodes", "--json"), "scontrol show nodes")

    def topology(self) -> str:
        """Return switches as `scontrol show topology` lists them; empty where Slurm has none."""
        if self.setting("TopologyPlugin") in ("topology/none", "topology/default", "topology/flat", ""):
            return ""
        return self._run("scontrol", "show", "topology").decode(errors="replace")

    def setting(self, name: str) -> str:
        """Return a value of `scontrol show config`, which is read once."""
        if not self.settings:
            for line in self._run("scontrol", "show", "config").decode(errors="replace").splitlines():
                key, equals, value = line.partition("=")
                if equals:
                    self.settings[key.strip().lower()] = value.strip()
        return self.settings.get(name.lower(), "")

    def seconds(self, name: str, absent: float) -> float:
        """Return a setting like `30 sec` as a number."""
        match = _SECONDS.match(self.setting(name))
        return float(match[1]) if match else absent

    def pin(self, key: str, nodes: Sequence[str], *, now: bool, mark: str | None = None, marked: bool = False) -> None:
        """Pin a held job to exactly these nodes; `now` lifts the two minutes a requeued job is put off by.

        `mark` is kept with it: what it requested itself. Where this account may not write that, it is left out, unless
        the job is `marked` already: an old mark beside a new pin would be wrong.
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
        """Restore what a job requested: `least` to `most` nodes, and those it named. `marked`: remove the mark."""
        _check_nodes(nodes)
        fields = [f"ReqNodeList={','.join(nodes)}", f"NumNodes={least}-{most}" if most else f"NumNodes={least}"]
        self._update(key, *fields, *(["AdminComment="] if marked else []))

    def start_now(self, key: str) -> None:
        """Lift the two minutes a requeued job is put off by."""
        self._update(key, "StartTime=now")

    def release(self, key: str) -> None:
        """Let Slurm start the job."""
        self._run("scontrol", "release", _checked(key))

    def hold(self, key: str) -> None:
        """Hold the job, with the user's kind of hold, which we release again."""
        self._run("scontrol", "uhold", _checked(key))

    def requeue_hold(self, key: str) -> None:
        """Send TERM to all its processes, KILL after Slurm's KillWait, then put it back into the queue, held."""
        self._run("scontrol", "requeuehold", _checked(key))

    def warn(self, key: str) -> None:
        """Send TERM to the batch script and all its processes, without ending the job."""
        self._run("scancel", "--signal=TERM", "--full", _checked(key))

    def _update(self, key: str, *fields: str) -> None:
        self._run("scontrol", "update", f"JobId={_checked(key)}", *fields)

    def _run(self, *command: str) -> bytes:
        self.calls += 1
        try:
            # Dates and messages in one language, whatever the service runs in.
            process = subprocess.run(
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
        if process.returncode != 0:
            self.failures += 1
            message = " ".join((process.stderr or process.stdout).decode(errors="replace").split())
            raise SlurmError(f"{' '.join(command)} failed: {message[:300] or f'exit code {process.returncode}'}.")
        return process.stdout


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise SlurmError(f"{key!r} is no job id.")
    return key


def _check_nodes(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise SlurmError(f"{node!r} is no node name.")
