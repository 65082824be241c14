"""Random facts for property tests."""

import datetime as dt

from hypothesis import strategies as st

from stallwise.hardware.board import Board
from stallwise.hardware.gpu import Gpu, Link, Origin, pcie
from stallwise.hardware.instance import Instance, Offer, Query, Storage
from stallwise.units import GB, GIB

NAMES = st.text("abcdefgXYZ0123456789-._", min_size=1, max_size=12)
ORIGINS = st.builds(
    Origin,
    as_of=st.dates(dt.date(2020, 1, 1), dt.date(2030, 1, 1)),
    sources=st.lists(st.sampled_from(["user", "skypilot"]), min_size=1, max_size=2).map(tuple),
    confidence=st.sampled_from(["high", "medium", "low"]),
)


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | strategy


RATES = maybe(st.integers(1, 10_000).map(lambda n: n * GB / 4))
FLOPS = maybe(st.integers(1, 5_000).map(lambda n: n * 1e12))

GPUS = st.builds(
    Gpu,
    name=NAMES,
    family=NAMES,
    architecture=st.none() | NAMES,
    compute_capability=st.none() | st.just("8.0"),
    year=st.none() | st.integers(2012, 2030),
    memory_bytes=st.integers(1, 300).map(lambda n: n * GIB),
    memory_bytes_per_s=RATES,
    fp32_flop_per_s=FLOPS,
    tf32_flop_per_s=FLOPS,
    fp16_flop_per_s=FLOPS,
    bf16_flop_per_s=FLOPS,
    fp8_flop_per_s=FLOPS,
    nvlink_bytes_per_s=RATES | st.just(0.0),
    nvlink_bridge_gpus=st.none() | st.sampled_from([2, 4]),
    host_link=st.none()
    | st.builds(pcie, st.integers(3, 6), st.sampled_from([4, 8, 16]))
    | st.just(Link(kind="nvlink-c2c", bytes_per_s=450 * GB)),
    tdp_w=maybe(st.integers(50, 1500).map(float)),
    sm_count=st.none() | st.integers(1, 200),
    origin=ORIGINS,
    note=st.sampled_from(["", 'a "note", with commas']),
)

INSTANCES = st.builds(
    Instance,
    cloud=st.sampled_from(["aws", "gcp", "mine"]),
    name=NAMES,
    gpu=GPUS.filter(lambda gpu: gpu.host_link is None or gpu.host_link.kind == "pcie"),
    gpu_count=st.integers(1, 16),
    vcpus=st.integers(1, 400),
    memory_bytes=st.integers(1, 4096).map(lambda n: n * GIB),
    cpu_arch=st.none() | st.sampled_from(["x86_64", "arm64"]),
    coremark_iter_per_s=RATES,
    network=st.none() | st.builds(Link, kind=NAMES, bytes_per_s=RATES, burst_bytes_per_s=RATES),
    gpu_link=st.none() | st.builds(Link, kind=st.sampled_from(["pcie", "nvlink-switch"]), bytes_per_s=RATES),
    host_link=st.none()
    | st.builds(pcie, st.integers(3, 6), st.sampled_from([4, 8, 16]), observed=st.none() | st.booleans()),
    board=st.none() | st.builds(Board, name=NAMES, peer_gpus=st.integers(1, 8)),
    storage=st.builds(
        Storage,
        block_bytes_per_s=RATES,
        block_burst_bytes_per_s=RATES,
        block_iops=RATES,
        local_bytes=RATES | st.just(0.0),
        local_optional_bytes=RATES,
        local_read_bytes_per_s=RATES,
    ),
    retired_on=st.none() | st.dates(dt.date(2020, 1, 1), dt.date(2030, 1, 1)),
    origin=ORIGINS,
    network_storage_confidence=st.none() | st.sampled_from(["high", "low"]),
    links_confidence=st.none() | st.sampled_from(["high", "low"]),
)

OFFERS = st.builds(
    Offer,
    instance=INSTANCES,
    region=NAMES,
    zone=st.none() | NAMES,
    market=st.sampled_from(["on-demand", "spot"]),
    usd_per_h=st.integers(1, 10**6).map(lambda n: n / 10**4),
    origin=ORIGINS,
)


def queries(offers: list[Offer]) -> st.SearchStrategy[Query]:
    """Queries that have a chance to match some of the offers."""

    def some(values: set[str]) -> st.SearchStrategy[str | None]:
        return st.none() | st.sampled_from(sorted(values))

    return st.builds(
        Query,
        gpus=st.none() | st.frozensets(st.sampled_from(sorted({o.instance.gpu.name for o in offers}))),
        cloud=some({o.instance.cloud for o in offers}),
        region=some({o.region for o in offers}),
        instance=some({o.instance.name for o in offers}),
        market=st.none() | st.sampled_from(["on-demand", "spot"]),
        max_usd_per_h=maybe(st.floats(0, 100)),
        min_gpu_count=st.none() | st.integers(1, 16),
        min_gpu_memory_bytes=maybe(st.floats(0, 300 * GIB)),
        retired=st.booleans(),
    )
