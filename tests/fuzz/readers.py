"""Every reader of files and of other programs' output, each with whole samples of what it reads."""

import copy
import dataclasses
import datetime as dt
import gzip
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from stallwise.analysis.tables import read_table as read_prediction_table
from stallwise.buckets.plan import read_plan
from stallwise.cli.data import _measured, names_in
from stallwise.cloud.measured import read_configurations
from stallwise.cloud.request import terms_of
from stallwise.cluster.speed._profiles import read_profile
from stallwise.cluster.speed._tables import GavelThroughputs
from stallwise.cluster.topology import parse_cluster
from stallwise.cluster.traces import rhythm
from stallwise.cluster.traces._formats import read_trace as read_jobs
from stallwise.deflate import journal
from stallwise.deflate.requests import listening_ranks, read_request
from stallwise.elastic._checkpoints import from_bytes, to_bytes
from stallwise.elastic._interval import save_interval
from stallwise.elastic._manifest import check_checkpoint
from stallwise.elastic._notices import GRACE_S, Endpoint
from stallwise.elastic._ownership import decode_owner
from stallwise.elastic._tensors import read_parts, write_tensors
from stallwise.elastic.protocol import read_events
from stallwise.elastic.throughput import ThroughputWatch, window_of
from stallwise.errors import InputError, StallwiseError
from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.imports import import_paths
from stallwise.hardware.machine import read_machine
from stallwise.machine.study import METHOD, read_study
from stallwise.overcommit import traces as machines
from stallwise.report import terminal
from stallwise.report.views.spot import draw_window
from stallwise.run.reader import Run
from stallwise.run.table_file import read_parquet, read_table_file
from stallwise.run.traces._layer_files import _CLUSTER_SIM_COLUMNS
from stallwise.run.traces.files import read_layers, read_trace
from stallwise.slurm.commands import decode_jobs, decode_nodes, lists_nodes
from stallwise.slurm.facts import description_in, gpus_in, mark_in
from stallwise.slurm.observation import steps_per_s
from stallwise.slurm.snapshot import read_snapshot
from stallwise.spot.lifetimes.readers import read_log
from stallwise.spot.plan.prices import read_prices
from stallwise.web import _simulations as simulations
from tests.cluster.traces import test_formats as cluster_traces
from tests.hardware.test_machine import whole as whole_machine
from tests.overcommit import test_traces as overcommit_traces
from tests.report.made_runs import make_full_run
from tests.run.traces import test_layer_files as layer_files
from tests.run.traces.made_traces import document
from tests.slurm.recorded import JOB, NODE
from tests.spot.lifetimes import test_readers as lifetimes
from tests.web.conftest import JOBS


@dataclasses.dataclass(frozen=True)
class Reader:
    """One reader: what it reads, in a file of this name, in the given folder."""

    name: str
    file: str
    samples: tuple[bytes, ...]
    read: Callable[[Path], object]

    def attempt(self, folder: Path, content: bytes) -> str:
        """Read a file; the sentence by which it was refused, empty where it was read. Anything else is a crash."""
        path = folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            self.read(path)
        except StallwiseError as error:
            return str(error)
        return ""


def _texts(*samples: str) -> tuple[bytes, ...]:
    return tuple(sample.encode() for sample in samples)


def _documents(*samples: object) -> tuple[bytes, ...]:
    return _texts(*(json.dumps(sample) for sample in samples))


_CATALOG = load_catalog()


def _import_catalog(path: Path) -> object:
    catalog = copy.copy(_CATALOG)
    catalog.folder = path.parent / "catalog"
    try:
        return import_paths([path], catalog, today=dt.date(2026, 1, 1), cloud="aws")
    finally:
        shutil.rmtree(path.parent / "catalog", ignore_errors=True)


def _catalog() -> Catalog:
    return _CATALOG


def _dreamddp(path: Path) -> object:
    shutil.copy(path, path.with_name("resnet_comm.json"))
    return read_layers(path)


def _whole_run(path: Path) -> object:
    """Manifest, parts and tables of a run."""
    run = Run.open(path.parent)
    return run.partial_reason, [run.table(name).height for name in ("steps", "batches", "events")]


