"""The program behind `proxy.py`: a plain HTTP/1.1 proxy in front of an object store that goes wrong on request.

Started by path, standard library only: `proxy_server.py LISTEN_HOST UPSTREAM_HOST UPSTREAM_PORT`. Prints its two ports:
the one clients talk to and the one that takes commands (one JSON object per line: {"faults": {...}}, {"read": true},
{"reset": true}). The Host header goes through unchanged, because the client's signature covers it.
"""

import asyncio
import collections
import contextlib
import json
import random
import socket
import struct
import sys
from dataclasses import dataclass, field

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PIECE = 1 << 16
BUSY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>made by the proxy</Message></Error>'
BEFORE = ("slow_down", "internal", "reset_early")  # decided before the store is request
AFTER = ("reset_late", "truncate", "shorten", "stall", "slow")  # happen to a body on its way back


@dataclass
class State:
    """What to do wrong and what was seen."""

    chances: dict[str, float] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset({"get"})
    stall_s: float = 3600.0
    slow_s: float = 1.0
    latency_s: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    requests: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    objects: collections.Counter[str] = field(default_factory=collections.Counter)
    body_bytes: int = 0

    def configure(self, settings: dict[str, object]) -> None:
        """Chances by fault name; `kinds`, `stall_s`, `slow_s`, `latency_s`, `seed` beside them."""
        self.chances = {name: float(settings.get(name, 0)) for name in (*BEFORE, *AFTER)}  # type: ignore[arg-type]
        self.kinds = frozenset(settings.get("kinds", ("get",)))  # type: ignore[arg-type]
        for name in ("stall_s", "slow_s", "latency_s"):
            setattr(self, name, float(settings.get(name, getattr(State, name))))  # type: ignore[arg-type]
        self.dice = random.Random(settings.get("seed", 0))  # type: ignore[arg-type]

    def draw(self, kind: str) -> str | None:
        """At most one fault per request."""
        if kind not in self.kinds:
            return None
        point = self.dice.random()
        for name, chance in self.chances.items():
            if point < chance:
                self.faults[name] += 1
                return name
            point -= chance
        return None

    def report(self) -> dict[str, object]:
        """All counters."""
        return {
            "requests": dict(self.requests),
            "faults": dict(self.faults),
            "objects": dict(self.objects),
            "body_bytes": self.body_bytes,
        }


