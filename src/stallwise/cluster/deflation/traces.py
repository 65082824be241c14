"""Which trace of machines a file is, and which hosts: by its first line."""

from pathlib import Path

import numpy as np

from stallwise.cluster.deflation.resources import Amounts, Hosts, Machines, alike, parse_host
from stallwise.cluster.traces.checks import TraceError
from stallwise.cluster.traces.rows import BadRowError, Fields, Problem, seconds
from stallwise.cluster.traces.table import read_table
from stallwise.errors import InputError

PLAIN = ("machine_id", "start_s", "end_s", "cpu")
"""A plain trace: cores, and where they are known memory_gib, disk_mib_s, network_mbit_s, gpu; priority above 0 and at
most 1 for a machine that may be shrunk, nothing for one on demand; least: the part of its size it needs."""
_AMOUNTS = (("cpu", 1000), ("memory_gib", 1024), ("disk_mib_s", 1), ("network_mbit_s", 1), ("gpu", 1000))

Entry = tuple[float, float, Amounts, float | None, float]


def read_machines(path: Path, *, skip_bad: bool = False) -> Machines:
    """Machines of an Azure flavour trace, Alibaba's pods, or a plain table."""
    if path.is_dir():
        raise InputError(f"{path} is a folder. Name one trace in it.")
    first = _first_line(path)
    if first.split(" ", 1)[0].isdigit():
        from stallwise.cluster.deflation.azure import read_arrivals

        return read_arrivals(path)
    columns = {name.strip() for name in first.split(",")}
    if {"cpu_milli", "gpu_milli", "qos"} <= columns:
        from stallwise.cluster.deflation.alibaba import read_pods

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


def _read_plain(path: Path, *, skip_bad: bool) -> Machines:
    table = read_table(path)
    rows: list[Entry] = []
    problems: list[Problem] = []
    for line, fields in table.rows:
        try:
            rows.append(_entry(fields, table.columns))
        except BadRowError as bad:
            problems.append(Problem(line, bad.kind, bad.said))
    if problems and not skip_bad:
        raise TraceError(table.source, tuple(problems))
    rows.sort(key=lambda row: row[0])
    size = np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, len(Amounts._fields))
    least = np.array([row[4] for row in rows])[:, None]
    return Machines(
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
        notes=(f"{len(problems):,} bad lines left out.",) if problems else (),
    )


def _entry(fields: Fields, columns: tuple[str, ...]) -> Entry:
    if len(fields) != len(columns):
        raise BadRowError("another number of fields", f"{len(fields)} fields, expected {len(columns)}")
    row = dict(zip(columns, fields, strict=True))
    start_s, end_s = seconds(row["start_s"], "start_s"), seconds(row["end_s"], "end_s")
    if end_s <= start_s:
        raise BadRowError("an end that is not after the start", f"end_s {end_s:g} is not after start_s {start_s:g}")
    amounts = [round(unit * seconds(row.get(name) or "0", name)) for name, unit in _AMOUNTS]
    if not any(amounts):
        raise BadRowError("nothing asked for")
    priority = None if not row.get("priority", "").strip() else seconds(row["priority"], "priority")
    if priority is not None and not 0 < priority <= 1:
        raise BadRowError("a priority outside 0 to 1", f"priority {priority:g} is not above 0 and at most 1")
    least = seconds(row.get("least") or "0", "least")
    if least > 1:
        raise BadRowError("a minimum above the size", f"least {least:g} is a part of the size, at most 1")
    return start_s, end_s, Amounts(*amounts), priority, least


def read_hosts(text: str) -> Hosts:
    """`cpu=48,memory=128GiB`: equal hosts; or Alibaba's list of nodes."""
    if "=" in text:
        return alike(parse_host(text), name=text)
    if not Path(text).is_file():
        raise InputError(f"--host takes cpu=48,memory=128GiB, or a list of nodes; there is no file {text}.")
    from stallwise.cluster.deflation.alibaba import read_nodes

    return read_nodes(Path(text))
