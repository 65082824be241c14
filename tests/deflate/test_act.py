"""Deflating real processes in real control groups (version 1), and everything that can go wrong with it."""

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stallwise.deflate import act, journal
from stallwise.deflate.act import Amount, DeflationRequest, TargetGoneError
from stallwise.deflate.processes import PROC, busy_cores, tree_of
from stallwise.deflate.requests import SlowdownRequest, read_request
from stallwise.errors import InputError
from tests.conftest import Cli
from tests.deflate.groups import (
    CPU,
    IDLE,
    MEMORY,
    PATIENCE_S,
    busy_pair,
    group,
    home_of,
    made_for,
    need_version_1,
    process,
    until,
)
from tests.sentences import coded

HALF = DeflationRequest(cpu=Amount(amount=0.5), look_s=0.2)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    need_version_1()
    monkeypatch.setenv(journal.STATE_VARIABLE, str(tmp_path / "deflated"))
    monkeypatch.setenv("STALLWISE_DOORS", str(tmp_path / "doors"))
    yield
    for left in journal.all_records():
        journal.undo_record(left)


def nothing_left(pid: int) -> bool:
    return not made_for(pid) and not list(journal.all_records())


def test_a_process_with_its_children_is_held_and_has_everything_back() -> None:
    with busy_pair() as pid:
        homes = {one: home_of(one) for one in tree_of(pid)}
        done = act.deflate(str(pid), HALF)
        assert done.cores == 0.5
        (made,) = made_for(pid)
        assert (made / "cpu.cfs_period_us").read_text().strip() == "10000"
        assert (made / "cpu.cfs_quota_us").read_text().strip() == "5000"
        assert {int(one) for one in (made / "cgroup.procs").read_text().split()} == set(homes)
        time.sleep(0.2)
        assert busy_cores(lambda: tree_of(pid), 1.0) < 0.55
        assert act.undo(str(pid)) == ()
        assert {one: home_of(one) for one in homes} == homes
        assert nothing_left(pid)


def test_one_alone_in_its_group_is_limited_there_and_the_same_words_come_back() -> None:
    with process(IDLE) as pid, group(f"stallwise-test-{pid}") as own:
        (own / "cpu.cfs_quota_us").write_text("123456")
        (own / "cgroup.procs").write_text(str(pid))
        done = act.deflate(str(pid), DeflationRequest(cpu=Amount(part=0.5), look_s=0.05))
        assert done.had_cores == pytest.approx(1.23456)
        assert (own / "cpu.cfs_quota_us").read_text() == "6173\n"
        act.deflate(str(pid), DeflationRequest(cpu=Amount(part=0.25), look_s=0.05))
        assert (own / "cpu.cfs_quota_us").read_text() == "3086\n", "of what it had, not of what was left"
        act.undo(str(pid))
        assert (own / "cpu.cfs_quota_us").read_text() == "123456\n"
        assert (own / "cpu.cfs_period_us").read_text() == "100000\n"
        assert nothing_left(pid)
        with pytest.raises(InputError, match="is not deflated"):
            act.undo(str(pid))
        (CPU / "cgroup.procs").write_text(str(pid))


def test_a_group_by_name_with_memory() -> None:
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name) as own, group(name, MEMORY) as memory:
        (own / "cgroup.procs").write_text(str(pid))
        before = (memory / "memory.limit_in_bytes").read_text()
        done = act.deflate(
            name, DeflationRequest(cpu=Amount(amount=0.3), memory=Amount(amount=64 * 2**20), look_s=0.05)
        )
        assert done.groups == (str(own), str(memory))
        assert (memory / "memory.limit_in_bytes").read_text() == f"{64 * 2**20}\n"
        assert (own / "cpu.cfs_quota_us").read_text() == "3000\n"
        act.undo(str(own))  # by path: the same group
        assert (memory / "memory.limit_in_bytes").read_text() == before
        assert (own / "cpu.cfs_quota_us").read_text() == "-1\n"
        (CPU / "cgroup.procs").write_text(str(pid))


def test_memory_that_processes_hold_is_not_taken() -> None:
    with process("x = bytearray(80_000_000)\nimport time\ntime.sleep(600)") as pid:
        until(lambda: psutil.Process(pid).memory_info().rss > 80_000_000)
        with pytest.raises(InputError, match=r"less than its processes hold.*Leave it at least \d+ MiB"):
            act.deflate(str(pid), DeflationRequest(memory=Amount(amount=50 * 2**20)))
        assert nothing_left(pid)


