"""Data loading from an object store: a dataset over plain objects, prefetching, a cache per node.

| module | what it holds |
| --- | --- |
| `_dataset` | `BucketDataset`: a map-style dataset whose samples are objects |
| `_accounts` | what loading has cost: samples, bytes, requests, seconds |
| `samplers/` | `Lookahead` (announces the order), `StickySampler`, `ImportanceSampler` |
| `objects/` | the object store, its index, single fetches, a helper process that keeps obstore out of ranks |
| `prefetch/` | loading before a sample is needed: order, threads, pace |
| `cache/` | `NodeCache`: a bounded cache in a folder, shared by all processes of a node |
| `peers/` | `Peers`: the caches of a job's nodes serve each other |
| `shared/` | `SharedLoader`: several jobs of a node prepare each batch once |
| `tools/` | warm, bench, plan, and metrics for Prometheus |
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.data._accounts import Account
    from stallwise.data._dataset import BucketDataset
    from stallwise.data.cache.cache import NodeCache
    from stallwise.data.peers._peers import Peers
    from stallwise.data.prefetch._pace import DeliMode
    from stallwise.data.samplers._importance import ImportanceSampler
    from stallwise.data.samplers._lookahead import Lookahead
    from stallwise.data.samplers._sticky import StickySampler
    from stallwise.data.shared._loader import SharedLoader

__all__ = [
    "Account",
    "BucketDataset",
    "DeliMode",
    "ImportanceSampler",
    "Lookahead",
    "NodeCache",
    "Peers",
    "SharedLoader",
    "StickySampler",
]

# Only the dataset, the samplers and the shared loader need torch; the cache and the commands do not.
__getattr__ = loader(
    __name__,
    {
        "Account": "_accounts",
        "BucketDataset": "_dataset",
        "DeliMode": "prefetch._pace",
        "ImportanceSampler": "samplers._importance",
        "Lookahead": "samplers._lookahead",
        "NodeCache": "cache.cache",
        "Peers": "peers._peers",
        "SharedLoader": "shared._loader",
        "StickySampler": "samplers._sticky",
    },
)
