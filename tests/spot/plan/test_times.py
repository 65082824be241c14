"""Estimates of times from published measurements."""

from stallwise.spot.plan.times import checkpoint_line, checkpoint_time, machine_start, worker_start


def test_guesses_say_where_they_come_from() -> None:
    line = checkpoint_line()
    assert line.mape < 0.1
    small = checkpoint_time(50e6)
    assert small.low_s < small.s < small.high_s
    assert "far beyond" not in small.note
    assert "far beyond" in checkpoint_time(5e9).note
    assert machine_start("K80").s != machine_start("P100").s
    assert worker_start(warm=True).s < worker_start().s
