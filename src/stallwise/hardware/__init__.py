"""Facts about machines: GPUs, links, storage, instance types, offers; the shipped catalog and its readers.

Prices and peak rates are *listed* facts; each row carries its date, its source and the confidence in it. What no source
gives is `None`.

    gpu            GPUs, links, origins of facts
    board          what the GPUs of a machine share: NVLink groups, switches, up-links
    instance       storage, instance types, offers, queries
    prices         ages of prices; object stores and data transfer
    catalog        shipped tables with the user's own laid over them; `_tables` reads and writes their rows
    imports        price lists into the user's folder; `_skypilot` reads SkyPilot's format
    machine        measured machine records
    coefficients   fitted coefficients that the package ships
"""

from stallwise.hardware.catalog import Catalog, load_catalog
from stallwise.hardware.gpu import Gpu, Link
from stallwise.hardware.instance import Instance, Offer

__all__ = ["Catalog", "Gpu", "Instance", "Link", "Offer", "load_catalog"]
