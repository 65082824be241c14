"""`stallwise study`: a real sweep of small networks, stopped and gone on with, and one sentence for what cannot be."""

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

from stallwise.record.study import METHOD, SAMPLES_NAME, SETTINGS_NAME, Settings, read_samples, study_of
from stallwise.record.study_samples import Measured
from stallwise.report.study_html import page
from tests.conftest import Cli, lacks
from tests.report.test_html import _Reader

NETWORKS = "resnet10,resnet18,nobn_resnet18,squeezenet1_0,mobilenet_v2,alexnet,vgg11"
SMALL = ("--networks", NETWORKS, "--scale", "64", "--rounds", "1", "--steps", "2")


@pytest.mark.alone
def test_a_small_study_over_the_link_as_it_is(cli: Cli, tmp_path: Path) -> None:
    done = cli("study", "-o", "s", "--rates", "as-is", *SMALL, "--json")
    found = json.loads(done.stdout)
    (link,) = found["links"]
    assert [row["network"] for row in link["networks"]] == NETWORKS.split(",")
    by_name = {row["network"]: row for row in link["networks"]}
    # 133 M parameters against 5 M: whatever the machine does, that is to be seen.
    assert by_name["vgg11"]["stall_s"] > by_name["resnet10"]["stall_s"] > 0
    assert by_name["vgg11"]["gradient_bytes"] == pytest.approx(132_863_336 * 4 / 64, rel=1e-4)
    assert min(link["coefficients"].values()) >= 0 < max(link["coefficients"].values())
    assert set(link["family_errors"]) >= {"vgg", "alexnet"}

    lines = (tmp_path / "s" / SAMPLES_NAME).read_bytes()
    again = cli("study", "-o", "s", "--rates", "as-is", *SMALL, "--json")
    assert again.stdout == done.stdout
    assert (tmp_path / "s" / SAMPLES_NAME).read_bytes() == lines, "what is there is not measured again"
    shown = cli("study", "-o", "s", "--show", "--html", "study.html").stdout
    assert "as-is, 2 processes" in shown
    assert "measured stall" in shown
    assert (tmp_path / "study.html").read_text().startswith("<!doctype html>")
    assert "other settings" in cli("study", "-o", "s", "--rates", "as-is", code=2).stderr


@pytest.mark.alone
def test_a_study_that_is_stopped_leaves_nothing_and_goes_on(cli: Cli, tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("tc"):
        lacks("root and iproute2 (ip, tc) to make network namespaces")
    words = ("study", "-o", "s", "--rates", "2gbit", *SMALL)
    process = subprocess.Popen(
        [sys.executable, "-m", "stallwise", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not read_samples(tmp_path / "s") and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.1)
    tag = f"ss{process.pid % 100000}-"
    assert tag in _namespaces()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 1, said
    assert "goes on from there" in said
    assert tag not in _namespaces()
    before = read_samples(tmp_path / "s")
    (link,) = json.loads(cli(*words, "--json").stdout)["links"]
    # 4 ns a byte on the wire; how much more depends on the machine.
    assert 2e-9 < link["coefficients"]["per_byte_s"] < 4e-8
    after = read_samples(tmp_path / "s")
    assert after[: len(before)] == before
    assert [sample.network for sample in after] == NETWORKS.split(",")


def _namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_what_cannot_be_studied_is_said(ask: Cli, tmp_path: Path) -> None:
    for words, sentence in (
        (("--networks", "resnet51"), "Did you mean resnet50"),
        (("--rates", "fast"), "fast"),
        (("--processes", "1"), "at least 2 processes"),
        (("--processes", "two"), "whole numbers"),
        (("--networks", "resnet18,vgg11,alexnet"), "at least 4 networks"),
        (("--scale", "0"), "--scale takes a whole number"),
        (("--networks", ","), "names nothing"),
        (("--show",), "holds no study"),
    ):
        said = ask("study", "-o", "s", *words, code=2).stderr
        assert sentence in said, words
        assert said.count("\n") == 1
    assert not (tmp_path / "s").exists()


def _made(network: str, number: int) -> Measured:
    return Measured(
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
    settings = Settings(networks=names, rates=("1gbit",))
    made = page(study_of(settings, [_made(name, number) for number, name in enumerate(names)]))
    assert _Reader(made)
    assert made.count("<circle") >= len(names), "a point for each network"
    assert "<script" not in made


@pytest.mark.parametrize(("method", "which"), [(None, "an earlier"), (1, "an earlier"), (METHOD + 1, "a later")])
def test_a_study_measured_in_another_way_is_neither_shown_nor_gone_on_with(
    ask: Cli, tmp_path: Path, method: int | None, which: str
) -> None:
    settings = msgspec.to_builtins(Settings(networks=tuple(NETWORKS.split(",")), rates=("as-is",)))
    del settings["method"]
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / SETTINGS_NAME).write_text(json.dumps(settings | ({} if method is None else {"method": method})))
    for words in (("--show",), ("--rates", "as-is", "--networks", NETWORKS)):
        said = ask("study", "-o", "s", *words, code=2).stderr
        assert f"was measured by {which} version" in said
    assert not (tmp_path / "s" / SAMPLES_NAME).exists()


def test_an_unfinished_study_shows_what_is_there(ask: Cli, tmp_path: Path) -> None:
    settings = Settings(networks=tuple(NETWORKS.split(",")), rates=("1gbit", "2gbit"))
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
        found = json.loads(ask("study", "-o", "s", "--show", "--json").stdout)["links"]
        assert (found[0]["coefficients"] is None, found[1]["coefficients"]) == (count < 4, None)
        assert f"{seen} measurements" in (tmp_path / "page.html").read_text()
    (tmp_path / "s" / SAMPLES_NAME).write_bytes(b'{"rate": 1}\n')
    assert "holds no study" in ask("study", "-o", "s", "--show", code=2).stderr
