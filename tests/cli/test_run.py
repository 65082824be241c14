import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stallwise.run import RankWriter, join
from tests.conftest import Cli
from tests.run.made import begin, make_run, step, write_rank
from tests.sentences import coded

STEADY = [0.100, 0.101, 0.099, 0.100, 0.102, 0.1005, 0.0998, 0.100]
SLOWER = [time_s * 1.12 for time_s in STEADY]


def _json(cli: Cli, *arguments: str, code: int = 0) -> Any:
    done = cli(*arguments, "--json", code=code)
    assert done.stderr == ""
    return coded(done.stdout)


def test_show_draws_the_run(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "run", STEADY, ranks=2, arguments=("--name", "[red]x[/red]"))
    text = cli("report", "--detail", "run").stdout
    for expected in (
        "complete",
        "train.py --name [red]x[/red]",
        "2 ranks on 1 node",
        "exit code 0",
        "2 × NVIDIA A10G",
        "torch 2.13.0",
        "33 steps, 2,112 samples, 2 of 2 ranks seen",
        "99 to 102 ms",
        "25 %",
        "SyncBatchNorm is not ablated.",
    ):
        assert expected in text


def test_show_json_has_the_documented_keys(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "run", STEADY, ranks=2)
    document = _json(cli, "report", "--detail", "run")
    assert document["schema"] == {"name": "stallwise/run-summary", "version": 1}
    assert list(document) == [
        "schema", "path", "run_id", "created", "schema_version", "stallwise_version", "state", "partial_reason", "job",
        "world", "nodes", "software", "counts", "phases", "notes",
    ]  # fmt: skip
    (phase,) = document["phases"]
    assert list(phase) == [
        "name", "differs", "steps", "blocks", "step_s", "samples_per_s", "data_wait_share",
    ]  # fmt: skip
    assert phase["step_s"] == {
        "value": pytest.approx(0.1), "low": pytest.approx(0.099), "high": pytest.approx(0.102),
        "method": "order statistics", "blocks": 8,
    }  # fmt: skip
    assert phase["samples_per_s"]["value"] == pytest.approx(2 * 32 / 0.1)
    assert phase["data_wait_share"]["value"] == pytest.approx(0.25)


def test_the_slowest_rank_sets_the_time_and_unknown_is_null(ask: Cli, tmp_path: Path) -> None:
    begin(tmp_path / "run", ranks=2)
    for rank, time_s in ((0, 0.1), (1, 0.3)):
        with RankWriter.open(tmp_path / "run", rank) as writer:
            row = step(rank, 0, time_s)
            writer.append("steps", row if rank else row._replace(samples=None, data_wait_s=None))
    join(tmp_path / "run")
    (phase,) = _json(ask, "report", "--detail", "run")["phases"]
    assert phase["step_s"] == {
        "value": pytest.approx(0.3), "low": None, "high": None, "method": "none", "blocks": 1,
    }  # fmt: skip
    assert phase["samples_per_s"] is None
    assert phase["data_wait_share"] is None
    assert "unknown" in ask("report", "--detail", "run").stdout


def test_show_partial_runs_say_why(ask: Cli, tmp_path: Path) -> None:
    begin(tmp_path / "run", ranks=2)
    write_rank(tmp_path / "run", 0, STEADY)
    assert "Rank 1 of 2 left no record." in ask("report", "--detail", "run").stdout
    document = _json(ask, "report", "--detail", "run")
    assert (document["state"], document["counts"]["steps"]) == ("recording", 33)
    join(tmp_path / "run")
    document = _json(ask, "report", "--detail", "run")
    assert (document["state"], document["partial_reason"]) == (
        "partial",
        {"code": "run.ranks-missing", "text": "Rank 1 of 2 left no record."},
    )


def test_show_a_run_without_steps(ask: Cli, tmp_path: Path) -> None:
    begin(tmp_path / "run")
    assert "0 steps, samples unknown, 0 of 1 ranks seen" in ask("report", "--detail", "run").stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_bad_runs_are_one_sentence(ask: Cli, tmp_path: Path, as_json: bool) -> None:
    make_run(tmp_path / "cut", STEADY)
    (tmp_path / "cut" / "manifest.json").write_text('{"schema_version": 1, "run_id')
    make_run(tmp_path / "newer", STEADY)
    manifest = tmp_path / "newer" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 2', '"schema_version": 3'))
    make_run(tmp_path / "torn", STEADY)
    (tmp_path / "torn" / "steps.npz").write_bytes(b"")
    (tmp_path / "file").write_text("x")
    sentences = {
        "absent": "no run at",
        "cut": "cut off",
        "newer": "Upgrade",
        "torn": "damaged",
        "file": "is a file",
    }
    for name, sentence in sentences.items():
        done = ask("report", "--detail", name, *(["--json"] if as_json else []), code=2)
        if as_json:
            error = json.loads(done.stdout)["error"]
            assert (error["exit_code"], sentence in error["message"]) == (2, True)
        else:
            assert done.stdout == ""
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1


