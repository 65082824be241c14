"""`stallwise trace import|show|export`, and every command on an imported run."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.traces._steps import rank_splits
from stallwise.run.reader import Run
from stallwise.run.traces._kineto import read_kineto
from tests.conftest import Cli
from tests.report import trace_format
from tests.report.made_runs import make_full_run
from tests.run.traces.made_traces import document, write_trace
from tests.sentences import coded


def test_export_names_the_file_and_what_opens_it(cli: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    said = cli("trace", "export", "run").stdout
    assert said.startswith("run/trace.json.gz: 664 events of 4 ranks.")
    assert "ui.perfetto.dev" in said
    trace_format.check(trace_format.read(tmp_path / "run" / "trace.json.gz"))


def test_one_rank_as_plain_json_with_an_answer_for_programs(cli: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    done = cli("trace", "export", "run", "-o", "t.json", "--rank", "2", "--json")
    answer = json.loads(done.stdout)
    assert done.stderr == ""
    assert answer["path"] == "t.json"
    assert answer["ranks"] == [2]
    assert [clock["node"] for clock in answer["clocks"]] == [0, 1]
    document = trace_format.read(tmp_path / "t.json")
    trace_format.check(document)
    assert answer["events"] == sum(event["ph"] != "M" for event in document["traceEvents"]) == 664 / 4


def test_what_cannot_be_done_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    assert "nothing" in cli("trace", "export", "nothing", code=2).stderr
    make_full_run(tmp_path / "run")
    assert "has no rank 7" in cli("trace", "export", "run", "--rank", "7", code=2).stderr
    assert "cannot be written" in cli("trace", "export", "run", "-o", "no/t.json", code=2).stderr


MS = 1e-3


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Two ranks, the second 50 µs late in every step, with clocks that begin years apart."""
    folder = tmp_path / "traces"
    folder.mkdir()
    write_trace(folder / "a.json.gz", document(0, clock_us=1e6))
    write_trace(folder / "b.json", document(1, late_us=50, clock_us=9e13))
    return folder


def shown(ask: Cli, *arguments: str) -> dict[str, Any]:
    return dict(coded(ask("trace", "show", *arguments, "--json").stdout))


def test_import_says_what_it_found_and_what_to_do_next(cli: Cli, traces: Path) -> None:
    said = cli("trace", "import", "traces", "-o", "run").stdout
    assert said.startswith("run: 3 steps of 2 of 2 ranks.")
    assert "The first of 3 traced steps is not kept" in said
    assert "stallwise whatif run" in said


def test_show_gives_the_known_answers(ask: Cli, traces: Path) -> None:
    ask("trace", "import", "traces", "-o", "run")
    found = shown(ask, "run")
    assert found == shown(ask, "traces")
    assert (found["ranks"], found["steps"], found["kept"]) == ([0, 1], 3, 2)
    first, second = found["split"]
    # Two of three steps, from the first kernel to the end of the second step's update.
    assert (first["kernel_us"], first["compute_us"], first["communication_us"]) == (1760, 920, 400)
    assert (second["compute_us"], second["communication_us"], second["overlap_us"]) == (1020, 300, 0)
    assert first["idle_us"] == 1760 - 920 - 400
    times = found["times"][0]
    assert times["step_s"] == pytest.approx(1.0 * MS)
    assert times["data_wait_s"] == pytest.approx(0.1 * MS)
    assert times["data_stall_s"] == pytest.approx(0.1 * MS)
    assert times["exchange_stall_s"] == pytest.approx(0.2 * MS)
    assert found["times"][1]["exchange_stall_s"] == pytest.approx(0.15 * MS)


def test_ranks_meet_on_the_end_of_collectives(ask: Cli, traces: Path) -> None:
    found = shown(ask, "traces")
    late, early = found["stragglers"]
    assert (late["rank"], late["came_last"], late["held_up_s"]) == (1, 2, pytest.approx(0.1 * MS))
    assert early["waited_s"] == pytest.approx(0.1 * MS)
    # The transfer is what the last rank to come measured: twice 150 µs.
    assert late["transfer_s"] == early["transfer_s"] == pytest.approx(0.3 * MS)
    assert found["clocks"][1]["shift_s"] == pytest.approx(1.0 - 9e7)
    # The second rank's longer backward is on the path, not the first rank's waiting.
    path = {part["on"]: part["s"] for part in found["path"]}
    assert sum(path.values()) == pytest.approx(2 * MS, rel=0.1)
    assert path["communication"] == pytest.approx(0.3 * MS)
    assert path["data loader"] == pytest.approx(0.2 * MS)


