"""`stallwise simulate` on traces written here and on published ones, and one answer for every way it cannot run."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise.cli.simulate import policies
from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.simulator import simulate
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, UnknownNameError
from tests.cluster.speed.test_profiles import layer_file
from tests.conftest import Cli, texts
from tests.report.page_reader import PageReader
from tests.sentences import coded

CLUSTER = ("--cluster", "racks=1,machines=2,gpus=4")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The first simulation of a fresh checkout compiles, which can outlast the time a started program is given."""
    simulate([Job(id="a", arrival_s=0.0, gpus=1, work_s=1.0)], Cluster.counts(gpus=1), policy_named("fifo"))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty jobs of up to eight GPUs in twenty minutes."""
    random = np.random.default_rng(5)
    path = tmp_path / "jobs.csv"
    rows = [f"j{i},{i * 30},{random.choice([1, 1, 2, 4, 8])},{random.integers(60, 600)},,u{i % 3}" for i in range(40)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s,model,user", *rows]) + "\n")
    return path


def _json(ask: Cli, *arguments: str | Path) -> Any:
    return coded(ask("simulate", *map(str, arguments), "--json").stdout)


def _no(ask: Cli, *arguments: str | Path) -> str:
    done = ask("simulate", *map(str, arguments), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("stallwise: ")
    return done.stderr


def test_policies_side_by_side(cli: Cli, trace: Path) -> None:
    """The real program."""
    text = cli("simulate", str(trace), *CLUSTER, "--policy", "fifo,srtf,las").stdout
    for expected in ("jobs.csv: 40 jobs", "8 GPUs", "This trace needs", "fifo", "srtf*", "las", "busy GPUs"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 100


def test_json_has_a_row_for_every_policy(ask: Cli, trace: Path) -> None:
    found = _json(ask, trace, *CLUSTER, "--policy", "fifo,srtf,srsf,las,dally")
    assert [row["policy"] for row in found["rows"]] == ["fifo", "srtf", "srsf", "las", "dally"]
    for row in found["rows"]:
        assert 0 < row["jct_median_s"] <= row["jct_p95_s"] <= row["makespan_s"]
        assert row["jobs"] == 40
    by_policy = {row["policy"]: row for row in found["rows"]}
    assert by_policy["srtf"]["jct_mean_s"] < by_policy["fifo"]["jct_mean_s"]


def test_the_same_call_gives_the_same_answer(ask: Cli, trace: Path) -> None:
    arguments = (trace, *CLUSTER, "--policy", "fifo,gandiva,dally", "--seeds", "2")
    first, second = (_json(ask, *arguments)["rows"] for _ in range(2))
    for row in (*first, *second):
        del row["took_s"]
    assert first == second


def test_cores_change_nothing(ask: Cli, trace: Path) -> None:
    arguments = (trace, *CLUSTER, "--policy", "fifo,srtf,gandiva", "--loads", "1,2", "--seeds", "2", "--concurrency")
    apart, here = (_json(ask, *arguments, count)["rows"] for count in ("4", "1"))
    for row in (*apart, *here):
        del row["took_s"]
    assert apart == here


def test_more_load_waits_longer(ask: Cli, trace: Path) -> None:
    rows = _json(ask, trace, *CLUSTER, "--policy", "fifo", "--loads", "0.25,1,4")["rows"]
    waits = [row["queue_mean_s"] for row in rows]
    assert [row["load"] for row in rows] == [0.25, 1.0, 4.0]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


def test_several_clusters(ask: Cli, trace: Path) -> None:
    rows = _json(ask, trace, *CLUSTER, "--cluster", "racks=2,machines=2,gpus=4", "--policy", "fifo")["rows"]
    assert [row["gpus"] for row in rows] == [8, 16]
    assert rows[1]["jct_mean_s"] < rows[0]["jct_mean_s"]


def test_seeds_draw_arrivals_and_say_so(ask: Cli, trace: Path) -> None:
    found = _json(ask, trace, *CLUSTER, "--policy", "fifo", "--seeds", "3")
    assert (found["seeds"], found["arrivals"]) == (3, "poisson")
    assert len({row["jct_mean_s"] for row in found["rows"]}) == 3
    assert "Seeds draw arrivals anew: Poisson at the mean rate of the trace." in texts(found["notes"])


def test_arrivals_at_the_rhythm_of_another_cluster(ask: Cli, trace: Path, tmp_path: Path) -> None:
    table = tmp_path / "counts.csv"
    rows = [f"2020-04-01 00:{i:02}:00,{9 if i < 5 else 0},1" for i in range(60)]
    table.write_text("\n".join(["time,submit_gpu_job,submit_gpu_num", *rows]) + "\n")
    out = tmp_path / "out.csv"
    ask("simulate", str(trace), *CLUSTER, "--policy", "fifo", "--arrivals", str(table), "--jobs-csv", str(out))
    with out.open() as file:
        arrivals = [float(row["arrival_s"]) for row in csv.DictReader(file)]
    assert len(arrivals) == 40
    assert max(arrivals) <= 300.001, "nobody submits after the first five minutes"


def test_the_page(ask: Cli, trace: Path, tmp_path: Path) -> None:
    done = ask("simulate", str(trace), *CLUSTER, "--policy", "fifo,las", "--html", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "The page is" in done.stderr
    assert len([svg for svg in PageReader(text).named("svg") if svg["class"] == "picture"]) == 4
    assert not re.search(r"https?://", text)


def test_bad_lines_are_listed_and_can_be_skipped(ask: Cli, trace: Path) -> None:
    with trace.open("a") as file:
        file.write("j1,5,1,60,,\nbig,5,64,60,,\nlate,-5,1,60,,\nnever,5,1,,,\n")
    said = _no(ask, trace, *CLUSTER, "--policy", "fifo")
    assert said.splitlines() == [
        "stallwise: jobs.csv has 4 lines that cannot be simulated:",
        "  line 42: id 'j1' is on line 3 already",
        "  line 43: 64 GPUs; the cluster has 8",
        "  line 44: submit_s -5 is negative",
        "  line 45: no duration_s",
        "Correct them, or leave them out. Option: --skip-bad.",
    ]
    found = _json(ask, trace, *CLUSTER, "--policy", "fifo", "--skip-bad")
    assert found["jobs"] == 40
    assert any(note.startswith("4 lines left out") for note in texts(found["notes"]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Which cluster?"),
        ((*CLUSTER, "--policy", "srft"), "No policy is called 'srft'. Did you mean srtf"),
        ((*CLUSTER, "--policy", "dally-manual:rakc=3"), "Did you mean rack"),
        ((*CLUSTER, "--policy", ","), "names none"),
        ((*CLUSTER, "--loads", "1,x"), "not 'x'"),
        ((*CLUSTER, "--loads", "0"), "above 0"),
        ((*CLUSTER, "--seeds", "0"), "from 1"),
        ((*CLUSTER, "--arrivals", "posson"), "Did you mean poisson"),
        ((*CLUSTER, "--arrivals", "batch", "--loads", "1,2"), "changes nothing"),
        ((*CLUSTER, "--rate", "-1"), "above 0"),
        ((*CLUSTER, "--restart", "soon"), "not a time"),
        ((*CLUSTER, "--slowdown", "1,2"), "at most at 1"),
        (("--cluster", "racks=2"), "says no gpus"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(ask: Cli, trace: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in _no(ask, trace, *arguments)


def test_names_of_policies() -> None:
    assert policies(["fifo, las", "dally-manual:rack=6,net=12,srtf"]) == (
        "fifo",
        "las",
        "dally-manual:rack=6,net=12",
        "srtf",
    )
    assert policies(["fifo,fifo"]) == ("fifo",)
    assert {"fifo", "patient", "tiresias"} <= set(policies(["all"]))
    with pytest.raises(UnknownNameError, match="Did you mean patient"):
        policies(["patent"])
    with pytest.raises(InputError):
        policies([""])


@pytest.fixture
def modelled(tmp_path: Path) -> Path:
    """Thirty jobs of a model called net, and ten of none."""
    rows = [f"j{i},{i * 30},{(2, 4, 8, 6)[i % 4]},{300 + i * 7},{'net' if i % 4 else ''}" for i in range(40)]
    path = tmp_path / "models.csv"
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s,model", *rows]) + "\n")
    return path


def test_speed_from_a_run_or_a_layer_file(ask: Cli, modelled: Path, tmp_path: Path) -> None:
    file = layer_file(tmp_path / "layers.json", gpus=1)
    ask("trace", "import", str(file), "-o", str(tmp_path / "run"))
    asked = (modelled, *CLUSTER, "--policy", "fifo,patient", "--links", "gpu=50GB/s,machine=1gbit")
    found = [_json(ask, *asked, "--profile", f"net={path}") for path in (file, tmp_path / "run")]
    assert any("for net" in note for note in texts(found[0]["notes"]))
    for by_file, by_run in zip(*(one["rows"] for one in found), strict=True):
        assert by_file["comm_share"] > 0.01
        assert by_run["jct_mean_s"] == pytest.approx(by_file["jct_mean_s"], rel=1e-6)
    # Quick links: hardly anything is lost.
    quick = (*asked[:-1], "gpu=500GB/s,machine=500GB/s:1us")
    assert _json(ask, *quick, "--profile", f"net={file}")["rows"][0]["comm_share"] < 0.01


def test_profiles_that_cannot_be(ask: Cli, modelled: Path, tmp_path: Path) -> None:
    file = layer_file(tmp_path / "layers.json")
    assert "MODEL=RUN" in _no(ask, modelled, *CLUSTER, "--profile", "net")
    assert "nothing at" in _no(ask, modelled, *CLUSTER, "--profile", "net=nowhere")
    assert "Did you mean net" in _no(ask, modelled, *CLUSTER, "--profile", f"nett={file}")
    assert "not from both" in _no(ask, modelled, *CLUSTER, "--profile", f"net={file}", "--slowdown", "1,0.5")
    assert "no layer trace" in _no(ask, modelled, *CLUSTER, "--profile", f"net={modelled}")
    other = tmp_path / "two.csv"
    other.write_text(modelled.read_text() + "x,0,1,60,bert\n")
    assert "line 42: model 'bert' has no profile" in _no(ask, other, *CLUSTER, "--profile", f"net={file}")


def test_slower_placements_take_longer(ask: Cli, trace: Path) -> None:
    free, dear = (
        _json(ask, trace, *CLUSTER, "--policy", "fifo", *more)["rows"][0] for more in ((), ("--slowdown", "1,0.5"))
    )
    assert (free["comm_share"], dear["comm_share"] > 0) == (0.0, True)
    assert dear["jct_mean_s"] > free["jct_mean_s"]


def test_the_answers_of_tiresias_own_simulator(ask: Cli, shared_data: Path) -> None:
    """480 jobs on 60 GPUs: mean JCT and makespan that its released simulator gives (NSDI 2019), to the cent."""
    trace = shared_data / "cluster_traces/tiresias/480_job.csv"
    rows = _json(ask, trace, "--cluster", "machines=15,gpus=4", "--policy", "fifo,srtf,srsf")["rows"]
    found = {row["policy"]: (round(row["jct_mean_s"], 2), row["makespan_s"]) for row in rows}
    assert found == {"fifo": (6819.62, 29312), "srtf": (1078.28, 29312), "srsf": (1042.19, 30210)}


@pytest.mark.parametrize(
    "name",
    [
        "dally_sensetime/batch_50.csv",
        "gavel/physical_cluster/small_test.trace",
        "shockwave/120_jobs_dynamic.csv",
        "themis_philly/processed_data.csv",
    ],
)
def test_published_traces_run(ask: Cli, shared_data: Path, name: str) -> None:
    path = shared_data / "cluster_traces" / name
    rows = _json(ask, path, "--cluster", "racks=2,machines=8,slots=2,gpus=8", "--policy", "las,patient", "--skip-bad")[
        "rows"
    ]
    assert all(row["makespan_s"] >= row["jct_median_s"] > 0 for row in rows)


def test_a_policy_of_ones_own(ask: Cli, trace: Path, tmp_path: Path) -> None:
    """Beside built-in ones, by several processes; what is wrong with it is one sentence."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "class Mine:\n"
        "    strict = True\n"
        "    def decide(self, view):\n"
        "        return sorted(view.jobs, key=lambda job: job.arrival_s)\n"
    )
    rows = _json(ask, trace, *CLUSTER, "--policy", f"fifo,{mine}", "--seeds", "3", "--concurrency", "2")["rows"]
    assert [row["policy"] for row in rows] == ["fifo"] * 3 + [str(mine)] * 3
    for fifo, same in zip(rows[:3], rows[3:], strict=True):
        assert {**fifo, "policy": "", "took_s": 0} == {**same, "policy": "", "took_s": 0}
    text = ask("simulate", str(trace), *CLUSTER, "--policy", f"fifo,{mine}:Mine").stdout
    assert "mine.py:Mine" in text
    assert str(tmp_path) not in text
    mine.write_text("class Mine:\n    def decide(self, view):\n        return None\n")
    assert "it returned a NoneType" in _no(ask, trace, *CLUSTER, "--policy", str(mine))
    assert "nothere.py cannot be read" in _no(ask, trace, *CLUSTER, "--policy", "nothere.py")
    mine.write_text("x = 1\n")
    assert "Option: --policy." in _no(ask, trace, *CLUSTER, "--policy", str(mine))
