"""Facts about machines: GPUs, links, storage, instance types, offers; the shipped catalog and its readers.

Prices and peak rates are *listed* facts; each row says when, from where and how sure. What no source gives is
`None`.
"""

from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.instance import Instance
from stallwise.hardware.link import Link
from stallwise.hardware.offer import Offer, Query, matches
from stallwise.hardware.origin import Origin
from stallwise.hardware.storage import Storage

__all__ = [
    "Catalog",
    "Gpu",
    "Instance",
    "Link",
    "Offer",
    "Origin",
    "Query",
    "Storage",
    "load_catalog",
    "matches",
]