@pytest.mark.parametrize("keeper", ["lives", "is killed"])
def test_a_deflated_job_that_is_killed_leaves_nothing(keeper: str) -> None:
    with process(IDLE) as pid:
        act.deflate(str(pid), HALF)
        (known,) = journal.all_records()
        assert known.keeper is not None
        if keeper == "is killed":
            kill_keeper()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if keeper == "is killed":
            assert made_for(pid)
            act.sweep()
        until(lambda: nothing_left(pid))


def test_a_time_ends_it() -> None:
    with process(IDLE) as pid:
        home = home_of(pid)
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.05, for_s=0.5))
        until(lambda: nothing_left(pid))
        assert home_of(pid) == home


def kill_keeper() -> None:
    (known,) = journal.all_records()
    assert known.keeper is not None
    os.killpg(known.keeper, signal.SIGKILL)  # both of its processes


def keepers() -> set[int]:
    """Both processes of the keeper."""
    (known,) = journal.all_records()
    return everyone(known.keeper)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid) if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


@pytest.mark.parametrize("killed", ["guard", "child", "one after the other"])
def test_a_keeper_that_is_killed_is_replaced_and_gives_everything_back(killed: str) -> None:
    with process(IDLE) as pid:
        home = home_of(pid)
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.05, for_s=3600))
        until(lambda: len(keepers()) == 2)
        (first,) = journal.all_records()
        before = keepers()
        assert first.keeper is not None
        victims = {"guard": {first.keeper}, "child": before - {first.keeper}}.get(killed, set(list(before)[:1]))

        def kill_and_wait(these: set[int]) -> None:
            """Until others are there in their place: a process that was killed dies when it gets a core."""
            for one in these:
                os.kill(one, signal.SIGKILL)
            # One look at a time: a victim that dies between two would hide that nobody has replaced it yet.
            until(lambda: len(now := everyone(first.keeper)) == 2 and not these & now)

        kill_and_wait(victims)
        if killed == "one after the other":
            kill_and_wait(before - victims)
        assert made_for(pid)
        with journal.lock_target(str(pid)):
            (known,) = journal.all_records()
            assert known.keeper in everyone(first.keeper)
            replace(known, until_boot_s=0.0).write()
        until(lambda: nothing_left(pid))  # nobody ran a command
        assert home_of(pid) == home
        until(lambda: not everyone(first.keeper))


def everyone(group: int | None) -> set[int]:
    return {one.pid for one in psutil.process_iter() if _group_of(one.pid) == group}


@pytest.mark.parametrize("jump_s", [1e6, -1e6])
def test_a_clock_that_is_set_neither_ends_nor_prolongs_it(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    with process(IDLE) as pid:
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.05, for_s=3600))
        now_s = time.time()
        monkeypatch.setattr("time.time", lambda: now_s + jump_s)
        act.sweep()
        (known,) = journal.all_records()
        assert not known.over
        assert replace(known, until_boot_s=known.until_boot_s - 3600).over  # type: ignore[operator]


def test_a_time_ends_it_also_without_a_keeper() -> None:
    with process(IDLE) as pid:
        home = home_of(pid)
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.05, for_s=3600))
        kill_keeper()
        act.sweep()
        assert made_for(pid), "its time has not come"
        (known,) = journal.all_records()
        replace(known, until_boot_s=0.0).write()
        act.sweep()
        assert nothing_left(pid)
        assert home_of(pid) == home


def test_a_tree_in_several_groups_goes_back_to_each() -> None:
    program = "import os, time\nos.fork() and os.fork()\ntime.sleep(600)"
    with process(program) as pid, group(f"stallwise-test-{pid}") as own:
        until(lambda: len(tree_of(pid)) == 3)
        (own / "cgroup.procs").write_text(str(tree_of(pid)[1]))
        homes = {one: home_of(one) for one in tree_of(pid)}
        assert len(set(homes.values())) == 2
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        assert len({home_of(one) for one in homes}) == 1
        act.undo(str(pid))
        assert {one: home_of(one) for one in homes} == homes
        (CPU / "cgroup.procs").write_text(str(tree_of(pid)[1]))