def _part_of_run(path: Path) -> object:
    """A run whose first rank has this part, or this report."""
    return _whole_run(path.parents[2] / "manifest.json")


def _slurm_text(path: Path) -> object:
    text = path.read_bytes()
    lists_nodes(text)
    word = text.decode("utf-8", "replace")
    for comment in (word, "stallwise:" + word):
        description_in(comment), mark_in(comment), gpus_in(comment)
    return None


def _deflated(path: Path) -> object:
    with_name = path.with_name("process-7.deflated.json")
    path.rename(with_name)
    return journal._read(with_name)


def _rank_files(path: Path) -> object:
    shutil.copy(path, path.parent / "7.ask.json")
    return list(listening_ranks(path.parent)), read_request(path.parent, 7)


def _owner_record(path: Path) -> object:
    return decode_owner(path.read_bytes(), "runs/one")


def _checkpoint(path: Path) -> object:
    """Of somebody who can make a checksum."""
    body = path.read_bytes()
    path.write_bytes(hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body)
    try:
        return check_checkpoint(path.parent)
    except ValueError as error:  # a damaged one is passed over
        raise InputError(str(error)) from None


def _tensors(path: Path) -> object:
    return [part.read() for parts in read_parts([path]).values() for part in parts if part.dtype == torch.float32]


def _events(path: Path) -> object:
    watching = ThroughputWatch()
    checks = [watching.judge(window) for window in map(window_of, read_events(path)) if window is not None]
    return [terminal.draw(draw_window(check)) for check in checks[-2:]]


def _notices(path: Path) -> object:
    """What answers in the place of a cloud's metadata service."""
    text = path.read_bytes().decode(errors="replace")

    class Answering(Endpoint):
        def get(self, path: str, headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
            return 200, text

    return [Answering(cloud).query() for cloud in GRACE_S]


CHAKRA_JSON = {
    "workload_graph": [
        {"Id": 1, "Name": "a", "NodeType": 4, "data_deps": [], "runtime": 5, "is_cpu_op": False},
        {"Id": 2, "Name": "b", "NodeType": 7, "data_deps": [1], "runtime": 5, "is_cpu_op": False, "comm_size": 8},
    ]
}
LAYERS = {
    "format": "stallwise-layers", "version": 1, "source": "x", "samples": 8, "step_s": 0.1,
    "layers": [{"id": 0, "name": "a", "forward_s": 0.01, "backward_s": 0.02, "gradient_bytes": 400}],
}  # fmt: skip
CLUSTER_SIM = ",".join(_CLUSTER_SIM_COLUMNS) + "\nconv,100,200,300,ALLREDUCE,4000\n"
PROFILE = "layer,fwd_compute_ns,input_grad_compute_ns,weight_grad_compute_ns,weight_grad_bytes\nconv,100,200,300,4000\n"
GAVEL = {
    name: {"('ResNet-18 (batch size 16)', 1)": {"null": 5.0}, "('A3C', 1)": {"null": 7.0}}
    for name in ("v100", "v100_unconsolidated")
}
HOSTS = "host,rack,gpus\na,r1,8\nb,r1,8\nc,r2,4\n"
SLURM = (
    "SwitchName=s1 Nodes=n[1-3,7]\nSwitchName=s2 Nodes=gpu[01-02]\nSwitchName=top Switches=s[1-2]\n"
    "NodeName=n[1-3,7],gpu[01-02] Gres=gpu:4\n"
)
RANK = {"pid": 7, "started": 1, "rank": 0, "world": 2, "batch": 8, "why": "", "step_s": 0.5, "speed": 0.5}
RECORD = {
    "target": "7", "started": 1, "holds": [{"controller": "cpu", "version": 1, "mount": "/a", "path": "/a/b",
    "before": {}, "home": None, "homes": {}}], "asked": None, "asked_pids": [1], "until": 1.0,
}  # fmt: skip
QUEUE = {
    "time_s": 1.0, "partition": "gpu", "policy": "las", "gpus": 8, "free_gpus": 4, "other_gpus": 0,
    "levels": ["machine"], "interval_s": 2.0,
    "jobs": [{"job": "1", "user": "u", "name": "n", "gpus": 4, "phase": "waiting", "since_s": 1.0}],
}  # fmt: skip
SIMULATION = {
    "trace": "t", "format": "plain", "jobs": 3, "arrivals": "given", "settings": [{"cluster": "c", "gpus": 8,
    "load": 1.0, "verdict": "v", "policies": []}],
}  # fmt: skip
OWNER = {
    "format": 1, "job": "j", "coordinator": "c", "round": 2, "fence": 5, "past": ["b"], "checkpoints": ["step-10@5.1"],
    "damaged": [],
}  # fmt: skip
CHECKPOINT = {
    "format": 2, "step": 10, "saved_at": 1.0, "world": 1, "files": {}, "facts": {"epoch": 0}, "algorithm": "blake2b",
}  # fmt: skip
PACE = {
    "at": 1.0, "round": 0, "kind": "pace", "step": 5, "world": 2, "step_s": 0.1, "samples_per_s": 50.0,
    "times_ms": [[1.0, 20.0, 40.0, 5.0], [1.0, 40.0, 80.0, 1.0]],
}  # fmt: skip
PART = {
    "columns": ["rank", "step", "phase", "block", "start_s", "duration_s", "kept"],
    "rows": [[0, i, "as is", 0, i * 0.25, 0.25, True] for i in range(20)],
}
PRICES = "date,instance_type,az,spot_usd_h\n2026-01-01,a,b,0.5\n2026-01-02,a,b,0.6\n"
PRICE_ANSWER = {
    "SpotPriceHistory": [
        {"Timestamp": f"2026-01-0{i}T00:00:00", "InstanceType": "a", "AvailabilityZone": "b", "SpotPrice": "0.9"}
        for i in (1, 2, 3)
    ]
}
SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    "p3.2xlarge,V100,1.0,8.0,61.0,\"{'Gpus': [{'Name': 'V100', 'MemoryInfo': {'SizeInMiB': 16384}}]}\",3.06,0.9,"
    "us-east-1,us-east-1a\n"
)


