"""Speeds read from records that jobs write, whatever the files are."""

import json
import os
import time
from pathlib import Path

import pytest

from stallwise.slurm.observation import ReadRequest, RecordReader, SpeedReading, steps_per_s


def record(folder: Path, steps: int, each_s: float) -> None:
    rank = folder / "parts/rank-00000"
    rank.mkdir(parents=True)
    rows = [[0, i, "as is", 0, i * each_s, each_s, True] for i in range(steps)]
    columns = ["rank", "step", "phase", "block", "start_s", "duration_s", "kept"]
    (rank / "steps-00000.json").write_text(json.dumps({"columns": columns, "rows": rows}))


def test_speed_is_read_from_the_record_a_job_writes(tmp_path: Path) -> None:
    assert steps_per_s(tmp_path / "none", 0.0) is None
    record(tmp_path / "runs/one", 50, 0.25)
    assert steps_per_s(tmp_path / "runs/one", 0.0) == pytest.approx(4.0)
    assert steps_per_s(tmp_path / "runs", 0.0) == pytest.approx(4.0)
    assert steps_per_s(tmp_path / "runs", 1e12) is None, "written before it got its nodes"
    record(tmp_path / "few", 3, 0.25)
    assert steps_per_s(tmp_path / "few", 0.0) is None


def test_records_are_read_with_care(tmp_path: Path) -> None:
    record(tmp_path / "real", 50, 0.25)
    part = tmp_path / "real/parts/rank-00000/steps-00000.json"
    part.rename(tmp_path / "elsewhere.json")
    part.symlink_to(tmp_path / "elsewhere.json")
    assert steps_per_s(tmp_path / "real", 0.0) is None, "links are not followed"
    part.unlink()
    os.mkfifo(part)
    assert steps_per_s(tmp_path / "real", 0.0) is None, "nor does a pipe stop it"
    part.unlink()
    part.write_bytes(b"x" * (9 << 20))
    assert steps_per_s(tmp_path / "real", 0.0) is None
    part.write_text('{"columns": ["a"], "rows": [[1]]}')
    assert steps_per_s(tmp_path / "real", 0.0) is None


def wait_for(reader: RecordReader) -> list[tuple[str, float]]:
    until = time.monotonic() + 200
    readings: list[SpeedReading] = []
    while reader.busy:
        assert time.monotonic() < until, "the reader is at it still"
        time.sleep(0.01)
        readings = reader.collect()
    return [(each.job, each.steps_per_s) for each in readings]


def test_records_are_read_beside_the_scheduling_and_never_for_long(tmp_path: Path) -> None:
    record(tmp_path / "a", 50, 0.25)
    requests = [ReadRequest("1", str(tmp_path / "a"), 0.0), ReadRequest("2", str(tmp_path / "none"), 0.0)]
    reader = RecordReader()
    reader.start(requests)
    assert reader.busy
    assert wait_for(reader) == [("1", 4.0)]
    # A file system that does not answer: the reader hangs after its first answer, in the middle of the second.
    answer = b'{"job":"1","since_s":0,"read_s":1,"steps_per_s":4}'
    chatty = RecordReader(
        command=("sh", "-c", f"echo warning; echo '{{}}'; echo '{answer.decode()}'; printf '\\377\\n'")
    )
    chatty.start(requests)
    assert wait_for(chatty) == [("1", 4.0)], "what is no answer is passed over"
    stuck = RecordReader(
        longest_s=5.0, command=("sh", "-c", f"echo '{answer.decode()}'; printf '{{\"job'; exec sleep 600")
    )
    stuck.start(requests)
    assert stuck.collect() == []
    assert stuck.busy, "collecting never waits"
    stuck.start(requests)  # not a second one beside it
    assert wait_for(stuck) == [("1", 4.0)]
    assert stuck.collect() == []
    absent = RecordReader(command=("/no/such/program",))
    absent.start(requests)
    assert not absent.busy, "what cannot be started holds up nothing"


def test_a_record_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    record(tmp_path / "a", 50, 0.25)
    record(tmp_path / "deep", 50, 0.25)
    part = tmp_path / "deep/parts/rank-00000/steps-00000.json"
    part.write_text('{"columns": ["phase"], "rows": ' + "[" * 100_000)
    names = ["/a\0b", str(tmp_path / "deep"), "x" * 5000, "\x1b]0;", "", str(tmp_path / "a")]
    reader = RecordReader()
    reader.start([ReadRequest(str(number), name, 0.0) for number, name in enumerate(names)])
    assert wait_for(reader) == [("5", 4.0)]


def test_a_record_that_hangs_is_not_the_first_of_the_next_round(tmp_path: Path) -> None:
    seen: list[bytes] = []
    answer = '{"job":"0","since_s":0,"read_s":1,"steps_per_s":0}'
    script = f"cat > {tmp_path}/requests; echo '{answer}'; exec sleep 600"
    reader = RecordReader(longest_s=3.0, command=("sh", "-c", script))
    for _ in range(2):
        reader.start([ReadRequest(str(number), "/r", 0.0) for number in range(4)])
        assert wait_for(reader) == []
        seen.append((tmp_path / "requests").read_bytes())
    assert [json.loads(each)[0]["job"] for each in seen] == ["0", "2"], "the second hung"


def test_durations_that_no_step_has_do_not_count(tmp_path: Path) -> None:
    record(tmp_path / "a", 50, 1e-300)
    assert steps_per_s(tmp_path / "a", 0.0) is None


def test_a_folder_without_end_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "a", 50, 0.25)
    monkeypatch.setattr("stallwise.slurm.observation._ENTRIES", 0)
    assert steps_per_s(tmp_path / "a", 0.0) is None
    monkeypatch.undo()
    assert steps_per_s(tmp_path / "a", 0.0) == pytest.approx(4.0)
