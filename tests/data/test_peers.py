"""Nodes that serve their caches to each other over real sockets: with peers that are dead, slow, wrong or strangers."""

import contextlib
import hashlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SequentialSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache, Peers
from stallwise.data.peers._membership import PeerNode, PeerRendezvous, rank_nodes
from stallwise.data.peers._protocol import (
    ANSWER,
    GREETING,
    MAGIC,
    NONCE_BYTES,
    REPLY,
    REQUEST,
    Connection,
    ETagCheck,
    PeerOp,
    PeerStatus,
    WireError,
    digest_of,
    proof,
    request,
)
from stallwise.errors import InputError
from tests.data.cache_box import BLOCK, bytes_of, entry_file, key_of, load, process, wait_until
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, content, objects
from tests.fuzz.strangers import replies
from tests.waiting import PATIENCE_S

SIZE = 5000
CHARGE = 2 * BLOCK


class Group:
    """Nodes on this machine that meet in one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.nodes: list[NodeCache] = []

    def node(self, limit_bytes: int = 10**7, name: str | None = None, **options: Any) -> NodeCache:
        peers = Peers(self.store, **{"timeout_s": PATIENCE_S, **options})
        cache = NodeCache(self.folder / (name or f"node{len(self.nodes)}"), limit_bytes, peers=peers)
        self.nodes.append(cache)
        for each in self.nodes:
            each.peers.refresh()  # type: ignore[union-attr]
        return cache

    def token(self) -> bytes:
        return PeerRendezvous(self.store, "default/0", 0, 0, is_leader=False).token()

    def register(self, identity: str, port: int) -> None:
        PeerRendezvous(self.store, "default/0", 0, 0, is_leader=False).register(identity, "127.0.0.1", port)
        for each in self.nodes:
            each.peers.refresh()  # type: ignore[union-attr]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    nodes = Group(tmp_path)
    yield nodes
    for node in nodes.nodes:
        node.peers.leave()  # type: ignore[union-attr]


def owner(nodes: list[NodeCache], number: int) -> NodeCache:
    return next(node for node in nodes if node.peers.route(key_of(number)).is_mine)  # type: ignore[union-attr]


def owned_by(node: NodeCache, count: int = 1) -> list[int]:
    mine = (n for n in range(10_000) if node.peers.route(key_of(n)).is_mine)  # type: ignore[union-attr]
    return [next(mine) for _ in range(count)]


def right(number: int) -> Callable[[bytes], bool | None]:
    """Whether bytes are the object's: what an ETag tells in earnest."""
    return lambda data: data == bytes_of(number, SIZE)


def never() -> bytes:
    raise AssertionError("the bucket is read")


def test_the_owner_is_asked_before_the_bucket_and_handed_what_it_lacks(group: Group) -> None:
    a, b = group.node(), group.node()
    numbers = range(40)
    assert {load(a, number) for number in numbers} == {"store"}
    sources = [b.load(key_of(number), SIZE, never, fits=right(number)).source for number in numbers]
    assert {"cache", "peer"} == set(sources)
    assert sources.count("cache") == len([n for n in numbers if owner([a, b], n) is b])
    stat = b.peers.stat()  # type: ignore[union-attr]
    assert (stat.members, stat.bypassed, stat.failures) == (2, 0, 0)
    assert stat.hits == sources.count("peer")
    assert stat.hit_bytes == stat.hits * SIZE


def test_guests_give_way_to_what_belongs_here(group: Group) -> None:
    """Room for 20 on each of two nodes and 32 objects: each is somewhere, whatever order they came in."""
    a, b = group.node(24 * CHARGE), group.node(24 * CHARGE)
    numbers = range(32)
    for number in numbers:
        load(a, number)
    assert a.stat().used_bytes <= a.stat().limit_bytes
    contents = [[node.contains(key_of(number)) for number in numbers] for node in (a, b)]
    for number in numbers:
        home = (a, b).index(owner([a, b], number))
        assert contents[home][number], "its owner has it"
    assert sum(contents[0]) == 24, "and the room that is left holds guests"
    for number in numbers:
        assert b.load(key_of(number), SIZE, never, fits=right(number)).data == bytes_of(number, SIZE)


