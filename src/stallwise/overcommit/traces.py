"""Traces of virtual machines and hosts, and what they do not say.

Read are Azure's machines of 2017 (Cortez et al., SOSP 2017), pods and nodes of Alibaba's GPU cluster of 2023, plain
tables, and tables of use over time. `read_machines` recognises a file by its first line.

What a trace does not say is drawn at random (`complete_machines`): what machines use, which are of low priority, how
much they matter. Azure published use for other machines than arrivals, so each machine follows some series from some
moment in it; its priority comes from that series, as in the paper: four levels by the 95th percentile of use.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from stallwise.cluster.traces.rows import (
    BadRowError,
    Fields,
    RowProblem,
    SkippedRow,
    TraceError,
    TraceTable,
    parse_time,
    read_table,
)
from stallwise.errors import InputError
from stallwise.inputs import TEXT_BYTES, bounded_rows, read_text, read_whole
from stallwise.overcommit.resources import (
    Counts,
    Floats,
    Hosts,
    ResourceAmounts,
    UseSeries,
    VirtualMachines,
    equal_hosts,
    parse_host,
)
from stallwise.sentences import Sentence

PLAIN = ("machine_id", "start_s", "end_s", "cpu")
"""Columns of a plain trace, `cpu` in cores. Optional: memory_gib, disk_mib_s, network_mbit_s, gpu; priority, in (0, 1]
for a machine that may be shrunk and empty for one on demand; least, the fraction of its size it needs."""
_AMOUNTS = (("cpu", 1000), ("memory_gib", 1024), ("disk_mib_s", 1), ("network_mbit_s", 1), ("gpu", 1000))

PlainRow = tuple[float, float, ResourceAmounts, float | None, float]


def read_machines(path: Path, *, skip_bad: bool = False) -> VirtualMachines:
    """Read machines of an Azure flavour trace, Alibaba's pods, or a plain table."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name one trace in it.")
    first = _first_line(path)
    if first.split(" ", 1)[0].isdigit():
        return read_arrivals(path)
    columns = {name.strip() for name in first.split(",")}
    if {"cpu_milli", "gpu_milli", "qos"} <= columns:
        return read_pods(path, skip_bad=skip_bad)
    if set(PLAIN) <= columns:
        return _read_plain(path, skip_bad=skip_bad)
    raise InputError(
        f"{path.name} is no trace of machines: its first line is {first[:80]!r}. A plain one has the columns "
        f"{', '.join(PLAIN)}; Azure's flavour traces and Alibaba's list of pods are known as they are."
    )


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline(4096)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"The trace {path} cannot be read ({reason}). Check the path.") from None
    if not first.strip():
        raise InputError(f"The trace {path} is empty. Check the file.")
    return first.rstrip("\n")


def _read_plain(path: Path, *, skip_bad: bool) -> VirtualMachines:
    table = read_table(path)
    rows: list[PlainRow] = []
    problems: list[RowProblem] = []
    for line, fields in table.rows:
        try:
            rows.append(_plain_row(fields, table.columns))
        except BadRowError as bad:
            problems.append(RowProblem(line, bad.kind, bad.message))
    if problems and not skip_bad:
        raise TraceError(table.source, tuple(problems))
    rows.sort(key=lambda row: row[0])
    size = np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, len(ResourceAmounts._fields))
    least = np.array([row[4] for row in rows])[:, None]
    return VirtualMachines(
        source=table.source,
        format="plain",
        arrival_s=np.array([row[0] for row in rows]),
        end_s=np.array([row[1] for row in rows]),
        size=size,
        least=np.ceil(size * least).astype(np.int64),
        low=np.array([row[3] is not None for row in rows], dtype=bool),
        priority=np.array([1.0 if row[3] is None else row[3] for row in rows]),
        series=np.full(len(rows), -1, dtype=np.int64),
        offset=np.zeros(len(rows), dtype=np.int64),
        notes=(Sentence("trace.lines-left-out", f"{len(problems):,} bad lines left out."),) if problems else (),
    )