def test_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo during the look waits for the deflation, and finds it whole."""
    looking, really = threading.Event(), busy_cores

    def measure(members: Callable[[], Sequence[int]], duration_s: float) -> float:
        looking.set()
        return really(members, duration_s)

    monkeypatch.setattr(act, "busy_cores", measure)
    with process(IDLE) as pid:
        home = home_of(pid)
        slow = threading.Thread(
            target=act.deflate, args=(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.5))
        )
        slow.start()
        assert looking.wait(PATIENCE_S)
        act.undo(str(pid))
        slow.join(PATIENCE_S)
        assert not slow.is_alive()
        assert nothing_left(pid)
        assert home_of(pid) == home
        assert not list(journal.state_folder().iterdir())


def test_a_second_deflation_that_fails_leaves_the_first() -> None:
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name) as outer, group(f"{name}/in") as inner:
        (inner / "cgroup.procs").write_text(str(pid))
        act.deflate(f"{name}/in", DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        (before,) = journal.all_records()
        # A quota that the kernel refuses: planned by what the outer group had, which is made smaller meanwhile.
        target = act._target(f"{name}/in", PROC)
        (plan,) = act._plans(target, DeflationRequest(cpu=Amount(amount=0.8)), PROC)
        (outer / "cpu.cfs_quota_us").write_text("60000")
        with pytest.raises(InputError, match=r"a group around it has a smaller one\. Nothing was changed"):
            act._apply(replace(before, cores=0.8), target, [plan], PROC)
        assert (inner / "cpu.cfs_quota_us").read_text() == "5000\n"
        assert list(journal.all_records()) == [before]
        act.undo(f"{name}/in")
        assert (inner / "cpu.cfs_quota_us").read_text() == "-1\n"
        (CPU / "cgroup.procs").write_text(str(pid))


def test_a_part_of_memory_is_of_what_the_groups_around_leave() -> None:
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name, MEMORY) as outer, group(f"{name}/in", MEMORY) as inner:
        (outer / "memory.limit_in_bytes").write_text(str(2**30))
        (inner / "cgroup.procs").write_text(str(pid))
        done = act.deflate(str(pid), DeflationRequest(memory=Amount(part=0.5)))
        assert (done.had_memory_bytes, done.memory_bytes) == (2**30, 2**29)
        act.undo(str(pid))
        (MEMORY / "cgroup.procs").write_text(str(pid))


def test_a_process_and_a_group_of_its_number_have_a_file_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("4242", "/4242", "/a/b", "/a~b", "/")
    assert len({journal.DeflationRecord(target=name, started=None).path for name in names}) == len(names)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(journal.STATE_VARIABLE, "here")
    assert journal.state_folder() == tmp_path / "here"


def test_a_group_that_vanishes() -> None:
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name):
        with pytest.raises(InputError, match="There is no process in"):
            act.deflate(name, DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        (CPU / name / "cgroup.procs").write_text(str(pid))
        act.deflate(name, DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        kill_keeper()
        (CPU / "cgroup.procs").write_text(str(pid))
        (CPU / name).rmdir()
        said = act.undo(name)
        assert "is gone" in said[0]
        assert not list(journal.all_records())
    with pytest.raises(InputError, match="no run, no process and no control group"):
        act.deflate(name, HALF)


def test_undo_goes_home_to_what_is_left_of_home() -> None:
    with process(IDLE) as pid, process(IDLE) as other, group(f"stallwise-test-{pid}") as own:
        for one in (pid, other):
            (own / "cgroup.procs").write_text(str(one))
        act.deflate(str(pid), HALF)
        assert made_for(pid)[0].parent == own, "another process shares its group: one is made inside"
        act.undo(str(pid))
        assert f":cpu:/{own.name}\n" in home_of(pid)
        for one in (pid, other):
            (CPU / "cgroup.procs").write_text(str(one))


def test_whoever_deflates_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    with busy_pair() as pid:
        homes = {one: home_of(one) for one in tree_of(pid)}
        program = (
            "import sys\nfrom stallwise.deflate import act\n"
            "act.deflate(sys.argv[1], act.DeflationRequest(cpu=act.Amount(amount=0.5), look_s=0.0))"
        )
        for delay_s in (0.0, 0.001, 0.003):
            who = subprocess.Popen([sys.executable, "-c", program, str(pid)])
            until(lambda: bool(made_for(pid)) or bool(list(journal.all_records())))
            time.sleep(delay_s)
            who.kill()
            who.wait(PATIENCE_S)
            act.undo(str(pid))
            assert {one: home_of(one) for one in homes} == homes
            assert not made_for(pid)


def test_a_quota_below_the_least_is_one_sentence_and_code_2(cli: Cli) -> None:
    with process(IDLE) as pid:
        said = cli("deflate", str(pid), "--cpu", "0.05cores", code=2).stderr
        assert "the kernel's minimum is 1 ms. Leave it at least 0.1 cores, or use a period of 20 ms." in said
        assert "Options: --cpu, --period." in said
        assert said.count("\n") == 1
        assert nothing_left(pid)


def test_no_process_is_code_1(cli: Cli) -> None:
    with process(IDLE) as pid:
        pass
    said = cli("deflate", str(pid), "--cpu", "50%", code=1).stderr
    assert said == f"There is no process {pid}: it has ended. Nothing was changed.\n"


DROPPED = """
import os, sys
from stallwise.deflate import act
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    act.deflate(sys.argv[1], act.DeflationRequest(cpu=act.Amount(part=0.5)))
except act.InputError as error:
    print(error)
