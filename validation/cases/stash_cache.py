"""The caches of DS-Analyzer and CoorDL (VLDB 2021).

Tolerances: 2 points of a miss ratio, 5 % of bytes and of speed-ups, which are published with two digits. Our values
were known when these were set, so no row counts as evidence. Rows 2 and 3 chose the model of the page cache (one of
seven tried); rows 5, 7 and 9 did not.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from stallwise.model.data.cache import (
    no_evict_miss,
    page_cache_miss,
    page_cache_sequential_miss,
    replay,
    resharded,
    resharded_miss,
)
from validation.formulas import NoEviction, RandomReplacement, fetch_stall, hit_needed, replay_servers, shuffled
from validation.harness import Case

_OPENIMAGES_GB, _IMAGENET_GIB, _FMA_GB = 645.0, 146.0, 950.0
_ITEMS = 20_000
_POINTS = 0.02
_CACHE_IS_FAST = 1e12  # C ≫ S, as the paper takes it

_SOURCE = "Mohan et al., VLDB 2021"
_CALIBRATED = "The model was chosen to fit this figure, so it is no proof of it."
_NOT_SEQUENTIAL = "random replacement in file order misses too little here"


def _pair(
    row: int,
    setup: str,
    miss: Callable[[], float],
    published: tuple[float, float],
    method: str,
    reason: str | None = None,
) -> list[Case]:
    """A miss ratio and the storage reads per epoch that follow from it."""
    dataset, unit = (_IMAGENET_GIB, "GiB") if "ImageNet" in setup else (_OPENIMAGES_GB, "GB")

    def case(what: str, value: float, unit: str, tolerance: float, times: float) -> Case:
        return Case(
            id=f"stash-{row}",
            case=f"{what} per epoch, {setup}",
            source=_SOURCE,
            method=method,
            published=value,
            unit=unit,
            tolerance=tolerance,
            compute=lambda _: miss() * times,
            reason=reason,
        )

    misses, reads = published
    return [case("misses", misses, "", _POINTS, 1.0), case("storage reads", reads, unit, 0.05 * reads, dataset)]


@cache
def _replayed_no_eviction() -> float:
    return replay(NoEviction(round(0.65 * _ITEMS)), shuffled(_ITEMS, 3))[-1]


@cache
def _replayed_partition(_: Path) -> float:
    caches = [NoEviction(round(0.65 * _ITEMS)) for _ in range(2)]
    return replay_servers(caches, resharded(_ITEMS, 3, servers=2))[-1]


@cache
def _replayed_jobs(cached: float) -> float:
    """Eight jobs' reads from storage per epoch, in datasets."""
    items = _ITEMS // 5
    return 8 * replay(RandomReplacement(round(cached * items)), shuffled(items, 12, jobs=8))[-1]


def _alexnet_stall_percent(_: Path) -> float:
    """Half the dataset in memory is enough, so min(P, G) = F(0.5); then 35 % of it in the page cache."""
    storage = 1.0
    ingest = storage / (1 - 0.5)
    assert abs((hit_needed(ingest, _CACHE_IS_FAST, storage) or 0) - 0.5) < 1e-6
    fetched = storage / page_cache_miss(0.35)
    return 100 * fetch_stall(fetched, ingest, ingest)


CASES = (
    *_pair(
        1,
        "OpenImages, 65 % cached, never evicted",
        _replayed_no_eviction,
        (0.35, 225.0),
        method="A cache of 20,000 samples replayed read by read, third epoch.",
    ),
    *_pair(
        2,
        "ImageNet-1k, 35 % cached, page cache",
        lambda: page_cache_miss(0.35),
        (0.85, 125.0),
        method=f"Random replacement over shuffled epochs, closed form. {_CALIBRATED}",
    ),
    *_pair(
        3,
        "OpenImages, 65 % cached, page cache",
        lambda: page_cache_miss(0.65),
        (0.53, 340.0),
        method=f"Random replacement over shuffled epochs, closed form. {_CALIBRATED}",
    ),
    *_pair(
        4,
        "OpenImages, 65 % cached, page cache, file order",
        lambda: page_cache_sequential_miss(0.65),
        (0.66, 422.0),
        method="Random replacement in file order, closed form.",
        reason=_NOT_SEQUENTIAL,
    ),
    Case(
        id="stash-5",
        case="storage reads per server and epoch, two servers with 75 GiB of page cache each, ImageNet-1k",
        source=_SOURCE,
        method="Random replacement on servers that read a new random half every epoch, closed form.",
        published=45.0,
        unit="GiB",
        tolerance=0.05 * 45,
        compute=lambda _: resharded_miss(75 / _IMAGENET_GIB, 2) * _IMAGENET_GIB / 2,
    ),
    Case(
        id="stash-6",
        case="storage reads after the first epoch, two servers with 65 % each that serve each other",
        source="Mohan et al., VLDB 2021",
        method="Two caches of 20,000 samples replayed read by read, third epoch, as a part of all reads.",
        published=0.0,
        unit="",
        tolerance=0.0,
        compute=_replayed_partition,
    ),
    Case(
        id="stash-7",
        case="speed-up of ResNet-50 on OpenImages from a hard disk: never evicting over page cache",
        source=_SOURCE,
        method="Bound by reads: the ratio of the two miss ratios.",
        published=1.53,
        unit="×",
        tolerance=0.05 * 1.53,
        compute=lambda _: page_cache_miss(0.65) / no_evict_miss(0.65),
    ),
    Case(
        id="stash-8",
        case="the same over the page cache in file order",
        source=_SOURCE,
        method="Bound by reads: the published misses in file order (0.66; ours are off, see stash-4) over 0.35.",
        published=2.1,
        unit="×",
        tolerance=0.05 * 2.1,
        compute=lambda _: 0.66 / no_evict_miss(0.65),
        reason="the published misses explain 1.89 of it; on an SSD the paper saw at most 1.8",
    ),
    Case(
        id="stash-9",
        case="fetch stall of AlexNet at 35 % cached, from its 50 % that remove it",
        source="VLDB 2021, 5.1 and figure 3 as read by mengwanguc/gpemu: two separate statements",
        method="min(P, G) = F(0.5) from the second, F with the page cache's misses at 35 %, stall = 1 - F/min(P, G).",
        published=41.0,
        unit="%",
        tolerance=2.0,
        compute=_alexnet_stall_percent,
    ),
    Case(
        id="stash-13",
        case="storage reads per epoch of eight jobs on ImageNet-1k, 35 % cached",
        source=_SOURCE,
        method="Eight orders through one random-replacement cache, replayed read by read.",
        published=884.0,
        unit="GiB",
        tolerance=0.05 * 884,
        compute=lambda _: _replayed_jobs(0.35) * _IMAGENET_GIB,
    ),
    Case(
        id="stash-14",
        case="storage reads per epoch of eight jobs on FMA, 45 % cached, prepared once for all",
        source=_SOURCE,
        method="Together: (1 - 0.45) of 950 GB, once. Apart: eight orders through one random-replacement cache.",
        published=550.0,
        unit="GB",
        tolerance=0.10 * 550,
        compute=lambda _: no_evict_miss(0.45) * _FMA_GB,
    ),
    Case(
        id="stash-14",
        case="the same, each job on its own",
        source=_SOURCE,
        method="Together: (1 - 0.45) of 950 GB, once. Apart: eight orders through one random-replacement cache.",
        published=3500.0,
        unit="GB",
        tolerance=0.10 * 3500,
        compute=lambda _: _replayed_jobs(0.45) * _FMA_GB,
        reason="random replacement reads about 26 % more, we do not know why",
    ),
)
