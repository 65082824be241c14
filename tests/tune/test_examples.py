"""Predicted gains beside measured ones, over all shipped examples: `pytest -m soak -s tests/tune/test_examples.py`."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli, lacks, texts
from tests.figures import Figures

pytestmark = [pytest.mark.soak, pytest.mark.truth]

# The bar of issue 7, written before anything was measured.
POINTS = 0.15
EXAMPLES = ROOT / "examples"


def tuned(cli: Cli, *job: str) -> dict:
    """What `stallwise tune` finds, with a line for each setting that it tried."""
    found = json.loads(cli("tune", "--json", "--max-time", "80s", *job).stdout)
    print(f"\n{Path(found['script']).name}: {found['binds']} binds, kept {found['kept'] or 'nothing'}")
    for one in found["attempts"]:
        print(f"  {one['settings']}: predicted {one['predicted_gain']:.0%}, measured {one['gain']:.0%}")
    for note in texts(found["notes"]):
        print(f"  {note}")
    return found


def check(found: dict, figures: Figures, *, computes: bool = False) -> None:
    """Every setting that was tried, kept or not; for a job that computes there may be none."""
    assert found["attempts"] or computes, found["notes"]
    for one in found["attempts"]:
        name = f"{Path(found['script']).name}: predicted gain of {one['settings']}"
        figures.judge(name, one["predicted_gain"], one["gain"], abs=POINTS, unit="")
        assert not one["kept"] or min(one["gains"]) > 0


@pytest.mark.parametrize("workers", ["0", "1"])
def test_images(cli: Cli, tmp_path: Path, workers: str, figures: Figures) -> None:
    check(tuned(cli, str(EXAMPLES / "images.py"), "--data", str(tmp_path / "images"), "--workers", workers), figures)


def test_slow_data(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    check(tuned(cli, str(EXAMPLES / "slow_data.py"), "--data", str(tmp_path / "photographs")), figures)


def test_bucket_images(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        from images import make_images
    finally:
        sys.path.pop(0)
    make_images(tmp_path / "images", 1024)
    url = f"file://{tmp_path / 'images'}"
    check(tuned(cli, str(EXAMPLES / "bucket_images.py"), "--url", url, "--workers", "0"), figures)


def test_language_model(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    found = tuned(cli, str(EXAMPLES / "language_model.py"), "--data", str(tmp_path / "tokens.bin"))
    check(found, figures, computes=True)
    assert found["kept"] == {}, "it computes"


@pytest.mark.parametrize(("script", "needs"), [("trainer.py", "transformers"), ("lightning_images.py", "lightning")])
def test_frameworks(cli: Cli, tmp_path: Path, script: str, needs: str, figures: Figures) -> None:
    if importlib.util.find_spec(needs) is None:
        lacks(needs)
    data = ["--data", str(tmp_path / "images")] if script == "lightning_images.py" else []
    check(tuned(cli, str(EXAMPLES / script), *data), figures)


def test_close_the_loop(cli: Cli, tmp_path: Path, figures: Figures) -> None:
    spec = importlib.util.spec_from_file_location("close_the_loop", EXAMPLES / "close_the_loop" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    names = run.make_images(tmp_path / "images")
    with run.store(tmp_path / "images", run.DELAY_S) as url:
        check(tuned(cli, str(EXAMPLES / "close_the_loop" / "train.py"), "--url", url, "--names", str(names)), figures)