"""
"""All is imported before rights are dropped: the user need not be able to read Python's folders, wherever they lie."""


def test_without_rights_nothing_is_changed() -> None:
    with process(IDLE) as pid, tempfile.TemporaryDirectory() as theirs:
        home = home_of(pid)
        os.chown(theirs, 65534, 65534)
        command = [sys.executable, "-c", DROPPED, str(pid)]
        environment = {**os.environ, journal.STATE_VARIABLE: theirs}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", timeout=PATIENCE_S)
        assert done.stdout.startswith("No right to write /sys/fs/cgroup/cpu"), done
        assert "Nothing was changed" in done.stdout
        assert home_of(pid) == home
        assert list(Path(theirs).iterdir()) == []


def test_the_command_says_what_it_did_and_gives_it_back(cli: Cli) -> None:
    with busy_pair() as pid:
        home = home_of(pid)
        done = coded(cli("deflate", str(pid), "--cpu", "0.25cores", "--json").stdout)
        assert done["cores"] == 0.25
        assert done["busy_cores"] > 0, "both spin, whoever else does"
        assert done["not_asked"]["text"] == "no rank of a stallwise.elastic session is in it"
        assert str(pid) in cli("deflate").stdout
        assert cli("deflate", str(pid), "--undo").stdout == f"{pid} has everything back.\n"
        assert cli("deflate").stdout == "Nothing is deflated.\n"
        assert home_of(pid) == home


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("1", "--cpu", "50%"), "cannot be deflated"),
        (("{pid}",), "Say what to leave it"),
        (("{pid}", "--cpu", "much"), "a part like 50% or a number of cores"),
        (("{pid}", "--cpu", "0%"), "must leave something"),
        (("{pid}", "--gpu-share", "50%"), "no control group takes them"),
        (("{pid}", "--cpu", "50%", "--period", "2s"), "1 ms to 1 s, not 2000 ms. Option: --period"),
        (("/", "--cpu", "50%"), "holds the whole machine"),
        (("{pid}", "--undo"), "is not deflated"),
        (("{pid}", "--speed", "50%", "--no-cooperative"), "Drop one of the two"),
        (("{pid}", "--speed", "50%"), "No rank can take a smaller part of the batch"),
        (("nowhere", "--cpu", "50%"), "no run, no process and no control group"),
    ],
)
def test_what_cannot_be_done_is_said(ask: Cli, words: tuple[str, ...], sentence: str) -> None:
    with process(IDLE) as pid:
        assert sentence in ask("deflate", *(word.format(pid=pid) for word in words), code=2).stderr
        assert nothing_left(pid)


