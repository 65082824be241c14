"""Who is in a round, by the coordinator's own clock; and strangers at its port."""

import asyncio
import contextlib
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.elastic import _membership as membership
from stallwise.elastic._coordinator import JobCoordinator, JobMembership, RefusedError
from stallwise.elastic._host import main
from stallwise.elastic._membership import JobRendezvous, JobTerms, RendezvousTiming
from stallwise.elastic.wire import (
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    AddValue,
    CloseJob,
    CompareSet,
    CoordinatorClient,
    CoordinatorLostError,
    CoordinatorRefusedError,
    CountKeys,
    FrameCodec,
    GetValue,
    Join,
    Reply,
    SetValue,
    WaitKeys,
    job_secret,
    proof,
)
from stallwise.errors import InputError
from tests.elastic.strangers import greetings
from tests.fuzz.strangers import replies, reply
from tests.waiting import until

KEY = b"a secret of the tests"


@dataclass
class Clock:
    """The coordinator's, moved by hand."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Job:
    """Machines by letter, as the coordinator sees them."""

    least: int = 1
    most: int = 4
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.membership = JobMembership(self.clock)

    def join(self, *names: str, program: str = "train", again: bool = False) -> None:
        for name in names:
            self.membership.join(Join(name, 2, self.least, self.most, 1.0, 4.0, program, again))

    def look(self, *names: str, after_s: float = 0.0) -> list[str]:
        """Let these, and nobody else, be heard of; returns their places."""
        self.clock.now_s += after_s
        for name in names:
            self.membership.look(name)
        return [self.place(name) for name in names]

    def place(self, name: str) -> str:
        return self.membership.status("", name, 0).place

    @property
    def members(self) -> str:
        return "".join(name for name, _ in self.membership.members)


def test_a_machine_that_was_away_is_out_until_it_joins_again() -> None:
    job = Job(least=1, most=1)
    job.join("a", "b")
    assert (job.members, job.place("b")) == ("a", "waiting")
    job.look("b", after_s=3.0)
    job.look("b", after_s=3.0)  # of a nothing was heard for six seconds
    assert (job.members, job.membership.round) == ("b", 1)
    assert job.look("a", "b") == ["out", "member"]
    job.membership.close(CloseJob("a", "done"))
    assert job.membership.closed is None
    job.join("a")
    assert job.look("a", "b") == ["waiting", "member"]


def test_a_round_begins_when_nobody_is_in_the_last_one() -> None:
    job = Job(least=2, most=3)
    job.join("a")
    job.look("a", after_s=2.0)
    assert job.membership.round == -1
    job.join("b")
    assert job.membership.round == -1  # last call
    job.look("a", "b", after_s=1.5)
    assert (job.members, job.membership.round) == ("ab", 0)
    job.join("c", "d", "a")
    assert job.look("a", "b", "c", after_s=2.0) == ["waiting", "member", "waiting"]
    job.join("b")
    assert (job.members, job.membership.round) == ("abc", 1)  # spares come last, in their order
    job.membership.leave("a")
    job.join("b", "c")
    job.look("b", "c", "d", after_s=1.5)
    assert job.members == "bcd"


@pytest.mark.parametrize("least", [2, 3])
def test_only_the_side_with_enough_machines_goes_on(least: int) -> None:
    """Three machines, of which two are cut off: the third begins a round only where one is enough."""
    job = Job(least=least, most=3)
    job.join("a", "b", "c")
    job.look("a", "b", "c")
    for _ in range(3):
        job.look("c", after_s=2.0)
    job.join("c")
    for _ in range(3):
        job.look("c", after_s=2.0)
    assert job.place("c") == "waiting"
    job.join("a", "b")
    job.look("a", "b", "c", after_s=1.5)
    assert (set(job.members), job.membership.round) == (set("abc"), 1)


def test_another_program_is_not_let_in_and_a_job_begins_anew_on_request() -> None:
    job = Job(least=1, most=1)
    job.join("a")
    with pytest.raises(RefusedError, match="runs train on 1:1 machines, not evaluate"):
        job.join("b", program="evaluate")
    job.membership.close(CloseJob("a", "done"))
    job.join("b", "a")
    assert [job.place(name) for name in "ab"] == ["out", "out"]
    job.join("b", again=True)
    assert (job.members, job.membership.round) == ("b", 1)


@dataclass
class Server:
    coordinator: JobCoordinator
    port: int

    def client(self, job: str = "job", key: bytes = KEY) -> CoordinatorClient:
        return CoordinatorClient("127.0.0.1", self.port, key, job, 10.0)

    def rendezvous(self, least: int = 1, most: int = 1) -> JobRendezvous:
        """A machine that is not taken for lost on a busy machine."""
        terms = JobTerms(job="job", least=least, most=most, program="train")
        timing = RendezvousTiming(last_call_s=0.0, heartbeat_s=0.1, heartbeats=600)
        return JobRendezvous("127.0.0.1", self.port, KEY, terms, 1, timing)


@pytest.fixture
def server() -> Iterator[Server]:
    with _serving() as started:
        yield started


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with _serving() as started:
        yield started


@contextlib.contextmanager
def _serving() -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    coordinator = JobCoordinator(KEY)
    listening = loop.run_until_complete(coordinator.start("127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield Server(coordinator, listening.sockets[0].getsockname()[1])

    async def end() -> None:
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    asyncio.run_coroutine_threadsafe(end(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def test_the_store_of_a_job(server: Server) -> None:
    with contextlib.closing(server.client()) as one, contextlib.closing(server.client("other")) as other:
        assert one.call(AddValue("n", 2)).number == 2
        assert one.call(AddValue("n", -5)).number == -3
        assert other.call(AddValue("n", 0)).number == 0
        assert one.call(CompareSet("k", b"", b"v")).value == b"v"
        assert one.call(CompareSet("k", b"x", b"w")).value == b"v"
        assert other.call(GetValue("k")).value is None
        assert not one.call(WaitKeys(["k", "later"])).number
        with contextlib.closing(server.client("other")) as another:
            setting = threading.Timer(0.1, another.call, (SetValue("later", b"1"),))
            setting.start()
            until(lambda: other.call(WaitKeys(["later"], 5.0)).number)
            setting.join(30)
        with pytest.raises(CoordinatorRefusedError, match="longer than the coordinator keeps"):
            one.call(SetValue("big", bytes(2 << 20)))
        assert one.call(GetValue("k")).value == b"v"


def test_a_machine_with_another_secret_is_told(server: Server) -> None:
    with pytest.raises(CoordinatorRefusedError, match="has another job secret than this machine"):
        server.client(key=b"some other secret")


@pytest.mark.parametrize("skew_s", [-10.0, 10.0])
def test_clocks_that_differ_are_said_and_change_nothing(
    skew_s: float, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's rendezvous loses a machine whose clock is five seconds ahead or behind."""
    plain = time.time
    first = server.rendezvous(least=2, most=2)
    monkeypatch.setattr(membership, "time", _SkewedTime(lambda: plain() + skew_s))
    second = server.rendezvous(least=2, most=2)
    joining = threading.Thread(target=second.next_round)
    joining.start()
    assert first.next_round().place == "member"
    joining.join(60)
    seen = second.status().serial
    until(lambda: second.status().serial > seen + 50)
    assert [one.status().place for one in (first, second)] == ["member", "member"]
    assert second.status().round == 0
    assert any("This machine's clock is 10.0 s" in record.message for record in caplog.records)
    for one in (first, second):
        one.close()


