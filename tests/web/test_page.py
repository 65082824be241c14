"""The page in real Chromium: quiet, at home on 127.0.0.1, the command line's figures, for keyboards and any eyes."""

import json
import re
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

from stallwise.analysis import open_run
from stallwise.web._documents import split_rows
from tests.conftest import ROOT, Cli, lacks
from tests.report.conftest import pictures
from tests.report.test_browser import _CONTRASTS, TEXT_CONTRAST
from tests.web import axe
from tests.web.conftest import PATIENCE_MS, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Scheme = Literal["light", "dark"]
VIEWS = {
    "list": "#/",
    "run": "#/run/cold",
    "whatif": "#/run/cold/whatif",
    "rent": "#/run/cold/rent",
    "compare": "#/compare/cold/hostile",
    "simulation": "#/simulation/sims%2Fpolicies.json",
    "jobs": "#/jobs/sims%2Fjobs.csv",
    "hostile": "#/run/hostile",
    "wide": "#/run/wide",
}
READY = {
    "list": "td svg.bar",
    "run": "iframe",
    "whatif": ".answer .tile",
    "rent": "svg.picture",
    "compare": "table",
    "simulation": "table td.n",
    "jobs": "svg.picture",
    "hostile": "iframe",
    "wide": "iframe",
}


def _of_axe(text: str) -> bool:
    return "Failed to execute 'postMessage'" in text


