"""The pick handed over; SkyPilot itself loads the task and asks our estimator."""

import csv
import datetime as dt
import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallwise.cloud.handover import (
    estimator,
    job_s,
    ranked,
    sky_label,
    skypilot_task,
    skypilot_yaml,
    slurm_batch,
    torchrun_line,
)
from stallwise.cloud.recommend import Recommendation, recommend
from stallwise.cloud.request import RecommendRequest, SpotTerms
from stallwise.errors import InputError
from stallwise.spot.lifetimes.models import Exponential
from tests.cloud.made import catalog, made_model
from tests.conftest import lacks
from tests.system import skypilot_folder

COMMAND = ["train.py", "--data", "my images"]
REQUEST = RecommendRequest(samples=2e7, deadline_s=3 * 3600.0, clouds=frozenset({"aws"}), max_nodes=8)


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend(made_model(layers=6), REQUEST, catalog().offers, dt.date(2026, 9, 1))


@pytest.fixture(scope="module")
def sky_python() -> Path:
    """The interpreter of a virtual environment with SkyPilot, whose pins are not ours; `make system` makes it."""
    python = skypilot_folder() / "bin/python"
    if not python.exists():
        lacks(f"SkyPilot in {python.parents[1]} (`make system`, or set STALLWISE_SKYPILOT)")
    return python


def test_the_candidates_are_alike_and_in_order(found: Recommendation) -> None:
    options = ranked(found)
    assert options[0] == found.pick
    assert all((one.nodes, one.used) == (options[0].nodes, options[0].used) for one in options)
    assert all(one.in_limits >= REQUEST.confidence for one in options)
    task = skypilot_task(found, COMMAND)
    assert task["num_nodes"] == options[0].nodes
    assert len(task["resources"]["ordered"]) == len(options)


@pytest.mark.parametrize("word", ["$x; touch evil", "$(touch evil)", "`touch evil`", "a'b\nc", "$5 price"])
def test_arguments_are_words_and_nothing_else(found: Recommendation, word: str, tmp_path: Path) -> None:
    command = ["train.py", word]
    for text in (
        torchrun_line(ranked(found)[0], command),
        slurm_batch(found, command),
        skypilot_task(found, command)["run"],
    ):
        said = text[text.index("train.py") :]
        program = ["bash", "-c", f"printf '%s' {said}"]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=250)
        assert done.stdout == f"train.py{word}"
        assert not list(tmp_path.iterdir())


def test_lines_for_torchrun_and_slurm(found: Recommendation) -> None:
    pick = ranked(found)[0]
    words = shlex.split(torchrun_line(pick, COMMAND))
    assert words[:3] == ["torchrun", "--nproc-per-node", str(pick.used)]
    assert words[-3:] == COMMAND
    batch = slurm_batch(found, COMMAND)
    assert f"#SBATCH --nodes={pick.nodes}" in batch
    assert subprocess.run(["bash", "-n"], input=batch, text=True, check=False, timeout=250).returncode == 0


def test_the_estimator_says_what_the_recommendation_says(found: Recommendation) -> None:
    pick = ranked(found)[0]
    model = found.model
    told = job_s(model, REQUEST, pick.offer.instance, pick.nodes)
    if pick.used == pick.offer.instance.gpu_count:
        assert told == pytest.approx(pick.job_s, rel=1e-9)

    class Asked:
        cloud = "AWS"
        instance_type = "p4d.24xlarge"
        accelerators = None

    assert estimator(model, REQUEST, catalog())(Asked()) == job_s(model, REQUEST, catalog().instance("p4d.24xlarge"), 1)
    huge = made_model(parameters=60e9, gpu="RTX3090")
    with pytest.raises(InputError, match="does not fit"):
        job_s(huge, REQUEST, catalog().instance("p4d.24xlarge"), 1)


