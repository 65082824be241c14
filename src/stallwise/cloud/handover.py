"""The pick for other programs: a SkyPilot task or time estimator, a torchrun command, a Slurm batch file.

SkyPilot takes ordered resources: it tries the first and falls back on the next. A task has one number of nodes, so the
candidates are those of the recommendation that have the pick's number.

SkyPilot's in-process optimizer assumes that every task lasts an hour unless it is given an estimator:

    task = sky.Task.from_yaml("task.yaml")
    task.set_time_estimator(estimator(model, request, catalog))
    sky.optimize(dag, minimize=sky.OptimizeTarget.COST)
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stallwise.analysis.fleets import nodes_of, one_fleet, steps_of
from stallwise.analysis.job import JobModel
from stallwise.cloud.bids import job_columns
from stallwise.cloud.options import FleetOption
from stallwise.cloud.recommend import Recommendation
from stallwise.cloud.request import RecommendRequest
from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.instance import Instance
from stallwise.units import GIB, show_bounds, show_seconds, show_usd, show_usd_bounds

_LABELS = {
    "A100-40GB-SXM": "A100",
    "A100-40GB-PCIe": "A100",
    "A100-80GB-SXM": "A100-80GB",
    "A100-80GB-PCIe": "A100-80GB",
    "H100-SXM": "H100",
    "H100-PCIe": "H100",
    "H200-SXM": "H200",
    "GH200-96GB": "GH200",
    "P100-PCIe": "P100",
    "V100-SXM2": "V100",
    "V100-SXM2-32GB": "V100-32GB",
    "V100-PCIe": "V100",
}
_PORT = 29500
_ELASTIC_PORT = 29400


def ranked(recommendation: Recommendation) -> list[FleetOption]:
    """Return the pick, then the others with its number of machines and GPUs, cheapest first."""
    if not recommendation.candidates:
        raise InputError("Nothing keeps the limits, so there is nothing to hand over.")
    return list(recommendation.candidates)


def skypilot_task(recommendation: Recommendation, command: Sequence[str], *, setup: str = "") -> dict[str, Any]:
    """Return the SkyPilot task as the mapping its YAML holds."""
    options = ranked(recommendation)
    pick = options[0]
    name = _task_name(recommendation.model.job.name)
    task: dict[str, Any] = {
        "name": name,
        "workdir": ".",
        "num_nodes": pick.nodes,
        "resources": {"ordered": [_resources(option) for option in options]},
        "envs": {"OMP_NUM_THREADS": "1"},
        "run": _run(pick, command) if pick.spot is None else _elastic_run(pick, name, command),
    }
    if pick.spot is not None:
        _add_checkpoints(task, pick, name)
    if setup:
        task["setup"] = setup
    return task


def _add_checkpoints(task: dict[str, Any], pick: FleetOption, name: str) -> None:
    """What a job needs to go on after a loss: an object store of its own, the interval of the plan, our package."""
    assert pick.spot is not None  # noqa: S101 - only called for spot picks
    scheme, store = ("gs", "gcs") if pick.offer.instance.cloud == "gcp" else ("s3", "s3")
    bucket = f"{name[:40]}-checkpoints"
    task["setup"] = "pip install 'stallwise[data]'"
    # Sessions write to the store itself; the mount makes sure that it is there and may be used.
    task["file_mounts"] = {"/checkpoints": {"name": bucket, "store": store, "mode": "MOUNT"}}
    task["envs"]["STALLWISE_CHECKPOINTS"] = f"{scheme}://{bucket}/{name}"
    task["envs"]["STALLWISE_INTERVAL_S"] = f"{pick.spot.interval_s:.6g}"
    if pick.nodes > 1:
        task["secrets"] = {"STALLWISE_JOB_SECRET": None}


def _elastic_run(pick: FleetOption, name: str, command: Sequence[str]) -> str:
    """The coordinator on the first node, and a host on each."""
    program = ["python", "-m", "stallwise.elastic"]
    coordinator = " ".join([*program, "coordinator", "--address", "0.0.0.0", "--port", str(_ELASTIC_PORT)])  # noqa: S104 - hosts prove that they have the secret
    host = [*program, "host", "--coordinator", f'"$head:{_ELASTIC_PORT}"', "--nnodes", f"1:{pick.nodes}"]
    host += ["--nproc-per-node", str(pick.used), "--job", name]
    lines = [
        'head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)',
        f'if [ "$SKYPILOT_NODE_RANK" = 0 ]; then {coordinator} & fi',
        f"{' '.join(host)} \\\n  {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def skypilot_yaml(recommendation: Recommendation, command: Sequence[str], *, setup: str = "") -> str:
    """Return the SkyPilot task as YAML, with the prediction in its head."""
    import yaml

    body: str = yaml.safe_dump(skypilot_task(recommendation, command, setup=setup), sort_keys=False, width=100)
    pick = ranked(recommendation)[0]
    head = (
        f"# {' '.join(recommendation.verdict.split())}\n"
        f"# Predicted {show_seconds(pick.job_s)} ({show_bounds(pick.low_s, pick.high_s)}), {show_usd(pick.usd)} "
        f"({show_usd_bounds(pick.low_usd, pick.high_usd)}). Candidates are in order: SkyPilot falls back on the "
        "next.\n"
        f"# Batch of all GPUs {pick.batch:g}, {pick.samples_per_gpu:g} per GPU; num_workers {pick.workers} per GPU.\n"
    )
    if pick.spot is not None:
        head += "# The script trains in a stallwise.elastic session, which takes folder and interval from here."
        if pick.nodes > 1:
            head += "\n# Launch it with a secret STALLWISE_JOB_SECRET, such as what openssl rand -hex 32 prints."
        head += "\n"
    return head + body


def torchrun_line(pick: FleetOption, command: Sequence[str]) -> str:
    """Return the command for every node; the launcher sets `$NODE_RANK` and `$MASTER_ADDR`."""
    words = ["torchrun", "--nproc-per-node", str(pick.used)]
    if pick.nodes > 1:
        words += ["--nnodes", str(pick.nodes), "--node-rank", "$NODE_RANK"]
        words += _rendezvous("job", f"$MASTER_ADDR:{_PORT}")
    return " ".join([*words, shlex.join(command)])


def spot_plan_words(pick: FleetOption, recommendation: Recommendation) -> list[str]:
    """Return the arguments of the `stallwise spot plan` command for a spot pick, which gives the same hours and
    dollars."""
    assert pick.spot is not None and recommendation.request.spot is not None  # noqa: S101, PT018 - only called for spot picks
    spot_request, kind = pick.spot.spot_request, pick.spot.spot_request.kind
    words = ["stallwise", "spot", "plan", recommendation.model.job.trace.source]
    words += ["--work", f"{spot_request.work_s:.9g}s", "--nodes", str(spot_request.machines)]
    words += [
        "--price",
        f"{kind.usd_per_h:.6g}",
        "--spot-price",
        f"{kind.spot_usd_per_h:.6g}",
        *recommendation.request.spot.plan_arguments,
    ]
    for option, seconds in (
        ("--checkpoint-time", spot_request.save_s),
        ("--provision", spot_request.provision_s),
        ("--restart", spot_request.restart_s),
        ("--deadline", spot_request.deadline_s),
    ):
        words += [] if seconds is None else [option, f"{seconds:.9g}s"]
    return words if spot_request.budget_usd is None else [*words, "--budget", f"{spot_request.budget_usd:g}"]


def spot_plan_line(pick: FleetOption, recommendation: Recommendation) -> str:
    """Return the `stallwise spot plan` command as one line for a shell."""
    return shlex.join(spot_plan_words(pick, recommendation))


def slurm_batch(recommendation: Recommendation, command: Sequence[str]) -> str:
    """Return a Slurm batch file for nodes like the pick's."""
    pick = ranked(recommendation)[0]
    hours, rest = divmod(int(pick.high_s * 1.2) + 60, 3600)
    batch_options = {
        "job-name": _task_name(recommendation.model.job.name),
        "nodes": pick.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": pick.used,
        "cpus-per-task": pick.used * (pick.workers + 1),
    }
    time_limit = f"time={hours}:{rest // 60:02d}:{rest % 60:02d}"
    srun = ["srun", *_torchrun(pick)]
    if pick.nodes > 1:
        srun += _rendezvous('"$SLURM_JOB_ID"', f'"$head:{_PORT}"')
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in batch_options.items()),
        "# The upper bound of the prediction and a fifth more.",
        f"#SBATCH --{time_limit}",
        "",
        *(['head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'] if pick.nodes > 1 else []),
        f"{' '.join(srun)} \\",
        f"    {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def sky_label(gpu: str) -> str:
    """SkyPilot's name of a GPU of the catalog."""
    return _LABELS.get(gpu, gpu)


