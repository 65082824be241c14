"""`stallwise whatif CONFIG.json` and tables of layouts, by the real command line."""

import csv
import json
from pathlib import Path

import pytest

from stallwise.analysis.layouts import LayoutRequest, all_layouts, best_layouts, predict_layout
from stallwise.hardware import load_catalog
from stallwise.workload.transformer import from_config
from tests.conftest import ROOT, Cli
from tests.sentences import coded

MODEL = str(ROOT / "examples/models/llama-70b.json")
RUN = str(ROOT / "examples/runs/images")
ASKED = ("whatif", MODEL, "--gpu", "H100", "--gpus", "64", "--global-batch", "256")


def test_a_layout_is_answered_in_words_and_as_json(ask: Cli) -> None:
    layout = ("--tp", "8", "--pp", "2", "--zero", "1", "--micro-batch", "1")
    assert "fits with" in ask(*ASKED, *layout).stdout
    document = coded(ask(*ASKED, *layout, "--json").stdout)
    assert document["schema"]["name"] == "stallwise/layout"
    predicted = document["predicted"]
    assert predicted["low_s"] < predicted["step_s"] < predicted["high_s"]
    assert sum(predicted["parts_s"].values()) == pytest.approx(predicted["step_s"])
    assert sum(predicted["memory_parts_bytes"].values()) == pytest.approx(predicted["memory_bytes"])
    assert predicted["fits"] == (predicted["fit_probability"] >= 0.5)
    assert predicted["gpus"] == 64


def test_the_best_layout_is_the_fastest_of_all_that_fit(ask: Cli) -> None:
    document = coded(ask(*ASKED, "--best-layout", "--json").stdout)
    steps = [one["step_s"] for one in document["layouts"]]
    assert steps == sorted(steps)
    assert document["predicted"]["step_s"] == steps[0]
    request = LayoutRequest(
        model=from_config(json.loads(Path(MODEL).read_text()), "llama-70b"), gpu="H100", gpus=64, global_batch=256
    )
    found = best_layouts(request, load_catalog())
    assert document["count"] == len(found) < len(list(all_layouts(request)))
    assert all(one.layout.gpus == 64 and one.layout.global_batch == 256 for one in found)
    assert all(one.fit_probability >= 0.8 for one in found)
    best = found[0].layout
    again = predict_layout(
        LayoutRequest(
            model=request.model,
            gpu="H100",
            gpus=64,
            global_batch=256,
            tensor=best.tensor,
            pipeline=best.pipeline,
            zero=best.zero,
            micro_batch=best.micro_batch,
            checkpointing=best.checkpointing,
        ),
        load_catalog(),
    )
    assert again.step_s == pytest.approx(found[0].step_s, rel=1e-12)


def test_what_is_given_stays_in_the_search(ask: Cli) -> None:
    document = coded(ask(*ASKED, "--best-layout", "--tp", "8", "--zero", "1", "--json").stdout)
    assert {(one["layout"]["tensor"], one["layout"]["zero"]) for one in document["layouts"]} == {(8, 1)}


def test_sharded_parameters_beside_tensor_groups_are_searched_when_asked_for(ask: Cli) -> None:
    document = coded(ask(*ASKED, "--best-layout", "--tp", "8", "--zero", "3", "--json").stdout)
    assert {(one["layout"]["tensor"], one["layout"]["zero"]) for one in document["layouts"]} == {(8, 3)}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("whatif", MODEL, "--gpu", "H100", "--gpus", "64"), "--global-batch"),
        ((*ASKED, "--workers", "3"), "--workers"),
        ((*ASKED, "--tp", "7"), "64 GPUs"),
        ((*ASKED, "--tp", "0"), "at least 1"),
        ((*ASKED, "--pp", "-2"), "at least 1"),
        ((*ASKED, "--zero", "9"), "ZeRO"),
        ((*ASKED, "--micro-batch", "3"), "--micro-batch"),
        ((*ASKED, "--activation-checkpointing", "some"), "selective"),
        ((*ASKED, "--sequence", "0"), "sequence"),
        (("whatif", RUN, "--tp", "2"), "--tp"),
        (("whatif", RUN, "--zero", "0"), "--zero"),
        ((*ASKED, "--optimizer", "sgd"), "--optimizer"),
        ((*ASKED, "--ep", "8"), "--ep"),
        ((*ASKED, "--html", "page.html"), "--html"),
        (("whatif", MODEL, "--gpu", "H100", "--gpus", "1", "--global-batch", "1", "--best-layout"), "fits no layout"),
        ((*ASKED, "--best-layout", "--tp", "7"), "7 tensor ranks. Option: --tp."),
        ((*ASKED, "--best-layout", "--pp", "7"), "--pp"),
    ],
)
def test_odd_questions_are_one_sentence(ask: Cli, arguments: tuple[str, ...], word: str) -> None:
    assert word in ask(*arguments, code=2).stderr


def test_published_tables_are_answered_row_by_row(ask: Cli, tmp_path: Path) -> None:
    rows = [
        ["gpu", "gpus_per_node", "model", "nodes", "mbs", "grad_acc", "gbs", "dp", "pp", "tp", "zero", "mem_gb"],
        ["H100", "8", "8B", "2", "1", "64", "256", "4", "1", "4", "1", "1e9"],
        ["H100", "8", "80B", "1", "1", "256", "256", "1", "1", "8", "0", ""],
        ["H100", "8", "9B", "1", "1", "256", "256", "1", "1", "8", "0", ""],
        ["V100", "8", "8B", "1", "1", "256", "256", "1", "1", "8", "0", ""],
    ]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    document = coded(ask("predict", "--table", "table.csv", "--json").stdout)
    first, second, third, fourth = document["rows"]
    assert first["low"] < first["predicted"] < first["high"]
    assert first["fits"] is True
    assert 20e9 < first["memory_bytes"] < 45e9, "what was measured is not read"
    assert second["fits"] is False
    assert third["predicted"] is None
    assert "9B" in third["reason"]["text"]
    assert "V100" in fourth["reason"]["text"]
    assert "8B" in ask("predict", "--table", "table.csv").stdout