def test_a_stranger_gets_nothing_and_leaves_nothing(group: Group) -> None:
    a, number = group.node(), 1
    load(a, number)
    member = a.peers.members[0]  # type: ignore[union-attr]
    for token in (b"", b"guess", b"\0" * 64):
        with socket.create_connection((member.host, member.port), 2) as line:
            magic, nonce = GREETING.unpack(line.recv(GREETING.size, socket.MSG_WAITALL))
            assert magic == MAGIC
            line.sendall(REPLY.pack(MAGIC, bytes(16), proof(token, b"client", nonce, bytes(16))))
            with contextlib.suppress(ConnectionError):
                line.sendall(
                    request(PeerOp.GET, key_of(number)) + request(PeerOp.PUT, key_of(2), b"poison") + b"poison"
                )
                assert line.recv(1) == b"", "not even an answer"
    assert not a.contains(key_of(2))


def test_whatever_a_stranger_sends_is_not_answered(group: Group, tmp_path: Path) -> None:
    a, number = group.node(), 1
    load(a, number)
    member = a.peers.members[0]  # type: ignore[union-attr]
    greeting = REPLY.pack(MAGIC, bytes(16), proof(b"guess", b"client", bytes(16), bytes(16)))
    poison = request(PeerOp.PUT, key_of(2), b"poison") + b"poison"
    seeds = [greeting, greeting + request(PeerOp.GET, key_of(number)) + poison]
    for sent, reply in replies(
        lambda: socket.create_connection((member.host, member.port), 60), seeds, tmp_path / "ran"
    ):
        assert reply == b"" or len(reply) == GREETING.size, sent
    assert not a.contains(key_of(2))
    b = group.node()
    given = next(n for n in owned_by(a, 50) if n != 2)
    load(a, given)
    assert b.load(key_of(given), SIZE, never, fits=right(given)).source == "peer"


def test_a_stranger_that_replays_or_says_nothing_is_let_go(group: Group) -> None:
    """What was heard on the wire is worth nothing on another connection: nonces differ."""
    a = group.node()
    member, token = a.peers.members[0], group.token()  # type: ignore[union-attr]
    with socket.create_connection((member.host, member.port), 2) as line:
        _, nonce = GREETING.unpack(line.recv(GREETING.size, socket.MSG_WAITALL))
        heard = REPLY.pack(MAGIC, bytes(16), proof(token, b"client", nonce, bytes(16)))
        line.sendall(heard)
        assert len(line.recv(32, socket.MSG_WAITALL)) == 32
    with socket.create_connection((member.host, member.port), 2) as line:
        line.recv(GREETING.size, socket.MSG_WAITALL)
        line.sendall(heard)
        with contextlib.suppress(ConnectionError):
            assert line.recv(1) == b""


