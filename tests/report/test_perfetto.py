"""The timeline file: strictly in its format, everything in its place, and read by Perfetto itself."""

import copy
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.report.perfetto import Lanes, export, node_shifts
from stallwise.run import Run
from tests.report import perfetto, trace_format
from tests.report.conftest import pictures
from tests.report.made_runs import APART_S, BLOCKS, PHASES, RANKS, STEPS_PER_BLOCK, make_full_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STEPS = BLOCKS * STEPS_PER_BLOCK * len(PHASES)
Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("full") / "run"
    make_full_run(folder)
    return Run.open(folder)


@pytest.fixture
def document(full: Run, tmp_path: Path) -> dict[str, Any]:
    return trace_format.read(export(full, tmp_path / "trace.json").path)


def by_track(document: dict[str, Any]) -> dict[tuple[str, str], Events]:
    """(process, thread) by their names -> events."""
    events = document["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] != "M":
            tracks[processes[event["pid"]], threads[event["tid"]]].append(event)
    return tracks


def test_the_file_is_in_its_format(document: dict[str, Any]) -> None:
    trace_format.check(document)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: e.update(dur=e["dur"] + 1e6), "crosses"),
        (lambda e: e.update(dur=-1.0), "dur"),
        (lambda e: e.update(ts=e["ts"] + 1e9), "not sorted"),
        (lambda e: e.update(tid=7), "without a name"),
        (lambda e: e.pop("cat"), "cat"),
    ],
)
def test_the_check_itself_can_fail(document: dict[str, Any], change: Any, said: str) -> None:
    broken = copy.deepcopy(document)
    change(next(event for event in broken["traceEvents"] if event["name"] == "step 3"))
    with pytest.raises((AssertionError, KeyError), match=said):
        trace_format.check(broken)


def test_everything_stands_on_its_own_track(document: dict[str, Any]) -> None:
    tracks = by_track(document)
    of_rank = {thread: len(events) for (process, thread), events in tracks.items() if process == "rank 0 · node 0"}
    assert of_rank == {
        "phases": BLOCKS * len(PHASES),
        "steps": STEPS,
        "data wait": STEPS,
        "copy": 1,
        "forward": 1,
        "backward": 1,
        "layers": 3,
        "collectives": 1,
        "collectives (2)": 1,
        "optimizer": 1,
        "events": 3,
        "events (2)": 1,
        "worker 0": STEPS,
        "worker 1": STEPS,
    }
    assert {process for process, _ in tracks} == {f"rank {n} · node {n // 2}" for n in range(RANKS)}


def test_what_a_slice_says(document: dict[str, Any]) -> None:
    tracks = by_track(document)
    step = tracks["rank 1 · node 0", "steps"][2]
    assert (step["name"], step["dur"]) == ("step 2", pytest.approx(1e5))
    assert step["args"] == {
        "phase": "as is", "block": 0, "kept": True, "samples": 32, "data_wait_ms": 20.0, "own_collectives_ms": 2.0,
    }  # fmt: skip
    phase = tracks["rank 1 · node 0", "phases"][4]
    assert (phase["name"], phase["cat"]) == ("replay from host · block 1", "replay from host")
    assert phase["args"] == {"block": 1, "steps": 4, "kept": 3, "differs": "what replay from host changes"}
    assert phase["dur"] == pytest.approx(4e5)
    batch = tracks["rank 1 · node 0", "worker 1"][1]
    assert batch["args"] == {
        "samples": 16, "read_bytes": 500_000, "phase": "as is", "block": 0, "cpu_ms": 50.0, "blocked_ms": 4.0,
        "runqueue_wait_ms": 1.0,
    }  # fmt: skip
    notice = next(e for e in tracks["rank 1 · node 0", "events"] if e["ph"] == "i")
    assert (notice["name"], notice["args"]["detail"]) == ("preemption notice", "a moment, no duration")


def test_a_span_that_outlasts_its_parent_by_the_resolution_of_events_is_cut(document: dict[str, Any]) -> None:
    outer, _, last = by_track(document)["rank 0 · node 0", "layers"]
    assert last["name"] == "block.last"
    assert last["ts"] + last["dur"] == pytest.approx(outer["ts"] + outer["dur"], abs=1e-3)


def test_nodes_are_put_on_one_axis_by_the_ends_of_their_steps(full: Run, document: dict[str, Any]) -> None:
    home, away = node_shifts(full)
    assert (home.node, home.shift_s) == (0, 0.0)
    assert away.shift_s == pytest.approx(APART_S, abs=1e-6)
    assert away.steps == 2 * BLOCKS * STEPS_PER_BLOCK, "only steps in which all ranks exchange"
    tracks = by_track(document)
    ends = [
        tracks[f"rank {n} · node {n // 2}", "steps"][1]["ts"] + tracks[f"rank {n} · node {n // 2}", "steps"][1]["dur"]
        for n in range(RANKS)
    ]
    assert max(ends) - min(ends) < 1.0
    assert document["otherData"]["clocks"][1]["shift_s"] == pytest.approx(APART_S)


