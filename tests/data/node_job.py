"""One rank of a job that reads a bucket through its node's cache: `node_job.py SETTINGS`; prints what epochs did."""

import hashlib
import json
import sys
import time
from dataclasses import dataclass, field

import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache, Peers
from tests.data.testbed.seaweed import content
from tests.waiting import PATIENCE_S


@dataclass(frozen=True)
class Settings:
    """What the test asks of a rank; master and rank are in the environment."""

    bucket: str
    """Begin of the name; each mode reads its own: `-true` and `-false`."""
    endpoint: str
    options: dict[str, str]
    folder: str
    limit_bytes: int
    size_bytes: int
    epochs: int
    modes: tuple[bool, ...]
    """One job after the other, in the same processes: with peers or without."""
    workers: int = 1
    batch: int = 8


@dataclass
class RankReport:
    """What a rank reports, per epoch."""

    requests: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    peer_hits: list[float] = field(default_factory=list)
    shared: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    failures: int = 0


def digest(data: bytes, name: str) -> tuple[str, str]:
    return name, hashlib.sha256(data).hexdigest()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    dist.init_process_group("gloo")
    print(json.dumps([train(settings, with_peers=mode).__dict__ for mode in settings.modes]), flush=True)
    dist.barrier()


def train(settings: Settings, *, with_peers: bool) -> RankReport:
    """All epochs, into a cache folder of its own."""
    rank = dist.get_rank()
    peers = Peers(timeout_s=PATIENCE_S) if with_peers else None
    cache = NodeCache(f"{settings.folder}/cache{rank}-{with_peers}", settings.limit_bytes, peers=peers)
    dataset = BucketDataset(
        f"s3://{settings.bucket}-{str(with_peers).lower()}/",
        digest,
        endpoint=settings.endpoint,
        options=settings.options,
        cache=cache,
        index_folder=f"{settings.folder}/index{rank}",
        hedge=False,  # every request must be counted as one
    )
    sampler = Lookahead(DistributedSampler(dataset, shuffle=True, seed=3))
    loader = DataLoader(
        dataset, settings.batch, sampler=sampler, num_workers=settings.workers, persistent_workers=True, collate_fn=list
    )
    report, before = RankReport(), dataset.account()
    for epoch in range(settings.epochs):
        sampler.set_epoch(epoch)
        dist.barrier()
        start_s = time.monotonic()
        for batch in loader:
            for name, checksum in batch:
                report.wrong += checksum != hashlib.sha256(content(name, settings.size_bytes)).hexdigest()
        report.seconds.append(time.monotonic() - start_s)
        dist.barrier()
        now = dataset.account()
        for name in ("requests", "hits", "peer_hits", "shared", "samples"):
            getattr(report, name).append(getattr(now, name) - getattr(before, name))
        before = now
    report.failures = peers.stat().failures if peers else 0
    return report


if __name__ == "__main__":
    main()
