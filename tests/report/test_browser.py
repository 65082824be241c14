"""The page in a real browser: quiet, offline, legible in light and dark, on two sheets of paper, by keyboard."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.report.views.profile_page import page
from stallwise.run import Run
from tests.conftest import Cli
from tests.report.conftest import PATIENCE_MS, pictures
from tests.report.made import FULL, PARTIAL, PLAIN
from tests.report.made_runs import make_full_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# WCAG 2.2, 1.4.3 and 1.4.11: text, and graphics that carry meaning, against what lies behind them.
TEXT_CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0
_CONTRASTS = """() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(element).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = [], walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || ['title', 'desc'].includes(element.localName)) continue;
    const style = getComputedStyle(element);
    const colour = element.localName === 'text' ? style.fill : style.color;
    texts.push([node.data.trim().slice(0, 40), ratio(parse(colour), behind(element)), parseFloat(style.fontSize)]);
  }
  const bars = [...document.querySelectorAll('svg rect:not(.track), svg polygon')].map((shape) => [
    shape.getAttribute('class'), ratio(parse(getComputedStyle(shape).fill), behind(shape.closest('svg').parentElement))
  ]);
  return {texts, bars};
}"""

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def made(profiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a real profile, of one with everything, and of two with little."""
    folder = tmp_path_factory.mktemp("pages")
    make_full_run(folder / "run")
    run = Run.open(profiled)
    texts = {
        "real": page(open_run(run).profile, open_run(run).detail),
        "full": page(FULL, open_run(folder / "run").detail),
        "partial": page(PARTIAL),
        "plain": page(PLAIN),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Opened:
    """A page, and everything it complained of or asked for."""

    def __init__(self, browser: "Browser", path: Path, scheme: Scheme, width: int = 1000) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, offline=True)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_load_state("networkidle")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["real", "full", "partial", "plain"])
def test_a_page_is_quiet_offline_and_legible(
    browser: "Browser", made: dict[str, Path], name: str, scheme: Scheme
) -> None:
    path = made[name]
    assert path.stat().st_size <= 1_000_000
    opened = Opened(browser, path, scheme)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [path.as_uri()]
    found: dict[str, Any] = opened.page.evaluate(_CONTRASTS)
    assert len(found["texts"]) > 30
    assert [text for text in found["texts"] if text[1] < TEXT_CONTRAST] == []
    assert [text for text in found["texts"] if text[2] < 11.5] == [], "too small to read"
    assert found["bars"]
    assert [shape for shape in found["bars"] if shape[1] < GRAPHIC_CONTRAST] == []
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")
    opened.page.screenshot(path=pictures() / f"{name}-{scheme}.png", full_page=True)
    opened.context.close()


def test_the_check_of_contrast_can_fail(browser: "Browser", made: dict[str, Path]) -> None:
    opened = Opened(browser, made["real"], "light")
    opened.page.add_style_tag(content=".stallwise { --dim: #aaaaaa !important; --compute: #eeeeee !important; }")
    found = opened.page.evaluate(_CONTRASTS)
    assert [text for text in found["texts"] if text[1] < TEXT_CONTRAST]
    assert [shape for shape in found["bars"] if shape[1] < GRAPHIC_CONTRAST]
    opened.context.close()


@pytest.mark.parametrize("name", ["real", "full"])
def test_a_page_prints_on_two_sheets(browser: "Browser", made: dict[str, Path], name: str) -> None:
    opened = Opened(browser, made[name], "dark")
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("getComputedStyle(document.querySelector('.stallwise')).color") == "rgb(0, 0, 0)"
    found = opened.page.evaluate(_CONTRASTS)
    assert [text for text in found["texts"] if text[1] < TEXT_CONTRAST] == []
    paper = opened.page.pdf(path=pictures() / f"{name}.pdf", prefer_css_page_size=True, print_background=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 2
    opened.context.close()


def test_a_keyboard_reaches_every_section(browser: "Browser", made: dict[str, Path]) -> None:
    opened = Opened(browser, made["full"], "light")
    reached = []
    for _ in range(30):
        opened.page.keyboard.press("Tab")
        reached.append(opened.page.evaluate("document.activeElement.getAttribute('href')"))
    links = opened.page.evaluate("[...document.querySelectorAll('nav a')].map((link) => link.getAttribute('href'))")
    headings = opened.page.evaluate("[...document.querySelectorAll('h2')].map((heading) => '#' + heading.id)")
    assert links == headings
    assert set(links) <= set(reached)
    opened.page.focus("nav a:last-child")
    assert opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("window.scrollY") > 0
    opened.context.close()


def test_a_narrow_screen_scrolls_tables_and_nothing_else(browser: "Browser", made: dict[str, Path]) -> None:
    for name in ("real", "full"):
        opened = Opened(browser, made[name], "light", width=360)
        assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
        assert opened.page.evaluate(f"{wide}.every((box) => box.tabIndex === 0)")
        opened.page.screenshot(path=pictures() / f"{name}-narrow.png", full_page=True)
        opened.context.close()


def test_the_command_writes_the_same_page(cli: Cli, profiled: Path, made: dict[str, Path], tmp_path: Path) -> None:
    cli("report", str(profiled), "--html", str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == made["real"].read_text(encoding="utf-8")
