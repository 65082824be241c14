"""Names, and the user's tables over the shipped ones."""

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from stallwise.errors import CatalogError, UnknownNameError
from stallwise.hardware import Catalog, load_catalog
from stallwise.hardware.instance import gpu_link_bytes_per_s, gpu_memory_bytes
from stallwise.hardware.prices import price_age, stale_sentence
from stallwise.units import GB, GIB


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(tmp_path)


def test_names_of_gpus(catalog: Catalog) -> None:
    assert catalog.gpu_names("h100") == {"H100-SXM", "H100-PCIe", "H100-NVL"}
    assert catalog.gpu_names("H100 pcie") == {"H100-PCIe"}
    assert catalog.gpu_names("A100-80GB") == {"A100-80GB-SXM", "A100-80GB-PCIe"}
    assert catalog.gpu_names("L40") == {"L40"}
    assert catalog.gpu_names("v100_32gb") == {"V100-SXM2-32GB"}
    assert catalog.gpu("A6000").name == "RTXA6000"
    assert catalog.gpu_of_label("RTX6000", "nebius") is catalog.gpus["RTXPRO6000"]
    assert catalog.gpu_of_label("RTX6000", "lambda") is catalog.gpus["QuadroRTX6000"]
    assert catalog.gpu_of_label("tpu-v4-8") is None


def test_unknown_names_come_with_the_nearest(catalog: Catalog) -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalog.gpu_names("H1000")
    assert "H100-SXM" in caught.value.nearest or "H100" in caught.value.nearest
    with pytest.raises(UnknownNameError, match=r"p3\.16xlarge"):
        catalog.instance("p3.16large")
    with pytest.raises(UnknownNameError, match="us-east-1"):
        catalog.query(region="us-east")
    with pytest.raises(UnknownNameError, match="cloud"):
        catalog.query(cloud="awz")


def test_rates_between_gpus(catalog: Catalog) -> None:
    assert gpu_link_bytes_per_s(catalog.instance("p5.48xlarge")) == 450 * GB
    assert gpu_link_bytes_per_s(catalog.instance("g5.12xlarge")) == pytest.approx(15.75 * GB, rel=0.001)
    assert gpu_link_bytes_per_s(catalog.instance("p3.2xlarge")) is None
    assert gpu_link_bytes_per_s(catalog.instance("gpu_8x_a100")) is None
    assert gpu_memory_bytes(catalog.instance("p5.48xlarge")) == 640 * GIB


def test_gpus_on_their_own_link_to_the_cpu(catalog: Catalog) -> None:
    link = catalog.instance("gpu_1x_gh200").host_link
    assert link is not None
    assert (link.kind, link.bytes_per_s) == ("nvlink-c2c", 450 * GB)


def test_the_users_tables_override_and_add(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("gpu,memory_gib\nT4,15\nH300,300\n")
    (tmp_path / "instances.csv").write_text(
        "cloud,instance,gpu,gpu_count,vcpus,memory_gib\nmine,rack1,H300,8,128,1024\n"
    )
    (tmp_path / "offers.csv").write_text(
        "cloud,instance,region,zone,market,usd_per_h\n"
        "mine,rack1,cellar,,on-demand,1.5\n"
        "aws,p5.48xlarge,us-east-1,,on-demand,40\n"
    )
    catalog = load_catalog(tmp_path)
    shipped = load_catalog(tmp_path / "none")
    assert catalog.gpus["T4"].memory_bytes == 15 * GIB
    assert catalog.instance("g4dn.xlarge").gpu.memory_bytes == 15 * GIB  # the instance sees the new facts
    assert [o.usd_per_h for o in catalog.find(catalog.query(gpu="H300"))] == [1.5]
    query = catalog.query(instance="p5.48xlarge", region="us-east-1", market="on-demand")
    assert [o.usd_per_h for o in catalog.find(query)] == [40.0]
    assert len(catalog.offers) == len(shipped.offers) + 1
    assert catalog.clouds[-1] == "mine"


def test_a_broken_table_of_the_user_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("gpu,memory_gb\nT4,15\n")
    with pytest.raises(CatalogError, match=r"gpus\.csv, line 1: column memory_gib is missing"):
        load_catalog(tmp_path)


def test_age_of_prices(catalog: Catalog) -> None:
    offers = catalog.find(catalog.query(cloud="aws"))
    age = price_age(offers, dt.date(2026, 8, 30))
    assert age is not None
    assert (age.age_days, age.stale) == (8, False)
    later = price_age(offers, dt.date(2026, 11, 21))
    assert later is not None
    assert later.stale
    assert "91 days" in stale_sentence(later)
    assert price_age(catalog.find(catalog.query(gpu="K80", retired=True)), dt.date(2026, 1, 1)) is None


def test_import_is_light() -> None:
    heavy = {"polars", "numpy", "yaml", "torch", "rich"}
    code = f"import sys, stallwise.hardware; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    assert ran.stdout.strip() == "[]"
