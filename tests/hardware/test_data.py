"""Integrity of the shipped tables: laws of physics, of trade, and of bookkeeping."""

import csv
import datetime as dt
from collections import Counter
from pathlib import Path

import pytest

from stallwise.analysis.target import link_of_gpu
from stallwise.errors import InputError
from stallwise.hardware import Catalog
from stallwise.hardware.catalog import SHIPPED
from stallwise.hardware.gpu import PRECISIONS, pcie_bytes_per_s, peak_flop_per_s, plain_name
from stallwise.units import GB, GIB, TB

REGIONS = {"aws": 22, "gcp": 34, "azure": 8, "lambda": 17}
ZERO_MEANS_NONE = {"nvlink_gb_per_s", "local_disk_gb"}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return Catalog(tmp_path_factory.mktemp("nobody"))


def test_it_is_large_enough(catalog: Catalog) -> None:
    assert len(catalog.gpus) >= 50
    clouds = Counter(cloud for cloud, _ in catalog.instances)
    assert set(clouds) == set(REGIONS)
    assert sum(clouds.values()) >= 120


def test_the_documentation_says_how_many_there_are(catalog: Catalog) -> None:
    counts = f"{len(catalog.gpus)} GPUs, {len(catalog.instances)} instance types of "
    assert counts in (Path(__file__).parents[2] / "docs/catalog.md").read_text()


@pytest.mark.parametrize("cloud", REGIONS)
def test_every_region_is_there(catalog: Catalog, cloud: str) -> None:
    assert len(catalog.regions(cloud)) == REGIONS[cloud]
    on_sale = {o.region for o in catalog.offers if o.instance.cloud == cloud and o.instance.retired_on is None}
    assert len(on_sale) == REGIONS[cloud]


def test_zero_is_never_a_price(catalog: Catalog) -> None:
    assert all(0.01 < offer.usd_per_h < 500 for offer in catalog.offers)


def test_unknown_is_blank_not_zero() -> None:
    for name in ("gpus.csv", "instances.csv"):
        with (SHIPPED / name).open(newline="") as lines:
            for row in csv.DictReader(lines):
                zeros = {c for c, cell in row.items() if cell and cell.replace(".", "").strip("0") == ""}
                assert zeros <= ZERO_MEANS_NONE, row


def test_spot_is_not_dearer_than_on_demand(catalog: Catalog) -> None:
    listed = {o.key[:3]: o.usd_per_h for o in catalog.offers if o.market == "on-demand"}
    for offer in catalog.offers:
        if offer.market == "spot" and offer.key[:3] in listed:
            assert offer.usd_per_h <= listed[offer.key[:3]] * 1.001, offer.key


def test_on_demand_prices_hold_for_a_region(catalog: Catalog) -> None:
    assert all(offer.zone is None for offer in catalog.offers if offer.market == "on-demand")


def test_every_current_type_of_the_price_lists_has_an_offer(catalog: Catalog) -> None:
    # Types that come from documentation alone; no price list has them.
    without = {
        *("Standard_ND96isr_H200_v5", "Standard_ND128isr_NDR_GB200_v6"),
        *("Standard_NC144ds_xl_RTXPRO6000BSE_v6", "Standard_NC288ds_xl_RTXPRO6000BSE_v6"),
    }
    offered = {(o.instance.cloud, o.instance.name) for o in catalog.offers}
    current = {key for key, instance in catalog.instances.items() if instance.retired_on is None}
    assert {name for _, name in current - offered} == without


def test_rows_are_unique() -> None:
    keys = {
        "gpus.csv": ("gpu",),
        "instances.csv": ("cloud", "instance"),
        **{
            f"offers/{p.name}": ("cloud", "instance", "region", "zone", "market")
            for p in (SHIPPED / "offers").iterdir()
        },
    }
    for name, key in keys.items():
        with (SHIPPED / name).open(newline="") as lines:
            seen = Counter(tuple(row[column] for column in key) for row in csv.DictReader(lines))
        assert max(seen.values()) == 1, name


def test_every_source_is_explained_and_every_date_is_past(catalog: Catalog) -> None:
    for item in (*catalog.gpus.values(), *catalog.instances.values(), *catalog.offers):
        assert item.origin.sources
        assert set(item.origin.sources) <= set(catalog.sources)
        assert dt.date(2023, 1, 1) < item.origin.as_of <= dt.date.today()