@pytest.mark.parametrize(
    ("host", "label", "count", "vcpus"),
    [
        ("n1-highmem-8", "V100", 1, 8),  # listed, as n1-highmem-8+V100x1
        ("n1-highmem-8", "T4", 1, 8),  # T4 is listed with another host
        (None, "P100", 4, 64),
    ],
)
def test_the_estimator_finds_gpus_attached_to_a_host(host: str | None, label: str, count: int, vcpus: int) -> None:
    """Google's N1 machines: SkyPilot names the host and the GPUs apart."""
    model = made_model(layers=6, gpus=count)
    asked = SimpleNamespace(cloud="GCP", instance_type=host, accelerators={label: count})
    listed = next(
        one
        for one in catalog().instances.values()
        if one.cloud == "gcp" and "+" in one.name and one.gpu.name.startswith(label) and one.gpu_count == count
    )
    expected = replace(listed, vcpus=vcpus, memory_bytes=listed.memory_bytes if vcpus == listed.vcpus else 52 * 2**30)
    assert estimator(model, REQUEST, catalog())(asked) == job_s(model, REQUEST, expected, 1)
    with pytest.raises(InputError, match="no instance type with 3"):
        estimator(model, REQUEST, catalog())(SimpleNamespace(cloud="GCP", instance_type=host, accelerators={label: 3}))


_LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import sky
from sky import clouds, optimizer
from sky.utils import common

task = sky.Task.from_yaml(sys.argv[1])
task.validate(skip_file_mounts=True)
seconds = json.loads(sys.argv[2])
task.set_time_estimator(lambda resources: seconds[resources.instance_type])
ordered = list(task.resources)
told = {
    "nodes": task.num_nodes, "types": [r.instance_type for r in ordered], "run": task.run,
    "regions": [r.region for r in ordered], "kind": type(task.resources).__name__,
    "estimated": [task.estimate_runtime(r) for r in ordered],
    "usd": {r.instance_type: task.num_nodes * r.get_cost(seconds[r.instance_type]) for r in ordered},
}
# No account is at hand; which clouds are enabled is all the optimizer asks of one.
optimizer.sky_check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: [clouds.AWS()]
task.set_resources(set(ordered))
for target in ("TIME", "COST"):
    with sky.Dag() as dag:
        dag.add(task)
    optimizer.Optimizer.optimize(dag, minimize=common.OptimizeTarget[target], quiet=True)
    told[target] = dag.tasks[0].best_resources.instance_type
print("TOLD" + json.dumps(told))
"""


def _catalog_of_skypilot(home: Path) -> None:
    """What SkyPilot would download: AWS as our catalog lists it."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for offer in catalog().offers:
        instance = offer.instance
        if instance.cloud != "aws" or instance.retired_on is not None:
            continue
        row = rows.setdefault(
            (instance.name, offer.region),
            {
                "InstanceType": instance.name, "AcceleratorName": sky_label(instance.gpu.name),
                "AcceleratorCount": instance.gpu_count, "vCPUs": instance.vcpus,
                "MemoryGiB": instance.memory_bytes / 2**30, "Price": "", "Region": offer.region, "GpuInfo": "",
                "SpotPrice": "", "AvailabilityZone": f"{offer.region}a", "Arch": "x86_64",
            },
        )  # fmt: skip
        row["Price" if offer.market == "on-demand" else "SpotPrice"] = offer.usd_per_h
    path = home / ".sky/catalogs/v8/aws/vms.csv"
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(next(iter(rows.values()))))
        writer.writeheader()
        writer.writerows(rows.values())


def test_skypilot_loads_the_task_and_its_optimizer_takes_our_times(
    found: Recommendation, sky_python: Path, tmp_path: Path
) -> None:
    _catalog_of_skypilot(tmp_path)
    path = tmp_path / "task.yaml"
    path.write_text(skypilot_yaml(found, COMMAND))
    options = ranked(found)
    assert len(options) >= 2
    seconds = {one.offer.instance.name: job_s(found.model, REQUEST, one.offer.instance, one.nodes) for one in options}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [str(sky_python), "-c", _LOAD, str(path), json.dumps(seconds)],
        capture_output=True, text=True, timeout=250, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("TOLD"))[4:])
    assert told["nodes"] == options[0].nodes
    assert told["types"] == [one.offer.instance.name for one in options]
    assert told["regions"] == [one.offer.region for one in options]
    assert told["kind"] == "list"  # ordered, not any of them
    assert told["estimated"] == [seconds[name] for name in told["types"]]
    assert "my images" in told["run"]
    assert seconds[told["TIME"]] == min(seconds.values())
    assert told["COST"] == min(told["usd"], key=lambda name: told["usd"][name])