def _plain_row(fields: Fields, columns: tuple[str, ...]) -> PlainRow:
    if len(fields) != len(columns):
        raise BadRowError("another number of fields", f"{len(fields)} fields, expected {len(columns)}")
    row = dict(zip(columns, fields, strict=True))
    start_s, end_s = parse_time(row["start_s"], "start_s"), parse_time(row["end_s"], "end_s")
    if end_s <= start_s:
        raise BadRowError("an end that is not after the start", f"end_s {end_s:g} is not after start_s {start_s:g}")
    amounts = [round(unit * parse_time(row.get(name) or "0", name)) for name, unit in _AMOUNTS]
    if not any(amounts):
        raise BadRowError("nothing asked for")
    priority = None if not row.get("priority", "").strip() else parse_time(row["priority"], "priority")
    if priority is not None and not 0 < priority <= 1:
        raise BadRowError("a priority outside 0 to 1", f"priority {priority:g} is not above 0 and at most 1")
    least = parse_time(row.get("least") or "0", "least")
    if least > 1:
        raise BadRowError("a minimum above the size", f"least {least:g} is a fraction of the size, at most 1")
    return start_s, end_s, ResourceAmounts(*amounts), priority, least


def read_hosts(text: str) -> Hosts:
    """Read hosts: `cpu=48,memory=128GiB` for equal ones, or the path of Alibaba's list of nodes."""
    if "=" in text:
        return equal_hosts(parse_host(text), name=text)
    if not Path(text).is_file():
        raise InputError(
            f"Hosts are cpu=48,memory=128GiB, or a list of nodes; there is no file {text}.", fields=("host",)
        )
    return read_nodes(Path(text))


_SLOT_S = 300.0
"""Azure's clock ticks every five minutes."""
_GIB = 1024


def read_arrivals(path: Path) -> VirtualMachines:
    """Read Azure's arrivals as huaweicloud/trace_generation_rnn publishes them; nobody is low-priority yet.

    `*.txt` names flavours, its partner `*.c<second>.txt` the bin of each lifetime, `U` ended, `C` still running at that
    second. `flav_map.txt` and `*.interval_map.txt` beside them say what letters and bins are.
    """
    partner, until_s = _partner(path)
    flavours, bins = _flavours(path.parent / "flav_map.txt"), _bins(path.parent)
    arrival: list[float] = []
    end: list[float] = []
    sizes: list[ResourceAmounts] = []
    machines, lifetimes = _lines(path), _lines(partner)
    if len(machines) != len(lifetimes):
        raise InputError(
            f"{path.name} has {len(machines):,} lines and {partner.name} {len(lifetimes):,}: one of them is cut off."
        )
    for number, (flavour_line, lifetime_line) in enumerate(zip(machines, lifetimes, strict=True), 1):
        at, letters = _row(flavour_line, path, number)
        partner_at, lives = _row(lifetime_line, partner, number)
        if at != partner_at or len(letters) != len(lives):
            raise InputError(f"{partner.name}, line {number} does not belong to that line of {path.name}.")
        for letter, life in zip(letters, lives, strict=True):
            if letter not in flavours or life[1:] not in bins or life[0] not in "UC":
                raise InputError(f"{path.name}, line {number}: {letter!r} living {life!r} is in no map beside it.")
            sizes.append(flavours[letter])
            arrival.append(at)
            end.append(until_s if life[0] == "C" else at + bins[life[1:]])
    size = np.array(sizes, dtype=np.int64)
    count = len(size)
    return VirtualMachines(
        source=path.name,
        format="Azure V1",
        arrival_s=np.array(arrival) - (arrival[0] if arrival else 0.0),
        end_s=np.array(end) - (arrival[0] if arrival else 0.0),
        size=size,
        least=np.zeros_like(size),
        low=np.zeros(count, dtype=bool),
        priority=np.full(count, 0.5),
        series=np.full(count, -1, dtype=np.int64),
        offset=np.zeros(count, dtype=np.int64),
    )


def _partner(path: Path) -> tuple[Path, float]:
    candidates = sorted(path.parent.glob(f"{path.stem}.c*.txt"))
    match = re.fullmatch(r".*\.c(\d+)\.txt", candidates[0].name) if candidates else None
    if match is None:
        raise InputError(f"{path.name} names flavours; the lifetimes {path.stem}.c<second>.txt are not beside it.")
    return candidates[0], float(match[1])