def _resources(option: FleetOption) -> dict[str, Any]:
    instance = option.offer.instance
    resources: dict[str, Any] = {"infra": _infra(option)}
    if "+" in instance.name:  # GCP attaches GPUs to a host; the catalog names both
        host, _, attached = instance.name.partition("+")
        resources["instance_type"] = host
        resources["accelerators"] = f"{sky_label(instance.gpu.name)}:{instance.gpu_count}" if attached else None
    else:
        resources["instance_type"] = instance.name
    if option.offer.market == "spot":
        resources["use_spot"] = True
    return resources


def _infra(option: FleetOption) -> str:
    return f"{option.offer.instance.cloud}/{option.offer.region}"


def _run(pick: FleetOption, command: Sequence[str]) -> str:
    lines = [" ".join(_torchrun(pick))]
    if pick.nodes > 1:
        rendezvous = _rendezvous("$SKYPILOT_TASK_ID", f'"$(echo "$SKYPILOT_NODE_IPS" | head -n1):{_PORT}"')
        lines.append(" ".join(["--node-rank", "$SKYPILOT_NODE_RANK", *rendezvous[:4]]))
        lines.append(" ".join(rendezvous[4:]))
    lines.append(shlex.join(command))
    return " \\\n  ".join(lines) + "\n"


