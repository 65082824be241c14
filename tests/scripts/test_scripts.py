"""Small scripts, each the shape of a famous one, under `profile`: a split that names what was injected."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs
from tests.figures import Figures
from tests.program import run_program
from tests.sentences import coded

HERE = Path(__file__).parent


def profiled(folder: Path, script: str, *arguments: str, max_time_s: float = 2) -> dict[str, Any]:
    """The profile of a script of this folder; its parts are never negative and add up to the step."""
    options = ("--json", "--max-time", f"{max_time_s}s", "-o", str(folder / "run"))
    done = run_program(("profile", *options, str(HERE / script), *arguments), folder)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = coded(done.stdout)
    shares = [share["s"] for share in document["split"].values() if share is not None]
    assert min(shares) >= 0
    assert abs(sum(shares) - document["step_s"]) <= 1e-9 * document["step_s"]
    return document


CASES = {
    "generator": ("prep", "data code"),
    "rollout": ("prep", "data code"),
    "by_hand": ("prep", "data code"),
    "background": ("prep", "loader"),
    "cycle": ("data", None),
    "two_loaders": ("data", None),
    "gan": ("data", None),
    "stateful": ("data", None),
    "amp_ema": ("data", None),
    "prefetcher": ("data", None),
    "hf_trainer": ("data", None),
    "accelerated": ("data", None),
    "lightning_fit": ("data", None),
    "fabric_loop": ("data", None),
    "contrastive": ("data", None),
    "graphs": ("data", None),
    "streaming": ("data", None),
    "embeddings": ("data", None),
    "recurrent": ("prep", "data code"),
    "replay_buffer": ("prep", "data code"),
    "closure": ("host", "python"),
    "own_optimizer": ("prep", "data code"),
    "configured": ("prep", "data code"),
    "compiled": ("host", "python"),
    "validating": ("host", "python"),
    "trainer": ("host", "python"),
    "modules": ("host", "python"),
}
"""The part in which each script's injected delay is to show (data: prep and fetch), and its observed cause."""

LIBRARIES = {
    "hf_trainer": "transformers",
    "accelerated": "accelerate",
    "lightning_fit": "lightning",
    "fabric_loop": "lightning",
    "stateful": "torchdata",
}


def bare_ms(folder: Path, script: str, *arguments: str) -> float:
    """The mean step of the script by itself."""
    command = [sys.executable, str(HERE / script), *arguments, "--bare", "4"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=250)
    return float(done.stdout.split()[1])


@pytest.mark.truth
@pytest.mark.parametrize("script", CASES)
def test_the_injected_delay_is_found(tmp_path: Path, script: str, figures: Figures) -> None:
    """Within 15 % of what the bare script becomes longer by, or 5 % of the step."""
    part, cause = CASES[script]
    if script in LIBRARIES:
        needs(LIBRARIES[script])
    delay = ("--delay-ms", "20")
    injected_ms = bare_ms(tmp_path, f"{script}.py", *delay) - bare_ms(tmp_path, f"{script}.py")
    document = profiled(tmp_path, f"{script}.py", *delay, max_time_s=15)
    split = {name: share["s"] * 1e3 for name, share in document["split"].items() if share is not None}
    value_ms = split.get("prep", 0.0) + split.get("fetch", 0.0) if part == "data" else split[part]
    tolerance_ms = 0.05e3 * document["step_s"]
    figures.judge(f"{script}.py: {part}", value_ms, injected_ms, rel=0.15, abs=tolerance_ms, unit="ms")
    assert document["verdict"]["binds"] in (("prep", "fetch") if part == "data" else (part,))
    if cause is not None:
        assert document["observed"][0]["cause"] == cause


def test_a_token_array_without_a_loader(tmp_path: Path) -> None:
    document = profiled(tmp_path, "tokens.py", "--data-ms", "200")
    assert document["split"]["prep"]["observed"]
    longest = document["observed"][0]
    assert (longest["cause"], longest["part"]) == ("data code", "prep")
    assert "get_batch" in longest["where"]
    assert document["samples_per_s"] == pytest.approx(8 / document["step_s"])
    assert document["tokens_per_s"] == pytest.approx(8 * 64 / document["step_s"])
    verdict = document["verdict"]
    assert "prep" in (verdict["binds"], *verdict["candidates"])


@pytest.mark.parametrize("script", ["graphs", "replay_buffer"])
def test_a_long_delay_is_found_in_seconds(tmp_path: Path, script: str) -> None:
    """A loader of objects that the model writes to, and a loop without one: 100 ms a step are no close call."""
    part, _ = CASES[script]
    document = profiled(tmp_path, f"{script}.py", "--delay-ms", "100")
    split = {name: share["s"] for name, share in document["split"].items() if share is not None}
    found_s = split.get("prep", 0.0) + split.get("fetch", 0.0) if part == "data" else split[part]
    assert found_s > 0.5 * document["step_s"]
