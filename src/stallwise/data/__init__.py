"""From bucket to tensor: a dataset over plain objects, look-ahead in the sampler's order, a cache for the node."""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.data.accounts import Account
    from stallwise.data.cache import NodeCache
    from stallwise.data.dataset import BucketDataset
    from stallwise.data.deli import DeliMode
    from stallwise.data.importance import ImportanceSampler
    from stallwise.data.lookahead import Lookahead
    from stallwise.data.peers import Peers
    from stallwise.data.shared_loader import SharedLoader
    from stallwise.data.sticky import StickySampler

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

# Torch is needed by the dataset and the sampler only; the cache and the commands do without.
__getattr__ = loader(
    __name__,
    {
        "Account": "accounts",
        "BucketDataset": "dataset",
        "DeliMode": "deli",
        "ImportanceSampler": "importance",
        "Lookahead": "lookahead",
        "NodeCache": "cache",
        "Peers": "peers",
        "SharedLoader": "shared_loader",
        "StickySampler": "sticky",
    },
)
