"""The part `host` of a profile against CUDA-graph replay: python -m benchmarks.gpu.host [--limit 420] [--out FILE]

Ten training jobs, each bare, with delays of 1, 5 and 20 ms put between its steps, and as the replay of a CUDA graph of
the same step, which holds the device's work and nothing of the host. What a bare step takes longer than the replay is
the host's part; `profile` must find it. Bar (written before the measurement): within 10 % of the truth, or within 2 %
of the step. Every job is profiled as it is and with one of the delays, in turn, as far as the time goes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.networks import Job

JOBS = (
    Job("resnet18", 16),
    Job("gpt2", 2),
    Job("resnet50", 32),
    Job("bert_base", 8),
    Job("mobilenet_v3_large", 32),
    Job("llama_1b", 1),
    Job("efficientnet_b0", 64, "tf32"),
    Job("swin_t", 16),
    Job("vit_b_16", 16),
    Job("resnet50", 256, "tf32"),
)
DELAYS_MS = (0.0, 1.0, 5.0, 20.0)
WITHIN, WITHIN_STEP = 0.10, 0.02
BARE_S = 0.8


def truths(job: Job, device: str) -> tuple[float, dict[float, float]]:
    """Seconds of the replayed step, and of the bare one by delay in ms; in a process of its own."""
    code = (
        "import json, sys; from benchmarks.gpu.networks import *\n"
        "network, batch, precision, device, delays = json.loads(sys.argv[1])\n"
        "training = Training(Job(network, batch, precision), device, capturable=True)\n"
        f"bare = [step_s(training.step, device, {BARE_S}, ms / 1e3) for ms in delays]\n"
        f"graph = step_s(training.as_graph(), device, {BARE_S}) if device == 'cuda' else 0.0\n"
        "print(json.dumps([graph, bare]))"
    )
    arguments = json.dumps([job.network, job.batch, job.precision, device, DELAYS_MS])
    done = subprocess.run([sys.executable, "-c", code, arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-800:])
    graph, bare = json.loads(done.stdout.splitlines()[-1])
    return graph, dict(zip(DELAYS_MS, bare, strict=True))


def profiled(job: Job, delay_ms: float, device: str, budget: str) -> dict[str, object]:
    """The profile of the job as a document."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stallwise", "profile", "--json", "--no-cold", "--max-time", budget]
        command += ["-o", f"{folder}/run", "-m", "benchmarks.gpu.networks", job.network, "--batch", str(job.batch)]
        command += ["--precision", job.precision, "--delay-ms", str(delay_ms), "--device", device, "--capturable"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stdout[-400:]} {done.stderr[-400:]}")
    document: dict[str, object] = json.loads(done.stdout)
    return document


def host_of(document: dict[str, object]) -> float:
    """Seconds of the part host; 0 where the split has none."""
    split = document["split"]
    part = split.get("host") if isinstance(split, dict) else None
    return float(part["s"]) if part else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=420.0, help="seconds for everything")
    parser.add_argument("--profile", default="6s", help="what each profile may measure for")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="*", help="only these")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    end = time.monotonic() + options.limit
    jobs = [job for job in JOBS if not options.networks or job.network in options.networks]
    jobs = jobs or [Job(name, 8, "fp32") for name in options.networks]
    rows: list[dict[str, object]] = []
    print(f"{'job':42s} {'delay':>6s} {'step ms':>8s} {'replay':>8s} {'host':>8s} {'found':>8s}  verdict", flush=True)
    known = {}
    for job in jobs:
        try:
            known[job] = truths(job, options.device)
        except RuntimeError as error:
            print(f"{job!s:42s} failed: {error}", flush=True)
    order = [(job, 0.0) for job in known] + [(job, DELAYS_MS[1 + i % 3]) for i, job in enumerate(known)]
    for job, delay in order:
        if time.monotonic() > end:
            print("the time is spent; the rest was not measured", flush=True)
            break
        graph, bare = known[job]
        try:
            document = profiled(job, delay, options.device, options.profile)
        except (RuntimeError, ValueError) as error:
            print(f"{job!s:42s} {delay:6.0f} failed: {error}", flush=True)
            rows.append({"job": str(job), "delay_ms": delay, "within": False, "error": str(error)})
            continue
        truth, found = max(0.0, bare[delay] - graph), host_of(document)
        within = abs(found - truth) <= max(WITHIN * truth, WITHIN_STEP * bare[delay])
        rows.append(
            {
                "job": str(job),
                "delay_ms": delay,
                "step_s": bare[delay],
                "replay_s": graph,
                "host_s": truth,
                "found_s": found,
                "profiled_step_s": document.get("step_s"),
                "causes": document.get("observed"),
                "within": within,
            }
        )
        print(
            f"{job!s:42s} {delay:6.0f} {bare[delay] * 1e3:8.2f} {graph * 1e3:8.2f} {truth * 1e3:8.2f} "
            f"{found * 1e3:8.2f}  {'within' if within else 'OUTSIDE'}",
            flush=True,
        )
    print(f"{sum(bool(row['within']) for row in rows)} of {len(rows)} within 10 % or 2 % of the step")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1, default=str))


if __name__ == "__main__":
    main()
