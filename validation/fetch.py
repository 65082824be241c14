"""`make data`: fetch the public measurements from their publishers into the folder that `STALLWISE_DATA` names.

`published_files.csv` lists every file with its repository, commit, path there and SHA-256; four kinds of files are
converted, the others are kept as they are. What is there already and right is left alone. Tables that were put together
from several sources by hand are not fetched: the cases that need them print *no-input*.
"""

import argparse
import csv
import hashlib
import io
import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from stallwise.run.atomic import write_atomically
from validation.harness import data_folder

MANIFEST = Path(__file__).with_name("published_files.csv")
PUBLISHER = "https://raw.githubusercontent.com"
_TIMEOUT_S = 60.0
_AT_ONCE = 8
_LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of the folder, where it comes from, and the SHA-256 of what is kept."""

    file: str
    repository: str
    commit: str
    path: str
    conversion: str
    sha256: str


def published_files(manifest: Path = MANIFEST) -> list[PublishedFile]:
    """The manifest."""
    with manifest.open(newline="") as rows:
        return [PublishedFile(**row) for row in csv.DictReader(rows)]


def fetch(item: PublishedFile, folder: Path, publisher: str = PUBLISHER) -> str:
    """`there`, `fetched`, or why not; a file with another checksum is never written."""
    target = folder / item.file
    if target.is_file() and _sha256(target.read_bytes()) == item.sha256:
        return "there"
    url = f"{publisher}/{item.repository}/{item.commit}/{quote(item.path)}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 (the publisher is ours to choose)
            content = reply.read(_LARGEST_BYTES)
        converted = CONVERSIONS[item.conversion](content)
    except (OSError, ValueError, KeyError, IndexError) as error:
        return f"not fetched ({url}: {error})"
    if _sha256(converted) != item.sha256:
        return f"not kept ({url} has another checksum than {MANIFEST.name})"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, converted)
    return "fetched"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _table(rows: Iterator[list[object]], header: str, end: str = "\r\n") -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end)
    writer.writerow(header.split(","))
    writer.writerows(rows)
    return out.getvalue().encode()


def _gcp_lives(content: bytes) -> bytes:
    """One row per machine; names of users and projects are left out."""
    header = "instance,zone,machine_type,lifetime_s,insert_time,end_time,end_event,end_day_of_week,end_hour_of_day,idle"

    def rows() -> Iterator[list[object]]:
        for name, life in json.loads(content).items():
            lost = life.get("compute.instances.preempted")
            machine, end = life["instance_data"], lost or life["stop"]
            yield [
                name, machine["ZONE"], machine["MACHINE_TYPE"], life["time_in_sec"], life["insert"]["insertTime"],
                end["insertTime"], "preempted" if lost else "user_stop", life["day_of_week"], life["hr_of_day"],
                life["idle_vs_nonidle"],
            ]  # fmt: skip

    return _table(rows(), header, end="\n")


def _dally_jobs(content: bytes) -> bytes:
    """One row per job by arrival; the duration is that on its GPUs at full speed."""
    header = (
        "job_id,arrival_time_s,num_gpus,model,total_iterations,time_per_iteration_1gpu_s,ideal_duration_s,dataset,"
        "batchsize,amp,gpu_util,gmem_util,gmem_mib,user,trace_submit_time,trace_duration_s"
    )

    def arrival(job: dict[str, str]) -> float:
        return float(job.get("arrival_time", job["start_time"]))

    def rows() -> Iterator[list[object]]:
        for job in sorted(json.loads(content), key=lambda job: (arrival(job), int(job["job_id"]))):
            ideal_s = int(job["total_iterations"]) * float(job["time_per_iteration"]) / int(job["max_parallelism"])
            at = arrival(job)
            yield [
                job["job_id"], int(at) if at.is_integer() else at, job["max_parallelism"], job["model"],
                job["total_iterations"], job["time_per_iteration"], round(ideal_s, 3), job["dataset"], job["batchsize"],
                job["amp"], job["gpu_util"], job["gmem_util"], job["gmem"], job["user"], job["submit_time"],
                job["duration"],
            ]  # fmt: skip

    return _table(rows(), header)


def _layer_profile(content: bytes) -> bytes:
    """ASTRA-sim's workload: two lines of head, tab-separated layers of which six columns say something.

    The last number of a layer stands at the beginning of the next line.
    """
    header = (
        "layer,fwd_compute_ns,input_grad_compute_ns,weight_grad_compute_ns,weight_grad_collective,weight_grad_bytes"
    )
    layers = (line.lstrip("0123456789") for line in content.decode().splitlines()[2:])
    lines = [layer.split("\t") for layer in layers if layer.strip()]
    return _table(([cells[i] for i in (0, 2, 5, 8, 9, 10)] for cells in lines), header)


def _gavel_jobs(content: bytes, columns: dict[str, int]) -> bytes:
    """Gavel's native trace without its commands."""
    lines = [line.split("\t") for line in content.decode().splitlines() if line.strip()]
    return _table(([cells[place] for place in columns.values()] for cells in lines), ",".join(columns))


_PHILLY = {"job_type": 0, "total_steps": 4, "num_gpus": 6, "arrival_time_s": 5}
_PHYSICAL = {"job_type": 0, "total_steps": 5, "num_gpus": 6, "priority_weight": 7, "slo": 8, "arrival_time_s": 9}
CONVERSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gcp_lives": _gcp_lives,
    "dally_jobs": _dally_jobs,
    "layer_profile": _layer_profile,
    "gavel_philly": partial(_gavel_jobs, columns=_PHILLY),
    "gavel_physical": partial(_gavel_jobs, columns=_PHYSICAL),
}


def main() -> int:
    """Fetch what is missing; 1 where something could not be fetched."""
    parser = argparse.ArgumentParser(prog="validation.fetch", description=__doc__)
    parser.add_argument("--into", type=Path, default=data_folder())
    parser.add_argument("--publisher", default=PUBLISHER, help="another server with the same paths")
    options = parser.parse_args()
    items = published_files()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda item: fetch(item, options.into, options.publisher), items))
    for item, outcome in zip(items, outcomes, strict=True):
        if outcome.startswith("not"):
            print(f"{item.file}: {outcome}", file=sys.stderr)
    missing = sum(outcome.startswith("not") for outcome in outcomes)
    print(
        f"{options.into}: {outcomes.count('there')} files there, {outcomes.count('fetched')} fetched, {missing} missing"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
