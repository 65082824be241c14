"""`stallwise recommend`: the answer in every form, and one sentence for every way there is none."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from benchmarks.whatif import make_run
from stallwise.analysis.analysis import open_run
from stallwise.record.rank.environment import begin_record
from stallwise.run.manifest import MANIFEST_NAME, read_manifest
from tests.conftest import Cli, texts
from tests.report.made_runs import make_full_run
from tests.sentences import coded

WORK = ("--epochs", "90", "--epoch-samples", "1281167")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("recommend") / "run"
    make_full_run(folder)
    return str(folder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same run as --light leaves it: no model, no layers, no gradients."""
    folder = tmp_path_factory.mktemp("recommend") / "bare"
    make_full_run(folder)
    manifest = msgspec.structs.replace(read_manifest(folder), model=None)
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    (folder / "gradients.npz").unlink(missing_ok=True)
    return str(folder)


def _json(ask: Cli, *arguments: str, code: int = 0) -> Any:
    return coded(ask("recommend", *arguments, "--json", code=code).stdout)


def _no(ask: Cli, *arguments: str) -> str:
    done = ask("recommend", *arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("stallwise: ")
    return done.stderr


def test_a_run_that_says_nothing_of_other_gpus_is_refused(ask: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_run(folder)
    assert "counted no FLOPs" in _no(ask, str(folder), "--samples", "1e7", "--deadline", "48h")
    assert "counted no FLOPs" in _no(ask, str(folder), "--samples", "1e7", "--instances", "p4d.24xlarge")


def test_the_real_program_answers(cli: Cli, run: str, tmp_path: Path) -> None:
    page, task, batch = tmp_path / "page.html", tmp_path / "task.yaml", tmp_path / "job.sh"
    done = cli(
        "recommend", run, *WORK, "--deadline", "12h", "--html", str(page), "--skypilot", str(task),
        "--slurm", str(batch), "--torchrun",
    )  # fmt: skip
    for words in (
        "what to rent",
        "answer",
        "the front",
        "why others lost",
        "◆ the pick",
        "meets the",
        "torchrun --nproc",
    ):
        assert words in done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith("torchrun")]
    assert max(map(len, lines)) <= 120
    text = page.read_text()
    assert "<script" not in text
    assert "https://" not in text.replace("http://www.w3.org", "")
    assert "prefers-color-scheme: dark" in text
    assert text.count("<circle") > 50
    assert "ordered:" in task.read_text()
    assert "#SBATCH --nodes=" in batch.read_text()


def test_samples_of_the_job_are_not_the_data_set(ask: Cli, run: str) -> None:
    """Ninety epochs said in two ways are one job; without the size of an epoch nothing is said about the data set."""
    whole = ("--samples", str(90 * 1281167), "--epoch-samples", "1281167")
    by_samples, by_epochs = (_json(ask, run, *work, "--deadline", "12h") for work in (whole, WORK))
    assert by_samples["pick"] == by_epochs["pick"]
    assert "--dataset-size" in _no(ask, run, "--samples", "1e8", "--deadline", "12h", "--data-in", "us-east-1")


def test_credits_that_pay_for_all_of_it(ask: Cli, run: str) -> None:
    found = _json(ask, run, *WORK, "--deadline", "12h", "--clouds", "aws", "--discount", "aws=100%")
    assert found["pick"]["usd_per_h"] == 0


def test_json_adds_up(ask: Cli, run: str) -> None:
    found = _json(ask, run, *WORK, "--deadline", "12h", "--data-in", "us-east-1", "--startup", "3min")
    pick = found["pick"]
    assert pick["time_low_s"] <= pick["time_s"] <= pick["time_high_s"] * (1 + 1e-12)
    assert pick["in_time"] >= 0.9
    rent = pick["usd_per_h"] * pick["machines"] * pick["billed_s"] / 3600
    assert pick["billed_s"] == pytest.approx(pick["time_s"] - 87.27, abs=0.01)  # nobody bills for the wait
    assert pick["usd"] == pytest.approx(rent + pick["moving_usd"] + pick["keeping_usd"])
    assert found["prices"]["age_days"] > 0
    assert found["lost"]
    assert all(one["why"] for one in found["lost"])
    times = [one["time_s"] for one in found["front"]]
    costs = [one["usd"] for one in found["front"]]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert not found["stay"]


def test_filters(ask: Cli, run: str) -> None:
    gpus = ("--gpu", "A100", "--gpu", "H100")
    found = _json(ask, run, *WORK, "--budget", "500usd", "--clouds", "aws,gcp", *gpus, "--max-nodes", "2")
    for option in [found["pick"], *found["front"]]:
        assert option["cloud"] in ("aws", "gcp")
        assert option["gpu"].startswith(("A100", "H100"))
        assert option["machines"] <= 2
    one = _json(ask, run, *WORK, "--regions", "us-west-2", "--instances", "p4d.24xlarge")
    assert {(o["region"], o["instance"]) for o in one["front"]} == {("us-west-2", "p4d.24xlarge")}


def test_terms_from_a_file(ask: Cli, run: str, tmp_path: Path) -> None:
    file = tmp_path / "terms.yaml"
    file.write_text("discounts:\n  aws: 40%\nquotas:\n  gcp: 8\n")
    found = _json(ask, run, *WORK, "--deadline", "12h", "--terms", str(file), "--clouds", "aws")
    assert found["pick"]["usd_per_h"] == pytest.approx(0.6 * found["pick"]["listed_usd_per_h"])
    file.write_text("rebates: 3\n")
    assert "discounts" in _no(ask, run, *WORK, "--terms", str(file))


def test_spot_and_its_places(ask: Cli, run: str) -> None:
    few = (*WORK, "--clouds", "aws", "--gpu", "A100", "--gpu", "V100")
    short = ask("recommend", run, *few, "--spot-only", "--mean-life", "2s", code=1)
    assert "lost too often" in short.stderr
    found = _json(ask, run, *few, "--deadline", "24h", "--spot-only", "--mean-life", "12h")
    assert found["pick"]["market"] == "spot"
    assert found["pick"]["spot"]["losses"] > 0
    assert found["places"]["highest_usd_per_h"] > found["places"]["lowest_usd_per_h"]
    assert "--mean-life" in _no(ask, run, *WORK, "--spot")


def _series(folder: Path) -> Path:
    """Ten days of a zone that has one machine for some hours and then has none."""
    random = np.random.default_rng(4)
    data: list[int] = []
    while len(data) < 2880:
        data += [1] * int(random.integers(20, 150)) + [0] * int(random.integers(2, 40))
    path = folder / "us-east-1a_v100_1.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": data[:2880]}))
    return path


