"""Import of tables: all or nothing, overrides by key, every complaint a sentence."""

import datetime as dt
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwise.errors import CatalogError, StallwiseError
from stallwise.hardware import load_catalog
from stallwise.hardware.imports import CatalogImport, import_paths, write_all
from tests.run.lines import line_of

TODAY = dt.date(2026, 11, 15)
HEADER = "cloud,instance,region,market,usd_per_h\n"
GOOD = HEADER + "aws,p5.48xlarge,us-east-1,on-demand,40\n"


def bring_in(text: str | bytes, folder: Path, name: str = "own.csv") -> CatalogImport:
    path = folder.parent / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_paths([path], load_catalog(folder), today=TODAY)


def state(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "catalog"


def test_an_offer_is_overridden_and_dated(folder: Path) -> None:
    done = bring_in(GOOD, folder)
    assert (done.offers, done.instances, done.gpus) == (1, 0, 0)
    catalog = load_catalog(folder)
    query = catalog.query(instance="p5.48xlarge", region="us-east-1", market="on-demand")
    (offer,) = catalog.find(query)
    assert (offer.usd_per_h, offer.origin.as_of, offer.origin.sources) == (40, TODAY, ("user",))
    bring_in(GOOD.replace(",40", ",41"), folder)
    bring_in(GOOD.replace("us-east-1", "moon-1"), folder)
    again = load_catalog(folder)
    assert [o.usd_per_h for o in again.find(query)] == [41]
    assert "moon-1" in again.regions("aws")


def test_tables_may_name_each_other(folder: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("o.csv", "i.csv", "g.csv")]
    paths[0].write_text(HEADER + "mine,rack,cellar,on-demand,1\n")
    paths[1].write_text("cloud,instance,gpu,gpu_count,vcpus,memory_gib\nmine,rack,H300,8,128,1024\n")
    paths[2].write_text("gpu,memory_gib,bf16_tflops\nH300,300,5000\n")
    done = import_paths(paths, load_catalog(folder), today=TODAY)
    assert (done.gpus, done.instances, done.offers) == (1, 1, 1)
    catalog = load_catalog(folder)
    (offer,) = catalog.find(catalog.query(gpu="H300"))
    assert offer.instance.gpu.bf16_flop_per_s == 5e15


def test_yaml(folder: Path) -> None:
    text = """\
gpus:
  - {gpu: H300, memory_gib: 300}
instances:
  - cloud: mine
    instance: rack
    gpu: H300
    gpu_count: 8
    vcpus: 128
    memory_gib: 1024
    retired_on:
offers:
  - {cloud: mine, instance: rack, region: cellar, market: spot, usd_per_h: 0.5, as_of: 2026-10-01}
"""
    done = bring_in(text, folder, "own.yaml")
    assert (done.gpus, done.instances, done.offers) == (1, 1, 1)
    (offer,) = load_catalog(folder).find(load_catalog(folder).query(gpu="H300"))
    assert offer.origin.as_of == dt.date(2026, 10, 1)


BROKEN = {
    "text in a number": (
        HEADER + "aws,p5.48xlarge,us-east-1,spot,cheap\n",
        "line 2, column usd_per_h: found 'cheap'",
    ),
    "zero price": (
        GOOD.replace(",40", ",0"),
        "line 2, column usd_per_h: found '0', expected a number above 0",
    ),
    "unknown market": (GOOD.replace("on-demand", "auction"), "expected one of on-demand, spot"),
    "blank market": (GOOD.replace("on-demand", ""), "column market: found nothing"),
    "unknown instance": (GOOD.replace("p5.48xlarge", "p5.48large"), r"column instance: .*p5\.48xlarge"),
    "wrong column": (GOOD.replace("usd_per_h", "usd_per_hour"), "column usd_per_h is missing"),
    "extra column": (HEADER.strip() + ",zome\n", "no column 'zome'. Did you mean zone"),
    "missing header": (GOOD.removeprefix(HEADER), "line 1: found the columns"),
    "too few cells": (HEADER + "aws,p5.48xlarge\n", "line 2: found 2 cells, expected 5"),
    "open quote": (GOOD + 'aws,"p5.48xlarge\n', "not valid CSV"),
    "column twice": ("usd_per_h," + GOOD, "appears twice"),
    "empty": ("", "found the columns 'nothing'"),
    "only a header": (HEADER, "holds no rows"),
    "binary": (bytes(range(256)) * 20, "not a text file"),
    "zeros": (b"\0" * 100, "line 1: found the columns"),
    "unknown gpu": (
        "cloud,instance,gpu,gpu_count,vcpus,memory_gib\nmine,rack,H10,8,128,1024\n",
        "column gpu: found 'H10', expected the name of a GPU",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables_change_nothing(case: str, folder: Path) -> None:
    bring_in(GOOD, folder)
    before = state(folder)
    text, sentence = BROKEN[case]
    with pytest.raises(CatalogError, match=sentence):
        bring_in(text, folder)
    assert state(folder) == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("offers: [", "line 1: not valid YAML"),
        ("- 1", "expected the keys gpus, instances or offers"),
        ("prices:\n  - {}\n", "line 1: found 'prices'"),
        ("offers:\n  - 7\n", "line 2: expected `column: value` pairs"),
        ("offers:\n  - {cloud: [aws]}\n", "line 2: expected one value for 'cloud'"),
        ("gpus:\n  - gpu: X\n    memory_gib: much\n", "line 2, column memory_gib: found 'much'"),
    ],
)
def test_broken_yaml(text: str, sentence: str, folder: Path) -> None:
    with pytest.raises(CatalogError, match=sentence):
        bring_in(text, folder, "own.yml")
    assert not folder.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_is_a_catalog_error(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "garbage.csv"
    path.write_bytes(garbage)
    with pytest.raises(CatalogError):
        import_paths([path], load_catalog(tmp_path / "catalog"), today=TODAY)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    # Tests may run as root, whom permissions do not stop: a file stands where the folder should be.
    (tmp_path / "blocked").write_text("")
    (tmp_path / "own.csv").write_text(GOOD)
    with pytest.raises(StallwiseError, match="cannot be written"):
        import_paths([tmp_path / "own.csv"], load_catalog(tmp_path / "blocked" / "catalog"), today=TODAY)


def test_a_missing_file(folder: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        import_paths([folder / "nowhere.csv"], load_catalog(folder), today=TODAY)


def test_a_failed_write_leaves_no_traces(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.csv").write_text("old")
    (folder / "b.csv").mkdir()  # cannot be replaced by a file
    with pytest.raises(StallwiseError):
        write_all({folder / "b.csv": "new", folder / "a.csv": "new"})
    assert state(folder) == {"a.csv": b"old"}


def test_a_killed_import_leaves_a_whole_table(folder: Path) -> None:
    """Killed at random moments while writing over and over, the table on disk is always one of the two."""
    folder.mkdir()
    target = folder / "offers.csv"
    texts = {letter: letter * 200_000 for letter in "ab"}
    code = (
        "import itertools, pathlib, sys; from stallwise.hardware.imports import write_all\n"
        "for c in itertools.cycle('ba'):\n"
        "    write_all({pathlib.Path(sys.argv[1]): c * 200_000})\n"
        "    print('written', flush=True) if c == 'a' else None"
    )
    target.write_text(texts["a"])
    for wait_s in (0.0, 0.003, 0.011, 0.02):
        with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True) as writer:
            assert line_of(writer) == "written\n"  # from now on it is at it
            time.sleep(wait_s)
            writer.kill()
            writer.communicate(timeout=250)
        assert target.read_text() in texts.values()
