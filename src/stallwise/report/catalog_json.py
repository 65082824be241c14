"""The catalog's answers as JSON documents: flat records, base units in the key names."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stallwise.hardware.gpu import Gpu
from stallwise.hardware.instance import Instance
from stallwise.hardware.nearest import Nearest
from stallwise.hardware.offer import Offer
from stallwise.hardware.prices import PriceAge


def gpu_record(gpu: Gpu) -> dict[str, Any]:
    """One GPU; keys as the fields of `Gpu`."""
    return _flat_origin(msgspec.to_builtins(gpu))


def instance_record(instance: Instance) -> dict[str, Any]:
    """One instance type; keys as the fields of `Instance`, its GPU by name."""
    return _flat_origin(msgspec.to_builtins(instance)) | {
        "gpu": instance.gpu.name,
        "gpu_memory_bytes": instance.gpu.memory_bytes,
    }


def offer_record(offer: Offer) -> dict[str, Any]:
    """One offer with what identifies its machine."""
    instance = offer.instance
    return {
        "cloud": instance.cloud,
        "instance": instance.name,
        "gpu": instance.gpu.name,
        "gpu_count": instance.gpu_count,
        "gpu_memory_bytes": instance.gpu.memory_bytes,
        "vcpus": instance.vcpus,
        "memory_bytes": instance.memory_bytes,
        "region": offer.region,
        "zone": offer.zone,
        "market": offer.market,
        "usd_per_h": offer.usd_per_h,
        "usd_per_gpu_h": offer.usd_per_gpu_h,
        "retired_on": instance.retired_on,
        "as_of": offer.origin.as_of,
        "sources": offer.origin.sources,
        "confidence": offer.origin.confidence,
    }


def offers_document(
    offers: Sequence[Offer], count: int, age: PriceAge | None, nearest: Sequence[Nearest]
) -> dict[str, Any]:
    """Offers, how many match in all, how old their prices are, and what is near where none matches."""
    return {
        "offers": [offer_record(offer) for offer in offers],
        "count": count,
        **_age_keys(age),
        "nearest": [{"without": near.without, "offer": offer_record(near.offer)} for near in nearest],
    }


def facts_document(
    gpus: Sequence[Gpu],
    instances: Sequence[Instance],
    offers: Sequence[Offer],
    age: PriceAge | None,
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """All facts about some GPUs or instance types, with their cheapest offers."""
    return {
        "gpus": [gpu_record(gpu) for gpu in gpus],
        "instances": [instance_record(instance) for instance in instances],
        "offers": [offer_record(offer) for offer in offers],
        **_age_keys(age),
        "sources": sources,
    }


def _flat_origin(record: dict[str, Any]) -> dict[str, Any]:
    origin: dict[str, Any] = record.pop("origin")
    return record | origin


def _age_keys(age: PriceAge | None) -> dict[str, Any]:
    return {
        "oldest_as_of": age.oldest_as_of if age else None,
        "newest_as_of": age.newest_as_of if age else None,
        "age_days": age.age_days if age else None,
    }