def test_ranks_in_it_are_asked_and_asked_no_more(tmp_path: Path) -> None:
    """A rank's door is there; what it does with an ask is `test_cooperation`'s."""
    doors = tmp_path / "doors"
    program = (
        "from stallwise.deflate.requests import RequestListener\nRequestListener(1, 2).open(8, '')\nwhile True: pass"
    )
    with process(program) as pid:
        until(lambda: doors.is_dir() and bool(list(doors.glob("*.door.json"))))
        # A hundredth of a core, so that it is less than the process gets beside any others.
        done = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.01), look_s=0.5, period_us=100_000))
        assert done.asked == (1,)
        assert done.speed is not None
        assert read_request(doors, pid) == SlowdownRequest(speed=done.speed)
        assert done.busy_cores is not None
        assert done.speed == pytest.approx(0.01 / done.busy_cores)
        bare = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.1), cooperative=False))
        assert (bare.speed, bare.not_asked) == (None, "not wanted")
        assert read_request(doors, pid) is None
        assert act.deflate(str(pid), DeflationRequest(speed=0.5)).speed == 0.5
        act.deflate(str(pid), DeflationRequest(memory=Amount(amount=2**33)))
        assert read_request(doors, pid) == SlowdownRequest(speed=0.5), "memory alone changes nothing about it"
        act.undo(str(pid))
        assert read_request(doors, pid) is None
        assert nothing_left(pid)
        with group(f"stallwise-test-{pid}") as own:
            (own / "cgroup.procs").write_text(str(pid))
            assert act.deflate(own.name, DeflationRequest(speed=0.5, look_s=0.0)).asked == (1,), "ranks of a group, too"
            assert read_request(doors, pid) == SlowdownRequest(speed=0.5)
            act.undo(own.name)
            assert read_request(doors, pid) is None
            (CPU / "cgroup.procs").write_text(str(pid))


RANK = "from stallwise.deflate.requests import RequestListener\nRequestListener(1, 2).open(8, '')\n"


def listens(doors: Path, pid: int) -> bool:
    return (doors / f"{pid}.door.json").exists()


def test_what_it_used_is_known_before_anybody_is_asked_and_the_stricter_ask_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = tmp_path / "doors"
    with process(RANK + "while True: pass") as pid:
        until(lambda: listens(doors, pid))
        assert act.deflate(str(pid), DeflationRequest(speed=0.5, look_s=1.0)).speed == 0.5
        (known,) = journal.all_records()
        assert known.busy_cores is not None, "with a part of its batch it would use less"
        monkeypatch.setattr(act, "busy_cores", None)  # nobody looks a second time
        loose = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.9 * known.busy_cores), period_us=100_000))
        assert loose.speed == 0.5, "its quota alone would ask for 90 %"
        tight = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.3 * known.busy_cores), period_us=100_000))
        assert tight.speed == pytest.approx(0.3)
        assert act.deflate(str(pid), DeflationRequest(speed=0.8)).speed == 0.8, "what is said now is taken"
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.3), cooperative=False))
        assert read_request(doors, pid) is None


