"""A process of its own that serves this node's cache to the other nodes of the job.

It reads and writes the cache folder like any other process of the node, so it shares its limit, its ledger and its
repairs. Bodies leave by `sendfile`, unread, with the checksum they were put in with: who receives them checks. It is
told what it needs on its standard input, says its port on its standard output, and ends when its rank does.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stallwise.data.cache import NodeCache
from stallwise.data.entries import HEADER, MAGIC
from stallwise.data.peer_wire import (
    ANSWER,
    GREETING,
    NONCE_BYTES,
    REPLY,
    REQUEST,
    Op,
    Status,
    digest_of,
    is_proof,
    proof,
)
from stallwise.data.peer_wire import MAGIC as WIRE

HANDSHAKE_S = 5.0
IDLE_S = 300.0
BODY_S = 60.0
MOST_CONNECTIONS = 4096
# Of all bodies in memory that are being put in; who finds no place is told that there is no room.
MOST_PUT_BYTES = 1 << 30
# Who was told to fetch an object has so long to bring it; then others of this node do not wait for it any more.
RESERVED_S = 5.0
MOST_WAIT_MS = 60_000
_LOOK_S = 0.003
_POLL_S = 1.0


class Settings(msgspec.Struct, frozen=True):
    """What the rank tells its server."""

    folder: str
    limit_bytes: int
    address: str
    port: int
    token: bytes
    name: str


class Server:
    """Serves one cache folder to those who have the token."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._token = settings, settings.token
        self._cache = NodeCache(settings.folder, settings.limit_bytes)
        self._open = 0
        self._puts: set[bytes] = set()
        self._put_bytes = 0
        self._reserved: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the rank is gone."""
        loop, parent = asyncio.get_running_loop(), os.getppid()
        server = await asyncio.start_server(self._meet, self._settings.address, self._settings.port)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        gone = loop.create_future()
        loop.add_reader(0, gone.cancel)  # the rank closed its end, or was killed
        while not gone.done() and os.getppid() == parent:
            await asyncio.wait([gone], timeout=_POLL_S)
        self._cache.close()
        os._exit(0)  # what is being sent is of no use to anybody

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS and await self._knows_token(reader, writer):
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # whoever it was has gone, or is too slow
        finally:
            self._open -= 1
            writer.close()

    async def _knows_token(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(GREETING.pack(WIRE, nonce))
        async with asyncio.timeout(HANDSHAKE_S):
            magic, client_nonce, given = REPLY.unpack(await reader.readexactly(REPLY.size))
        if magic != WIRE or not is_proof(given, self._token, b"client", nonce, client_nonce):
            return False
        writer.write(proof(self._token, b"server", nonce, client_nonce))
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readexactly(REQUEST.size)
            op, key, length, digest = REQUEST.unpack(head)
            if op == Op.GET and length <= MOST_WAIT_MS:
                await self._send(writer, key, length / 1e3)
            elif op == Op.PUT and 0 < length <= self._settings.limit_bytes:
                await self._take(reader, writer, key, length, digest)
            elif op == Op.CHECK and length == 0:
                self._begin(asyncio.to_thread(self._check, key))
            else:
                return  # nothing after it can be understood

    async def _send(self, writer: asyncio.StreamWriter, key: bytes, wait_s: float) -> None:
        found = self._found(key)
        if found is None and wait_s > 0:
            if self._cache.is_coming(key):
                writer.write(ANSWER.pack(Status.COMING, 0, bytes(16)))
                found = await self._coming(key, wait_s)
            if found is None:
                self._reserve(key)
                found = self._found(key)  # it may have come in this moment
        if found is None:
            writer.write(ANSWER.pack(Status.NOT_HERE, 0, bytes(16)))
            return
        file, length, digest = found
        with file:
            writer.write(ANSWER.pack(Status.HERE, length, digest))
            async with asyncio.timeout(BODY_S + length / 1e6):
                if length:
                    await asyncio.get_running_loop().sendfile(writer.transport, file, HEADER.size, length)

    async def _coming(self, key: bytes, wait_s: float) -> tuple[BinaryIO, int, bytes] | None:
        """Wait for what somebody is fetching."""
        give_up_s = time.monotonic() + wait_s
        while self._cache.is_coming(key) and time.monotonic() < give_up_s:
            await asyncio.sleep(_LOOK_S)
            if self._cache.contains(key):
                return self._found(key)
        return self._found(key)

    def _reserve(self, key: bytes) -> None:
        """Nobody is fetching it, so who asks now will, and everybody here waits for that."""
        if not self._cache.contains(key) and not self._cache.is_coming(key) and self._cache.reserve(key):
            self._reserved.add(key)
            asyncio.get_running_loop().call_later(RESERVED_S, self._release, key)

    def _release(self, key: bytes) -> None:
        if key in self._reserved:
            self._reserved.discard(key)
            self._cache.release(key)

    def _found(self, key: bytes) -> tuple[BinaryIO, int, bytes] | None:
        file = self._cache.open_entry(key)
        if file is None:
            return None
        head = file.read(HEADER.size)
        if len(head) == HEADER.size:
            magic, own_key, length, digest = HEADER.unpack(head)
            if magic == MAGIC and own_key == key and os.fstat(file.fileno()).st_size == HEADER.size + length:
                return file, length, digest
        file.close()
        self._begin(asyncio.to_thread(self._check, key))
        return None

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, length: int, digest: bytes
    ) -> None:
        wanted = key not in self._puts and self._put_bytes + length <= MOST_PUT_BYTES
        self._put_bytes += length if wanted else 0
        try:
            await self._keep(reader, writer, key, length, digest, wanted=wanted)
        finally:
            self._put_bytes -= length if wanted else 0

    async def _keep(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        length: int,
        digest: bytes,
        *,
        wanted: bool,
    ) -> None:
        async with asyncio.timeout(BODY_S + length / 1e6):
            data = await _body(reader, length, keep=wanted)
        kept = False
        if data is not None and digest_of(data) == digest:
            self._puts.add(key)
            try:
                kept = await asyncio.to_thread(self._cache.keep, key, data)
            finally:
                self._puts.discard(key)
                self._release(key)
        writer.write(ANSWER.pack(Status.KEPT if kept else Status.NO_ROOM, 0, bytes(16)))

    def _check(self, key: bytes) -> None:
        self._cache.read(key)  # a bad entry is removed when it is read

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)


async def _body(reader: asyncio.StreamReader, length: int, *, keep: bool) -> bytes | None:
    """The bytes that were announced, or None where they are only read past."""
    if keep:
        return await reader.readexactly(length)
    while length:
        part = await reader.read(min(length, 1 << 16))
        if not part:
            raise EOFError
        length -= len(part)
    return None


def main() -> None:
    """Serve until the rank is gone."""
    # Ctrl-C reaches the whole group; a rank that catches it may go on reading.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the rank was killed as soon as it had begun
    settings = msgspec.json.decode(line, type=Settings)
    asyncio.run(Server(settings).run())


def program() -> list[str]:
    """How it is started."""
    return [sys.executable, "-m", "stallwise.data.peer_server"]


def settings_line(folder: Path, limit_bytes: int, address: str, port: int, token: bytes, name: str) -> bytes:
    """What goes to its standard input: secrets are in no argument and no environment."""
    return msgspec.json.encode(Settings(str(folder), limit_bytes, address, port, token, name)) + b"\n"


if __name__ == "__main__":
    main()
