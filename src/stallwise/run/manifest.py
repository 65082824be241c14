"""`manifest.json`: what was run, where, with what, and whether the record is whole; without secrets.

The structs are the schema. Within one version, keys may be added with a default and unknown keys are ignored; anything
else needs a new version and a step in `MIGRATIONS`, which is filed under the version it reads and returns a document of
the next one.

Redaction: masking too much is harmless, masking too little is not. A name is secret when one of its words is, and
values that look like well-known credentials are masked under any name.
"""

import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from stallwise.errors import RunError, RunVersionError
from stallwise.inputs import read_bytes
from stallwise.sentences import Sentence, read_sentence, sentence_document

Document = dict[str, Any]
Migration = Callable[[Document], Document]

MIGRATIONS: Mapping[int, Migration] = {1: lambda document: document}


def migrate(document: Document, steps: Mapping[int, Migration], target: int) -> Document:
    """`document` brought to version `target` by one step per version; the input is left as it was."""
    current = dict(document)
    for version in range(current["schema_version"], target):
        current = {**steps[version](current), "schema_version": version + 1}
    return current


SCHEMA_VERSION = 2
MANIFEST_NAME = "manifest.json"
MOST_BYTES = 16 << 20
"""Of a manifest; that of 1,024 ranks has 0.2 MB."""
NO_PREDICTION = "Nothing can be predicted from this run: "
"""How the note begins that says why no prediction can be made from an imported trace."""

NO_LOADER = "No DataLoader was seen"
ENDED_ITSELF = "The script ended by itself"
"""How notes begin that decide what a profile can say."""

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

    world_size: Annotated[int, msgspec.Meta(ge=1)] = 1
    nnodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    backend: str | None = None


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A phase, what differs in it, and how many steps and blocks of it were kept."""

    name: str
    differs: str = ""
    steps: int = 0
    blocks: int = 0


class CountsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the job (kept or not), samples over all ranks, samples of one epoch of the training data, and ranks."""

    steps: int = 0
    samples: int | None = None
    epoch_samples: int | None = None
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


class LoaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The loader that feeds most steps, with its settings as the loader itself has them."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    batch_size: int | None = None
    """None where the loader's own sampler makes the batches."""
    batches: int | None = None
    """Batches of an epoch."""


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The trained model's features and the passes of one step of the *layers* phase.

    `precision` is what multiplies (fp32, tf32, bf16, fp16, …); FLOPs are of one rank's step, forward and backward.
    Where `compiled`, or where the passes could not be told apart, times are null. `bucket_bytes` are DDP's buckets as
    torch built them, `bucket_cap_bytes` their limit and `first_bucket_bytes` the first one's where that is known by
    itself; `sharded` means FSDP2. `samples_per_step` and `tokens_per_step` are of one rank, from the shape of what the
    model is called with: for loops without a loader.
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
    samples_per_step: float | None = None
    tokens_per_step: float | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a run: job, machines, phases, state and counts."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    state: State = "recording"
    partial_reason: Sentence | None = None
    # Reasons for being partial that a later join cannot mend: an interrupted launcher, a damaged part.
    losses: tuple[Sentence, ...] = ()
    stallwise_version: str
    job: JobRecord
    world: WorldRecord = WorldRecord()
    nodes: tuple[NodeRecord, ...] = ()
    software: dict[str, str] = {}
    phases: tuple[PhaseRecord, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    model: ModelRecord | None = None
    loader: LoaderRecord | None = None
    light: bool | None = None
    """Whether the profile only observed; None where the record does not say."""
    counts: CountsRecord = CountsRecord()
    tables: dict[str, int] = {}
    notes: tuple[Sentence, ...] = ()


def new_manifest(
    job: JobRecord,
    *,
    run_id: str | None = None,
    world: WorldRecord | None = None,
    nodes: tuple[NodeRecord, ...] = (),
    software: dict[str, str] | None = None,
    phases: tuple[PhaseRecord, ...] = (),
    notes: tuple[Sentence, ...] = (),
) -> Manifest:
    """A manifest for a run that starts now. Nodes that write to their own disks must share the `run_id`."""
    from stallwise._version import __version__

    now = datetime.now(UTC)
    size = world or WorldRecord()
    return Manifest(
        run_id=run_id or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        created=now,
        stallwise_version=__version__,
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
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=sentence_document), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`, migrated to this version; one sentence for each way it can be unusable."""
    path = folder / MANIFEST_NAME
    return decode(_read_bytes(folder), path)


def decode(data: bytes, path: Path) -> Manifest:
    """The manifest in `data`; `path` is named in errors."""
    try:
        document = msgspec.json.decode(data)
    except RecursionError:
        raise RunError(f"{path} is nested too deeply to be a run manifest. Check the path.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path} is cut off or not JSON ({error}). Restore it from a copy, or profile the job again."
        ) from None
    _check_version(document, path)
    try:
        return msgspec.convert(migrate(document, MIGRATIONS, SCHEMA_VERSION), Manifest, dec_hook=read_sentence)
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
        return read_bytes(path, MOST_BYTES)
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


MASK = "***"

# Only variables that decide speed are recorded: MASTER_ADDR or SLURM_NODELIST would carry host names.
RECORDED_VARIABLES = (
    "CUDA_", "CUBLAS_", "CUDNN_", "FI_", "GOMP_", "HIP_", "KMP_", "LOCAL_WORLD_SIZE", "MALLOC_", "MKL_",
    "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "ROCR_", "TORCHINDUCTOR_", "TORCH_", "UCX_",
    "WORLD_SIZE",
)  # fmt: skip
_HOST_VARIABLES = {"NCCL_COMM_ID", "NCCL_HOSTID"}  # addresses and names of hosts, among those that decide speed

_SECRET_ENDINGS = (
    "token", "key", "secret", "password", "passwd", "passphrase", "pwd", "pass", "credential", "auth",
    "authorization", "bearer", "cookie", "signature", "pat", "dsn", "sig", "sas",
)  # fmt: skip
_EXACT_ONLY = {"pass", "pat", "dsn", "auth", "sig", "sas"}  # endings of everyday words (bypass, repeat-pat …)
_OPTION = re.compile(r"^(?P<name>[^=\s]+)=(?P<value>.*)$", re.DOTALL)
# A password may hold @ and /: with a colon before it, everything up to the last @ is masked.
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)([^/\s@:]*:[^\s\"']*|[^/\s@]+)@")
# name=value, "name": "value", name: value … anywhere in a text. After a colon, as in a header, a value may hold spaces.
_PAIR = re.compile(
    r"(?P<name>[\"']?[A-Za-z_][\w.-]*[\"']?)(?P<sign>\s*:\s*|=)"
    r"(?P<value>\"[^\"]*\"?|'[^']*'?|(?<=[:\s])(?!//)[^\"'\n&;}]+|(?:(?!,[\w.-]+=)[^\s&;\"'}])+)"
)
_RANDOM = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+_-]{24,}={0,2}(?![\w/.-])")
_LEAST_BITS = 3.0  # per character: below that a text repeats itself
_KNOWN_SECRETS = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|A(KI|SI)A[0-9A-Z]{16}|xox[abpr]-[\w-]{10,}|AIza[\w-]{30,}|eyJ[\w-]+\.[\w-]+\.[\w-]*)"
)
_BEARER = re.compile(r"\b(?P<scheme>Bearer|Basic)\s+\S+", re.IGNORECASE)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Arguments with secret values masked: `--api-key X`, `--api-key=X`, `a.token=X`, URLs, known tokens."""
    masked: list[str] = []
    after_secret_name = False
    for argument in arguments:
        if after_secret_name and not argument.startswith("--"):
            masked.append(MASK)
            after_secret_name = False
            continue
        masked.append(_mask_argument(argument))
        after_secret_name = argument.startswith("-") and "=" not in argument and is_secret(argument)
    return tuple(masked)


def redact_environment(environment: Mapping[str, str], recorded: Iterable[str] = RECORDED_VARIABLES) -> dict[str, str]:
    """The variables whose names start with one of `recorded`, with secret values masked."""
    prefixes = tuple(recorded)
    return {
        name: MASK if is_secret(name) else _mask_value(value)
        for name, value in sorted(environment.items())
        if name.startswith(prefixes) and name not in _HOST_VARIABLES
    }


def is_secret(name: str) -> bool:
    """Whether a value of this name is masked: `HF_TOKEN`, `--apiKey`, `db.password`; not `--tokenizer`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return any(_is_secret_word(word) for word in re.split(r"[^a-z0-9]+", split.lower()))


def _is_secret_word(word: str) -> bool:
    stem = word.rstrip("0123456789")
    # `max_tokens 1024` is the commonest argument of language models and no secret.
    singular = stem if stem == "tokens" else stem.removesuffix("s") if not stem.endswith("ss") else stem
    if singular in _SECRET_ENDINGS or stem in _SECRET_ENDINGS:
        return True
    return singular.endswith(tuple(e for e in _SECRET_ENDINGS if e not in _EXACT_ONLY))


def _mask_argument(argument: str) -> str:
    option = _OPTION.match(argument)
    if option and "://" not in option["name"]:
        value = MASK if is_secret(option["name"]) else _mask_value(option["value"])
        return f"{option['name']}={value}"
    return _mask_value(argument)


def _mask_value(value: str) -> str:
    value = _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", value)
    value = _mask_pairs(value)
    value = _BEARER.sub(rf"\g<scheme> {MASK}", value)
    value = _KNOWN_SECRETS.sub(MASK, value)
    return _RANDOM.sub(lambda m: MASK if _looks_random(m[0]) else m[0], value)


def _mask_pairs(text: str) -> str:
    """Mask the values of secret names, wherever in the text they are; pairs may be nested (`env=TOKEN=x`)."""
    masked, at = [], 0
    while match := _PAIR.search(text, at):
        masked.append(text[at : match.start("value")])
        at = match.start("value")
        if is_secret(match["name"]):
            quote = match["value"][0] if match["value"][0] in "\"'" else ""
            masked.append(f"{quote}{MASK}{quote}")
            at = match.end()
    return "".join((*masked, text[at:]))


def _looks_random(text: str) -> bool:
    """Whether a word looks drawn at random: mixed characters, or a long hexadecimal number, with much entropy."""
    kinds = [any(test(c) for c in text) for test in (str.isupper, str.islower, str.isdigit)]
    is_hexadecimal = len(text) >= 32 and re.fullmatch("[0-9a-f]+", text) is not None
    if not (all(kinds) or is_hexadecimal):
        return False
    shares = [text.count(character) / len(text) for character in set(text)]
    return -sum(share * math.log2(share) for share in shares) >= _LEAST_BITS
