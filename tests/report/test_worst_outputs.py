"""What a review called the worst outputs, on a screen of 80 columns: the text that took their place."""

import math
import re

import pytest

from stallwise.analysis.prediction import MemoryFit
from stallwise.model.compute.memory import MemoryNeed
from stallwise.report.format import show_bounds, show_bytes, show_memory, show_number, show_percent, show_seconds
from stallwise.report.views.simulate import draw as draw_simulation
from stallwise.report.views.whatif import show_memory_use
from tests.conftest import ROOT, Cli
from tests.report.test_simulate import comparison
from tests.report.test_terminal import WIDTHS, printed

RUN = str(ROOT / "examples" / "runs" / "images")
MODEL = str(ROOT / "examples" / "models" / "llama-70b.json")
TRACES = str(ROOT / "examples" / "runs" / "traces")
MACHINE = str(ROOT / "examples" / "machines" / "h200.json")
COMMANDS = {
    "offers": ("catalog", "offers", "--gpu", "H100"),
    "gpus": ("catalog", "gpus"),
    "instances": ("catalog", "instances", "--gpu", "H100"),
    "gpu": ("catalog", "show", "H100"),
    "whatif": ("whatif", RUN, "--gpus", "64", "--link", "300GB/s", "--network", "100gbit"),
    "predict": ("predict", RUN, "--gpu", "H100", "--samples", "1e7"),
    "recommend": ("recommend", RUN, "--samples", "2e7", "--gpu", "T4"),
    "compare": ("compare", RUN, RUN),
    "characterize": ("characterize", "--compare", MACHINE, "--price", "h200=3.50"),
    "traces": ("trace", "show", TRACES),
    "published": ("spot", "fit", "published"),
    "lifetimes": ("spot", "fit", "K80/us-east1"),
    "spot": (
        "spot", "plan", RUN, "--steps", "600000", "--nodes", "4", "--mean-life", "20h", "--price", "2.1",
        "--spot-price", "0.8", "--checkpoint-time", "20s", "--replays", "500",
    ),
    "buckets": ("whatif", RUN, "--network", "1gbit", "--gpus", "4", "--no-curve", "--best-buckets", "plan.json"),
    "layout": ("whatif", MODEL, "--gpu", "H100", "--gpus", "64", "--global-batch", "256", "--tp", "8", "--pp", "2"),
    "layouts": ("whatif", MODEL, "--gpu", "H100", "--gpus", "64", "--global-batch", "256", "--best-layout"),
    "recommend layout": (
        *("recommend", MODEL, "--tokens", "1B", "--global-batch", "256", "--gpu", "H100", "--max-nodes", "8"),
    ),
    "deflate": ("deflate", RUN),
    "report": ("report", RUN),
    "record": ("report", RUN, "--detail"),
    "stash": ("report", RUN, "--as", "stash"),
    "doctor": ("doctor",),
}  # fmt: skip
# An exponent, a missing number, a negative zero, a plural of one, bytes by the hundred thousand.
UGLY = re.compile(r"\d(e[+-]\d)|\b(nan|inf|None)\b|[-−]0 %|(?<![\d.,])1 \w+(ers|pes|des|GPUs)\b|\d{5,} B\b")
CUT = re.compile(r"\d…|…\d")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_cuts_a_number(name: str, ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in WIDTHS if name != "doctor" else WIDTHS[:1]:
        monkeypatch.setenv("COLUMNS", str(width))
        text = ask(*COMMANDS[name]).stdout
        assert max(map(len, text.splitlines())) <= width
        assert not CUT.search(text)
        assert not (match := UGLY.search(text)), match


def test_offers_and_gpus_keep_their_prices_and_rates(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, first, *_ = ask(*COMMANDS["offers"]).stdout.splitlines()
    assert head.split() == ["$/h", "market", "GPUs", "instance", "where"]
    assert re.match(r" *\d+\.\d\d  (spot|on-demand)", first)
    gpus = ask(*COMMANDS["gpus"]).stdout.splitlines()
    assert all(one in gpus[0] for one in ("memory", "GB/s", "fp32", "bf16", "fabric"))
    assert gpus[-1].startswith("Left out at this width: ")


def test_a_recommendation_speaks_plainly(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(ask(*COMMANDS["recommend"], "--deadline", "20h").stdout.split())
    assert "meets the deadline with" in text
    assert "prices differ by up to" in text
    assert not re.search(
        r"quicker|dearer|is worth|kept with|\d\.\d+k samples|1 loader workers|of 1 instance types", text
    )
    late = ask(*COMMANDS["recommend"], "--deadline", "1min", code=1).stdout
    assert re.search(r"a\s+deadline\s+of\s+\d+min", late), "a deadline that can be typed as it stands"


def test_memory_is_in_units_that_fit() -> None:
    need = MemoryNeed(weights=311_400, gradients=311_400, optimizer=622_800, activations=4.1e7, unit=0.0)
    fit = MemoryFit(
        need=need, usable_bytes=8e10, sharded_over=1, largest_batch=1857.2, measured_samples=16.0, fits_sharded_over=1
    )
    lines = show_memory_use(fit)
    assert lines[1] == "weights 304 KiB · gradients 304 KiB · optimizer 608 KiB · activations 39.1 MiB"
    assert lines[2] == "Measured with 16 samples per GPU; about 29,700 fit."


def test_a_whatif_names_the_bottleneck_and_reads_rates(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = ask(*COMMANDS["whatif"]).stdout
    assert re.search(r"link: [\d.]+ MB/s → 300 GB/s", text)
    assert re.search(r"bound by +compute \(99 %\); largest removable stall: exchange, 1\.\d %", text)


def test_a_simulation_has_two_stacked_tables_and_one_legend() -> None:
    shown = comparison(seeds=(0, 1, 2))
    text = printed(draw_simulation(shown), 80)
    assert text.count("\npolicy") == 2
    for name in ("JCT mean", "median", "p95", "waiting", "makespan", "used", "lost", "idle", "ρ p95", "stops"):
        assert re.search(rf"\npolicy.*\b{name}", text), name
        assert re.search(rf" {name}: ", text), f"{name} is explained below"
    assert "Left out" not in text


def test_phases_are_explained_below_their_table(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = ask("report", "--detail", RUN).stdout
    assert "warm-up" not in text, "a phase without steps"
    assert re.search(r"\nphase +steps +blocks +step +95 % interval", text)
    assert re.search(r"\nno exchange +no gradient exchange", text)


def test_a_fitted_life_beyond_the_data_is_not_shown(ask: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = ask(*COMMANDS["lifetimes"]).stdout
    assert re.search(r"Weibull .* over 24 h +n/a", text)
    assert "plans use     the measured curve below" in text


def test_every_number_by_one_formatter() -> None:
    assert [show_seconds(value) for value in (0.0, 4e-7, 0.0382, 99.96, 5.1 * 3600, 193.47 * 3600)] == [
        "0 s", "0.4 µs", "38.2 ms", "1.67 min", "5.1 h", "8.06 d",
    ]  # fmt: skip
    assert show_seconds(1e300) == "over 1,000 years"
    assert [show_number(value) for value in (1520.0, 0.00012, 9.996, math.nan, 1e300)] == [
        "1,520", "0.00012", "10", "n/a", "over 10^15",
    ]  # fmt: skip
    assert (show_percent(-0.00001), show_percent(6.276)) == ("0 %", "628 %")
    assert (show_bytes(999_960), show_memory(311_400)) == ("1 MB", "304 KiB")
    assert show_bounds(7200.0, 9000.0) == "2 to 2.5 h"