def test_no_time_is_below_zero(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run", began_s=0.25)  # workers start half a second before
    document = trace_format.read(export(Run.open(tmp_path / "run"), tmp_path / "trace.json", (2, 3)).path)
    trace_format.check(document)
    assert min(e["ts"] for e in document["traceEvents"] if e["ph"] != "M") >= 0


def test_a_compressed_file_holds_the_same(full: Run, document: dict[str, Any], tmp_path: Path) -> None:
    packed = export(full, tmp_path / "trace.json.gz")
    assert trace_format.read(packed.path) == document
    assert packed.events == sum(e["ph"] != "M" for e in document["traceEvents"])


def test_one_rank_alone(full: Run, tmp_path: Path) -> None:
    document = trace_format.read(export(full, tmp_path / "t.json", (3,)).path)
    trace_format.check(document)
    assert {process for process, _ in by_track(document)} == {"rank 3 · node 1"}
    with pytest.raises(InputError, match=r"has no rank 9. It holds ranks 0 to 3"):
        export(full, tmp_path / "t.json", (9,))


def test_a_run_that_was_never_joined(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run", joined=False)
    trace_format.check(trace_format.read(export(Run.open(tmp_path / "run"), tmp_path / "t.json").path))


def test_a_file_that_cannot_be_written_leaves_nothing(full: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "no" / "trace.json", tmp_path / "file" / "trace.json"):
        with pytest.raises(InputError, match="cannot be written to"):
            export(full, path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


times = st.integers(0, 200)


@example(pieces=[(0, 2), (0, 8), (1, 3), (1, 14)], give=5)
@given(st.lists(st.tuples(times, times).map(lambda p: (min(p), max(p)))), st.sampled_from([0, 5]))
def test_lanes_never_cross_and_move_nothing_by_more_than_they_may(pieces: list[tuple[int, int]], give: int) -> None:
    lanes = Lanes(give)
    placed = defaultdict(list)
    for start, end in sorted(pieces, key=lambda p: (p[0], -p[1])):
        lane, begin, stop = lanes.place(start, end)
        assert start <= begin <= stop
        assert begin - start <= give * len(pieces)
        assert abs(stop - end) <= give * len(pieces)
        assert give or (begin, stop) == (start, end)
        placed[lane].append((begin, stop))
    for found in placed.values():
        assert found == sorted(found, key=lambda p: p[0])
        for first, one in enumerate(found):
            for other in found[first + 1 :]:
                assert other[0] >= one[1] or other[1] <= one[1]


def test_a_real_profile(profiled: Path, tmp_path: Path) -> None:
    run = Run.open(profiled)
    document = trace_format.read(export(run, tmp_path / "trace.json").path)
    trace_format.check(document)
    tracks = by_track(document)
    for rank in (0, 1):
        steps = tracks[f"rank {rank}", "steps"]
        assert len(steps) == run.table("steps")["rank"].equals(rank).sum()
        for track in ("worker 0", "data wait", "forward", "backward", "layers", "optimizer", "collectives"):
            assert tracks[f"rank {rank}", track], track
        assert {e["cat"] for e in tracks[f"rank {rank}", "phases"]} >= set(PHASES)
        for step in steps:
            inside = [
                e for e in tracks[f"rank {rank}", "phases"]
                if e["ts"] <= step["ts"] and step["ts"] + step["dur"] <= e["ts"] + e["dur"] + 1e-3
            ]  # fmt: skip
            assert [(e["cat"], e["args"]["block"]) for e in inside] == [(step["args"]["phase"], step["args"]["block"])]


def test_perfetto_reads_all_of_it(profiled: Path, full: Run, browser: "Browser", tmp_path: Path) -> None:
    real = export(Run.open(profiled), tmp_path / "real.json.gz").path
    made = export(full, tmp_path / "made.json.gz").path
    with perfetto.running(browser) as viewer:
        for path in (real, made):
            viewer.open(path)
            assert viewer.query("select name, value from stats where severity != 'info' and value > 0") == []
            assert slices_of(viewer) == slices_in(trace_format.read(path))
        viewer.picture(pictures() / "perfetto.png")


def slices_of(viewer: perfetto.Perfetto) -> dict[tuple[str, str], Counter[tuple[str, int, int]]]:
    """What Perfetto has: (process, thread) -> slices by name, begin and duration in nanoseconds."""
    found: dict[tuple[str, str], Counter[tuple[str, int, int]]] = defaultdict(Counter)
    for row in viewer.query(
        "select process.name as process, thread.name as thread, slice.name as name, ts, dur from slice "
        "join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)"
    ):
        found[row["process"], row["thread"]][row["name"], row["ts"], row["dur"]] += 1
    return found


def slices_in(document: dict[str, Any]) -> dict[tuple[str, str], Counter[tuple[str, int, int]]]:
    """What the file holds, likewise."""
    return {
        track: Counter((e["name"], round(e["ts"] * 1000), round(e.get("dur", 0) * 1000)) for e in events)
        for track, events in by_track(document).items()
    }
