"""`stallwise submit`: which words are whose, and what a job says about itself."""

import json
import shlex
from pathlib import Path

import pytest

from stallwise.slurm.facts import JobDescription, description_in
from tests.conftest import Cli
from tests.report.made_runs import make_full_run
from tests.slurm.site import Site


@pytest.mark.parametrize(
    ("given", "ours", "theirs"),
    [
        ("-Jpretrain --gpus 4 t.sh", "--gpus=4 --nodes=1-4", "-Jpretrain t.sh"),
        ("-pgpu -Jpx --gpus=4 t.sh", "--gpus=4 --nodes=1-4 --partition=gpu", "-Jpx t.sh"),
        ("-p gpu -J bert t.sh -p mine --gpus 3", "--partition=gpu", "-J bert t.sh -p mine --gpus 3"),
        ("--exclude=n1 -Hkp --gpus 8 --nodes 2-4 t.sh", "--gpus=8 --nodes=2-4", "--exclude=n1 -Hkp t.sh"),
        ("--gpus 2 -- -J bert t.sh --run x", "--gpus=2 --nodes=1-2", "-J bert t.sh --run x"),
    ],
)
def test_every_word_that_is_not_its_own_goes_to_sbatch_as_it_is(given: str, ours: str, theirs: str, ask: Cli) -> None:
    said = shlex.split(ask("submit", "--dry-run", *given.split()).stdout)
    assert said[:4] == ["sbatch", "--hold", "--requeue", "--comment=stallwise:{}"]
    assert said[4:] == [*ours.split(), *theirs.split()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--gpus 4", "No script was given"),
        ("--gpus 4 --nodes 8 t.sh", "8 nodes do not fit the number of GPUs"),
        ("--speeds 2 t.sh", "numbers above 0 and up to 1"),
        ("--speeds 1 --run x t.sh", "say the same thing"),
        ("--run x t.sh", "give --gpus and --partition"),
        ("--model bert_large --gpu V100 --gpus 4 t.sh", "give --gpus and --partition"),
        (f"--model {'m' * 1100} t.sh", "Slurm takes 1024"),
    ],
)
def test_what_cannot_be_submitted_is_said_in_a_sentence(given: str, said: str, ask: Cli) -> None:
    assert said in ask("submit", *given.split(), code=2).stderr


def submitted(site: Site, *given: str) -> JobDescription:
    """What Slurm has of a job that was really submitted."""
    words = ["--output=/dev/null", f"--export=ALL,OUT={site.folder}/out", str(site.script), "0.1"]
    done = site.run(*site.program("submit", "--partition", "all", *given, *words))
    assert done.returncode == 0, done.stderr
    job = site.job(done.stdout.split()[-1])
    assert job.held
    assert (job.gang, job.least_nodes, job.most_nodes) == (16, 1, 16)
    found = description_in(job.comment)
    assert found is not None
    return found


def test_a_job_tells_what_it_was_told_to(site: Site) -> None:
    found = submitted(site, "--gpus", "16", "--speeds", "1,0.9,0.5", "--model", "mine", "--record", "runs")
    assert found == JobDescription(speeds=(1.0, 0.9, 0.5), model="mine", record=str(site.folder / "runs"))
    refused = site.run(*site.program("submit", "--partition", "nowhere", str(site.script)))
    assert refused.returncode == 2
    assert "sbatch refused the job" in refused.stderr
    unknown = site.run(*site.program("submit", "-p", "all", "--gpus", "4", "--model", "no", "--gpu", "V100", "x.sh"))
    assert unknown.returncode == 2
    assert "no network" in unknown.stderr.lower(), unknown.stderr


def step_s(site: Site, run: Path, link: str) -> float:
    """What the what-if says of the gang on four machines of four GPUs."""
    asked = ["--gpus", "16", "--gpus-per-node", "4", "--network", link, "--link", "300GB/s", "--json"]
    done = site.run(*site.program("whatif", str(run), *asked))
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["predicted"]["step_s"])


def test_sensitivity_is_predicted_from_a_run_record(site: Site) -> None:
    make_full_run(site.folder / "run")
    links = ["--gpu-link", "300GB/s", "--machine-link", "10gbit", "--rack-link", "2gbit"]
    found = submitted(site, "--gpus", "16", "--run", str(site.folder / "run"), *links)
    assert found.model == "train.py"
    assert found.step_s is not None
    # Sixteen GPUs are on four machines at least: in one rack as fast as can be, across racks at the slower link.
    inside, across = (step_s(site, site.folder / "run", link) for link in ("10gbit", "2gbit"))
    assert found.speeds[:2] == (1.0, 1.0)
    assert found.speeds[2] == pytest.approx(inside / across, rel=0.002)
    assert found.speeds[2] < 0.9
    assert found.step_s == pytest.approx(inside, rel=0.002)


def test_sensitivity_is_predicted_from_a_networks_name(site: Site) -> None:
    bert = submitted(site, "--gpus", "16", "--model", "bert_large", "--gpu", "V100", "--batch", "8")
    assert bert.model == "bert_large"
    resnet = submitted(site, "--gpus", "16", "--model", "resnet50", "--gpu", "V100", "--batch", "64")
    slow = ["--rack-link", "1gbit"]
    slower = submitted(site, "--gpus", "16", "--model", "resnet50", "--gpu", "V100", "--batch", "64", *slow)
    for found in (bert, resnet, slower):
        assert found.speeds[0] == 1.0
        assert list(found.speeds) == sorted(found.speeds, reverse=True)
    assert bert.speeds[2] < resnet.speeds[2], "340 million parameters against 26, for less than ten times the compute"
    assert slower.speeds[2] < resnet.speeds[2]
