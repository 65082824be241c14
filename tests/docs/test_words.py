"""The documents stay short: what a reader has to get through is counted."""

import yaml

from docsite.words import TRAINER, words
from tests.conftest import ROOT


def test_documents_are_short() -> None:
    counted = words()
    docs = sum(count for name, count in counted.items() if name != "README.md")
    assert docs <= 45_000, "python -m docsite.words; measurements and their history belong to evidence/"
    assert counted["README.md"] + sum(counted[f"docs/{name}.md"] for name in TRAINER) <= 10_000
    assert counted["README.md"] <= 1_200


def test_recipes_in_yaml_can_be_read() -> None:
    from tests.docs.console import fences

    for page in ("kubernetes", "ci", "recommend", "catalog"):
        texts = [body for info, _, body in fences(ROOT / f"docs/{page}.md") if info.startswith("yaml")]
        assert texts
        for text in texts:
            assert isinstance(yaml.safe_load(text), dict)
