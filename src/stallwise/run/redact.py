"""What must not reach the record: secrets in arguments and environment.

Masking too much is harmless, masking too little is not: a name is secret when one of its words is, and values
that look like well-known credentials are masked under any name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"

# Only variables that decide speed are recorded: MASTER_ADDR or SLURM_NODELIST would carry host names.
RECORDED_VARIABLES = (
    "CUDA_", "CUBLAS_", "CUDNN_", "FI_", "GOMP_", "HIP_", "KMP_", "LOCAL_WORLD_SIZE", "MALLOC_", "MKL_",
    "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "ROCR_", "TORCHINDUCTOR_", "TORCH_", "UCX_",
    "WORLD_SIZE",
)  # fmt: skip

_SECRET_ENDINGS = (
    "token", "key", "secret", "password", "passwd", "passphrase", "pwd", "pass", "credential", "auth",
    "authorization", "bearer", "cookie", "signature", "pat", "dsn",
)  # fmt: skip
_EXACT_ONLY = {"pass", "pat", "dsn", "auth"}  # endings of everyday words (bypass, repeat-pat …)
_OPTION = re.compile(r"^(?P<name>[^=\s]+)=(?P<value>.*)$", re.DOTALL)
_URL_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s@]+@")
_QUERY = re.compile(r"(?P<name>[?&;][^=&;\s]+)=(?P<value>[^&;\s]+)")
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
        if name.startswith(prefixes)
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
    value = _QUERY.sub(lambda m: f"{m['name']}={MASK}" if is_secret(m["name"]) else m[0], value)
    value = _BEARER.sub(rf"\g<scheme> {MASK}", value)
    return _KNOWN_SECRETS.sub(MASK, value)