def test_the_same_in_words(ask: Cli, traces: Path) -> None:
    said = ask("trace", "show", "traces").stdout
    assert "2 of 2 ranks · 2 of 3 steps kept" in said
    for words in (
        "as HolisticTraceAnalysis splits it",
        "critical path over all ranks",
        "came last",
        "data-loader wait",
    ):
        assert words in said


def test_missing_ranks_are_said_and_do_no_harm(ask: Cli, tmp_path: Path) -> None:
    write_trace(tmp_path / "rank1.json", document(1, world_size=4))
    write_trace(tmp_path / "rank3.json", document(3, world_size=4, late_us=20))
    ask("trace", "import", "rank1.json", "rank3.json", "-o", "run")
    opened = Run.open(tmp_path / "run")
    assert opened.manifest.state == "partial"
    assert opened.partial_reason == "Ranks 0, 2 of 4 left no record."
    assert shown(ask, "run")["ranks"] == [1, 3]
    assert "exchange" in ask("whatif", "run").stdout


def test_every_command_takes_the_run(ask: Cli, traces: Path) -> None:
    ask("trace", "import", "traces", "-o", "run", "--batch", "32", "--name", "tiny")
    assert "tiny" in ask("report", "--detail", "run").stdout
    report = ask("report", "run").stdout
    assert "interconnect" in report
    assert "no difference beyond noise" in ask("compare", "run", "run").stdout
    asked = json.loads(ask("whatif", "run", "--workers", "4", "--json").stdout)
    # Without the loader in the training process: 1 ms less 0.1 ms.
    assert asked["predicted"]["step_s"] == pytest.approx(0.9 * MS, rel=0.02)
    faster = json.loads(ask("whatif", "run", "--link", "1000GB/s", "--json").stdout)
    assert faster["predicted"]["step_s"] < 0.9 * MS
    assert ask("predict", "run", "--gpu", "H100", code=2).stderr.endswith("Record the trace with record_shapes=True.\n")


def test_another_gpu_where_the_trace_has_shapes(ask: Cli, tmp_path: Path) -> None:
    content = document(0, world_size=1)
    for event in content["traceEvents"]:
        if event["name"] == "cudaLaunchKernel" and event["args"]["correlation"] % 100 == 0:
            event["args"] |= {"Input Dims": [[1000, 1000], [1000, 1000]]}
            event |= {"cat": "cpu_op", "name": "aten::mm"}
    write_trace(tmp_path / "t.json", content)
    ask("trace", "import", "t.json", "-o", "run", "--batch", "8")
    assert Run.open(tmp_path / "run").manifest.model.flops_per_step == 6e9  # type: ignore[union-attr]
    found = json.loads(ask("predict", "run", "--gpu", "H100", "--json").stdout)
    assert found["source_gpu"].startswith("A100")
    assert 0 < found["compute"]["predicted_s"] <= found["compute"]["measured_s"]


def test_what_a_trace_cannot_give_is_one_sentence(ask: Cli, tmp_path: Path) -> None:
    content = document(0, world_size=1)
    content["traceEvents"] = [e for e in content["traceEvents"] if "Backward" not in e["name"]]
    write_trace(tmp_path / "t.json", content)
    ask("trace", "import", "t.json", "-o", "run")
    assert "backward pass included" in ask("whatif", "run", code=2).stderr
    assert "was measured" not in ask("trace", "show", "run").stdout