class _SkewedTime:
    """The module time with another wall clock."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.time = wall

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_a_new_coordinator_is_not_taken_for_the_old_one(server: Server) -> None:
    machine = server.rendezvous()
    machine.next_round()
    server.coordinator.identity = "anew"
    with pytest.raises(CoordinatorLostError, match="started anew"):
        until(lambda: machine.status() and False, 30)
    machine.close()


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os._exit, (77,)  # type: ignore[return-value]


def test_a_stranger_gets_a_greeting_and_nothing_else(shared_server: Server, tmp_path: Path) -> None:
    with contextlib.closing(shared_server.client("fuzzed")) as honest:
        seeds = greetings(b"another secret")
        port = shared_server.port
        for sent, reply in replies(lambda: socket.create_connection(("127.0.0.1", port), 60), seeds, tmp_path / "ran"):
            assert reply[: len(MAGIC)] in (MAGIC, b""), sent
            assert reply[len(MAGIC) + NONCE_BYTES :] in (b"", bytes(PROOF_BYTES)), sent
        assert honest.call(CountKeys()).number == 0
    assert shared_server.coordinator._jobs["fuzzed"].membership.round == -1
    assert not shared_server.coordinator._jobs["fuzzed"].membership._waiting


@settings(max_examples=2000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 60, deadline=None)
@given(data=st.binary(max_size=300), authentic=st.booleans())
def test_frames_that_make_no_sense_end_their_connection_alone(
    data: bytes, authentic: bool, shared_server: Server
) -> None:
    """Also of somebody who has the secret."""
    with (
        contextlib.closing(shared_server.client("a")) as honest,
        contextlib.closing(shared_server.client("b")) as other,
    ):
        honest.call(SetValue("k", b"v"))
        assert other._socket is not None
        frame = other._codec.encode(data)
        other._socket.sendall(frame if authentic else frame[:-1] + bytes([(frame[-1] + 1) % 256]))
        with contextlib.suppress(CoordinatorLostError, CoordinatorRefusedError):
            other.call(GetValue("k"))
        assert honest.call(GetValue("k")).value == b"v"


def test_pickled_objects_of_a_stranger_are_never_loaded(server: Server) -> None:
    reply(socket.create_connection(("127.0.0.1", server.port), 60), pickle.dumps(Payload()))
    with contextlib.closing(server.client()) as client:
        client.call(SetValue("torch.rendezvous.job", pickle.dumps(Payload())))
        machine = server.rendezvous()
        assert machine.next_round().place == "member"
        machine.close()


def test_many_idle_strangers_keep_nobody_out(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
        with contextlib.closing(server.client()) as client:
            assert client.call(AddValue("n", 1)).number == 1


def test_a_frame_is_not_taken_twice() -> None:
    session = proof(KEY, b"session", bytes(16), bytes(16))
    sends, receives = FrameCodec(session, b"c", b"s"), FrameCodec(session, b"s", b"c")
    frame = sends.encode(msgspec.json.encode(Reply()))
    mac, body = frame[4:36], frame[36:]
    receives.check(mac, body)
    with pytest.raises(Exception, match="without the right code"):
        receives.check(mac, body)


def test_the_coordinator_listens_on_loopback_and_reads_its_secret_from_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses: list[tuple[str, bytes]] = []
    monkeypatch.setattr(
        "stallwise.elastic._coordinator.serve",
        lambda address, port, secret, report: addresses.append((address, secret)),
    )
    file = tmp_path / "secret"
    file.write_text("sixteen characters\n")
    file.chmod(0o644)
    assert main(["coordinator", "--secret-file", str(file)]) == 2
    assert "can be read by others" in capsys.readouterr().err
    file.chmod(0o600)
    assert main(["coordinator", "--secret-file", str(file)]) == 0
    assert addresses == [("127.0.0.1", b"sixteen characters")]
    file.write_text("short")
    assert main(["coordinator", "--secret-file", str(file)]) == 2
    assert "fewer than 16 characters" in capsys.readouterr().err


def test_a_user_s_own_secret_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STALLWISE_JOB_SECRET", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    first = job_secret()
    assert len(first) == 64
    assert job_secret() == first
    assert (tmp_path / "stallwise" / "job-secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="cannot be read"):
        job_secret(tmp_path / "none")
