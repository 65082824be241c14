"""Every wire format and file reader of `data/` with bytes that nobody meant to write: an error of its own, or nothing.

`make test` runs a few hundred examples of each, always the same; `make soak` runs many more, and new ones. Executions
are counted by target (`-s` shows them).
"""

import asyncio
import contextlib
import math
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwise.data import NodeCache
from stallwise.data.cache import _index as cache_index
from stallwise.data.cache.cache import KEY_BYTES
from stallwise.data.cache.files import HANDED, HEADER, MAGIC, BadEntryError, EntryFiles, index_path
from stallwise.data.objects import helper
from stallwise.data.objects._fetch import FetchedObject
from stallwise.data.objects._names import LeftOut, _page, without_markers
from stallwise.data.objects.index import Index, _index, _IndexFile, _read
from stallwise.data.objects.store import ObjectBucket
from stallwise.data.peers import _protocol as protocol
from stallwise.data.peers._membership import node_in
from stallwise.data.peers._protocol import ANSWER, GREETING, REPLY, Connection, PeerOp, PeerServerSettings, PeerStatus
from stallwise.data.peers.server import PeerServer
from stallwise.data.shared import _memory as memory
from stallwise.data.shared import _protocol as staging
from stallwise.data.shared.server import StagingServer
from stallwise.errors import ObjectError, StallwiseError
from tests.data.cache_box import bytes_of, key_of, load
from tests.waiting import PATIENCE_S

TOKEN, SIZE = b"token", 300
FACTOR = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1
executions: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _report() -> Iterator[None]:
    yield
    print(f"\nexecutions: {dict(executions)}, {executions.total()} in all")


def examples(number: int) -> settings:
    return settings(
        max_examples=number * FACTOR,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


_NUMBERS = [0, 1, 7, 255, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
_NUMBERS += [
    int.from_bytes(struct.pack("<d", value), "little") for value in (-math.inf, math.inf, math.nan, -1e300, -1e9)
]
_changes = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.integers(0, 4000), st.integers(0, 255)),
        st.tuples(st.just("number"), st.integers(0, 4000), st.sampled_from(_NUMBERS)),
        st.tuples(st.just("cut"), st.integers(0, 4000), st.just(0)),
        st.tuples(st.just("insert"), st.integers(0, 4000), st.binary(min_size=1, max_size=9)),
    ),
    max_size=5,
)


def changed(data: bytes, changes: list[tuple[str, int, Any]]) -> bytes:
    """What somebody wrote, with some of its bytes, numbers and lengths changed."""
    for kind, at, value in changes:
        at %= len(data) + 1
        if kind == "byte":
            data = data[:at] + bytes([value]) + data[at + 1 :]
        elif kind == "number":
            data = data[:at] + struct.pack("<Q", value) + data[at + 8 :]
        elif kind == "cut":
            data = data[:at]
        else:
            data = data[:at] + value + data[at:]
    return data