def test_the_machines_of_the_stash_paper_are_there_and_retired(catalog: Catalog) -> None:
    for name in ("p2.xlarge", "p2.8xlarge", "p2.16xlarge", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge"):
        instance = catalog.instance(name)
        assert instance.retired_on is not None
        assert any(offer.instance is instance for offer in catalog.offers)
    assert catalog.instance("p3dn.24xlarge").retired_on is None


def test_aliases_name_gpus_that_exist(catalog: Catalog) -> None:
    with (SHIPPED / "aliases.csv").open(newline="") as lines:
        assert all(row["gpu"] in catalog.gpus for row in csv.DictReader(lines))


def test_gpu_memory_and_power_are_physical(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        assert 4 * GIB <= gpu.memory_bytes <= 288 * GIB
        assert gpu.memory_bytes_per_s is not None
        assert 100 * GB <= gpu.memory_bytes_per_s <= 10 * TB
        assert gpu.tdp_w is not None
        assert 50 <= gpu.tdp_w <= 1400
        assert gpu.fp32_flop_per_s is not None


def test_peak_rates_keep_their_ratios(catalog: Catalog) -> None:
    """Halving the width at least keeps the rate; bf16 and fp16 tensor rates are equal since Ampere."""
    for gpu in catalog.gpus.values():
        rates = {p: peak_flop_per_s(gpu, p) for p in PRECISIONS}
        if rates["tf32"] is not None and rates["fp16"] is not None:
            assert rates["fp16"] == pytest.approx(2 * rates["tf32"], rel=0.02), gpu.name
        if gpu.compute_capability is None:  # not NVIDIA's
            assert gpu.name.startswith("MI")
        elif float(gpu.compute_capability) >= 8:
            assert rates["bf16"] == rates["fp16"], gpu.name
        else:
            assert rates["bf16"] is None
            assert rates["tf32"] is None
        if rates["fp8"] is not None and rates["fp16"] is not None:
            assert rates["fp8"] == pytest.approx(2 * rates["fp16"], rel=0.02), gpu.name
        if rates["fp16"] is not None and rates["fp32"] is not None:
            assert rates["fp16"] > rates["fp32"]


# Dense FP16 (on matrix units where there are some) over FP32, of the card of each generation that has most of it.
FP16_OVER_FP32 = {
    ("Pascal", "6.0"): 2,
    ("Volta", "7.0"): 8,
    ("Turing", "7.5"): 8,
    ("Ampere", "8.0"): 16,
    ("Ampere", "8.6"): 4,
    ("Ada", "8.9"): 4,
    ("Hopper", "9.0"): 14.8,
    ("Blackwell", "10.0"): 31.3,
    ("Blackwell Ultra", "10.3"): 31.3,
    ("Blackwell", "12.0"): 4,
    ("GCN 5", None): 2,
    ("GCN 5.1", None): 2,
    ("CDNA", None): 8,
    ("CDNA 2", None): 8,
    ("CDNA 3", None): 8,
    ("CDNA 4", None): 16,
}


def test_no_rate_is_that_of_sparse_matrices(catalog: Catalog) -> None:
    """A data sheet that shows twice the dense rate for all precisions keeps their ratios, but not the one to FP32."""
    for gpu in catalog.gpus.values():
        fp16, fp32 = peak_flop_per_s(gpu, "fp16"), peak_flop_per_s(gpu, "fp32")
        if fp16 is not None and fp32 is not None:
            generation = (gpu.architecture, gpu.compute_capability)
            assert generation in FP16_OVER_FP32, f"{gpu.name}: {generation} is not in FP16_OVER_FP32; add its ratio"
            assert fp16 / fp32 <= 1.03 * FP16_OVER_FP32[generation], f"{gpu.name}: is that a rate with sparsity?"


def test_every_family_can_be_asked_for(catalog: Catalog) -> None:
    """A family of one is that GPU; of several, the error names them."""
    for family in {gpu.family for gpu in catalog.gpus.values()}:
        names = catalog.gpu_names(family)
        if len(names) == 1 or plain_name(family) in {plain_name(name) for name in catalog.gpus}:
            assert catalog.gpu(family).name in catalog.gpus
        elif catalog.gpu_of_label(family) is None:
            with pytest.raises(InputError, match="is a family of several GPUs") as error:
                catalog.gpu(family)
            assert all(name in str(error.value) for name in names)


def test_rates_are_dense_and_per_card(catalog: Catalog) -> None:
    """Where tables elsewhere go wrong: sparse rates, pairs of cards, FP16 without tensor cores."""
    bf16 = {name: (peak_flop_per_s(gpu, "bf16") or 0) / 1e12 for name, gpu in catalog.gpus.items()}
    assert bf16["H200-SXM"] == bf16["H100-SXM"] == pytest.approx(989.4)
    assert bf16["H100-NVL"] == 835
    assert bf16["A10G"] == pytest.approx(bf16["A10"] / 2, rel=0.15)
    assert bf16["RTXA6000"] == 154.8
    assert bf16["RTX4090"] == 165.2


def test_links_are_physical(catalog: Catalog) -> None:
    for gpu in catalog.gpus.values():
        assert gpu.nvlink_bytes_per_s is not None
        assert 0 <= gpu.nvlink_bytes_per_s <= 900 * GB
        if gpu.nvlink_bridge_gpus:
            assert gpu.nvlink_bytes_per_s > 0
    for instance in catalog.instances.values():
        host = instance.host_link
        if host and host.kind == "pcie":
            assert host.generation is not None
            assert host.lanes in (8, 16)
            assert host.bytes_per_s == pcie_bytes_per_s(host.generation, host.lanes)
            part = instance.gpu.host_link
            assert part is not None
            assert part.generation is not None
            assert host.generation <= part.generation
        link = instance.gpu_link
        if link:
            assert (link.kind == "single") == (instance.gpu_count == 1)
        if link and link.kind.startswith("nvlink"):
            slice_of = 4 / 6 if instance.name == "p3.8xlarge" else 1.0
            assert link.bytes_per_s == pytest.approx(slice_of * instance.gpu.nvlink_bytes_per_s)


@pytest.mark.parametrize(
    "name", ["A2", "A16", "RTX3050", "RTX4060", "RTX4060Ti", "RTX5060Ti", "RTX2000Ada", "RTX4070-Laptop", "A30X"]
)
def test_cards_with_eight_lanes(catalog: Catalog, name: str) -> None:
    link = catalog.gpus[name].host_link
    assert link is not None
    assert link.lanes == 8


def test_amd_gpus_talk_over_their_fabric(catalog: Catalog) -> None:
    """Seven links of 64 GB/s in one direction, not the 63 GB/s of PCIe."""
    assert link_of_gpu(catalog.gpus["MI300X"]) == 448 * GB
    assert link_of_gpu(catalog.gpus["MI355X"]) == pytest.approx(537.6 * GB)
    assert link_of_gpu(catalog.gpus["H100-SXM"]) == 450 * GB
    # A bridge between cards is an extra.
    assert link_of_gpu(catalog.gpus["H100-PCIe"]) == catalog.gpus["H100-PCIe"].host_link.bytes_per_s  # type: ignore[union-attr]


def test_what_was_not_read_is_not_of_high_confidence(catalog: Catalog) -> None:
    """Google's machines: GPUs, vCPUs and memory from SkyPilot's list, all else as remembered."""
    for instance in catalog.instances.values():
        origin = instance.origin
        if set(origin.sources) == {"gcp-memory"}:
            assert origin.confidence == "medium", instance.name
    read = [gpu for gpu in catalog.gpus.values() if "techpowerup" in gpu.origin.sources]
    assert len(read) == 127


def test_published_pcie_rates() -> None:
    for generation, rate in ((3, 15.75), (4, 31.5), (5, 63.0)):
        assert pcie_bytes_per_s(generation, 16) == pytest.approx(rate * GB, rel=0.001)


def test_networks_and_disks_are_physical(catalog: Catalog) -> None:
    for instance in catalog.instances.values():
        network, disks = instance.network, instance.storage
        if network and network.bytes_per_s:
            assert 1 * GB / 8 <= network.bytes_per_s <= 6400 * GB / 8
            assert network.burst_bytes_per_s is None or network.burst_bytes_per_s >= network.bytes_per_s
        if disks.block_bytes_per_s:
            assert disks.block_bytes_per_s <= 12.5 * GB
            assert (disks.block_burst_bytes_per_s or disks.block_bytes_per_s) >= disks.block_bytes_per_s
        assert disks.local_bytes is None or disks.local_bytes <= 31 * TB


def test_labels_are_resolved_to_the_card_that_is_really_there(catalog: Catalog) -> None:
    real = {
        "Standard_NC24ads_A100_v4": "A100-80GB-PCIe",
        "Standard_ND96amsr_A100_v4": "A100-80GB-SXM",
        "Standard_NC40ads_H100_v5": "H100-NVL",
        "Standard_NC6s_v3": "V100-PCIe",
        "gpu_1x_h100_pcie": "H100-PCIe",
        "gpu_1x_a100": "A100-40GB-PCIe",
        "gpu_1x_a100_sxm4": "A100-40GB-SXM",
        "p3dn.24xlarge": "V100-SXM2-32GB",
        "a3-megagpu-8g": "H100-SXM",
    }
    assert {name: catalog.instance(name).gpu.name for name in real} == real
    assert catalog.instance("Standard_ND96isr_H100_v5").gpu_count == 8


def test_g_family_of_aws_has_eight_lanes_as_observed(catalog: Catalog) -> None:
    link = catalog.instance("g5.12xlarge").host_link
    assert link is not None
    assert (link.lanes, link.observed) == (8, True)