@pytest.mark.parametrize("lives", ["--mean-life", "published", "log"])
def test_spot_is_exactly_what_spot_plan_says(ask: Cli, run: str, tmp_path: Path, lives: str) -> None:
    """Hours and dollars of the pick, from drawn lives and from the replays of a log's trace."""
    given = {
        "--mean-life": ("--mean-life", "5h"),
        "published": ("--lifetimes", "K80/us-east1"),
        "log": ("--lifetimes", str(_series(tmp_path))),
    }[lives]
    few = ("--clouds", "aws", *(("--max-nodes", "1") if lives == "log" else ("--max-nodes", "4", "--gpu", "V100")))
    found = _json(ask, run, *WORK, "--spot-only", *given, *few)
    pick = found["pick"]
    plan = json.loads(ask(*found["spot_plan"][1:], "--json").stdout)
    assert ("replays of the job" in plan["method"]) == (lives == "log")
    assert plan["plan"]["finish_s"]["mean"] == pytest.approx(pick["time_s"], rel=1e-5)
    assert plan["plan"]["cost_usd"]["mean"] == pytest.approx(pick["usd"], rel=1e-5)
    assert plan["plan"]["losses"] == pytest.approx(pick["spot"]["losses"], rel=1e-5)
    assert plan["interval"]["used_s"] == pytest.approx(pick["spot"]["checkpoint_every_s"], rel=1e-5)


def test_starting_counts_on_demand_as_on_spot(ask: Cli, run: str) -> None:
    """The same fleet takes as long and costs as much whether or not spot was looked at as well."""
    asked = (*WORK, "--deadline", "12h", "--clouds", "aws")
    alone = _json(ask, run, *asked)
    beside = _json(ask, run, *asked, "--spot", "--mean-life", "1min")
    assert beside["pick"] == alone["pick"]
    assert any("on demand and spot alike" in words for words in texts(alone["assumptions"]))
    at_once = _json(ask, run, *asked, "--provision", "0s", "--startup", "0s")
    assert alone["pick"]["fleet"] == at_once["pick"]["fleet"]
    assert alone["pick"]["time_s"] - at_once["pick"]["time_s"] == pytest.approx(87.27 + 83.57, abs=0.01)
    assert not any("Google" in words for words in texts(at_once["assumptions"]))
    assert "--spot-only" in _no(ask, run, *WORK, "--mean-life", "12h")


