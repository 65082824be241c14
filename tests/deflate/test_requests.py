"""Requests to ranks: who receives them, what is not believed, and how long a job is measured."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.deflate.journal import leave_session
from stallwise.deflate.requests import (
    LONG_S,
    MEASURED_STEPS,
    SHORT_S,
    UNKNOWN_S,
    ListeningRank,
    RequestListener,
    SlowdownRequest,
    is_trusted,
    listening_ranks,
    measuring_time_s,
    read_request,
    remove_stale_files,
    request_folder,
    withdraw_request,
    write_request,
)
from stallwise.errors import InputError


def rank(step_s: float | None, batch: int | None = 8, world: int = 2) -> ListeningRank:
    return ListeningRank(pid=1, started=1, rank=0, world=world, batch=batch, step_s=step_s)


def test_a_look_is_a_whole_number_of_steps() -> None:
    assert measuring_time_s([rank(0.16)]) == pytest.approx(MEASURED_STEPS * 0.16)
    assert measuring_time_s([rank(0.01)]) == pytest.approx(SHORT_S), "fifty are over soon: it looks at more"
    assert measuring_time_s([rank(0.16), rank(0.1)]) == pytest.approx(MEASURED_STEPS * 0.16), "of the slowest"
    assert measuring_time_s([rank(4.0)]) == 8.0, "as many as there are in ten seconds"
    assert measuring_time_s([rank(60.0)]) == LONG_S
    assert measuring_time_s([rank(0.16), rank(None)]) == UNKNOWN_S
    for nobody in ([], [rank(0.16, batch=None)], [rank(0.16, world=1)]):
        assert measuring_time_s(nobody) == SHORT_S, "nothing hangs on it"


class TestRequestListener:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("STALLWISE_DOORS", str(tmp_path / "doors"))
        return tmp_path / "doors"

    def test_an_ask_is_heard_by_the_asked_and_by_all_below_it(self, folder: Path) -> None:
        listener = RequestListener(1, 2)
        listener.open(8, "")
        (rank,) = listening_ranks(folder)
        assert (rank.pid, rank.rank, rank.world, rank.batch) == (os.getpid(), 1, 2, 8)
        assert listener.strictest() is None
        write_request(folder, os.getppid(), SlowdownRequest(speed=0.5))
        assert RequestListener(1, 2).strictest() == SlowdownRequest(speed=0.5)
        write_request(folder, os.getpid(), SlowdownRequest(speed=0.25))
        assert RequestListener(1, 2).strictest() == SlowdownRequest(speed=0.25), "the strictest"
        for pid in (os.getpid(), os.getppid()):
            withdraw_request(folder, pid)
        assert RequestListener(1, 2).strictest() is None
        listener.close()
        assert list(folder.iterdir()) == []

    def test_a_rank_tells_how_long_its_steps_are(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        listener, now_s = RequestListener(1, 2), 100.0
        monkeypatch.setattr("stallwise.deflate.requests.time.monotonic", lambda: now_s)
        listener.open(8, "")
        assert next(listening_ranks(folder)).step_s is None
        for _ in range(8):
            now_s += 0.25
            listener.strictest()
        assert next(listening_ranks(folder)).step_s == pytest.approx(0.25)
        for _ in range(10):
            now_s += 0.5
            listener.strictest()
        assert next(listening_ranks(folder)).step_s == pytest.approx(0.5), "of the last"
        listener.open(8, "")
        assert next(listening_ranks(folder)).step_s == pytest.approx(0.5), "the next epoch's are like it"

    def test_the_folder_is_the_same_for_a_job_and_for_who_deflates_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch system gives every job a TMPDIR of its own, which whoever deflates it does not have."""
        monkeypatch.delenv("STALLWISE_DOORS", raising=False)
        folders = []
        for folder in ("/scratch/job7", "/scratch/job8"):
            monkeypatch.setenv("TMPDIR", folder)
            monkeypatch.setattr("tempfile.tempdir", None)
            folders.append(request_folder(1000))
        assert len(set(folders)) == 1

    def test_nonsense_asks_for_nothing(self, folder: Path) -> None:
        RequestListener(0, 1)
        for text in ("", "{", '{"speed": 0}', '{"speed": "half"}', "[]", '{"rank": 1}'):
            (folder / "77.ask.json").write_text(text)
            assert read_request(folder, 77) is None, text
        with pytest.raises(InputError, match="above 0 and at most 1"):
            SlowdownRequest(speed=1.5)

    def test_what_others_put_there_is_not_believed(self, folder: Path) -> None:
        RequestListener(0, 1).open(8, "")
        (known,) = listening_ranks(folder)
        path = folder / f"{os.getpid()}.door.json"
        for changed in (
            {"world": "2"},
            {"batch": 1.5},
            {"why": "\x1b[2J"},
            {"why": None},
            {"pid": [1]},
            {"step_s": -1.0},
            {"world": 10**400},
        ):
            path.write_text(json.dumps({**asdict(known), **changed}))
            assert list(listening_ranks(folder)) == [], changed
        for text in (
            "[" * 4096,
            '{"pid":' + "[" * 4000,
            "\0" * 99,
            '{"pid":' + "9" * 4000 + "}",
            "9" * 4096,
            "\ud800".encode("utf-8", "surrogatepass"),
        ):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            assert list(listening_ranks(folder)) == [], text[:9]
            (folder / "79.ask.json").write_bytes(path.read_bytes())
            assert read_request(folder, 79) is None
        path.unlink()
        os.mkfifo(path)
        assert list(listening_ranks(folder)) == [], "a pipe is not waited for"
        os.mkfifo(folder / "77.ask.json")
        assert read_request(folder, 77) is None
        (folder / "real").write_text('{"speed": 0.5}')
        (folder / "78.ask.json").symlink_to(folder / "real")
        assert read_request(folder, 78) is None
        assert is_trusted(folder, os.getuid())
        assert not is_trusted(Path("/proc/1/cwd"), os.getuid())
        write_request(folder, os.getpid(), SlowdownRequest(speed=0.5, started=1))
        assert read_request(folder, os.getpid()) is None, "asked was an earlier process of this number"

    def test_what_the_dead_have_left_is_swept(self, folder: Path) -> None:
        RequestListener(0, 1)
        (folder / f"{2**22 + 1}.door.json").write_text("{}")
        (folder / f"{2**22 + 1}.ask.json").write_text("{}")
        remove_stale_files(folder)
        assert list(folder.iterdir()) == []

    def test_a_folder_of_somebody_else_is_not_used(self, folder: Path) -> None:
        folder.symlink_to(folder.parent)
        listener = RequestListener(0, 1)
        listener.open(8, "")
        assert listener.strictest() is None
        assert not list(folder.parent.glob("*.door.json"))

    def test_a_folder_with_any_number_of_files_is_read_up_to_a_bound(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stallwise.deflate.requests._MAX_FILES", 3)
        RequestListener(0, 1)
        reads: list[Path] = []
        monkeypatch.setattr("stallwise.deflate.requests._read_small", lambda path: reads.append(path) or b"{}")
        for number in range(9):
            (folder / f"{number}.door.json").write_text("{}")
        assert list(listening_ranks(folder)) == []
        assert len(reads) == 3

    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda x: (
                st.lists(x)
                | st.dictionaries(
                    st.sampled_from(["pid", "started", "rank", "world", "batch", "why", "step_s", "speed"]), x
                )
            ),
            max_leaves=9,
        ).map(lambda value: json.dumps(value).encode())
        | st.binary(max_size=60)
    )
    def test_any_file_is_a_rank_or_nothing(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "1.door.json").write_bytes(data)
            (Path(name) / "1.ask.json").write_bytes(data)
            list(listening_ranks(Path(name)))
            read_request(Path(name), 1)


def test_a_keeper_leaves_the_control_group_of_a_login_session(tmp_path: Path) -> None:
    session = "/user.slice/user-0.slice/session-12.scope"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"4:cpu:/x\n0::{session}\n")
    (tmp_path / "groups" / session[1:]).mkdir(parents=True)
    leave_session(tmp_path, tmp_path / "groups")
    assert (tmp_path / "groups/cgroup.procs").read_text() == f"{os.getpid()}\n"
    (tmp_path / "groups/cgroup.procs").unlink()
    for text in ("0::/system.slice/a.service\n", "4:cpu:/session-1.scope\n", ""):
        (tmp_path / "self/cgroup").write_text(text)
        leave_session(tmp_path, tmp_path / "groups")
        assert not (tmp_path / "groups/cgroup.procs").exists()
