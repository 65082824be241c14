"""What cores do to each other, measured for real."""

from stallwise.record.crowding import measure_crowding


def test_one_core_is_never_crowded() -> None:
    assert measure_crowding(1) == 1.0


def test_more_processes_than_cores_share_them() -> None:
    """Sixteen on whatever this machine has: none can be quicker than alone, and on fewer cores each is slower."""
    import os

    found = measure_crowding(16)
    assert found >= 1.0
    if (os.cpu_count() or 1) <= 4:
        assert found > 1.5
