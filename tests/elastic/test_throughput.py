"""The alarm of a job that is slower than its workers should make it, and its bottleneck."""

import csv
from pathlib import Path

import pytest

from stallwise.elastic.throughput import ThroughputWatch, Window


def _windows(speeds: dict[int, float], repeats: int = 5) -> list[Window]:
    return [
        Window(at_s=0.0, workers=n, per_s=speed, step_s=n / speed)
        for n, speed in speeds.items()
        for _ in range(repeats)
    ]


def test_cm_dares_clusters(shared_data: Path) -> None:
    """spot-V8 with hysteresis, calibrated on the session itself: every saturated cluster, none of the near misses."""
    table: dict[tuple[str, str], dict[int, float]] = {}
    with (shared_data / "transient/cmdare/cluster_speed_by_workers.csv").open() as file:
        for row in csv.DictReader(file):
            if row["num_ps"] == "1":
                table.setdefault((row["gpu"], row["model"]), {})[int(row["workers"])] = float(row["steps_per_sec_mean"])
    alarms = {}
    for key, speeds in table.items():
        watch = ThroughputWatch(warm_up=0)
        verdicts = [watch.judge(window) for window in _windows(dict(sorted(speeds.items())))]
        alarms[key] = {verdict.window.workers for verdict in verdicts if verdict.alarm}
    for (gpu, model), workers in alarms.items():
        if gpu == "K80" and "ResNet" in model:
            assert not workers, (gpu, model, workers)
        if gpu == "P100":
            assert {6, 7, 8} <= workers, (model, workers)
    near_misses = {"ResNet-32": {1, 2}, "ShakeShake-small": {3}}
    assert not any(alarms["P100", model] & few for model, few in near_misses.items())


def test_an_alarm_needs_a_few_windows_and_ends_lower() -> None:
    watch = ThroughputWatch(each=100.0, warm_up=0)

    def alarm(*speeds: float) -> bool:
        return [watch.judge(Window(at_s=0, workers=1, per_s=speed)).alarm for speed in speeds][-1]

    assert not alarm(100, 80, 80, 100, 80, 80)
    assert alarm(80)
    assert alarm(92, 92, 92, 92)  # under the upper threshold, above the lower
    assert not alarm(95, 95, 95)


@pytest.mark.parametrize(
    ("times", "expected", "gain"),
    [
        (((1.0, 20.0, 40.0, 5.0), (1.0, 40.0, 80.0, 1.0)), "slow worker", 2.0),
        (((60.0, 20.0, 40.0, 1.0), (55.0, 20.0, 40.0, 1.0)), "data", 2.0),
        (((1.0, 20.0, 40.0, 55.0), (1.0, 20.0, 40.0, 55.0)), "exchange", 2.0),
    ],
)
def test_the_bottleneck_by_the_ranks_times(times: tuple[tuple[float, ...], ...], expected: str, gain: float) -> None:
    watch = ThroughputWatch(each=100.0, warm_up=0)
    window = Window(at_s=0, workers=2, per_s=100.0, step_s=0.12, times_ms=times)
    first, *_, last = [watch.judge(window) for _ in range(5)][-3:]
    assert first.alarm
    assert (first.advice is None) == (expected == "exchange")  # which is what is left when nothing else explains it
    advice = last.advice
    assert advice is not None
    assert advice.bottleneck == expected, advice
    assert advice.gain == pytest.approx(gain, rel=0.05)


def test_ranks_that_all_compute_slower_are_not_the_networks_fault() -> None:
    watch = ThroughputWatch(warm_up=0)
    before = Window(at_s=0, workers=2, per_s=100.0, step_s=0.1, times_ms=((1.0, 30.0, 60.0, 5.0),) * 2)
    after = Window(at_s=0, workers=2, per_s=50.0, step_s=0.2, times_ms=((1.0, 60.0, 120.0, 5.0),) * 2)
    advice = [watch.judge(window) for window in [before] * 6 + [after] * 6][-1].advice
    assert advice is not None
    assert advice.bottleneck == "compute", advice
