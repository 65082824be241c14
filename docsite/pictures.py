"""Pictures of README and docs: `make pictures`, in a real browser, light and dark.

Each shows the head of a report and its first section. The words that a picture shows are kept in it, so that a test
can tell without a browser whether the report says the same now.
"""

import html
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from stallwise.analysis.bottleneck import Bottleneck
from stallwise.analysis.profile import Profile
from stallwise.analysis.split import Split
from stallwise.model.statistics.stalls import Share
from stallwise.run.manifest import NodeRecord, WorldRecord

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/pictures"
SCHEMES = ("light", "dark")
_WIDTH = 880
_KEPT = "Stallwise words"
# What follows the first section is not part of the picture; links inside the page lead nowhere in one.
_CROP = "main section ~ section, main nav { display: none !important }"


@dataclass(frozen=True)
class Picture:
    """One picture in `docs/pictures`: a file per scheme."""

    name: str
    page: Callable[[], str]
    """The report as a page."""

    def file(self, scheme: str) -> Path:
        return FOLDER / f"{self.name}-{scheme}.png"

    def words(self) -> str:
        """What the picture says: the text of the report's head and first section."""
        shown = self.page().partition("<main>")[2].partition("</section>")[0]
        shown = re.sub(r"<nav.*?</nav>|<title>.*?</title>|<desc.*?</desc>", " ", shown, flags=re.DOTALL)
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown)).split())


def _of_run(folder: str) -> Callable[[], str]:
    def page() -> str:
        from stallwise.analysis.analysis import open_run
        from stallwise.report.views.profile_page import page

        job = open_run(ROOT / folder)
        return page(job.profile, job.detail)

    return page


def _made(changed: Callable[[Profile], Profile]) -> Callable[[], str]:
    """A report of round numbers, for symptoms of machines that no shipped run was measured on."""

    def page() -> str:
        from stallwise.analysis.analysis import open_run
        from stallwise.report.views.profile_page import page

        real = open_run(ROOT / "examples/runs/images").profile
        bare = replace(real, script="train.py", skew=None, cold_step_s=None, happenings=(), notes=(), observed=())
        return page(changed(bare)).replace(f"run {real.run_id}", "an example of round numbers")

    return page


def _gpus(count: int, nodes: int) -> tuple[NodeRecord, ...]:
    names = ("NVIDIA A100-SXM4-80GB",) * (count // nodes)
    return tuple(
        NodeRecord(node=place, cpu_model="AMD EPYC 7763", cores=64, memory_bytes=2**40, gpus=names)
        for place in range(nodes)
    )


def _network(bare: Profile) -> Profile:
    return replace(
        bare,
        world=WorldRecord(world_size=16, nnodes=2, backend="nccl"),
        nodes=_gpus(16, 2),
        step_s=0.310,
        step_low_s=0.306,
        step_high_s=0.315,
        samples_per_s=13_200.0,
        split=Split(
            compute=Share(0.186, 0.182, 0.190),
            host=Share(0.0, 0.0, 0.004, observed=True),
            copy=Share(0.0, 0.0, 0.002),
            interconnect=Share(0.012, 0.009, 0.015),
            network=Share(0.112, 0.106, 0.118),
            prep=Share(0.0, 0.0, 0.003),
            fetch=Share(0.0, 0.0, 0.001),
        ),
        verdict=Bottleneck(
            binds="network",
            sentence="Machines wait for the exchange of gradients: 36 % of the step.",
            next_step="Exchange less often (accumulate gradients) or less (a bf16 hook), or rent a faster network.",
            confidence=1.0,
            predicted_step_s=0.198,
            predicted_low_s=0.194,
            predicted_high_s=0.202,
            predicted_gain=0.361,
        ),
    )


def _host(bare: Profile) -> Profile:
    return replace(
        bare,
        world=WorldRecord(world_size=1, nnodes=1, backend=None),
        nodes=_gpus(1, 1),
        step_s=0.0214,
        step_low_s=0.0211,
        step_high_s=0.0218,
        samples_per_s=1_495.0,
        split=Split(
            compute=Share(0.0082, 0.0080, 0.0085),
            host=Share(0.0128, 0.0123, 0.0132, observed=True),
            copy=Share(0.0004, 0.0002, 0.0006),
            prep=Share(0.0, 0.0, 0.0003),
            fetch=Share(0.0, 0.0, 0.0001),
        ),
        verdict=Bottleneck(
            binds="host",
            sentence="The device waits for the host: 60 % of the step.",
            next_step="Give the host less to do in a step: torch.compile, an optimizer with fused=True, or a larger "
            "batch.",
            confidence=1.0,
            predicted_step_s=0.0086,
            predicted_low_s=0.0084,
            predicted_high_s=0.0091,
            predicted_gain=0.598,
        ),
    )


PICTURES = (
    Picture("report", _of_run("examples/runs/slow-data")),
    Picture("inconclusive", _of_run("examples/runs/images")),
    Picture("network", _made(_network)),
    Picture("host", _made(_host)),
)


def words_in(file: Path) -> str | None:
    """The words kept in a picture."""
    from PIL import Image

    with Image.open(file) as image:
        return image.info.get(_KEPT)


def stale() -> list[str]:
    """Pictures that are not there, or whose report says something else now."""
    return [
        file.name
        for picture in PICTURES
        for scheme in SCHEMES
        if not (file := picture.file(scheme)).exists() or words_in(file) != picture.words()
    ]


def _save(shot: bytes, file: Path, words: str) -> None:
    from PIL import Image, PngImagePlugin

    kept = PngImagePlugin.PngInfo()
    kept.add_itxt(_KEPT, words)
    image = Image.open(BytesIO(shot)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    file.parent.mkdir(exist_ok=True)
    image.save(file, optimize=True, pnginfo=kept)


def main() -> None:
    """Make every picture anew."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or sys.exit("Chromium is needed: make system")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        for picture in PICTURES:
            (path := Path(folder) / "page.html").write_text(picture.page(), encoding="utf-8")
            for scheme in SCHEMES:
                context = browser.new_context(
                    color_scheme="dark" if scheme == "dark" else "light",
                    viewport={"width": _WIDTH, "height": 400},
                    device_scale_factor=1.5,
                    offline=True,
                )
                page = context.new_page()
                page.goto(path.as_uri())
                page.add_style_tag(content=_CROP)
                _save(page.screenshot(full_page=True), picture.file(scheme), picture.words())
                sys.stdout.write(f"{picture.file(scheme).relative_to(ROOT)}\n")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