def _torchrun(pick: FleetOption) -> list[str]:
    return ["torchrun", "--nproc-per-node", str(pick.used), "--nnodes", str(pick.nodes)]


def _rendezvous(job_id: str, endpoint: str) -> list[str]:
    """Arguments of torchrun for a rendezvous of several nodes."""
    return ["--rdzv-backend", "c10d", "--rdzv-id", job_id, "--rdzv-endpoint", endpoint]


def _task_name(name: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in name.rsplit(".", 1)[0]).strip("-").lower()
    return kept if kept and kept[0].isalpha() else f"job-{kept}".rstrip("-")


_N1_GIB_PER_VCPU = {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}
"""Google's N1 machines (its documentation of machine families)."""
Resources = Any
"""sky.Resources; SkyPilot is not needed to import this."""


def estimator(
    model: JobModel, request: RecommendRequest, catalog: Catalog, nodes: int = 1
) -> Callable[[Resources], float]:
    """Return a function from SkyPilot resources to the job's seconds on `nodes` such machines.

    It finds the instance type by name, else by GPU and count, and raises an `InputError` where it cannot predict.
    """

    def seconds(resources: Resources) -> float:
        return job_s(model, request, _instance(catalog, resources), nodes)

    return seconds


def job_s(model: JobModel, request: RecommendRequest, instance: Instance, nodes: int) -> float:
    """Seconds of the job from the order to the end, on whole machines."""
    kinds, _, unjudged = nodes_of(model, [instance], request.machines, request.own_record)
    if not kinds:
        raise InputError(next(iter(unjudged.values())))
    if nodes > 1 and not kinds[0].networked:
        raise InputError(f"The catalog lists no network of {instance.name}, so {nodes} of them cannot be judged.")
    fleet = one_fleet(kinds[0], used=instance.gpu_count, nodes=nodes)
    steps = steps_of(model, fleet, request.settings)
    if not steps.fits[0]:
        raise InputError(f"The job does not fit on {nodes} × {instance.name}.")
    batch = model.samples * steps.batch * fleet.gpus
    return float(request.provision_s + request.startup_s + job_columns(steps.step_s, steps.cold_s, batch, request)[0])


def _instance(catalog: Catalog, resources: Resources) -> Instance:
    cloud = str(resources.cloud).lower() if resources.cloud is not None else None
    name = resources.instance_type
    label, count = next(iter((resources.accelerators or {}).items()), (None, 0))
    if name is not None and (label is None or (cloud or "gcp", name) in catalog.instances):
        return catalog.instance(name, cloud)
    gpu = catalog.gpu_of_label(label, cloud) if label else None
    alike = [
        instance
        for instance in catalog.instances.values()
        if instance.gpu == gpu and instance.gpu_count == count and cloud in (None, instance.cloud)
    ]
    named = [instance for instance in alike if name in (instance.name, instance.name.partition("+")[0])]
    if not alike:
        raise InputError(f"The catalog has no instance type with {count:g} × {label}, so its time cannot be told.")
    if named or name is None:
        return (named or alike)[0]
    attached = next((instance for instance in alike if "+" in instance.name), None)
    return catalog.instance(name, cloud) if attached is None else _on_host(attached, name)


def _on_host(instance: Instance, host: str) -> Instance:
    """The same GPUs on another N1 host (Google attaches GPUs to any), whose name gives its size."""
    match = re.fullmatch(r"n1-(standard|highmem|highcpu)-(\d+)", host)
    if match is None:
        return instance
    vcpus = int(match[2])
    return replace(instance, name=host, vcpus=vcpus, memory_bytes=int(_N1_GIB_PER_VCPU[match[1]] * vcpus * GIB))