def _lines(path: Path) -> list[str]:
    try:
        return list(bounded_rows(read_text(path).splitlines(), path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"{path} cannot be read ({reason}).") from None


def _row(line: str, path: Path, number: int) -> tuple[float, list[str]]:
    at, _, rest = line.partition(" ")
    if not at.isdigit():
        raise InputError(f"{path.name}, line {number} has no second in front: {line[:30]!r}.")
    return float(at), [one for one in rest.split(",") if one and one != "|"]


def _flavours(path: Path) -> dict[str, ResourceAmounts]:
    """Read lines like `2,3.5 g`: flavour g has two cores and 3.5 GiB."""
    flavours = {}
    for number, line in enumerate(_lines(path), 1):
        size, _, letter = line.partition(" ")
        cores, _, gib = size.partition(",")
        milli, mib = (round(unit * _number(text, path, number)) for unit, text in ((1000, cores), (_GIB, gib)))
        flavours[letter.strip()] = ResourceAmounts(cpu_milli=milli, memory_mib=mib)
    return flavours


def _number(text: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"{path.name}, line {line}: {text[:30]!r} is no number from 0. Is the file whole?")
    return value


def _bins(folder: Path) -> dict[str, float]:
    """Return the mean lifetime of each bin in seconds, in the middle of its five minutes."""
    maps = sorted(folder.glob("*.interval_map.txt"))
    if not maps:
        raise InputError(f"No *.interval_map.txt in {folder}: it says how long the bins of lifetimes are.")
    lives: dict[str, list[float]] = {}
    for line, text in enumerate(_lines(maps[0]), 1):
        life, _, number = text.partition(" ")
        lives.setdefault(number.strip(), []).append(_number(life, maps[0], line))
    return {number: sum(each) / len(each) + _SLOT_S / 2 for number, each in lives.items()}


PODS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos", "deletion_time", "scheduled_time")
NODES = ("sn", "cpu_milli", "memory_mib", "gpu")
PRIORITY = {"BE": 0.2, "Burstable": 0.6}
"""Priorities of pods that may be shrunk; the trace orders the classes, the numbers are ours."""


def read_pods(path: Path, *, skip_bad: bool = False) -> VirtualMachines:
    """Read Alibaba's pods that ran, from scheduled to deleted.

    Pods of best effort (BE) and Burstable may be shrunk, latency-sensitive (LS) and Guaranteed ones not. A share of a
    GPU is taken as such; shares of one node are pooled, as if a pod could have two halves of different GPUs.
    """
    table = read_table(path)
    at = {name: table.at(name) for name in PODS}
    rows: list[tuple[float, float, ResourceAmounts, str]] = []
    problems: list[RowProblem] = []
    left_out: dict[str, int] = {}
    for line, fields in table.rows:
        try:
            rows.append(_pod(fields, at, len(table.columns)))
        except BadRowError as bad:
            problems.append(RowProblem(line, bad.kind, bad.message))
        except SkippedRow as reason:
            left_out[str(reason)] = left_out.get(str(reason), 0) + 1
    if problems and not skip_bad:
        raise TraceError(table.source, tuple(problems))
    rows.sort(key=lambda row: row[0])
    notes = [
        Sentence("trace.left-out", f"{count:,} {reason}: left out.", count=count) for reason, count in left_out.items()
    ]
    if problems:
        notes.append(Sentence("trace.lines-left-out", f"{len(problems):,} bad lines left out."))
    return _machines(table, rows, tuple(notes))


def _pod(fields: Fields, at: dict[str, int], width: int) -> tuple[float, float, ResourceAmounts, str]:
    if len(fields) != width:
        raise BadRowError("another number of fields", f"{len(fields)} fields, expected {width}")
    if not fields[at["scheduled_time"]].strip():
        raise SkippedRow("pods that never ran")
    start_s = parse_time(fields[at["scheduled_time"]], "scheduled_time")
    end_s = parse_time(fields[at["deletion_time"]], "deletion_time")
    if end_s < start_s:
        raise BadRowError("deleted before it was scheduled")
    if end_s == start_s:
        raise SkippedRow("pods of 0 s")
    gpus = _count(fields[at["num_gpu"]], "num_gpu")
    size = ResourceAmounts(
        cpu_milli=_count(fields[at["cpu_milli"]], "cpu_milli"),
        memory_mib=_count(fields[at["memory_mib"]], "memory_mib"),
        gpu_milli=gpus * _count(fields[at["gpu_milli"]], "gpu_milli") if gpus else 0,
    )
    return start_s, end_s, size, fields[at["qos"]].strip()


_DIGITS = 15


def _count(text: str, what: str) -> int:
    if not text.strip().isdecimal() or len(text) > _DIGITS:
        raise BadRowError(f"{what} is no whole number", f"{what} {text[:40]!r} is no whole number")
    return int(text)


def _machines(
    table: TraceTable, rows: list[tuple[float, float, ResourceAmounts, str]], notes: tuple[Sentence, ...]
) -> VirtualMachines:
    size = np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, len(ResourceAmounts._fields))
    count = len(rows)
    return VirtualMachines(
        source=table.source,
        format="Alibaba GPU 2023",
        arrival_s=np.array([row[0] for row in rows]),
        end_s=np.array([row[1] for row in rows]),
        size=size,
        least=np.zeros_like(size),
        low=np.array([row[3] in PRIORITY for row in rows], dtype=bool),
        priority=np.array([PRIORITY.get(row[3], 1.0) for row in rows]),
        series=np.full(count, -1, dtype=np.int64),
        offset=np.zeros(count, dtype=np.int64),
        notes=notes,
    )


