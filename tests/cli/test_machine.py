"""`stallwise characterize` and `study` on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from stallwise.hardware.machine import read_machine
from stallwise.machine.study import (
    METHOD,
    SAMPLES_NAME,
    SETTINGS_NAME,
    StudySample,
    StudySettings,
    read_samples,
    study_of,
)
from stallwise.report.views.study import page
from tests.conftest import Cli, lacks
from tests.figures import Figures
from tests.report.page_reader import PageReader
from tests.sentences import coded


def test_this_machine(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    done = cli(
        "characterize", "-o", str(out), "--models", "resnet18", "--model-time", "1s", "--disk-size", "70MiB",
        "--disk", str(tmp_path),
    )  # fmt: skip
    record = read_machine(out)
    coded(out.read_text())
    assert record.decode is not None
    assert record.decode.per_core_samples_per_s > 0
    assert {one.kind for one in record.storage} >= {"page cache"}
    assert [one.name for one in record.networks] == ["resnet18"]
    assert record.networks[0].parameters == 11_689_512
    if not record.hosts[0].gpus:
        assert record.unknown["copies"] == "there is no GPU"
        assert record.unknown["links"].code == "gpu.none"
        assert "unknown" in done.stdout
    assert not list(tmp_path.glob(".stallwise-*"))
    side = coded(cli("characterize", "--compare", str(out), "--price", "here=2.5", "--json").stdout)
    row = side["rows"][0]
    assert row["usd"] == pytest.approx(2.5 * row["epoch_s"] / 3600)


def test_what_cannot_be(ask: Cli, tmp_path: Path) -> None:
    assert "No model" in ask("characterize", "--models", "resnet5O", code=2).stderr
    assert "not a folder" in ask("characterize", "--disk", "nowhere", "--skip", "device,links,decode", code=2).stderr
    assert "is a folder" in ask("characterize", "-o", str(tmp_path), code=2).stderr
    probed = tmp_path / "probed.json"
    empty = {"kind": "machine", "schema_version": 1, "created": "2026-11-15T12:00:00Z", "stallwise_version": "0"}
    probed.write_text(json.dumps({**empty, "ranks": 2, "nodes": 1}))
    assert "None of these records" in ask("characterize", "--compare", str(probed), code=2).stderr


NETWORKS = "resnet10,resnet18,nobn_resnet18,squeezenet1_0,mobilenet_v2,alexnet,vgg11"
SMALL = ("--models", NETWORKS, "--scale", "64", "--rounds", "1", "--steps", "2")


def test_a_small_study_over_the_link_as_it_is(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "-o", "s", "--rates", "as-is", *SMALL, "--json")
    found = json.loads(done.stdout)
    (link,) = found["links"]
    assert [row["network"] for row in link["networks"]] == NETWORKS.split(",")
    by_name = {row["network"]: row for row in link["networks"]}
    assert by_name["vgg11"]["gradient_bytes"] == pytest.approx(132_863_336 * 4 / 64, rel=1e-4)
    assert min(link["coefficients"].values()) >= 0
    # A network whose exchange was not seen to cost anything, on a busy machine, says nothing of its family.
    stalled = {row["family"] for row in link["networks"] if row["stall_s"] > 0}
    assert set(link["family_errors"]) <= stalled
    assert link["family_errors"]

    lines = (tmp_path / "s" / SAMPLES_NAME).read_bytes()
    again = cli("study", "-o", "s", "--rates", "as-is", *SMALL, "--json")
    assert again.stdout == done.stdout
    assert (tmp_path / "s" / SAMPLES_NAME).read_bytes() == lines, "what is there is not measured again"
    shown = cli("study", "-o", "s", "--show", "--html", "study.html").stdout
    assert "as-is, 2 processes" in shown
    assert "· equal" in shown
    assert (tmp_path / "study.html").read_text().startswith("<!doctype html>")
    assert "other settings" in cli("study", "-o", "s", "--rates", "as-is", code=2).stderr


def test_a_study_that_is_stopped_leaves_nothing_and_goes_on(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("tc"):
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    words = ("study", "-o", "s", "--rates", "2gbit", *SMALL)
    process = subprocess.Popen(
        [sys.executable, "-m", "stallwise", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 150
    while not read_samples(tmp_path / "s"):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail(f"nothing was measured: {process.communicate(timeout=250)[1]}")
        time.sleep(0.1)
    tag = f"ss{process.pid % 100000}-"
    assert tag in _namespaces()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=250)[1]
    assert process.returncode == 130, said
    assert "goes on from there" in said
    assert tag not in _namespaces()
    before = read_samples(tmp_path / "s")
    cli(*words)
    after = read_samples(tmp_path / "s")
    assert after[: len(before)] == before
    assert [sample.network for sample in after] == NETWORKS.split(",")


@pytest.mark.truth
def test_costs_are_those_of_the_link(cli: Cli, figures: Figures) -> None:
    if os.geteuid() != 0 or not shutil.which("tc"):
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    found = coded(cli("study", "-o", "s", "--rates", "as-is,2gbit", *SMALL, "--json").stdout)
    as_is, shaped = found["links"]
    stalls = {row["network"]: row["stall_s"] for row in as_is["networks"]}
    # 133 M parameters against 5 M.
    figures.at_least("study: stall of vgg11 over resnet10's", stalls["vgg11"], stalls["resnet10"])
    figures.at_least("study: stall of resnet10", stalls["resnet10"], 0.0)
    assert max(as_is["coefficients"].values()) > 0
    # 4 ns a byte on the wire; how much more depends on the machine.
    per_byte_ns = 1e9 * shaped["coefficients"]["per_byte_s"]
    figures.at_least("study: a byte at 2 Gb/s", per_byte_ns, 2.0, unit="ns")
    figures.at_most("study: a byte at 2 Gb/s", per_byte_ns, 40.0, unit="ns")


def _namespaces() -> str:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=250)
    return listed.stdout


def test_what_cannot_be_studied_is_said(ask: Cli, tmp_path: Path) -> None:
    for words, sentence in (
        (("--models", "resnet51"), "Did you mean resnet50"),
        (("--rates", "fast"), "fast"),
        (("--processes", "1"), "at least 2 processes"),
        (("--processes", "two"), "whole numbers"),
        (("--models", "resnet18,vgg11,alexnet"), "at least 4 networks"),
        (("--scale", "0"), "scale must be a whole number from 1"),
        (("--models", ","), "names nothing"),
        (("--show",), "holds no study"),
    ):
        said = ask("study", "-o", "s", *words, code=2).stderr
        assert sentence in said, words
        assert said.count("\n") == 1
    assert not (tmp_path / "s").exists()


def _made(network: str, number: int) -> StudySample:
    return StudySample(
        rate="1gbit",
        processes=2,
        network=network,
        alone_s=0.05,
        backward_s=0.03,
        shared_s=0.06 + 0.01 * number,
        spread_s=0.001,
        bucket_bytes=(100, 200),
    )


def test_the_page_is_whole_and_has_a_picture() -> None:
    names = tuple(NETWORKS.split(","))
    settings = StudySettings(networks=names, rates=("1gbit",))
    made = page(study_of(settings, [_made(name, number) for number, name in enumerate(names)]))
    assert PageReader(made)
    assert made.count("<circle") >= len(names), "a point for each network"
    assert "<script" not in made


@pytest.mark.parametrize(("method", "which"), [(None, "an earlier"), (1, "an earlier"), (METHOD + 1, "a later")])
def test_a_study_measured_in_another_way_is_neither_shown_nor_gone_on_with(
    ask: Cli, tmp_path: Path, method: int | None, which: str
) -> None:
    settings = msgspec.to_builtins(StudySettings(networks=tuple(NETWORKS.split(",")), rates=("as-is",)))
    del settings["method"]
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / SETTINGS_NAME).write_text(json.dumps(settings | ({} if method is None else {"method": method})))
    for words in (("--show",), ("--rates", "as-is", "--models", NETWORKS)):
        said = ask("study", "-o", "s", *words, code=2).stderr
        assert f"was measured by {which} version" in said
    assert not (tmp_path / "s" / SAMPLES_NAME).exists()


def test_an_unfinished_study_shows_what_is_there(ask: Cli, tmp_path: Path) -> None:
    settings = StudySettings(networks=tuple(NETWORKS.split(",")), rates=("1gbit", "2gbit"))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / SETTINGS_NAME).write_bytes(msgspec.json.encode(settings))
    assert "0 of 14 measurements" in ask("study", "-o", "s", "--show").stdout
    lines = [msgspec.json.encode(_made(name, number)) + b"\n" for number, name in enumerate(settings.networks)]
    for count, seen in ((3, "3 of 14"), (5, "5 of 14")):
        (tmp_path / "s" / SAMPLES_NAME).write_bytes(b"".join(lines[:count]) + lines[count][:40])
        shown = ask("study", "-o", "s", "--show", "--html", "page.html").stdout
        assert f"{seen} measurements" in shown
        assert "1gbit, 2 processes" in shown
        assert ("what a tensor, a layer" in shown) == (count > 3)
        found = coded(ask("study", "-o", "s", "--show", "--json").stdout)["links"]
        assert (found[0]["coefficients"] is None, found[1]["coefficients"]) == (count < 4, None)
        assert f"{seen} measurements" in (tmp_path / "page.html").read_text()
    (tmp_path / "s" / SAMPLES_NAME).write_bytes(b'{"rate": 1}\n')
    assert "holds no study" in ask("study", "-o", "s", "--show", code=2).stderr
