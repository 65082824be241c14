"""`stallwise whatif` on runs and layer files, and one sentence for every way it cannot answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from stallwise.hardware.coefficients import load_fitted
from stallwise.hardware.machine import encode_machine
from stallwise.model.exchange.fabric import DDP_COPY_S_PER_BYTE
from stallwise.model.step.setups import MET_HIGH
from tests.conftest import Cli, texts
from tests.report.made_runs import STEP_S, make_full_run
from tests.report.page_reader import PageReader
from tests.run.made import make_run
from tests.sentences import coded

HEADER = "layer,fwd_compute_ns,input_grad_compute_ns,weight_grad_compute_ns,weight_grad_collective,weight_grad_bytes\n"
COMPUTE_S = 4 * 0.006

KEYS = [
    "schema", "name", "source", "measured", "baseline", "model_error", "setup", "compute", "memory", "changed",
    "gpus_per_node", "links", "predicted", "speedup", "speedup_low", "speedup_high", "curve", "curve_ends",
    "assumptions",
]  # fmt: skip
ANSWER = ["gpus", "step_s", "low_s", "high_s", "samples_per_s", "efficiency", "split", "binds", "bound_by", "binding"]


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Four layers of 2 ms forward and 4 ms backward, 10 MB of gradients each; 64 samples."""
    path = tmp_path / "net_b64.csv"
    rows = [f"layer{i},2000000,2000000,2000000,ALLREDUCE,10000000\n" for i in range(4)]
    path.write_text(HEADER + "".join(rows))
    return path


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes of two ranks; the exchange takes 24 of 100 ms and is not told apart by tier."""
    folder = tmp_path_factory.mktemp("whatif") / "run"
    make_full_run(folder)
    return folder


def _json(cli: Cli, *arguments: str | Path) -> Any:
    done = cli("whatif", *map(str, arguments), "--json")
    assert done.stderr == ""
    return coded(done.stdout)


def _no(cli: Cli, *arguments: str | Path) -> str:
    """The one sentence, or two, on stderr."""
    done = cli("whatif", *map(str, arguments), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("stallwise: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_run_of_one_block_has_no_bounds_and_says_so(cli: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "short", blocks=1)
    found = _json(cli, tmp_path / "short", "--workers", "4")
    assert found["predicted"]["step_s"] > 0
    assert found["predicted"]["low_s"] is None
    assert any("one block" in said for said in texts(found["assumptions"]))
    assert "nan" not in cli("whatif", str(tmp_path / "short")).stdout


def test_the_unchanged_run_is_predicted_beside_what_was_measured(cli: Cli, run: Path) -> None:
    found = _json(cli, run)
    assert list(found) == KEYS
    assert list(found["predicted"]) == ANSWER
    assert found["changed"] == []
    assert found["measured"]["step_s"] == pytest.approx(STEP_S)
    assert found["baseline"]["gpus"] == 4
    # Fitted to the run's exchange, and nothing else stalls: not a prediction, but it must close.
    assert found["model_error"] == pytest.approx(0, abs=1e-3)
    assert found["baseline"]["split"]["exchange_s"] == pytest.approx(0.024, rel=0.01)
    assert {link["origin"] for link in found["links"]} == {"fitted"}
    assert any("is the one with which the model's exchange" in said for said in texts(found["assumptions"]))


def test_the_screen_has_every_part(cli: Cli, run: Path) -> None:
    text = cli("whatif", str(run), "--gpus", "64").stdout
    for expected in ("GPUs: 4 on 2 nodes → 64 on 32 nodes", "measured 100 ms", "predicted", "compute", "exchange",
                     "critical path", "1,024", "efficiency", "assumed", "fitted to the exchange"):  # fmt: skip
        assert expected in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_network_is_enough_for_a_layer_file(cli: Cli, layers: Path) -> None:
    found = _json(cli, layers, "--gpus", "8", "--network", "10gbit", "--latency", "0s", "--overlap", "fused")
    exchange_s = 2 * 7 / 8 * 40e6 / 1.25e9
    assert found["predicted"]["step_s"] == pytest.approx(COMPUTE_S + exchange_s)
    assert found["predicted"]["samples_per_s"] == pytest.approx(8 * 64 / (COMPUTE_S + exchange_s))
    assert found["predicted"]["high_s"] == pytest.approx(MET_HIGH * (COMPUTE_S + 1.12 * exchange_s))
    assert found["measured"] is None
    assert found["baseline"]["low_s"] is None, "the file says nothing about noise"
    assert [point["gpus"] for point in found["curve"]] == [2**n for n in range(11)]
    assert found["curve_ends"] is None


@pytest.mark.parametrize(
    ("options", "faster"),
    [
        (("--network", "20gbit"), True),
        (("--compress", "fp16"), True),
        (("--compute", "2x"), True),
        (("--accumulate", "4"), True),
        (("--batch", "2x"), True),
        (("--network", "1gbit"), False),
        (("--latency", "10ms"), False),
        (("--overlap", "none"), False),
        (("--overlap", "wfbp"), False),
        (("--gpus", "64"), None),
        (("--bucket", "5MB"), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_every_option_alone_does_something(
    ask: Cli, layers: Path, options: tuple[str, ...], faster: bool | None
) -> None:
    base = {"--gpus": "8", "--network": "10gbit"}
    before = _json(ask, layers, *_flat(base), "--no-curve")["predicted"]
    after = _json(ask, layers, *_flat(base | {options[0]: options[1]}), "--no-curve")["predicted"]
    assert after["step_s"] != before["step_s"]
    if faster is not None:
        assert (after["samples_per_s"] > before["samples_per_s"]) == faster


def _flat(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def test_an_instance_brings_its_gpus_and_listed_links(ask: Cli, layers: Path) -> None:
    found = _json(ask, layers, "--instance", "p4d.24xlarge", "--nodes", "2")
    assert (found["predicted"]["gpus"], found["gpus_per_node"]) == (16, 8)
    assert [(link["tier"], link["origin"]) for link in found["links"]] == [
        ("inside a node", "listed"),
        ("between nodes", "listed"),
    ]
    inside, between = (link["bytes_per_s"] for link in found["links"])
    assert inside == pytest.approx(300e9 * load_fitted("scaling").weights["attained:nvlink"])
    assert between == 50e9
    assert any("A100" in text for text in texts(found["assumptions"]))


def test_a_measured_link_goes_before_a_listed_one(ask: Cli, layers: Path, machine: Path) -> None:
    found = _json(ask, layers, "--instance", "p4d.24xlarge", "--machine", machine)
    (link,) = found["links"]
    assert (link["origin"], link["ranks"], link["low"], link["high"]) == ("measured", 2, 0.9, 1.2)
    assert link["bytes_per_s"] == pytest.approx(1e9)
    assert found["predicted"]["gpus"] == 8


def test_copies_of_gradients_on_the_host_come_on_top_of_a_probe(ask: Cli, layers: Path, machine: Path) -> None:
    question = (layers, "--machine", machine, "--gpus", "2")
    on_devices = _json(ask, *question)["predicted"]["step_s"]
    machine.write_text(machine.read_text().replace('"nccl"', '"gloo"'))
    # The step waits for the last bucket, which holds three of the four layers.
    assert _json(ask, *question)["predicted"]["step_s"] - on_devices == pytest.approx(3e7 * DDP_COPY_S_PER_BYTE)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A record of one node with two ranks: an all-reduce takes 1 ns per byte, that is 1 GB/s."""
    from datetime import UTC, datetime

    from stallwise.hardware.machine import FitRecord, LineRecord, LinkRecord, MachineRecord, PointRecord

    line = LineRecord(latency_s=1e-4, s_per_byte=1e-9)
    point = PointRecord(size_bytes=2**20, time_s=1.1e-3, low_s=1e-3, high_s=1.2e-3, repeats=20)
    fit = FitRecord(small=line, large=line, break_bytes=None, low=0.9, high=1.2)
    link = LinkRecord(scope="inside", ranks=2, nodes=1, backend="nccl", points=(point,), fit=fit)
    path = tmp_path / "machine.json"
    record = MachineRecord(
        created=datetime(2026, 1, 2, tzinfo=UTC), stallwise_version="0", ranks=2, nodes=1, links=(link,)
    )
    path.write_bytes(encode_machine(record))
    return path


