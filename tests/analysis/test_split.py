"""The order of stalls in a profile, where they differ so much that no machine is busy enough to change it.

How long each is, `make truth` compares with the bare script (tests/record/truth).
"""

from pathlib import Path

from tests.record.truth.bench import Setup

STALLS = ("copy", "interconnect", "network", "prep", "fetch")


def test_the_largest_stall_is_the_one_that_was_injected(tmp_path: Path) -> None:
    """Two ranks: a read that is blocked for half a second a batch, and an exchange that takes a tenth."""
    injected = ("--workers", "1", "--blocked", "0.5", "--hook", "0.1")
    split = Setup(2, injected).profiled(tmp_path / "run", max_time_s=5)["split"]
    found = {stall: split[stall]["s"] for stall in STALLS if split[stall] is not None}
    assert max(found, key=lambda stall: found[stall]) == "fetch", found
    assert found["interconnect"] > found["prep"], found
