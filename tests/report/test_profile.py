"""A profile on the card and as JSON: every kind of job on one screen, stable keys, words where there is no number."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal

import pytest
from rich.console import Console, RenderableType

from stallwise.analysis.profile import Profile
from stallwise.report import terminal as screen
from stallwise.report.json import to_json
from stallwise.report.view import View
from stallwise.report.views.profile import MEANINGS, document, draw, draw_stash, parts_of, stash_document
from tests.conftest import ROOT
from tests.report.made import ALL, DDP, FULL, HOSTILE, PARTIAL, PLAIN


def printed(drawn: View | RenderableType, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    colours: Literal["standard", "auto"] = "standard" if terminal else "auto"
    Console(file=out, width=width, highlight=False, force_terminal=terminal, color_system=colours).print(
        screen.draw(drawn)
    )
    return out.getvalue()


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
@pytest.mark.parametrize("view", [draw, draw_stash])
def test_every_job_fits_and_has_no_raw_value(view: object, profile: Profile, width: int) -> None:
    text = printed(view(profile), width)  # type: ignore[operator]
    lines = text.splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    assert len(lines) <= 34
    assert not re.search(r"\b(None|nan|inf)\b", text)
    assert "\x1b" not in text
    assert "…" not in text


def test_a_terminal_gets_colour_and_the_same_words() -> None:
    coloured = printed(draw(DDP), terminal=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(draw(DDP))


def test_ddp_on_the_cpu() -> None:
    text = printed(draw(DDP))
    assert "images.py" in text
    assert "/home/me" not in text
    assert "2 ranks on 1 node · 120 steps measured · complete" in text
    assert "134 ms  (129 to 141 ms)   239 samples/s" in text
    assert "absent: no GPU" in row(text, "copy")
    assert "absent: one node" in row(text, "network")
    assert row(text, "interconnect").endswith("11.4 ms   8.5 %  4.5 to 16.4 ms")
    assert "not distinguishable from zero (at most 1.2 ms)" in row(text, "fetch")
    assert "█" not in row(text, "fetch")
    assert row(text, "unassigned").endswith("500 µs  0.37 %  0 to 1.2 ms")
    assert "52,200  46,300 to 58,800" in row(text, "F ")
    assert "rank 1" in row(text, "skew")
    assert "no longer with data files out of the page cache (127 ms)" in row(text, "cold step")
    assert "461 MiB" in row(text, "peak memory")
    assert "checkpoint 5 × 3.2 ms, first batch 12 × 17.7 ms, worker start-up 12 × 7.7 ms" in text
    assert "prep · Preparing batches" in row(text, "binds")
    assert "num_workers=2" in row(text, "next")
    assert "117 ms a step, 13 % less" in row(text, "predicted")


def test_one_process_without_a_loader() -> None:
    text = printed(draw(PLAIN))
    assert "samples/s unknown" in row(text, "step")
    assert "absent: one process" in row(text, "interconnect")
    assert "not measured" in row(text, "prep")
    assert "compute includes what was not measured" in text
    assert "predicted" not in text
    assert "skew" not in text


def test_two_nodes_with_everything() -> None:
    text = printed(draw(FULL))
    assert "5,120 samples/s · 1,310,000 tokens/s" in text
    assert all("█" in row(text, name) for name in ("compute", "copy", "interconnect", "network", "prep", "fetch"))
    assert "MFU 41 %" in text
    assert "lm_head (Linear): 36 ms forward and backward, 20 % of 25 layers" in row(text, "slowest layer")
    assert "slowest layer" not in printed(draw(DDP))
    assert "90,000  interval unknown" in row(text, "C ")
    assert "absent" not in text
    assert "includes" not in text


def test_bars_are_stairs_that_span_the_step() -> None:
    text = printed(draw(FULL))
    bars = [row(text, name) for name in MEANINGS]
    ends = [(bar.index("█"), bar.rindex("█") + 1) for bar in bars]
    assert [start for start, _ in ends[1:]] == [end for _, end in ends[:-1]]


def test_a_partial_run_says_so_first() -> None:
    text = printed(draw(PARTIAL))
    assert "PARTIAL RUN: Rank 1 was killed by signal 9." in text.splitlines()[2]
    assert "interval unknown" in row(text, "step")
    assert "not distinguishable from zero (too few blocks for a bound)" in row(text, "prep")
    assert "not separated from prep" in row(text, "fetch")


def test_square_brackets_are_text() -> None:
    text = printed(draw(HOSTILE))
    assert "[red]note[/red]" in text
    assert "PARTIAL RUN: [bold]<i>&" in text


def test_what_was_observed_is_marked_and_named() -> None:
    text = printed(draw(FULL))
    assert row(text, "host").endswith("observed")
    assert "launch 31 ms (2,400 ×), synchronise 9 ms (1 ×) at pretrain.py:88 main" in " ".join(text.split())


def test_the_stash_view() -> None:
    text = printed(draw_stash(FULL))
    # t0 = 210, t1 = 230, tN = 330, t3 = 400, t2 = 500 ms
    assert "8.7 %" in row(text, "interconnect")
    assert "43 %" in row(text, "network")
    assert "(t3 − tN) / t3" in row(text, "CPU")
    assert "20 %" in row(text, "disk")
    assert "do not add up" in text
    assert "still waits 40 ms for storage" in text


def test_the_stash_view_of_cold_steps_that_were_faster() -> None:
    text = printed(draw_stash(DDP))
    assert "absent: one node" in row(text, "network")
    assert "The disk stall is negative" in text


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_every_profile_is_strict_json(profile: Profile) -> None:
    for made in (document(profile), stash_document(profile)):
        assert json.loads(json.dumps(made, allow_nan=False)) == made
        assert json.loads(to_json(made)) == made


def test_the_promised_keys() -> None:
    made = document(FULL)
    assert list(made) == ["schema"] + [field.name for field in fields(Profile)]
    assert made["step_s"] == 0.4
    assert list(made["split"]) == list(MEANINGS)
    assert made["split"]["network"] == {"s": 0.1, "low_s": 0.09, "high_s": 0.11, "observed": False}
    assert list(made["rates"]) == ["G", "P", "P_per_core", "F", "C"]
    assert made["rates"]["C"] == {"samples_per_s": 90000.0, "low": 80000.0, "high": None}
    assert made["verdict"]["binds"] == "network"


@pytest.mark.parametrize("profile", ALL.values(), ids=ALL)
def test_the_bars_add_up_to_the_step(profile: Profile) -> None:
    shown = [part.share.s for part in parts_of(profile) if part.share is not None and part.words is None]
    assert sum(shown) == pytest.approx(profile.step_s)


def test_what_is_absent_is_null_and_unbounded_too() -> None:
    assert document(PLAIN)["split"]["network"] is None
    assert document(PLAIN)["samples_per_s"] is None
    assert document(PARTIAL)["split"]["prep"] == {"s": 0.0339, "low_s": 0.0, "high_s": None, "observed": False}
    assert document(PARTIAL)["step_low_s"] is None


def test_the_stash_document() -> None:
    made = stash_document(FULL)
    assert made["times"] == pytest.approx({"t0_s": 0.21, "t1_s": 0.23, "tn_s": 0.33, "t3_s": 0.4, "t2_s": 0.5})
    assert made["stalls"]["network"]["of"] == "t1"
    assert made["stalls"]["network"]["percent"] == pytest.approx(100 * 0.1 / 0.23)
    assert stash_document(PLAIN)["stalls"] == dict.fromkeys(("interconnect", "network", "prep", "fetch"))


def test_the_manual_lists_every_key() -> None:
    manual = (ROOT / "docs/json.md").read_text()
    listed = set(re.findall(r"`(\w+)`", manual)) | {"code", "text", "fetch_s"}  # of a sentence
    assert set(keys_of(document(FULL))) | set(keys_of(stash_document(FULL))) <= listed
