"""`python -m docsite.words`: the words of every page, and of those that somebody who trains networks reads."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRAINER = ("index", "tutorial", "card", "troubleshooting", "profile", "profile-safety", "tune", "frameworks", "report")
"""Pages under docs/ for who wants one job faster; README comes before them."""


def words(root: Path = ROOT) -> dict[str, int]:
    """Words (as wc counts them, code and tables too) of README and every page under docs/."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    return {page.relative_to(root).as_posix(): len(page.read_text(encoding="utf-8").split()) for page in pages}


def main() -> None:
    """Print the table."""
    counted = words()
    lines = [f"{count:7,}  {name}" for name, count in counted.items()]
    docs = sum(count for name, count in counted.items() if name != "README.md")
    trainer = sum(counted.get(f"docs/{name}.md", 0) for name in TRAINER)
    lines += [f"{docs:7,}  docs in all", f"{trainer + counted['README.md']:7,}  README and what a trainer reads"]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