class Opened:
    """A tab, and everything it complained of or asked for."""

    def __init__(self, browser: "Browser", served: Served, scheme: Scheme = "light", width: int = 1200) -> None:
        self.served = served
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        # axe asks every frame, also the sandboxed one of a report, which has no origin to answer from.
        self.page.on("console", lambda message: None if _of_axe(message.text) else self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(served.address)
        self.page.wait_for_selector("table.list")

    def go(self, view: str) -> None:
        self.show(VIEWS[view])
        self.page.wait_for_selector(READY[view])

    def show(self, address: str) -> None:
        """Load the page anew at an address, and wait until the view is there."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.served.base}/{address}")
        self.page.wait_for_selector(f'main[data-shown="{address}"]')

    def quiet(self) -> None:
        """No complaint, no request to anywhere else, no script of a record."""
        assert self.said == []
        outside = [url for url in self.asked if not url.startswith((self.served.base, "data:", "about:"))]
        assert outside == []
        frames = [frame.evaluate("window.hacked") for frame in self.page.frames[:1]]
        assert frames == [None]


@pytest.fixture(scope="module")
def tab(browser: "Browser", served: Served) -> Iterator[Opened]:
    opened = Opened(browser, served)
    yield opened
    opened.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_quiet_legible_and_passes_axe(browser: "Browser", served: Served, scheme: Scheme) -> None:
    opened = Opened(browser, served, scheme)
    for view in VIEWS:
        opened.go(view)
        opened.page.screenshot(path=pictures() / f"ui-{view}-{scheme}.png", full_page=True)
        found: dict[str, Any] = opened.page.evaluate(_CONTRASTS)
        assert [text for text in found["texts"] if text[1] < TEXT_CONTRAST] == [], view
        # Contrast is checked in both looks, what else axe knows in one; two views in both.
        wrong = axe.violations(opened.page) if scheme == "light" or view in ("list", "whatif") else None
        if wrong is not None:
            assert wrong == [], view
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        assert opened.page.inner_text("#trouble") == ""
    opened.quiet()
    opened.context.close()


def test_axe_is_here_and_can_fail(tab: Opened) -> None:
    tab.go("whatif")
    if axe.source() is None:
        lacks(f"axe-core {axe.VERSION} in {axe.FILE} (`make system`); contrast is checked by ourselves all the same")
    tab.page.evaluate("document.querySelector('label[for=s-nodes]').remove()")
    wrong = axe.violations(tab.page)
    assert wrong
    assert "label" in {one[0] for one in wrong}


def _drag(page: "Page", name: str, presses: int, key: str = "ArrowRight") -> None:
    page.focus(f"#s-{name}")
    for _ in range(presses):
        page.keyboard.press(key)


def _settled(page: "Page") -> dict[str, str]:
    """The tiles once no question is under way."""
    page.wait_for_selector(".answer:not([aria-busy]) .tiles")
    tiles = "[...document.querySelectorAll('.answer .tile')]"
    return dict(page.evaluate(f"{tiles}.map((t) => [t.dataset.name, t.querySelector('strong').textContent])"))


def test_sliders_moved_by_keyboard_show_what_the_command_line_prints(tab: Opened, ask: Cli) -> None:
    page = tab.page
    tab.go("whatif")
    before = _settled(page)
    _drag(page, "workers", 4)
    _drag(page, "nodes", 2)
    page.wait_for_selector(".answer code:has-text('--nodes 4')")
    page.wait_for_selector(".answer code:has-text('--workers 6')")
    after = _settled(page)
    assert after["predicted step"] != before["predicted step"]
    command = page.inner_text(".answer code")
    drawn = ask(*shlex.split(command)[1:], "--no-curve").stdout
    line = next(line for line in drawn.splitlines() if line.startswith("predicted "))
    assert after["predicted step"] in line
    assert f"{after['predicted speed']} samples/s" in line
    for part in ("compute", "exchange"):
        shown = page.inner_text(f".answer tbody tr:has-text('{part}') td.n")
        assert shown in next(line for line in drawn.splitlines() if line.startswith(part))
    curve = page.wait_for_selector("h2:has-text('More GPUs') + svg.picture desc", state="attached")
    assert curve is not None
    assert "1,024 GPUs" in (curve.text_content() or "")
    tab.quiet()


def test_what_cannot_be_answered_leaves_nothing_of_the_answer_before(tab: Opened) -> None:
    page = tab.page
    tab.go("whatif")
    _settled(page)
    assert "Predicted step" in (page.text_content(".spoken") or "")
    page.route("**/api/whatif?*", lambda route: route.fulfill(json={"cannot": "It cannot be."}))
    _drag(page, "nodes", 1)
    page.wait_for_selector(".answer .error:has-text('It cannot be.')")
    page.unroute("**/api/whatif?*")
    assert page.text_content(".spoken") == ""
    assert page.get_attribute(".answer", "data-step") is None
    tab.quiet()


def test_a_curve_that_comes_late_is_not_drawn(tab: Opened) -> None:
    page, held = tab.page, list[Any]()
    tab.go("whatif")
    _settled(page)
    page.wait_for_selector("h2:has-text('More GPUs')")
    page.route("**/api/curve?*", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/api/curve?*"):
        _drag(page, "nodes", 1)
    end = time.monotonic() + PATIENCE_MS / 1000
    while not held:
        assert time.monotonic() < end, "the question was not asked"
        page.wait_for_timeout(20)
    with page.expect_response("**/api/curve?*"):
        _drag(page, "nodes", 1)
    held[0].fulfill(json={"points": [], "ends": "of a moment ago"})
    page.unroute("**/api/curve?*")
    page.wait_for_timeout(200)
    assert page.locator("text=of a moment ago").count() == 0
    page.locator("h2:has-text('More GPUs') + svg.picture").wait_for(state="attached")  # there is exactly one
    tab.quiet()


def test_the_chosen_view_is_legible_under_the_mouse(tab: Opened) -> None:
    page = tab.page
    tab.go("whatif")
    page.hover("[role=tab][aria-selected=true]")
    style = "getComputedStyle(document.querySelector('[role=tab][aria-selected=true]'))"
    ink, paper = page.evaluate(f"[{style}.color, {style}.backgroundColor]")
    assert page.evaluate("document.querySelector('[role=tab][aria-selected=true]').matches(':hover')")
    # Nothing of the text was left to see: white on nearly white.
    lights = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ink, paper)]
    assert abs(lights[0] - lights[1]) > 300
    tab.quiet()


@pytest.mark.parametrize("name", ["images", "slow-data", "slow-data-fixed"])
def test_the_parts_that_are_listed_of_a_run_add_up_to_its_step(name: str) -> None:
    """Parts that were not told from zero stood beside the unassigned time that they are."""
    rows = split_rows(open_run(ROOT / "examples/runs" / name).profile)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)


def test_the_step_over_time_shows_the_critical_path(tab: Opened) -> None:
    page = tab.page
    tab.go("whatif")
    _settled(page)
    _drag(page, "nodes", 4)
    _settled(page)
    lanes = page.locator(".answer svg.picture text.lane").all_text_contents()
    assert {"device", "exchange"} <= set(lanes)
    # The critical path goes through the whole step: the lines together are as long as a lane.
    lines = ".answer svg.picture line.critical"
    lengths = page.evaluate(
        f"[...document.querySelectorAll('{lines}')].map((one) => one.x2.baseVal.value - one.x1.baseVal.value)"
    )
    whole = page.evaluate("document.querySelector('.answer svg.picture rect.track').width.baseVal.value")
    assert sum(lengths) == pytest.approx(whole, rel=0.02)
    titles = page.locator(".answer svg.picture rect title").all_text_contents()
    assert any(title.startswith("backward") and title.endswith("on the critical path") for title in titles)
    tab.quiet()


def test_a_simulation_is_browsed(tab: Opened) -> None:
    page = tab.page
    tab.go("list")
    page.click("a[href*='policies.json']")
    page.wait_for_selector("#setting option", state="attached")  # the list before has a table of numbers too
    page.wait_for_selector("table td.n")
    said = json.loads((tab.served.folder / "sims" / "policies.json").read_text())
    settings = page.locator("#setting option").all_inner_texts()
    assert len(settings) == len(said["settings"]) == 2
    for place, setting in enumerate(said["settings"]):
        page.select_option("#setting", str(place))
        shown = page.locator("main table").first.locator("tbody th").all_inner_texts()
        assert {name.rstrip("*") for name in shown} == {one["policy"] for one in setting["policies"]}
        assert setting["verdict"]["text"] in page.inner_text("main")
        heads = page.locator("main table").first.locator("thead button")
        for nth in range(heads.count()):
            head = heads.nth(nth)
            head.focus()
            page.keyboard.press("Enter")
        # Sorted by the last column, which is the table's own figure of each policy.
        assert page.locator("main table thead th[aria-sort]:not([aria-sort=none])").count() == 1
    tab.quiet()


def test_a_rented_gpu_on_spot_shows_what_recommend_prints(tab: Opened, ask: Cli) -> None:
    page = tab.page
    tab.go("whatif")
    _settled(page)
    page.select_option("#s-instance", "aws/p4d.24xlarge")
    page.wait_for_selector(".answer code:has-text('recommend')")
    page.check("#s-spot")
    page.wait_for_selector(".answer code:has-text('--spot-only')")
    shown = _settled(page)
    command = shlex.split(page.inner_text(".answer code"))
    said = json.loads(ask(*command[1:], "--json").stdout)
    same = next(one for one in [*said["front"], *said["lost"]] if one["machines"] == 2 and one["gpus_per_machine"] == 8)
    assert shown["cost of the job"] == f"${same['usd']:,.2f}"
    drawn = ask(*command[1:]).stdout
    assert re.search(rf"{re.escape(same['fleet'])}.*{re.escape(shown['time of the job'])}", drawn)
    with page.expect_download() as waiting:
        page.click("text=Download the SkyPilot file")
    task = waiting.value.path().read_text()
    assert "use_spot: true" in task
    assert "num_nodes: 2" in task
    tab.quiet()


def test_an_offer_is_picked_and_downloaded(tab: Opened, ask: Cli, tmp_path: Any) -> None:
    page = tab.page
    tab.go("rent")
    page.fill("input[name=deadline_h]", "5")
    page.click("text=Ask")
    page.wait_for_selector("code.command:has-text('--deadline 5h')")
    with page.expect_download() as waiting:
        page.click("#sky")
    command = shlex.split(page.inner_text("code.command"))
    ask(*command[1:], "--skypilot", str(tmp_path / "task.yaml"))
    assert waiting.value.path().read_text() == (tmp_path / "task.yaml").read_text()
    row = page.locator("table tbody tr").first
    fleet = row.locator("th").inner_text().splitlines()[0]
    row.locator("button").click()
    page.wait_for_selector(".answer .tile")
    _settled(page)
    assert page.inner_text(".answer p.dim") == fleet
    tab.quiet()


def test_a_keyboard_reaches_runs_tabs_and_every_control(tab: Opened) -> None:
    page = tab.page
    tab.go("list")
    page.focus("table.list a[href*=cold]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=tab]")
    page.focus("[role=tab][aria-selected=true]")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".answer .tile")
    assert page.evaluate("document.activeElement.id") == "tab-whatif"
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    wanted = page.evaluate("[...document.querySelectorAll('form :is(input, select):enabled')].map((one) => one.id)")
    assert set(wanted) <= reached


def test_a_hostile_record_runs_nothing(tab: Opened) -> None:
    page = tab.page
    for view in ("list", "hostile", "compare"):
        tab.go(view)
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0
    tab.go("hostile")
    frame = page.frames[-1]
    assert frame.locator("script, img").count() == 0
    assert "<img" in frame.inner_text("h1")
    tab.show("#/run/hostile/whatif")
    page.wait_for_selector(".answer .tile, .error")
    assert page.locator("main script").count() == 0
    tab.quiet()


def test_1024_ranks_are_drawn(tab: Opened) -> None:
    tab.go("wide")
    frame = tab.page.frames[-1]
    frame.wait_for_selector("svg.picture rect")
    assert frame.locator("svg.picture rect[class^=heat]").count() == 1024
    tab.quiet()


def test_a_narrow_screen_scrolls_tables_and_nothing_else(browser: "Browser", served: Served) -> None:
    opened = Opened(browser, served, width=380)
    for view in ("list", "run", "whatif", "rent", "simulation", "jobs"):
        opened.go(view)
        assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view
        opened.page.screenshot(path=pictures() / f"ui-{view}-narrow.png", full_page=True)
    opened.quiet()
    opened.context.close()


def test_an_old_address_says_so(browser: "Browser", served: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    answer = page.goto(served.base + "/?token=wrong")
    assert answer is not None
    assert answer.status == 403
    assert "token" in page.inner_text("body")
    context.close()
