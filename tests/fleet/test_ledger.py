"""The ledger: what predictions were off by, and how the next plan is moved."""

from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.fleet.ledger import FleetReceipt, corrected, enter, read_ledger, write_lifetimes
from stallwise.fleet.rehearsal import rehearse
from tests.fleet.test_manager import COSTS, MARKET, PLAN, TIMING

PREDICTED = replace(PLAN, low_s=7000.0, high_s=8000.0, low_usd=4.0, high_usd=4.5)


@pytest.fixture(scope="module")
def settled() -> FleetReceipt:
    (one,) = rehearse(PREDICTED, [MARKET], COSTS, TIMING).receipts
    return one


def _entered(settled: FleetReceipt, path: Path, ratios: list[float]) -> None:
    for number, ratio in enumerate(ratios):
        lived = replace(settled.lived, time_s=7600.0 * ratio, usd=4.2 * ratio)
        enter(replace(settled, token=f"t{number}", lived=lived), path)


def test_bias_and_coverage_by_hand(settled: FleetReceipt, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert read_ledger(path).receipts == ()
    _entered(settled, path, [1.0, 1.2, 1.5])
    _entered(settled, path, [1.0, 1.2, 1.5])  # once more: the same fleets
    book = read_ledger(path)
    assert len(book.receipts) == 3
    assert book.time is not None
    assert (book.time.jobs, book.time.bias, book.time.covered) == (3, pytest.approx(1.2), 1)
    assert (book.time.low, book.time.high) == (pytest.approx(1.0), pytest.approx(1.5))


def test_the_next_plan_is_moved_and_widened(settled: FleetReceipt, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    assert corrected(PREDICTED, read_ledger(path)) == PREDICTED
    _entered(settled, path, [1.0, 1.2, 1.5])
    plan = corrected(PREDICTED, read_ledger(path))
    assert plan.time_s == pytest.approx(7600.0 * 1.2**0.5)  # three jobs against three of no bias
    assert plan.low_s == pytest.approx(7600.0)  # the least that came
    assert plan.high_s == pytest.approx(7600.0 * 1.5)
    assert "3 earlier fleets" in " ".join(plan.notes)


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("no database, but long enough to be read as one" * 20)
    with pytest.raises(InputError, match="cannot be read"):
        read_ledger(path)


def test_lives_are_a_log_for_spot_fit(settled: FleetReceipt, tmp_path: Path) -> None:
    from stallwise.fleet.ledger import MachineLedger
    from stallwise.spot.lifetimes.readers import read_log

    machines = tuple(
        MachineLedger(name=name, market=market, boot_s=1.0, lived_s=60.0, usd=1.0, why=why)  # type: ignore[arg-type]
        for name, market, why in (("a", "spot", "preempted"), ("b", "spot", "done"), ("c", "on-demand", "done"))
    )
    enter(replace(settled, machines=machines, gpu="V100"), tmp_path / "ledger.sqlite")
    assert write_lifetimes(read_ledger(tmp_path / "ledger.sqlite"), tmp_path / "lives.csv") == 2
    lives = read_log(tmp_path / "lives.csv").lives
    assert [(one.lost, one.lived_s, one.gpu) for one in lives] == [(True, 60.0, "V100"), (False, 60.0, "V100")]