@pytest.mark.parametrize(
    ("script", "module", "line"),
    [
        ("train.py", False, "train.py --lr 1"),
        ("acme.train", True, "-m acme.train --lr 1"),
        ("bin/train", False, "bin/train"),
    ],
)
def test_the_hand_over_starts_scripts_and_modules(
    ask: Cli, tmp_path: Path, script: str, module: bool, line: str
) -> None:
    folder = tmp_path / "run"
    make_full_run(folder)
    known = read_manifest(folder)
    arguments = tuple(line.split()[-2:]) if "--lr" in line else ()
    job = msgspec.structs.replace(known.job, script=script, module=module, arguments=arguments)
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(known, job=job)))
    task, batch = tmp_path / "task.yaml", tmp_path / "job.sh"
    done = ask(
        "recommend", str(folder), *WORK, "--deadline", "12h", "--torchrun", "--skypilot", str(task), "--slurm",
        str(batch),
    )  # fmt: skip
    launch = next(text for text in done.stdout.splitlines() if text.startswith("torchrun"))
    assert launch.endswith(f" {line}")
    assert f"    {line}\n" in batch.read_text()
    assert yaml.safe_load(task.read_text())["run"].rstrip().endswith(f"\n  {line}")


def test_a_record_knows_that_its_script_is_a_module(tmp_path: Path) -> None:
    begin_record(tmp_path / "run", script="acme.train", arguments=(), launcher="python", module=True)
    assert read_manifest(tmp_path / "run").job.module


def test_a_trace_does_not_say_how_its_job_is_started(ask: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_full_run(folder)
    known = read_manifest(folder)
    job = msgspec.structs.replace(known.job, script="resnet50 (trace)", launcher="trace")
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(known, job=job)))
    done = ask("recommend", str(folder), *WORK, "--deadline", "12h", "--torchrun")
    assert "put it for train.py" in done.stderr
    assert "(trace)" not in done.stdout.splitlines()[-1]


def test_a_run_without_layers_is_judged_with_a_wider_interval(ask: Cli, run: str, bare: str) -> None:
    asked = (*WORK, "--instances", "p4d.24xlarge", "--max-nodes", "1")
    known, wide = (_json(ask, one, *asked, "--gpu", "A100") for one in (run, bare))
    assert any("holds no layers" in words for words in texts(wide["assumptions"]))
    assert any("number of parameters" in words for words in texts(wide["assumptions"]))
    assert wide["pick"]["gpus"] == 1

    def width(found: Any) -> float:
        one = found["front"][0]
        return float(one["step_high_s"] / one["step_low_s"])

    assert width(wide) > width(known)
    several = _json(ask, bare, *asked, "--parameters", "11.7M")
    assert any(one["gpus"] > 1 for one in several["front"])


def test_a_run_that_knows_its_dataset_needs_no_samples(ask: Cli, run: str, tmp_path: Path) -> None:
    knows = tmp_path / "knows"
    make_full_run(knows)
    manifest = read_manifest(knows)
    counts = msgspec.structs.replace(manifest.counts, epoch_samples=1_281_167)
    (knows / MANIFEST_NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, counts=counts)))
    limit = ("--deadline", "12h")
    assert _json(ask, str(knows), "--epochs", "90", *limit)["pick"] == _json(ask, run, *WORK, *limit)["pick"]
    stated = ("--gpu", "H100", "--epochs", "2", "--json")
    predicted = json.loads(ask("predict", str(knows), *stated).stdout)
    other = json.loads(ask("predict", str(knows), *stated, "--epoch-samples", "1281167").stdout)
    assert predicted == other


def test_exit_codes_and_sentences(ask: Cli, run: str) -> None:
    late = ask("recommend", run, *WORK, "--deadline", "1s", code=1)
    assert "more than the deadline" in late.stderr
    assert "What would do" in late.stderr
    poor = ask("recommend", run, *WORK, "--budget", "0.001usd", "--here-price", "9", code=1)
    assert "more than the budget" in poor.stderr
    assert "--epoch-samples" in _no(ask, run, "--epochs", "3")
    assert "Say how long the job is" in _no(ask, run)
    assert "Did you mean" in _no(ask, run, *WORK, "--gpu", "H10O")
    assert "region" in _no(ask, run, *WORK, "--regions", "mars-north-1")
    assert "No price is listed for us-east-1 in gcp" in _no(
        ask, run, *WORK, "--regions", "us-east-1", "--clouds", "gcp"
    )
    assert "is not an amount" in _no(ask, run, *WORK, "--budget", "lots")
    assert "INSTANCE=FILE" in _no(ask, run, *WORK, "--machine-of", "m.json")
    assert "There is no run" in _no(ask, "nowhere", *WORK)


