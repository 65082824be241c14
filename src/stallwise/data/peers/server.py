"""The process that serves this node's cache to the other nodes of the job.

It reads and writes the cache folder like any other process of the node, so it shares its limit, its index and its
repairs. What clients hand over is marked in the cache, until its first reader on this node has held it against the
object's version. Bodies are sent by `sendfile`, unread, with the checksum they were written with: the receiver checks.
It reads its settings from standard input, writes its port to standard output, and ends when its rank does.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, BinaryIO

import msgspec

from stallwise.data.cache.cache import NodeCache
from stallwise.data.cache.files import HANDED, HEADER, MAGIC
from stallwise.data.peers._protocol import (
    ANSWER,
    GREETING,
    NONCE_BYTES,
    REPLY,
    REQUEST,
    PeerOp,
    PeerServerSettings,
    PeerStatus,
    digest_of,
    is_proof,
    proof,
)
from stallwise.data.peers._protocol import MAGIC as WIRE

HANDSHAKE_S = 5.0
IDLE_S = 300.0
BODY_S = 60.0
MOST_CONNECTIONS = 4096
# Limit of all incoming bodies in memory; beyond it the reply is NO_ROOM.
MOST_PUT_BYTES = 1 << 30
# A client that was told to fetch an object has this long to bring it; then this node's processes stop waiting for it.
RESERVED_S = 5.0
MOST_WAIT_MS = 60_000
_LOOK_S = 0.003
_POLL_S = 1.0


class PeerServer:
    """Serves one cache folder to clients that have the token."""

    def __init__(self, settings: PeerServerSettings) -> None:
        self._settings, self._token = settings, settings.token
        self._cache = NodeCache(settings.folder, settings.limit_bytes, shared=settings.shared)
        self._open = 0
        self._puts: set[bytes] = set()
        self._put_bytes = 0
        self._reserved: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the rank ends."""
        loop, parent = asyncio.get_running_loop(), os.getppid()
        server = await asyncio.start_server(self._accept, self._settings.address, self._settings.port)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        rank_ended = loop.create_future()
        loop.add_reader(0, rank_ended.cancel)  # the rank closed its end, or was killed
        while not rank_ended.done() and os.getppid() == parent:
            await asyncio.wait([rank_ended], timeout=_POLL_S)
        self._cache.close()
        os._exit(0)  # pending transfers have no reader any more

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS and await self._authenticate(reader, writer):
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # the client has gone, or is too slow
        finally:
            self._open -= 1
            writer.close()

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(GREETING.pack(WIRE, nonce))
        async with asyncio.timeout(HANDSHAKE_S):
            magic, client_nonce, client_proof = REPLY.unpack(await reader.readexactly(REPLY.size))
        if magic != WIRE or not is_proof(client_proof, self._token, b"client", nonce, client_nonce):
            return False
        writer.write(proof(self._token, b"server", nonce, client_nonce))
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readexactly(REQUEST.size)
            op, key, length, digest = REQUEST.unpack(head)
            if op == PeerOp.GET and length <= MOST_WAIT_MS:
                await self._send(writer, key, length / 1e3)
            elif op == PeerOp.PUT and 0 < length <= self._settings.limit_bytes:
                await self._take(reader, writer, key, length, digest)
            elif op == PeerOp.CHECK and length == 0:
                self._begin(asyncio.to_thread(self._check, key))
            else:
                return  # what follows cannot be parsed

    async def _send(self, writer: asyncio.StreamWriter, key: bytes, wait_s: float) -> None:
        entry = self._entry(key)
        if entry is None and wait_s > 0:
            if self._cache.is_coming(key):
                writer.write(ANSWER.pack(PeerStatus.PENDING, 0, bytes(16)))
                entry = await self._wait_for(key, wait_s)
            if entry is None:
                self._reserve(key)
                entry = self._entry(key)  # it may have arrived in this moment
        if entry is None:
            writer.write(ANSWER.pack(PeerStatus.MISS, 0, bytes(16)))
            return
        file, length, digest = entry
        with file:
            writer.write(ANSWER.pack(PeerStatus.HIT, length, digest))
            async with asyncio.timeout(BODY_S + length / 1e6):
                if length:
                    await asyncio.get_running_loop().sendfile(writer.transport, file, HEADER.size, length)

    async def _wait_for(self, key: bytes, wait_s: float) -> tuple[BinaryIO, int, bytes] | None:
        """Wait at most `wait_s` seconds for an object that a process of this node is fetching."""
        give_up_s = time.monotonic() + wait_s
        while self._cache.is_coming(key) and time.monotonic() < give_up_s:
            await asyncio.sleep(_LOOK_S)
            if self._cache.contains(key):
                return self._entry(key)
        return self._entry(key)

    def _reserve(self, key: bytes) -> None:
        """Claim an object that the asking client will fetch: this node's processes wait for it."""
        if not self._cache.contains(key) and not self._cache.is_coming(key) and self._cache.reserve(key):
            self._reserved.add(key)
            asyncio.get_running_loop().call_later(RESERVED_S, self._release, key)

    def _release(self, key: bytes) -> None:
        if key in self._reserved:
            self._reserved.discard(key)
            self._cache.release(key)

    def _entry(self, key: bytes) -> tuple[BinaryIO, int, bytes] | None:
        file = self._cache.open_entry(key)
        if file is None:
            return None
        head = file.read(HEADER.size)
        if len(head) == HEADER.size:
            magic, own_key, length, digest = HEADER.unpack(head)
            if magic in (MAGIC, HANDED) and own_key == key and os.fstat(file.fileno()).st_size == HEADER.size + length:
                return file, length, digest
        file.close()
        self._begin(asyncio.to_thread(self._check, key))
        return None

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, length: int, digest: bytes
    ) -> None:
        keeps = key not in self._puts and self._put_bytes + length <= MOST_PUT_BYTES
        self._put_bytes += length if keeps else 0
        try:
            await self._keep(reader, writer, key, length, digest, keeps=keeps)
        finally:
            self._put_bytes -= length if keeps else 0

    async def _keep(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        length: int,
        digest: bytes,
        *,
        keeps: bool,
    ) -> None:
        async with asyncio.timeout(BODY_S + length / 1e6):
            data = await _body(reader, length, keep=keeps)
        kept = False
        if data is not None and digest_of(data) == digest:
            self._puts.add(key)
            try:
                kept = await asyncio.to_thread(self._cache.keep, key, data)
            finally:
                self._puts.discard(key)
                self._release(key)
        writer.write(ANSWER.pack(PeerStatus.KEPT if kept else PeerStatus.NO_ROOM, 0, bytes(16)))

    def _check(self, key: bytes) -> None:
        # A bad entry is removed when it is read; of one that was handed over, a node that found it wrong is believed.
        self._cache.read(key, fits=lambda _: False)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)


async def _body(reader: asyncio.StreamReader, length: int, *, keep: bool) -> bytes | None:
    """Read the announced bytes; without `keep` they are discarded and None is returned."""
    if keep:
        return await reader.readexactly(length)
    while length:
        part = await reader.read(min(length, 1 << 16))
        if not part:
            raise EOFError
        length -= len(part)
    return None


def main() -> None:
    """Serve until the rank ends."""
    # Ctrl-C reaches the whole process group; a rank that catches it may continue reading.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the rank was killed right after its start
    settings = msgspec.json.decode(line, type=PeerServerSettings)
    asyncio.run(PeerServer(settings).run())


if __name__ == "__main__":
    main()
