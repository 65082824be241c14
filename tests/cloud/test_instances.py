"""Listed instance types under networks: stalls from what the catalog lists, sentences, rules of thumb."""

from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.analysis import open_run
from stallwise.cloud.instances import InstanceStudyRequest, NetworkStudy, study_instances
from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.report.views.instances import _TRAITS, draw, page, show_traits
from tests.conftest import ROOT, Cli
from tests.sentences import coded

P2_P3 = InstanceStudyRequest(networks=("vgg11", "resnet50"), families=("p2", "p3"), retired=True)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(tmp_path_factory.mktemp("no-prices"))


@pytest.fixture(scope="module")
def vgg11(catalog: Catalog) -> NetworkStudy:
    return study_instances(catalog, P2_P3).networks[0]


def test_every_row_adds_up(vgg11: NetworkStudy) -> None:
    assert {row.instance for row in vgg11.rows} >= {"p2.xlarge", "p2.16xlarge", "p3.8xlarge", "p3.16xlarge"}
    for row in vgg11.rows:
        assert row.low_s <= row.step_s <= row.high_s
        assert row.epoch_s == pytest.approx(1_281_167 / row.samples_per_s)
        assert row.usd == pytest.approx(row.usd_per_h * row.epoch_s / 3600)
        assert (row.interconnect is None) == (row.gpus == 1)
        stalls = [share for share in (row.interconnect, row.prep, row.fetch) if share is not None]
        assert all(0 <= share < 1 for share in stalls)
    assert [row.usd for row in vgg11.rows] == sorted(row.usd for row in vgg11.rows)


def test_gpus_that_pass_the_host_wait_longer(vgg11: NetworkStudy) -> None:
    stall = {row.instance: row.interconnect or 0.0 for row in vgg11.rows}
    assert stall["p2.16xlarge"] > stall["p2.8xlarge"]
    assert stall["p3.8xlarge"] > stall["p3.16xlarge"]


def test_rules_of_thumb_never_beat_the_pick(vgg11: NetworkStudy) -> None:
    assert [one.rule for one in vgg11.naive] == ["cheapest_per_hour", "newest_gpu", "most_gpus"]
    for one in vgg11.naive:
        assert one.extra_cost >= 0
        assert one.extra_cost == pytest.approx(one.usd / vgg11.pick.usd - 1)
    hourly = min(vgg11.rows, key=lambda row: row.usd_per_h)
    assert vgg11.naive[0].instance == hourly.instance
    assert max(row.gpus for row in vgg11.rows) == next(
        row.gpus for row in vgg11.rows if row.instance == vgg11.naive[2].instance
    )


def test_memory_that_holds_the_data_has_no_fetch_stall(catalog: Catalog) -> None:
    request = replace(P2_P3, networks=("resnet18",))
    (large,) = study_instances(catalog, replace(request, dataset_bytes=2e12)).networks
    (small,) = study_instances(catalog, replace(request, dataset_bytes=1e9)).networks
    assert all(row.fetch == pytest.approx(0.0, abs=1e-9) for row in small.rows)
    assert max(row.fetch or 0.0 for row in large.rows) > 0.1


def test_sentences_name_what_was_found(vgg11: NetworkStudy) -> None:
    assert "cheapest_epoch" in vgg11.pick.traits
    for row in vgg11.rows:
        assert set(row.traits) <= set(_TRAITS)
        text = show_traits(row)
        assert text.endswith(".")
        assert "{" not in text


def test_what_is_not_known_is_refused(catalog: Catalog) -> None:
    with pytest.raises(InputError, match="No instance type"):
        study_instances(catalog, InstanceStudyRequest(families=("nothing-like-this",)))
    with pytest.raises(UnknownNameError, match="resnet50"):
        InstanceStudyRequest(networks=("resnet5O",))


def test_a_page_and_a_view_are_drawn(catalog: Catalog) -> None:
    study = study_instances(catalog, P2_P3)
    assert draw(study).key == "instances"
    assert "p2.16xlarge" in page(study)


def test_the_command_answers_for_networks_and_for_a_run(ask: Cli, tmp_path: Path) -> None:
    p3 = ("--family", "p3", "--include-retired")
    document = coded(ask("instances", "--networks", "resnet50", *p3, "--json").stdout)
    assert document["schema"]["name"] == "stallwise/instance-study"
    (network,) = document["networks"]
    assert network["rows"][0]["traits"][0] == "cheapest_epoch"
    run = ROOT / "examples/runs/slow-data-fixed"
    html = tmp_path / "study.html"
    assert "Instance types" in ask("instances", str(run), *p3, "--html", str(html)).stdout
    assert "what rules of thumb cost" in html.read_text()


def test_a_run_has_the_step_of_whatif(catalog: Catalog) -> None:
    job = open_run(ROOT / "examples/runs/slow-data-fixed")
    request = InstanceStudyRequest(families=("p3", "g5"), retired=True, dataset_bytes=None)
    (network,) = study_instances(catalog, request, [job.model()]).networks
    assert len(network.rows) > 5
    for row in network.rows:
        answer = job.on(instance=catalog.instance(row.instance))
        assert answer.step_s == pytest.approx(row.step_s, rel=1e-12), row.instance