@dataclass
class Head:
    """The first lines of a request or an answer."""

    raw: bytes
    first: list[str]
    fields: dict[str, str]

    @property
    def length(self) -> int | None:
        """Announced bytes of the body."""
        return int(self.fields["content-length"]) if "content-length" in self.fields else None

    @property
    def chunked(self) -> bool:
        """Whether the body says itself where it ends."""
        return "chunked" in self.fields.get("transfer-encoding", "").lower()


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """None when the other side has closed between two messages."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(raw, first.split(" ", 2), {name.strip().lower(): value.strip() for name, _, value in pairs})


def kind_of(head: Head) -> str:
    """What the request asks for: get (an object), list, head, put, other."""
    method, target = head.first[0], head.first[1]
    path, _, query = target.partition("?")
    if method == "GET":
        is_list = "list-type=" in query or "delimiter=" in query or path.strip("/").count("/") == 0
        return "list" if is_list else "get"
    return {"HEAD": "head", "PUT": "put", "POST": "put"}.get(method, "other")


class Connection:
    """One client's connection and, once needed, one to the store."""

    def __init__(
        self, state: State, upstream: tuple[str, int], ends: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ):
        self.state, self.upstream, (self.reader, self.writer) = state, upstream, ends
        self.far: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def serve(self) -> None:
        """Requests until either side has enough."""
        try:
            while (head := await read_head(self.reader)) is not None:
                if not await self.one(head):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writer.close()
            self.drop_far()

    async def one(self, head: Head) -> bool:
        """Answer one request; whether the connection can go on."""
        kind = kind_of(head)
        self.state.requests[kind] += 1
        if kind == "get":
            self.state.objects[head.first[1].partition("?")[0]] += 1
        if "100-continue" in head.fields.get("expect", ""):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self.reader.readexactly(head.length) if head.length else b""
        fault = self.state.draw(kind)
        if self.state.latency_s:
            await asyncio.sleep(self.state.latency_s)
        if fault in BEFORE:
            return await self.refuse(fault)
        answer = await self.ask(head.raw + body)
        return await self.relay(answer, fault, has_body=kind != "head")

    async def refuse(self, fault: str) -> bool:
        """An answer of our own, or none."""
        if fault == "reset_early":
            return self.reset()
        code, name = (b"503 Slow Down", b"SlowDown") if fault == "slow_down" else (b"500 Oops", b"InternalError")
        body = BUSY % name
        self.writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)
        )
        await self.writer.drain()
        return True

    async def ask(self, request: bytes) -> Head:
        """Over the kept connection to the store, or a new one where that is gone."""
        for _ in range(2):
            if self.far is None:
                self.far = await asyncio.open_connection(*self.upstream, limit=1 << 20)
            reader, writer = self.far
            with contextlib.suppress(ConnectionError):
                writer.write(request)
                await writer.drain()
                head = await read_head(reader)
                while head is not None and head.first[1].startswith("1"):
                    head = await read_head(reader)
                if head is not None:
                    return head
            self.drop_far()
        raise ConnectionResetError("the store does not answer")

    async def relay(self, head: Head, fault: str | None, has_body: bool) -> bool:
        """The answer, whole or spoiled."""
        assert self.far is not None
        far, length = self.far[0], head.length if has_body and head.first[1] not in {"204", "304"} else 0
        if has_body and head.chunked:
            return await self.relay_chunked(head, far)
        if not length:
            self.writer.write(head.raw)
            await self.writer.drain()
            return True
        if fault is None:
            self.writer.write(head.raw)
            await self.copy(far, length)
            return True
        return await self.spoil(head, far, length, fault)

    async def spoil(self, head: Head, far: asyncio.StreamReader, length: int, fault: str) -> bool:
        """Half a body, then what the fault says; `slow` sends all of it, in pieces."""
        half = max(1, length // 2)
        if fault == "shorten":  # the worst: half a body that calls itself complete
            announced = f"content-length: {length}".encode()
            at = head.raw.lower().index(announced)
            raw = head.raw[:at] + f"content-length: {half}".encode() + head.raw[at + len(announced) :]
            self.writer.write(raw)
            await self.copy(far, half)
            self.drop_far()
            return True
        self.writer.write(head.raw)
        if fault == "slow":
            for part in range(10):
                await self.copy(far, length * (part + 1) // 10 - length * part // 10)
                await asyncio.sleep(self.state.slow_s / 10)
            return True
        await self.copy(far, half)
        if fault == "stall":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.reader.read(1), self.state.stall_s)
            return False
        return self.reset() if fault == "reset_late" else False

    async def copy(self, far: asyncio.StreamReader, length: int) -> None:
        """`length` bytes from the store to the client."""
        while length > 0:
            piece = await far.read(min(length, PIECE))
            if not piece:
                raise ConnectionResetError("the store broke off")
            self.writer.write(piece)
            await self.writer.drain()
            length -= len(piece)
            self.state.body_bytes += len(piece)

    async def relay_chunked(self, head: Head, far: asyncio.StreamReader) -> bool:
        """Piece by piece, with the sizes between them."""
        self.writer.write(head.raw)
        while True:
            line = await far.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            self.writer.write(line + await far.readexactly(size + 2))
            await self.writer.drain()
            if size == 0:
                return True

    def reset(self) -> bool:
        """RST instead of FIN."""
        lingering = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
        self.writer.transport.abort()
        return False

    def drop_far(self) -> None:
        """A connection with an unread rest of a body cannot be used again."""
        if self.far is not None:
            self.far[1].close()
            self.far = None


async def command(state: State, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One line in, one line out."""
    while line := await reader.readline():
        request = json.loads(line)
        if "faults" in request:
            state.configure(request["faults"])
        if request.get("reset"):
            for counter in (state.requests, state.faults, state.objects):
                counter.clear()
            state.body_bytes = 0
        writer.write(json.dumps(state.report()).encode() + b"\n")
        await writer.drain()
    writer.close()


async def main(listen: str, upstream: tuple[str, int]) -> None:
    """Until killed."""
    state = State()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(state, upstream, (reader, writer)).serve()

    door = await asyncio.start_server(client, listen, 0, limit=1 << 20, backlog=1024)
    control = await asyncio.start_server(lambda r, w: command(state, r, w), "127.0.0.1", 0)
    print(json.dumps([server.sockets[0].getsockname()[1] for server in (door, control)]), flush=True)
    await asyncio.gather(door.serve_forever(), control.serve_forever())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], (sys.argv[2], int(sys.argv[3]))))
