"""A job for the kill storm: ranks read a bucket through faults, commit what they read, and go on where they stopped.

    python storm.py SETTINGS.json          reads "RANK EPOCH" lines, forks a rank for each, prints its process id

Ranks are forked from a process that has torch in memory already, so that a restart takes milliseconds. A rank appends
each batch with the position after it as one write: what is in its file is committed, torn writes are not.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache


def digest(data: bytes, name: str) -> tuple[str, str]:
    return name, hashlib.sha256(data).hexdigest()


def committed(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: a kill may tear the last."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def rank(settings: dict[str, Any], number: int, epoch: int) -> None:
    dataset = BucketDataset(
        settings["url"],
        digest,
        endpoint=settings["endpoint"],
        options=settings["options"],
        index_folder=Path(settings["folder"]) / "indexes",
        cache=NodeCache(Path(settings["folder"]) / "cache", settings["cache_bytes"], settings["policy"]),
        timeout_s=5.0,
        retries=8,
        lookahead_bytes=200_000,
    )
    sampler = Lookahead(DistributedSampler(dataset, settings["ranks"], number, seed=7))
    sampler.set_epoch(epoch)
    log = Path(settings["folder"]) / f"epoch{epoch}-rank{number}"
    before = committed(log)
    if before:
        sampler.load_state_dict(before[-1]["state"])
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    torn = log.read_bytes().rpartition(b"\n")[0]
    os.truncate(log, len(torn) + 1 if torn else 0)
    done = 0
    for batch in DataLoader(dataset, 4, sampler=sampler, num_workers=settings["workers"], collate_fn=list):
        done += len(batch)
        line = json.dumps({"samples": batch, "state": sampler.state_dict(done)})
        os.write(file, line.encode() + b"\n")
        time.sleep(settings["step_s"])
    os.write(file, json.dumps({"samples": [], "state": sampler.state_dict(done), "over": True}).encode() + b"\n")


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    for line in sys.stdin:
        number, epoch = map(int, line.split())
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            status = 1
            try:
                rank(settings, number, epoch)
                status = 0
            except RuntimeError as error:
                # A killed loader worker; anything else is a finding.
                status = 3 if "DataLoader worker" in str(error) else 1
                print(error, file=sys.stderr)
            finally:
                os._exit(status)
        print(child, flush=True)
        os.waitpid(-1, os.WNOHANG)


if __name__ == "__main__":
    main()