def test_exchange_times_without_sizes_are_used_as_they_are(ask: Cli, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("layer,backward_s,comm_s\na,0.01,0.02\nb,0.01,0.03\n")
    found = _json(ask, path, "--overlap", "none")
    assert found["predicted"]["gpus"] is None
    assert found["predicted"]["step_s"] == pytest.approx(0.07)
    assert found["baseline"]["step_s"] == pytest.approx(0.01 + 0.03 + 0.02)
    assert found["curve"] == []
    assert "size of its gradient is not known" in _no(ask, path, "--gpus", "4", "--network", "10gbit")


def test_the_page_is_whole_and_needs_nothing_else(cli: Cli, run: Path, tmp_path: Path) -> None:
    done = cli("whatif", str(run), "--gpus", "64", "--html", "page.html")
    assert "page.html" in done.stderr
    text = (tmp_path / "page.html").read_text()
    read = PageReader(text)
    assert "http" not in text
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "img", "iframe"})
    curve, timeline = [svg for svg in read.named("svg") if svg["class"] == "picture"]
    assert curve["role"] == timeline["role"] == "img"
    for expected in ("64 GPUs on 32 nodes", "1,024", "Assumed", "As it is:"):
        assert expected in read.text
    assert "nan" not in text
    assert "None" not in read.text