def test_the_timeline_of_an_import_holds_each_step_once(ask: Cli, traces: Path, tmp_path: Path) -> None:
    ask("trace", "import", "traces", "-o", "run")
    ask("trace", "export", "run", "-o", "t.json")
    timeline = trace_format.read(tmp_path / "t.json")
    trace_format.check(timeline)
    steps = [e for e in timeline["traceEvents"] if e["ph"] == "X" and e["name"].startswith("step ")]
    assert len(steps) == 3 * 2
    assert any(e["name"].startswith("compute: ") for e in timeline["traceEvents"])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["nothing.json"], "There is no file nothing.json"),
        (["empty"], "holds no trace"),
        (["rank0.json", "again.json"], "are both of rank 0"),
        (["one.json", "two.json"], "does not say which rank"),
        (["text.json"], "neither JSON"),
    ],
)
def test_files_that_do_not_do(ask: Cli, tmp_path: Path, files: list[str], words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("hello")
    for name, rank in (("rank0", 0), ("again", 0), ("one", None), ("two", None)):
        write_trace(tmp_path / f"{name}.json", document(rank))
    assert words in ask("trace", "import", *files, "-o", "run", code=2).stderr
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten_and_options_are_checked(ask: Cli, traces: Path) -> None:
    ask("trace", "import", "traces", "-o", "run")
    assert "already holds a run" in ask("trace", "import", "traces", "-o", "run", code=2).stderr
    assert (
        "samples must be a whole number from 1"
        in ask("trace", "import", "traces", "-o", "r2", "--batch", "0", code=2).stderr
    )
    said = ask("trace", "import", "traces", "-o", "r2", "--world-size", str(10**12), code=2).stderr
    assert "must be a whole number from 1 to 1,000,000" in said
    assert "Option: --world-size." in said


def test_show_refuses_a_run_of_our_own(ask: Cli, tmp_path: Path) -> None:
    from tests.report.made_runs import make_full_run

    make_full_run(tmp_path / "own")
    assert "not imported from a trace" in ask("trace", "show", "own", code=2).stderr


def test_a_layer_file_is_imported_packed_and_has_no_ranks_to_show(ask: Cli, traces: Path, tmp_path: Path) -> None:
    ask("trace", "import", "traces", "-o", "run", "--batch", "32")
    ask("trace", "export", "run", "--layers", "-o", "layers.json")
    packed = tmp_path / "layers.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "layers.json").read_bytes()))
    assert "one step, layer by layer" in ask("trace", "import", "layers.json.gz", "-o", "again").stdout
    assert (
        "Leave samples out. Option: --batch."
        in ask("trace", "import", str(packed), "-o", "r3", "--batch", "1", code=2).stderr
    )
    for name in ("layers.json.gz", "again"):
        said = ask("trace", "show", name, code=2).stderr
        assert name in said
        assert "one step without ranks" in said
        assert "measured by Stallwise" not in said


# What HolisticTraceAnalysis 0.5.0 gives: idle, compute, non-compute and kernel time in µs, overlap in percent.
PEER = {
    "hta/resnet50_ddp_2xA100_rank0": (338781, 75169, 21636, 435586, 14.31),
    "hta/ns_resolution_V100_rank0of1": (10113, 372150, 2371, 384634, None),
    "hta/critical_path_event_sync_multi_stream": (19132, 371, 3, 19506, None),
    "tracelens/resnet18_ddp_8xMI300X_rank0": (1541, 17018, 37958, 56517, 22.45),
    "hta/sampled_rank1of128": (328671, 135548, 136455, 600674, 20.05),
    "kineto_resnet50/resnet50_num_workers_0_worker0.1623143089861.pt.trace": (327463, 492891, 10140, 830494, None),
}


@pytest.mark.parametrize("name", PEER)
def test_figures_are_the_peers(shared_data: Path, name: str) -> None:
    trace = read_kineto(shared_data / "kineto" / f"{name}.json.gz")
    (found,) = rank_splits([(0, trace)])
    values = (found.idle_us, found.compute_us, found.non_compute_us, found.kernel_us, found.overlap_pctg)
    assert values == PEER[name]


def test_eight_real_ranks(ask: Cli, shared_data: Path, tmp_path: Path) -> None:
    with tarfile.open(shared_data / "kineto/param/dlrm_kineto_8xV100.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    found = shown(ask, "dlrm_kineto")
    assert found["ranks"] == list(range(8))
    assert found["stragglers"][0]["rank"] == 7
    # Collectives end together to within a few microseconds once clocks are aligned.
    assert all(clock["spread_s"] < 50e-6 for clock in found["clocks"][1:])
    kept = [path for path in sorted((tmp_path / "dlrm_kineto").iterdir()) if "worker3" not in path.name]
    assert shown(ask, *map(str, kept))["ranks"] == [0, 1, 2, 4, 5, 6, 7]
