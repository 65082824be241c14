"""Results on disk: interrupted sweeps, more seeds, digests, files of something else."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.cluster.speed.base import Penalty
from stallwise.cluster.sweep.cases import FinishedCase, SimulationResult, Sweep, simulate_cases
from stallwise.cluster.sweep.local import LocalEngine
from stallwise.cluster.sweep.results import ResultsFile, inputs_digest
from stallwise.cluster.sweep.sweep import run_sweep
from stallwise.errors import InputError
from tests.cluster.sweep.sweeps import contents, made_sweep


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return made_sweep()


@pytest.fixture(scope="module")
def here(sweep: Sweep) -> list[SimulationResult]:
    """One after the other in this process."""
    return [finished.result for finished in simulate_cases(sweep, list(enumerate(sweep.cases())), lambda *_: None)]


class _KilledError(Exception):
    pass


def test_a_sweep_goes_on_where_it_was_killed(sweep: Sweep, here: list[SimulationResult], tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    simulations: list[int] = []

    def counting(sweep: Sweep, cases, progress) -> Iterator[FinishedCase]:  # type: ignore[no-untyped-def]
        for finished in simulate_cases(sweep, cases, progress):
            simulations.append(finished.number)
            yield finished
            if len(simulations) == 13:
                raise _KilledError

    with pytest.raises(_KilledError), ResultsFile(path) as results:
        run_sweep(sweep, engine=counting, journal=results)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:100])  # and the fourteenth was being written
    said: list[str] = []
    with ResultsFile(path, said.append) as results:
        again = run_sweep(sweep, engine=counting, journal=results)
    assert contents(again) == contents(here)
    assert simulations == list(range(len(here))), "nothing is simulated twice"
    assert said == [f"13 of {len(here)} simulations are in {path} already."]
    assert len(path.read_text().splitlines()) == len(here)


def test_more_seeds_add_to_the_file(sweep: Sweep, tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    for seeds, lines in ((1, 20), (2, 40), (1, 40)):
        asked = replace(sweep, seeds=tuple(range(seeds)))
        with ResultsFile(path) as results:
            found = run_sweep(asked, engine=LocalEngine(1), journal=results)
        assert contents(found) == contents(run_sweep(asked, engine=LocalEngine(1)))
        assert len(path.read_text().splitlines()) == lines


def test_equal_simulations_are_all_found(sweep: Sweep, tmp_path: Path) -> None:
    twice = replace(sweep, policies=("fifo",), seeds=(0,), clusters=(sweep.clusters[0], sweep.clusters[0]))
    said: list[str] = []
    for _ in "ab":
        with ResultsFile(tmp_path / "sweep.jsonl", said.append) as results:
            run_sweep(twice, engine=LocalEngine(1), journal=results)
    assert said[0].startswith("4 of 4 simulations")


def test_what_an_answer_depends_on_is_in_its_digest(sweep: Sweep) -> None:
    place = sweep.clusters[0]
    other = [
        (replace(sweep, contention=True), place),
        (replace(sweep, jobs=sweep.jobs[1:]), place),
        (replace(sweep, arrivals="given"), place),
        (sweep, sweep.clusters[1]),
        (sweep, replace(place, speed=Penalty((1.0, 0.5)))),
        (sweep, replace(place, speed=Penalty((1.0, 0.6)))),
    ]
    digests = {inputs_digest(*one) for one in [(sweep, place), *other]}
    assert len(digests) == len(other) + 1
    same = replace(sweep, policies=("las",), seeds=(7,), loads=(3.0,), cores=9, keep=True)
    assert inputs_digest(same, place) == inputs_digest(made_sweep(), place) == inputs_digest(sweep, place)


def test_files_that_hold_something_else(sweep: Sweep, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    unhashable = '{"inputs":"x","policy":"fifo","load":1.0,"seed":[0]}\n'
    for text in ("a,b\n1,2\n", "a,b\n1,2", "notes", '{"a": 1}\n', unhashable):
        table.write_text(text)
        with pytest.raises(InputError, match="line 1 is not the result"), ResultsFile(table) as results:
            results.load(sweep)
        assert table.read_text() == text, "it is left as it is"
    ours = '{"inputs":"x","policy":"fifo","load":1.0,"seed":0}\n'
    table.write_text(ours + "and notes")
    with pytest.raises(InputError, match="line 2 is not the result"):
        ResultsFile(table)
    assert table.read_text() == ours + "and notes"
    path = tmp_path / "held.jsonl"
    with ResultsFile(path), pytest.raises(InputError, match="Another sweep is writing"):
        ResultsFile(path)
    with pytest.raises(InputError, match="cannot be written"):
        ResultsFile(tmp_path / "none" / "x.jsonl")
