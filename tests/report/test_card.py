"""The card: every kind of job on one screen, in words where there is no number."""

import io
import re
from typing import Literal

import pytest
from rich.console import Console, RenderableType

from stallwise.record.profile import Profile
from stallwise.report.card import draw
from stallwise.report.stash import draw_stash
from tests.report.made import ALL, DDP, FULL, HOSTILE, PARTIAL, PLAIN


def printed(drawn: RenderableType, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    colours: Literal["standard", "auto"] = "standard" if terminal else "auto"
    Console(file=out, width=width, highlight=False, force_terminal=terminal, color_system=colours).print(drawn)
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
    assert row(text, "interconnect").endswith("11.4 ms  8.5 %  4.5 to 16.4 ms")
    assert "not distinguishable from zero (at most 1.2 ms)" in row(text, "fetch")
    assert "█" not in row(text, "fetch")
    assert "52,200  46,300 to 58,800" in row(text, "F ")
    assert "rank 1" in row(text, "skew")
    assert "127 ms" in row(text, "cold step")
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
    bars = [row(text, name) for name in ("compute", "copy", "interconnect", "network", "prep", "fetch")]
    ends = [(bar.index("█"), bar.rindex("█") + 1) for bar in bars]
    assert [start for start, _ in ends[1:]] == [end for _, end in ends[:-1]]


def test_a_partial_run_says_so_first() -> None:
    text = printed(draw(PARTIAL))
    assert "NOT WHOLE: Rank 1 was killed by signal 9." in text.splitlines()[2]
    assert "interval unknown" in row(text, "step")
    assert "not distinguishable from zero (too few blocks for a bound)" in row(text, "prep")
    assert "not separated from prep" in row(text, "fetch")


def test_square_brackets_are_text() -> None:
    text = printed(draw(HOSTILE))
    assert "[red]note[/red]" in text
    assert "NOT WHOLE: [bold]<i>&" in text


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
