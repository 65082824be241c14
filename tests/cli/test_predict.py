"""`stallwise predict`: every kind of table, a run on another GPU, and one sentence for every way it cannot answer."""

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.figures import Figures
from tests.report.made_runs import make_full_run
from tests.sentences import coded

TABLES = {
    "lambda": "config,gpu,n_gpus,nvlink_bridge,era,precision,model,batch_per_gpu,throughput,unit,as_of\n"
    "4x RTX A5500,RTXA5500,4,False,ngc22,amp,resnet50,1600.0,,img/s,2024-07-24\n"
    "H200,H200,1,False,ngc23+,fp32,bert_large_squad,,,sequences/s,2025-12-17\n",
    "train": "model,gpu,precision,layout,torch,img_size,batch,samples_per_s,step_ms,params_m,fwd_gmacs,macts,"
    "macs_scaled\n"
    "efficientnet_b0,RTX3090,amp,nhwc,1.12,224,256,,,5.29,0.4,6.75,False\n"
    "no_such_thing,RTX3090,amp,nchw,1.13,224,256,,,5.29,0.4,6.75,False\n",
    "infer": "model,gpu,precision,layout,torch,compiled,img_size,batch,samples_per_s,step_ms,params_m,fwd_gmacs,macts\n"
    "resnet50,RTX5090,amp,nchw,2.9,False,224,256,,,25.56,4.11,11.11\n"
    "vit_base_patch16_224,RTX4090,amp,nchw,2.4,True,224,256,,,86.57,16.87,16.49\n",
    "gavel": "table,gpu,placement,model,batch_size,n_gpus,steps_per_s\n"
    "simulation,K80,packed,Transformer,32.0,8,\n"
    "simulation,V100,spread,CycleGAN,,1,\n",
    "llm": "model,seqlen,batch,mode,option,measured_ms,measured_fwd_ms,measured_bwd_ms,out_of_distribution,gpu\n"
    "gpt3_27,2048,1,train,,,,,True,H100\n"
    "gpt2_large,1024,16,train,tp4,,,,True,A100-40GB-SXM\n",
}
HEADER = TABLES["infer"].split("\n")[0]


def _written(folder: Path, text: str) -> str:
    path = folder / "table.csv"
    path.write_text(text)
    return str(path)


def _rows(ask: Cli, path: str) -> Any:
    done = ask("predict", "--table", path, "--json")
    assert done.stderr == ""
    return json.loads(done.stdout)["rows"]


