"""Opening an object store by its URL, through obstore; credentials stay out of everything that is written.

    s3://bucket/prefix   gs://bucket/prefix   az://container/prefix   https://host/folder   file:///folder

A store is opened where it is used and never travels: a client carried over fork or pickled would share its
connections with another process (half of such reads come back wrong, some without an error). `ObjectBucket` is what
travels: the URL and the options.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from stallwise.errors import InputError, missing_extra

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "http", "https", "file")
_SECRETS = re.compile(r"(key|secret|token|password|credential|signature|sig|sas)", re.IGNORECASE)
_IN_TEXT = re.compile(
    r"(?i)((?:x-amz-[a-z-]*(?:credential|signature|token)|awsaccesskeyid|signature|sig|token|secret|password|key)=)[^&\s\"']+"
)

_THREADS = "TOKIO_WORKER_THREADS"
_CLOUDS = ("AWS_", "AZURE_", "GOOGLE_")
# What obstore takes the server or account from, in options and environment, where no endpoint is given.
_WHERE = {
    "s3": ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint"),
    "gs": ("google_base_url", "base_url"),
    "az": ("azure_storage_endpoint", "azure_endpoint", "endpoint", "azure_storage_account_name", "account_name"),
}


@dataclass(frozen=True)
class ObjectBucket:
    """Where the objects are and how to reach them. `options` are obstore's for that store; they are never printed."""

    url: str
    endpoint: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        scheme = urlsplit(self.url).scheme
        if scheme not in SCHEMES:
            schemes = ", ".join(f"{one}://" for one in SCHEMES)
            raise InputError(
                f"{shown_url(self.url)} is not the address of a bucket: it must begin with one of {schemes}."
            )
        if self.timeout_s <= 0 or self.connect_timeout_s <= 0:
            raise InputError("A bucket's time-outs must be above zero seconds.")

    @property
    def shown(self) -> str:
        """The address without user, password and query, fit for logs and records."""
        return shown_url(self.url)

    @property
    def identity(self) -> str:
        """Server (or Azure account) and address: two servers may have buckets of the same name."""
        where, shown = self.endpoint or self.server(), self.shown.rstrip("/")
        return f"{shown_url(where)} {shown}" if where else shown

    def server(self) -> str | None:
        """Return the server, or Azure account, that options or environment name."""
        environment = {name: value for name, value in os.environ.items() if name.startswith(_CLOUDS)}
        for settings in (self.options, environment):
            lower = {name.lower(): str(value) for name, value in settings.items() if value}
            for name in _WHERE.get(urlsplit(self.url).scheme, ()):
                if name in lower:
                    return lower[name]
        return None

    def open(self) -> "ObjectStore":
        """Open the store in this process. It does not retry: `fetch` does, so that each try is counted once."""
        obstore_store = _obstore()
        if urlsplit(self.url).scheme == "file":
            return obstore_store.LocalStore(prefix=_local_folder(self.url))  # type: ignore[no-any-return]
        client = {
            "timeout": timedelta(seconds=self.timeout_s),
            "connect_timeout": timedelta(seconds=self.connect_timeout_s),
            "allow_http": self._plain_http(),
        }
        retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=self.timeout_s)}
        try:
            return obstore_store.from_url(  # type: ignore[no-any-return]
                self.url, config=self._config() or None, client_options=client, retry_config=retries
            )
        except Exception as error:
            raise InputError(f"{self.shown} cannot be opened: {self.error_text(error)}") from None

    def error_text(self, error: Exception) -> str:
        """Return the first line of a library's message, without secrets."""
        if any(host in str(error) for host in _METADATA_HOSTS):
            return "there are no credentials for it here (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)."
        # Truncated last: half a secret is not recognised.
        return redacted(str(error).strip().partition("\n")[0], self.options)[:300]

    def _plain_http(self) -> bool:
        return (self.endpoint or self.url).startswith("http://") or os.environ.get("AWS_ALLOW_HTTP") == "true"

    def _config(self) -> dict[str, Any]:
        config = dict(self.options)
        if self.endpoint is not None:
            if urlsplit(self.url).scheme in {"http", "https", "file"}:
                raise InputError(f"{self.shown} has no use for an endpoint: it is an address itself.")
            config["base_url" if urlsplit(self.url).scheme == "gs" else "endpoint"] = self.endpoint
            if urlsplit(self.url).scheme == "s3":
                # A private server hardly ever checks it, and without a region obstore asks AWS.
                config.setdefault("region", os.environ.get("AWS_REGION", "us-east-1"))
        return config


_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Where a library looks for the credentials of a cloud machine when it has been given none."""


def shown_url(url: str) -> str:
    """Return the address without user, password and query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def redacted(text: str, options: Mapping[str, Any]) -> str:
    """Remove the secrets of `options`, of the environment and of signed addresses from a library's message."""
    names = {**{k: v for k, v in os.environ.items() if k.startswith(_CLOUDS)}, **options}
    for name, value in names.items():
        if _SECRETS.search(name) and isinstance(value, str) and len(value) > 3:
            text = text.replace(value, "[hidden]")
    text = re.sub(r"//[^/@\s]+@", "//", text)
    # An object's name in it may contain terminal codes.
    return _IN_TEXT.sub(r"\1[hidden]", "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def _local_folder(url: str) -> str:
    from pathlib import Path
    from urllib.parse import unquote

    folder = Path(unquote(urlsplit(url).path))
    if not folder.is_dir():
        raise InputError(f"{shown_url(url)} is not a folder on this machine.")
    return str(folder)


def _obstore() -> Any:
    try:
        import obstore.store
    except ImportError:
        raise missing_extra("obstore", "data", "Reading buckets") from None
    _start_runtime()
    return obstore.store


def _start_runtime() -> None:
    """Start obstore's runtime with one thread, unless the environment sets another number.

    Each loader worker is a process with threads of its own; several threads that poll its sockets only wake each other
    (12 % of the CPU time of a GET). The variable is read at the first request, and unset afterwards for other users.
    """
    if _THREADS in os.environ:
        return
    import obstore
    from obstore.store import MemoryStore

    os.environ[_THREADS] = "1"
    try:
        obstore.put(MemoryStore(), "first", b"")
    finally:
        del os.environ[_THREADS]
