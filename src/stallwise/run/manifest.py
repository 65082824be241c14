"""`manifest.json`: what was run, where, with what, and whether the record is whole.

The structs are the schema. Within one version, keys may be added with a default and unknown keys are ignored;
anything else needs a new version and a step in `migrate.py`.
"""

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from stallwise.errors import RunError, RunVersionError
from stallwise.run.migrate import STEPS, migrate

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"

State = Literal["recording", "complete", "partial"]


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was run. Pass arguments and environment through `redact` before they get here."""

    script: str
    arguments: tuple[str, ...] = ()
    launcher: str | None = None
    module: bool = False
    """Whether `script` is a module's name, as in python -m."""
    environment: dict[str, str] = {}
    exit_code: int | None = None


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the job. `host` stays unknown unless the user asked for host names to be recorded."""

    node: int
    cpu_model: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()
    host: str | None = None


class WorldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The distributed job: its size and its back end."""

    world_size: int = 1
    nnodes: int = 1
    backend: str | None = None


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A phase, what differs in it, and how many steps and blocks of it were kept."""

    name: str
    differs: str = ""
    steps: int = 0
    blocks: int = 0


class CountsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the job (kept or not), samples over all ranks, and ranks."""

    steps: int = 0
    samples: int | None = None
    ranks_seen: int = 0
    ranks_expected: int = 1


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's writing ended: `finished`, or why not where that is known.

    `clock_zero_s` is what its node's monotonic clock showed at second 0 of its rows, so that ranks of one node can be
    put on one time axis.
    """

    rank: int
    node: int = 0
    finished: bool = False
    reason: str | None = None
    exit_code: int | None = None
    peak_memory_bytes: int | None = None
    clock_zero_s: float | None = None


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The trained model's features and the passes of one step of the *layers* phase.

    `precision` is what multiplies (fp32, tf32, bf16, fp16, …); FLOPs are of one rank's step, forward and backward.
    Where `compiled`, or where the passes could not be told apart, times are null. `bucket_bytes` are DDP's buckets as
    torch built them, `bucket_cap_bytes` their limit and `first_bucket_bytes` the first one's where that is known by
    itself; `sharded` means FSDP2.
    """

    parameters: int
    trained_parameters: int
    gradient_tensors: int
    gradient_bytes: int
    layers: int
    precision: str | None = None
    flops_per_step: float | None = None
    activation_bytes: int | None = None
    compiled: bool = False
    checkpointed: bool = False
    micro_batches: int | None = None
    step_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    update_s: float | None = None
    bucket_bytes: tuple[int, ...] = ()
    bucket_cap_bytes: int | None = None
    first_bucket_bytes: int | None = None
    sharded: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    state: State = "recording"
    partial_reason: str | None = None
    # Reasons for being partial that a later join cannot mend: an interrupted launcher, a damaged part.
    losses: tuple[str, ...] = ()
    stallwise_version: str
    job: JobRecord
    world: WorldRecord = WorldRecord()
    nodes: tuple[NodeRecord, ...] = ()
    software: dict[str, str] = {}
    phases: tuple[PhaseRecord, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    model: ModelRecord | None = None
    counts: CountsRecord = CountsRecord()
    tables: dict[str, int] = {}
    notes: tuple[str, ...] = ()


def new_manifest(
    job: JobRecord,
    *,
    run_id: str | None = None,
    world: WorldRecord | None = None,
    nodes: tuple[NodeRecord, ...] = (),
    software: dict[str, str] | None = None,
    phases: tuple[PhaseRecord, ...] = (),
    notes: tuple[str, ...] = (),
) -> Manifest:
    """A manifest for a run that starts now. Nodes that write to their own disks must share the `run_id`."""
    import stallwise

    now = datetime.now(UTC)
    size = world or WorldRecord()
    return Manifest(
        run_id=run_id or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        created=now,
        stallwise_version=stallwise.__version__,
        job=job,
        world=size,
        nodes=nodes,
        software=software or {},
        phases=phases,
        counts=CountsRecord(ranks_expected=size.world_size),
        notes=notes,
    )


def encode(document: msgspec.Struct) -> bytes:
    """A struct as indented JSON, as it lies on disk."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, migrated to this version; one sentence for each way it can be unusable."""
    path = folder / MANIFEST_NAME
    return decode(_read_bytes(folder), path)


def decode(data: bytes, path: Path) -> Manifest:
    """The manifest in `data`; `path` is named in errors."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path} is cut off or not JSON ({error}). Restore it from a copy, or profile the job again."
        ) from None
    _check_version(document, path)
    try:
        return msgspec.convert(migrate(document, STEPS, SCHEMA_VERSION), Manifest)
    except msgspec.ValidationError as error:
        raise RunError(
            f"{path} is not a usable run manifest: {error}. Restore it from a copy, or profile the job again."
        ) from None


def _check_version(document: Any, path: Path) -> None:
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        raise RunError(f"{path} names no record version, so it is not a Stallwise run. Check the path.")
    if version > SCHEMA_VERSION:
        raise RunVersionError(
            f"{path} was written by Stallwise with record version {version}; this one reads up to "
            f"{SCHEMA_VERSION}. Upgrade Stallwise to read it."
        )


def _read_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST_NAME
    try:
        return path.read_bytes()
    except NotADirectoryError:
        raise RunError(f"{folder} is a file, and a run is a folder. Give the folder that holds it.") from None
    except FileNotFoundError:
        raise RunError(_absent(folder)) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}). Check the path and its permissions.") from None


def _absent(folder: Path) -> str:
    if not folder.exists():
        return f"There is no run at {folder}. Check the path."
    return (
        f"{folder} holds no {MANIFEST_NAME}: it is not a run, or its writer was killed before it began. "
        "Check the path, or profile the job again."
    )