def _no(ask: Cli, *arguments: str) -> str:
    done = ask("predict", *arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("stallwise: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def _reasons(ask: Cli, path: str) -> list[str]:
    """Why rows have no prediction; every other row has one."""
    rows = _rows(ask, path)
    assert all(("reason" in row) == (row["predicted"] is None) for row in rows)
    reasons = [row["reason"]["text"] for row in rows if "reason" in row]
    shown = " ".join(ask("predict", "--table", path).stdout.split())
    assert f"{len(rows) - len(reasons)} of {len(rows)} rows are answered" in shown
    return reasons


@pytest.mark.parametrize("kind", TABLES)
def test_every_kind_of_table_is_recognised_and_answered(ask: Cli, tmp_path: Path, kind: str) -> None:
    path = _written(tmp_path, TABLES[kind])
    found = _rows(ask, path)
    header = TABLES[kind].split("\n")[0].split(",")
    assert len(found) == 2
    for row in found:
        assert list(row) == [*header, "predicted", "low", "high"]
        assert 0 < row["low"] < row["predicted"] < row["high"]
        assert row["high"] / row["low"] < 20
    assert "80 % interval" in ask("predict", "--table", path).stdout


@pytest.mark.parametrize("kind", TABLES)
def test_truth_and_rivals_are_never_read(ask: Cli, tmp_path: Path, kind: str) -> None:
    """Nonsense in their columns, or no such columns at all, changes no prediction."""
    rows = list(csv.DictReader(TABLES[kind].splitlines()))
    truth = [c for c in rows[0] if c in ("throughput", "samples_per_s", "step_ms", "steps_per_s") or "measured" in c]
    with_nonsense = [{**row, **dict.fromkeys(truth, "lies"), "habitat_pred_ms": "-1e99"} for row in rows]
    without = [{c: v for c, v in row.items() if c not in truth} for row in rows]
    answers = []
    for made in (rows, with_nonsense, without):
        with (tmp_path / "t.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(made[0]))
            writer.writeheader()
            writer.writerows(made)
        answers.append([(r["predicted"], r["low"], r["high"]) for r in _rows(ask, str(tmp_path / "t.csv"))])
    assert answers[0] == answers[1] == answers[2]


SHARED = {
    "lambda_pytorch.csv": ("throughput",),
    "timm_train_rtx3090.csv": ("samples_per_s", "step_ms"),
    "timm_infer_cross_gpu.csv": ("samples_per_s", "step_ms"),
    "gavel_steps_per_s.csv": ("steps_per_s",),
    "neusight_llm_latency.csv": (
        "measured_ms", "measured_fwd_ms", "measured_bwd_ms", "neusight_pred_ms", "roofline_pred_ms", "habitat_pred_ms",
        "li_et_al_pred_ms",
    ),
}  # fmt: skip


@pytest.mark.parametrize("file", SHARED)
def test_whole_tables_are_answered_the_same_with_their_truth_shuffled(
    ask: Cli, tmp_path: Path, shared_data: Path, file: str
) -> None:
    with (shared_data / "throughput" / file).open(newline="") as lines:
        rows = list(csv.DictReader(lines))[:400]
    others = {column: [row[column] for row in rows][::-1] for column in SHARED[file]}
    shuffled = [{**row, **{c: values[i] for c, values in others.items()}} for i, row in enumerate(rows)]
    answers = []
    for made in (rows, shuffled):
        with (tmp_path / file).open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(made[0]))
            writer.writeheader()
            writer.writerows(made)
        found = _rows(ask, str(tmp_path / file))
        assert len(found) == len(rows)
        answers.append([(row["predicted"], row["low"], row["high"]) for row in found])
    assert answers[0] == answers[1]
    assert all(0 < low < predicted < high for predicted, low, high in answers[0])


def _many(folder: Path, count: int) -> str:
    names = ("resnet50", "vit_base_patch16_224", "my_own_net", "convnext_tiny", "efficientnet_b3")
    lines = [
        f"{names[i % 5]},RTX{4090 + 1000 * (i % 2)},amp,nchw,2.9,False,{224 + 32 * (i % 3)},256,,,25.56,4.11,11.11"
        for i in range(count)
    ]
    return _written(folder, "\n".join((HEADER, *lines)) + "\n")


def test_many_rows_are_all_answered(ask: Cli, tmp_path: Path) -> None:
    assert len(_rows(ask, _many(tmp_path, 600))) == 600


@pytest.mark.truth
def test_thousands_of_rows_take_seconds(ask: Cli, tmp_path: Path, figures: Figures) -> None:
    path = _many(tmp_path, 5000)
    began = time.monotonic()
    assert len(_rows(ask, path)) == 5000
    figures.at_most("5,000 rows predicted", time.monotonic() - began, 20.0)


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("a100_80gb", "A100-80GB-SXM"),
        ("A100-PCIE-80GB", "A100-80GB-PCIe"),
        ("NVIDIA H100-SXM5-80GB", "H100-SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", "RTX3080-MaxQ"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000-MaxQ"),
        ("RTX PRO 6000 Blackwell Workstation Edition", "RTXPRO6000-WS"),
        ("RTX 5000 Ada Generation", "RTX5000Ada"),
        ("AMD Instinct MI210", "MI210"),
        ("NVIDIA T4 16GB", "T4"),
        ("Tesla P4", "P4"),
        ("H800", "H800-SXM"),
    ],
)
def test_gpus_in_any_spelling(ask: Cli, tmp_path: Path, spelled: str, meant: str) -> None:
    text = "model,seqlen,batch,mode,gpu\n" + "".join(f"bert_large,512,8,train,{g}\n" for g in (spelled, meant))
    one, other = _rows(ask, _written(tmp_path, text))
    assert one["gpu"] == spelled
    assert one["predicted"] == other["predicted"]


@pytest.mark.parametrize("name", ["H100-96GB", "Gaudi2", "RX 7900 XTX", "A100 SXM 48GB"])
def test_what_is_no_gpu_of_the_catalog_is_not_guessed(ask: Cli, tmp_path: Path, name: str) -> None:
    text = f"model,seqlen,batch,mode,gpu\nbert_large,512,8,train,T4\nbert_large,512,8,train,{name}\n"
    (reason,) = _reasons(ask, _written(tmp_path, text))
    assert reason.startswith(f"Row 2: No GPU is called '{name}'.")
    assert "Did you mean" in reason or "stallwise catalog gpus" in reason


def test_cells_come_back_as_they_were(ask: Cli, tmp_path: Path) -> None:
    row = _rows(ask, _written(tmp_path, TABLES["lambda"]))[0]
    assert row["config"] == "4x RTX A5500"
    assert (row["n_gpus"], row["nvlink_bridge"], row["batch_per_gpu"], row["throughput"]) == (4, False, 1600.0, None)


def test_a_reference_pulls_the_answer_its_way(ask: Cli, tmp_path: Path) -> None:
    text = f"{HEADER},ref_gpu,ref_throughput\n" + "".join(
        f"strangenet,RTX5090,amp,nchw,2.9,False,224,256,,,25.56,4.11,11.11,{ref}\n"
        for ref in (",", "RTX4090,1500", "RTX4090,3000")
    )
    _, slow, fast = _rows(ask, _written(tmp_path, text))
    assert slow["predicted"] < fast["predicted"]
    assert fast["predicted"] / slow["predicted"] > 1.2


def test_one_gpu_measured_stands_for_several_of_its_kind(ask: Cli, tmp_path: Path) -> None:
    text = "gpu,n_gpus,era,precision,model,ref_gpu,ref_throughput\n" + "".join(
        f"RTXA6000,4,ngc22,amp,resnet50,RTXA6000,{one}\n" for one in (900, 1800)
    )
    slow, fast = _rows(ask, _written(tmp_path, text))
    assert 3 * 900 < slow["predicted"] < 4.1 * 900
    assert fast["predicted"] == pytest.approx(2 * slow["predicted"], rel=0.02)


def test_a_latency_may_be_given_as_one_or_as_a_speed(ask: Cli, tmp_path: Path) -> None:
    text = "model,seqlen,batch,mode,gpu,ref_gpu,ref_throughput\n" + "".join(
        f"bert_large,512,8,train,T4,V100-PCIe,{given}\n" for given in (841.1, 8000 / 841.1, 8000 * 512 / 841.1)
    )
    values = [row["predicted"] for row in _rows(ask, _written(tmp_path, text))]
    assert values[1:] == [pytest.approx(values[0], rel=1e-3)] * 2


@pytest.mark.parametrize(
    ("header", "row", "name", "spelled"),
    [
        ("gpu,n_gpus,precision,model", "T4,1,amp,{}", "bert_large_squad", "BERT-Large SQuAD"),
        ("gpu,placement,model,n_gpus", "V100,spread,{},2", "ResNet-18", "resnet18"),
        ("model,seqlen,batch,gpu", "{},512,8,T4", "gpt3_27", "GPT3-2.7B"),
    ],
)
def test_models_in_any_spelling(ask: Cli, tmp_path: Path, header: str, row: str, name: str, spelled: str) -> None:
    one, other = _rows(ask, _written(tmp_path, f"{header}\n{row.format(name)}\n{row.format(spelled)}\n"))
    assert other["model"] == spelled
    assert one["predicted"] == other["predicted"]


def test_a_network_nobody_measured_needs_a_reference(ask: Cli, tmp_path: Path) -> None:
    row = "H100,1,ngc22,amp,my_net"
    header = "gpu,n_gpus,era,precision,model"
    assert "Row 1: nothing is known of a job called 'my_net'" in _no(
        ask, "--table", _written(tmp_path, f"{header}\n{row}\n")
    )
    found = _rows(ask, _written(tmp_path, f"{header},ref_gpu,ref_throughput\n{row},A100,100\n"))[0]
    assert 100 < found["predicted"] < 400


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("RTX5090", "RTX5O9O"), "Row 1: No GPU is called 'RTX5O9O'. Did you mean RTX5090"),
        (("224,256", "224,0"), "Row 1: column batch holds 0, expected 0.001 to 1e+07 (samples)"),
        (("224,256", "224,many"), "Row 1: column batch holds 'many', expected a number"),
        (("4.11", "4110000000"), "Row 1: column fwd_gmacs holds 4110000000, expected"),
        (("nchw,2.9,False", "nchw,2.9,perhaps"), "Row 1: column compiled holds 'perhaps', expected True or False"),
        (("amp,nchw,2.9", "int4,nchw,2.9"), "Row 1: precision 'int4' is not known"),
    ],
)
def test_bad_cells_are_named_with_their_row(ask: Cli, tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    text = TABLES["infer"].replace(*change, 1)
    (reason,) = _reasons(ask, _written(tmp_path, text))
    assert reason.startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("img_size", "image_size"), "row 0 (the header)"),
        (("25.56,4.11,11.11\n", "25.56\n"), "Row 1: found 11 cells, expected 13"),
    ],
)
def test_files_whose_rows_do_not_fit_their_header(
    ask: Cli, tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    text = TABLES["infer"].replace(*change, 1)
    assert expected in _no(ask, "--table", _written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no kind of table has these columns"),
        (HEADER + "\n", "has no rows"),
        ("model,seqlen,batch,mode,gpu\ngpt9,1,1,train,H100\n", "Row 1: no language model is called 'gpt9'"),
        ("model,seqlen,batch,mode,gpu\ngpt2,1,1,dream,H100\n", "Row 1: mode 'dream' is not known"),
        ("model,seqlen,batch,mode,option,gpu\ngpt2,1,1,train,xp4,H100\n", "Row 1: The option is dp, tp or pp"),
        ("gpu,placement,model\nK80,heaped,LM\n", "Row 1: placement 'heaped' is not known"),
        ("gpu,placement,model,n_gpus\nK80,packed,LM,1.5\n", "Row 1: column n_gpus holds 1.5, expected a whole number"),
        ("gpu,n_gpus,precision,model\n,1,amp,ssd\n", "Row 1: column gpu is blank"),
        (
            "gpu,n_gpus,precision,model\nT4,1,amp,resnet5\n",
            "Row 1: nothing is known of a job called 'resnet5'. Did you",
        ),
        ("gpu,gpu,n_gpus,precision,model\nT4,T4,1,amp,ssd\n", "row 0 (the header): column gpu is there twice"),
        ("gpu,n_gpus,precision,model\nT4,-1,amp,ssd\n", "Row 1: column n_gpus holds -1, expected 1 to"),
        ("gpu,n_gpus,precision\nT4,1,amp\n", "row 0 (the header): column model is missing"),
        ("model,seqlen,batch,gpu\nbert_large,,8,T4\n", "Row 1: column seqlen is blank"),
        (
            "gpu,n_gpus,precision,model,ref_gpu,ref_throughput\nH100,1,amp,ssd,A100,0.0001\n",
            "Row 1: ref_throughput 0.0001 is",
        ),
    ],
)
def test_tables_that_cannot_be_answered(ask: Cli, tmp_path: Path, text: str, expected: str) -> None:
    assert expected in _no(ask, "--table", _written(tmp_path, text))


