"""The pick handed over: a SkyPilot task, a torchrun line, a Slurm batch file.

SkyPilot takes ordered resources: it tries the first and falls back on the next. One task has one number of nodes, so
the candidates are those of the recommendation that have the pick's.
"""

import shlex
from collections.abc import Sequence
from typing import Any

from stallwise.cloud.options import Option
from stallwise.cloud.recommend import Recommendation
from stallwise.errors import InputError

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


def ranked(found: Recommendation) -> list[Option]:
    """The pick, then the others that have its number of machines and GPUs, cheapest first."""
    if not found.candidates:
        raise InputError("Nothing keeps the limits, so there is nothing to hand over.")
    return list(found.candidates)


def skypilot_task(found: Recommendation, command: Sequence[str], *, setup: str = "") -> dict[str, Any]:
    """The task as SkyPilot's YAML has it."""
    options = ranked(found)
    pick = options[0]
    task: dict[str, Any] = {
        "name": _task_name(found.subject.job.name),
        "workdir": ".",
        "num_nodes": pick.nodes,
        "resources": {"ordered": [_resources(option) for option in options]},
        "envs": {"OMP_NUM_THREADS": "1"},
        "run": _run(pick, command),
    }
    if setup:
        task["setup"] = setup
    return task


def skypilot_yaml(found: Recommendation, command: Sequence[str], *, setup: str = "") -> str:
    """The same as text, with a head that says where it comes from."""
    import yaml

    body: str = yaml.safe_dump(skypilot_task(found, command, setup=setup), sort_keys=False, width=100)
    pick = ranked(found)[0]
    head = (
        f"# {' '.join(found.verdict.split())}\n"
        f"# Predicted {pick.job_s / 3600:.3g} h ({pick.low_s / 3600:.3g} to {pick.high_s / 3600:.3g}), "
        f"${pick.usd:,.2f} (${pick.low_usd:,.2f} to ${pick.high_usd:,.2f}). Candidates are in order: SkyPilot falls "
        "back on the next.\n"
        f"# Batch of all GPUs {pick.batch:g}, {pick.samples_per_gpu:g} per GPU; num_workers {pick.workers} per GPU.\n"
    )
    return head + body


def torchrun_line(pick: Option, command: Sequence[str]) -> str:
    """One line for every node; `$NODE_RANK` and `$MASTER_ADDR` are the launcher's."""
    words = ["torchrun", "--nproc-per-node", str(pick.used)]
    if pick.nodes > 1:
        words += ["--nnodes", str(pick.nodes), "--node-rank", "$NODE_RANK"]
        words += ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", f"$MASTER_ADDR:{_PORT}"]
    return " ".join([*words, shlex.join(command)])


def spot_plan_words(pick: Option, found: Recommendation) -> list[str]:
    """The pick as `stallwise spot plan` asks it: the same hours and dollars, with levers, zones and closed form."""
    assert pick.spot is not None and found.wish.spot is not None  # noqa: S101, PT018 - asked only for spot picks
    asked, kind = pick.spot.question, pick.spot.question.kind
    words = ["stallwise", "spot", "plan", found.subject.job.trace.source]
    words += ["--work", f"{asked.work_s:.9g}s", "--machines", str(asked.machines)]
    words += ["--price", f"{kind.usd_per_h:.6g}", "--spot-price", f"{kind.spot_usd_per_h:.6g}", *found.wish.spot.given]
    for option, seconds in (
        ("--checkpoint-time", asked.save_s),
        ("--provision", asked.provision_s),
        ("--restart", asked.restart_s),
        ("--deadline", asked.deadline_s),
    ):
        words += [] if seconds is None else [option, f"{seconds:.9g}s"]
    return words if asked.budget_usd is None else [*words, "--budget", f"{asked.budget_usd:g}"]


def spot_plan_line(pick: Option, found: Recommendation) -> str:
    """The same for a shell."""
    return shlex.join(spot_plan_words(pick, found))


def slurm_batch(found: Recommendation, command: Sequence[str]) -> str:
    """A batch file for nodes like the pick's on a cluster of one's own."""
    pick = ranked(found)[0]
    hours, rest = divmod(int(pick.high_s * 1.2) + 60, 3600)
    rdzv = f'--rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$head:{_PORT}" ' if pick.nodes > 1 else ""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_task_name(found.subject.job.name)}",
        f"#SBATCH --nodes={pick.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={pick.used}",
        f"#SBATCH --cpus-per-task={pick.used * (pick.workers + 1)}",
        "# The upper bound of the prediction and a fifth more.",
        f"#SBATCH --time={hours}:{rest // 60:02d}:{rest % 60:02d}",
        "",
        *(['head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'] if pick.nodes > 1 else []),
        f"srun torchrun --nproc-per-node {pick.used} --nnodes {pick.nodes} {rdzv}\\",
        f"    {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def sky_label(gpu: str) -> str:
    """What SkyPilot calls a GPU of the catalog."""
    return _LABELS.get(gpu, gpu)


def _resources(option: Option) -> dict[str, Any]:
    instance = option.offer.instance
    found: dict[str, Any] = {"infra": _infra(option)}
    if "+" in instance.name:  # GCP attaches GPUs to a host; ours are named after both
        host, _, attached = instance.name.partition("+")
        found["instance_type"] = host
        found["accelerators"] = f"{sky_label(instance.gpu.name)}:{instance.gpu_count}" if attached else None
    else:
        found["instance_type"] = instance.name
    if option.offer.market == "spot":
        found["use_spot"] = True
    return found


def _infra(option: Option) -> str:
    return f"{option.offer.instance.cloud}/{option.offer.region}"


def _run(pick: Option, command: Sequence[str]) -> str:
    words = [f"torchrun --nproc-per-node {pick.used} --nnodes {pick.nodes}"]
    if pick.nodes > 1:
        words.append("--node-rank $SKYPILOT_NODE_RANK --rdzv-backend c10d --rdzv-id $SKYPILOT_TASK_ID")
        words.append(f'--rdzv-endpoint "$(echo "$SKYPILOT_NODE_IPS" | head -n1):{_PORT}"')
    words.append(shlex.join(command))
    return " \\\n  ".join(words) + "\n"


def _task_name(name: str) -> str:
    kept = "".join(c if c.isalnum() else "-" for c in name.rsplit(".", 1)[0]).strip("-").lower()
    return kept if kept and kept[0].isalpha() else f"job-{kept}".rstrip("-")
