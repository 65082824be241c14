"""The controller's database: it survives, and a copy changes nothing."""

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.cluster.live import PastWait
from stallwise.errors import InputError
from stallwise.slurm.state import ControllerState, is_damage
from tests.slurm.test_plan import running, waiting


def test_the_state_survives_and_says_whose_it_is(tmp_path: Path) -> None:
    state = ControllerState.open(tmp_path, "partition gpu of c")
    known = running("1", {"n0": 4}, speeds=(1.0, 0.5), required=("n0",))
    state.save([known])
    state.note_wait(PastWait(gang=4, level="rack", time_s=1.0, wait_s=2.0))
    state.close()
    again = ControllerState.open(tmp_path, "partition gpu of c")
    assert again.rows() == {"1": known}
    assert again.waits() == (PastWait(gang=4, level="rack", time_s=1.0, wait_s=2.0),)
    assert again.connection.execute("pragma journal_mode").fetchone() == ("wal",)
    again.save([replace(known, phase="done", since_s=0.0)])
    again.forget(10 * 86400.0)
    assert again.rows() == {}
    again.close()
    with pytest.raises(InputError, match="is of partition gpu of c, not of"):
        ControllerState.open(tmp_path, "partition other of c")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        ControllerState.open(tmp_path / "file", "x")


def filled(folder: Path, jobs: int = 400) -> None:
    state = ControllerState.open(folder, "a")
    state.save([running(str(number), {"n0": 4}, required=("n0",) * 20) for number in range(jobs)])
    state.close()


def damage(folder: Path, kind: str) -> None:
    path = folder / "schedule.sqlite"
    data = bytearray(path.read_bytes())
    if kind == "header":
        data[:100] = b"no database" * 9 + b"."
    elif kind == "page":
        data[4096 * 5 : 4096 * 9] = os.urandom(4096 * 4)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("kind", ["header", "page", "half"])
def test_a_damaged_file_is_set_aside_and_the_state_begins_anew(tmp_path: Path, kind: str) -> None:
    filled(tmp_path)
    damage(tmp_path, kind)
    with pytest.raises(InputError, match="cannot be read"):
        ControllerState.copied(tmp_path)
    state = ControllerState.open(tmp_path, "a")
    assert state.rows() == {}
    assert state.damaged is not None
    assert state.damaged.exists(), "nothing is thrown away"
    state.save([waiting("1", 2)])
    state.close()
    again = ControllerState.open(tmp_path, "a")
    assert (set(again.rows()), again.damaged) == ({"1"}, None)
    again.close()


def test_only_the_last_damaged_files_are_kept(tmp_path: Path) -> None:
    for _ in range(7):
        (tmp_path / "schedule.sqlite").write_bytes(b"no database" * 200)
        ControllerState.open(tmp_path, "a").close()
    assert len(list(tmp_path.glob("schedule.damaged-*.sqlite"))) == 4


def test_content_that_does_not_decode_counts_as_damage(tmp_path: Path) -> None:
    state = ControllerState.open(tmp_path, "a")
    state.save([waiting("1", 2)])
    for change in ("placed = '{'", "speeds = '[[[['", "phase = 'asleep'", "gang = 'x'"):
        state.connection.execute(f"update jobs set {change}")  # noqa: S608 - words above
        with pytest.raises(sqlite3.DatabaseError) as error:
            state.rows()
        assert is_damage(error.value)
    state.rebuild()
    assert state.rows() == {}
    state.close()


def test_after_a_full_disk_or_a_lock_the_next_save_succeeds(tmp_path: Path) -> None:
    state = ControllerState.open(tmp_path, "a")
    state.save([waiting("1", 2)])
    (pages,) = state.connection.execute("pragma page_count").fetchone()
    state.connection.execute(f"pragma max_page_count = {pages}")
    many = [waiting(str(number), 2, required=("n0",) * 100) for number in range(500)]
    with pytest.raises(sqlite3.OperationalError, match="full") as full:
        state.save(many)
    assert not is_damage(full.value)
    state.connection.execute("pragma max_page_count = 1000000")
    other = sqlite3.connect(tmp_path / "schedule.sqlite", isolation_level=None)
    other.execute("begin immediate")
    state.connection.execute("pragma busy_timeout = 10")
    with pytest.raises(sqlite3.OperationalError, match="locked") as locked:
        state.save(many)
    assert not is_damage(locked.value)
    other.close()
    state.save(many)
    assert len(state.rows()) == 500
    state.close()


def test_times_follow_a_clock_that_is_set_and_no_other(tmp_path: Path) -> None:
    state = ControllerState.open(tmp_path, "a")
    known = running("1", {"n0": 4}, lease_s=5000.0)
    state.save([known, waiting("2", 2)])
    state.note_wait(PastWait(gang=4, level="rack", time_s=900.0, wait_s=2.0))
    assert state.follow_clock(1000.0, 100.0, "b") == 0.0
    assert state.follow_clock(1600.5, 700.0, "b") == 0.0, "kept right, not set"
    assert state.rows()["1"] == known
    assert state.follow_clock(1700.0 + 86400.0, 800.0, "b") == pytest.approx(86400.0)
    moved = state.rows()["1"]
    assert moved.lease_s == pytest.approx(5000.0 + 86400.0)
    assert moved.granted_s == pytest.approx(known.granted_s + 86400.0)
    assert (moved.submit_s, moved.not_before_s) == (known.submit_s, 0.0), "Slurm's word, and none"
    assert state.waits()[0].time_s == pytest.approx(900.0 + 86400.0)
    assert state.follow_clock(1800.0, 900.0, "b") == pytest.approx(-86400.0)
    assert state.rows()["1"].lease_s == pytest.approx(5000.0)
    # After a restart of the machine nothing tells how long it was off; but time does not go back.
    assert state.follow_clock(90000.0, 5.0, "c") == 0.0
    assert state.follow_clock(90001.0, 6.0, "c") == 0.0
    assert state.follow_clock(500.0, 5.0, "d") < -2
    assert state.rows()["1"].since_s <= 500.0
    state.close()


def test_a_copy_of_the_state_changes_nothing(tmp_path: Path) -> None:
    state = ControllerState.open(tmp_path, "a")
    state.save([waiting("1", 2)])
    copy = ControllerState.copied(tmp_path)
    copy.save([waiting("2", 2)])
    assert set(state.rows()) == {"1"}
    assert set(copy.rows()) == {"1", "2"}
    copy.close()
    state.close()
    with sqlite3.connect(tmp_path / "schedule.sqlite") as file:
        assert file.execute("pragma integrity_check").fetchone() == ("ok",)
    file.close()
