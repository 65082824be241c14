"""The page: whole, self-contained, safe, and readable without its pictures."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.record.profile import Profile
from stallwise.report.html import page, show, write_page
from stallwise.report.profile_json import document
from tests.report.made import ALL, DDP, FULL, HOSTILE, PARTIAL, PLAIN

_VOID = {"meta", "br", "hr", "img", "link", "input"}
_SHAPES = {"x": 760.0, "x1": 760.0, "x2": 760.0}


class _Reader(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes, ids and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "desc" not in self.open:
            self.text += data + " "

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_page_is_whole_and_needs_nothing_else(profile: Profile) -> None:
    text = page(profile)
    read = _Reader(text)
    assert len(text.encode()) < 200_000
    assert not re.search(r"https?://|@import|url\(", text)
    used = {tag for tag, _ in read.tags}
    assert used.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not re.search(r"\b(None|nan|inf)\b", read.text)
    assert "nan" not in "".join(str(attributes) for _, attributes in read.tags)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_page_can_be_read_aloud(profile: Profile) -> None:
    read = _Reader(page(profile))
    assert read.named("html") == [{"lang": "en"}]
    assert len(read.named("h1")) == 1
    assert len(read.named("h2")) >= 5
    assert len(read.named("caption")) == len(read.named("table"))
    assert all("scope" in head for head in read.named("th"))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for picture in read.named("svg"):
        assert picture["role"] == "img"
        assert set(picture["aria-labelledby"].split()) <= set(ids)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_pictures_stay_inside_their_frame(profile: Profile) -> None:
    for _, attributes in _Reader(page(profile)).tags:
        for name, most in _SHAPES.items():
            if name in attributes:
                assert 0 <= float(attributes[name]) <= most
        if "width" in attributes:
            assert float(attributes["x"]) + float(attributes["width"]) <= 760


def test_the_numbers_stand_in_tables() -> None:
    text = _Reader(page(FULL)).text
    for shown in ("400 ms", "390 to 410 ms", "100 ms", "90 to 110 ms", "25 %", "5,120 samples/s", "6,210", "rank 11"):
        assert shown in text
    assert "8 × NVIDIA H100" in text
    assert "gpu-1" in text
    assert "validation" in text
    assert "Predicted:" in text


def test_absence_is_said() -> None:
    assert "absent: one process" in _Reader(page(PLAIN)).text
    assert "Compute includes what was not measured." in _Reader(page(PLAIN)).text
    assert "Not whole: Rank 1 was killed by signal 9." in re.sub(r"\s+", " ", _Reader(page(PARTIAL)).text)
    assert "not distinguishable from zero (at most 1.2 ms)" in _Reader(page(DDP)).text


def test_nothing_of_the_run_becomes_markup() -> None:
    read = _Reader(page(HOSTILE))
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in _Reader(page(FULL)).tags}
    assert "<script>alert(1)</script>.py" not in page(HOSTILE)
    assert "<img src=x> [red]note[/red]" in read.text


def test_a_notebook_shows_the_same_without_styling_the_notebook() -> None:
    shown = show(DDP)
    drawn = shown._repr_html_()
    assert isinstance(shown, Profile)
    assert document(shown) == document(DDP)
    assert "body {" not in drawn
    assert _Reader(drawn).named("article") == [{"class": "stallwise"}]


def test_writing(tmp_path: Path) -> None:
    path = write_page(DDP, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page(DDP)
    with pytest.raises(InputError, match=r"cannot be written to .*--html"):
        write_page(DDP, tmp_path / "no" / "such" / "folder.html")