def read_nodes(path: Path) -> Hosts:
    """Read Alibaba's nodes, in an order in which any evenly spread subset is like the whole."""
    table = read_table(path)
    cpu, memory, gpu = (table.at(name) for name in NODES[1:])
    try:
        rows = [
            ResourceAmounts(cpu_milli=int(f[cpu]), memory_mib=int(f[memory]), gpu_milli=1000 * int(f[gpu]))
            for _, f in table.rows
        ]
    except (ValueError, IndexError) as error:
        raise InputError(f"{path.name} has a node whose {', '.join(NODES[1:])} are no numbers ({error}).") from None
    if not rows:
        raise InputError(f"{path.name} has no node.")
    try:
        return Hosts(total=np.array(sorted(rows), dtype=np.int64), name=path.name)
    except OverflowError:
        raise InputError(f"{path.name} has a node of more than 64 bits can count. Check the file.") from None


def read_use(path: Path) -> UseSeries:
    """Read per cent of a machine's CPU: a column per machine, a row per five minutes."""
    try:
        rows = read_whole(path, TEXT_BYTES).decode().splitlines()
        table = np.array([line.split(",") for line in bounded_rows(rows[1:], path)], dtype=np.float64)
    except (ValueError, InputError) as error:  # cut off or damaged, as a table or as a gzip
        raise InputError(f"{path} is no table of CPU use, a column per machine ({error}).") from None
    if table.size == 0 or not ((table >= 0) & (table <= 100)).all():
        raise InputError(f"{path} holds no per cent between 0 and 100.")
    return UseSeries(part=np.ascontiguousarray(table.T / 100.0), source=path.name)


LEVELS = ((0.33, 0.2), (0.66, 0.4), (0.80, 0.6), (1.01, 0.8))
"""Priority by the 95th percentile of use: busier machines have less to give (the paper's four levels; borders ours)."""
LOW = 0.5
"""Fraction of machines that may be shrunk where the trace does not say: about half of Azure's were interactive."""


def priorities(use: UseSeries) -> Floats:
    """Return the priority of each series, by its 95th percentile."""
    borders = np.array([border for border, _ in LEVELS])
    values = np.array([value for _, value in LEVELS])
    return values[np.searchsorted(borders, use.p95(), side="right")]


def sample_machines(machines: VirtualMachines, count: int | None, *, seed: int) -> VirtualMachines:
    """Draw `count` machines at random; None: all of them."""
    if count is None or count >= len(machines):
        return machines
    return machines.take(np.random.default_rng(seed).choice(len(machines), count, replace=False))


def complete_machines(
    machines: VirtualMachines, use: UseSeries | None, *, low: float | None, seed: int
) -> VirtualMachines:
    """Draw what the trace does not say, and add notes about it."""
    rng = np.random.default_rng(seed)
    count, notes = len(machines), list(machines.notes)
    series: Counts = rng.integers(0, 1 if use is None else len(use.part), count)
    offset: Counts = rng.integers(0, 1 if use is None else use.part.shape[1], count)
    chosen, priority = machines.low, machines.priority
    unmarked = not machines.low.any()
    if use is None:
        series = np.full(count, -1, dtype=np.int64)
        notes.append(
            Sentence(
                "use.unknown", "Nothing is known about use: machines use all they ask for, so any shrinking costs."
            )
        )
    else:
        notes.append(
            Sentence("use.by-lot", f"Each machine follows one of {len(use.part):,} series of {use.source} by lot.")
        )
    if unmarked or low is not None:
        chosen = rng.random(count) < (LOW if low is None else low)
        notes.append(Sentence("priority.by-lot", f"{chosen.mean():.0%} of the machines are of low priority, by lot."))
        levels = [value for _, value in LEVELS]
        priority = rng.choice(levels, count) if use is None else priorities(use)[series]
        notes.append(
            Sentence(
                "priority.levels",
                f"Priorities are {'drawn' if use is None else 'by the 95th percentile of use'}: {levels}.",
            )
        )
    followed = machines if use is None else replace(machines, use=use)
    return replace(followed, series=series, offset=offset, low=chosen, priority=priority, notes=tuple(notes))
