"""Slurm's JSON (`squeue --json`, `sinfo --json`) into facts; strict where it matters, blind to what is not used.

Written against the output of Slurm 22.05 (OpenAPI 0.0.38). Later releases write some numbers as
`{"set": true, "infinite": false, "number": 4}` and some words as lists; both forms are taken. Where slurmctld does not
answer, 22.05 still ends with code 0 and prints an empty list beside its errors: an answer with errors is none.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from stallwise.cluster.topology_readers import expand
from stallwise.slurm.facts import SlurmError, SlurmJob, SlurmNode, gpus_in
from stallwise.slurm.mark import LONG, mark_in
from stallwise.slurm.room import Need


class Number(msgspec.Struct, frozen=True):
    """A number that may be absent or without limit, as newer releases write it."""

    set: bool = True
    infinite: bool = False
    number: float = 0


Count = float | Number | None
_TERMINATED = 15
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
    """`squeue --json`."""

    jobs: list[JobJson]
    errors: list[object] = []


class NodesJson(msgspec.Struct, frozen=True, kw_only=True):
    """`sinfo --json` of 22.05, `scontrol show nodes --json` of later releases."""

    nodes: list[NodeJson]
    errors: list[object] = []


Found = TypeVar("Found", JobsJson, NodesJson)
_jobs = msgspec.json.Decoder(JobsJson)
_nodes = msgspec.json.Decoder(NodesJson)


def decode_jobs(text: bytes) -> list[SlurmJob]:
    """Every job; a waiting array becomes its tasks."""
    return [job for entry in _answer(_jobs, text, "squeue --json").jobs for job in _jobs_of(entry)]


def decode_nodes(text: bytes, command: str = "sinfo --json") -> list[SlurmNode]:
    """Every node."""
    return [_node(entry) for entry in _answer(_nodes, text, command).nodes]


def lists_nodes(text: bytes) -> bool:
    """Whether `sinfo --json` lists nodes, as 22.05 does; later ones give groups of nodes per partition instead."""
    try:
        return "sinfo" not in msgspec.json.decode(text.decode("utf-8", "replace"), type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return True


def _answer(decoder: "msgspec.json.Decoder[Found]", text: bytes, command: str) -> Found:
    """What a command printed. A name in another encoding, of whatever job, must not hide all others."""
    try:
        found = decoder.decode(text.decode("utf-8", "replace"))
    except msgspec.DecodeError as error:
        raise SlurmError(f"The answer of {command} cannot be read: {error}.") from None
    if found.errors:
        raise SlurmError(f"{command} answered with errors: {_said(found.errors)}.")
    return found


def _said(errors: list[object]) -> str:
    return msgspec.json.encode(errors[0]).decode(errors="replace")[:200]


def number(value: Count, absent: float = 0.0) -> float:
    """A number in either form; without limit counts as absent."""
    if isinstance(value, Number):
        return value.number if value.set and not value.infinite else absent
    return absent if value is None else value


def word(value: Words) -> str:
    """One word in either form."""
    return value if isinstance(value, str) else (value[0] if value else "")


def _joined(value: Words) -> str:
    return value if isinstance(value, str) else ",".join(value or ())


def _listed(value: Words) -> tuple[str, ...]:
    text = _joined(value)
    return tuple(expand(text)) if text else ()


def _jobs_of(entry: JobJson) -> Iterator[SlurmJob]:
    base = int(number(entry.array_job_id))
    tasks = word(entry.array_task_string)
    if not base:
        yield _job(entry, str(entry.job_id))
    elif tasks:
        for task in _tasks(tasks):
            yield _job(entry, f"{base}_{task}")
    else:
        yield _job(entry, f"{base}_{int(number(entry.array_task_id))}")


def _tasks(text: str) -> Iterator[int]:
    """`0,2,4%2`, `1-9`, `0-8:2`. A list that Slurm has cut short ends in `...`: the rest comes later."""
    for piece in text.split("%", 1)[0].split(","):
        span, _, step = piece.partition(":")
        low, dash, high = span.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            continue
        yield from range(int(low), int(high or low) + 1, int(step or 1))


def _job(entry: JobJson, key: str) -> SlurmJob:
    states = [entry.job_state] if isinstance(entry.job_state, str) else list(entry.job_state or [""])
    state = "COMPLETING" if "COMPLETING" in states else states[0]
    least, most = int(number(entry.node_count, 1)), int(number(entry.max_nodes))
    whole, each, task = (gpus_in(word(text)) for text in (entry.tres_per_job, entry.tres_per_node, entry.tres_per_task))
    hosts = _listed(entry.nodes)
    limit = number(entry.time_limit)
    return SlurmJob(
        key=key,
        name=word(entry.name),
        user=word(entry.user_name),
        partition=word(entry.partition),
        state=state,
        held=state == "PENDING" and (entry.hold or number(entry.priority, 1) == 0),
        reason=word(entry.state_reason),
        gang=whole or each * max(least, 1) or task * int(number(entry.tasks, 1)),
        per_node=each,
        least_nodes=max(least, 1),
        most_nodes=most,
        submit_s=number(entry.submit_time),
        eligible_s=number(entry.eligible_time),
        start_s=number(entry.start_time),
        end_s=number(entry.end_time),
        restarts=entry.restart_cnt,
        requeues=entry.requeue,
        exit_code=_exit(entry.exit_code),
        limit_s=60 * limit if limit else None,
        depends=bool(word(entry.dependency)),
        required=_listed(entry.required_nodes),
        excluded=_listed(entry.excluded_nodes),
        features=word(entry.features),
        special=_special(entry),
        comment=word(entry.comment),
        held_gpus={
            host: gpus_in(detail)
            for host, detail in zip(hosts, entry.gres_detail, strict=False)
            if gpus_in(detail) > 0
        },
        in_all=whole > 0 or each == 0,
        unit=max(1, task),
        need=_need(entry),
        mark=mark_in(word(entry.admin_comment)),
        markable=not word(entry.admin_comment) or mark_in(word(entry.admin_comment)) is not None,
        mark_is_long=word(entry.admin_comment) == LONG,
    )  # fmt: skip


def _special(entry: JobJson) -> bool:
    """A reservation, part of a heterogeneous job, not a batch job, GPUs by the socket: Slurm alone can place it."""
    part = bool(word(entry.resv_name)) or number(entry.het_job_id) > 0 or not entry.batch_flag
    return part or gpus_in(word(entry.tres_per_socket)) > 0


def _need(entry: JobJson) -> Need:
    return Need(
        cpus=int(number(entry.cpus, 1)),
        cpus_per_node=int(number(entry.minimum_cpus_per_node, 1)),
        cpus_per_gpu=gpus_in(word(entry.cpus_per_tres)),
        memory_mb=number(entry.memory_per_node),
        memory_mb_per_cpu=number(entry.memory_per_cpu),
        memory_mb_per_gpu=gpus_in(word(entry.memory_per_tres)),
        whole_nodes=word(entry.shared) == "none" or word(entry.exclusive) == "true",
    )


def _exit(value: object) -> int:
    """A wait status in 22.05; an object with `return_code` later."""
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
    cpus = number(entry.effective_cpus) or number(entry.cpus, 1)
    idle = number(entry.idle_cpus, number(entry.alloc_idle_cpus, cpus - number(entry.alloc_cpus)))
    return SlurmNode(
        name=entry.name,
        gpus=gpus_in(word(entry.gres)),
        used=gpus_in(word(entry.gres_used)),
        states=frozenset(state.upper() for state in [*states, *entry.state_flags]),
        partitions=tuple(entry.partitions),
        idle_cpus=int(idle),
        cpus=int(cpus),
        memory_mb=number(entry.real_memory) - number(entry.specialized_memory),
        used_memory_mb=number(entry.alloc_memory),
        features=frozenset(filter(None, _joined(entry.active_features).split(","))),
    )
