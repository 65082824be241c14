"""The page: whole, self-contained, safe, and readable without its pictures."""

import itertools
import re
from pathlib import Path

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.analysis.profile import Detail, Profile, RankTimes
from stallwise.errors import InputError
from stallwise.report.html import write_html
from stallwise.report.views.profile import MEANINGS, document
from stallwise.report.views.profile_page import page, show
from tests.report.made import ALL, DDP, FULL, HOSTILE, PARTIAL, PLAIN
from tests.report.made_runs import make_full_run
from tests.report.page_reader import PageReader


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_page_is_whole_and_needs_nothing_else(profile: Profile) -> None:
    text = page(profile)
    read = PageReader(text)
    assert len(text.encode()) < 200_000
    assert not re.search(r"https?://|@import|url\(", text)
    assert read.named("link") == [{"rel": "icon", "href": "data:,"}], "or a browser asks for favicon.ico"
    used = {tag for tag, _ in read.tags}
    assert used.isdisjoint({"script", "img", "iframe", "object"})
    assert not re.search(r"\b(None|nan|inf)\b", read.text)
    assert "nan" not in "".join(str(attributes) for _, attributes in read.tags)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_page_can_be_read_aloud(profile: Profile) -> None:
    read = PageReader(page(profile))
    assert read.named("html") == [{"lang": "en"}]
    assert len(read.named("h1")) == 1
    assert len(read.named("h2")) >= 4
    assert len(read.named("caption")) == len(read.named("table"))
    assert all("scope" in head for head in read.named("th"))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for picture in read.named("svg"):
        if picture["class"] == "bar":
            assert picture["aria-hidden"] == "true", "its numbers stand beside it"
        else:
            assert picture["role"] == "img"
            assert set(picture["aria-labelledby"].split()) <= set(ids)
    assert {link["href"].removeprefix("#") for link in read.named("a")} <= set(ids)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_bars_stay_inside_their_frame(profile: Profile) -> None:
    for _, attributes in PageReader(page(profile)).tags:
        for name in ("x", "x1", "x2"):
            if name in attributes:
                assert 0 <= _percent(attributes[name]) <= 100.01
        if "x" in attributes and "width" in attributes:
            assert _percent(attributes["x"]) + _percent(attributes["width"]) <= 100.02


def _percent(text: str) -> float:
    assert text.endswith("%")
    return float(text.removesuffix("%"))


def test_the_split_is_stairs() -> None:
    bars = [a for tag, a in PageReader(page(FULL)).tags if tag == "rect" and a["class"] in MEANINGS]
    assert [a["class"] for a in bars] == list(MEANINGS)
    for bar, following in itertools.pairwise(bars):
        assert _percent(bar["x"]) + _percent(bar["width"]) == pytest.approx(_percent(following["x"]), abs=0.02)


def test_the_numbers_stand_in_tables() -> None:
    text = PageReader(page(FULL)).text
    for shown in ("400 ms", "390 to 410 ms", "100 ms", "90 to 110 ms", "25 %", "5,120", "6,210", "rank 11"):
        assert shown in text
    assert "8 × NVIDIA H100" in text
    assert "gpu-1" in text
    assert "validation" in text
    assert re.search(r"predicted\s+300 ms\s+25 % less", text)


def test_layers_are_shown_where_they_were_measured() -> None:
    text = re.sub(r"\s+", " ", PageReader(page(FULL)).text)
    assert "124 million parameters · 498 MB of gradients in 148 tensors · bf16 · 24 TFLOP a step and rank" in text
    assert re.search(r"lm_head Linear 12 ms 24 ms 20 %", text)
    assert re.search(r"10 more 18\.1 ms 36\.9 ms 31 %", text), "the rest is summed"
    assert "h.13.mlp" in text
    assert "h.14.mlp" not in text
    assert "Layers" not in PageReader(page(DDP)).text


def test_ranks_and_gradients_of_a_run(tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    detail = open_run(tmp_path / "run").detail
    assert [rank.rank for rank in detail.ranks] == [0, 1, 2, 3]
    assert [rank.compute_s for rank in detail.ranks] == pytest.approx([0.070, 0.072, 0.074, 0.076])
    assert [rank.data_wait_s for rank in detail.ranks] == pytest.approx([0.02] * 4)
    read = PageReader(page(FULL, detail))
    text = re.sub(r"\s+", " ", read.text)
    assert "rank 3 node 1 76 ms 20 ms unknown" in text
    assert "bucket 1 20 25 MB 6 ms 29.8 ms" in text
    shapes = [a for tag, a in read.tags if tag == "polygon"]
    assert [a["class"] for a in shapes] == ["even", "odd", "even"]
    for shape in shapes:
        corners = [tuple(map(float, point.split(","))) for point in shape["points"].split()]
        assert all(0 <= x <= 760 and 0 <= y <= 168 for x, y in corners)
    assert "Ranks" not in PageReader(page(FULL)).text


def test_many_ranks_are_cut_to_the_slowest() -> None:
    ranks = tuple(
        RankTimes(rank=n, node=n // 8, step_s=0.4, data_wait_s=None, compute_s=0.2 + 0.001 * n, peak_memory_bytes=None)
        for n in range(512)
    )
    text = re.sub(r"\s+", " ", PageReader(page(FULL, Detail(ranks=ranks))).text)
    assert "rank 511 node 63" in text
    assert "rank 495 " not in text
    assert "496 more 200 ms to 695 ms" in text


def test_absence_is_said() -> None:
    assert "absent: one process" in PageReader(page(PLAIN)).text
    assert "Compute includes what was not measured." in PageReader(page(PLAIN)).text
    assert "Partial run: Rank 1 was killed by signal 9." in re.sub(r"\s+", " ", PageReader(page(PARTIAL)).text)
    assert "not distinguishable from zero (at most 1.2 ms)" in PageReader(page(DDP)).text


def test_nothing_of_the_run_becomes_markup() -> None:
    read = PageReader(page(HOSTILE))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in PageReader(page(FULL)).tags}
    assert "<script>alert(1)</script>.py" not in page(HOSTILE)
    assert "<img src=x> [red]note[/red]" in read.text


def test_a_notebook_shows_the_same_without_styling_the_notebook() -> None:
    shown = show(DDP, Detail())
    drawn = shown._repr_html_()
    assert isinstance(shown, Profile)
    assert document(shown) == document(DDP)
    assert "body {" not in drawn
    assert PageReader(drawn).named("a") == [], "links inside a notebook lead astray"
    assert PageReader(drawn).named("article") == [{"class": "stallwise"}]


def test_writing(tmp_path: Path) -> None:
    path = write_html(page(DDP), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page(DDP)
    with pytest.raises(InputError, match="cannot be written to") as raised:
        write_html(page(DDP), tmp_path / "no" / "such" / "folder.html")
    assert raised.value.fields == ("html",)