@contextlib.contextmanager
def rogue(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of the test's making; its port."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = door.accept()
                    threading.Thread(target=_quietly, args=(serve, line), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield door.getsockname()[1]


def _quietly(serve: Callable[[socket.socket], None], line: socket.socket) -> None:
    with contextlib.suppress(OSError), line:
        serve(line)


def greet(line: socket.socket, token: bytes) -> None:
    line.sendall(GREETING.pack(MAGIC, bytes(16)))
    _, nonce, _ = REPLY.unpack(line.recv(REPLY.size, socket.MSG_WAITALL))
    line.sendall(proof(token, b"server", bytes(16), nonce))


def answering(token: bytes, answer: Callable[[], bytes]) -> Callable[[socket.socket], None]:
    """A peer with the token that answers every request with the same bytes."""

    def serve(line: socket.socket) -> None:
        greet(line, token)
        while line.recv(REQUEST.size, socket.MSG_WAITALL):
            line.sendall(answer())

    return serve


def silent(line: socket.socket) -> None:
    time.sleep(30)


def dripping(token: bytes) -> Callable[[socket.socket], None]:
    def serve(line: socket.socket) -> None:
        greet(line, token)
        line.sendall(ANSWER.pack(PeerStatus.HIT, SIZE, bytes(16)))
        while True:
            line.sendall(b"x")
            time.sleep(0.05)

    return serve


def rogues(token: bytes) -> dict[str, Callable[[socket.socket], None]]:
    good = bytes_of(1, SIZE)
    return {
        "says nothing": silent,
        "sends a byte now and then": dripping(token),
        "has another token": answering(b"other", bytes),
        "announces the wrong length": answering(token, lambda: ANSWER.pack(PeerStatus.HIT, 1 << 62, bytes(16))),
        "sends wrong bytes": answering(
            token, lambda: ANSWER.pack(PeerStatus.HIT, SIZE, digest_of(good)) + good[:-1] + b"\0"
        ),
        "closes": lambda line: None,
    }


@pytest.mark.parametrize("kind", list(rogues(b"")))
def test_a_bad_peer_costs_one_time_out_and_is_passed_over(group: Group, kind: str) -> None:
    a = group.node(timeout_s=0.5)
    with rogue(rogues(group.token())[kind]) as port:
        group.register("rogue", port)
        theirs = [n for n in range(100) if not a.peers.route(key_of(n)).is_mine]  # type: ignore[union-attr]
        assert load(a, theirs[0]) == "store", "and the right bytes: load checks"
        stat = a.peers.stat()  # type: ignore[union-attr]
        assert (stat.members, stat.bypassed, stat.failures) == (2, 1, 1)
        assert {load(a, number) for number in theirs[1:]} == {"store"}
        assert a.peers.stat().failures == 1, "nobody waits for it again"  # type: ignore[union-attr]


def test_a_dead_node_is_passed_over_and_a_stand_in_keeps_its_objects(group: Group) -> None:
    a, b, c = group.node(), group.node(), group.node()
    numbers = range(60)
    for number in numbers:
        load(a, number)
    c.peers._server.process.kill()  # type: ignore[union-attr]
    c.peers._server.process.wait()  # type: ignore[union-attr]
    sources = [load(b, number) for number in numbers]
    lost = [n for n in numbers if owner([a, b, c], n) is c]
    assert b.peers.stat().bypassed == 1  # type: ignore[union-attr]
    assert sources.count("store") <= len(lost)
    assert {b.load(key_of(number), SIZE, never, fits=right(number)).source for number in numbers} <= {"cache", "peer"}


def test_a_node_that_joins_takes_its_share_without_a_read_from_the_bucket(group: Group) -> None:
    a, b = group.node(), group.node()
    numbers = range(60)
    for number in numbers:
        load(a, number)
    c = group.node()
    assert [c.load(key_of(number), SIZE, never, fits=right(number)).data for number in numbers] == [
        bytes_of(n, SIZE) for n in numbers
    ]
    mine = [number for number in numbers if owner([a, b, c], number) is c]
    assert mine
    assert all(c.contains(key_of(number)) for number in mine)


def test_a_node_that_comes_back_has_its_identity_and_its_objects(group: Group) -> None:
    a, b = group.node(), group.node()
    for number in range(40):
        load(a, number)
    group.nodes.remove(b)
    b.peers.leave()  # type: ignore[union-attr]
    a.peers.refresh()  # type: ignore[union-attr]
    assert len(a.peers.members) == 1  # type: ignore[union-attr]
    again = group.node(name="node1")
    assert {m.id for m in again.peers.members} == {m.id for m in b.peers.members}  # type: ignore[union-attr]
    assert {again.load(key_of(number), SIZE, never, fits=right(number)).source for number in range(40)} == {
        "cache",
        "peer",
    }


def test_a_server_that_was_killed_is_started_again(group: Group) -> None:
    a, b = group.node(), group.node(bypass_s=0.2)
    number = owned_by(a)[0]
    load(a, number)
    a.peers._server.process.kill()  # type: ignore[union-attr]
    a.peers._server.process.wait()  # type: ignore[union-attr]
    assert load(b, owned_by(a, 2)[1]) == "store"
    a.peers.refresh()  # type: ignore[union-attr]
    b.peers.refresh()  # type: ignore[union-attr]
    assert b.load(key_of(number), SIZE, never, fits=right(number)).source == "peer"


def test_an_entry_gone_bad_on_a_peers_disk_is_caught_and_healed(group: Group) -> None:
    a, b = group.node(), group.node(bypass_s=0.05)
    number = owned_by(a)[0]
    load(a, number)
    path = entry_file(a, number)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert load(b, number) == "store", "the checksum is that of the bytes that were put in"
    wait_until(lambda: not a.contains(key_of(number)))
    b.clear()
    time.sleep(0.1)
    assert b.load(key_of(number), SIZE, lambda: bytes_of(number, SIZE)).data == bytes_of(number, SIZE)


RANK = """
import sys, time, torch.distributed as dist
from stallwise.data import NodeCache, Peers
cache = NodeCache(sys.argv[1], 10**6, peers=Peers(dist.HashStore()))
print(cache.peers._server.process.pid, flush=True)
time.sleep(100)
"""


def test_a_server_ends_with_its_rank(tmp_path: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    server = Path(f"/proc/{int(rank.stdout.readline())}")
    assert server.exists()
    rank.kill()
    rank.communicate()
    wait_until(lambda: not server.exists() or "Z" in (server / "stat").read_text().split()[2:3])


def _read_in_child(cache: NodeCache, numbers: list[int], back: Any) -> None:
    back.send([cache.load(key_of(number), SIZE, never, fits=right(number)).source for number in numbers])


def test_a_forked_worker_makes_its_own_connections(group: Group) -> None:
    import multiprocessing

    a, b = group.node(), group.node()
    for number in range(40):
        load(a, number)
    theirs = owned_by(a, 10)
    theirs = [number for number in theirs if number < 40]
    assert b.load(key_of(theirs[0]), SIZE, never, fits=right(theirs[0])).source == "peer", (
        "the parent has an open connection"
    )
    receiver, back = multiprocessing.get_context("fork").Pipe(duplex=False)
    with process(_read_in_child, b, theirs[1:], back):
        assert set(receiver.recv()) == {"peer"}
    assert b.peers.stat().hits == len(theirs), "the board counts for all"  # type: ignore[union-attr]


def test_a_peer_that_lies_about_its_checksum_is_caught_by_the_stores(
    group: Group, seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path
) -> None:
    """It has the token, sends other bytes of the right length and their checksum: the ETag does not fit."""
    bucket = new_bucket(objects(30, SIZE))
    a, lie = group.node(bypass_s=600), b"\0" * SIZE
    answer = ANSWER.pack(PeerStatus.HIT, SIZE, digest_of(lie)) + lie
    with rogue(answering(group.token(), lambda: answer)) as port:
        group.register("liar", port)
        dataset = BucketDataset(
            f"s3://{bucket}/",
            lambda data, name: (name, data),
            endpoint=proxy.endpoint,
            options=seaweed.options,
            cache=a,
            index_folder=tmp_path / "index",
        )
        loader = DataLoader(dataset, 10, sampler=Lookahead(SequentialSampler(dataset)), collate_fn=list)
        samples = [sample for batch in loader for sample in batch]
    assert [data == content(name, SIZE) for name, data in samples] == [True] * 30
    assert a.peers.stat().hits == 0  # type: ignore[union-attr]
    assert a.peers.stat().bypassed == 1  # type: ignore[union-attr]
    assert all(a.read(dataset.index.key(n)) == content(dataset.name(n), SIZE) for n in range(30))


def hand_over(node: NodeCache, token: bytes, key: bytes, data: bytes) -> int:
    """Put bytes into a node's cache as a member of its job does; the status of the reply."""
    member = next(m for m in node.peers.members if m.id == node.peers._identity)  # type: ignore[union-attr]
    connection = Connection(member.host, member.port, token, bytes(NONCE_BYTES), PATIENCE_S)
    try:
        return int(connection.put(key, data, time.monotonic() + PATIENCE_S))
    finally:
        connection.close()


def fits_of(number: int) -> Callable[[bytes], bool | None]:
    tags = ETagCheck()
    tags.learn(hashlib.md5(b"another").hexdigest(), b"another")  # noqa: S324
    version = hashlib.md5(bytes_of(number, SIZE)).hexdigest()  # noqa: S324
    return lambda data: tags.fits(version, data)


def test_what_a_peer_hands_over_is_held_against_the_objects_version(group: Group, tmp_path: Path) -> None:
    """A member put other bytes in; the owner, its next job and every other node read them as the object before."""
    a, b = group.node(), group.node(bypass_s=0.05)
    number, honest = owned_by(a, 2)
    assert hand_over(a, group.token(), key_of(number), b"\0" * SIZE)
    next_job = NodeCache(a.folder, a.limit_bytes)
    for cache in (a, next_job):
        assert cache.contains(key_of(number))
        assert cache.read(key_of(number)) is None, "nobody reads what nobody has checked"
    for cache in (b, a, next_job):
        kept = cache.load(key_of(number), SIZE, lambda: bytes_of(number, SIZE), fits=fits_of(number))
        assert kept.data == bytes_of(number, SIZE)
    assert next_job.read(key_of(number)) == bytes_of(number, SIZE)
    assert hand_over(a, group.token(), key_of(honest), bytes_of(honest, SIZE))
    assert next_job.load(key_of(honest), SIZE, never, fits=fits_of(honest)).source == "cache"
    assert a.read(key_of(honest)) == bytes_of(honest, SIZE), "once checked, it is an entry like any other"
    used = a.stat().used_bytes
    assert used == 2 * CHARGE
    assert (a.verify().bad, a.stat().used_bytes) == (0, used)


def test_while_versions_are_not_known_to_be_digests_the_bucket_is_read(group: Group) -> None:
    a = group.node()
    number = owned_by(a)[0]
    assert hand_over(a, group.token(), key_of(number), b"\0" * SIZE)
    right = bytes_of(number, SIZE)
    kept = a.load(key_of(number), SIZE, lambda: right, fits=lambda data: None)
    assert (kept.data, kept.source) == (right, "store")
    assert a.read(key_of(number)) == right, "and takes the place of what could not be checked"
    assert a.stat().used_bytes == CHARGE


def test_with_a_job_secret_the_store_holds_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLWISE_JOB_SECRET", "x" * 32)
    secretive = Group(tmp_path)
    a, b = secretive.node(), secretive.node()
    try:
        number = owned_by(a)[0]
        load(a, number)
        assert b.load(key_of(number), SIZE, never, fits=right(number)).source == "peer"
        left = secretive.store.get("stallwise/peers/default/0/token")
        for token in (left, b"", b"x" * 32):
            with pytest.raises((OSError, EOFError, WireError)):
                hand_over(a, token, key_of(number), b"poison")
        monkeypatch.delenv("STALLWISE_JOB_SECRET")
        with pytest.raises(InputError, match="Some ranks of this job have its secret"):
            secretive.node()
        with pytest.raises(InputError, match="at least 16 bytes, not 5"):
            secretive.node(secret=b"short")
    finally:
        for node in (a, b):
            node.peers.leave()  # type: ignore[union-attr]


def test_tags_that_are_no_digests_are_learnt() -> None:
    tags = ETagCheck()
    assert tags.fits('"' + 32 * "0" + '"', b"x") is None, "not yet known, and it does not fit: ask the bucket"
    tags.learn(32 * "0", b"x")
    assert tags.fits(32 * "0", b"x"), "so it is with bytes fresh from the bucket: encrypted, for example"
    digests = ETagCheck()
    digests.learn(hashlib.md5(b"x", usedforsecurity=False).hexdigest(), b"x")
    assert digests.fits(32 * "0", b"y") is False, "tags of this bucket are digests, and this is none"
    assert ETagCheck().fits("abc-3", b"x"), "of several parts"
    assert ETagCheck().fits(None, b"x")


def test_a_healthy_peer_of_an_encrypted_bucket_is_not_passed_over(group: Group) -> None:
    """Its ETags look like digests and are none (SSE-KMS): until that is known the bucket is asked, nobody is blamed."""
    a, b = group.node(), group.node()
    theirs = [key_of(number) for number in owned_by(b, 4)]
    for key in theirs:
        assert b.keep(key, content(key.hex(), SIZE))
    tags, version = ETagCheck(), 32 * "0"
    sources = []
    for key in theirs:
        data = content(key.hex(), SIZE)

        def fetch(data: bytes = data) -> bytes:
            tags.learn(version, data)
            return data

        sources.append(a.load(key, SIZE, fetch, fits=lambda data: tags.fits(version, data)).source)
    assert sources == ["store", "peer", "peer", "peer"]
    assert a.peers is not None
    assert (a.peers.stat().failures, a.peers.stat().bypassed) == (0, 0)


names = st.lists(st.text("abcdef", min_size=4, max_size=8), min_size=2, max_size=8, unique=True)


@given(names, st.integers(0, 2**32))
def test_only_what_a_node_had_moves_when_it_leaves(ids: list[str], number: int) -> None:
    members = [PeerNode(one, "", 1, slot) for slot, one in enumerate(ids)]
    order = rank_nodes(key_of(number), members)
    without = rank_nodes(key_of(number), [m for m in members if m is not order[0]])
    assert without == order[1:], "the second stands in, and all others keep their places"


@given(st.integers(2, 8))
def test_objects_are_dealt_out_evenly(nodes: int) -> None:
    members = [PeerNode(f"node{slot}", "", 1, slot) for slot in range(nodes)]
    firsts = [rank_nodes(key_of(number), members)[0].slot for number in range(1000)]
    for slot in range(nodes):
        assert abs(firsts.count(slot) / 1000 - 1 / nodes) < 5 * (1 / nodes / 1000) ** 0.5


def test_what_cannot_be_is_said(tmp_path: Path, group: Group) -> None:
    with pytest.raises(InputError, match="init_process_group"):
        Peers()
    with pytest.raises(InputError, match="no-evict"):
        NodeCache(tmp_path / "lru", 10**6, "lru", peers=Peers(group.store))
    used = group.node().peers
    with pytest.raises(InputError, match="belong to one NodeCache"):
        NodeCache(tmp_path / "second", 10**6, peers=used)
    assert group.token().decode() not in repr(used)