@pytest.mark.parametrize(("seen", "known"), [(0.199, None), (0.1, 0.1)], ids=["held by its quota", "free below it"])
def test_idle_is_no_answer(seen: float, known: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two bursts nothing is seen: the next deflation looks again, under the quota that holds by then."""
    looks = iter((0.0, seen))
    monkeypatch.setattr(act, "busy_cores", lambda *_: next(looks))
    with process(RANK + "import time\ntime.sleep(600)") as pid:
        until(lambda: listens(tmp_path / "doors", pid))
        assert act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.2))).not_asked == "it was idle"
        done = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.1), period_us=100_000))
        assert (done.speed is None) is (seen <= 0.1), "it works now, and is asked if it would use more"
        (record,) = journal.all_records()
        assert record.busy_cores == known, "what the quota let it is not what it would use"


def test_a_second_deflation_keeps_the_time_of_the_first(cli: Cli) -> None:
    with process(IDLE) as pid:
        act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0, for_s=3600))
        (first,) = journal.all_records()
        done = act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.3), look_s=0.0))
        (second,) = journal.all_records()
        assert first.until == second.until == done.until is not None
        assert "until" in cli("deflate").stdout
        assert (
            act.deflate(str(pid), DeflationRequest(cpu=Amount(amount=0.3), look_s=0.0, for_s=60)).until != first.until
        )


def test_a_quota_that_no_longer_fits_around_is_as_much_as_fits() -> None:
    """Version 1 refuses a quota above that of the group around, which may have been cut meanwhile."""
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name) as outer, group(f"{name}/in") as inner:
        (inner / "cgroup.procs").write_text(str(pid))
        (inner / "cpu.cfs_quota_us").write_text("80000")
        act.deflate(f"{name}/in", DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        (outer / "cpu.cfs_quota_us").write_text("60000")
        (said,) = act.undo(f"{name}/in")
        assert said.endswith("had a quota of 0.8 cores, and a group around it has 0.6 now: it has as much.")
        assert (inner / "cpu.cfs_quota_us").read_text() == "60000\n"
        assert (inner / "cpu.cfs_period_us").read_text() == "100000\n"
        assert not list(journal.all_records())
        (CPU / "cgroup.procs").write_text(str(pid))


@pytest.mark.parametrize("doing", ["undo", "deflate"])
def test_what_the_kernel_refuses_is_a_sentence_and_the_quota_stays(doing: str) -> None:
    name = f"stallwise-test-{os.getpid()}"
    with process(IDLE) as pid, group(name) as own:
        (own / "cgroup.procs").write_text(str(pid))
        act.deflate(name, DeflationRequest(cpu=Amount(amount=0.5), look_s=0.0))
        kill_keeper()
        (known,) = journal.all_records()
        wrong = [replace(hold, before={**hold.before, "cpu.cfs_quota_us": "1"}) for hold in known.holds]
        replace(known, holds=tuple(wrong), until_boot_s=0.0).write()
        with pytest.raises(InputError, match=r"Invalid argument|refuses this quota"):
            act.undo(name) if doing == "undo" else act.deflate(name, HALF)
        assert (own / "cpu.cfs_quota_us").read_text() == "5000\n", "not without one"
        replace(known, until_boot_s=0.0).write()
        act.undo(name)
        (CPU / "cgroup.procs").write_text(str(pid))


def test_the_keeper_lives_by_a_relative_path_and_one_that_cannot_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Path(act.__file__).parents[2]
    program = (
        "import sys\nfrom stallwise.deflate import act\n"
        "act.deflate(sys.argv[1], act.DeflationRequest(cpu=act.Amount(amount=0.5), look_s=0.0))"
    )
    with process(IDLE) as pid:
        # A Python that finds the package by that path alone.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source.name, sysconfig.get_path("purelib")])}
        command = [getattr(sys, "_base_executable", sys.executable), "-c", program, str(pid)]
        subprocess.run(command, env=environment, cwd=source.parent, check=True, timeout=PATIENCE_S)
        (known,) = journal.all_records()
        assert known.keeper is not None
        act.undo(str(pid))
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(InputError, match=r"keeper that would undo it .* does not start .*Nothing was changed"):
            act.deflate(str(pid), HALF)
        assert nothing_left(pid)


def test_who_was_asked_by_a_deflation_that_failed_is_asked_no_more(tmp_path: Path) -> None:
    doors, name = tmp_path / "doors", f"stallwise-test-{os.getpid()}"
    waits = RANK + "import time\ntime.sleep(600)"
    with group(name) as own, process(waits) as one, process(waits) as two:
        until(lambda: listens(doors, one) and listens(doors, two))
        (own / "cgroup.procs").write_text(str(one))
        act.deflate(name, DeflationRequest(speed=0.5, look_s=0.0))
        (before,) = journal.all_records()
        (own / "cgroup.procs").write_text(str(two))
        target = act._target(name, PROC)
        now = replace(before, speed=0.3, asked_pids=tuple(sorted((one, two))))
        now.write()
        act._request_speed(now)
        assert read_request(doors, two) == SlowdownRequest(speed=0.3)
        assert act._take_back(target, []) == "Nothing was changed."
        assert (read_request(doors, one), read_request(doors, two)) == (SlowdownRequest(speed=0.5), None)
        act.undo(name)
        for pid in (one, two):
            (CPU / "cgroup.procs").write_text(str(pid))


def test_the_command_says_that_it_looks(cli: Cli) -> None:
    with process(IDLE) as pid:
        said = cli("deflate", str(pid), "--cpu", "50%", "--for", "1h")
        assert said.stderr == f"Measuring for 2 s what {pid} uses …\n"
        assert "until" in said.stdout


@pytest.mark.parametrize("words", [("--undo",), ("--cpu", "50%"), ("--speed", "50%"), ("--no-cooperative",)])
def test_options_without_anybody_are_refused(ask: Cli, words: tuple[str, ...]) -> None:
    assert "Say whom" in ask("deflate", *words, code=2).stderr


def test_a_process_that_ended_meanwhile_is_gone() -> None:
    with process(IDLE) as pid:
        pass
    with pytest.raises(TargetGoneError):
        act.deflate(str(pid), HALF)
