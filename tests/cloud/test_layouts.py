"""What to rent for a transformer that was never run: the pick fits, keeps the limits, and is the best of its fleets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis._layout_tables import LAYOUT_FORMATS
from stallwise.analysis.layouts import (
    FIT_CONFIDENCE,
    LayoutRequest,
    best_layouts,
    fastest_layouts,
    forecast_layout_rows,
    instance_machine,
)
from stallwise.analysis.tables import read_table
from stallwise.cloud.layouts import recommend_layout
from stallwise.cloud.request import RecommendRequest
from stallwise.errors import InputError
from stallwise.hardware import load_catalog
from stallwise.workload.transformer import from_config
from tests.conftest import ROOT, Cli
from tests.sentences import coded

MODEL = str(ROOT / "examples/models/llama-70b.json")
JOB = ("recommend", MODEL, "--tokens", "100B", "--global-batch", "1024", "--gpu", "H100,A100", "--max-nodes", "16")
DAY_S = 86_400.0


def _described() -> LayoutRequest:
    model = from_config(json.loads(Path(MODEL).read_text()), "llama-70b")
    return LayoutRequest(model=model, gpu="", gpus=1, global_batch=1024)


def _request(**limits: float) -> RecommendRequest:
    return RecommendRequest(
        samples=1e11 / 4096, cold_first=False, gpus=frozenset(("H100-SXM", "A100-80GB-SXM")), max_nodes=16, **limits
    )  # type: ignore[arg-type]


def _json(ask: Cli, *more: str, code: int = 0) -> Any:
    return coded(ask(*JOB, *more, "--json", code=code).stdout)


def test_the_layout_searched_on_several_machines_is_the_best_of_each() -> None:
    catalog = load_catalog()
    instance = catalog.instance("p5.48xlarge")
    request = replace(
        _described(), gpu="H100-SXM", gpus=64, network_bytes_per_s=instance_machine(instance).network_bytes_per_s * 8
    )
    slower = replace(instance_machine(instance), network_bytes_per_s=1e9)
    fast, slow = fastest_layouts(request, [instance_machine(instance), slower])
    assert fast is not None
    assert slow is not None
    best = best_layouts(request, catalog)[0]
    assert fast.layout == best.layout
    assert fast.step_s == pytest.approx(best.step_s, rel=1e-12)
    assert slow.step_s > fast.step_s
    assert fastest_layouts(request, [replace(slower, memory_bytes=1e9)]) == [None]


def test_the_pick_is_the_cheapest_in_time_and_fits(ask: Cli) -> None:
    loose, tight = _json(ask, "--deadline", "60d"), _json(ask, "--deadline", "20d")
    for document, days in ((loose, 60), (tight, 20)):
        pick = document["pick"]
        assert document["schema"]["name"] == "stallwise/recommend-layout"
        assert pick["in_time"] >= 0.9
        assert pick["job_s"] < days * DAY_S
        assert pick["predicted"]["fit_probability"] >= 0.9
        assert pick["layout"]["data"] * pick["layout"]["tensor"] * pick["layout"]["pipeline"] == pick["gpus"]
        assert all(one["predicted"]["fit_probability"] >= 0.9 for one in document["front"])
    assert tight["pick"]["usd"] >= loose["pick"]["usd"]
    assert tight["pick"]["job_s"] <= loose["pick"]["job_s"]


def test_a_budget_buys_the_fastest_fleet() -> None:
    offers = load_catalog().offers
    cheap = recommend_layout(_described(), _request(), offers).pick
    assert cheap is not None
    budget = recommend_layout(_described(), _request(budget_usd=2 * cheap.bound_usd), offers)
    assert budget.pick is not None
    assert budget.pick.bound_usd <= 2 * cheap.bound_usd
    affordable = [one for one in budget.front if one.bound_usd <= 2 * cheap.bound_usd]
    assert budget.pick.job_s == min(one.job_s for one in affordable)


def test_time_and_cost_follow_from_the_step() -> None:
    pick = recommend_layout(_described(), _request(provision_s=100.0, startup_s=50.0), load_catalog().offers).pick
    assert pick is not None
    steps = -(-1e11 // (1024 * 4096))
    assert pick.job_s == pytest.approx(150.0 + steps * pick.predicted.step_s)
    assert pick.usd == pytest.approx((pick.job_s - 100.0) / 3600 * pick.usd_per_h * pick.nodes)


def test_the_layout_is_said_in_words(ask: Cli) -> None:
    text = ask(*JOB, "--deadline", "60d").stdout
    assert "Rent " in text
    assert "fits with" in text
    assert "ZeRO" in text


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        (("--deadline", "1h"), 1, "fastest fleet"),
        (("--instances", "g5.xlarge", "--gpu", "A10G"), 1, "fits any fleet"),
        (("--epochs", "3"), 2, "--epochs"),
        (("--spot",), 2, "--spot"),
        (("--optimizer", "sgd"), 2, "--optimizer"),
        (("--sequence", "0"), 2, "sequence"),
    ],
)
def test_what_cannot_be_recommended_is_one_sentence(ask: Cli, more: tuple[str, ...], code: int, word: str) -> None:
    assert word in ask(*JOB, *more, code=code).stderr


def test_nothing_is_picked_of_the_ultra_scale_rows_that_never_ran(shared_data: Path) -> None:
    """On every number of nodes the fastest row that fits surely enough ran; at most 3 % of what ran is said not to fit.

    Some set-ups are there several times: one that ran once fits.
    """
    catalog = load_catalog()
    table_format, _, rows = read_table(shared_data / "parallel/ultrascale_h100.csv", LAYOUT_FORMATS)
    names = ("model", "nodes", "mbs", "grad_acc", "dp", "pp", "tp", "zero")
    setups = [tuple(row.text(name) for name in names) for row in rows]
    ran = {setup for setup, row in zip(setups, rows, strict=True) if row.text("status") == "ok"}
    best: dict[tuple[str, ...], tuple[float, tuple[str, ...]]] = {}
    too_large = set()
    for setup, answer in zip(setups, forecast_layout_rows(table_format, rows, catalog), strict=True):
        assert not isinstance(answer, InputError)
        if not answer.fits:
            too_large.add(setup)
        if answer.fit_probability >= FIT_CONFIDENCE:
            best[setup[:2]] = max(best.get(setup[:2], (0.0, setup)), (answer.predicted, setup))
    assert {key: setup for key, (_, setup) in best.items() if setup not in ran} == {}
    assert len(best) >= 10
    assert len(ran & too_large) <= 0.03 * len(ran)


def test_tokens_and_batch_are_needed(ask: Cli) -> None:
    assert "--tokens" in ask("recommend", MODEL, "--global-batch", "8", code=2).stderr
    assert "--global-batch" in ask("recommend", MODEL, "--tokens", "1B", code=2).stderr
    assert "--tokens" in ask("recommend", str(ROOT / "examples/runs/images"), "--tokens", "1B", code=2).stderr