def test_nothing_to_predict(ask: Cli, tmp_path: Path) -> None:
    assert "Give the folder of a run and --gpu, or --table" in _no(ask)
    assert "cannot be read" in _no(ask, "--table", str(tmp_path / "nowhere.csv"))
    assert "give --table alone" in _no(ask, "--table", "t.csv", "--gpu", "H100")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two nodes of two ranks on A10G; 76 ms of compute, 200 MiB of activations."""
    folder = tmp_path_factory.mktemp("predict") / "run"
    make_full_run(folder)
    return str(folder)


def _answer(ask: Cli, *arguments: str) -> Any:
    return coded(ask("predict", *arguments, "--json").stdout)


def test_a_run_on_another_gpu(ask: Cli, run: str) -> None:
    found = _answer(ask, run, "--gpu", "H100")
    assert (found["source_gpu"], found["gpu"], found["precision"]) == ("A10G", "H100-SXM", "fp32")
    assert found["compute"]["measured_s"] == pytest.approx(0.076)
    assert found["compute"]["low_s"] < found["compute"]["predicted_s"] < found["compute"]["high_s"]
    assert found["compute"]["predicted_s"] < 0.076
    assert found["memory"]["fits"]
    assert found["memory"]["largest_batch"] > 100
    assert found["job"] is None
    assert sum(found["predicted"]["split"].values()) == pytest.approx(found["predicted"]["step_s"])


def test_the_runs_own_gpu_keeps_its_measured_compute(ask: Cli, run: str) -> None:
    found = _answer(ask, run, "--gpu", "A10G")
    assert found["compute"]["predicted_s"] == pytest.approx(found["compute"]["measured_s"])


def test_a_whole_job_on_a_fleet(ask: Cli, run: str) -> None:
    found = _answer(
        ask, run, "--instance", "p4d.24xlarge", "--nodes", "2", "--epoch-samples", "1e6", "--epochs", "3", "--startup",
        "60s", "--evaluation", "10s", "--checkpoint-time", "5s", "--price", "20",
    )  # fmt: skip
    job = found["job"]
    assert found["predicted"]["gpus"] == 16
    assert job["job_s"] == pytest.approx(60 + job["first_epoch_s"] + 2 * job["epoch_s"])
    assert job["low_s"] <= job["job_s"] < job["high_s"]
    assert job["usd"][0] == pytest.approx(2 * 20 * job["job_s"] / 3600)


def test_the_screen_says_everything(ask: Cli, run: str) -> None:
    text = ask("predict", run, "--gpu", "A100", "--gpus", "8", "--samples", "1e6", "--price", "30").stdout
    for expected in ("8 × A100-40GB-SXM", "compute", "step", "memory", "fits", "epoch", "job", "cost", "assumed"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Say which GPU with --gpu"),
        (("--gpu", "H1000"), "No GPU is called 'H1000'. Did you mean H100"),
        (("--gpu", "T4", "--instance", "p4d.24xlarge"), "p4d.24xlarge has A100-40GB-SXM, not T4"),
        (("--gpu", "T4", "--optimizer", "magic"), "'magic' is not one of 'sgd', 'momentum', 'adam', 'adamw'"),
        (("--gpu", "T4", "--gpus", "4", "--nodes", "3"), "multiple of 3"),
        (("--gpu", "T4", "--samples", "-5"), "above 0"),
    ],
)
def test_questions_about_a_run_that_cannot_be_answered(
    ask: Cli, run: str, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in _no(ask, run, *arguments)


def test_the_real_program_answers(cli: Cli, tmp_path: Path) -> None:
    done = cli("predict", "--table", _written(tmp_path, TABLES["llm"]), "--json")
    assert [row["gpu"] for row in coded(done.stdout)["rows"]] == ["H100", "A100-40GB-SXM"]
    assert (
        "Row 1" in cli("predict", "--table", _written(tmp_path, "gpu,placement,model\nX9,packed,LM\n"), code=2).stderr
    )
