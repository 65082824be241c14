"""One question, one answer: every way to ask about a set-up gives the same seconds, and a run is measured once."""

import json
from pathlib import Path
from typing import Any

import pytest

import stallwise
from stallwise.analysis import analysis
from stallwise.analysis.analysis import Analysis, open_run
from stallwise.analysis.fleets import nodes_of, one_fleet, steps_of
from stallwise.cloud.request import RecommendRequest
from stallwise.cluster.speed._profiles import LayerProfiles, network_of, own_profile
from stallwise.cluster.speed.base import Shape
from stallwise.hardware import load_catalog
from stallwise.web._forms import SliderPositions
from stallwise.web.predict import RentTerms, predict_own, predict_rented
from stallwise.web.runs import OpenRun
from tests.conftest import ROOT, Cli
from tests.report.made_runs import make_full_run

SHIPPED = ROOT / "examples/runs/images"
CLOSE = 1e-9

INSTANCES = ("p5.48xlarge", "p4d.24xlarge", "g5.12xlarge", "g4dn.12xlarge", "p3.16xlarge")
"""On one or on two nodes, for the shipped run (CPUs) and a made one (A10G): ten set-ups."""


@pytest.fixture(scope="module", params=["shipped", "made"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "shipped":
        return SHIPPED
    folder = tmp_path_factory.mktemp("one-answer") / "run"
    make_full_run(folder)
    return folder


def asked(ask: Cli, *words: str) -> Any:
    return json.loads(ask(*words, "--json").stdout)


def on_page(job: Analysis, run: Path) -> OpenRun:
    catalog = load_catalog()

    def offers_of(instance: Any) -> list[Any]:
        return [offer for offer in catalog.offers if offer.instance == instance]

    return OpenRun(str(run), job, offers_of)


def terms() -> RentTerms:
    return RentTerms(provision_s=0.0, startup_s=0.0, assumptions=(), losses=lambda *_: pytest.fail("no spot here"))


@pytest.mark.parametrize(("instance", "nodes"), list(zip(INSTANCES, (1, 2, 1, 2, 2), strict=True)))
def test_rented_machines_have_one_step(ask: Cli, run: Path, instance: str, nodes: int) -> None:
    job = stallwise.open_run(run)
    python = job.on(instance=instance, nodes=nodes).step_s
    words = ("--instance", instance, "--nodes", str(nodes))
    whatif = asked(ask, "whatif", str(run), *words, "--no-curve")
    predict = asked(ask, "predict", str(run), *words)
    slider = SliderPositions(instance=f"{job.catalog.instance(instance).cloud}/{instance}", nodes=nodes, samples=1e6)
    page = predict_rented(on_page(job, run), slider, terms()).option
    kinds, _, _ = nodes_of(job.model(), [job.catalog.instance(instance)])
    fleet = one_fleet(kinds[0], used=kinds[0].gpus, nodes=nodes)
    recommended = steps_of(job.model(), fleet, RecommendRequest(samples=1e6, scale_batch=True).settings)
    steps = {
        "whatif": whatif["predicted"]["step_s"],
        "predict": predict["predicted"]["step_s"],
        "recommend": float(recommended.step_s[0]),
        "ui": page.step_s,
    }
    assert steps == dict.fromkeys(steps, pytest.approx(python, rel=CLOSE))
    assert whatif["setup"] == predict["setup"], "and the same assumptions"
    assert whatif["setup"]["workers"] == page.workers
    assert whatif["setup"]["global_batch"] == page.batch


@pytest.mark.parametrize("instance", INSTANCES[:2])
def test_a_recommendation_prints_that_step(ask: Cli, run: Path, instance: str) -> None:
    job = stallwise.open_run(run)
    words = ("--instances", instance, "--max-nodes", "1", "--samples", "1e7", "--scale-batch")
    found = asked(ask, "recommend", str(run), *words)
    whole = next(one for one in found["front"] if one["gpus"] == job.catalog.instance(instance).gpu_count)
    assert whole["step_s"] == pytest.approx(job.on(instance=instance).step_s, rel=CLOSE)
    api = stallwise.recommend(job, samples=1e7, instances=[instance], max_nodes=1, scale_batch=True)
    assert [one.step_s for one in api.front] == [one["step_s"] for one in found["front"]]


@pytest.mark.parametrize(
    ("slider", "words"),
    [
        ({}, ()),
        ({"workers": 2}, ("--workers", "2")),
        ({"nodes": 3, "used": 2, "network_gbit": 25, "link_gbit": 400},
         ("--nodes", "3", "--gpus-per-node", "2", "--network", "25gbit", "--link", "400gbit")),
        ({"nodes": 1, "used": 1, "keep_batch": True}, ("--nodes", "1", "--gpus-per-node", "1", "--global-batch")),
    ],
)  # fmt: skip
def test_own_machines_have_one_step(ask: Cli, run: Path, slider: dict[str, Any], words: tuple[str, ...]) -> None:
    job = stallwise.open_run(run)
    if "--global-batch" in words:
        words = (*words, f"{job.model().global_batch:g}")
    found = asked(ask, "whatif", str(run), *words, "--no-curve")
    page, _ = predict_own(on_page(job, run), SliderPositions(**slider))
    assert page.step_s == pytest.approx(found["predicted"]["step_s"], rel=CLOSE)


def test_simulated_gangs_have_the_step_of_whatif(ask: Cli, run: Path) -> None:
    network = network_of("gpu=100GB/s,machine=10gbit,rack=1gbit")
    profile = own_profile(run)
    speeds = LayerProfiles({"m": profile.gradients}, network, ("machine", "rack"), own={"m": profile})
    for gpus, spans, rate in ((4, (1, 1), "10gbit"), (8, (2, 1), "10gbit"), (8, (2, 2), "1gbit")):
        words = ("--gpus", str(gpus), "--gpus-per-node", "4", "--link", "100GB/s", "--network", rate, "--no-curve")
        found = asked(ask, "whatif", str(run), *words)["predicted"]["step_s"]
        tiers = speeds.tiers(Shape(gpus, spans))
        simulated = profile.step_s(gpus, spans[0], tiers)
        if open_run(run).job.backend == "nccl":
            assert simulated == pytest.approx(found, rel=CLOSE)
        else:  # gloo has no double tree, which the cluster's GPUs have
            assert simulated <= found * (1 + CLOSE)


def test_a_run_is_measured_once(ask: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    measure = analysis.measure

    def counted(record: Any) -> Any:
        calls.append(record.path)
        return measure(record)

    monkeypatch.setattr(analysis, "measure", counted)
    for words in (
        ("recommend", str(run), "--samples", "1e7", "--instances", "p4d.24xlarge"),
        ("whatif", str(run), "--gpus", "2"),
        ("predict", str(run), "--gpu", "H100"),
        ("report", str(run), "--html", "page.html"),
        ("deflate", str(run)),
    ):
        calls.clear()
        ask(*words, "--json")
        assert len(calls) == 1, words


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu", "H1000"), "No GPU is called 'H1000'"),
        (("--instance", "p5.49xlarge"), "p5.48xlarge"),
        (("--gpu", "T4", "--instance", "p4d.24xlarge"), "has A100-40GB-SXM, not T4"),
        (("--gpus", "64", "--nodes", "3"), "multiple of 3"),
        (("--batch", "2x", "--global-batch", "64"), "not both"),
        (("--batch", "many"), "samples per GPU like 64"),
        (("--workers", "-1"), "from 0, or auto"),
        (("--instance", "p4d.24xlarge", "--gpus-per-node", "9"), "has 8 GPUs, not 9"),
        (("--global-batch", "7", "--gpus", "2", "--gpus-per-node", "2", "--link", "1GB/s"), "shared evenly"),
    ],
)
def test_targets_that_cannot_be_answered_are_one_sentence(
    ask: Cli, run: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = ask("whatif", str(run), *words, code=2)
    assert done.stdout == ""
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_assumptions_in_force_are_printed(ask: Cli, run: Path) -> None:
    text = ask("whatif", str(run), "--instance", "p5.48xlarge", "--no-curve").stdout
    for words in ("set-up", "8 × H100", "p5.48xlarge", "per GPU, global batch", "measured:", "loader worker", "cores"):
        assert words in text
    assert "auto" in ask("whatif", "--help").stdout


def test_a_target_and_keywords_go_together(run: Path) -> None:
    job = stallwise.open_run(run)
    both = job.on(stallwise.Target(gpus=1), gpu="H100")
    assert (both.setup.gpus, both.setup.device) == (1, "H100-SXM")
    assert both.step_s == job.on(gpu="H100", gpus=1).step_s
    with pytest.raises(TypeError):
        job.on(colour="red")


def test_results_are_pages_in_notebooks(run: Path) -> None:
    job = stallwise.open_run(run)
    assert "<article" in job._repr_html_()  # type: ignore[attr-defined]
    assert "<article" in job.on(gpu="H100", gpus=1)._repr_html_()  # type: ignore[attr-defined]
    same = stallwise.compare(job, run)
    assert all(phase.relative.value == 0 for phase in same.phases)