def test_a_page_that_cannot_be_written_is_said(cli: Cli, layers: Path) -> None:
    done = cli("whatif", str(layers), "--html", "no/such/folder/page.html", code=2)
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--overlap", "wfpb"), "Did you mean wfbp"),
        (("--gpus", "0"), "gpus must be a whole number from 1 to 1,000,000, not 0. Option: --gpus."),
        (("--gpus", "-4"), "gpus must be a whole number from 1 to 1,000,000, not -4"),
        (("--nodes", "0"), "nodes must be a whole number from 1 to 1,000,000, not 0. Option: --nodes."),
        (("--gpus", "8"), "--network"),
        (("--gpus", "8", "--link", "300"), "Type 300gbit or 300GB/s. Option: --link."),
        (("--gpus", "8", "--gpus-per-node", "8", "--network", "10gbit"), "--link"),
        (("--gpus", "9", "--nodes", "2"), "spread evenly"),
        (("--gpus", "9", "--nodes", "2", "--gpus-per-node", "4"), "8 GPUs, not 9"),
        (("--network", "fast"), "is not a rate"),
        (("--network", "0gbit"), "The rate of a network must be above 0"),
        (("--network", "-10gbit"), "is not a rate"),
        (("--latency", "-1us"), "is not a time"),
        (("--batch", "-2x"), "is not a factor"),
        (("--batch", "0"), "or a factor like 2x"),
        (("--compute", "nan"), "is not a factor"),
        (("--bucket", "0MB"), "--bucket takes a size above 0"),
        (("--bucket", "5MB", "--overlap", "wfbp"), "has no buckets"),
        (("--compress", "int4"), "--compress takes fp16"),
        (("--accumulate", "0"), "at least 1"),
        (("--workers", "-1"), "--workers takes a whole number from 0"),
        (("--workers", "4"), "No loader was seen"),
        (("--cached", "80%"), "No loader was seen"),
        (("--cached", "120%"), "is not a fraction"),
        (("--memory", "64GiB"), "size of the dataset"),
        (("--memory", "64GiB", "--cached", "80%"), "not both. Options: --memory, --cached."),
        (("--storage", "2x"), "No loader was seen"),
        (("--instance", "p4d.24xlarg"), "Did you mean"),
        (("--machine", "nothing.json"), "cannot be read"),
        (("--curve",), "The curve cannot be drawn"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_end_in_one_sentence(ask: Cli, layers: Path, options: tuple[str, ...], said: str) -> None:
    assert said in _no(ask, layers, *options)


def test_a_link_alone_puts_all_gpus_on_one_node(ask: Cli, layers: Path) -> None:
    found = _json(ask, layers, "--gpus", "8", "--link", "300GB/s")
    assert found["gpus_per_node"] == 8
    assert [point["gpus"] for point in found["curve"]] == [1, 2, 4, 8]
    assert "16 GPUs need more than one node of 8" in found["curve_ends"]["text"]


def test_a_machine_record_without_the_needed_link_is_said(ask: Cli, layers: Path, machine: Path) -> None:
    said = _no(ask, layers, "--machine", machine, "--gpus", "16")
    assert "machine.json holds a link between the GPUs of a node" in said
    assert "--network" in said


def test_a_run_without_layers_is_said(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "light", [0.1, 0.1, 0.1, 0.1])
    found = json.loads(ask("whatif", str(tmp_path / "light"), "--json").stdout)
    assert any("holds no layers" in words for words in texts(found["assumptions"]))
    assert "only single GPUs" in _no(ask, "light", "--gpus", "2", "--network", "1gbit")


def test_foreign_files_and_folders_are_said(ask: Cli, tmp_path: Path) -> None:
    (tmp_path / "foreign.txt").write_text("once upon a time\n")
    (tmp_path / "empty.csv").write_text("")
    assert "is no layer trace known here" in _no(ask, "foreign.txt")
    _no(ask, "empty.csv")
    _no(ask, "nowhere")
    (tmp_path / "folder").mkdir()
    _no(ask, "folder")
    assert "no layer trace" in _no(ask, "foreign.txt", "--gpus", "2")


def test_negative_and_missing_times_are_said(ask: Cli, tmp_path: Path) -> None:
    for number, value in enumerate(("-1", "nan", "")):
        path = tmp_path / f"bad{number}.csv"
        path.write_text(f"{HEADER}a,{value},1,1,ALLREDUCE,4\n")
        _no(ask, path.name)
    (tmp_path / "none.csv").write_text(HEADER)
    _no(ask, "none.csv")


def test_a_cache_needs_a_cold_phase(ask: Cli, run: Path) -> None:
    assert "no cold phase" in _no(ask, run, "--cached", "80%")


def test_tiers_that_were_not_told_apart_are_not_changed_alone(ask: Cli, run: Path) -> None:
    assert "Give both rates. Options: --link, --network." in _no(ask, run, "--network", "100gbit")
    both = _json(ask, run, "--network", "100gbit", "--link", "300GB/s")
    assert both["predicted"]["step_s"] < STEP_S


FLEET = ("--gpus", "16", "--gpus-per-node", "4", "--link", "10GB/s", "--network", "10gbit", "--no-curve")


@pytest.mark.parametrize(
    "options",
    [
        ("--overlap", "horovod", "--bucket", "16MiB", "--cycle", "2ms"),
        ("--overlap", "p3", "--bucket", "1MiB"),
        ("--overlap", "bytescheduler"),
        ("--overlap", "hybrid", "--bucket", "8MiB"),
        ("--overlap", "local-sgd", "--accumulate", "8"),
        ("--compress", "gtopk:0.1%"),
        ("--compress", "topk"),
        ("--framework", "caffe-mpi"),
        ("--framework", "MXNet"),
    ],
    ids=" ".join,
)
def test_every_way_of_exchanging_has_a_step(ask: Cli, layers: Path, options: tuple[str, ...]) -> None:
    found = _json(ask, layers, *FLEET, *options)
    passes = 8 if "local-sgd" in options else 1
    assert found["predicted"]["step_s"] >= passes * COMPUTE_S * (1 - 1e-9)
    assert found["changed"]


def test_what_means_nothing_together_is_said(ask: Cli, layers: Path) -> None:
    assert "--cycle is Horovod's" in _no(ask, layers, *FLEET, "--cycle", "1ms")
    assert "'caffe' is not one of 'caffe-mpi'" in _no(ask, layers, *FLEET, "--framework", "caffe")
    assert "gtopk:0.1%" in _no(ask, layers, *FLEET, "--compress", "top")


def test_the_best_buckets_are_named_and_written(ask: Cli, run: Path, tmp_path: Path) -> None:
    from stallwise.buckets import read_plan

    plan_file = tmp_path / "plan.json"
    done = ask("whatif", str(run), "--best-buckets", str(plan_file), "--no-curve", "--json")
    found = json.loads(done.stdout)
    assert list(found) == [*KEYS, "best_buckets"]
    best, plan = found["best_buckets"], read_plan(plan_file)
    assert best["planned_s"] <= best["own_s"] * (1 + 1e-9)
    assert len(best["plan"]["buckets"]) == len(plan.buckets)
    assert plan.bytes == sum(bucket.bytes for bucket in plan.buckets)
    assert best["own_s"] == pytest.approx(found["predicted"]["step_s"])
    assert "best buckets" in ask("whatif", str(run), "--best-buckets", str(plan_file), "--no-curve").stdout


def test_buckets_need_a_run_and_a_link(ask: Cli, layers: Path, tmp_path: Path) -> None:
    assert "Give a run" in _no(ask, layers, *FLEET, "--best-buckets", tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()