@pytest.fixture(scope="module")
def on_spot() -> Recommendation:
    spot = SpotTerms(life=Exponential(12 * 3600.0), name="made", save_s=10, provision_s=90, restart_s=60, replays=100)
    request = replace(REQUEST, spot=spot, on_demand=False, provision_s=90.0, startup_s=60.0)
    return recommend(made_model(layers=6), request, catalog().offers, dt.date(2026, 9, 1))


def test_a_spot_task_saves_as_often_as_the_answer_says(on_spot: Recommendation) -> None:
    task, pick = skypilot_task(on_spot, COMMAND), ranked(on_spot)[0]
    assert pick.spot is not None
    assert all(one.get("use_spot") for one in task["resources"]["ordered"])
    assert float(task["envs"]["STALLWISE_INTERVAL_S"]) == pytest.approx(pick.spot.interval_s, rel=1e-5)
    (mount,) = task["file_mounts"].values()
    assert task["envs"]["STALLWISE_CHECKPOINTS"].startswith(f"{mount['store']}://{mount['name']}/")
    assert "torchrun" not in task["run"]
    assert "stallwise" in task["setup"]


def test_the_run_of_a_spot_task_starts_one_coordinator_and_a_host_on_each_node(
    on_spot: Recommendation, tmp_path: Path
) -> None:
    """The shell itself runs it, with a program in the place of Python that notes its arguments."""
    task, pick = skypilot_task(on_spot, COMMAND), ranked(on_spot)[0]
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> "$NOTES"\n')
    python.chmod(0o755)
    for rank in range(2):
        notes = tmp_path / f"notes{rank}"
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(notes)}
        environment |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": str(rank)}
        script = task["run"] + "wait\n"
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, timeout=60, check=True)
        lines = sorted(notes.read_text().splitlines())
        assert [line.split()[2] for line in lines] == ["coordinator", "host"][rank:]
        host = lines[-1].split()
        assert host[host.index("--coordinator") + 1] == "10.0.0.1:29400"
        assert host[host.index("--nproc-per-node") + 1] == str(pick.used)
        assert lines[-1].endswith("train.py --data my images")


_LOAD_SPOT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import sky

task = sky.Task.from_yaml(sys.argv[1])
task.update_secrets({"STALLWISE_JOB_SECRET": "0" * 64})
task.validate(skip_file_mounts=True)
print("TOLD" + json.dumps({
    "spot": [r.use_spot for r in task.resources], "setup": task.setup, "envs": task.envs, "run": task.run,
    "mounts": {place: storage.name for place, storage in task.storage_mounts.items()},
}))
"""


def test_skypilot_loads_a_spot_task(on_spot: Recommendation, sky_python: Path, tmp_path: Path) -> None:
    _catalog_of_skypilot(tmp_path)
    two = replace(on_spot, candidates=tuple(replace(one, nodes=2) for one in on_spot.candidates))
    task, path = skypilot_task(two, COMMAND), tmp_path / "task.yaml"
    path.write_text(skypilot_yaml(two, COMMAND))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [str(sky_python), "-c", _LOAD_SPOT, str(path)],
        capture_output=True, text=True, timeout=250, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("TOLD"))[4:])
    assert set(told["spot"]) == {True}
    assert told["mounts"] == {place: mount["name"] for place, mount in task["file_mounts"].items()}
    assert (told["setup"], told["run"].strip()) == (task["setup"], task["run"].strip())
    assert task["envs"].items() <= told["envs"].items()
