"""`stallwise deflate RUN`: a run's response to less, in words and as a document."""

from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.deflate.response import response_of
from stallwise.model.deflation import ResourceFractions
from stallwise.run.table import TableColumn
from stallwise.run.table_file import read_table_file, write_table
from tests.conftest import Cli
from tests.report.made_runs import make_full_run
from tests.sentences import coded


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deflate") / "run"
    make_full_run(folder)
    return folder


def _json(ask: Cli, *words: str) -> Any:
    return coded(ask("deflate", *words, "--json").stdout)


def test_every_curve_begins_whole_and_falls(ask: Cli, run: Path) -> None:
    found = _json(ask, str(run))
    assert [curve["resource"] for curve in found["curves"]] == ["cpu", "bandwidth", "gpu"]
    for curve in found["curves"]:
        assert curve["speed"][0] == pytest.approx(1.0)
        assert curve["speed"] == sorted(curve["speed"], reverse=True)
        assert 0 < curve["knee"] <= 1
    assert found["unknown"] == ["memory"]
    assert found["choice"] is None


def test_the_curve_is_the_formula(run: Path) -> None:
    response = response_of(open_run(run))
    work = response.job.work
    assert work is not None
    whole_s = response.at(ResourceFractions()).step_s
    for kept in (0.5, 0.1, 0.01, 0.001):
        load_s = max((work.prepare_s + work.blocked_s) / max(1, work.workers), response.cpu_s / (kept * response.cores))
        assert response.at(ResourceFractions(cpu=kept)).step_s == pytest.approx(max(whole_s, load_s), rel=1e-6)


def test_a_choice_needs_to_know_by_how_much(ask: Cli, run: Path) -> None:
    assert "say by how much" in ask("deflate", str(run), "--for", "10min", code=2).stderr
    found = _json(ask, str(run), "--gpu-share", "50%", "--for", "10min", "--restart", "3min", "--again", "20s")
    speed = max(found["speed"], found["cooperative_speed"])
    assert found["choice"]["deflate_s"] == pytest.approx((1 - speed) * 600)
    assert found["choice"]["lose_s"] == pytest.approx(600 / found["ranks"] + 180 / found["ranks"] + 20)


def test_memory_is_answered_where_the_data_is_known(ask: Cli, run: Path) -> None:
    assert "says nothing about memory" in ask("deflate", str(run), "--memory", "50%", code=2).stderr


def test_cores_and_memory_are_said_as_for_a_process(ask: Cli, run: Path) -> None:
    whole = _json(ask, str(run))["cores"]
    half, cores = (_json(ask, str(run), "--cpu", said)["asked"]["cpu"] for said in ("50%", f"{whole / 2}cores"))
    assert half == cores == 0.5
    assert _json(ask, str(run), "--cpu", "0.5cores")["asked"]["cpu"] == pytest.approx(min(1.0, 0.5 / whole)), (
        "half a core"
    )
    assert "a part like 50% or a number of cores" in ask("deflate", str(run), "--cpu", "much", code=2).stderr


@pytest.mark.parametrize("words", [("--speed", "50%"), ("--no-cooperative",)])
def test_what_says_nothing_about_a_run_is_refused(ask: Cli, run: Path, words: tuple[str, ...]) -> None:
    assert "are for a PID or CGROUP" in ask("deflate", str(run), "--cpu", "50%", *words, code=2).stderr


def test_an_amount_of_memory_is_a_part_of_the_machines(run: Path) -> None:
    from stallwise.cli.deflate import _kept

    response = response_of(open_run(run), 1e9)
    assert response.memory is not None
    half = f"{response.memory.bytes / 2 / 2**20}MiB"
    kept = _kept({"cpu": None, "memory": half}, response)
    assert kept is not None
    assert kept.memory == pytest.approx(0.5)


def test_no_data_is_refused(ask: Cli, run: Path) -> None:
    assert "more than 0 bytes" in ask("deflate", str(run), "--dataset-size", "0", code=2).stderr


def test_the_page_says_slack_and_choice(ask: Cli, run: Path) -> None:
    said = ask("deflate", str(run), "--cpu", "20%", "--for", "10min").stdout
    for word in ("slack", "steps slow down", "limited", "cooperative", "deflate: over 10 min", "assumed"):
        assert word in said, said


def test_a_run_without_layers_is_refused(ask: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        "no run, no process and no control group"
        in ask("deflate", str(tmp_path / "empty"), "--cpu", "50%", code=2).stderr
    )
    (tmp_path / "empty" / "manifest.json").write_text("{")
    assert "is cut off or not JSON" in ask("deflate", str(tmp_path / "empty"), "--cpu", "50%", code=2).stderr


def test_what_the_process_computes_on_cores_itself_is_counted(tmp_path: Path, ask: Cli) -> None:
    """Also beside a GPU; one that is busy all the time may spin, which is said."""
    make_full_run(tmp_path / "run")
    _set_cpu_s(tmp_path / "run" / "steps.npz", 0.03)
    assert "only spins" not in ask("deflate", str(tmp_path / "run")).stdout
    response = response_of(open_run(tmp_path / "run"))
    assert response.process_s == pytest.approx(0.03)
    assert response.at(ResourceFractions(cpu=0.05)).step_s >= (response.cpu_s + 0.03) / (0.05 * response.cores)
    _set_cpu_s(tmp_path / "run" / "steps.npz", 10.0)
    assert "only spins" in ask("deflate", str(tmp_path / "run")).stdout


def _set_cpu_s(path: Path, cpu_s: float) -> None:
    table = read_table_file(path)
    write_table(path, table.with_columns(cpu_s=TableColumn.of([cpu_s] * table.height)))
