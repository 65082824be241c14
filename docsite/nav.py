"""What the site holds, in the order of its navigation."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its file on the site, its name in the navigation, and its Markdown."""

    file: str
    name: str
    source: Path
    section: str | None = None
    """Only this section of the source; None: all of it."""


# Group, then (page's name, file under docs/).
GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Start", (("The words", "words.md"), ("In the browser", "ui.md"))),
    (
        "Where the time goes",
        (
            ("Profile a job", "profile.md"),
            ("What a profile says", "report.md"),
            ("What it does to your job", "profile-safety.md"),
            ("Frameworks", "frameworks.md"),
            ("On a GPU", "gpu.md"),
            ("Traces in and out", "trace.md"),
        ),
    ),
    (
        "What would happen if",
        (
            ("What if", "whatif.md"),
            ("On another GPU", "predict.md"),
            ("Measure the links", "probe.md"),
            ("Characterise a machine", "characterize.md"),
            ("How shape makes stalls", "study.md"),
        ),
    ),
    ("What to rent", (("Recommend", "recommend.md"), ("Spot", "spot.md"), ("The catalog", "catalog.md"))),
    (
        "Now fix it",
        (
            ("Tune", "tune.md"),
            ("Data from a bucket", "data.md"),
            ("Sharing data", "data-sharing.md"),
            ("Bucket plans", "buckets.md"),
            ("Training that survives", "elastic.md"),
            ("Deflation", "deflation.md"),
        ),
    ),
    (
        "Shared clusters",
        (
            ("Simulate", "simulate.md"),
            ("Policies", "policies.md"),
            ("Schedulers", "schedulers.md"),
            ("Slurm", "slurm.md"),
        ),
    ),
)
LAST = (
    ("How sure it is", "VALIDATION.md"),
    ("The run record", "run-record.md"),
    ("Architecture", "architecture.md"),
)


def pages(root: Path) -> list[tuple[str, list[Page]]]:
    """Groups with their pages. A page of docs/ that no group names stands under "More": none is ever left out."""
    docs = root / "docs"
    first = Page("index.html", "Quick start", root / "README.md")
    found: list[tuple[str, list[Page]]] = []
    for group, members in GROUPS:
        found.append((group, [_page(docs, name, file) for name, file in members if (docs / file).exists()]))
    found[0][1].insert(0, first)
    last = [_page(docs, name, file) for name, file in LAST]
    last.insert(1, Page("limits.html", "Limits", root / "README.md", section="Limits"))
    named = {page.source for _, members in found for page in members} | {page.source for page in last}
    rest = [_page(docs, _title(path), path.name) for path in sorted(docs.glob("*.md")) if path not in named]
    return [*found, *([("More", rest)] if rest else []), ("Behind it", last)]


def _page(docs: Path, name: str, file: str) -> Page:
    return Page(f"{Path(file).stem.lower()}.html", name, docs / file)


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()
