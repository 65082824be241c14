"""A run as a layer file and back: the same step graph, whatever the run."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stallwise.analysis.analysis import open_run
from stallwise.analysis.traces.import_ import TraceHints, write_run
from stallwise.analysis.traces.layers import layers_of, write_layer_run
from stallwise.errors import InputError
from stallwise.model.exchange.overlap import plan
from stallwise.model.step.iteration import iteration_graph
from stallwise.model.step.paths import steady_state
from stallwise.report.views.trace import export_layers
from stallwise.run.reader import Run
from stallwise.run.traces import read_layers
from stallwise.run.traces._kineto import read_kineto
from stallwise.run.traces.layer_document import read_layer_file
from tests.report.made_runs import make_full_run
from tests.run.traces.made_traces import document, write_trace


@pytest.fixture
def imported(tmp_path: Path) -> Run:
    """Two ranks with a loader, copies aside; a second such file has one."""
    traces = [read_kineto(write_trace(tmp_path / f"rank{rank}.json", document(rank))) for rank in (0, 1)]
    write_run(traces, tmp_path / "run", TraceHints(samples=32))
    return Run.open(tmp_path / "run")


def round_trip(run: Run, folder: Path) -> Run:
    path = export_layers(run, folder / "layers.json").path
    write_layer_run(read_layer_file(path), path, folder / "again")
    return Run.open(folder / "again")


def same_graph(one: Run, other: Run) -> None:
    first, second = open_run(one).job, open_run(other).job
    graphs = [
        iteration_graph(job.trace, plan(job.trace, lambda size: 1e-5 + 1e-9 * size, job.overlap))
        for job in (first, second)
    ]
    assert graphs[0].labels == graphs[1].labels
    assert np.array_equal(graphs[0].edges, graphs[1].edges)
    assert np.allclose(graphs[0].cost_s, graphs[1].cost_s, rtol=1e-9, atol=1e-15)
    periods = [steady_state(graph).period_s for graph in graphs]
    assert periods[0] == pytest.approx(periods[1], rel=1e-9)
    assert first.overlap == second.overlap
    assert (first.gpus, first.gpus_per_node) == (second.gpus, second.gpus_per_node)
    assert first.samples == pytest.approx(second.samples)
    for name in ("inside", "between", "step"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or mine.s == pytest.approx(theirs.s, rel=1e-9)
    assert (first.work is None) == (second.work is None)
    if first.work is not None and second.work is not None:
        assert first.work.workers == second.work.workers
        assert first.work.prepare_s == pytest.approx(second.work.prepare_s)


def test_export_then_import_gives_the_same_step_graph(imported: Run, tmp_path: Path) -> None:
    again = round_trip(imported, tmp_path)
    same_graph(imported, again)
    # And once more: nothing is lost or added on the way.
    (tmp_path / "2").mkdir()
    same_graph(again, round_trip(again, tmp_path / "2"))


def test_the_same_for_a_run_of_our_own(tmp_path: Path) -> None:
    make_full_run(tmp_path / "own")
    run = Run.open(tmp_path / "own")
    same_graph(run, round_trip(run, tmp_path))


def test_bucket_limits_are_kept(imported: Run, tmp_path: Path) -> None:
    """The made trace exchanges both its gradients at once; a file with other limits has other buckets."""
    path = export_layers(imported, tmp_path / "layers.json").path
    content = json.loads(path.read_text())
    assert (content["overlap"]["first_bucket_bytes"], content["overlap"]["bucket_bytes"]) == (2**20, 25 * 2**20)
    content["overlap"] |= {"first_bucket_bytes": 700, "bucket_bytes": 3000}
    path.write_text(json.dumps(content))
    write_layer_run(read_layer_file(path), path, tmp_path / "again")
    found = open_run(tmp_path / "again").job.overlap
    assert (found.first_bucket_bytes, found.bucket_bytes) == (700, 3000)


def test_a_layer_file_is_also_read_where_layers_are(imported: Run, tmp_path: Path) -> None:
    path = export_layers(imported, tmp_path / "layers.json").path
    trace, job = read_layers(path), open_run(imported).job
    assert trace.layers == job.trace.layers
    assert trace.update_s == job.trace.update_s


Change = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("layers"), "missing required field `layers`"),
        (lambda d: d.update(layers=[]), "holds no layers"),
        (lambda d: d.update(version=9), "reads up to 1"),
        (lambda d: d.update(update_s=-1.0), "update_s is -1"),
        (lambda d: d.update(samples="many"), "Expected `float | null`, got `str`"),
        (lambda d: d["layers"][0].update(id=5), "count from 0"),
        (lambda d: d["layers"][0].update(forward_s=-1.0), "forward_s"),
        (lambda d: d["layers"][0].update(name=d["layers"][1]["name"]), "two layers called"),
        (lambda d: d["layers"][0].update(comm_s=1.0), "Give it to stallwise whatif"),
        (lambda d: d["overlap"].update(accumulate=0), "accumulate is 0; it must be a whole number from 1"),
        (lambda d: d["overlap"].update(accumulate=10**9), "accumulate is 1000000000"),
        (lambda d: d["overlap"].update(bucket_bytes=10**30), "bucket_bytes is"),
        (lambda d: d["layers"][0].update(gradient_bytes=10**400), "gradient_bytes of"),
        (lambda d: d["overlap"].update(first_bucket_bytes=-1), "first_bucket_bytes is -1"),
        (lambda d: d["overlap"].update(scheme="magic"), "not 'magic'"),
        (lambda d: d.update(gpus=0), "gpus is 0"),
        (lambda d: d.update(gpus=10**400), "gpus is"),
        (lambda d: d.update(gpus=10**12), "gpus is 1e\\+12; it must be a whole number from 1 to 1,000,000"),
        (lambda d: d.update(gpus_per_node=10**12), "gpus_per_node is"),
        (lambda d: d.update(workers=10**12), "workers is"),
    ],
)
def test_a_wrong_file_is_one_sentence(imported: Run, tmp_path: Path, change: Change, words: str) -> None:
    path = export_layers(imported, tmp_path / "layers.json").path
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=words.replace("|", r"\|")):
        write_layer_run(read_layer_file(path), path, tmp_path / "again")
    assert not (tmp_path / "again" / "manifest.json").exists()


def test_what_the_file_does_not_say_may_be_said(imported: Run, tmp_path: Path) -> None:
    path = export_layers(imported, tmp_path / "layers.json").path
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | dict.fromkeys(("samples", "gpus", "gpus_per_node"))))
    given = TraceHints(name="tiny", samples=64, world_size=4, gpus_per_node=2)
    manifest = write_layer_run(read_layer_file(path), path, tmp_path / "again", given)
    job = open_run(tmp_path / "again").job
    assert (manifest.job.script, job.samples, job.gpus, job.gpus_per_node) == ("tiny", 64, 4, 2)


@pytest.mark.parametrize("given", [TraceHints(samples=33), TraceHints(world_size=3), TraceHints(gpus_per_node=1)])
def test_what_the_file_says_otherwise_is_refused(imported: Run, tmp_path: Path, given: TraceHints) -> None:
    path = export_layers(imported, tmp_path / "layers.json").path
    document = read_layer_file(path)
    with pytest.raises(InputError, match=r"and its times are of that. Leave \S+ out"):
        write_layer_run(document, path, tmp_path / "again", given)
    same = TraceHints(samples=32, world_size=2, gpus_per_node=2)
    write_layer_run(document, path, tmp_path / "again", same)


def test_a_packed_layer_file_is_read_everywhere(imported: Run, tmp_path: Path) -> None:
    path = export_layers(imported, tmp_path / "layers.json").path
    packed = tmp_path / "layers.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_layer_file(packed) == read_layer_file(path)
    assert read_layers(packed).layers == read_layers(path).layers


def test_a_run_without_layers_says_so(tmp_path: Path) -> None:
    content = document(0, world_size=1)
    content["traceEvents"] = [e for e in content["traceEvents"] if "Backward" not in e["name"]]
    write_run([read_kineto(write_trace(tmp_path / "t.json", content))], tmp_path / "run")
    with pytest.raises(InputError, match="no backward pass is in the trace"):
        layers_of(Run.open(tmp_path / "run"))
