"""All ranks of a job must mean the same objects by the same numbers.

Each node lists the bucket, or has kept an index of it, by itself. Where an object came or went in between, sample 17 is
one object here and another there: some would be trained on twice, others never, and nothing would look wrong. So the
first rank to come leaves its index's fingerprint in the job's own key-value store (where its ranks met), and every
other compares. Nobody waits for anybody: a rank that has no such loader holds up none that has.
"""

from collections import Counter

import torch.distributed as dist

from stallwise.errors import InputError

# How many loaders this process has made over each bucket: ranks make theirs in the same order.
_made: Counter[str] = Counter()


def agree(bucket: str, fingerprint: str, shown: str) -> None:
    """Raises where another rank's index of this bucket is a different one."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    _made[bucket] += 1
    key = f"stallwise/index/{bucket}/{_made[bucket]}"
    mine = f"{fingerprint} {dist.get_rank()}"
    first, rank = dist.distributed_c10d._get_default_store().compare_set(key, "", mine).decode().split()
    if first != fingerprint:
        raise InputError(
            f"Rank {dist.get_rank()} and rank {rank} hold different indexes of {shown}: the bucket changed between "
            "their listings, or one was kept from before. Give all nodes one index_folder on a shared disk, or list "
            "anew on all of them (refresh=True) while nothing is written to the bucket."
        )
