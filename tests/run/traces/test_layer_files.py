"""Other people's traces: the public files give the sums their owners state, and each bad input its own sentence."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.run.traces import read_bcaffe, read_layers
from stallwise.run.traces._layer_files import read_cluster_sim, read_dreamddp, read_pipedream

BCAFFE = """\
I0214 23:25:18.918774 37167 distributed.cpp:112] [0, 100, 0, 0]
I0214 23:25:18.918795 37167 distributed.cpp:112] [1, 10, 0, 0]
I0214 23:25:29.141575 37187 distributed.cpp:112] [0, 100, 200.5, 30, 5]
I0214 23:25:29.141594 37187 distributed.cpp:112] [1, 10, 200.5, 4, 0]
"""
PIPEDREAM = """\
node10 -- Linear(in_features=4, out_features=2) -- forward_compute_time=1.500, backward_compute_time=2.500, \
activation_size=[8.0; 4.0], parameter_size=40.000
node2 -- Conv2d(3, 64) -- forward_compute_time=3.000, backward_compute_time=5.000, \
activation_size=16.000, parameter_size=80.000
node1 -- Input -- forward_compute_time=7.000, backward_compute_time=0.000, activation_size=4.000, parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node10
"""
CLUSTER_SIM = """\
layer,fwd_compute_ns,input_grad_compute_ns,weight_grad_compute_ns,weight_grad_collective,weight_grad_bytes
conv1,1000,2000,3000,ALLREDUCE,400
relu,10,20,0,NONE,0
"""
DREAM_CSV = "layer,backward_s,comm_s\na,0.5,0.25\nb,1.0,0.125\n"


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str, str], Path]:
    def save(text: str, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return save


Saved = Callable[..., Path]


def test_bcaffe_counts_a_layer_once_and_takes_the_last_block(saved: Saved) -> None:
    trace = read_layers(saved(BCAFFE))
    (layer,) = trace.layers
    assert layer.backward_s == pytest.approx(200.5e-6)
    assert layer.forward_s == pytest.approx(100.25e-6)
    assert layer.gradient_bytes == 440
    assert layer.exchange_s == pytest.approx(34e-6)
    assert "half of backward" in trace.times
    (run,) = read_bcaffe(saved(BCAFFE), exchange="run").layers
    assert run.exchange_s == pytest.approx(5e-6)


def test_pipedream_orders_layers_and_keeps_edges(saved: Saved) -> None:
    profile = read_pipedream(saved(PIPEDREAM))
    assert [layer.name for layer in profile.trace.layers] == ["node2 Conv2d", "node10 Linear"]
    assert profile.edges == ((0, 1),)
    assert profile.trace.read_s == pytest.approx(7e-3)
    assert profile.trace.gradient_bytes == 120
    assert profile.trace.backward_s == pytest.approx(7.5e-3)


def test_pipedream_follows_edges_where_numbers_mislead(saved: Saved) -> None:
    turned = PIPEDREAM.replace("\tnode2 -- node10", "\tnode10 -- node2").replace(
        "\tnode1 -- node2", "\tnode1 -- node10"
    )
    assert [layer.name for layer in read_layers(saved(turned)).layers] == ["node10 Linear", "node2 Conv2d"]


def test_cluster_sim(saved: Saved) -> None:
    trace = read_layers(saved(CLUSTER_SIM, "net_b512.csv"))
    assert trace.samples == 512
    assert trace.backward_s == pytest.approx(5.02e-6)
    assert [layer.gradient_bytes for layer in trace.layers] == [400, 0]


def test_dreamddp_csv(saved: Saved) -> None:
    trace = read_layers(saved(DREAM_CSV, "x.csv"))
    assert [(layer.backward_s, layer.exchange_s) for layer in trace.layers] == [(0.5, 0.25), (1.0, 0.125)]
    assert "no forward times and no gradient sizes" in trace.times


def dream_pair(folder: Path, backward: dict[str, float], exchanged: dict[str, float]) -> Path:
    (folder / "m__bp.json").write_text(json.dumps(backward))
    (folder / "m__comm.json").write_text(json.dumps(exchanged))
    return folder / "m__bp.json"


def test_dreamddp_pair_says_how_many_times_were_missing(tmp_path: Path) -> None:
    path = dream_pair(tmp_path, {"a": math.nan, "b": 0.5, "c": math.inf}, {"b": 0.25})
    trace = read_layers(path)
    assert [layer.backward_s for layer in trace.layers] == [0.0, 0.5, 0.0]
    assert [layer.exchange_s for layer in trace.layers] == [0.0, 0.25, 0.0]
    assert "2 times that were NaN or infinite count as zero" in trace.times
    assert read_layers(path.with_name("m__comm.json")) == trace


ROW = "node3 -- ReLU -- forward_compute_time=1.0, backward_compute_time={}, activation_size=1, parameter_size=0\n"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.txt", "", "is empty"),
        ("a.txt", "hello\nworld\n", "no layer trace known here"),
        ("a.csv", "x,y\n1,2\n", "no layer trace known here"),
        ("a.log", BCAFFE.replace("200.5, 4", "nan, 4"), "line 4: the backward time is nan"),
        ("a.log", BCAFFE.replace("200.5, 30", "-200.5, 30"), "line 3: the backward time is -200.5"),
        ("a.log", BCAFFE.replace("200.5, 30", "fast, 30"), "'fast', which is no number"),
        ("a.log", "\n".join(BCAFFE.splitlines()[:2]), "only warm-up rows"),
        ("a.log", "\n".join(BCAFFE.splitlines()[:3]), "1 rows; weight and bias"),
        ("a.log", BCAFFE + "something else\n", "line 5 is no B-Caffe row"),
        ("a.log", BCAFFE.replace("[1, 10, 200.5", "[2, 10, 200.5"), "parameter 1 is missing"),
        ("a.log", BCAFFE.replace("[1, 10, 200.5", "[1, 10, 100"), "different backward times"),
        ("a.txt", PIPEDREAM + ROW.format("nan"), "the backward time is nan"),
        ("a.txt", PIPEDREAM + ROW.format("-1"), "the backward time is -1"),
        ("a.txt", PIPEDREAM + "\tnode10 -- node2\n", "cycle through node2, node10"),
        ("a.txt", PIPEDREAM + "\tnode10 -- node99\n", "edge to node99"),
        ("a.txt", PIPEDREAM + "something else\n", "neither a node nor an edge"),
        ("a.txt", PIPEDREAM + PIPEDREAM, "described before"),
        ("a.txt", PIPEDREAM.splitlines()[2] + "\n", "holds no layers"),
        ("a.csv", CLUSTER_SIM.replace("3000", "-3000"), "weight_grad_compute_ns is -3000"),
        ("a.csv", CLUSTER_SIM.replace("ALLREDUCE", "ALLTOALL"), "'ALLTOALL' is not known"),
        ("a.csv", CLUSTER_SIM.splitlines()[0] + "\n", "header but no layers"),
        ("a.csv", CLUSTER_SIM + "conv2,1000\n", "shorter than the header"),
        ("a.csv", DREAM_CSV.replace("0.25", "nan"), "comm_s is nan"),
        ("a.csv", DREAM_CSV.replace("0.25", "-1"), "comm_s is -1"),
        ("a__bp.json", "[1, 2]", "no map of modules"),
        ("a__bp.json", "{", "is no JSON"),
        ("a__bp.json", '{"x": -1.0}', "x is -1.0"),
        ("a__bp.json", '{"x": "quick"}', "'quick', which is no number"),
        ("a__bp.json", '{"x": 1.0}', "no file .*a__comm.json"),
    ],
)
def test_a_bad_file_gets_its_sentence(saved: Saved, name: str, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_layers(saved(text, name))


def test_what_is_no_file_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no file"):
        read_layers(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_layers(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_layers(tmp_path / "x.bin")


def test_bcaffe_without_run_times(saved: Saved) -> None:
    with pytest.raises(InputError, match="no fifth field"):
        read_bcaffe(saved(BCAFFE.replace(", 5]", "]").replace("4, 0]", "4]")), exchange="run")


def test_dreamddp_files_must_belong_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="z is exchanged but has no backward time"):
        read_dreamddp(dream_pair(tmp_path, {"a": 1.0}, {"z": 1.0}))
    with pytest.raises(InputError, match="names end in"):
        read_dreamddp(tmp_path / "other.json")


def test_the_public_files(shared_data: Path) -> None:
    """Counts and sums as their PROVENANCE and reference state them."""
    traces = shared_data / "ssgd_traces"
    for log in ("tmp2comm", "tmp4comm", "tmp8comm", "tmp8ocomm"):
        trace = read_layers(traces / f"bcaffe_googlenet_k80/{log}.log")
        assert (len(trace.layers), trace.gradient_bytes) == (64, 4 * 13_379_136)
    assert read_layers(traces / "pipedream_profiles/alexnet.txt").read_s == pytest.approx(0.635902)
    resnet = read_layers(traces / "pipedream_profiles/resnet50.txt")
    assert resnet.gradient_bytes == pytest.approx(4 * 25_557_032, rel=1e-5)
    for path in sorted((traces / "pipedream_profiles").iterdir()):
        profile = read_pipedream(path)
        assert all(a < b for a, b in profile.edges)
    qwen = read_layers(traces / "dreamddp/Qwen2.5-7B__8workers__10gbit__bp.json")
    assert "428 times" in qwen.times
    assert len(qwen.layers) == 1291
    layers = shared_data / "cluster_traces/dally_sensetime/layer_profiles"
    assert len(read_cluster_sim(layers / "mobilenet_v3_b512.csv").layers) == 52
    assert len(read_cluster_sim(layers / "bert_large_b256.csv").layers) == 66
