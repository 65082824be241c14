"""`stallwise overcommit`, and `simulate --deflate-to`: what is printed, and what is said of impossible wishes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stallwise.cli.main import app
from stallwise.errors import InputError
from tests.sentences import coded


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overcommit") / "vms.csv"
    rows = [f"m{i},{i * 10},{2000 + i},{1 + i % 4},{2 + i % 4},{'0.4' if i % 2 else ''}" for i in range(60)]
    path.write_text("\n".join(["machine_id,start_s,end_s,cpu,memory_gib,priority", *rows]))
    return path


def asked(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["overcommit", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_json_page_and_table(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    host = ("--host", "cpu=16,memory=64GiB", "--overcommit", "0%,50%", "--rules", "proportional,preempt")
    said = coded(asked(trace, *host, "--html", page, "--json"))
    assert said["machines"] == 60
    assert said["low_priority"] == 30
    assert [(row["rule"], row["hosts"]) for row in said["rows"]][:2] == [
        (rule, said["whole_fleet_hosts"]) for rule in ("proportional", "preempt")
    ]
    by_rule = {row["rule"]: row for row in said["rows"] if row["overcommitment"] > 0}
    assert by_rule["proportional"]["failure"] < by_rule["preempt"]["failure"]
    assert by_rule["proportional"]["unserved"] < by_rule["preempt"]["unserved"]
    assert "<svg" in page.read_text()
    assert "<script" not in page.read_text()
    drawn = asked(trace, *host)
    assert "proportional" in drawn
    assert "50 % overcommitted" in drawn or "overcommitted:" in drawn


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rules", "proportionall"), "proportional"),
        (("--rules", ","), "names none"),
        (("--overcommit", "many"), "--overcommit"),
        (("--overcommit", "-5%"), "--overcommit"),
        (("--host", "cpu=1,memory=1GiB"), "larger than every host"),
        (("--host", "nowhere.csv"), "no file nowhere.csv"),
        (("--low", "150%"), "fraction"),
        (("--hosts", "0"), "from 1"),
    ],
)
def test_impossible_wishes_are_told(trace: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, ["overcommit", str(trace), *words], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "fifo", "--deflate-to", "50%"), "None of these policies preempts"),
        (("--policy", "srtf", "--deflate-to", "0%"), "between 0 and 1"),
        (("--policy", "srtf:deflate=2"), "at most 1"),
    ],
)
def test_impossible_deflations_of_jobs_are_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_s,gpus,duration_s\na,0,8,1000\nb,100,4,100\n")
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, ["simulate", str(jobs), "--cluster", "gpus=8", *words], catch_exceptions=False)


def test_deflated_policies_stand_beside_their_own(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_s,gpus,duration_s\na,0,8,1000\nb,100,4,100\n")
    words = ["simulate", str(jobs), "--cluster", "gpus=8", "--policy", "fifo,srtf", "--deflate-to", "50%", "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    rows = {row["policy"]: row for row in coded(done.stdout)["rows"]}
    assert list(rows) == ["fifo", "srtf", "srtf:deflate=0.5"]
    assert rows["srtf:deflate=0.5"]["makespan_s"] == pytest.approx(1050)
    assert (rows["srtf"]["preemptions"], rows["srtf"]["deflations"]) == (1, 0)
    assert (rows["srtf:deflate=0.5"]["preemptions"], rows["srtf:deflate=0.5"]["deflations"]) == (0, 1)