def test_compare_says_what_changed_and_by_how_much(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "a", STEADY, arguments=("--lr", "0.1", "--batch-size=64", "data"))
    make_run(tmp_path / "b", SLOWER, arguments=("--lr", "0.1", "--batch-size=128", "data"), torch="2.14.0")
    text = ask("compare", "a", "b").stdout
    assert "slower by 12 % (" in text
    assert "software.torch" in text
    document = _json(ask, "compare", "a", "b")
    assert list(document) == [
        "schema", "before", "after", "changes", "phases", "only_before", "only_after", "slowdown",
    ]  # fmt: skip
    assert document["changes"] == [
        {"what": "argument.--batch-size", "before": "64", "after": "128"},
        {"what": "software.torch", "before": "2.13.0", "after": "2.14.0"},
    ]
    (phase,) = document["phases"]
    assert list(phase) == ["phase", "before_s", "after_s", "difference_s", "relative", "verdict"]
    assert phase["verdict"] == "slower"
    assert phase["relative"]["value"] == pytest.approx(0.12)
    assert phase["difference_s"]["value"] == pytest.approx(0.012)
    assert "faster by 11 % (" in ask("compare", "b", "a").stdout


def test_compare_with_itself_is_within_noise(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "a", STEADY)
    text = cli("compare", "a", "a").stdout
    assert "no difference beyond noise (within ±" in text
    assert "the same as far as recorded" in text
    done = cli("compare", "a", "a", "--fail-if-slower", "0%", code=3)
    assert "INCONCLUSIVE" in done.stdout, "a gate that cannot see 0 % does not pass"
    assert "PASS" in cli("compare", "a", "a", "--fail-if-slower", "50%").stdout


def test_fail_if_slower_decides_the_exit_code(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "a", STEADY)
    make_run(tmp_path / "b", SLOWER)
    assert "FAIL" in ask("compare", "a", "b", "--fail-if-slower", "5%", code=1).stdout
    slowdown = _json(ask, "compare", "a", "b", "--fail-if-slower", "5%", code=1)["slowdown"]
    assert (slowdown["limit"], slowdown["phase"], slowdown["verdict"]) == (0.05, "as is", "fail")
    # 12 % slower, but perhaps no more than 11 %: nobody can tell.
    inconclusive = ask("compare", "a", "b", "--fail-if-slower", "11 %", code=3)
    assert "INCONCLUSIVE" in inconclusive.stdout
    assert _json(ask, "compare", "a", "b", "--fail-if-slower", "11%", code=3)["slowdown"]["verdict"] == "inconclusive"
    assert "PASS" in ask("compare", "b", "a", "--fail-if-slower", "5%").stdout


def test_what_cannot_be_judged_does_not_pass(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "a", STEADY)
    make_run(tmp_path / "one", [0.2])
    make_run(tmp_path / "other", STEADY, phase="no exchange")
    assert "too few blocks" in ask("compare", "a", "one").stdout
    assert "too few blocks" in ask("compare", "a", "one", "--fail-if-slower", "5%", code=3).stderr
    text = ask("compare", "a", "other").stdout
    assert "no measured phase in common" in text
    assert "in common" in ask("compare", "a", "other", "--fail-if-slower", "5%", code=3).stderr


@pytest.mark.parametrize("limit", ["5", "x%", "-5%", "nan%", "%"])
def test_a_limit_that_is_no_percentage(ask: Cli, tmp_path: Path, limit: str) -> None:
    make_run(tmp_path / "a", STEADY)
    done = ask("compare", "a", "a", f"--fail-if-slower={limit}", code=2)
    assert "such as 5%" in done.stderr


def test_help_imports_neither_polars_nor_numpy() -> None:
    code = (
        "import sys, runpy\nsys.argv = ['stallwise', '--help']\n"
        "try:\n    runpy.run_module('stallwise', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'polars', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stderr.strip() == "[]"