def like(*seeds: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(changed, st.sampled_from(seeds), _changes) | st.binary(max_size=200)


# Peers: what a client sends to a server, and a server to a client.

_REQUESTS = [
    *(protocol.request(PeerOp.GET, key_of(number)) for number in (1, 2)),
    protocol.REQUEST.pack(PeerOp.GET, key_of(3), 5, bytes(16)),
    protocol.request(PeerOp.PUT, key_of(4), b"data") + b"data",
    protocol.request(PeerOp.PUT, key_of(1), bytes_of(1, SIZE)) + bytes_of(1, SIZE),
    protocol.request(PeerOp.CHECK, key_of(1)),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> NodeCache:
    folder = tmp_path_factory.mktemp("fuzz") / "cache"
    made = NodeCache(folder, 10**6)
    load(made, 1, SIZE)
    return made


@examples(150)
@given(sent=like(b"".join(_REQUESTS), *_REQUESTS), knows_token=st.booleans())
def test_a_peers_server(cache: NodeCache, sent: bytes, knows_token: bool) -> None:
    executions["peer server"] += 1

    async def serve() -> bytes:
        server = PeerServer(PeerServerSettings(str(cache.folder), 10**6, "", 0, TOKEN))
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(PATIENCE_S)
            reader, writer = await asyncio.open_connection(sock=theirs)
            task = asyncio.create_task(server._accept(reader, writer))
            received = await asyncio.to_thread(_talk, ours, sent, knows_token)
            await asyncio.wait_for(task, PATIENCE_S)
        await asyncio.gather(*server._tasks)
        server._cache.close()
        return received

    received = asyncio.run(serve())
    if not knows_token:
        assert received == b"", "no answer"
    assert cache.read(key_of(1)) in (None, bytes_of(1, SIZE))
    if cache.read(key_of(1)) is None:
        load(cache, 1, SIZE)


def _talk(line: socket.socket, sent: bytes, knows_token: bool) -> bytes:
    _, nonce = GREETING.unpack(line.recv(GREETING.size, socket.MSG_WAITALL))
    token = TOKEN if knows_token else b"guess"
    with contextlib.suppress(OSError):
        line.sendall(REPLY.pack(protocol.MAGIC, bytes(16), protocol.proof(token, b"client", nonce, bytes(16))))
        line.sendall(sent)
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_WR)
    received = b""
    with contextlib.suppress(ConnectionError):
        while more := line.recv(1 << 16):
            received += more
    return received


class Replies:
    """A server that greets as it should and then sends what a test says."""

    def __init__(self) -> None:
        self.body = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listening.accept()
                with line, contextlib.suppress(OSError, struct.error):
                    line.sendall(GREETING.pack(protocol.MAGIC, bytes(16)))
                    _, nonce, _ = REPLY.unpack(line.recv(REPLY.size, socket.MSG_WAITALL))
                    line.sendall(protocol.proof(TOKEN, b"server", bytes(16), nonce) + self.body)
                    line.shutdown(socket.SHUT_WR)
                    while line.recv(1 << 16):
                        pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(scope="module")
def replies() -> Iterator[Replies]:
    server = Replies()
    yield server
    server.close()


_DATA = bytes_of(1, 40)
_ANSWERS = [
    ANSWER.pack(PeerStatus.HIT, 40, protocol.digest_of(_DATA)) + _DATA,
    ANSWER.pack(PeerStatus.PENDING, 0, bytes(16)) + ANSWER.pack(PeerStatus.MISS, 0, bytes(16)),
    ANSWER.pack(PeerStatus.KEPT, 0, bytes(16)),
    ANSWER.pack(PeerStatus.HIT, 1 << 46, bytes(16)) + _DATA,
]


@examples(150)
@given(body=like(*_ANSWERS), size=st.sampled_from([0, 40]), puts=st.booleans())
def test_a_peers_client(replies: Replies, body: bytes, size: int, puts: bool) -> None:
    executions["peer client"] += 1
    replies.body = body
    connection = Connection("127.0.0.1", replies.port, TOKEN, bytes(16), 5)
    with contextlib.closing(connection), contextlib.suppress(OSError, EOFError, protocol.WireError):
        if puts:
            connection.put(key_of(1), b"data", _soon())
        else:
            # The limit is that of a large cache: an announced length must not be taken at its word.
            data = connection.get(key_of(1), size, 200 * 10**12, _soon())
            assert data is None or protocol.digest_of(data) == body[ANSWER.size - 16 : ANSWER.size] or len(data) != 40


def _soon() -> float:
    import time

    return time.monotonic() + 5


@examples(200)
@given(entry=like(b'{"id": "a", "host": "10.0.0.1", "port": 4000}', b"[]", b"[" * 1000), slot=st.integers(0, 9))
def test_a_node_in_the_jobs_store(entry: bytes, slot: int) -> None:
    executions["node entry"] += 1
    node = node_in(entry, slot)
    assert node is None or (node.id and 0 <= node.port < 1 << 16)


# Jobs of a node: what they send to the process that coordinates them, and batches.

_HELLO = staging.StagingHello("job", False, [("dataset", "1", "x")], 1000)
_MESSAGES: list[staging.StagingRequest] = [
    _HELLO,
    staging.StagingHello("job", True),
    staging.EpochStart(0, 4, "digest", 0),
    staging.BatchRequest(0, 0),
    staging.BatchReceipt(0, 0),
    staging.WorkRequest(False),
    staging.WorkRequest(True),
    staging.OrderRequest(0),
    staging.RoomRequest(0, 0, 100),
    staging.RoomRequest(0, 0, -(1 << 62)),
    staging.BatchUpload(0, 0),
    staging.BatchFailure(0, 0, "text"),
    staging.EpochStart(1 << 62, -5, "digest", 1 << 62),
    staging.BatchRequest(1 << 62, -1),
    staging.StatRequest(),
]
_messages = st.sampled_from([msgspec.msgpack.encode(message) for message in _MESSAGES])
_talks = st.lists(
    st.tuples(st.integers(0, 2), st.builds(changed, _messages, _changes) | _messages, st.booleans()), max_size=14
)


@examples(200)
@given(talk=_talks)
def test_the_coordinator_of_a_group(talk: list[tuple[int, bytes, bool]]) -> None:
    """Any messages of any clients in any order: the server goes on, and gives the descriptors back."""
    executions["staging server"] += 1
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("")
    listening.listen()
    server = StagingServer(listening)
    clients: list[socket.socket] = []
    for _ in range(3):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(listening.getsockname())
        client.setblocking(False)
        server._accept()
        clients.append(client)
    file = os.memfd_create("fuzz")
    os.write(file, np.arange(8).tobytes())
    for number, data, has_file in [(0, msgspec.msgpack.encode(_HELLO), False), *talk]:
        if not data:
            continue
        try:
            right = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", file, file))] if has_file else []
            clients[number].sendmsg([data], right)
        except OSError:
            continue
        for key, _ in server._waits.select(0):
            if key.data is not None and key.data in server._clients:
                server._receive(key.data)
        server._settle()
        with contextlib.suppress(OSError):
            clients[number].recv(1 << 17)
    for client in clients:
        client.close()
    for each in list(server._clients):
        server._disconnect(each)
    assert (server._coordinator, server._orders, server._jobs) == (None, {}, {})
    server._waits.close()
    listening.close()
    os.close(file)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@examples(200)
@given(changes=_changes.filter(bool), head=st.binary(max_size=40))
def test_a_batch_in_shared_memory(changes: list[tuple[str, int, Any]], head: bytes) -> None:
    """Its lengths; the pickle itself is left alone, because a changed one is another program."""
    executions["batch"] += 1
    parts = memory.pack_batch([np.arange(100), "text"])
    whole = bytearray(b"".join(bytes(part).ljust(-(-len(part) // 64) * 64, b"\0") for part in parts))
    first = len(parts[0])
    changed_head = changed(bytes(whole[:first]), changes)[:first].ljust(first, b"\0")
    if head:
        changed_head = head[:first].ljust(first, b"\0")
    lengths = struct.unpack_from(f"<{(first - 4) // 8}Q", changed_head, 4)
    if lengths[0] != len(parts[1]):
        whole[64:] = b"." + bytes(len(whole) - 65)  # what is read as a pickle then must be none
    whole[:first] = changed_head
    file = os.memfd_create("fuzz")
    os.write(file, bytes(whole))
    try:
        with contextlib.suppress(EOFError, StallwiseError):
            memory.read_batch(file)
    except Exception as error:
        if "pickle" not in type(error).__module__ and not isinstance(error, (IndexError, ValueError)):
            raise
    finally:
        os.close(file)


# The helper that reads the store.


class _Store:
    bucket = ObjectBucket("file:///tmp")

    def get(self, ref: Any) -> FetchedObject:
        return FetchedObject(b"data", 0.0, 1)


def framed(message: Any) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(4, "little") + data


_GETS = [framed(helper._Get("name", 4, None, None)), framed(helper._Get("name", None, "tag", 3)) * 2, b"\xff" * 8]


@examples(150)
@given(sent=like(*_GETS))
def test_the_helpers_requests(sent: bytes) -> None:
    executions["helper"] += 1
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        helper._serve(theirs, _Store())  # type: ignore[arg-type]
        assert theirs.fileno() == -1, "closed"


@examples(150)
@given(
    sent=like(framed(helper._Reply(4)) + b"data", framed(helper._Reply(error="gone", kind="ObjectError")), b"\xff" * 8)
)
def test_the_helpers_replies(sent: bytes) -> None:
    executions["helper's rank"] += 1
    rank = helper.StoreHelper(ObjectBucket("file:///tmp"), 0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        rank._connection = lambda: ours  # type: ignore[method-assign]
        with contextlib.suppress(ObjectError, StallwiseError):
            rank.get(helper.ObjectRef("name"))


# Files: entries, packs, the index of a cache, the index of a bucket, a listing.

_ENTRIES = [
    HEADER.pack(magic, key_of(1), SIZE, xxhash.xxh3_128_digest(bytes_of(1, SIZE))) + bytes_of(1, SIZE)
    for magic in (MAGIC, HANDED)
]


@pytest.fixture(scope="module")
def entry_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[EntryFiles, Path]:
    folder = tmp_path_factory.mktemp("entries")
    digits = key_of(1).hex()
    (folder / digits[0]).mkdir()
    return EntryFiles(str(folder)), folder / digits[0] / digits


@examples(200)
@given(data=like(*_ENTRIES), fits=st.sampled_from([None, True, False]))
def test_an_entry(entry_files: tuple[EntryFiles, Path], data: bytes, fits: bool | None) -> None:
    executions["entry"] += 1
    files, path = entry_files
    path.write_bytes(data)
    try:
        read = files.read(key_of(1), lambda _: fits)
    except BadEntryError:
        return
    assert read is None or HEADER.unpack(data[: HEADER.size])[3] == xxhash.xxh3_128_digest(read)
    if data.startswith(HANDED):
        assert (read is not None) is (fits is True)


@pytest.fixture(scope="module", params=["no-evict", "lru", "packed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("ledger") / "cache"
    filled = NodeCache(folder, 10**6, request.param)
    for number in range(20):
        load(filled, number, SIZE)
    filled.close()
    return folder, request.param


def _signed(page: bytes) -> bytes:
    """With the checksum that belongs to the header."""
    size = cache_index._HEADER.size
    return page[:size] + struct.pack("<Q", xxhash.xxh3_64_intdigest(page[:size])) + page[size + 8 :]


_records = st.lists(
    st.tuples(st.integers(1, 19), st.sampled_from([0, 8, 16, 24]), st.sampled_from(_NUMBERS)), max_size=4
)


@examples(40)
@given(changes=_changes, records=_records, signs=st.booleans())
def test_the_index_of_a_cache(
    made: tuple[Path, Any], changes: list[tuple[str, int, Any]], records: list[tuple[int, int, int]], signs: bool
) -> None:
    """Whatever is in it: every object comes out right, and the index is sound again."""
    executions["cache index"] += 1
    folder, policy = made
    path = index_path(folder)
    whole = bytearray(path.read_bytes())
    size = cache_index._HEADER.size + 8
    for number, at, value in records:  # the record of one of the objects
        place = whole.find(struct.pack("<QQ", *struct.unpack(">QQ", key_of(number))))
        if place >= 0:
            whole[place + at : place + at + 8] = struct.pack("<Q", value)
    head = changed(bytes(whole[:size]), [(kind, at % 120, value) for kind, at, value in changes]).ljust(size, b"\0")[
        :size
    ]
    table = bytes(whole[size:])
    path.write_bytes((_signed(head) if signs else head) + table)
    cache = NodeCache(folder, 10**6, policy)
    try:
        assert {load(cache, number, SIZE) for number in range(20)} <= {"cache", "store"}
        assert cache.verify().bad == 0
        assert cache.stat().entries == 20
    finally:
        cache.close()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "cache"
    filled = NodeCache(folder, 10**6, "packed")
    for number in range(20):
        load(filled, number, SIZE)
    filled.close()
    return folder


@examples(60)
@given(changes=_changes, recounts=st.booleans())
def test_a_pack(packed: Path, changes: list[tuple[str, int, Any]], recounts: bool) -> None:
    executions["pack"] += 1
    path = packed / "packs" / "000000"
    path.write_bytes(changed(path.read_bytes(), changes))
    cache = NodeCache(packed, 10**6, "packed")
    try:
        if recounts:
            cache.verify()
        assert {load(cache, number, SIZE) for number in range(20)} <= {"cache", "store"}
    finally:
        cache.close()


@examples(200)
@given(
    data=like(
        msgspec.msgpack.encode(_IndexFile(2, "s3://b", "*", 0.0, 1, [("a", 5, "tag"), ("b", None, None)], (1, 2, "x"))),
        msgspec.msgpack.encode(
            [2, "s3://b", "*", 0.0, 1, [["a", 1 << 63, "tag"], ["b", -(1 << 63), None]], [1, 2, "x"]]
        ),
    )
)
def test_the_index_of_a_bucket(entry_files: tuple[EntryFiles, Path], data: bytes) -> None:
    executions["bucket index"] += 1
    path = entry_files[1].parent.parent / "fuzz.index"
    path.write_bytes(data)
    kept = _read(path)
    if kept is not None:
        index = _index(ObjectBucket("s3://b"), kept)
        assert isinstance(index, Index)
        assert [len(index.key(number)) for number in range(len(index))] == [KEY_BYTES] * len(kept.objects)


_LISTING = (
    b"<?xml version='1.0'?><ListBucketResult xmlns='http://s3'><EncodingType>url</EncodingType><Contents><Key>p/a%2Fb</Key>"
    b"<Size>5</Size><ETag>&quot;x&quot;</ETag></Contents><IsTruncated>true</IsTruncated><NextContinuationToken>t"
    b"</NextContinuationToken></ListBucketResult>"
)


@examples(200)
@given(body=like(_LISTING, _LISTING.replace(b">5<", b">99999999999999999999<"), _LISTING.decode().encode("utf-16")))
def test_a_listing(body: bytes) -> None:
    executions["listing"] += 1
    try:
        objects, _ = _page(body, "p/")
    except (ValueError, SyntaxError):
        return
    left_out = LeftOut()
    kept = without_markers([each for each in objects if left_out.is_sample(each[0])], lambda name: True, left_out)
    assert all(size is not None and 0 <= size < 1 << 62 for _, size, _ in kept)
