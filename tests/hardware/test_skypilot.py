"""SkyPilot's files as they are: whole rows, GCP's split rows, and what is passed over."""

import datetime as dt
import os
from pathlib import Path

import pytest

from stallwise.errors import CatalogError
from stallwise.hardware import load_catalog
from stallwise.hardware._skypilot import find_lists, read_list
from stallwise.hardware.imports import import_paths

DAY = dt.date(2026, 11, 1)
HEADER = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice\n"
)
AWS = HEADER + (
    "p5.48xlarge,192,2048,H100,8,\"{'Gpus': []}\",us-east-1,use1-az1,55.04,20.5\n"
    "p5.48xlarge,192,2048,H100,8,,us-east-1,use1-az2,55.04,\n"
    "p9.2xlarge,8,61,B200,1,,us-east-1,use1-az1,3.5,0\n"
    "g6f.large,2,8,L4,0.125,,us-east-1,use1-az1,0.2,0.1\n"
    "trn1.2xlarge,8,32,Trainium,1,,us-east-1,use1-az1,1.3,0.4\n"
    "p5e.48xlarge,192,2048,H200,8,,us-east-1,use1-az1,0,\n"
    "m5.large,2,8,,,,us-east-1,use1-az1,0.1,0.05\n"
)
GCP = HEADER + (
    "a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.75,0.25\n"
    "a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-b,0.75,0.25\n"
    "a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.5,5.0\n"
    "a3-megagpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.5,5.0\n"
    "a4-highgpu-8g,224,3968,,,,us-central1,us-central1-a,0,0\n"
    "n1-standard-16,16,60,,,,us-central1,,0.76,0.36\n"
    "n2-standard-4,4,16,,,,us-central1,us-central1-a,0.2,0.05\n"
    ",,,A100,1.0,A100,us-central1,us-central1-a,2.9,1.1\n"
    ",,,H100,8.0,H100,us-central1,us-central1-a,78,\n"
    ",,,H100-MEGA,8.0,H100,us-central1,us-central1-a,83,30\n"
    ",,,B200,8.0,B200,us-central1,us-central1-a,100,40\n"
    ",,,T4,1.0,T4,us-central1,us-central1-c,0.35,0.14\n"
    ",,,K80,1.0,K80,us-central1,us-central1-c,0.45,0.1\n"
    ",,,tpu-v4-8,1.0,tpu,us-central2,us-central2-b,12,6\n"
)


def test_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text(AWS)
    found = read_list(tmp_path / "vms.csv", "aws", load_catalog(tmp_path / "none"), DAY)
    prices = {offer.key[1:]: offer.usd_per_h for offer in found.offers}
    assert prices == {
        ("p5.48xlarge", "us-east-1", "", "on-demand"): 55.04,
        ("p5.48xlarge", "us-east-1", "use1-az1", "spot"): 20.5,
        ("p9.2xlarge", "us-east-1", "", "on-demand"): 3.5,
    }
    (new,) = found.instances
    assert (new.name, new.gpu.name, new.origin.confidence) == ("p9.2xlarge", "B200", "low")
    assert found.skipped == {
        "a fraction of a GPU": 1,
        "unknown accelerator Trainium": 1,
        "no price": 1,
        "no GPU": 1,
    }


def test_gcp_prices_are_sums_of_host_and_accelerator(tmp_path: Path) -> None:
    (tmp_path / "vms.csv").write_text(GCP)
    found = read_list(tmp_path / "vms.csv", "gcp", load_catalog(tmp_path / "none"), DAY)
    prices = {(o.instance.name, o.zone): o.usd_per_h for o in found.offers}
    assert prices == pytest.approx(
        {
            ("a2-highgpu-1g", None): 3.65,
            ("a2-highgpu-1g", "us-central1-a"): 1.35,
            ("a3-highgpu-8g", None): 87.5,  # its accelerator has no spot price, so the sum has none
            ("a3-megagpu-8g", None): 92.5,
            ("a3-megagpu-8g", "us-central1-a"): 35.0,
            ("a4-highgpu-8g", None): 100.0,  # the whole price stands with the accelerator
            ("a4-highgpu-8g", "us-central1-a"): 40.0,
            ("n1-standard-16+T4x1", None): 1.11,
            ("n1-standard-16+T4x1", "us-central1-c"): 0.5,
        }
    )
    assert found.skipped == {"no GPU": 1, "no host type for K80": 1, "no host type for tpu-v4-8": 1}


def test_the_newest_schema_of_each_cloud_is_taken(tmp_path: Path) -> None:
    for place in ("v7/aws", "v10/gcp", "v9/gcp", "v9/aws"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "vms.csv").write_text(AWS)
    found = find_lists(tmp_path)
    assert {cloud: path.parts[-3] for cloud, path in found.items()} == {"aws": "v9", "gcp": "v10"}
    assert set(find_lists(tmp_path / "v10")) == {"gcp"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(CatalogError, match="holds no SkyPilot catalog"):
        find_lists(tmp_path / "empty")


def test_a_list_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    lists = tmp_path / "v8" / "aws"
    lists.mkdir(parents=True)
    (lists / "vms.csv").write_text(AWS)
    stamp = dt.datetime(2026, 11, 3, 12).timestamp()
    os.utime(lists / "vms.csv", (stamp, stamp))
    done = import_paths([tmp_path], load_catalog(tmp_path / "own"), today=DAY)
    assert (done.offers, done.instances, sum(done.skipped.values())) == (3, 1, 4)
    catalog = load_catalog(tmp_path / "own")
    aws = catalog.find(catalog.query(cloud="aws"))
    assert {offer.origin.as_of for offer in aws} == {dt.date(2026, 11, 3)}  # as old as the file
    assert len(aws) == 3
    assert catalog.find(catalog.query(cloud="gcp"))  # other clouds stay as shipped
    assert catalog.find(catalog.query(gpu="K80", cloud="aws", retired=True))  # and so does what is retired


def test_a_lone_file_needs_its_cloud(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(AWS)
    catalog = load_catalog(tmp_path / "own")
    with pytest.raises(CatalogError, match="of which cloud") as caught:
        import_paths([path], catalog, today=DAY)
    assert caught.value.fields == ("cloud",)
    assert import_paths([path], catalog, today=DAY, cloud="aws").offers == 3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (AWS.replace("55.04", "fifty"), r"vms\.csv, line 2, column Price: found 'fifty'"),
        (AWS.replace("Region", "Place"), "column Region is missing"),
        (HEADER + "m5.large,2,8,,,,us-east-1,,0.1,\n", "offers no GPU this catalog knows"),
    ],
)
def test_broken_lists_change_nothing(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "aws").mkdir()
    (tmp_path / "aws" / "vms.csv").write_text(text)
    with pytest.raises(CatalogError, match=sentence):
        import_paths([tmp_path / "aws" / "vms.csv"], load_catalog(tmp_path / "own"), today=DAY)
    assert not (tmp_path / "own").exists()
