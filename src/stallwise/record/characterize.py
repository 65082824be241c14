"""One machine characterised: what decides training on it, into a machine record.

Each part is measured by itself and may be missing: a machine without a GPU has no copies, one GPU no ring. What is not
there is named in `unknown` with its reason.
"""

import datetime as dt
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

import stallwise
from stallwise.errors import InputError, StallwiseError
from stallwise.hardware.machine import DeviceRecord, HostRecord, LinkRecord, MachineRecord, encode_machine
from stallwise.record import probe
from stallwise.record.characterize_host import measure_decode, measure_disk
from stallwise.record.link_probe import LinkProbe, run_probe
from stallwise.run.atomic import make_folder, write_atomically
from stallwise.units import MIB

PARTS = ("device", "links", "disk", "decode")
_DEVICE_LIMIT_S = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterize:
    """What to measure."""

    out: Path
    disk: Path
    network_s: float = 8.0
    links_s: float = 30.0
    networks: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    disk_bytes: int = 1024 * MIB
    decode_s: float = 3.0


def characterize_machine(asked: Characterize, say: Say) -> MachineRecord:
    """Measure and write the record; a part that fails is unknown, the others stand."""
    if asked.out.is_dir():
        raise InputError(f"{asked.out} is a folder. Give the name of a file with -o.")
    make_folder(asked.out.parent)
    cpu, gpus = probe.cpu(), probe.gpus()
    record = MachineRecord(
        created=dt.datetime.now(dt.UTC),
        stallwise_version=stallwise.__version__,
        ranks=max(1, len(gpus)),
        nodes=1,
        hosts=(
            HostRecord(
                node=0,
                cpu_model=cpu.model,
                cores=max(1, int(cpu.usable)),
                memory_bytes=probe.memory_bytes(),
                gpus=tuple(gpu.name for gpu in gpus),
            ),
        ),
        software={"python": sys.version.split()[0]},
    )
    parts = {"device": _device, "links": _links, "disk": _disk, "decode": _decode}
    for name, part in parts.items():
        if name in asked.skip:
            record = _unknown(record, name, "not asked for")
            continue
        record = part(record, asked, say)
    write_atomically(asked.out, encode_machine(record))
    return record


def _unknown(record: MachineRecord, name: str, why: str) -> MachineRecord:
    return msgspec.structs.replace(record, unknown={**record.unknown, name: why})


def _device(record: MachineRecord, asked: Characterize, say: Say) -> MachineRecord:
    """In a process of its own: a broken driver can take the interpreter with it."""
    if probe.torch() is None:
        return _unknown(record, "device", "PyTorch is not installed here: pip install 'stallwise[torch]'")
    with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
        out = Path(folder) / "device.json"
        command = [sys.executable, "-m", "stallwise.record.characterize_device", "--out", str(out)]
        command += ["--network-time", str(asked.network_s), "--networks", ",".join(asked.networks)]
        why = _run(command, _DEVICE_LIMIT_S + 30 * asked.network_s, say)
        if why or not out.exists():
            return _unknown(record, "device", why or "it ended without an answer")
        found = msgspec.json.decode(out.read_bytes(), type=DeviceRecord)
    software = {**record.software, "torch": found.torch, **({"cuda": found.cuda} if found.cuda else {})}
    return msgspec.structs.replace(
        record,
        software=software,
        copies=found.copies,
        ring=found.ring,
        networks=found.networks,
        unknown={**record.unknown, **found.unknown},
    )


def _run(command: list[str], limit_s: float, say: Say) -> str:
    """Passes on what the process says; why it failed, or nothing. A driver that hangs is given up after `limit_s`."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # noqa: S101 - asked for above
        watch = threading.Timer(limit_s, process.kill)
        watch.start()
        try:
            for line in process.stderr:
                last = line.strip() or last
                say(last)
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            watch.cancel()
    return "" if process.returncode == 0 else f"it failed: {last[:200]}"


def _links(record: MachineRecord, asked: Characterize, say: Say) -> MachineRecord:
    """All-reduce over sizes among the GPUs of this machine, as `stallwise probe` does it."""
    gpus = len(record.hosts[0].gpus)
    if gpus < 2:
        return _unknown(record, "links", "an all-reduce takes at least two GPUs" if gpus else "there is no GPU")
    say(f"all-reduce among {gpus} GPUs")
    with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
        wanted = LinkProbe(
            torchrun=("--standalone", "--nproc-per-node", str(gpus)),
            out=Path(folder) / "links.json",
            backend="nccl",
            max_s=asked.links_s,
            max_bytes=256 * MIB,
        )
        try:
            found = run_probe(wanted, lambda now: say(now.doing))
        except StallwiseError as error:
            return _unknown(record, "links", str(error))
    links: tuple[LinkRecord, ...] = () if found is None else found.links
    return msgspec.structs.replace(record, links=links)


def _disk(record: MachineRecord, asked: Characterize, say: Say) -> MachineRecord:
    say(f"reading from {asked.disk}")
    found = measure_disk(asked.disk, asked.disk_bytes)
    return msgspec.structs.replace(
        record, storage=(*record.storage, *found.records), unknown={**record.unknown, **found.unknown}
    )


def _decode(record: MachineRecord, asked: Characterize, say: Say) -> MachineRecord:
    try:
        import PIL  # noqa: F401 - only asked whether it is there
    except ImportError:
        return _unknown(record, "decode", "Pillow is not installed here: pip install pillow")
    cores = record.hosts[0].cores or 1
    say(f"decoding on {cores} cores")
    return msgspec.structs.replace(record, decode=measure_decode(cores, asked.decode_s))