def test_stash_mode(ask: Cli, tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    table.write_text(
        "instance,machines,epoch_s,first_epoch_s\np3.2xlarge,1,4000,5000\np3.16xlarge,1,600,700\np3.8xlarge,2,900,1000\n"
    )
    found = _json(ask, "--measured", str(table), "--epochs", "10", "--deadline", "3h")
    assert found["pick"] == "1 × p3.16xlarge"
    done = ask("recommend", "--measured", str(table), "--epochs", "10", "--deadline", "1h", code=1)
    assert "No measured configuration keeps the limits" in done.stderr


def test_a_machine_record_goes_before_the_list(ask: Cli, run: str, tmp_path: Path) -> None:
    line = {"latency_s": 1e-4, "s_per_byte": 1e-8}
    record = {
        "kind": "machine", "schema_version": 1, "created": "2026-11-15T12:00:00Z", "stallwise_version": "0",
        "ranks": 8, "nodes": 1,
        "links": [
            {"scope": "inside", "ranks": 8, "nodes": 1, "backend": "nccl", "points": [],
             "fit": {"small": line, "large": line, "break_bytes": None, "low": 0.9, "high": 1.1}}
        ],
    }  # fmt: skip
    file = tmp_path / "slow.json"
    file.write_text(json.dumps(record))
    asked = (*WORK, "--instances", "p4d.24xlarge", "--max-nodes", "1", "--deadline", "100h")
    listed = _json(ask, run, *asked)
    measured = _json(ask, run, *asked, "--machine-of", f"p4d.24xlarge={file}")
    eight = [next(o for o in found["points"] if o["fleet"] == "1 × p4d.24xlarge") for found in (listed, measured)]
    assert eight[1]["time_s"] > eight[0]["time_s"]


def _record(path: Path, *, rate: float, decode: float, gpu: str, precision: str = "fp32") -> str:
    network = {
        "name": "resnet50", "precision": precision, "batch": 64, "samples_per_s": rate, "low_samples_per_s": None,
        "high_samples_per_s": None, "step_s": 64 / rate, "parameters": 25_557_032, "gradient_bytes": 102_228_128,
        "device": gpu,
    }  # fmt: skip
    per_core = {
        "library": "made", "pixels": [500, 375], "file_bytes": 110_000, "one_core_samples_per_s": decode,
        "per_core_samples_per_s": decode, "cores": 8,
    }  # fmt: skip
    record = {
        "kind": "machine", "schema_version": 1, "created": "2026-11-15T12:00:00Z", "stallwise_version": "0", "ranks": 1,
        "nodes": 1, "networks": [network], "decode": per_core, "hosts": [{"node": 0, "gpus": [gpu]}],
    }  # fmt: skip
    path.write_text(json.dumps(record))
    return str(path)


def test_what_was_measured_on_both_machines_goes_before_the_model(ask: Cli, run: str, tmp_path: Path) -> None:
    """Twice the G: compute takes half as long, whatever the lists say. Cores half as fast: twice as long to prepare."""
    here = _record(tmp_path / "here.json", rate=300.0, decode=200.0, gpu="NVIDIA A10G")
    there = _record(tmp_path / "there.json", rate=600.0, decode=100.0, gpu="NVIDIA A100-SXM4-40GB")
    other = _record(tmp_path / "other.json", rate=600.0, decode=100.0, gpu="NVIDIA A100-SXM4-40GB", precision="bf16")
    asked = (*WORK, "--instances", "a2-highgpu-1g", "--max-nodes", "1", "--deadline", "1000h", "--scale-batch")
    now = _json(ask, run, *asked)
    only_there = _json(ask, run, *asked, "--machine-of", f"a2-highgpu-1g={there}")
    both = _json(ask, run, *asked, "--machine-of", f"a2-highgpu-1g={there}", "--here-machine", here)
    in_bf16 = _json(ask, run, *asked, "--machine-of", f"a2-highgpu-1g={other}", "--here-machine", here)
    step = {name: _alone(found)["split_s"]["compute"] for name, found in {"now": now, "both": both}.items()}
    # Every GPU keeps its batch: at another one, what does not grow with it would have its part.
    assert step["both"] != pytest.approx(step["now"], rel=0.05)
    assert step["both"] == pytest.approx(0.5 * _computed_s(run), rel=1e-6)
    assert _alone(only_there)["split_s"]["compute"] == pytest.approx(step["now"], rel=1e-6)
    assert _alone(in_bf16)["split_s"]["compute"] == pytest.approx(step["now"], rel=1e-6)
    assert any("record of the run's own machine" in words for words in texts(only_there["assumptions"]))
    assert any("its G is not used" in words for words in texts(in_bf16["assumptions"]))
    assert any("preparing a sample 2 × as long" in words for words in texts(both["assumptions"]))
    assert _alone(both)["workers_per_gpu"] >= _alone(now)["workers_per_gpu"]
    assert "was measured on A100-40GB-SXM; g5.xlarge has A10G" in _no(
        ask, run, *WORK, "--machine-of", f"g5.xlarge={there}"
    )


def _alone(found: Any) -> Any:
    return next(one for one in found["front"] if one["gpus"] == 1)


def _computed_s(run: str) -> float:
    return open_run(Path(run)).profile.split.compute.s