def readers(folder: Path) -> Sequence[Reader]:
    """All of them; `folder` is for files that samples are made from."""
    run = folder / "run"
    make_full_run(run)
    parts = folder / "partial"
    make_full_run(parts, joined=False)
    rank = sorted((parts / "parts").iterdir())[0]
    part = next(path for path in sorted(rank.iterdir()) if path.name.startswith("steps"))
    shutil.copytree(run, folder / "tables" / "r")
    kineto = json.dumps(document()).encode()
    table = next(run.glob("steps.npz")).read_bytes()
    return (
        Reader("manifest", "run/manifest.json", ((run / "manifest.json").read_bytes(),), _whole_run),
        Reader(
            "table in a run", "tables/r/steps.npz", (table,), lambda path: _whole_run(path.parent / "manifest.json")
        ),
        Reader("table", "steps.npz", (table, next(run.glob("batches.npz")).read_bytes()), read_table_file),
        Reader("parquet", "old.parquet", (_parquet(folder),), read_parquet),
        Reader(
            "rank report",
            str((rank / "rank.json").relative_to(folder)),
            ((rank / "rank.json").read_bytes(),),
            _part_of_run,
        ),
        Reader("part", str(part.relative_to(folder)), (part.read_bytes(),), _part_of_run),
        Reader("kineto", "a.json", (kineto,), read_trace),
        Reader("kineto, packed", "a.json.gz", (gzip.compress(kineto, 1),), read_trace),
        Reader("chakra", "a.et", (_chakra(),), read_trace),
        Reader("chakra as JSON", "b.json", _documents(CHAKRA_JSON), read_trace),
        Reader(
            "layer files",
            "l.json",
            (
                *_documents(LAYERS),
                *_texts(layer_files.PIPEDREAM, layer_files.BCAFFE, CLUSTER_SIM),
            ),
            read_layers,
        ),
        Reader("DreamDDP", "resnet_bp.json", _documents({"a": 0.1, "b": 3}), _dreamddp),
        Reader(
            "job traces",
            "trace.csv",
            _texts(
                f"{cluster_traces.PLAIN}\na,0,4,60,m,u\nb,1.5,2,1e3,,\n",
                f"{cluster_traces.DALLY}\na,0,4,vgg11,100,0.5\n",
                f"{cluster_traces.TIRESIAS}\n1,4,0,100,vgg11,60,1\n",
                f"{cluster_traces.PODS}\np,1,1,1,1000,,LS,Succeeded,0,100,5\n",
                "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-03 01:02:03,60,4,240,x\n",
                "experiment_id,start_time,running_time,num_gpus\na,2020-01-01 00:00:00,60,4\n",
            ),
            read_jobs,
        ),
        Reader(
            "arrivals",
            "rhythm.csv",
            _texts("time,submit_gpu_job,submit_gpu_num\n2020-01-01 00:00:00,4,9\n2020-01-01 00:10:00,9,9\n"),
            rhythm.read_rhythm,
        ),
        Reader(
            "clusters",
            "cluster.txt",
            _texts(HOSTS, SLURM, ",num\nvc1,4\n", "ip,DSW,PSW,ASW\na,1,2,3\n"),
            lambda path: parse_cluster(str(path)),
        ),
        Reader("layer profiles", "p.csv", _texts(PROFILE), read_profile),
        Reader("Gavel's table", "g.json", _documents(GAVEL), GavelThroughputs.read),
        Reader(
            "spot logs",
            "log.txt",
            _texts(
                lifetimes.BAMBOO,
                lifetimes.PARCAE,
                lifetimes.SEGMENT,
                lifetimes.SKYPILOT,
                lifetimes.DATED,
                lifetimes.TABLE,
                "machine,start,end,ended\nm,2026-01-01T00:00:00,2026-01-02T00:00:00,lost\n",
            ),
            read_log,
        ),
        Reader("prices", "prices.csv", (*_texts(PRICES), *_documents(PRICE_ANSWER)), read_prices),
        Reader(
            "catalog tables",
            "vms.csv",
            _texts(
                "gpu,memory_gib,fp32_tflops\nX,16,10\n",
                "cloud,instance,region,market,usd_per_h\naws,p3.2xlarge,us-east-1,spot,0.9\n",
                SKYPILOT,
            ),
            _import_catalog,
        ),
        Reader(
            "catalog as YAML",
            "c.yaml",
            _texts(
                "offers:\n  - cloud: aws\n    instance: p3.2xlarge\n    region: r\n    market: spot\n    usd_per_h: 1\n"
            ),
            _import_catalog,
        ),
        Reader("machine record", "m.json", _documents(whole_machine()), read_machine),
        Reader(
            "virtual machines",
            "vm.csv",
            _texts(f"{overcommit_traces.PLAIN}m,0,60,4,8,0,,\nn,5,70,2,4,1,0.5,0.2\n"),
            machines.read_machines,
        ),
        Reader("pods", "pods.csv", _texts(overcommit_traces.PODS), machines.read_machines),
        Reader(
            "nodes",
            "nodes.csv",
            _texts("sn,cpu_milli,memory_mib,gpu,model\na,96000,786432,8,V100\n"),
            machines.read_nodes,
        ),
        Reader("use", "use.csv", _texts("a,b\n1,2\n3,100\n"), machines.read_use),
        Reader("use, packed", "use.csv.gz", (gzip.compress(b"a,b\n1,2\n3,100\n"),), machines.read_use),
        Reader(
            "prediction tables",
            "t.csv",
            _texts("model,gpu,img_size,batch\nresnet50,V100,224,32\n"),
            read_prediction_table,
        ),
        Reader(
            "measured epochs",
            "e.csv",
            _texts("configuration,machines,epoch_s,first_epoch_s,usd_per_h\na,2,60,70,3.5\n"),
            lambda path: read_configurations(path, _catalog()),
        ),
        Reader(
            "bucket plan",
            "plan.json",
            _documents({"source": "r", "gpus": 8, "buckets": [{"parameters": ["a", "b"], "bytes": 8}]}),
            read_plan,
        ),
        Reader(
            "study",
            "study/settings.json",
            _documents({"networks": ["resnet50"], "rates": ["1gbit"], "method": METHOD}),
            lambda path: read_study(path.parent),
        ),
        Reader("bench", "bench.json", _documents({"link_bytes_per_s": 1e9, "latency_s": 0.01}), _measured),
        Reader("names", "names.txt", _texts("a\nb\n"), names_in),
        Reader("simulation", "s.json", _documents(SIMULATION), simulations.simulation),
        Reader(
            "simulated jobs",
            "j.csv",
            _texts(JOBS + "fifo,c,1.0,0,a,4,0,1,9,9,8,1,8,0,0,0\n"),
            lambda path: simulations.jobs(path, {}),
        ),
        Reader(
            "squeue",
            "squeue.json",
            _documents({"jobs": [JOB], "errors": []}),
            lambda path: decode_jobs(path.read_bytes()),
        ),
        Reader(
            "sinfo",
            "sinfo.json",
            _documents({"nodes": [NODE], "errors": []}),
            lambda path: decode_nodes(path.read_bytes()),
        ),
        Reader(
            "comments",
            "comment",
            _texts(
                '{"speeds":[1,0.9],"model":"m","step_s":0.1,"record":"/x"}',
                '{"least":1,"most":8,"nodes":2,"pin":5}',
                "gpu:a100:4(S:0-1),gpu:2",
            ),
            _slurm_text,
        ),
        Reader("queue", "queue.json", _documents(QUEUE), lambda path: read_snapshot(path.parent)),
        Reader(
            "speeds of a record",
            "rec/parts/rank-00000/steps-00000.json",
            _documents(PART),
            lambda path: steps_per_s(path.parents[2], 0.0),
        ),
        Reader("owner of checkpoints", ".owner.json", _documents(OWNER), _owner_record),
        Reader("checkpoint", "step-000000000010/manifest.json", _documents(CHECKPOINT), _checkpoint),
        Reader("tensors", "rank-00000.safetensors", (_tensor_file(folder),), _tensors),
        Reader(
            "small values",
            "values",
            (to_bytes({"a": [1, 2.5], "b": torch.zeros(3)}),),
            lambda path: from_bytes(path.read_bytes()),
        ),
        Reader(
            "events", "events.jsonl", _texts("".join(json.dumps(PACE | {"at": at}) + "\n" for at in range(8))), _events
        ),
        Reader(
            "interval of a plan",
            "plan.json",
            _documents({"interval": {"used_s": 5.0}}),
            lambda path: save_interval(None, None, None, path, 1),
        ),
        Reader(
            "notices",
            "notice",
            _documents(
                {"action": "terminate", "time": "2026-01-01T00:00:00Z"},
                {"Events": [{"EventType": "Preempt", "EventId": "x", "NotBefore": "Mon, 19 Sep 2026 18:29:47 GMT"}]},
            ),
            _notices,
        ),
        Reader(
            "own prices",
            "terms.yaml",
            _texts("discounts:\n  aws/p4d.24xlarge: 30%\nquotas:\n  aws: 16\n"),
            lambda path: terms_of(_catalog(), file=path),
        ),
        Reader("rank files", "ranks/7.door.json", _documents(RANK), _rank_files),
        Reader("deflation record", "d/record.json", _documents(RECORD), _deflated),
    )


def _parquet(folder: Path) -> bytes:
    import polars

    with tempfile.NamedTemporaryFile(dir=folder, suffix=".parquet") as file:
        frame = polars.DataFrame({"rank": [0, 0], "step": [1, 2], "phase": ["as is", None], "duration_s": [0.1, 0.2]})
        frame.write_parquet(file.name)
        return Path(file.name).read_bytes()


def _tensor_file(folder: Path) -> bytes:
    path = folder / "one.safetensors"
    write_tensors(path, {"a": torch.zeros(2, 3), "b": torch.ones(4, dtype=torch.int64), "c": torch.zeros(0)}, "blake2b")
    return path.read_bytes()


def _chakra() -> bytes:
    """A trace of two nodes, by hand: lengths are single bytes."""

    def message(body: bytes) -> bytes:
        return bytes([len(body)]) + body

    first = b"\x08\x01\x12\x01a\x18\x04\x38\x05"
    second = b"\x08\x02\x12\x01b\x18\x07\x2a\x01\x01\x38\x05"
    return message(b"\n\x060.0.41") + message(first) + message(second)
