"""Sweeps: the same answer whatever runs them and however often they are interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest

from stallwise.cluster.engines.local import Local
from stallwise.cluster.engines.on_ray import _Watch
from stallwise.cluster.engines.portions import Portions
from stallwise.cluster.engines.processes import in_processes
from stallwise.cluster.results import Results, inputs_of
from stallwise.cluster.speed import Penalty
from stallwise.cluster.sweep import Made, Run, Sweep, run_sweep, simulated
from stallwise.errors import InputError, StallwiseError
from tests.cluster.sweeps import contents, made_sweep
from tests.conftest import Cli


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return made_sweep()


@pytest.fixture(scope="module")
def here(sweep: Sweep) -> list[Run]:
    """One after the other in this process."""
    return [made.run for made in simulated(sweep, list(enumerate(sweep.cases())), lambda *_: None)]


def test_threads_answer_alike(sweep: Sweep, here: list[Run]) -> None:
    assert [run.case for run in here] == sweep.cases()
    assert contents(run_sweep(sweep, engine=Local(3))) == contents(here)


def test_only_the_first_seed_is_drawn(here: list[Run]) -> None:
    assert {run.case.seed: len(run.levels) for run in here} == {0: 241, 1: 0}


def test_processes_answer_alike_also_when_they_are_killed() -> None:
    """Two processes; after each of the first answers one of them is killed in the middle of its portion."""
    sweep = made_sweep(seeds=8, keep=True)
    cases = list(enumerate(sweep.cases()))
    expected = [made.run for made in simulated(sweep, cases, lambda *_: None)]
    left = Portions(cases, workers=2, target_s=0.5)
    found: dict[int, Run] = {}
    killed, others = 0, set(psutil.Process().children())
    for made in in_processes(sweep, left, lambda *_: None):
        found[made.number] = made.run
        workers = sorted(set(psutil.Process().children()) - others, key=lambda process: process.pid)
        if killed < 3 and len(found) % 8 == 0 and workers:
            workers[0].kill()
            killed += 1
    assert killed == 3
    assert contents([found[number] for number, _ in cases]) == contents(expected)
    assert set(psutil.Process().children()) <= others, "no process is left"


def test_a_sweep_that_is_left_ends_its_processes(sweep: Sweep) -> None:
    others = set(psutil.Process().children())
    left = Portions(list(enumerate(sweep.cases())), workers=2, target_s=0.5)
    stream: Iterator[Made] = in_processes(sweep, left, lambda *_: None)
    assert len(list(islice(stream, 2))) == 2
    stream.close()  # type: ignore[attr-defined]
    assert set(psutil.Process().children()) <= others


def test_what_goes_wrong_in_a_process_is_said_here() -> None:
    sweep = made_sweep(policies=("fifo",))
    large = replace(sweep, arrivals="given", jobs=(replace(sweep.jobs[0], gpus=64),))
    left = Portions(list(enumerate(large.cases())), workers=1, target_s=0.5)
    with pytest.raises(StallwiseError, match="asks for 64 GPUs, the cluster has 8"):
        list(in_processes(large, left, lambda *_: None))


def test_portions_are_cut_by_measured_time(here: list[Run]) -> None:
    """Each alone until something is known; then 0.5 s of work, and towards the end an even share of half the rest."""
    many = made_sweep(seeds=200)
    left = Portions(list(enumerate(many.cases())), workers=2, target_s=0.5)
    assert [number for number, _ in left.take()] == [0]
    for number in range(5):
        left.heard(Made(number, here[number], 0.01))
    assert 49 <= len(left.take()) <= 51
    sizes = [len(portion) for portion in iter(left.take, [])]
    assert sum(sizes) + 51 == pytest.approx(4000, abs=1)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1
    assert left.take() == left.one() == []


def test_a_slow_policy_gets_smaller_portions(here: list[Run]) -> None:
    one = made_sweep(seeds=400, policies=("fifo",))
    left = Portions(list(enumerate(one.cases())), workers=2, target_s=0.5)
    fifo, slow = here[0], replace(here[0], case=replace(here[0].case, policy="slow"))
    left.heard(Made(0, fifo, 0.1))
    left.heard(Made(1, slow, 3.0))
    assert len(left.take()) == 5, "what other policies take does not count"


class _KilledError(Exception):
    pass


def test_a_sweep_goes_on_where_it_was_killed(sweep: Sweep, here: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    simulations: list[int] = []

    def counting(sweep: Sweep, cases, heard) -> Iterator[Made]:  # type: ignore[no-untyped-def]
        for made in simulated(sweep, cases, heard):
            simulations.append(made.number)
            yield made
            if len(simulations) == 13:
                raise _KilledError

    with pytest.raises(_KilledError), Results(path) as results:
        run_sweep(sweep, engine=counting, journal=results)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:100])  # and the fourteenth was being written
    said: list[str] = []
    with Results(path, said.append) as results:
        again = run_sweep(sweep, engine=counting, journal=results)
    assert contents(again) == contents(here)
    assert simulations == list(range(len(here))), "nothing is simulated twice"
    assert said == [f"13 of {len(here)} simulations are in {path} already."]
    assert len(path.read_text().splitlines()) == len(here)


def test_more_seeds_add_to_the_file(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    for seeds, lines in ((1, 20), (2, 40), (1, 40)):
        asked = replace(sweep, seeds=tuple(range(seeds)))
        with Results(path) as results:
            found = run_sweep(asked, engine=Local(1), journal=results)
        assert contents(found) == contents(run_sweep(asked, engine=Local(1)))
        assert len(path.read_text().splitlines()) == lines


def test_equal_simulations_are_all_found(sweep: Sweep, tmp_path: Path) -> None:
    twice = replace(sweep, policies=("fifo",), seeds=(0,), places=(sweep.places[0], sweep.places[0]))
    said: list[str] = []
    for _ in "ab":
        with Results(tmp_path / "sweep.jsonl", said.append) as results:
            run_sweep(twice, engine=Local(1), journal=results)
    assert said[0].startswith("4 of 4 simulations")


def test_what_an_answer_depends_on_is_in_its_digest(sweep: Sweep) -> None:
    place = sweep.places[0]
    other = [
        (replace(sweep, contention=True), place),
        (replace(sweep, jobs=sweep.jobs[1:]), place),
        (replace(sweep, arrivals="given"), place),
        (sweep, sweep.places[1]),
        (sweep, replace(place, speed=Penalty((1.0, 0.5)))),
        (sweep, replace(place, speed=Penalty((1.0, 0.6)))),
    ]
    digests = {inputs_of(*one) for one in [(sweep, place), *other]}
    assert len(digests) == len(other) + 1
    same = replace(sweep, policies=("las",), seeds=(7,), loads=(3.0,), cores=9, keep=True)
    assert inputs_of(same, place) == inputs_of(made_sweep(), place) == inputs_of(sweep, place)


def test_files_that_hold_something_else(sweep: Sweep, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    unhashable = '{"inputs":"x","policy":"fifo","load":1.0,"seed":[0]}\n'
    for text in ("a,b\n1,2\n", "a,b\n1,2", "notes", '{"a": 1}\n', unhashable):
        table.write_text(text)
        with pytest.raises(InputError, match="line 1 is not the result"), Results(table) as results:
            results.known(sweep)
        assert table.read_text() == text, "it is left as it is"
    ours = '{"inputs":"x","policy":"fifo","load":1.0,"seed":0}\n'
    table.write_text(ours + "and notes")
    with pytest.raises(InputError, match="line 2 is not the result"):
        Results(table)
    assert table.read_text() == ours + "and notes"
    path = tmp_path / "held.jsonl"
    with Results(path), pytest.raises(InputError, match="Another sweep is writing"):
        Results(path)
    with pytest.raises(InputError, match="cannot be written"):
        Results(tmp_path / "none" / "x.jsonl")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    rows = [f"j{i},{i * 60},{1 << i % 4},{600 + i * i * 37 % 3000}" for i in range(60)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
    return path


ASKED = ("--cluster", "machines=2,gpus=4", "--policy", "fifo,las", "--json")


def test_rows_and_results_of_the_command(ask: Cli, trace: Path, tmp_path: Path) -> None:
    files = ("--results", str(tmp_path / "r.jsonl"), "--csv", str(tmp_path / "rows.csv"))
    first, second = (json.loads(ask("simulate", str(trace), *ASKED, "--seeds", "3", *files).stdout) for _ in "ab")
    assert first == second, "also what they took: nothing was simulated again"
    head, *rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.split(",") == list(first["rows"][0])
    assert len(rows) == 6
    for policy in first["settings"][0]["policies"]:
        assert policy["mean_low"]["jct_mean_s"] < policy["mean"]["jct_mean_s"] < policy["mean_high"]["jct_mean_s"]
    no = ask("simulate", str(trace), *ASKED, "--jobs", "x.csv", "--results", "y.jsonl", code=2)
    assert "Leave out one" in no.stderr


def test_engines_that_cannot_be(ask: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = ask("simulate", str(trace), *ASKED, "--engine", "ray", code=2).stderr
    assert "needs Ray, which is not installed here: pip install 'stallwise[ray]'" in missing
    assert "Did you mean local" in ask("simulate", str(trace), *ASKED, "--engine", "lokal", code=2).stderr
    assert "Give --engine ray" in ask("simulate", str(trace), *ASKED, "--address", "auto", code=2).stderr


def test_a_cluster_without_cores_is_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    watch = _Watch()
    for now_s, cores in ((0.0, 4), (5.0, 0), (64.0, 0), (66.0, 0), (200.0, 0)):
        watch.saw(cores, now_s)
    assert capsys.readouterr().err.startswith("The Ray cluster has had no cores for 61 s.")
    for now_s, cores in ((205.0, 2), (210.0, 0), (260.0, 0)):
        watch.saw(cores, now_s)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ctrl_c_ends_a_sweep_and_its_processes(trace: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The real program with processes under way. What was done is in the file, and a later call goes on from it."""
    results = tmp_path / "r.jsonl"
    command = (sys.executable, "-m", "stallwise", "simulate", str(trace), *ASKED, "--seeds", "20000", "--cores", "2")
    with subprocess.Popen(
        (*command, "--results", str(results)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as program:
        until_s = time.monotonic() + 60
        workers: list[psutil.Process] = []
        while time.monotonic() < until_s and not (workers and results.stat().st_size > 100_000):
            workers = psutil.Process(program.pid).children()
            time.sleep(0.05)
        assert len(workers) == 2
        os.kill(program.pid, number)
        _, said = program.communicate(timeout=20)
    assert program.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in said
    assert psutil.wait_procs(workers, timeout=5)[1] == []
    assert len(results.read_text().splitlines()) > 50, "two lines with curves take half of the 100,000 bytes"
